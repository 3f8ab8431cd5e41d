// The arithmetic of one weight, from the vector x to the normalized sum: every number comes from the model, and readers can check the sums.

import { describeRows, getHeadName } from "heedful/data/heads.js";
import { createHeadControls, createSelect } from "heedful/parts/controls.js";
import { formatNumber, h, updateChildren } from "heedful/parts/dom.js";
import { createNumberTable } from "heedful/parts/number_table.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/data/trace.js").Kind} Kind */
/** @typedef {import("heedful/data/trace.js").Tokens} Tokens */
/** @typedef {import("heedful/parts/number_table.js").Table} Table */
/** @typedef {import("heedful/parts/number_table.js").TableOptions} TableOptions */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */
/** The server's explanation of a row. @typedef {{title: string, sections: {heading: string, formula: string, tables: Table[], notes: string[]}[], values: any}} Explanation */

/** Keys shown in a long table: those with the largest weights. */
const MAX_KEYS = 8;

/** @type {import("heedful/main.js").View} */
export const cellView = {
  id: "cell",
  title: "Cell",
  supports: (model) => model.has_arithmetic,
  mount: (host, page) => new CellView(host, page),
};

class CellView {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    this.controls = h("div", { class: "controls" });
    this.summary = h("p", { class: "cell-summary", role: "status" });
    this.steps = h("div", { class: "steps" });
    host.append(
      h("p", { class: "intro" }, "The arithmetic of one attention weight, step by step, in the order of the lecture. All numbers come from this model and this sentence."),
      this.controls, this.summary, this.steps);
    /** Explanations of rows, by cell. @type {Map<string, Promise<Explanation>>} */
    this.explanations = new Map();
    this.renderedCell = "";
  }

  /** @param {Selection} selection @param {Trace} trace */
  async show(selection, trace) {
    const { kind } = selection;
    const layer = Math.min(selection.layer, trace.getLayerCount(kind) - 1);
    if (selection.head === null) return this.#askForHead(selection, trace);
    const head = Math.min(selection.head, trace.heads - 1);
    const [row, key] = await chooseCell(selection, trace, layer, head);
    const explanation = await this.#loadExplanation(trace, { kind, layer, head, row }).catch((error) => {
      if (this.page.source.live) throw error;
      return error.message; // a file includes only some heads
    });
    if (this.page.isStale(selection, trace)) return;
    updateChildren(this.controls, ...createHeadControls(this.page, selection, trace), ...this.#createCellControls(trace.getAxes(kind), row, key));
    if (typeof explanation === "string") return this.#showMessage(explanation);
    this.summary.replaceChildren(renderSummary(explanation.values, key));
    const cell = `${trace.id} ${kind} ${layer} ${head} ${row} ${key}`;
    if (cell === this.renderedCell) return; // keep expanded tables
    this.renderedCell = cell;
    const off = selection.off.includes(`${kind}.${layer}.${head}`);
    this.steps.replaceChildren(
      h("h3", { dir: "auto" }, getHeadName(kind, layer, head)),
      off ? h("p", { class: "notice" }, "This head is switched off: it still computes its weights, but its rows of W^O are zero, so it contributes nothing.") : "",
      ...explanation.sections.map((/** @type {Explanation["sections"][number]} */ section, /** @type {number} */ i) => renderStep(section, i + 1, explanation.values, key)));
    this.steps.dataset.cell = [kind, layer, head, row, key].join(".");
  }

  /** The mean of several heads has no arithmetic. @param {Selection} selection @param {Trace} trace */
  #askForHead(selection, trace) {
    updateChildren(this.controls, ...createHeadControls(this.page, selection, trace));
    this.#showMessage("The mean of several heads has no products. Choose a head.");
    this.steps.append(h("div", { class: "row-buttons" }, Array.from({ length: trace.heads }, (_, head) =>
      h("button", { type: "button", onclick: () => this.page.store.set({ head }) }, `Head ${head + 1}`))));
  }

  /** Show a message instead of the steps. @param {string} message */
  #showMessage(message) {
    this.summary.textContent = message;
    this.renderedCell = "";
    this.steps.replaceChildren();
  }

  /** @param {Trace} trace @param {{kind: Kind, layer: number, head: number, row: number}} cell */
  #loadExplanation(trace, cell) {
    const key = JSON.stringify([trace.id, cell]);
    const cached = this.explanations.get(key);
    if (cached) return cached;
    const explanation = this.page.source.fetchCell(trace.id, cell);
    if (this.explanations.size > 40) this.explanations.clear();
    this.explanations.set(key, explanation);
    explanation.catch(() => this.explanations.delete(key)); // allow a retry
    return explanation;
  }

  /** Controls for query and key. @param {[Tokens, Tokens]} sides @param {number} row @param {number} key */
  #createCellControls([queries, keys], row, key) {
    const { store } = this.page;
    const createOptions = (/** @type {Tokens} */ side) => side.subwords.map((subword, i) => [String(i), `${i + 1} ${subword}`]);
    const createButton = (/** @type {number} */ to, /** @type {string} */ text) =>
      h("button", { type: "button", disabled: to < 0 || to >= keys.subwords.length, onclick: () => store.set({ query: row, key: to }, { replace: true }) }, text);
    return [
      createSelect("Query", String(row), createOptions(queries), (value) => store.set({ query: Number(value), key: null })),
      createSelect("Key", String(key), createOptions(keys), (value) => store.set({ query: row, key: Number(value) })),
      h("span", { class: "pager" }, createButton(key - 1, "← Previous"), createButton(key + 1, "Next →")),
      h("span", { class: "legend" }, describeRows(store.selection.kind)),
    ];
  }
}

