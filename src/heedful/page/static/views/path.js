// The path of one word: its vector from the embedding to the last layer, and what the model would say at each place.

import { pieceName } from "heedful/data/trace.js";
import { numbers } from "heedful/parts/arithmetic.js";
import { h, percent, shown } from "heedful/parts/dom.js";
import { refill } from "heedful/parts/refill.js";
import { dot, norm, rowOf, strip } from "heedful/parts/strip.js";
import { choice } from "heedful/views/head.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/data/safetensors.js").Tensor} Tensor */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */
/** A place on the path: a tensor's name, and the same for people. @typedef {{tensor: string, name: string}} Station */

/** @type {import("heedful/main.js").View} */
export const pathView = {
  id: "path",
  title: "Word path",
  fits: (model) => model.arithmetic,
  mount: (host, page) => new PathView(host, page),
};

const SUBLAYERS = {
  encoder: [["self", "self-attention"], ["feed_forward", "feed-forward"]],
  decoder: [["self", "self-attention"], ["cross", "cross-attention"], ["feed_forward", "feed-forward"]],
};

/** The rounding error of numbers with 16 bits, as a share. */
const HALF = 2 ** -10;

class PathView {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    this.controls = h("div", { class: "controls" });
    this.about = h("div", { class: "explained" });
    this.list = h("ol", { class: "path" });
    this.numbers = h("div");
    this.details = h("details", { class: "as-table" }, h("summary", null, "Show the numbers as a table"), this.numbers);
    host.append(this.controls, this.about, this.list, this.details);
  }

  /** @param {Selection} selection @param {Trace} trace */
  async show(selection, trace) {
    const side = selection.kind === "encoder" ? "encoder" : "decoder";
    const writes = side === writer(trace);
    const tokens = writes ? trace.sides.written : trace.sides.source;
    const wanted = selection.query ?? (writes ? selection.step : 0);
    const row = Math.min(wanted, tokens.pieces.length - 1);
    const stations = stationsOf(side, trace);
    const names = [...stations.map(({ tensor }) => tensor), `${side}.positions`, ...(writes ? ["lens.ids", "lens.probabilities"] : [])];
    const [position, ids, chances, ...streams] = order(await trace.tensors(names), stations.length);
    if (this.page.stale(selection, trace)) return;
    refill(this.controls, ...this.#controls(selection, trace, side, row));
    this.about.replaceChildren(...about(side, trace, row));
    const vectors = streams.map((tensor) => /** @type {Float32Array} */ (rowOf(tensor, row)));
    const most = Math.max(...vectors.flatMap((vector) => Array.from(vector, Math.abs)));
    const guesses = (/** @type {number} */ i) => (writes ? guessed(trace, ids, chances, Math.min(i, ids.shape[0] - 1), row) : null);
    this.list.replaceChildren(...stations.map(({ name }, i) => h("li", { class: i === stations.length - 1 ? "last" : "" },
      h("div", null, h("span", { class: "place" }, name), i === stations.length - 1 ? h("span", { class: "badge" }, "the end") : null, facts(vectors, i)),
      i ? strip(vectors[i], most, name) : beginning(vectors[0], rowOf(position, row), most, side === "decoder" && row === 0, trace.manifest.model.scaled_embeddings),
      guesses(i))));
    this.numbers.replaceChildren(numbers({
      title: "", // the summary says it
      rows: stations.map(({ name }) => name),
      columns: Array.from(vectors[0], (_, c) => String(c + 1)),
      cells: vectors.map((vector) => Array.from(vector)),
      foot: [],
    }, { channels: vectors[0].length }));
  }

  /** @param {Selection} selection @param {Trace} trace @param {"encoder" | "decoder"} side @param {number} row */
  #controls(selection, trace, side, row) {
    const { store } = this.page;
    const { source, read, written } = trace.sides;
    const layer = Math.min(selection.layer, trace.layers("encoder") - 1, trace.layers("cross") - 1);
    const reads = side === "encoder" ? source : read;
    const writes = side === writer(trace);
    const words = reads.pieces.map((piece, i) => (writes && piece !== written.pieces[i] ? `${i + 1} ${piece} → ${written.pieces[i]}` : `${i + 1} ${piece}`));
    const last = words.length - 1;
    const go = (/** @type {number} */ to, /** @type {string} */ text) =>
      h("button", { type: "button", disabled: to < 0 || to > last, onclick: () => store.set({ query: to, key: null }, { replace: true }) }, text);
    return [
      trace.layers("cross") ? choice("Follow", side, [["encoder", "A word of the source (encoder)"], ["decoder", "A word of the translation (decoder)"]], (value) =>
        store.set({ kind: value === "encoder" ? "encoder" : "cross", layer, query: null, key: null, rows: [] })) : "",
      choice(writes ? "Word: reads → writes" : "Word", String(row), words.map((text, i) => [String(i), text]), (value) => store.set({ query: Number(value), key: null })),
      h("span", { class: "pager" }, go(row - 1, "← Previous"), go(row + 1, "Next →")),
    ];
  }
}

