// Controls shared by several views.

import { KIND_NAMES } from "heedful/data/trace.js";
import { h } from "heedful/parts/dom.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/data/trace.js").Kind} Kind */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */

/** A labeled drop-down list. @param {string} name @param {string} value @param {string[][]} options @param {(value: string) => void} choose */
export function createSelect(name, value, options, choose) {
  return h("label", { class: "select-field" }, h("span", null, name),
    h("select", { "aria-label": name, onchange: (/** @type {any} */ event) => choose(event.target.value) },
      options.map(([id, text]) => h("option", { value: id, selected: id === value }, text))));
}

/** Drop-down lists for attention kind, layer and head. @param {Page} page @param {Selection} selection @param {Trace} trace */
export function createHeadControls({ store }, selection, trace) {
  const layers = Array.from({ length: trace.getLayerCount(selection.kind) }, (_, i) => [String(i), `Layer ${i + 1}`]);
  const heads = [["mean", "Mean of heads"], ...Array.from({ length: trace.heads }, (_, i) => [String(i), `Head ${i + 1}`])];
  return [
    createSelect("Attention", selection.kind, trace.kinds.map((kind) => [kind, KIND_NAMES[kind]]), (kind) =>
      store.set({ kind: /** @type {Kind} */ (kind), layer: Math.min(selection.layer, trace.getLayerCount(/** @type {Kind} */ (kind)) - 1), query: null, key: null, rows: [] })),
    createSelect("Layer", String(selection.layer), layers, (layer) => store.set({ layer: Number(layer) })),
    createSelect("Head", selection.head === null ? "mean" : String(selection.head), heads, (head) => store.set({ head: head === "mean" ? null : Number(head) })),
  ];
}
