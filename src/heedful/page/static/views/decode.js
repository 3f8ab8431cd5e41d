// Decoding: the tree of all that beam search thought of, and how the length penalty chose.

import { taskOf } from "heedful/data/task.js";
import { chosenPath } from "heedful/parts/beam_nodes.js";
import { BeamTree } from "heedful/parts/beam_tree.js";
import { h } from "heedful/parts/dom.js";
import { hypotheses } from "heedful/parts/hypotheses.js";
import { StepSlider } from "heedful/parts/step_slider.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */

const WIDEST = 8;
/** A beam that makes a tree. */
const WIDER = 4;

/** @type {import("heedful/main.js").View} */
export const decodeView = {
  id: "decode",
  title: "Decode",
  fits: (model) => model.task !== "mask",
  mount: (host, page) => new DecodeView(host, page),
};

class DecodeView {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    this.width = h("select", { onchange: () => page.store.set({ beam: Number(this.width.value) }) });
    const steps = h("div", { class: "decode-steps" });
    const tree = h("div");
    this.given = h("p", { hidden: true });
    this.narrow = h("p", { class: "legend", hidden: true }, "A beam of 1 follows one line only. ",
      h("button", { type: "button", class: "small", onclick: () => page.store.set({ beam: WIDER }) }, `Show a beam of ${WIDER}`));
    this.ended = h("div");
    this.searched = h("div", null, tree, h("h2", null, "Length penalty"), this.ended);
    host.append(
      h("p", { class: "lead" }, "The model writes one piece at a time. Beam search keeps the best few beginnings side by side, drops the others, and goes on until as many have ended. ",
        page.source.live ? h("span", { class: "no-picture" }, "Choose any candidate to force it.") : "In a saved page the search cannot be changed; a running server can: heedful serve MODEL."),
      h("div", { class: "controls" }, h("label", { class: "choice" }, h("span", null, "Beam width"), this.width,
        page.source.live ? null : h("span", null, "(in a saved page the search cannot be changed)"))),
      this.narrow, steps, this.given, this.searched);
    this.steps = new StepSlider(steps, page);
    this.tree = new BeamTree(tree, page);
  }

  /** @param {Selection} selection @param {Trace} trace */
  show(selection, trace) {
    this.steps.show(selection, trace);
    this.#widths(selection, trace);
    const { written } = taskOf(trace.manifest.model);
    this.given.textContent = trace.manifest.translation.given ? `This ${written} was given, not searched for: there is no tree.` : `The words of this ${written} were drawn at random, not searched for: there is no tree.`;
    this.given.hidden = trace.manifest.beam !== null;
    this.searched.hidden = !this.given.hidden;
    this.narrow.hidden = !this.page.source.live || trace.manifest.beam?.width !== 1;
    if (!trace.manifest.beam) return;
    this.tree.show(selection, trace);
    this.ended.replaceChildren(hypotheses(trace, chosenPath(trace)));
  }

  /** @param {Selection} selection @param {Trace} trace */
  #widths({ beam }, { manifest }) {
    const widths = [...new Set([...Array.from({ length: WIDEST }, (_, i) => i + 1), ...(beam ? [beam] : [])])];
    this.width.disabled = !this.page.source.live;
    this.width.replaceChildren(
      h("option", { value: "0", selected: !beam }, `the model's own: ${manifest.model.beam}`),
      ...widths.map((width) => h("option", { value: String(width), selected: width === beam }, width === 1 ? "1 (greedy)" : String(width))));
  }
}
