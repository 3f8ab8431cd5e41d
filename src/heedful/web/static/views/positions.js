// Positions and masks: the model's position vectors, the look-ahead mask, the padding mask, BigBird blocks.

import { computeDot, getRow } from "heedful/data/numerics.js";
import { getTensorPrefix } from "heedful/data/trace.js";
import { createSelect } from "heedful/parts/controls.js";
import { formatNumber, h, isolateDirection, updateChildren } from "heedful/parts/dom.js";
import { Heatmap } from "heedful/parts/heatmap.js";
import { createNumberTable } from "heedful/parts/number_table.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/data/trace.js").Tokens} Tokens */
/** @typedef {import("heedful/data/safetensors.js").Tensor} Tensor */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */
/** @typedef {import("heedful/data/trace.js").Kind} Kind */

/** @type {import("heedful/main.js").View} */
export const positionsView = {
  id: "positions",
  title: "Positions",
  supports: (model) => model.has_arithmetic,
  mount: (host, page) => new PositionsView(host, page),
};

/** @type {Record<string, string>} */
const DESCRIPTIONS = {
  sinusoidal: "This model uses the sinusoidal positions of the paper: channels are pairs of sine and cosine, from high frequencies on the left to low ones on the right. They are fixed, not learned.",
  learned: "This model learns its positions: one trained vector per position. The paper found them about as good as sinusoids.",
  relative: "This model adds nothing to the embeddings: self-attention adds a learned vector per distance to keys and values (Shaw et al. 2018). The table below is zero.",
  dependency: "This model combines the paper's sinusoids of the position with sinusoids of a word's depth in the dependency tree, by a learned function (Wang et al. 2019). A text without heads after a tab has no tree: then only the position counts.",
  "relative-dependency": "This model adds nothing to the embeddings: a learned vector per distance in the sentence, and in the encoder also one per distance in the dependency tree, is added to keys and values (Wang et al. 2019). A text without heads after a tab has no tree. The table below is zero.",
  rotary: "This model adds nothing to the embeddings: self-attention rotates pairs of channels of queries and keys by angles proportional to the position, so only distances count (RoPE). The table below is zero.",
  alibi: "This model adds nothing to the embeddings: self-attention scores decrease with the distance, with a different slope per head (ALiBi). The table below is zero.",
  none: "This model has no positions: the encoder sees a bag of words, and the decoder knows only what came before. The table below is zero.",
};

/** The tensor of the look-ahead mask; encoder-only models have none. */
const MASK = "decoder.mask";
/** Tensors of the padding example; models whose positions end with the sentence have none. */
const PADDING = ["padding.mask", "padding.weights", "encoder.0.self.weights"];

