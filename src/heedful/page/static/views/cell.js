// One weight, from the vector x to the normalised sum: every number is the model's, and the sums can be checked.

import { numbers } from "heedful/parts/arithmetic.js";
import { h, shown } from "heedful/parts/dom.js";
import { refill } from "heedful/parts/refill.js";
import { choice, headName, placeControls, rowsNamed } from "heedful/views/head.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/data/trace.js").Kind} Kind */
/** @typedef {import("heedful/data/trace.js").Side} Side */
/** @typedef {import("heedful/parts/arithmetic.js").Table} Table */
/** @typedef {import("heedful/parts/arithmetic.js").Look} Look */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */
/** What the server explains. @typedef {{title: string, sections: {heading: string, formula: string, tables: Table[], notes: string[]}[], values: any}} Explanation */

/** Words that stay in a long table: those looked at most. */
const STRONGEST = 8;

/** @type {import("heedful/main.js").View} */
export const cellView = {
  id: "cell",
  title: "Cell",
  fits: (model) => model.arithmetic,
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
      h("p", { class: "lead" }, "The arithmetic of one weight: how much one piece looks at another, step by step, in the order of the lecture. All numbers are this model's, on this sentence."),
      this.controls, this.summary, this.steps);
    /** Rows that were explained, by place. @type {Map<string, Promise<Explanation>>} */
    this.known = new Map();
    this.shown = "";
  }

  /** @param {Selection} selection @param {Trace} trace */
  async show(selection, trace) {
    const { kind } = selection;
    const layer = Math.min(selection.layer, trace.layers(kind) - 1);
    if (selection.head === null) return this.#ask(selection, trace);
    const head = Math.min(selection.head, trace.heads - 1);
    const [row, key] = await chosen(selection, trace, layer, head);
    const explained = await this.#explained(trace, { kind, layer, head, row }).catch((error) => {
      if (this.page.source.live) throw error;
      return error.message; // a file holds only some heads
    });
    if (this.page.stale(selection, trace)) return;
    refill(this.controls, ...placeControls(this.page, selection, trace), ...this.#pair(trace.of(kind), row, key));
    if (typeof explained === "string") return this.#say(explained);
    this.summary.replaceChildren(summary(explained.values, key));
    const shownNow = `${trace.id} ${kind} ${layer} ${head} ${row} ${key}`;
    if (shownNow === this.shown) return; // keep what was unfolded
    this.shown = shownNow;
    const off = selection.off.includes(`${kind}.${layer}.${head}`);
    this.steps.replaceChildren(
      h("h3", { dir: "auto" }, headName(kind, layer, head)),
      off ? h("p", { class: "notice" }, "This head is switched off: it still computes its weights, but its rows of W^O are zero, so nobody hears it.") : "",
      ...explained.sections.map((/** @type {Explanation["sections"][number]} */ section, /** @type {number} */ i) => step(section, i + 1, explained.values, key)));
    this.steps.dataset.cell = [kind, layer, head, row, key].join(".");
  }

  /** The mean of several heads has no arithmetic of its own. @param {Selection} selection @param {Trace} trace */
  #ask(selection, trace) {
    refill(this.controls, ...placeControls(this.page, selection, trace));
    this.#say("The mean of several heads has no products of its own. Choose a head.");
    this.steps.append(h("div", { class: "row-buttons" }, Array.from({ length: trace.heads }, (_, head) =>
      h("button", { type: "button", onclick: () => this.page.store.set({ head }) }, `Head ${head + 1}`))));
  }

  /** Say why there is nothing to show. @param {string} message */
  #say(message) {
    this.summary.textContent = message;
    this.shown = "";
    this.steps.replaceChildren();
  }

  /** @param {Trace} trace @param {{kind: Kind, layer: number, head: number, row: number}} place */
  #explained(trace, place) {
    const name = JSON.stringify([trace.id, place]);
    const known = this.known.get(name);
    if (known) return known;
    const asked = this.page.source.cell(trace.id, place);
    if (this.known.size > 40) this.known.clear();
    this.known.set(name, asked);
    asked.catch(() => this.known.delete(name)); // may be asked for again
    return asked;
  }

  /** Who looks, and at what. @param {[Side, Side]} sides @param {number} row @param {number} key */
  #pair([queries, keys], row, key) {
    const { store } = this.page;
    const named = (/** @type {Side} */ side) => side.pieces.map((piece, i) => [String(i), `${i + 1} ${piece}`]);
    const go = (/** @type {number} */ to, /** @type {string} */ text) =>
      h("button", { type: "button", disabled: to < 0 || to >= keys.pieces.length, onclick: () => store.set({ query: row, key: to }, { replace: true }) }, text);
    return [
      choice("Who looks", String(row), named(queries), (value) => store.set({ query: Number(value), key: null })),
      choice("at", String(key), named(keys), (value) => store.set({ query: row, key: Number(value) })),
      h("span", { class: "pager" }, go(key - 1, "← Previous"), go(key + 1, "Next →")),
      h("span", { class: "legend" }, rowsNamed(store.selection.kind)),
    ];
  }
}

