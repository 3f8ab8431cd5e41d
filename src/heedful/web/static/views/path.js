// The path of one word: its vector from the embedding to the last layer, and the model's prediction at each stage.

import { computeDot, computeNorm, getRow } from "heedful/data/numerics.js";
import { getTokenText } from "heedful/data/trace.js";
import { readPalette } from "heedful/parts/colors.js";
import { createSelect } from "heedful/parts/controls.js";
import { formatNumber, formatPercent, h, updateChildren } from "heedful/parts/dom.js";
import { createNumberTable } from "heedful/parts/number_table.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/data/safetensors.js").Tensor} Tensor */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */

/** A stage of the path: tensor name and display name. @typedef {{tensor: string, name: string}} Stage */

/** @type {import("heedful/main.js").View} */
export const pathView = {
  id: "path",
  title: "Word path",
  supports: (model) => model.has_arithmetic,
  mount: (host, page) => new PathView(host, page),
};

const SUBLAYERS = {
  encoder: [["self", "self-attention"], ["feed_forward", "feed-forward"]],
  decoder: [["self", "self-attention"], ["cross", "cross-attention"], ["feed_forward", "feed-forward"]],
};

/** The relative rounding error of float16. */
const FLOAT16_EPSILON = 2 ** -10;

class PathView {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    this.controls = h("div", { class: "controls" });
    this.introduction = h("div", { class: "description" });
    this.list = h("ol", { class: "path" });
    this.numbers = h("div");
    this.details = h("details", { class: "as-table" }, h("summary", null, "Show the numbers as a table"), this.numbers);
    host.append(this.controls, this.introduction, this.list, this.details);
  }

  /** @param {Selection} selection @param {Trace} trace */
  async show(selection, trace) {
    const side = selection.kind === "encoder" ? "encoder" : "decoder";
    const isOutput = side === getOutputStack(trace);
    const tokens = isOutput ? trace.sides.target : trace.sides.source;
    const requestedRow = selection.query ?? (isOutput ? selection.step : 0);
    const row = Math.min(requestedRow, tokens.subwords.length - 1);
    const stages = listStages(side, trace);
    const names = [...stages.map(({ tensor }) => tensor), `${side}.positions`, ...(isOutput ? ["lens.ids", "lens.probabilities"] : [])];
    const [position, ids, probabilities, ...streams] = reorderTensors(await trace.loadTensors(names), stages.length);
    if (this.page.isStale(selection, trace)) return;
    updateChildren(this.controls, ...this.#createControls(selection, trace, side, row));
    this.introduction.replaceChildren(...renderIntroduction(side, trace, row));
    const vectors = streams.map((tensor) => /** @type {Float32Array} */ (getRow(tensor, row)));
    const max = Math.max(...vectors.flatMap((vector) => Array.from(vector, Math.abs)));
    const renderStagePredictions = (/** @type {number} */ i) => (isOutput ? renderPredictions(trace, ids, probabilities, Math.min(i, ids.shape[0] - 1), row) : null);
    this.list.replaceChildren(...stages.map(({ name }, i) => h("li", { class: i === stages.length - 1 ? "last" : "" },
      h("div", null, h("span", { class: "stage-name" }, name), i === stages.length - 1 ? h("span", { class: "badge" }, "output") : null, renderFacts(vectors, i)),
      i ? renderStrip(vectors[i], max, name) : renderEmbedding(vectors[0], getRow(position, row), max, side === "decoder" && row === 0, trace.manifest.model.scale_embeddings),
      renderStagePredictions(i))));
    this.numbers.replaceChildren(createNumberTable({
      title: "", // the summary is the title
      rows: stages.map(({ name }) => name),
      columns: Array.from(vectors[0], (_, c) => String(c + 1)),
      cells: vectors.map((vector) => Array.from(vector)),
      footer: [],
    }, { channels: vectors[0].length }));
  }

  /** @param {Selection} selection @param {Trace} trace @param {"encoder" | "decoder"} side @param {number} row */
  #createControls(selection, trace, side, row) {
    const { store } = this.page;
    const { source, decoder_input: decoderInput, target } = trace.sides;
    const layer = Math.min(selection.layer, trace.getLayerCount("encoder") - 1, trace.getLayerCount("cross") - 1);
    const inputs = side === "encoder" ? source : decoderInput;
    const isOutput = side === getOutputStack(trace);
    const words = inputs.subwords.map((subword, i) => (isOutput && subword !== target.subwords[i] ? `${i + 1} ${subword} → ${target.subwords[i]}` : `${i + 1} ${subword}`));
    const last = words.length - 1;
    const createButton = (/** @type {number} */ to, /** @type {string} */ text) =>
      h("button", { type: "button", disabled: to < 0 || to > last, onclick: () => store.set({ query: to, key: null }, { replace: true }) }, text);
    return [
      trace.getLayerCount("cross") ? createSelect("Follow", side, [["encoder", "A source word (encoder)"], ["decoder", "A target word (decoder)"]], (value) =>
        store.set({ kind: value === "encoder" ? "encoder" : "cross", layer, query: null, key: null, rows: [] })) : "",
      createSelect(isOutput ? "Word: reads → writes" : "Word", String(row), words.map((text, i) => [String(i), text]), (value) => store.set({ query: Number(value), key: null })),
      h("span", { class: "pager" }, createButton(row - 1, "← Previous"), createButton(row + 1, "Next →")),
    ];
  }
}

/** The stack that the output layer reads. @param {Trace} trace @returns {"encoder" | "decoder"} */
function getOutputStack(trace) {
  return trace.getLayerCount("decoder") ? "decoder" : "encoder";
}