/** The stack whose vectors become words. @param {Trace} trace @returns {"encoder" | "decoder"} */
function writer(trace) {
  return trace.layers("decoder") ? "decoder" : "encoder";
}

/** @param {"encoder" | "decoder"} side @param {Trace} trace @returns {Station[]} */
function stationsOf(side, trace) {
  const layers = Array.from({ length: trace.layers(side) }, (_, layer) =>
    SUBLAYERS[side].filter(([part]) => part !== "cross" || trace.layers("cross")).map(([part, name]) => ({ tensor: `${side}.${layer}.${part}.residual`, name: `Layer ${layer + 1}, after ${name}` })));
  // A post-norm model ends with a norm as it is; a pre-norm model has one more.
  const end = trace.manifest.model.norm === "pre" ? [{ tensor: side === "encoder" ? "encoder.memory" : "decoder.states", name: "After the last norm" }] : [];
  return [{ tensor: `${side}.embedding`, name: "Embedding + position" }, ...layers.flat(), ...end];
}

/** What was asked for as [position, ids, chances, ...streams]. @param {Tensor[]} found @param {number} stations */
function order(found, stations) {
  const [position, ids, chances] = found.slice(stations);
  return [position, ids, chances, ...found.slice(0, stations)];
}

/** @param {"encoder" | "decoder"} side @param {Trace} trace @param {number} row */
function about(side, trace, row) {
  const { source, read, written } = trace.sides;
  const name = (/** @type {string} */ piece) => h("b", { dir: "auto" }, piece);
  const stream = "Each strip is the word's whole vector, one channel beside the other: blue is above zero, orange below. Every sublayer adds something to it" + (trace.manifest.model.norm === "post" ? ", and the sum is normalised." : ".");
  const early = "What the layer would say: the last norm and the output layer, applied early, as if the model stopped at this place. The words in the last line are its real answer. ▁ is a space before the piece.";
  if (side === writer(trace) && side === "encoder") {
    const blank = trace.steps.includes(row);
    return [h("p", null, "This row reads ", name(source.pieces[row]), blank ? [" and fills it with ", name(written.pieces[row])] : ", which is given", ". ", stream), h("p", { class: "remark" }, early)];
  }
  if (side === "encoder") {
    return [h("p", null, "The path of ", name(source.pieces[row]), " through the encoder. ", stream),
      h("p", { class: "remark" }, "There are no guesses here: the output layer knows only how to turn the decoder's vectors into words. What the encoder makes is read by cross-attention.")];
  }
  return [h("p", null, "This row reads ", name(read.pieces[row]), " and writes ", name(written.pieces[row]), ". ", stream),
    h("p", { class: "remark" }, early)];
}

/** How long the vector is, and what the sublayer did to it. @param {Float32Array[]} vectors @param {number} i */
function facts(vectors, i) {
  const length = `length ${shown(norm(vectors[i]), 2)}`;
  if (i === 0) return h("span", { class: "facts" }, length);
  const [before, after] = [vectors[i - 1], vectors[i]];
  const change = norm(after.map((value, c) => value - before[c])) / norm(before);
  const cosine = dot(before, after) / norm(before) / norm(after);
  return h("span", { class: "facts" }, `${length}, changed by ${percent(change)}, cosine with before ${shown(cosine, 2)}`);
}

/** @param {Float32Array} sum @param {ArrayLike<number>} position @param {number} most @param {boolean} starts whether it is the row of the start @param {boolean} scaled */
function beginning(sum, position, most, starts, scaled) {
  const word = sum.map((value, c) => value - position[c]);
  const empty = starts && word.every((value, c) => Math.abs(value) <= Math.abs(position[c]) * HALF); // the sum is kept in 16 bits
  const line = (/** @type {string} */ name, /** @type {ArrayLike<number>} */ vector) => [h("span", { class: "strip-name" }, name), strip(vector, most, name)];
  return h("div", null, line(scaled ? `embedding × √${sum.length}` : "embedding", word),
    empty ? h("p", { class: "remark" }, "The strip is empty: decoding starts from the padding token, <s> here, whose embedding is exactly zero. Only the position is left.") : null,
    line("+ position", position), line("= sum", sum));
}

/** The guesses at one place, and which of them is written. @param {Trace} trace @param {Tensor} ids @param {Tensor} chances @param {number} reading @param {number} row */
function guessed(trace, ids, chances, reading, row) {
  const [, steps, guesses] = ids.shape;
  const start = (reading * steps + row) * guesses;
  const own = trace.sides.written.ids[row];
  return h("ol", { class: "guesses", "aria-label": "What the layer would say" }, Array.from({ length: guesses }, (_, i) => {
    const [id, chance] = [ids.data[start + i], chances.data[start + i]];
    return h("li", { class: id === own ? "written" : "", style: `--share: ${chance}` },
      h("bdi", null, pieceName(trace.manifest, id)), ` ${shown(chance)}`, id === own ? " ✓" : "");
  }));
}
