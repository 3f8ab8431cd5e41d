// Two translations of one sentence side by side: which words changed, and how the probability of each word changed.

import { formatNumber, h } from "heedful/parts/dom.js";

/** A word of a translation, the step that writes its first token, and its log-probability. @typedef {{word: string, step: number, logProbability: number}} ScoredWord */

/**
 * The words of a translation; a word's log-probability is the sum over its tokens. The end counts if it was written: a truncated translation has none.
 * @param {any} manifest @param {boolean} [withEnd] @returns {ScoredWord[]}
 */
export function scoreWords(manifest, withEnd = manifest.translation.complete) {
  const { blank_positions: blanks, sides: { target: { words, word_ids: wordIds } } } = manifest;
  /** @type {ScoredWord[]} */
  const scoredWords = words.map((/** @type {string} */ word) => ({ word, step: -1, logProbability: 0 }));
  wordIds.forEach((/** @type {number} */ wordId, /** @type {number} */ step) => {
    if (blanks && !blanks.includes(step)) return;
    if (scoredWords[wordId].step < 0) scoredWords[wordId].step = step;
    scoredWords[wordId].logProbability += manifest.steps[step].log_probability;
  });
  if (blanks) return scoredWords.filter(({ step }) => step >= 0); // in a masked text, only the blanks were predicted
  return withEnd ? scoredWords : scoredWords.slice(0, -1);
}

/** The parts of a manifest that comparisons need: hundreds are cached, and a full manifest is large. @param {any} manifest */
export function summarizeTrace({ sides, translation, model, blank_positions, steps, subwords }) {
  const shortSteps = steps.map((/** @type {any} */ { id, log_probability, rank, top }) => ({ id, log_probability, rank, top: top.slice(0, 1) }));
  const ids = new Set(shortSteps.flatMap((/** @type {any} */ { id, top }) => [id, top[0].id]));
  return { sides, translation, model, blank_positions, steps: shortSteps, subwords: Object.fromEntries([...ids].map((id) => [id, subwords[id]])) };
}

/** @param {ScoredWord[]} scored */
export function sumScores(scored) {
  return scored.reduce((sum, word) => sum + word.logProbability, 0);
}

/**
 * Words that the other list does not have at this position: all but the longest common subsequence.
 * @param {string[]} left @param {string[]} right @returns {[boolean[], boolean[]]}
 */
export function findChangedWords(left, right) {
  const common = Array.from({ length: left.length + 1 }, () => new Uint16Array(right.length + 1));
  for (let i = left.length - 1; i >= 0; i--) {
    for (let j = right.length - 1; j >= 0; j--) {
      common[i][j] = left[i] === right[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
    }
  }
  /** @type {[boolean[], boolean[]]} */
  const changed = [left.map(() => true), right.map(() => true)];
  for (let i = 0, j = 0; i < left.length && j < right.length; ) {
    if (left[i] === right[j]) [changed[0][i++], changed[1][j++]] = [false, false];
    else if (common[i + 1][j] >= common[i][j + 1]) i++;
    else j++;
  }
  return changed;
}

/** A translation with its changed words marked. @param {string} title @param {any} manifest @param {boolean[]} changed */
function renderMarked(title, manifest, changed) {
  const { text } = manifest.translation;
  let end = 0;
  const parts = getWords(manifest).map((word, i) => {
    const start = text.indexOf(word, end);
    const between = start < 0 ? " " : text.slice(end, start); // a word spelled differently in the text is shown as it is
    if (start >= 0) end = start + word.length;
    return [between, changed[i] ? h("mark", null, word) : word];
  });
  return h("div", { class: "variant" }, h("h4", null, title), h("p", { dir: "auto" }, parts));
}

/** @param {any} manifest @returns {string[]} */
function getWords(manifest) {
  return manifest.sides.target.words.slice(0, -1);
}

/** Two translations with the differing words marked. @param {[string, any]} one @param {[string, any]} other */
export function renderSideBySide([title, manifest], [otherTitle, otherManifest]) {
  const [changed, otherChanged] = findChangedWords(getWords(manifest), getWords(otherManifest));
  return h("div", { class: "side-by-side" }, renderMarked(title, manifest, changed), renderMarked(otherTitle, otherManifest, otherChanged));
}

/**
 * The change of each word's log-probability, as signed bars and numbers that add up.
 * @param {ScoredWord[]} before @param {ScoredWord[]} after the same words @param {(scored: ScoredWord) => string} getUrl of a word
 */
export function renderChangeTable(before, after, getUrl) {
  const changes = before.map((word, i) => after[i].logProbability - word.logProbability);
  const max = Math.max(...changes.map(Math.abs), 1e-9);
  const renderNumbers = (/** @type {number} */ before, /** @type {number} */ after) => [
    h("td", null, formatNumber(before)), h("td", null, formatNumber(after)), h("td", { class: "change" }, formatSigned(after - before))];
  return h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Change of log-probability per word" },
    h("table", { class: "changes" },
      h("thead", null, h("tr", null, ["word", "original", "changed", "change", "less | more probable"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", null, before.map((word, i) => h("tr", null,
        h("th", { scope: "row", dir: "auto" }, h("a", { href: getUrl(word) }, word.word)),
        renderNumbers(word.logProbability, after[i].logProbability), h("td", null, renderBar(changes[i] / max))))),
      h("tfoot", null, h("tr", null, h("th", { scope: "row" }, "Sum"), renderNumbers(sumScores(before), sumScores(after)), h("td")))));
}

/** A number with its sign. @param {number} value */
export function formatSigned(value) {
  return value > 0 ? `+${formatNumber(value)}` : formatNumber(value);
}

/** @param {number} share from -1 to 1 */
function renderBar(share) {
  const side = share < 0 ? "right: 50%" : "left: 50%";
  return h("span", { class: "signed-bar", "aria-hidden": "true" },
    h("span", { class: share < 0 ? "minus" : "plus", style: `${side}; width: ${(Math.abs(share) * 50).toFixed(2)}%` }));
}