/** The row and key to show: those chosen, or else the strongest between words. @param {Selection} selection @param {Trace} trace @param {number} layer @param {number} head */
async function chosen({ kind, query, key }, trace, layer, head) {
  const { rows, columns, values } = await trace.weights(kind, layer, head, false);
  const [queries, keys] = trace.of(kind);
  const row = query === null ? null : Math.min(query, rows.length - 1);
  if (row !== null && key !== null) return [row, Math.min(key, columns.length - 1)];
  let best = [row ?? 0, 0];
  let most = -1;
  values.forEach((weight, i) => {
    const [r, c] = [Math.floor(i / columns.length), i % columns.length];
    if (row !== null ? r !== row : queries.ids[r] < 2 || keys.ids[c] < 2) return; // 0 and 1 are start and end
    if (weight > most) [most, best] = [weight, [r, c]];
  });
  return best;
}

/** The whole weight in one line. @param {any} values @param {number} key */
function summary(values, key) {
  const [who, what] = [values.row_pieces[values.row - 1], values.column_pieces[key]];
  const name = (/** @type {string} */ piece) => h("b", { dir: "auto" }, piece);
  const root = values.divisor === 1 ? "1" : `√${values.q.length}`;
  const score = [h("b", { class: "letter of-q" }, "q"), "·", h("b", { class: "letter of-k" }, "k"), ` = ${shown(values.scores[key])} → ${shown(values.scores[key])} / ${root} = ${shown(values.scaled[key])}${values.bias ? ` → + distance ${shown(values.bias[key])} = ${shown(values.scaled[key] + values.bias[key])}` : ""}`];
  if (values.masked[key] === "-inf") {
    return h("span", null, name(who), " may not look at ", name(what), ": ", score, " → masked: −∞ → e^−∞ = 0 → weight ", h("strong", null, "0"));
  }
  const powers = values.masked.map((/** @type {number | string} */ each) => (each === "-inf" ? 0 : Math.exp(Number(each))));
  const sum = powers.reduce((/** @type {number} */ all, /** @type {number} */ each) => all + each, 0);
  return h("span", null, name(who), " looks at ", name(what), ": ", score,
    ` → e^${shown(values.masked[key])} / Σ = ${shown(powers[key])} / ${shown(sum)} = `, h("strong", null, shown(values.weights[key])));
}

/** @param {Explanation["sections"][number]} section @param {number} number @param {any} values @param {number} key */
function step(section, number, values, key) {
  const place = STEPS.find(([words]) => section.heading.startsWith(words))?.[1] ?? "other";
  const made = place === "score" ? { ...section, tables: [products(values, key)], notes: [] } : section;
  const content = [
    made.formula ? h("p", { class: "formula" }, made.formula) : "",
    ...made.tables.map((table) => (table.title.startsWith("Channel 1 of q") ? channel(values) : numbers(named(table), look(place, table, values, key)))),
    worked(place, values, key),
    ...made.notes.map(forPage).filter(Boolean).map((note) => h("p", { class: "remark", dir: "auto" }, note)),
  ];
  const heading = h("h3", null, h("span", { class: "number" }, number), section.heading);
  return place === "tokens"
    ? h("details", { class: "step" }, h("summary", null, heading), content)
    : h("section", { class: "step", "data-step": place }, heading, content);
}

/** Beginnings of headings, and which step they are. */
const STEPS = /** @type {const} */ ([
  ["Tokens", "tokens"], ["The vector", "x"], ["Query", "projections"], ["One score", "score"], ["All scores", "softmax"],
  ["The weighted", "values"], ["All heads", "joined"], ["Residual", "residual"], ["LayerNorm", "norm"],
]);

/** The explanation's column of masked scores, called what it is. @param {Table} table @returns {Table} */
function named(table) {
  return { ...table, columns: table.columns.map((name) => (name === "masked" ? "after the mask" : name)) };
}

/** How a table of a step is shown. @param {string} place @param {Table} table @param {any} values @param {number} key @returns {Look} */
function look(place, table, values, key) {
  const channels = table.columns.filter((name) => /^\d+$/.test(name)).length;
  const words = table.rows.length === values.column_pieces.length && ["tokens", "projections", "softmax", "values"].includes(place);
  /** @type {Look} */
  const found = { channels };
  if (words) Object.assign(found, { rows: strongest(values.weights, key), marked: key });
  if (place === "projections") found.letter = letterOf(table.title);
  if (place === "score") Object.assign(found, { sum: "product", letter: (/** @type {string} */ row) => (row.startsWith("q of") ? "q" : row.startsWith("k of") ? "k" : "") });
  if (place === "softmax") Object.assign(found, { bars: true, sumRows: true });
  if (place === "values") Object.assign(found, { sumRows: true, letter: (/** @type {string} */ row) => (row === "output z" ? "" : "v") });
  if (place === "joined" && table.title.startsWith("Channel 1")) found.sum = "product";
  else if (place === "joined") found.marked = values.head - 1;
  if (place === "joined" || place === "residual") found.letter = (row) => (row === "output" ? "o" : "");
  return found;
}

