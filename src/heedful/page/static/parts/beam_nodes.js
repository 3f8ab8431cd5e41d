// What beam search went through, as the manifest lists it: paths, the chosen one, and the window that is drawn.

/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/**
 * A candidate of a step; ``parent`` is a place in the list, or -1 for the start.
 * @typedef {{step: number, parent: number, id: number, log_probability: number, total: number, score: number, fate: "kept" | "pruned" | "finished"}} Node
 */

/** Candidates that are drawn at once, about. */
const DRAWN = 150;

/** The places of a candidate and all before it, first to last. @param {Node[]} nodes @param {number} place @returns {number[]} */
export function path(nodes, place) {
  const found = [];
  for (let at = place; at >= 0; at = nodes[at].parent) found.unshift(at);
  return found;
}

/** The places of the translation's own candidates. @param {Trace} trace @returns {Set<number>} */
export function chosenPath({ manifest: { beam, translation } }) {
  /** @type {Node[]} */
  const nodes = beam.nodes;
  const last = nodes.findIndex((node, place) => {
    if (node.fate !== (translation.complete ? "finished" : "kept")) return false;
    const ids = path(nodes, place).map((each) => nodes[each].id);
    if (translation.complete) ids.pop(); // the end
    return ids.length === translation.ids.length && ids.every((id, i) => id === translation.ids[i]);
  });
  return new Set(last < 0 ? [] : path(nodes, last));
}

/** The first and last step that are drawn around one. @param {number} step @param {number} width of the beam @param {number} steps @returns {[number, number]} */
export function stepsAround(step, width, steps) {
  const count = Math.min(steps, Math.max(3, Math.min(7, Math.floor(DRAWN / (2 * width)))));
  const first = Math.max(0, Math.min(step - Math.floor(count / 2), steps - count));
  return [first, first + count - 1];
}
