// One head in detail: a heat map with words on both axes, and lines from queries to keys.

import { BADGES, describeRows, getHeadName } from "heedful/data/heads.js";
import { getTensorPrefix } from "heedful/data/trace.js";
import { createMatrixDownloads } from "heedful/export/downloads.js";
import { AttentionLines, findStrongestWeights } from "heedful/parts/attention_lines.js";
import { createHeadControls, createSelect } from "heedful/parts/controls.js";
import { formatNumber, formatPercent, h, isolateDirection, updateChildren } from "heedful/parts/dom.js";
import { Heatmap } from "heedful/parts/heatmap.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/data/trace.js").Kind} Kind */
/** @typedef {import("heedful/data/trace.js").Tokens} Tokens */
/** @typedef {import("heedful/data/trace.js").Weights} Weights */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */

/** Number of strongest weights listed. */
const MAX_LISTED = 8;
/** Fraction of a head's weight on the start or end from which a sink is explained. */
const SINK_WEIGHT = 0.3;

/** @type {import("heedful/main.js").View} */
export const headView = {
  id: "head",
  title: "Head",
  mount: (host, page) => new HeadView(host, page),
};

class HeadView {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    this.controls = h("div", { class: "controls" });
    this.heading = h("h3");
    this.description = h("p", { class: "intro" });
    this.heatmapHost = h("div", { class: "figure" });
    this.linesHost = h("div", { class: "figure" });
    this.strongestHost = h("div", { class: "strongest" });
    this.tools = h("div");
    this.columns = h("div", { class: "columns" }, h("div", null, this.heatmapHost, this.strongestHost), this.linesHost);
    host.append(this.controls, this.heading, this.description, this.tools, this.columns);
    this.heatmap = new Heatmap(this.heatmapHost);
    this.lines = new AttentionLines(this.linesHost);
  }

  /** @param {Selection} selection @param {Trace} trace */
  async show(selection, trace) {
    const { kind, words } = selection;
    const layer = Math.min(selection.layer, trace.getLayerCount(kind) - 1);
    const head = selection.head === null ? null : Math.min(selection.head, trace.heads - 1);
    const extraHeads = selection.extraHeads.filter((extraHead) => extraHead < trace.heads && extraHead !== head);
    const [weights, ...others] = await Promise.all([head, ...extraHeads].map((otherHead) => trace.loadWeights(kind, layer, otherHead, words)));
    if (this.page.isStale(selection, trace)) return;
    const name = getHeadName(kind, layer, head);
    this.heading.textContent = name;
    this.columns.classList.toggle("stacked", extraHeads.length > 0); // several heads need the full width
    this.description.textContent = describeHead(trace, kind, layer, head, selection.off);
    updateChildren(this.controls, ...createHeadControls(this.page, selection, trace), createUnitControl(this.page, selection));
    const figure = this.#createFigure(selection, trace, weights, { layer, head });
    this.heatmap.draw(figure);
    this.#renderLines(selection, trace, [{ head, values: weights.values }, ...others.map(({ values }, i) => ({ head: extraHeads[i], values }))], figure);
    updateChildren(this.strongestHost, ...this.#createStrongestList(figure));
    updateChildren(this.tools, createMatrixDownloads(figure, `heedful-${kind}-${layer + 1}-${head === null ? "mean" : head + 1}`));
  }

  /** @param {Selection} selection @param {Trace} trace @param {Weights} weights @param {{layer: number, head: number | null}} place */
  #createFigure(selection, trace, weights, { layer, head }) {
    const { kind, words } = selection;
    const [queries, keys] = trace.getAxes(kind);
    const name = getHeadName(kind, layer, head);
    const isMasked = trace.getMask(kind, words, layer);
    const blocks = getTensorPrefix(kind, layer) in trace.manifest.sparse_patterns;
    return {
      title: name,
      ...weights,
      axes: `Rows (queries) attend to columns (keys); each row sums to 1${words ? " (summed over a key's subwords, averaged over a query's)" : ""}. ${describeRows(kind)} ${describeSums(trace, kind)}`.trim(),
      isMasked,
      hatched: blocks ? "masked or in blocks without attention (BigBird)" : undefined,
      describe: (/** @type {number} */ row, /** @type {number} */ column) =>
        isMasked?.(row, column)
          ? `${isolateDirection(weights.rows[row])} ${blocks ? "does not attend to" : "may not attend to"} ${isolateDirection(weights.columns[column])}: ${blocks ? "no attention" : "masked"}, ${name}`
          : `${isolateDirection(weights.rows[row])} attends to ${isolateDirection(weights.columns[column])}: ${formatNumber(weights.values[row * weights.columns.length + column])}, ${name}`,
      selected: /** @type {[number | null, number | null]} */ ([toUnit(queries, selection.query, words), toUnit(keys, selection.key, words)]),
      actionLabel: head === null || !trace.manifest.model.has_arithmetic ? undefined : "Open the arithmetic of this cell",
      choose: (/** @type {number} */ row, /** @type {number} */ column) =>
        this.page.store.set({ view: head === null || !trace.manifest.model.has_arithmetic ? "head" : "cell", kind, layer, head, query: toTokenIndex(queries, row, words), key: toTokenIndex(keys, column, words) }),
    };
  }

  /** @param {Selection} selection @param {Trace} trace @param {{head: number | null, values: Float32Array}[]} heads @param {import("heedful/parts/heatmap.js").MatrixFigure} figure */
  #renderLines(selection, trace, heads, figure) {
    const { store } = this.page;
    const { words } = selection;
    const [queries] = trace.getAxes(selection.kind);
    const rows = [...new Set([selection.query, ...selection.rows].map((row) => toUnit(queries, row, words)).filter((row) => row !== null))];
    this.lines.draw({
      figure,
      panels: heads.map(({ head, values }) => ({ name: head === null ? "Mean of heads" : `Head ${head + 1}`, values })),
      rows,
      chooseRows: (selectedRows) => {
        const [query = null, ...more] = selectedRows.map((row) => toTokenIndex(queries, row, words));
        store.set({ query, rows: more, key: null });
      },
      above: createExtraHeadButtons(selection, trace, (extraHeads) => store.set({ extraHeads })),
    });
  }

  /** @param {import("heedful/parts/heatmap.js").MatrixFigure} figure */
  #createStrongestList({ rows, columns, values, isMasked, choose }) {
    const strongest = findStrongestWeights(values, rows.length, columns.length, [], isMasked, MAX_LISTED).reverse();
    return [
      h("h4", null, "Strongest weights"),
      h("ol", null, strongest.map(([i, j, weight]) =>
        h("li", null, h("button", { type: "button", class: "small", onclick: () => choose?.(i, j) },
          h("bdi", null, rows[i]), " attends to ", h("bdi", null, columns[j]), `: ${formatNumber(weight)}`)))),
    ];
  }
}

