// Decoding steps: the step slider, and forced tokens.

import { getTask } from "heedful/data/task.js";
import { getTokenText } from "heedful/data/trace.js";
import { formatPercent, h } from "heedful/parts/dom.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */

export class StepSlider {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    this.slider = h("input", { type: "range", min: 1, step: 1, "aria-label": "Decoding step", oninput: () => this.#goTo(this.slider.valueAsNumber) });
    this.previousButton = h("button", { type: "button", class: "small", "aria-label": "Previous step", onclick: () => this.#goTo(this.slider.valueAsNumber - 1) }, "‹");
    this.nextButton = h("button", { type: "button", class: "small", "aria-label": "Next step", onclick: () => this.#goTo(this.slider.valueAsNumber + 1) }, "›");
    this.status = h("p", { class: "step-status" });
    host.append(h("div", { class: "step-slider" }, this.previousButton, this.slider, this.nextButton), this.status);
  }

  /** @param {number} number of the step, from 1 */
  #goTo(number) {
    const { store, trace } = this.page;
    const step = trace?.steps[number - 1];
    if (trace && step !== undefined) store.set({ step, query: getRowOfStep(store.selection, trace, step) }, { replace: true });
  }

  /** @param {import("heedful/state/selection.js").Selection} selection @param {import("heedful/data/trace.js").Trace} trace */
  show(selection, trace) {
    const { ids } = trace.sides.target;
    const step = getStep(selection, trace);
    const { probability, rank } = trace.manifest.steps[step];
    const prefix = decodeIds(trace, ids.slice(0, step));
    const text = getTokenText(trace.manifest, ids[step]);
    const [number, count] = [trace.steps.indexOf(step) + 1, trace.steps.length];
    const { blank_positions: blanks, translation, model } = trace.manifest;
    const unit = blanks ? "Blank" : "Step";
    const verb = translation.is_reference ? ` the given ${getTask(model).resultNoun} has ` : step < translation.prefix_length ? " the given token is " : ` the model ${blanks ? "predicts" : "writes"} `;
    this.slider.max = count;
    this.slider.value = number;
    this.slider.setAttribute("aria-valuetext", `${unit.toLowerCase()} ${number} of ${count}, ${blanks ? "filled with" : "writes"} ${text}`);
    this.previousButton.disabled = number === 1;
    this.nextButton.disabled = number === count;
    this.status.replaceChildren(h("span", null, `${unit} ${number} of ${count}: `, prefix ? ["after ", h("bdi", { class: "prefix" }, `“${prefix}”`)] : "at the start", verb,
      h("bdi", { class: "token" }, text), ` (${formatPercent(probability)}, ${rank === 1 ? "most probable" : `number ${rank} by probability`}).`));
  }
}

/** Force another token at a step; Back undoes it. @param {Page} page @param {Trace} trace @param {number} step @param {number} id */
export function forceToken(page, trace, step, id) {
  forcePrefix(page, [...trace.sides.target.ids.slice(0, step), id]);
}

/** Force the translation to start with these ids. @param {Page} page @param {number[]} ids */
export function forcePrefix(page, ids) {
  page.store.set({ prefix: ids, step: Math.max(0, ids.length - 1), query: null, key: null, rows: [] });
}

/** The end token, which cannot be forced: nothing would be left to write. @param {Trace} trace @returns {number} */
export function getEndId(trace) {
  return trace.sides.target.ids[trace.sides.target.ids.length - 1];
}

/** The selected step, limited to the steps of this translation. @param {import("heedful/state/selection.js").Selection} selection @param {Trace} trace */
export function getStep(selection, trace) {
  return trace.findStep(selection.step);
}

/**
 * The row of the selected attention that corresponds to a step. Decoder self-attention has a row for each token that is
 * read, one later than it is written, and none for the end; the word path counts rows by what they write.
 * @param {import("heedful/state/selection.js").Selection} selection @param {Trace} trace @param {number} step @returns {number | null}
 */
export function getRowOfStep({ kind, view, query }, trace, step) {
  if (kind === "encoder") return trace.manifest.blank_positions ? step : query; // a blank is filled in its own row
  if (kind === "cross" || view === "path") return step;
  return step + 1 < trace.sides.decoder_input.ids.length ? step + 1 : null;
}

/** Token ids as text: ▁ is a space. @param {Trace} trace @param {number[]} ids */
export function decodeIds(trace, ids) {
  return ids.map((id) => getTokenText(trace.manifest, id)).join("").replaceAll("▁", " ").trim();
}
