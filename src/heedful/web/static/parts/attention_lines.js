// The line view: words on the left attend to words on the right; line strength shows the weight.

import { formatNumber, h, isolateDirection, svg, updateChildren } from "heedful/parts/dom.js";

/** @typedef {import("heedful/parts/heatmap.js").MatrixFigure} MatrixFigure */
/** One head among several. @typedef {{name: string, values: Float32Array}} Panel */
/**
 * @typedef {object} LineData
 * @property {MatrixFigure} figure  row and column names, and the mask
 * @property {Panel[]} panels  heads side by side
 * @property {number[]} rows  selected words; empty for all
 * @property {(rows: number[]) => void} chooseRows
 * @property {HTMLElement} above  the buttons that choose the heads
 */

const WIDTH = 420;
/** Lines drawn at most, over all panels: the strongest. */
const MAX_LINES = 300;
/** Weights below this fraction of the strongest are not drawn. */
const MIN_RELATIVE_WEIGHT = 0.04;
/** From this many words on, lines are denser and words are chosen from a list. */
const MANY_WORDS = 80;
/** Words over all panels that a page can hold. */
const MAX_WORDS = 1600;
const MAX_CHARACTERS = 18;

export class AttentionLines {
  /** @param {HTMLElement} host */
  constructor(host) {
    this.host = host;
  }

  /** @param {LineData} lines */
  draw({ figure, panels, rows, chooseRows, above }) {
    const { rows: names, columns } = figure;
    const panelCount = Math.max(1, Math.floor(MAX_WORDS / (names.length + columns.length)));
    const visiblePanels = panels.slice(0, panelCount);
    const description = rows.length ? `Lines of ${rows.map((row) => `“${names[row]}”`).join(", ")}.` : "Strongest lines of all words; choose words to see only theirs.";
    updateChildren(this.host,
      above,
      h("p", { class: "legend", dir: "auto" }, description, visiblePanels.length < panels.length ? ` The sentence is long: ${visiblePanels.length} of ${panels.length} heads shown.` : ""),
      h("div", { class: visiblePanels.length > 1 ? "panels multiple" : "panels" }, visiblePanels.map((panel) => this.#createPanel(panel, figure, rows, Math.floor(MAX_LINES / visiblePanels.length)))),
      this.#createWordButtons(names, rows, chooseRows));
  }

  /** @param {Panel} panel @param {MatrixFigure} figure @param {number[]} selectedRows @param {number} maxLines */
  #createPanel({ name, values }, { title, rows, columns, isMasked }, selectedRows, maxLines) {
    const many = Math.max(rows.length, columns.length) > MANY_WORDS;
    const lineHeight = many ? 15 : 26;
    const getY = (/** @type {number} */ i) => i * lineHeight + lineHeight / 2 + 5;
    const strongest = findStrongestWeights(values, rows.length, columns.length, selectedRows, isMasked, maxLines);
    const createWord = (/** @type {string} */ text, /** @type {number} */ i, /** @type {boolean} */ left) =>
      svg("text", { x: WIDTH * (left ? 0.34 : 0.66), y: getY(i), "text-anchor": left ? "end" : "start", "dominant-baseline": "central", class: left && selectedRows.includes(i) ? "chosen" : null }, truncate(text));
    const label = `${name} (${title}): lines from queries (left) to keys (right). Strongest: ${describeStrongest(strongest, rows, columns)}`;
    const height = Math.max(rows.length, columns.length) * lineHeight + 10;
    return h("figure", { class: "panel" },
      h("figcaption", null, name),
      svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, class: many ? "lines dense" : "lines", role: "img", "aria-label": label },
        strongest.map(([i, j, weight]) =>
          svg("line", {
            x1: WIDTH * 0.36, x2: WIDTH * 0.64, y1: getY(i), y2: getY(j), class: "attention-line",
            "stroke-opacity": Math.max(0.1, Math.sqrt(weight)).toFixed(3), "stroke-width": 1 + 4 * weight,
          },
            svg("title", null, `${isolateDirection(rows[i])} attends to ${isolateDirection(columns[j])}: ${formatNumber(weight)}`))),
        rows.map((text, i) => createWord(text, i, true)), columns.map((text, i) => createWord(text, i, false))));
  }

  /** Buttons to select any number of words. @param {string[]} names @param {number[]} rows @param {(rows: number[]) => void} choose */
  #createWordButtons(names, rows, choose) {
    const toggleRow = (/** @type {number} */ row) => (rows.includes(row) ? rows.filter((selected) => selected !== row) : [...rows, row]);
    const createButton = (/** @type {number} */ row) => h("button", { type: "button", dir: "auto", "data-name": `word ${row}`, "aria-pressed": String(rows.includes(row)), onclick: () => choose(toggleRow(row)) }, names[row]);
    const allButton = rows.length ? h("button", { type: "button", onclick: () => choose([]) }, "All words") : null;
    const isShort = names.length <= MANY_WORDS;
    const wordSelect = h("label", { class: "select-field" }, h("span", null, "Add a word"),
      h("select", { "aria-label": "Add a word", onchange: (/** @type {any} */ event) => choose(toggleRow(Number(event.target.value))) },
        h("option", { value: "", disabled: true, selected: true }, "Choose"), names.map((name, i) => h("option", { value: String(i) }, `${i + 1} ${name}`))));
    return h("div", { class: "row-buttons", role: "group", "aria-label": "Query words" }, isShort ? names.map((_, row) => createButton(row)) : [wordSelect, rows.map(createButton)], allButton);
  }
}

/** @param {[number, number, number][]} strongest @param {string[]} rows @param {string[]} columns */
function describeStrongest(strongest, rows, columns) {
  return strongest.slice(-3).reverse().map(([i, j, weight]) => `${isolateDirection(rows[i])} attends to ${isolateDirection(columns[j])}, ${formatNumber(weight, 2)}`).join("; ");
}

/** @param {string} word */
function truncate(word) {
  const characters = Array.from(word);
  return characters.length > MAX_CHARACTERS ? `${characters.slice(0, MAX_CHARACTERS - 1).join("")}…` : word;
}

/**
 * The strongest weights as [row, column, weight]; the strongest is last, so it is drawn on top.
 * @param {ArrayLike<number>} values @param {number} rows @param {number} columns @param {number[]} selectedRows rows; empty for all
 * @param {((row: number, column: number) => boolean) | undefined} isMasked @param {number} [maxCount] @returns {[number, number, number][]}
 */
export function findStrongestWeights(values, rows, columns, selectedRows, isMasked, maxCount = MAX_LINES) {
  /** @type {[number, number, number][]} */
  const entries = [];
  for (let i = 0; i < rows; i++) {
    if (selectedRows.length && !selectedRows.includes(i)) continue;
    for (let j = 0; j < columns; j++) if (!isMasked?.(i, j)) entries.push([i, j, values[i * columns + j]]);
  }
  entries.sort((a, b) => b[2] - a[2]);
  const minWeight = (entries[0]?.[2] ?? 0) * MIN_RELATIVE_WEIGHT;
  return entries.slice(0, maxCount).filter(([, , weight]) => weight >= minWeight).reverse();
}