/** @param {"encoder" | "decoder"} side @param {Trace} trace @returns {Stage[]} */
function listStages(side, trace) {
  const layers = Array.from({ length: trace.getLayerCount(side) }, (_, layer) =>
    SUBLAYERS[side].filter(([part]) => part !== "cross" || trace.getLayerCount("cross")).map(([part, name]) => ({ tensor: `${side}.${layer}.${part}.residual`, name: `Layer ${layer + 1}, after ${name}` })));
  // The last stage of a post-norm model is normalized; a pre-norm model has a final norm.
  const end = trace.manifest.model.norm_placement === "pre" ? [{ tensor: side === "encoder" ? "encoder.memory" : "decoder.states", name: "After the last norm" }] : [];
  return [{ tensor: `${side}.embedding`, name: "Embedding + position" }, ...layers.flat(), ...end];
}

/** Loaded tensors as [position, ids, probabilities, ...streams]. @param {Tensor[]} tensors @param {number} stageCount */
function reorderTensors(tensors, stageCount) {
  const [position, ids, probabilities] = tensors.slice(stageCount);
  return [position, ids, probabilities, ...tensors.slice(0, stageCount)];
}

/** @param {"encoder" | "decoder"} side @param {Trace} trace @param {number} row */
function renderIntroduction(side, trace, row) {
  const { source, decoder_input: decoderInput, target } = trace.sides;
  const renderToken = (/** @type {string} */ subword) => h("b", { dir: "auto" }, subword);
  const stripNote = "Each strip shows the vector of the word, one channel after another: blue is positive, orange negative. Every sublayer adds to it" + (trace.manifest.model.norm_placement === "post" ? ", and the sum is normalized." : ".");
  const lensNote = "Predictions apply the final norm and the output layer early, as if the model ended at this stage (logit lens). The last line is the real prediction. ▁ is a space before the token.";
  if (side === getOutputStack(trace) && side === "encoder") {
    const isBlank = trace.steps.includes(row);
    return [h("p", null, "This row reads ", renderToken(source.subwords[row]), isBlank ? [" and fills it with ", renderToken(target.subwords[row])] : ", which is given", ". ", stripNote), h("p", { class: "footnote" }, lensNote)];
  }
  if (side === "encoder") {
    return [h("p", null, "The path of ", renderToken(source.subwords[row]), " through the encoder. ", stripNote),
      h("p", { class: "footnote" }, "There are no predictions here: the output layer reads decoder vectors only. Cross-attention reads the encoder output.")];
  }
  return [h("p", null, "This row reads ", renderToken(decoderInput.subwords[row]), " and writes ", renderToken(target.subwords[row]), ". ", stripNote),
    h("p", { class: "footnote" }, lensNote)];
}

/** The length of a vector, and its change by the sublayer. @param {Float32Array[]} vectors @param {number} i */
function renderFacts(vectors, i) {
  const length = `length ${formatNumber(computeNorm(vectors[i]), 2)}`;
  if (i === 0) return h("span", { class: "facts" }, length);
  const [before, after] = [vectors[i - 1], vectors[i]];
  const change = computeNorm(after.map((value, c) => value - before[c])) / computeNorm(before);
  const cosine = computeDot(before, after) / computeNorm(before) / computeNorm(after);
  return h("span", { class: "facts" }, `${length}, changed by ${formatPercent(change)}, cosine to previous ${formatNumber(cosine, 2)}`);
}

/** @param {Float32Array} sum @param {ArrayLike<number>} position @param {number} max @param {boolean} isStart whether this is the start row @param {boolean} scaled */
function renderEmbedding(sum, position, max, isStart, scaled) {
  const word = sum.map((value, c) => value - position[c]);
  const isEmpty = isStart && word.every((value, c) => Math.abs(value) <= Math.abs(position[c]) * FLOAT16_EPSILON); // the sum is stored as float16
  const renderLine = (/** @type {string} */ name, /** @type {ArrayLike<number>} */ vector) => [h("span", { class: "strip-label" }, name), renderStrip(vector, max, name)];
  return h("div", null, renderLine(scaled ? `embedding × √${sum.length}` : "embedding", word),
    isEmpty ? h("p", { class: "footnote" }, "The strip is empty: decoding starts from the padding token, shown as <s>, whose embedding is zero. Only the position remains.") : null,
    renderLine("+ position", position), renderLine("= sum", sum));
}

/** The predictions at one stage; the written token is marked. @param {Trace} trace @param {Tensor} ids @param {Tensor} probabilities @param {number} lensIndex @param {number} row */
function renderPredictions(trace, ids, probabilities, lensIndex, row) {
  const [, steps, count] = ids.shape;
  const start = (lensIndex * steps + row) * count;
  const writtenId = trace.sides.target.ids[row];
  return h("ol", { class: "predictions", "aria-label": "Predictions of this layer" }, Array.from({ length: count }, (_, i) => {
    const [id, probability] = [ids.data[start + i], probabilities.data[start + i]];
    return h("li", { class: id === writtenId ? "written" : "", style: `--share: ${probability}` },
      h("bdi", null, getTokenText(trace.manifest, id)), ` ${formatNumber(probability)}`, id === writtenId ? " ✓" : "");
  }));
}

/** @param {ArrayLike<number>} vector @param {number} max the value of full color @param {string} name */
function renderStrip(vector, max, name) {
  const numbers = Array.from(vector);
  const canvas = h("canvas", {
    class: "strip", role: "img", width: numbers.length, height: 1,
    "aria-label": `${name}: ${numbers.length} channels from ${formatNumber(Math.min(...numbers), 2)} to ${formatNumber(Math.max(...numbers), 2)}`,
  });
  const context = canvas.getContext("2d");
  const colors = readPalette();
  numbers.forEach((value, channel) => {
    context.fillStyle = colors.signed(value / max);
    context.fillRect(channel, 0, 1, 1);
  });
  return canvas;
}
