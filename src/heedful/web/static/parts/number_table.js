// Tables of numbers that readers can check: sums are printed, wide vectors are collapsed, and hidden parts are summed.

import { formatNumber, h } from "heedful/parts/dom.js";

/** A number, a word, or "-inf" (JSON has no infinity). @typedef {number | string} Cell */
/** @typedef {{title: string, rows: string[], columns: string[], cells: Cell[][], footer: {row: string, cells: Cell[]}[]}} Table */
/** @typedef {"q" | "k" | "v" | "o" | ""} Letter */

/**
 * How a table is displayed.
 * @typedef {object} TableOptions
 * @property {number} [channels]  the number of channel columns, from the left; they collapse
 * @property {(row: string) => Letter} [letter]  the role of a row, shown by color and letter
 * @property {number[]} [rows]  rows that stay visible when there are many
 * @property {number} [marked]  the highlighted row
 * @property {string} [sum]  the row whose hidden channels are summed
 * @property {boolean} [sumRows]  sum the hidden rows, since the footer is the sum of all
 * @property {boolean} [bars]  a bar behind each number of the last column
 */

const SHORT_CHANNELS = 8;
const LONG_ROWS = 14;
/** Cells of a table that fit on a page with others. */
const MAX_CELLS = 1600;
const INTEGER_COLUMNS = new Set(["id", "position"]);

/** @param {Table} table @param {TableOptions} [options] @returns {HTMLElement} */
export function createNumberTable(table, options = {}) {
  const host = h("div", { class: "numbers" });
  const expanded = { channels: false, rows: false };
  const draw = () => host.replaceChildren(...renderTable(table, options, expanded, draw));
  draw();
  return host;
}

/** @param {Table} table @param {TableOptions} options @param {{channels: boolean, rows: boolean}} expanded @param {() => void} redraw */
function renderTable(table, options, expanded, redraw) {
  const channels = options.channels ?? 0;
  const isWide = channels > SHORT_CHANNELS + 1;
  const isLong = options.rows !== undefined && table.rows.length > LONG_ROWS;
  const shownChannels = isWide && !expanded.channels ? SHORT_CHANNELS : channels;
  const rows = isLong && !expanded.rows ? /** @type {number[]} */ (options.rows) : table.rows.map((_, i) => i);
  const isLarge = table.rows.length * table.columns.length > MAX_CELLS;
  const toggle = (/** @type {"channels" | "rows"} */ axis) => () => {
    expanded[axis] = !expanded[axis];
    if (isLarge && expanded[axis]) expanded[axis === "rows" ? "channels" : "rows"] = false;
    redraw();
  };
  const createButton = (/** @type {"channels" | "rows"} */ axis, /** @type {string} */ expandLabel, /** @type {string} */ collapseLabel) =>
    h("button", { type: "button", class: "small", "aria-expanded": String(expanded[axis]), onclick: toggle(axis) }, expanded[axis] ? collapseLabel : expandLabel);
  return [
    table.title ? h("h4", { dir: "auto" }, table.title) : "",
    h("div", { class: "scroll", tabIndex: 0, role: "group", "aria-label": table.title || "Numbers" }, createTable(table, options, rows, shownChannels)),
    isWide || isLong
      ? h("p", { class: "expand-buttons" },
          isWide && createButton("channels", `Show all ${channels} channels`, `Show ${SHORT_CHANNELS} channels`),
          isLong && createButton("rows", `Show all ${table.rows.length} words`, "Show the strongest words"))
      : "",
  ];
}

/** @param {Table} table @param {TableOptions} options @param {number[]} rows @param {number} channels shown */
function createTable(table, options, rows, channels) {
  const channelCount = options.channels ?? 0;
  const hiddenChannels = channelCount - channels;
  const shownChannels = [...Array(channels).keys()];
  const otherColumns = table.columns.map((_, j) => j).slice(channelCount);
  const hiddenRows = table.rows.map((_, i) => i).filter((i) => !rows.includes(i));
  const createHiddenCell = (/** @type {Cell[]} */ cells, /** @type {string} */ name) =>
    hiddenChannels ? h("td", { class: "collapsed" }, name === options.sum ? formatCell(sumCells(cells.slice(channels, channelCount)), "") : "…") : null;
  const createRow = (/** @type {string} */ name, /** @type {Cell[]} */ cells, /** @type {boolean} */ isMarked, /** @type {boolean} */ isFooter) => {
    const letter = options.letter?.(name) ?? "";
    const last = options.bars && !isFooter ? cells.length - 1 : -1;
    const createCell = (/** @type {number} */ j) => h("td", { class: getCellClass(cells[j], j === last), style: j === last ? `--share: ${Number(cells[j])}` : null }, formatCell(cells[j], table.columns[j]));
    return h("tr", { class: [isFooter ? "foot" : "", isMarked ? "marked" : "", letter && `role-${letter}`].filter(Boolean).join(" ") },
      h("th", { scope: "row", dir: "auto" }, letter ? h("b", { class: "letter" }, letter.toUpperCase()) : null, name.trim()),
      shownChannels.map(createCell), createHiddenCell(cells, name), otherColumns.map(createCell));
  };
  const isSummed = (/** @type {number} */ j) => typeof table.footer[0]?.cells[j] === "number";
  const restRow = hiddenRows.length && options.sumRows
    ? createRow(`${hiddenRows.length} other words in total`, table.columns.map((_, j) => (isSummed(j) ? sumCells(hiddenRows.map((i) => table.cells[i][j])) : "")), false, false)
    : null;
  const createHeader = (/** @type {string} */ text) => h("th", { scope: "col" }, text);
  const header = [
    ...shownChannels.map((j) => createHeader(table.columns[j])),
    hiddenChannels ? createHeader(`${channels + 1}–${channelCount}${options.sum ? " together" : ""}`) : null,
    ...otherColumns.map((j) => createHeader(table.columns[j])),
  ];
  return h("table", null,
    h("thead", null, h("tr", null, h("td"), header)),
    h("tbody", null, rows.map((i) => createRow(table.rows[i], table.cells[i], i === options.marked, false)), restRow),
    table.footer.length ? h("tfoot", null, table.footer.map(({ row, cells }) => createRow(row, cells, false, true))) : null);
}

/** @param {Cell[]} cells */
function sumCells(cells) {
  return cells.reduce((/** @type {number} */ sum, cell) => sum + Number(cell), 0);
}

/** @param {Cell} cell @param {boolean} bar */
function getCellClass(cell, bar) {
  return [typeof cell === "string" && cell !== "-inf" ? "words" : "", cell === "-inf" ? "masked" : "", bar ? "bar" : ""].filter(Boolean).join(" ");
}

/** @param {Cell} cell @param {string} column */
export function formatCell(cell, column) {
  if (cell === "-inf") return "masked";
  return typeof cell === "number" && !INTEGER_COLUMNS.has(column) ? formatNumber(cell) : String(cell);
}
