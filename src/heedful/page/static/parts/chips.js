// What is not as usual, each with a way back: a forced start, heads switched off, hidden words, an old checkpoint, another beam.

import { touchedWords } from "heedful/data/trace.js";
import { h } from "heedful/parts/dom.js";
import { textOf } from "heedful/parts/forcing.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */

/** Heads that get a chip each; more share one. */
const SINGLE = 6;

/** @param {Page} page @param {Selection} selection @param {import("heedful/data/trace.js").Trace | null} trace @returns {HTMLElement[]} */
export function chips(page, selection, trace) {
  const chip = (/** @type {string} */ name, /** @type {string} */ what, /** @type {Partial<Selection>} */ without) =>
    h("button", { type: "button", class: "chip", "aria-label": `Remove: ${name} ${what}`, onclick: () => page.store.set(without) },
      h("span", null, name), " ", h("bdi", null, what), h("span", { class: "chip-remove", "aria-hidden": "true" }, "× remove"));
  const { prefix, off, hidden, checkpoint, beam, seed } = selection;
  const found = [];
  if (prefix.length) found.push(chip("Forced start:", trace ? `“${textOf(trace, prefix)}”` : `${prefix.length} ${prefix.length === 1 ? "piece" : "pieces"}`, { prefix: [], query: null, key: null, rows: [] }));
  if (off.length > SINGLE) found.push(chip("Switched off:", `${off.length} heads`, { off: [] }));
  else found.push(...off.map((head) => chip("Switched off:", headWords(head), { off: off.filter((each) => each !== head) })));
  const words = trace ? touchedWords(trace.sides.source, hidden) : [];
  if (hidden.length && (words.length > SINGLE || !words.length)) found.push(chip("Hidden:", words.length ? `${words.length} words` : `${hidden.length} ${hidden.length === 1 ? "piece" : "pieces"}`, { hidden: [] }));
  else found.push(...words.map(({ word, pieces }) => chip("Hidden:", word, { hidden: hidden.filter((place) => !pieces.includes(place)) })));
  if (checkpoint !== null) found.push(chip("Weights after", `${checkpoint.toLocaleString("en")} updates`, { checkpoint: null }));
  if (seed !== null) found.push(chip("Words drawn at random,", `seed ${seed}`, { seed: null }));
  if (beam) found.push(chip("Beam of", String(beam), { beam: 0 }));
  return found;
}

/** @param {string} name such as cross.1.2, from 0 */
function headWords(name) {
  const [kind, layer, head] = name.split(".");
  return `${kind === "cross" ? "cross-attention" : kind} layer ${Number(layer) + 1} head ${Number(head) + 1}`;
}
