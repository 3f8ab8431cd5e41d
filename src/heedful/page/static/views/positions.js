// Where words stand and what they may see: the model's own position vectors, the look-ahead mask, the padding mask.

import { place } from "heedful/data/trace.js";
import { numbers } from "heedful/parts/arithmetic.js";
import { Blocks } from "heedful/parts/blocks.js";
import { h, isolated, shown } from "heedful/parts/dom.js";
import { Matrix } from "heedful/parts/matrix.js";
import { refill } from "heedful/parts/refill.js";
import { dot, rowOf } from "heedful/parts/strip.js";
import { choice } from "heedful/views/head.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/data/trace.js").Side} Side */
/** @typedef {import("heedful/data/safetensors.js").Tensor} Tensor */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */

/** @type {import("heedful/main.js").View} */
export const positionsView = {
  id: "positions",
  title: "Positions",
  fits: (model) => model.arithmetic,
  mount: (host, page) => new PositionsView(host, page),
};

/** @type {Record<string, string>} */
const ABOUT = {
  sinusoidal: "This model uses the paper's sinusoidal positions: channels come in pairs, a sine and a cosine, from quick waves on the left to slow ones on the right. They are fixed, not learned.",
  learned: "This model's positions are learned: one trained vector for each place. The paper found them about as good as sines.",
  relative: "This model adds nothing to the embeddings: a learned vector for each distance, added to keys and values, tells its self-attention how far apart two words are (Shaw et al. 2018). The table below is zero.",
  tree: "This model joins the paper's sines of the position with the same sines of a word's depth in the dependency tree of its sentence, by a learned function (Wang et al. 2019). A text without heads after a tab has no tree: then only the position counts.",
  "relative-tree": "This model adds nothing to the embeddings: a learned vector for each distance in the sentence, and in the encoder one for each distance in its dependency tree, are added to keys and values (Wang et al. 2019). A text without heads after a tab has no tree. The table below is zero.",
  rotary: "This model adds nothing to the embeddings: its self-attention turns pairs of channels of queries and keys by angles that grow with the position, so that only distances count. The table below is zero.",
  alibi: "This model adds nothing to the embeddings: in its self-attention scores fall with the distance, in each head by its own slope (ALiBi). The table below is zero.",
  none: "This model knows no positions: words are a bag to its encoder, and the decoder knows only what came before. The table below is zero.",
};

/** The tensor of the look-ahead mask; without a decoder there is none. */
const MASK = "decoder.mask";
/** Tensors that show padding; a model whose positions end with the sentence has none. */
const PADDING = ["padding.visible", "padding.weights", "encoder.0.self.weights"];