/** The selected row and key, or the pair of words with the largest weight. @param {Selection} selection @param {Trace} trace @param {number} layer @param {number} head */
async function chooseCell({ kind, query, key }, trace, layer, head) {
  const { rows, columns, values } = await trace.loadWeights(kind, layer, head, false);
  const [queries, keys] = trace.getAxes(kind);
  const row = query === null ? null : Math.min(query, rows.length - 1);
  if (row !== null && key !== null) return [row, Math.min(key, columns.length - 1)];
  let best = [row ?? 0, 0];
  let max = -1;
  values.forEach((weight, i) => {
    const [r, c] = [Math.floor(i / columns.length), i % columns.length];
    if (row !== null ? r !== row : queries.ids[r] < 2 || keys.ids[c] < 2) return; // 0 and 1 are start and end
    if (weight > max) [max, best] = [weight, [r, c]];
  });
  return best;
}

/** The calculation in one line. @param {any} values @param {number} key */
function renderSummary(values, key) {
  const [query, keyText] = [values.row_subwords[values.row - 1], values.column_subwords[key]];
  const renderToken = (/** @type {string} */ subword) => h("b", { dir: "auto" }, subword);
  const root = values.divisor === 1 ? "1" : `√${values.q.length}`;
  const score = [h("b", { class: "letter role-q" }, "q"), "·", h("b", { class: "letter role-k" }, "k"), ` = ${formatNumber(values.scores[key])} → ${formatNumber(values.scores[key])} / ${root} = ${formatNumber(values.scaled[key])}${values.bias ? ` → + distance ${formatNumber(values.bias[key])} = ${formatNumber(values.scaled[key] + values.bias[key])}` : ""}`];
  if (values.masked[key] === "-inf") {
    return h("span", null, renderToken(query), " may not attend to ", renderToken(keyText), ": ", score, " → masked: −∞ → e^−∞ = 0 → weight ", h("strong", null, "0"));
  }
  const powers = values.masked.map((/** @type {number | string} */ score) => (score === "-inf" ? 0 : Math.exp(Number(score))));
  const sum = powers.reduce((/** @type {number} */ total, /** @type {number} */ value) => total + value, 0);
  return h("span", null, renderToken(query), " attends to ", renderToken(keyText), ": ", score,
    ` → e^${formatNumber(values.masked[key])} / Σ = ${formatNumber(powers[key])} / ${formatNumber(sum)} = `, h("strong", null, formatNumber(values.weights[key])));
}