/** @param {string} title @returns {Look["letter"]} */
function letterOf(title) {
  const letter = /^[qkv] of/.test(title) ? /** @type {"q" | "k" | "v"} */ (title[0]) : "";
  return () => letter;
}

/** The places of the largest weights and of the key, in order. @param {number[]} weights @param {number} key */
function strongest(weights, key) {
  const places = weights.map((_, i) => i).sort((one, other) => weights[other] - weights[one]).slice(0, STRONGEST);
  return [...new Set([...places, key])].sort((one, other) => one - other);
}

/** A dot product written out. @param {string} title @param {string[]} names @param {number[]} left @param {number[]} right @param {Record<string, number>} after @returns {Table} */
function writtenOut(title, names, left, right, after) {
  const blank = Object.keys(after).map(() => "");
  return {
    title,
    rows: [...names, "product"],
    columns: [...left.map((_, i) => String(i + 1)), ...Object.keys(after)],
    cells: [[...left, ...blank], [...right, ...blank], [...left.map((value, i) => value * right[i]), ...Object.values(after)]],
    foot: [],
  };
}

/** The products of one pair. @param {any} values @param {number} key */
function products(values, key) {
  const names = [`q of ${values.row_pieces[values.row - 1]}`, `k of ${values.column_pieces[key]}`];
  return writtenOut("", names, values.q, values.k[key], { "sum = score": values.scores[key] });
}

/** One channel of q in full; the reader chooses which. @param {any} values */
function channel(values) {
  const host = h("div");
  const draw = (/** @type {number} */ c) => {
    const column = values.w_query.map((/** @type {number[]} */ row) => row[c]);
    const sum = values.x.reduce((/** @type {number} */ all, /** @type {number} */ x, /** @type {number} */ i) => all + x * column[i], 0);
    /** @type {Record<string, number>} */
    const bias = values.b_query ? { b: values.b_query[c] } : {};
    const table = writtenOut(`Channel ${c + 1} of q in full: x times column ${c + 1} of W^Q`, ["x", "W^Q"], values.x, column, { sum, ...bias, [`q ${c + 1}`]: values.q[c] });
    host.replaceChildren(numbers(table, { channels: values.x.length, sum: "product", letter: (row) => (row === "W^Q" ? "q" : "") }));
  };
  draw(0);
  const options = values.q.map((/** @type {number} */ _, /** @type {number} */ i) => [String(i), `Channel ${i + 1}`]);
  return h("div", { class: "channel" }, host, choice("Another channel of q", "0", options, (c) => draw(Number(c))),
    h("p", { class: "remark" }, "k and v are made in the same way, with W^K and W^V, from the x of each word that is looked at."));
}

/** The chosen key's line of a step, written out. @param {string} place @param {any} values @param {number} key */
function worked(place, values, key) {
  const line = (/** @type {string} */ text) => h("p", { class: "worked", dir: "auto" }, text);
  const [name, weight] = [values.column_pieces[key], values.weights[key]];
  if (place === "score") return line(`Divided by ${values.divisor === 1 ? "1" : `√${values.q.length}`}: ${shown(values.scores[key])} / ${shown(values.divisor)} = ${shown(values.scaled[key])}`);
  if (place === "values") return line(`For ${name}, channel 1: weight ${shown(weight)} × ${values.v_distance ? `(v ${shown(values.v[key][0])} + a ${shown(values.v_distance[key][0])})` : `v ${shown(values.v[key][0])}`} = ${shown(values.contributions[key][0])}`);
  if (place !== "softmax") return "";
  if (values.masked[key] === "-inf") return line(`For ${name}: masked, so its weight is exactly 0.`);
  const most = Math.max(...values.masked.filter((/** @type {number | string} */ each) => each !== "-inf"));
  const powers = values.masked.map((/** @type {number | string} */ each) => (each === "-inf" ? 0 : Math.exp(Number(each) - most)));
  const sum = powers.reduce((/** @type {number} */ all, /** @type {number} */ each) => all + each, 0);
  return line(`For ${name}: e^(${shown(values.masked[key])} − ${shown(most)}) = ${shown(powers[key])}; ${shown(powers[key])} / ${shown(sum)} = ${shown(weight)}`);
}

/** A note without what only the command line has. @param {string} note */
function forPage(note) {
  return note.split(/(?<=[.;]) /).filter((sentence) => !sentence.includes("--")).join(" ").replace(/;$/, ".");
}