class PositionsView {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    this.controls = h("div", { class: "controls" });
    this.about = h("p", { class: "explained" });
    this.pair = h("div");
    this.padded = h("p", { class: "remark" });
    this.sums = h("p", { class: "explained", hidden: true }, "Linformer: in this encoder keys are not words. All words together are summed up in a fixed number of keys and values, Σ1, Σ2, …, with learned weights for every place, and each word looks at these sums. So no weight belongs to one word, nothing is masked, and a hidden word is left out of every sum.");
    const blocks = h("section");
    const part = (/** @type {string} */ name) => h("div", { class: "figure", "data-figure": name });
    const [table, products, mask, padding] = ["positions", "products", "mask", "padding"].map(part);
    host.append(
      this.controls, this.sums, blocks, h("h3", null, "Position vectors"), this.about, table,
      h("h3", null, "How alike two positions are"),
      h("p", { class: "explained" }, "The dot product of two position vectors. For sines it depends on the distance alone: neighbours are alike, wherever they stand."),
      products, this.pair);
    this.ahead = h("section", null, h("h3", null, "Look-ahead mask"),
      h("p", { class: "explained" }, "While it is trained the decoder reads the whole text at once, so it must be kept from looking at words that it has yet to write: a row may look at itself and at what stands before it."), mask);
    this.paddingPart = h("section", null, h("h3", null, "Padding mask"),
      h("p", { class: "explained" }, "Sentences of a batch must be equally long, so the shorter ones are filled with <pad>. Here is this sentence in a batch with one that is longer, as the model itself computed it: first encoder layer, mean of its heads. Nobody may look at padding."), padding, this.padded);
    host.append(h("div", { class: "two even" }, this.ahead, this.paddingPart));
    this.blocks = new Blocks(blocks);
    this.matrices = { table: new Matrix(table), products: new Matrix(products), mask: new Matrix(mask), padding: new Matrix(padding) };
  }

  /** @param {Selection} selection @param {Trace} trace */
  async show(selection, trace) {
    const side = selection.kind === "encoder" ? "encoder" : "decoder";
    const tokens = side === "encoder" ? trace.sides.source : trace.sides.read;
    const withPadding = PADDING.every((name) => name in trace.manifest.tensors);
    const withMask = MASK in trace.manifest.tensors;
    const found = await trace.tensors([`${side}.positions`, ...(withMask ? [MASK] : []), ...(withPadding ? PADDING : [])]);
    if (this.page.stale(selection, trace)) return;
    const positions = found[0];
    const last = tokens.ids.length - 1;
    const [one, other] = [Math.min(selection.query ?? 1, last), Math.min(selection.key ?? 2, last)];
    refill(this.controls, ...this.#controls(selection, trace, tokens, one, other));
    this.about.textContent = ABOUT[trace.manifest.model.positions];
    const labels = tokens.pieces.map((piece, i) => `${i} ${piece}`);
    this.#drawPositions(positions, labels, one, other);
    this.sums.hidden = side !== "encoder" || !trace.sides.sums;
    this.blocks.show(trace, side, Math.min(selection.layer, trace.layers(side) - 1));
    this.ahead.hidden = !withMask;
    if (withMask) this.#drawMask(found[1], trace.sides.read);
    this.paddingPart.hidden = !withPadding;
    if (withPadding) {
      const [visible, padded, own] = found.slice(-PADDING.length);
      this.#drawPadding(visible, padded, own, trace.sides.source);
    }
  }

  /** @param {Selection} selection @param {Trace} trace @param {Side} tokens @param {number} one @param {number} other */
  #controls(selection, trace, tokens, one, other) {
    const { store } = this.page;
    const places = tokens.pieces.map((piece, i) => [String(i), `${i} ${piece}`]);
    const side = selection.kind === "encoder" ? "encoder" : "decoder";
    const layer = Math.min(selection.layer, trace.layers(side) - 1);
    return [
      trace.layers("cross") ? choice("Positions of", side, [["encoder", "The source"], ["decoder", "The translation"]], (value) =>
        this.#side(value === "encoder" ? "encoder" : "decoder", selection, trace)) : "",
      trace.manifest.patterns[place(side, 0)] ? choice("Layer", String(layer), Array.from({ length: trace.layers(side) }, (_, i) => [String(i), `Layer ${i + 1}`]), (value) =>
        store.set({ kind: side, layer: Number(value) })) : "",
      choice("One position", String(one), places, (value) => store.set({ query: Number(value), key: other })),
      choice("Another", String(other), places, (value) => store.set({ query: one, key: Number(value) })),
    ];
  }

  /** @param {"encoder" | "decoder"} kind @param {Selection} selection @param {Trace} trace */
  #side(kind, { layer }, trace) {
    this.page.store.set({ kind, layer: Math.min(layer, trace.layers(kind) - 1), query: null, key: null, rows: [] });
  }

  /** @param {Tensor} positions @param {string[]} labels @param {number} one @param {number} other */
  #drawPositions(positions, labels, one, other) {
    const [length, width] = positions.shape;
    const channels = Array.from({ length: width }, (_, c) => String(c + 1));
    const { store } = this.page;
    const values = /** @type {Float32Array} */ (positions.data);
    this.matrices.table.draw({
      title: "Position vectors", rows: labels, columns: channels, values, scale: "signed",
      axes: "Rows are positions from 0, columns are channels.",
      spoken: (row, column) => `position ${isolated(labels[row])}, channel ${column + 1}: ${shown(values[row * width + column])}`,
      selected: [one, null],
    });
    const products = Float32Array.from({ length: length * length }, (_, i) => dot(rowOf(positions, Math.floor(i / length)), rowOf(positions, i % length)));
    this.matrices.products.draw({
      title: "Dot products of positions", rows: labels, columns: labels, values: products, scale: "signed",
      axes: "Rows and columns are positions; choose a cell to see its sum.",
      spoken: (row, column) => `position ${isolated(labels[row])} times position ${isolated(labels[column])}: ${shown(products[row * length + column])}`,
      selected: [one, other],
      choose: (row, column) => store.set({ query: row, key: column }),
    });
    const [left, right] = [Array.from(rowOf(positions, one)), Array.from(rowOf(positions, other))];
    this.pair.replaceChildren(numbers({
      title: `Position ${one} times position ${other}`,
      rows: [`position ${one}`, `position ${other}`, "product"],
      columns: [...channels, "sum"],
      cells: [[...left, ""], [...right, ""], [...left.map((value, c) => value * right[c]), dot(left, right)]],
      foot: [],
    }, { channels: width, sum: "product" }));
  }

  /** @param {Tensor} mask @param {Side} read */
  #drawMask(mask, read) {
    const masked = (/** @type {number} */ row, /** @type {number} */ column) => mask.data[row * read.ids.length + column] === 0;
    this.matrices.mask.draw({
      title: "Look-ahead mask", rows: read.pieces, columns: read.pieces, values: /** @type {Uint8Array} */ (mask.data),
      axes: "Rows look at columns.", masked,
      spoken: (row, column) => `${isolated(read.pieces[row])} ${masked(row, column) ? "may not look" : "may look"} at ${isolated(read.pieces[column])}${masked(row, column) ? ": masked" : ""}`,
    });
  }

  /** @param {Tensor} visible @param {Tensor} padded @param {Tensor} own @param {Side} source */
  #drawPadding(visible, padded, own, source) {
    const [heads, rows, columns] = padded.shape;
    const names = [...source.pieces, ...Array.from({ length: columns - rows }, () => "<pad>")];
    const mean = (/** @type {Tensor} */ { shape, data }, /** @type {number} */ row, /** @type {number} */ column) => {
      let sum = 0;
      for (let head = 0; head < heads; head++) sum += data[(head * shape[1] + row) * shape[2] + column];
      return sum / heads;
    };
    const values = Float32Array.from({ length: rows * columns }, (_, i) => mean(padded, Math.floor(i / columns), i % columns));
    const masked = (/** @type {number} */ _row, /** @type {number} */ column) => visible.data[column] === 0;
    this.matrices.padding.draw({
      title: "Padding mask", rows: source.pieces, columns: names, values, axes: "Rows look at columns; each row sums to 1.", masked,
      spoken: (row, column) => (masked(row, column)
        ? `${isolated(names[row])} may not look at ${isolated(names[column])}: masked`
        : `${isolated(names[row])} looks at ${isolated(names[column])}: ${shown(values[row * columns + column])}`),
    });
    let apart = 0;
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < rows; column++) apart = Math.max(apart, Math.abs(mean(padded, row, column) - mean(own, row, column)));
    }
    this.padded.textContent = `Padding changes nothing: the largest difference from the weights without padding is ${apart < 0.0005 ? "less than 0.0005" : shown(apart)}.`;
  }
}