/** @param {Explanation["sections"][number]} section @param {number} number @param {any} values @param {number} key */
function renderStep(section, number, values, key) {
  const stepId = STEP_HEADINGS.find(([words]) => section.heading.startsWith(words))?.[1] ?? "other";
  const displayed = stepId === "score" ? { ...section, tables: [createScoreTable(values, key)], notes: [] } : section;
  const content = [
    displayed.formula ? h("p", { class: "formula" }, displayed.formula) : "",
    ...displayed.tables.map((table) => (table.title.startsWith("Channel 1 of q") ? renderChannel(values) : createNumberTable(renameColumns(table), getTableOptions(stepId, table, values, key)))),
    renderCalculation(stepId, values, key),
    ...displayed.notes.map(dropCliHints).filter(Boolean).map((note) => h("p", { class: "footnote", dir: "auto" }, note)),
  ];
  const heading = h("h3", null, h("span", { class: "number" }, number), section.heading);
  return stepId === "tokens"
    ? h("details", { class: "step" }, h("summary", null, heading), content)
    : h("section", { class: "step", "data-step": stepId }, heading, content);
}

/** Section headings start with these words; the ids of their steps. */
const STEP_HEADINGS = /** @type {const} */ ([
  ["Tokens", "tokens"], ["The vector", "x"], ["Query", "projections"], ["One score", "score"], ["All scores", "softmax"],
  ["The weighted", "values"], ["All heads", "joined"], ["Residual", "residual"], ["LayerNorm", "norm"],
]);

/** Rename the column of masked scores. @param {Table} table @returns {Table} */
function renameColumns(table) {
  return { ...table, columns: table.columns.map((name) => (name === "masked" ? "after mask" : name)) };
}

/** The display options of a table. @param {string} stepId @param {Table} table @param {any} values @param {number} key @returns {TableOptions} */
function getTableOptions(stepId, table, values, key) {
  const channels = table.columns.filter((name) => /^\d+$/.test(name)).length;
  const words = table.rows.length === values.column_subwords.length && ["tokens", "projections", "softmax", "values"].includes(stepId);
  /** @type {TableOptions} */
  const options = { channels };
  if (words) Object.assign(options, { rows: findStrongest(values.weights, key), marked: key });
  if (stepId === "projections") options.letter = getLetter(table.title);
  if (stepId === "score") Object.assign(options, { sum: "product", letter: (/** @type {string} */ row) => (row.startsWith("q of") ? "q" : row.startsWith("k of") ? "k" : "") });
  if (stepId === "softmax") Object.assign(options, { bars: true, sumRows: true });
  if (stepId === "values") Object.assign(options, { sumRows: true, letter: (/** @type {string} */ row) => (row === "output z" ? "" : "v") });
  if (stepId === "joined" && table.title.startsWith("Channel 1")) options.sum = "product";
  else if (stepId === "joined") options.marked = values.head - 1;
  if (stepId === "joined" || stepId === "residual") options.letter = (row) => (row === "output" ? "o" : "");
  return options;
}

/** @param {string} title @returns {TableOptions["letter"]} */
function getLetter(title) {
  const letter = /^[qkv] of/.test(title) ? /** @type {"q" | "k" | "v"} */ (title[0]) : "";
  return () => letter;
}

/** The indices of the largest weights and of the key, in order. @param {number[]} weights @param {number} key */
function findStrongest(weights, key) {
  const indices = weights.map((_, i) => i).sort((a, b) => weights[b] - weights[a]).slice(0, MAX_KEYS);
  return [...new Set([...indices, key])].sort((a, b) => a - b);
}

