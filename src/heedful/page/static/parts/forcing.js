// Forcing a piece: the translation must start with these ids, and the model writes the rest anew.

import { pieceName } from "heedful/data/trace.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */

/** Write another piece at a step; Back undoes it. @param {Page} page @param {Trace} trace @param {number} step @param {number} id */
export function force(page, trace, step, id) {
  forcePath(page, [...trace.sides.written.ids.slice(0, step), id]);
}

/** Start the translation with these ids. @param {Page} page @param {number[]} ids */
export function forcePath(page, ids) {
  page.store.set({ prefix: ids, step: Math.max(0, ids.length - 1), query: null, key: null, rows: [] });
}

/** The id that ends a sentence, which cannot be forced: there would be nothing left to write. @param {Trace} trace @returns {number} */
export function endId(trace) {
  return trace.sides.written.ids[trace.sides.written.ids.length - 1];
}

/** A step of the selection that this translation has. @param {import("heedful/state/selection.js").Selection} selection @param {Trace} trace */
export function stepOf(selection, trace) {
  return trace.stepAt(selection.step);
}

/**
 * The row of the chosen attention that belongs to what a step writes. Self-attention of the decoder has a row for each
 * piece that is read, one later than it is written, and none for the end; the word path counts rows by what they write.
 * @param {import("heedful/state/selection.js").Selection} selection @param {Trace} trace @param {number} step @returns {number | null}
 */
export function rowOfStep({ kind, view, query }, trace, step) {
  if (kind === "encoder") return trace.manifest.blanks ? step : query; // a blank is filled in its own row
  if (kind === "cross" || view === "path") return step;
  return step + 1 < trace.sides.read.ids.length ? step + 1 : null;
}

/** Pieces as text: ▁ is a space. @param {Trace} trace @param {number[]} ids */
export function textOf(trace, ids) {
  return ids.map((id) => pieceName(trace.manifest, id)).join("").replaceAll("▁", " ").trim();
}
