// One head, large: a heat map with words on both axes, and lines from the words that look to those looked at.

import { KIND_NAMES, place } from "heedful/data/trace.js";
import { h, isolated, percent, shown } from "heedful/parts/dom.js";
import { Lines, strongest } from "heedful/parts/lines.js";
import { Matrix } from "heedful/parts/matrix.js";
import { refill } from "heedful/parts/refill.js";
import { toolbar } from "heedful/parts/toolbar.js";
import { BADGES } from "heedful/parts/badges.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/data/trace.js").Kind} Kind */
/** @typedef {import("heedful/data/trace.js").Side} Side */
/** @typedef {import("heedful/data/trace.js").Weights} Weights */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */

/** Weights that are listed as the strongest. */
const LISTED = 8;
/** Share of a head's weight on the start or end from which this is explained. */
const SINK = 0.3;

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
    this.told = h("p", { class: "lead" });
    this.figure = h("div", { class: "figure" });
    this.lines = h("div", { class: "figure" });
    this.strongest = h("div", { class: "strongest" });
    this.tools = h("div");
    this.both = h("div", { class: "two" }, h("div", null, this.figure, this.strongest), this.lines);
    host.append(this.controls, this.heading, this.told, this.tools, this.both);
    this.matrix = new Matrix(this.figure);
    this.line = new Lines(this.lines);
  }

  /** @param {Selection} selection @param {Trace} trace */
  async show(selection, trace) {
    const { kind, words } = selection;
    const layer = Math.min(selection.layer, trace.layers(kind) - 1);
    const head = selection.head === null ? null : Math.min(selection.head, trace.heads - 1);
    const beside = selection.also.filter((each) => each < trace.heads && each !== head);
    const [weights, ...others] = await Promise.all([head, ...beside].map((each) => trace.weights(kind, layer, each, words)));
    if (this.page.stale(selection, trace)) return;
    const name = headName(kind, layer, head);
    this.heading.textContent = name;
    this.both.classList.toggle("below", beside.length > 0); // several heads need the whole width
    this.told.textContent = inWords(trace, kind, layer, head, selection.off);
    refill(this.controls, ...placeControls(this.page, selection, trace), between(this.page, selection));
    const figure = this.#figure(selection, trace, weights, { layer, head });
    this.matrix.draw(figure);
    this.#drawLines(selection, trace, [{ head, values: weights.values }, ...others.map(({ values }, i) => ({ head: beside[i], values }))], figure);
    refill(this.strongest, ...this.#strongest(figure));
    refill(this.tools, toolbar(figure, `heedful-${kind}-${layer + 1}-${head === null ? "mean" : head + 1}`));
  }

  /** @param {Selection} selection @param {Trace} trace @param {Weights} weights @param {{layer: number, head: number | null}} place */
  #figure(selection, trace, weights, { layer, head }) {
    const { kind, words } = selection;
    const [queries, keys] = trace.of(kind);
    const name = headName(kind, layer, head);
    const masked = trace.masked(kind, words, layer);
    const blocks = place(kind, layer) in trace.manifest.patterns;
    return {
      title: name,
      ...weights,
      axes: `Rows look at columns; each row sums to 1${words ? " (summed over a key's pieces, mean over a query's)" : ""}. ${rowsNamed(kind)} ${sumsNamed(trace, kind)}`.trim(),
      masked,
      hatched: blocks ? "masked or in blocks that are not seen (BigBird)" : undefined,
      spoken: (/** @type {number} */ row, /** @type {number} */ column) =>
        masked?.(row, column)
          ? `${isolated(weights.rows[row])} ${blocks ? "does not see" : "may not look at"} ${isolated(weights.columns[column])}: ${blocks ? "not seen" : "masked"}, ${name}`
          : `${isolated(weights.rows[row])} looks at ${isolated(weights.columns[column])}: ${shown(weights.values[row * weights.columns.length + column])}, ${name}`,
      selected: /** @type {[number | null, number | null]} */ ([unit(queries, selection.query, words), unit(keys, selection.key, words)]),
      opens: head === null || !trace.manifest.model.arithmetic ? undefined : "Open the arithmetic of this cell",
      choose: (/** @type {number} */ row, /** @type {number} */ column) =>
        this.page.store.set({ view: head === null || !trace.manifest.model.arithmetic ? "head" : "cell", kind, layer, head, query: piece(queries, row, words), key: piece(keys, column, words) }),
    };
  }

  /** @param {Selection} selection @param {Trace} trace @param {{head: number | null, values: Float32Array}[]} heads @param {import("heedful/parts/matrix.js").MatrixFigure} figure */
  #drawLines(selection, trace, heads, figure) {
    const { store } = this.page;
    const { words } = selection;
    const [queries] = trace.of(selection.kind);
    const rows = [...new Set([selection.query, ...selection.rows].map((row) => unit(queries, row, words)).filter((row) => row !== null))];
    this.line.draw({
      figure,
      panels: heads.map(({ head, values }) => ({ name: head === null ? "Mean of heads" : `Head ${head + 1}`, values })),
      rows,
      chooseRows: (chosen) => {
        const [query = null, ...more] = chosen.map((row) => piece(queries, row, words));
        store.set({ query, rows: more, key: null });
      },
      above: beside(selection, trace, (also) => store.set({ also })),
    });
  }

  /** @param {import("heedful/parts/matrix.js").MatrixFigure} figure */
  #strongest({ rows, columns, values, masked, choose }) {
    const found = strongest(values, rows.length, columns.length, [], masked, LISTED).reverse();
    return [
      h("h4", null, "Strongest weights"),
      h("ol", null, found.map(([i, j, weight]) =>
        h("li", null, h("button", { type: "button", class: "small", onclick: () => choose?.(i, j) },
          h("bdi", null, rows[i]), " looks at ", h("bdi", null, columns[j]), `: ${shown(weight)}`)))),
    ];
  }
}