class PositionsView {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    this.controls = h("div", { class: "controls" });
    this.description = h("p", { class: "description" });
    this.productHost = h("div");
    this.paddingNote = h("p", { class: "footnote" });
    this.linformerNote = h("p", { class: "description", hidden: true }, "Linformer: the keys of this encoder are not words. All words are projected to a fixed number of keys and values, Σ1, Σ2, …, with learned weights for every position, and each word attends to these sums. So no weight belongs to one word, nothing is masked, and a hidden word is left out of every sum.");
    const blocks = h("section");
    const createFigure = (/** @type {string} */ name) => h("div", { class: "figure", "data-figure": name });
    const [table, products, mask, padding] = ["positions", "products", "mask", "padding"].map(createFigure);
    host.append(
      this.controls, this.linformerNote, blocks, h("h3", null, "Position vectors"), this.description, table,
      h("h3", null, "Similarity of positions"),
      h("p", { class: "description" }, "The dot product of two position vectors. For sinusoids it depends only on the distance: nearby positions are similar everywhere."),
      products, this.productHost);
    this.maskSection = h("section", null, h("h3", null, "Look-ahead mask"),
      h("p", { class: "description" }, "During training the decoder reads the full text at once, so it must not attend to words that it has yet to write: a row may attend to itself and to earlier rows."), mask);
    this.paddingSection = h("section", null, h("h3", null, "Padding mask"),
      h("p", { class: "description" }, "Sentences of a batch must have equal length, so shorter ones are padded with <pad>. This is the sentence in a batch with a longer one, as computed by the model: first encoder layer, mean of its heads. No word may attend to padding."), padding, this.paddingNote);
    host.append(h("div", { class: "columns even" }, this.maskSection, this.paddingSection));
    this.blocks = new BlockPattern(blocks);
    this.matrices = { table: new Heatmap(table), products: new Heatmap(products), mask: new Heatmap(mask), padding: new Heatmap(padding) };
  }

  /** @param {Selection} selection @param {Trace} trace */
  async show(selection, trace) {
    const side = selection.kind === "encoder" ? "encoder" : "decoder";
    const tokens = side === "encoder" ? trace.sides.source : trace.sides.decoder_input;
    const withPadding = PADDING.every((name) => name in trace.manifest.tensors);
    const withMask = MASK in trace.manifest.tensors;
    const tensors = await trace.loadTensors([`${side}.positions`, ...(withMask ? [MASK] : []), ...(withPadding ? PADDING : [])]);
    if (this.page.isStale(selection, trace)) return;
    const positions = tensors[0];
    const last = tokens.ids.length - 1;
    const [first, second] = [Math.min(selection.query ?? 1, last), Math.min(selection.key ?? 2, last)];
    updateChildren(this.controls, ...this.#createControls(selection, trace, tokens, first, second));
    this.description.textContent = DESCRIPTIONS[trace.manifest.model.positions];
    const labels = tokens.subwords.map((subword, i) => `${i} ${subword}`);
    this.#drawPositions(positions, labels, first, second);
    this.linformerNote.hidden = side !== "encoder" || !trace.sides.projected_keys;
    this.blocks.show(trace, side, Math.min(selection.layer, trace.getLayerCount(side) - 1));
    this.maskSection.hidden = !withMask;
    if (withMask) this.#drawMask(tensors[1], trace.sides.decoder_input);
    this.paddingSection.hidden = !withPadding;
    if (withPadding) {
      const [visible, padded, unpadded] = tensors.slice(-PADDING.length);
      this.#drawPadding(visible, padded, unpadded, trace.sides.source);
    }
  }

  /** @param {Selection} selection @param {Trace} trace @param {Tokens} tokens @param {number} first @param {number} second */
  #createControls(selection, trace, tokens, first, second) {
    const { store } = this.page;
    const positions = tokens.subwords.map((subword, i) => [String(i), `${i} ${subword}`]);
    const side = selection.kind === "encoder" ? "encoder" : "decoder";
    const layer = Math.min(selection.layer, trace.getLayerCount(side) - 1);
    return [
      trace.getLayerCount("cross") ? createSelect("Positions of", side, [["encoder", "Source"], ["decoder", "Translation"]], (value) =>
        this.#selectSide(value === "encoder" ? "encoder" : "decoder", selection, trace)) : "",
      trace.manifest.sparse_patterns[getTensorPrefix(side, 0)] ? createSelect("Layer", String(layer), Array.from({ length: trace.getLayerCount(side) }, (_, i) => [String(i), `Layer ${i + 1}`]), (value) =>
        store.set({ kind: side, layer: Number(value) })) : "",
      createSelect("First position", String(first), positions, (value) => store.set({ query: Number(value), key: second })),
      createSelect("Second position", String(second), positions, (value) => store.set({ query: first, key: Number(value) })),
    ];
  }

  /** @param {"encoder" | "decoder"} kind @param {Selection} selection @param {Trace} trace */
  #selectSide(kind, { layer }, trace) {
    this.page.store.set({ kind, layer: Math.min(layer, trace.getLayerCount(kind) - 1), query: null, key: null, rows: [] });
  }

  /** @param {Tensor} positions @param {string[]} labels @param {number} first @param {number} second */
  #drawPositions(positions, labels, first, second) {
    const [length, width] = positions.shape;
    const channels = Array.from({ length: width }, (_, c) => String(c + 1));
    const { store } = this.page;
    const values = /** @type {Float32Array} */ (positions.data);
    this.matrices.table.draw({
      title: "Position vectors", rows: labels, columns: channels, values, scale: "signed",
      axes: "Rows are positions from 0, columns are channels.",
      describe: (row, column) => `position ${isolateDirection(labels[row])}, channel ${column + 1}: ${formatNumber(values[row * width + column])}`,
      selected: [first, null],
    });
    const products = Float32Array.from({ length: length * length }, (_, i) => computeDot(getRow(positions, Math.floor(i / length)), getRow(positions, i % length)));
    this.matrices.products.draw({
      title: "Dot products of positions", rows: labels, columns: labels, values: products, scale: "signed",
      axes: "Rows and columns are positions; choose a cell to see its sum.",
      describe: (row, column) => `position ${isolateDirection(labels[row])} times position ${isolateDirection(labels[column])}: ${formatNumber(products[row * length + column])}`,
      selected: [first, second],
      choose: (row, column) => store.set({ query: row, key: column }),
    });
    const [left, right] = [Array.from(getRow(positions, first)), Array.from(getRow(positions, second))];
    this.productHost.replaceChildren(createNumberTable({
      title: `Position ${first} times position ${second}`,
      rows: [`position ${first}`, `position ${second}`, "product"],
      columns: [...channels, "sum"],
      cells: [[...left, ""], [...right, ""], [...left.map((value, c) => value * right[c]), computeDot(left, right)]],
      footer: [],
    }, { channels: width, sum: "product" }));
  }

  /** @param {Tensor} mask @param {Tokens} decoderInput */
  #drawMask(mask, decoderInput) {
    const isMasked = (/** @type {number} */ row, /** @type {number} */ column) => mask.data[row * decoderInput.ids.length + column] === 0;
    this.matrices.mask.draw({
      title: "Look-ahead mask", rows: decoderInput.subwords, columns: decoderInput.subwords, values: /** @type {Uint8Array} */ (mask.data),
      axes: "Rows attend to columns.", isMasked,
      describe: (row, column) => `${isolateDirection(decoderInput.subwords[row])} ${isMasked(row, column) ? "may not attend" : "may attend"} to ${isolateDirection(decoderInput.subwords[column])}${isMasked(row, column) ? ": masked" : ""}`,
    });
  }

  /** @param {Tensor} visible @param {Tensor} padded @param {Tensor} unpadded @param {Tokens} source */
  #drawPadding(visible, padded, unpadded, source) {
    const [heads, rows, columns] = padded.shape;
    const names = [...source.subwords, ...Array.from({ length: columns - rows }, () => "<pad>")];
    const averageHeads = (/** @type {Tensor} */ { shape, data }, /** @type {number} */ row, /** @type {number} */ column) => {
      let sum = 0;
      for (let head = 0; head < heads; head++) sum += data[(head * shape[1] + row) * shape[2] + column];
      return sum / heads;
    };
    const values = Float32Array.from({ length: rows * columns }, (_, i) => averageHeads(padded, Math.floor(i / columns), i % columns));
    const isMasked = (/** @type {number} */ _row, /** @type {number} */ column) => visible.data[column] === 0;
    this.matrices.padding.draw({
      title: "Padding mask", rows: source.subwords, columns: names, values, axes: "Rows attend to columns; each row sums to 1.", isMasked,
      describe: (row, column) => (isMasked(row, column)
        ? `${isolateDirection(names[row])} may not attend to ${isolateDirection(names[column])}: masked`
        : `${isolateDirection(names[row])} attends to ${isolateDirection(names[column])}: ${formatNumber(values[row * columns + column])}`),
    });
    let difference = 0;
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < rows; column++) difference = Math.max(difference, Math.abs(averageHeads(padded, row, column) - averageHeads(unpadded, row, column)));
    }
    this.paddingNote.textContent = `Padding changes nothing: the largest difference to the weights without padding is ${difference < 0.0005 ? "less than 0.0005" : formatNumber(difference)}.`;
  }
}

