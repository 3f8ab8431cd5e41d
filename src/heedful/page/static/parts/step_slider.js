// A slider over the steps of decoding: the model writes one piece at each.

import { taskOf } from "heedful/data/task.js";
import { pieceName } from "heedful/data/trace.js";
import { h, percent } from "heedful/parts/dom.js";
import { rowOfStep, stepOf, textOf } from "heedful/parts/forcing.js";

/** @typedef {import("heedful/main.js").Page} Page */

export class StepSlider {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    this.slider = h("input", { type: "range", min: 1, step: 1, "aria-label": "Decoding step", oninput: () => this.#go(this.slider.valueAsNumber) });
    this.back = h("button", { type: "button", class: "small", "aria-label": "Step before", onclick: () => this.#go(this.slider.valueAsNumber - 1) }, "‹");
    this.on = h("button", { type: "button", class: "small", "aria-label": "Next step", onclick: () => this.#go(this.slider.valueAsNumber + 1) }, "›");
    this.told = h("p", { class: "step-told" });
    host.append(h("div", { class: "step-slider" }, this.back, this.slider, this.on), this.told);
  }

  /** @param {number} number of the step, from 1 */
  #go(number) {
    const { store, trace } = this.page;
    const step = trace?.steps[number - 1];
    if (trace && step !== undefined) store.set({ step, query: rowOfStep(store.selection, trace, step) }, { replace: true });
  }

  /** @param {import("heedful/state/selection.js").Selection} selection @param {import("heedful/data/trace.js").Trace} trace */
  show(selection, trace) {
    const { ids } = trace.sides.written;
    const step = stepOf(selection, trace);
    const { probability, rank } = trace.manifest.steps[step];
    const before = textOf(trace, ids.slice(0, step));
    const piece = pieceName(trace.manifest, ids[step]);
    const [number, count] = [trace.steps.indexOf(step) + 1, trace.steps.length];
    const { blanks, translation, model } = trace.manifest;
    const name = blanks ? "Blank" : "Step";
    const does = translation.given ? ` the given ${taskOf(model).written} has ` : step < translation.forced ? " there was given " : ` the model ${blanks ? "puts" : "writes"} `;
    this.slider.max = count;
    this.slider.value = number;
    this.slider.setAttribute("aria-valuetext", `${name.toLowerCase()} ${number} of ${count}, ${blanks ? "filled with" : "writes"} ${piece}`);
    this.back.disabled = number === 1;
    this.on.disabled = number === count;
    this.told.replaceChildren(h("span", null, `${name} ${number} of ${count}: `, before ? ["after ", h("bdi", { class: "before" }, `“${before}”`)] : "at the start", does,
      h("bdi", { class: "piece" }, piece), ` (${percent(probability)}, ${rank === 1 ? "its likeliest" : `number ${rank} of its list`}).`));
  }
}