/** A dot product with all its terms. @param {string} title @param {string[]} names @param {number[]} left @param {number[]} right @param {Record<string, number>} after @returns {Table} */
function createProductTable(title, names, left, right, after) {
  const blank = Object.keys(after).map(() => "");
  return {
    title,
    rows: [...names, "product"],
    columns: [...left.map((_, i) => String(i + 1)), ...Object.keys(after)],
    cells: [[...left, ...blank], [...right, ...blank], [...left.map((value, i) => value * right[i]), ...Object.values(after)]],
    footer: [],
  };
}

/** The products of query and key. @param {any} values @param {number} key */
function createScoreTable(values, key) {
  const names = [`q of ${values.row_subwords[values.row - 1]}`, `k of ${values.column_subwords[key]}`];
  return createProductTable("", names, values.q, values.k[key], { "sum = score": values.scores[key] });
}

/** One channel of q with all its terms; the user selects the channel. @param {any} values */
function renderChannel(values) {
  const host = h("div");
  const drawChannel = (/** @type {number} */ c) => {
    const column = values.w_query.map((/** @type {number[]} */ row) => row[c]);
    const sum = values.x.reduce((/** @type {number} */ total, /** @type {number} */ x, /** @type {number} */ i) => total + x * column[i], 0);
    /** @type {Record<string, number>} */
    const bias = values.b_query ? { b: values.b_query[c] } : {};
    const table = createProductTable(`Channel ${c + 1} of q in full: x times column ${c + 1} of W^Q`, ["x", "W^Q"], values.x, column, { sum, ...bias, [`q ${c + 1}`]: values.q[c] });
    host.replaceChildren(createNumberTable(table, { channels: values.x.length, sum: "product", letter: (row) => (row === "W^Q" ? "q" : "") }));
  };
  drawChannel(0);
  const options = values.q.map((/** @type {number} */ _, /** @type {number} */ i) => [String(i), `Channel ${i + 1}`]);
  return h("div", { class: "channel" }, host, createSelect("Another channel of q", "0", options, (c) => drawChannel(Number(c))),
    h("p", { class: "footnote" }, "k and v are computed in the same way, with W^K and W^V, from the x of each key."));
}

/** The calculation for the selected key. @param {string} stepId @param {any} values @param {number} key */
function renderCalculation(stepId, values, key) {
  const renderLine = (/** @type {string} */ text) => h("p", { class: "calculation", dir: "auto" }, text);
  const [name, weight] = [values.column_subwords[key], values.weights[key]];
  if (stepId === "score") return renderLine(`Divided by ${values.divisor === 1 ? "1" : `√${values.q.length}`}: ${formatNumber(values.scores[key])} / ${formatNumber(values.divisor)} = ${formatNumber(values.scaled[key])}`);
  if (stepId === "values") return renderLine(`For ${name}, channel 1: weight ${formatNumber(weight)} × ${values.v_distance ? `(v ${formatNumber(values.v[key][0])} + a ${formatNumber(values.v_distance[key][0])})` : `v ${formatNumber(values.v[key][0])}`} = ${formatNumber(values.contributions[key][0])}`);
  if (stepId !== "softmax") return "";
  if (values.masked[key] === "-inf") return renderLine(`For ${name}: masked, so its weight is exactly 0.`);
  const max = Math.max(...values.masked.filter((/** @type {number | string} */ score) => score !== "-inf"));
  const powers = values.masked.map((/** @type {number | string} */ score) => (score === "-inf" ? 0 : Math.exp(Number(score) - max)));
  const sum = powers.reduce((/** @type {number} */ total, /** @type {number} */ value) => total + value, 0);
  return renderLine(`For ${name}: e^(${formatNumber(values.masked[key])} − ${formatNumber(max)}) = ${formatNumber(powers[key])}; ${formatNumber(powers[key])} / ${formatNumber(sum)} = ${formatNumber(weight)}`);
}

/** A note without its command-line hints. @param {string} note */
function dropCliHints(note) {
  return note.split(/(?<=[.;]) /).filter((sentence) => !sentence.includes("--")).join(" ").replace(/;$/, ".");
}
