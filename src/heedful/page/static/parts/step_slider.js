// A slider over the steps of decoding: the model writes one piece at each.

import { pieceName } from "heedful/data/trace.js";
import { h, percent } from "heedful/parts/dom.js";
import { rowOfStep, stepOf, textOf } from "heedful/parts/forcing.js";

/** @typedef {import("heedful/main.js").Page} Page */

export class StepSlider {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    this.slider = h("input", { type: "range", min: 1, step: 1, "aria-label": "Decoding step", oninput: () => this.#go(this.slider.valueAsNumber - 1) });
    this.back = h("button", { type: "button", class: "small", "aria-label": "Step before", onclick: () => this.#go(this.slider.valueAsNumber - 2) }, "‹");
    this.on = h("button", { type: "button", class: "small", "aria-label": "Next step", onclick: () => this.#go(this.slider.valueAsNumber) }, "›");
    this.told = h("p", { class: "step-told" });
    host.append(h("div", { class: "step-slider" }, this.back, this.slider, this.on), this.told);
  }

  /** @param {number} step */
  #go(step) {
    const { store, trace } = this.page;
    if (trace) store.set({ step, query: rowOfStep(store.selection, trace, step) }, { replace: true });
  }

  /** @param {import("heedful/state/selection.js").Selection} selection @param {import("heedful/data/trace.js").Trace} trace */
  show(selection, trace) {
    const { ids } = trace.sides.written;
    const step = stepOf(selection, trace);
    const { probability, rank } = trace.manifest.steps[step];
    const before = textOf(trace, ids.slice(0, step));
    const piece = pieceName(trace.manifest, ids[step]);
    this.slider.max = ids.length;
    this.slider.value = step + 1;
    this.slider.setAttribute("aria-valuetext", `step ${step + 1} of ${ids.length}, writes ${piece}`);
    this.back.disabled = step === 0;
    this.on.disabled = step === ids.length - 1;
    this.told.replaceChildren(h("span", null, `Step ${step + 1} of ${ids.length}: `, before ? ["after ", h("bdi", { class: "before" }, `“${before}”`)] : "at the start", trace.manifest.translation.given ? " the given translation has " : " the model writes ",
      h("bdi", { class: "piece" }, piece), ` (${percent(probability)}, ${rank === 1 ? "its likeliest" : `number ${rank} of its list`}).`));
  }
}
