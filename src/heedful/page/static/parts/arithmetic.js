// Tables of numbers that a person can check: sums printed, wide vectors folded, and what is folded away summed up.

import { h, shown } from "heedful/parts/dom.js";

/** A number, a word, or -inf as JSON has it. @typedef {number | string} Cell */
/** @typedef {{title: string, rows: string[], columns: string[], cells: Cell[][], foot: {row: string, cells: Cell[]}[]}} Table */
/** @typedef {"q" | "k" | "v" | "o" | ""} Letter */

/**
 * How a table is shown.
 * @typedef {object} Look
 * @property {number} [channels]  columns that are channels, from the left; they fold
 * @property {(row: string) => Letter} [letter]  what a row is, by colour and letter
 * @property {number[]} [rows]  rows that stay when there are many
 * @property {number} [marked]  the row that it is about
 * @property {string} [sum]  the row whose folded channels are summed up
 * @property {boolean} [sumRows]  folded rows are summed up, since the foot is the sum of all
 * @property {boolean} [bars]  a bar behind each number of the last column
 */

const FEW = 8;
const FEW_ROWS = 14;
/** Cells of a table that a page can hold beside the others. */
const MOST_CELLS = 1600;
const WHOLE = new Set(["id", "position"]);

/** @param {Table} table @param {Look} [look] @returns {HTMLElement} */
export function numbers(table, look = {}) {
  const host = h("div", { class: "numbers" });
  const state = { channels: false, rows: false };
  const draw = () => host.replaceChildren(...drawn(table, look, state, draw));
  draw();
  return host;
}

/** @param {Table} table @param {Look} look @param {{channels: boolean, rows: boolean}} state @param {() => void} again */
function drawn(table, look, state, again) {
  const channels = look.channels ?? 0;
  const wide = channels > FEW + 1;
  const long = look.rows !== undefined && table.rows.length > FEW_ROWS;
  const shownChannels = wide && !state.channels ? FEW : channels;
  const rows = long && !state.rows ? /** @type {number[]} */ (look.rows) : table.rows.map((_, i) => i);
  const large = table.rows.length * table.columns.length > MOST_CELLS;
  const turn = (/** @type {"channels" | "rows"} */ which) => () => {
    state[which] = !state[which];
    if (large && state[which]) state[which === "rows" ? "channels" : "rows"] = false;
    again();
  };
  const button = (/** @type {"channels" | "rows"} */ which, /** @type {string} */ all, /** @type {string} */ few) =>
    h("button", { type: "button", class: "small", "aria-expanded": String(state[which]), onclick: turn(which) }, state[which] ? few : all);
  return [
    table.title ? h("h4", { dir: "auto" }, table.title) : "",
    h("div", { class: "scroll", tabIndex: 0, role: "group", "aria-label": table.title || "Numbers" }, body(table, look, rows, shownChannels)),
    wide || long
      ? h("p", { class: "folds" },
          wide && button("channels", `Show all ${channels} channels`, `Show ${FEW} channels`),
          long && button("rows", `Show all ${table.rows.length} words`, "Show the strongest words"))
      : "",
  ];
}

/** @param {Table} table @param {Look} look @param {number[]} rows @param {number} channels how many are shown */
function body(table, look, rows, channels) {
  const all = look.channels ?? 0;
  const hidden = all - channels;
  const kept = [...Array(channels).keys()];
  const after = table.columns.map((_, j) => j).slice(all);
  const away = table.rows.map((_, i) => i).filter((i) => !rows.includes(i));
  const folded = (/** @type {Cell[]} */ cells, /** @type {string} */ name) =>
    hidden ? h("td", { class: "folded" }, name === look.sum ? text(total(cells.slice(channels, all)), "") : "…") : null;
  const line = (/** @type {string} */ name, /** @type {Cell[]} */ cells, /** @type {boolean} */ marked, /** @type {boolean} */ foot) => {
    const letter = look.letter?.(name) ?? "";
    const last = look.bars && !foot ? cells.length - 1 : -1;
    const cell = (/** @type {number} */ j) => h("td", { class: className(cells[j], j === last), style: j === last ? `--share: ${Number(cells[j])}` : null }, text(cells[j], table.columns[j]));
    return h("tr", { class: [foot ? "foot" : "", marked ? "marked" : "", letter && `of-${letter}`].filter(Boolean).join(" ") },
      h("th", { scope: "row", dir: "auto" }, letter ? h("b", { class: "letter" }, letter.toUpperCase()) : null, name.trim()),
      kept.map(cell), folded(cells, name), after.map(cell));
  };
  const summed = (/** @type {number} */ j) => typeof table.foot[0]?.cells[j] === "number";
  const rest = away.length && look.sumRows
    ? line(`${away.length} other words together`, table.columns.map((_, j) => (summed(j) ? total(away.map((i) => table.cells[i][j])) : "")), false, false)
    : null;
  const name = (/** @type {string} */ text) => h("th", { scope: "col" }, text);
  const head = [
    ...kept.map((j) => name(table.columns[j])),
    hidden ? name(`${channels + 1}–${all}${look.sum ? " together" : ""}`) : null,
    ...after.map((j) => name(table.columns[j])),
  ];
  return h("table", null,
    h("thead", null, h("tr", null, h("td"), head)),
    h("tbody", null, rows.map((i) => line(table.rows[i], table.cells[i], i === look.marked, false)), rest),
    table.foot.length ? h("tfoot", null, table.foot.map(({ row, cells }) => line(row, cells, false, true))) : null);
}

/** @param {Cell[]} cells */
function total(cells) {
  return cells.reduce((/** @type {number} */ sum, cell) => sum + Number(cell), 0);
}

/** @param {Cell} cell @param {boolean} bar */
function className(cell, bar) {
  return [typeof cell === "string" && cell !== "-inf" ? "words" : "", cell === "-inf" ? "is-masked" : "", bar ? "bar" : ""].filter(Boolean).join(" ");
}

/** @param {Cell} cell @param {string} column */
export function text(cell, column) {
  if (cell === "-inf") return "masked";
  return typeof cell === "number" && !WHOLE.has(column) ? shown(cell) : String(cell);
}