/** Keys are the names of the manifest, in the order of their colors. @type {Record<string, string>} */
const REASONS = { first: "global", window: "window", random: "random" };
const NOT_VISIBLE = "no attention";

export class BlockPattern {
  /** @param {HTMLElement} host */
  constructor(host) {
    this.host = host;
    this.about = h("p", { class: "description" });
    this.key = h("ul", { class: "block-key", "aria-label": "Why a block is attended to" });
    const figure = h("div", { class: "figure", "data-figure": "blocks" });
    host.append(h("h3", null, "Block attention pattern"), this.about, this.key, figure);
    this.matrix = new Heatmap(figure);
  }

  /** @param {Trace} trace @param {Kind} kind @param {number} layer */
  show(trace, kind, layer) {
    const pattern = trace.manifest.sparse_patterns[getTensorPrefix(kind, layer)];
    this.host.hidden = !pattern;
    if (!pattern) return;
    const { block_size: block, rows, reasons } = pattern;
    const { subwords } = trace.getAxes(kind)[0];
    const labels = rows.map((/** @type {number[]} */ _, /** @type {number} */ i) => `${i + 1}: ${subwords[i * block]}${block > 1 && i * block + 1 < subwords.length ? " …" : ""}`);
    const names = Object.keys(REASONS);
    const values = new Uint8Array(rows.length ** 2);
    const visible = new Uint8Array(rows.length ** 2);
    rows.forEach((/** @type {number[]} */ row, /** @type {number} */ i) => row.forEach((j, n) => {
      visible[i * rows.length + j] = 1;
      values[i * rows.length + j] = names.indexOf(reasons[i][n]);
    }));
    const used = names.filter((name) => reasons.flat().includes(name));
    const share = visible.reduce((sum, cell) => sum + cell, 0) / visible.length;
    this.about.textContent = `BigBird, layer ${layer + 1}: tokens form blocks of ${block}, and a block attends to some blocks only${kind === "decoder" ? ", none of them later than itself" : "; the first blocks attend to all"}. Here ${share === 1 ? "the text is so short that every block attends to every block" : `${Math.round(share * 100)}% of all pairs of blocks have attention`}. The same cells are hatched in the heat maps of this layer's heads.`;
    updateChildren(this.key, ...used.map((name) => h("li", null, h("span", { class: `swatch block-${name}`, "aria-hidden": "true" }), REASONS[name])), h("li", null, h("span", { class: "swatch block-none", "aria-hidden": "true" }), NOT_VISIBLE));
    const isMasked = (/** @type {number} */ row, /** @type {number} */ column) => visible[row * rows.length + column] === 0;
    this.matrix.draw({
      title: `Block attention pattern, layer ${layer + 1}`, rows: labels, columns: labels, values, scale: "named", names: Object.values(REASONS), isMasked, hatched: NOT_VISIBLE,
      axes: "Rows attend to columns; a block is named by its number and its first token.",
      describe: (row, column) => `block ${row + 1} ${isMasked(row, column) ? `does not attend to block ${column + 1}` : `attends to block ${column + 1}: ${REASONS[names[values[row * rows.length + column]]]}`}`,
    });
  }
}
