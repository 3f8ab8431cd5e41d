// Two translations of one sentence side by side: which words changed, and how likely each word has become.

import { h, shown } from "heedful/parts/dom.js";

/** A word of a translation, the step that writes its first piece, and its log-probability. @typedef {{word: string, step: number, logProbability: number}} Scored */

/**
 * The words of a translation; a word's log-probability is the sum of its pieces'. The end counts if it was written: a translation that was cut has none.
 * @param {any} manifest @param {boolean} [withEnd] @returns {Scored[]}
 */
export function scoredWords(manifest, withEnd = manifest.translation.complete) {
  const { blanks, sides: { written: { words, groups } } } = manifest;
  /** @type {Scored[]} */
  const found = words.map((/** @type {string} */ word) => ({ word, step: -1, logProbability: 0 }));
  groups.forEach((/** @type {number} */ group, /** @type {number} */ step) => {
    if (blanks && !blanks.includes(step)) return;
    if (found[group].step < 0) found[group].step = step;
    found[group].logProbability += manifest.steps[step].log_probability;
  });
  if (blanks) return found.filter(({ step }) => step >= 0); // of a text with blanks only these were decided
  return withEnd ? found : found.slice(0, -1);
}

/** What of a pass is needed to compare it: hundreds are kept, and a whole manifest is large. @param {any} manifest */
export function comparable({ sides, translation, model, blanks, steps, pieces }) {
  const few = steps.map((/** @type {any} */ { id, log_probability, rank, top }) => ({ id, log_probability, rank, top: top.slice(0, 1) }));
  const named = new Set(few.flatMap((/** @type {any} */ { id, top }) => [id, top[0].id]));
  return { sides, translation, model, blanks, steps: few, pieces: Object.fromEntries([...named].map((id) => [id, pieces[id]])) };
}

/** @param {Scored[]} scored */
export function total(scored) {
  return scored.reduce((sum, each) => sum + each.logProbability, 0);
}

/**
 * Which words of each list the other does not have at this place: all but the longest common subsequence.
 * @param {string[]} one @param {string[]} other @returns {[boolean[], boolean[]]}
 */
export function changedWords(one, other) {
  const common = Array.from({ length: one.length + 1 }, () => new Uint16Array(other.length + 1));
  for (let i = one.length - 1; i >= 0; i--) {
    for (let j = other.length - 1; j >= 0; j--) {
      common[i][j] = one[i] === other[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
    }
  }
  /** @type {[boolean[], boolean[]]} */
  const changed = [one.map(() => true), other.map(() => true)];
  for (let i = 0, j = 0; i < one.length && j < other.length; ) {
    if (one[i] === other[j]) [changed[0][i++], changed[1][j++]] = [false, false];
    else if (common[i + 1][j] >= common[i][j + 1]) i++;
    else j++;
  }
  return changed;
}

/** A translation with its changed words marked. @param {string} title @param {any} manifest @param {boolean[]} changed */
function marked(title, manifest, changed) {
  const { text } = manifest.translation;
  let end = 0;
  const parts = shownWords(manifest).map((word, i) => {
    const start = text.indexOf(word, end);
    const between = start < 0 ? " " : text.slice(end, start); // a word that is spelled otherwise in the text stands for itself
    if (start >= 0) end = start + word.length;
    return [between, changed[i] ? h("mark", null, word) : word];
  });
  return h("div", { class: "compared" }, h("h4", null, title), h("p", { dir: "auto" }, parts));
}

/** @param {any} manifest @returns {string[]} */
function shownWords(manifest) {
  return manifest.sides.written.words.slice(0, -1);
}

/** Two translations with the words marked that differ. @param {[string, any]} one @param {[string, any]} other */
export function sideBySide([title, manifest], [otherTitle, otherManifest]) {
  const [changed, otherChanged] = changedWords(shownWords(manifest), shownWords(otherManifest));
  return h("div", { class: "side-by-side" }, marked(title, manifest, changed), marked(otherTitle, otherManifest, otherChanged));
}

/**
 * How the log-probability of each word has changed, as signed bars and numbers that add up.
 * @param {Scored[]} before @param {Scored[]} after the same words @param {(scored: Scored) => string} address of a word
 */
export function changeTable(before, after, address) {
  const changes = before.map((each, i) => after[i].logProbability - each.logProbability);
  const most = Math.max(...changes.map(Math.abs), 1e-9);
  const numbers = (/** @type {number} */ one, /** @type {number} */ other) => [
    h("td", null, shown(one)), h("td", null, shown(other)), h("td", { class: "change" }, signed(other - one))];
  return h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Change of log-probability per word" },
    h("table", { class: "changes" },
      h("thead", null, h("tr", null, ["word", "original", "changed", "change", "less | more likely"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", null, before.map((each, i) => h("tr", null,
        h("th", { scope: "row", dir: "auto" }, h("a", { href: address(each) }, each.word)),
        numbers(each.logProbability, after[i].logProbability), h("td", null, bar(changes[i] / most))))),
      h("tfoot", null, h("tr", null, h("th", { scope: "row" }, "Sum"), numbers(total(before), total(after)), h("td")))));
}

/** A number with its sign. @param {number} value */
export function signed(value) {
  return value > 0 ? `+${shown(value)}` : shown(value);
}

/** @param {number} share from -1 to 1 */
function bar(share) {
  const side = share < 0 ? "right: 50%" : "left: 50%";
  return h("span", { class: "signed-bar", "aria-hidden": "true" },
    h("span", { class: share < 0 ? "minus" : "plus", style: `${side}; width: ${(Math.abs(share) * 50).toFixed(2)}%` }));
}
