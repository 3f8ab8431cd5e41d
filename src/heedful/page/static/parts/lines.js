// The line view: words on the left look at words on the right; a line is as strong as the weight.

import { h, isolated, shown, svg } from "heedful/parts/dom.js";
import { refill } from "heedful/parts/refill.js";

/** @typedef {import("heedful/parts/matrix.js").MatrixFigure} MatrixFigure */
/** A head among others. @typedef {{name: string, values: Float32Array}} Panel */
/**
 * @typedef {object} LineFigure
 * @property {MatrixFigure} figure  names of rows and columns, and what is masked
 * @property {Panel[]} panels  heads side by side
 * @property {number[]} rows  words whose lines are shown; none are all
 * @property {(rows: number[]) => void} chooseRows
 * @property {HTMLElement} above  which heads stand side by side
 */

const WIDTH = 420;
/** Lines that are drawn at most, in all panels: the strongest. */
const MOST = 300;
/** Weights below this share of the strongest are not drawn. */
const LEAST = 0.04;
/** Words from which lines stand closer, and words are chosen from a list. */
const MANY = 80;
/** Words of all panels together that a page can hold. */
const MOST_WORDS = 1600;
const LONGEST_WORD = 18;

export class Lines {
  /** @param {HTMLElement} host */
  constructor(host) {
    this.host = host;
  }

  /** @param {LineFigure} lines */
  draw({ figure, panels, rows, chooseRows, above }) {
    const { rows: names, columns } = figure;
    const room = Math.max(1, Math.floor(MOST_WORDS / (names.length + columns.length)));
    const drawn = panels.slice(0, room);
    const what = rows.length ? `Lines of ${rows.map((row) => `“${names[row]}”`).join(", ")}.` : "Lines of all words, the strongest; choose words to see only theirs.";
    refill(this.host,
      above,
      h("p", { class: "legend", dir: "auto" }, what, drawn.length < panels.length ? ` The sentence is long: ${drawn.length} of ${panels.length} heads are drawn.` : ""),
      h("div", { class: drawn.length > 1 ? "panels several" : "panels" }, drawn.map((panel) => this.#panel(panel, figure, rows, Math.floor(MOST / drawn.length)))),
      this.#words(names, rows, chooseRows));
  }

  /** @param {Panel} panel @param {MatrixFigure} figure @param {number[]} chosen @param {number} most */
  #panel({ name, values }, { title, rows, columns, masked }, chosen, most) {
    const many = Math.max(rows.length, columns.length) > MANY;
    const line = many ? 15 : 26;
    const place = (/** @type {number} */ i) => i * line + line / 2 + 5;
    const found = strongest(values, rows.length, columns.length, chosen, masked, most);
    const word = (/** @type {string} */ text, /** @type {number} */ i, /** @type {boolean} */ left) =>
      svg("text", { x: WIDTH * (left ? 0.34 : 0.66), y: place(i), "text-anchor": left ? "end" : "start", "dominant-baseline": "central", class: left && chosen.includes(i) ? "chosen" : null }, short(text));
    const spoken = `${name} (${title}): lines from the words that look, left, to those looked at, right. Strongest: ${told(found, rows, columns)}`;
    const height = Math.max(rows.length, columns.length) * line + 10;
    return h("figure", { class: "panel" },
      h("figcaption", null, name),
      svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, class: many ? "lines many" : "lines", role: "img", "aria-label": spoken },
        found.map(([i, j, weight]) =>
          svg("line", {
            x1: WIDTH * 0.36, x2: WIDTH * 0.64, y1: place(i), y2: place(j), class: "look",
            "stroke-opacity": Math.max(0.1, Math.sqrt(weight)).toFixed(3), "stroke-width": 1 + 4 * weight,
          },
            svg("title", null, `${isolated(rows[i])} looks at ${isolated(columns[j])}: ${shown(weight)}`))),
        rows.map((text, i) => word(text, i, true)), columns.map((text, i) => word(text, i, false))));
  }

  /** Words to choose, any number of them. @param {string[]} names @param {number[]} rows @param {(rows: number[]) => void} choose */
  #words(names, rows, choose) {
    const turned = (/** @type {number} */ row) => (rows.includes(row) ? rows.filter((each) => each !== row) : [...rows, row]);
    const button = (/** @type {number} */ row) => h("button", { type: "button", dir: "auto", "data-name": `word ${row}`, "aria-pressed": String(rows.includes(row)), onclick: () => choose(turned(row)) }, names[row]);
    const all = rows.length ? h("button", { type: "button", onclick: () => choose([]) }, "All words") : null;
    const few = names.length <= MANY;
    const list = h("label", { class: "choice" }, h("span", null, "Add a word"),
      h("select", { "aria-label": "Add a word", onchange: (/** @type {any} */ event) => choose(turned(Number(event.target.value))) },
        h("option", { value: "", disabled: true, selected: true }, "Choose"), names.map((name, i) => h("option", { value: String(i) }, `${i + 1} ${name}`))));
    return h("div", { class: "row-buttons", role: "group", "aria-label": "Words that look" }, few ? names.map((_, row) => button(row)) : [list, rows.map(button)], all);
  }
}

/** @param {[number, number, number][]} found @param {string[]} rows @param {string[]} columns */
function told(found, rows, columns) {
  return found.slice(-3).reverse().map(([i, j, weight]) => `${isolated(rows[i])} looks at ${isolated(columns[j])}, ${shown(weight, 2)}`).join("; ");
}

/** @param {string} word */
function short(word) {
  const letters = Array.from(word);
  return letters.length > LONGEST_WORD ? `${letters.slice(0, LONGEST_WORD - 1).join("")}…` : word;
}

/**
 * The strongest weights, as [row, column, weight]; the strongest last, so that it is drawn on top.
 * @param {ArrayLike<number>} values @param {number} rows @param {number} columns @param {number[]} only rows; none are all
 * @param {((row: number, column: number) => boolean) | undefined} masked @param {number} [most] @returns {[number, number, number][]}
 */
export function strongest(values, rows, columns, only, masked, most = MOST) {
  /** @type {[number, number, number][]} */
  const found = [];
  for (let i = 0; i < rows; i++) {
    if (only.length && !only.includes(i)) continue;
    for (let j = 0; j < columns; j++) if (!masked?.(i, j)) found.push([i, j, values[i * columns + j]]);
  }
  found.sort((one, other) => other[2] - one[2]);
  const least = (found[0]?.[2] ?? 0) * LEAST;
  return found.slice(0, most).filter(([, , weight]) => weight >= least).reverse();
}
