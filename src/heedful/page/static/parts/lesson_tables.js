// Tables and choices of the lesson. What is printed can be checked with a calculator: what is computed here is computed from printed numbers.

import { h, shown } from "heedful/parts/dom.js";

/** A line of a table: its name and its cells. @typedef {[string, ...(string | number)[]]} Line */

/** Channels of a vector that are shown. */
export const CHANNELS = 6;

/** A number as it is printed. @param {number} value @param {number} [digits] */
export function rounded(value, digits = 4) {
  return Number(value.toFixed(digits));
}

/** @param {number[]} values */
export function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

/** What is missing to a total, so that the printed numbers add up to it. @param {number} total @param {number[]} printed @param {number} [digits] */
export function rest(total, printed, digits = 4) {
  return rounded(rounded(total, digits) - sum(printed.map((value) => rounded(value, digits))), digits);
}

/** The line of all that is not listed; if all is, that of rounding, if there is any. @param {number} others how many @param {number} missing @param {(missing: number) => (string | number)[]} cells @returns {Line[]} */
export function restLine(others, missing, cells) {
  if (others) return [[others === 1 ? "1 other" : `${others} others`, ...cells(missing)]];
  return missing === 0 ? [] : [["rounding", ...cells(missing)]];
}

/** The name of a piece with its number, if another one is spelled the same. @param {string[]} pieces @param {number} place */
export function named(pieces, place) {
  return pieces.indexOf(pieces[place]) === pieces.lastIndexOf(pieces[place]) ? pieces[place] : `${pieces[place]} (${place + 1})`;
}

/** The place of the largest number. @param {ArrayLike<number>} values */
export function largest(values) {
  return Array.from(values).reduce((best, value, i, all) => (value > all[best] ? i : best), 0);
}

/** Places of the largest numbers, the largest first. @param {ArrayLike<number>} values @param {number} count */
export function strongest(values, count) {
  return Array.from(values, (value, i) => /** @type {[number, number]} */ ([value, i])).sort((one, other) => other[0] - one[0]).slice(0, count).map(([, i]) => i);
}

/** In the order of the sentence, which gives nothing away. @param {number[]} places */
export function inOrder(places) {
  return [...places].sort((one, other) => one - other);
}

/** Which piece has the largest number: it and its closest rivals, in the order of the sentence. @param {string[]} pieces @param {ArrayLike<number>} values @returns {{choices: string[], answer: string}} */
export function whichPiece(pieces, values) {
  return { choices: inOrder(strongest(values, 4)).map((place) => named(pieces, place)), answer: named(pieces, largest(values)) };
}

/**
 * Wrong answers for a number: of the smaller and the larger ones as many as the turn says, so that the right one is not always in the middle.
 * @param {[number, number]} below @param {[number, number]} above @param {number} turn
 */
export function around(below, above, turn) {
  const smaller = turn % 3;
  return [...below.slice(0, smaller), ...above.slice(0, 2 - smaller)];
}

/** Different answers, in order of size. @param {number} answer @param {number[]} others @param {(value: number) => string} format */
export function whichNumber(answer, others, format) {
  const values = [answer, ...others].sort((one, other) => one - other);
  return { choices: [...new Set(values.map((value) => format(value)))], answer: format(answer) };
}

/** How long a vector is. @param {number[]} vector */
export function norm(vector) {
  return Math.hypot(...vector);
}

/** A small table. @param {string[]} columns @param {Line[]} rows @param {Line[]} [foot] */
export function table(columns, rows, foot = []) {
  const line = (/** @type {Line} */ [name, ...cells]) => h("tr", null, h("th", { scope: "row", dir: "auto" }, name), cells.map((cell) => h("td", { dir: "auto" }, typeof cell === "number" ? shown(cell) : cell)));
  return h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Numbers of this sentence" }, h("table", null,
    h("thead", null, h("tr", null, columns.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", null, rows.map(line)), foot.length ? h("tfoot", null, foot.map(line)) : null));
}

/**
 * Vectors with few of their channels; ``added`` is the name of the sum of those above it, of the printed numbers.
 * @param {string} name @param {[string, number[]][]} vectors @param {{added?: string, after?: [string, number[]][]}} [more]
 */
export function channels(name, vectors, { added, after = [] } = {}) {
  const all = vectors[0][1].length;
  const few = Math.min(CHANNELS, all);
  const line = (/** @type {[string, number[]]} */ [label, values]) => /** @type {Line} */ ([label, ...values.slice(0, few)]);
  const total = (/** @type {number} */ c) => sum(vectors.map(([, values]) => rounded(values[c])));
  const sums = added ? [/** @type {Line} */ ([added, ...Array.from({ length: few }, (_, c) => total(c))])] : [];
  return h("div", null,
    table([name, ...Array.from({ length: few }, (_, c) => `channel ${c + 1}`)], [...vectors.map(line), ...sums, ...after.map(line)]),
    all > few || added ? h("p", { class: "legend" }, [all > few ? `and ${all - few} more channels, which the view shows.` : "", added ? "Rounded to four digits, then added." : ""].filter(Boolean).join(" ")) : null);
}

/** Something with a remark below it. @param {Node} node @param {string} remark */
export function remarked(node, remark) {
  return h("div", null, node, h("p", { class: "legend", dir: "auto" }, remark));
}
