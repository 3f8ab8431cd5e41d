// Tables and choices of the lesson. Readers can check them with a calculator: results are computed from the printed numbers.

import { formatNumber, h } from "heedful/parts/dom.js";

/** A table row: its name and its cells. @typedef {[string, ...(string | number)[]]} Row */

/** Channels shown of a vector. */
export const MAX_CHANNELS = 6;

/** A number as printed. @param {number} value @param {number} [digits] */
export function round(value, digits = 4) {
  return Number(value.toFixed(digits));
}

/** @param {number[]} values */
export function sumNumbers(values) {
  return values.reduce((total, value) => total + value, 0);
}

/** The remainder of a total, so that the printed numbers add up to it. @param {number} total @param {number[]} printed @param {number} [digits] */
export function getRemainder(total, printed, digits = 4) {
  return round(round(total, digits) - sumNumbers(printed.map((value) => round(value, digits))), digits);
}

/** The row of all unlisted entries; if all are listed, the rounding difference, if any. @param {number} others unlisted entries @param {number} missing @param {(missing: number) => (string | number)[]} cells @returns {Row[]} */
export function createRemainderRow(others, missing, cells) {
  if (others) return [[others === 1 ? "1 other" : `${others} others`, ...cells(missing)]];
  return missing === 0 ? [] : [["rounding", ...cells(missing)]];
}

/** The text of a token, numbered if it is not unique. @param {string[]} subwords @param {number} index */
export function getUniqueName(subwords, index) {
  return subwords.indexOf(subwords[index]) === subwords.lastIndexOf(subwords[index]) ? subwords[index] : `${subwords[index]} (${index + 1})`;
}

/** The index of the largest value. @param {ArrayLike<number>} values */
export function argmax(values) {
  return Array.from(values).reduce((best, value, i, array) => (value > array[best] ? i : best), 0);
}

/** The indices of the largest values, largest first. @param {ArrayLike<number>} values @param {number} count */
export function rankIndices(values, count) {
  return Array.from(values, (value, i) => /** @type {[number, number]} */ ([value, i])).sort((a, b) => b[0] - a[0]).slice(0, count).map(([, i]) => i);
}

/** In sentence order, which does not reveal the answer. @param {number[]} indices */
export function sortIndices(indices) {
  return [...indices].sort((a, b) => a - b);
}

/** Which token has the largest value: it and its closest competitors, in sentence order. @param {string[]} subwords @param {ArrayLike<number>} values @returns {{choices: string[], answer: string}} */
export function askWhichToken(subwords, values) {
  return { choices: sortIndices(rankIndices(values, 4)).map((index) => getUniqueName(subwords, index)), answer: getUniqueName(subwords, argmax(values)) };
}

/**
 * Wrong answers for a number: the seed decides how many are smaller, so that the right one is not always in the middle.
 * @param {[number, number]} below @param {[number, number]} above @param {number} seed
 */
export function pickWrongAnswers(below, above, seed) {
  const belowCount = seed % 3;
  return [...below.slice(0, belowCount), ...above.slice(0, 2 - belowCount)];
}

/** Distinct answers, in ascending order. @param {number} answer @param {number[]} others @param {(value: number) => string} format */
export function askWhichNumber(answer, others, format) {
  const values = [answer, ...others].sort((a, b) => a - b);
  return { choices: [...new Set(values.map((value) => format(value)))], answer: format(answer) };
}

/** A small table. @param {string[]} columns @param {Row[]} rows @param {Row[]} [foot] */
export function createTable(columns, rows, foot = []) {
  const createRow = (/** @type {Row} */ [name, ...cells]) => h("tr", null, h("th", { scope: "row", dir: "auto" }, name), cells.map((cell) => h("td", { dir: "auto" }, typeof cell === "number" ? formatNumber(cell) : cell)));
  return h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Numbers of this sentence" }, h("table", null,
    h("thead", null, h("tr", null, columns.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", null, rows.map(createRow)), foot.length ? h("tfoot", null, foot.map(createRow)) : null));
}

/**
 * The first channels of some vectors; ``added`` names the row of their sum, computed from the printed numbers.
 * @param {string} name @param {[string, number[]][]} vectors @param {{added?: string, after?: [string, number[]][]}} [more]
 */
export function createChannelTable(name, vectors, { added, after = [] } = {}) {
  const channelCount = vectors[0][1].length;
  const shownCount = Math.min(MAX_CHANNELS, channelCount);
  const createRow = (/** @type {[string, number[]]} */ [label, values]) => /** @type {Row} */ ([label, ...values.slice(0, shownCount)]);
  const sumChannel = (/** @type {number} */ c) => sumNumbers(vectors.map(([, values]) => round(values[c])));
  const sums = added ? [/** @type {Row} */ ([added, ...Array.from({ length: shownCount }, (_, c) => sumChannel(c))])] : [];
  return h("div", null,
    createTable([name, ...Array.from({ length: shownCount }, (_, c) => `channel ${c + 1}`)], [...vectors.map(createRow), ...sums, ...after.map(createRow)]),
    channelCount > shownCount || added ? h("p", { class: "legend" }, [channelCount > shownCount ? `and ${channelCount - shownCount} more channels; the view shows them.` : "", added ? "Rounded to four digits, then added." : ""].filter(Boolean).join(" ")) : null);
}

/** A node with a note below it. @param {Node} node @param {string} note */
export function addNote(node, note) {
  return h("div", null, node, h("p", { class: "legend", dir: "auto" }, note));
}