/** The word or piece of the figure that a piece belongs to. @param {Side} side @param {number | null} number @param {boolean} words */
function unit(side, number, words) {
  if (number === null || number >= side.ids.length) return null;
  return words ? side.groups[number] : number;
}

/** The first piece of what is shown. @param {Side} side @param {number} number @param {boolean} words */
function piece(side, number, words) {
  return words ? Math.max(0, side.groups.indexOf(number)) : number;
}

/** What a head does, in sentences. @param {Trace} trace @param {Kind} kind @param {number} layer @param {number | null} head @param {string[]} off */
function inWords(trace, kind, layer, head, off) {
  if (head === null) return "The mean of all heads of this layer: no head looks exactly like this, but it shows where the layer looks.";
  const known = trace.manifest.heads.find((/** @type {any} */ each) => each.kind === kind && each.layer === layer && each.head === head);
  const badge = BADGES[known.badge];
  const told = [badge ? `On this sentence the head ${badge.does}.` : "On this sentence the head has no simple habit."];
  told.push(`Its weights are spread as if over ${(2 ** known.entropy).toFixed(1)} pieces (entropy ${known.entropy.toFixed(2)} bits).`);
  if (known.end >= SINK) {
    const [mark, where] = kind === "decoder" ? ["<s>", "the start"] : ["</s>", "the end"];
    told.push(`${percent(known.end)} of its weight lies on ${mark}, ${where} of the sentence: a place to look at when nothing else is needed. That is usual, not a fault.`);
  }
  const taught = trace.manifest.model.taught_head; // counted from 1
  if (kind === "encoder" && taught && taught[0] === layer + 1 && taught[1] === head + 1) told.push(`It ${BADGES.taught.does}: ${BADGES.taught.means}.`);
  if (off.includes(`${kind}.${layer}.${head}`)) told.push(`It ${BADGES.off.does}: its weights are still computed, but nobody hears it.`);
  return told.join(" ");
}

/** Which other heads stand beside the chosen one. @param {Selection} selection @param {Trace} trace @param {(also: number[]) => void} choose */
function beside(selection, trace, choose) {
  const all = Array.from({ length: trace.heads }, (_, head) => head);
  const { also, head: own } = selection;
  const turned = (/** @type {number} */ head) => (also.includes(head) ? also.filter((each) => each !== head) : [...also, head].sort((one, other) => one - other));
  return h("div", { class: "row-buttons", role: "group", "aria-label": "Heads side by side" },
    h("span", { class: "legend" }, "Beside it:"),
    all.filter((head) => head !== own).map((head) => h("button", { type: "button", "aria-pressed": String(also.includes(head)), onclick: () => choose(turned(head)) }, `Head ${head + 1}`)),
    h("button", { type: "button", onclick: () => choose(also.length ? [] : all.filter((head) => head !== own)) }, also.length ? "Only one" : "All heads"));
}

/** Kind, layer and head to choose. @param {Page} page @param {Selection} selection @param {Trace} trace */
export function placeControls({ store }, selection, trace) {
  const layers = Array.from({ length: trace.layers(selection.kind) }, (_, i) => [String(i), `Layer ${i + 1}`]);
  const heads = [["mean", "Mean of heads"], ...Array.from({ length: trace.heads }, (_, i) => [String(i), `Head ${i + 1}`])];
  return [
    choice("Attention", selection.kind, trace.kinds.map((kind) => [kind, KIND_NAMES[kind]]), (kind) =>
      store.set({ kind: /** @type {Kind} */ (kind), layer: Math.min(selection.layer, trace.layers(/** @type {Kind} */ (kind)) - 1), query: null, key: null, rows: [] })),
    choice("Layer", String(selection.layer), layers, (layer) => store.set({ layer: Number(layer) })),
    choice("Head", selection.head === null ? "mean" : String(selection.head), heads, (head) => store.set({ head: head === "mean" ? null : Number(head) })),
  ];
}

/** @param {Page} page @param {Selection} selection */
function between({ store }, { words }) {
  return choice("Between", words ? "words" : "pieces", [["words", "Words"], ["pieces", "Pieces"]], (unit) => store.set({ words: unit === "words" }));
}

/** What the names of rows mean: each row of the decoder reads one word and writes the next. @param {Kind} kind */
export function rowsNamed(kind) {
  if (kind === "encoder") return "";
  return kind === "cross" ? "A row of cross-attention is named by the word it writes." : "A row of decoder self-attention is named by the word it reads; it writes the next one.";
}

/** What columns are that are no words. @param {Trace} trace @param {Kind} kind */
function sumsNamed({ sides: { sums } }, kind) {
  return kind === "encoder" && sums ? "Columns are no words: each Σ is a sum of all words (Linformer)." : "";
}

/** A head's name for people. @param {Kind} kind @param {number} layer @param {number | null} head */
export function headName(kind, layer, head) {
  return `${KIND_NAMES[kind]}, layer ${layer + 1}, ${head === null ? "mean of all heads" : `head ${head + 1}`}`;
}

/** A choice of one of a few. @param {string} name @param {string} value @param {string[][]} options @param {(value: string) => void} choose */
export function choice(name, value, options, choose) {
  return h("label", { class: "choice" }, h("span", null, name),
    h("select", { "aria-label": name, onchange: (/** @type {any} */ event) => choose(event.target.value) },
      options.map(([id, text]) => h("option", { value: id, selected: id === value }, text))));
}