/** The word or token of the figure for a token. @param {Tokens} side @param {number | null} number @param {boolean} words */
function toUnit(side, number, words) {
  if (number === null || number >= side.ids.length) return null;
  return words ? side.word_ids[number] : number;
}

/** The first token of a word or token of the figure. @param {Tokens} side @param {number} number @param {boolean} words */
function toTokenIndex(side, number, words) {
  return words ? Math.max(0, side.word_ids.indexOf(number)) : number;
}

/** A head's behavior in words. @param {Trace} trace @param {Kind} kind @param {number} layer @param {number | null} head @param {string[]} off */
function describeHead(trace, kind, layer, head, off) {
  if (head === null) return "The mean of all heads of this layer: no single head looks exactly like this, but it shows the focus of the layer.";
  const summary = trace.manifest.heads.find((/** @type {any} */ entry) => entry.kind === kind && entry.layer === layer && entry.head === head);
  const badge = BADGES[summary.pattern];
  const sentences = [badge ? `On this sentence the head ${badge.does}.` : "On this sentence the head has no simple pattern."];
  sentences.push(`Its weights are spread over about ${(2 ** summary.entropy).toFixed(1)} tokens (entropy ${summary.entropy.toFixed(2)} bits).`);
  if (summary.sink_weight >= SINK_WEIGHT) {
    const [mark, position] = kind === "decoder" ? ["<s>", "the start"] : ["</s>", "the end"];
    sentences.push(`${formatPercent(summary.sink_weight)} of its weight lies on ${mark}, ${position} of the sentence: an attention sink for when nothing else is needed. This is normal.`);
  }
  const guided = trace.manifest.model.guided_head; // counted from 1
  if (kind === "encoder" && guided && guided[0] === layer + 1 && guided[1] === head + 1) sentences.push(`It ${BADGES.guided.does}: ${BADGES.guided.means}.`);
  if (off.includes(`${kind}.${layer}.${head}`)) sentences.push(`It ${BADGES.off.does}: its weights are still computed, but it contributes nothing.`);
  return sentences.join(" ");
}

/** Buttons for the heads beside the selected one. @param {Selection} selection @param {Trace} trace @param {(also: number[]) => void} choose */
function createExtraHeadButtons(selection, trace, choose) {
  const heads = Array.from({ length: trace.heads }, (_, head) => head);
  const { extraHeads, head: selectedHead } = selection;
  const toggleHead = (/** @type {number} */ head) => (extraHeads.includes(head) ? extraHeads.filter((other) => other !== head) : [...extraHeads, head].sort((a, b) => a - b));
  return h("div", { class: "row-buttons", role: "group", "aria-label": "Heads side by side" },
    h("span", { class: "legend" }, "Compare with:"),
    heads.filter((head) => head !== selectedHead).map((head) => h("button", { type: "button", "aria-pressed": String(extraHeads.includes(head)), onclick: () => choose(toggleHead(head)) }, `Head ${head + 1}`)),
    h("button", { type: "button", onclick: () => choose(extraHeads.length ? [] : heads.filter((head) => head !== selectedHead)) }, extraHeads.length ? "Only this head" : "All heads"));
}

/** @param {Page} page @param {Selection} selection */
function createUnitControl({ store }, { words }) {
  return createSelect("Units", words ? "words" : "subwords", [["words", "Words"], ["subwords", "Subwords"]], (unit) => store.set({ words: unit === "words" }));
}

/** The meaning of columns that are not words. @param {Trace} trace @param {Kind} kind */
function describeSums({ sides: { projected_keys: projectedKeys } }, kind) {
  return kind === "encoder" && projectedKeys ? "Columns are not words: each Σ is a sum of all words (Linformer)." : "";
}
