// Experiments: switch off heads, hide source words, and see the effect. The original translation is the control.

import { describeHeads, listLayerHeads } from "heedful/data/heads.js";
import { getTask } from "heedful/data/task.js";
import { findWords, KIND_NAMES, listWords } from "heedful/data/trace.js";
import { formatSigned, renderChangeTable, renderSideBySide, scoreWords, sumScores, summarizeTrace } from "heedful/parts/comparison.js";
import { formatNumber, formatPercent, h, updateChildren } from "heedful/parts/dom.js";
import { HeadAblation } from "heedful/parts/head_ablation.js";
import { formatUrl } from "heedful/state/selection.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/data/trace.js").Kind} Kind */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */

/** Rows shown in the ranking. */
const MAX_RANKED = 12;
/** Responses cached at most: ranking the heads needs one per head. */
const MAX_CACHED = 500;

/** @type {import("heedful/main.js").View} */
export const experimentsView = {
  id: "experiments",
  title: "Experiments",
  supports: (model) => model.has_arithmetic,
  needsServer: true,
  mount: (host, page) => new ExperimentsView(host, page),
};

class ExperimentsView {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    /** Responses for this sentence by request: the original and its rescorings. @type {Map<string, Promise<any>>} */
    this.cache = new Map();
    /** @type {HeadAblation | null} */
    this.ablation = null;
    /** The request that the ranking belongs to. */
    this.subject = "";
    /** @type {number | null} */
    this.wordIndex = null;
    this.intro = h("p", { class: "intro" });
    this.headToggles = h("div", { class: "head-toggles" });
    this.wordToggles = h("section", { class: "word-toggles", "aria-label": "Hide a source word" });
    this.result = h("div", { class: "experiment-result" });
    this.ranking = h("section", { class: "head-ranking", "aria-label": "Rank heads by importance" });
    this.forcedWords = h("section", { class: "no-export", "aria-label": "Force a word" });
    this.changes = h("section", { "aria-label": "Change per word" });
    this.body = h("div", null, this.headToggles, this.wordToggles, this.result, h("div", { class: "columns even" }, this.changes, h("div", null, this.ranking, this.forcedWords)));
    host.append(this.intro, this.body);
  }

  /** @param {Selection} selection @param {Trace | null} trace */
  async show(selection, trace) {
    this.body.hidden = !trace || !this.page.source.live;
    if (!this.page.source.live) this.intro.textContent = "Experiments run the model, so they need a running server: heedful serve MODEL.";
    else if (!trace) this.intro.textContent = "Enter a sentence above, then switch off heads or hide words to see the effect.";
    if (!trace || this.body.hidden) return;
    this.intro.textContent = "A head that is switched off contributes nothing: its rows of W^O count as zero. The change shows what the head did.";
    this.#renderHeadToggles(selection, trace);
    this.#renderWordToggles(selection, trace);
    const original = await this.#loadOriginal(selection, trace);
    const rescored = isChanged(selection) ? await this.#rescore(original, selection.off, selection.hidden) : original;
    if (this.page.isStale(selection, trace)) return;
    this.#renderResult(selection, trace, original, rescored);
    this.#renderRanking(selection, original);
    this.#renderForcedWords(selection, original);
  }

  hide() {
    this.ablation?.stop();
  }

  /** The translation with all heads on and nothing hidden. @param {Selection} selection @param {Trace} trace */
  #loadOriginal(selection, trace) {
    const request = this.page.buildRequest({ off: [], hidden: [] });
    if (!isChanged(selection)) this.#store(JSON.stringify(request), Promise.resolve(summarizeTrace(trace.manifest)));
    return this.#fetchCached(request);
  }

  /** Score the original translation without some heads and words. @param {any} original @param {string[]} off @param {number[]} [hidden] */
  #rescore(original, off, hidden = []) {
    return this.#fetchCached(this.page.buildRequest({ off: [...off].sort(), hidden, prefix: [] }, { target_ids: original.translation.ids }));
  }

  /** A response, requested once; several callers may await it, so it is never aborted. @param {object} request @returns {Promise<any>} */
  #fetchCached(request) {
    const key = JSON.stringify(request);
    const cached = this.cache.get(key);
    if (cached) return cached;
    const response = this.page.source.fetchTrace(request).then(summarizeTrace);
    response.catch(() => this.cache.delete(key));
    this.#store(key, response);
    return response;
  }

  /** @param {string} key @param {Promise<any>} response */
  #store(key, response) {
    if (this.cache.size >= MAX_CACHED) this.cache.clear();
    this.cache.set(key, response);
  }

  /** @param {Selection} selection @param {Trace} trace */
  #renderHeadToggles(selection, trace) {
    updateChildren(this.headToggles,
      h("div", { class: "controls" }, h("button", { type: "button", disabled: !selection.off.length, onclick: () => this.#disableHeads([]) }, "All on"),
        h("span", { class: "legend" }, selection.off.length ? `Off: ${describeHeads(selection.off)}` : "All heads are on. Press a head to switch it off; heads are named layer.head. Below: on or off, then the attention pattern on this sentence (– if none).")),
      h("div", { class: "head-toggle-kinds" }, trace.kinds.map((kind) => h("section", { "aria-label": KIND_NAMES[kind] }, h("h3", null, KIND_NAMES[kind]),
        Array.from({ length: trace.getLayerCount(kind) }, (_, layer) => this.#createLayerToggles(kind, layer, selection, trace))))));
  }

  /** @param {Kind} kind @param {number} layer @param {Selection} selection @param {Trace} trace */
  #createLayerToggles(kind, layer, selection, trace) {
    const names = listLayerHeads(kind, layer, trace.heads);
    const allOff = names.every((name) => selection.off.includes(name));
    const others = selection.off.filter((name) => !names.includes(name));
    return h("div", { class: "toggle-row" },
      names.map((name, head) => {
        const off = selection.off.includes(name);
        const badge = trace.manifest.heads.find((/** @type {any} */ entry) => entry.kind === kind && entry.layer === layer && entry.head === head)?.pattern;
        return h("button", {
          type: "button", class: "toggle", "aria-pressed": String(off),
          "aria-label": `Switch off ${KIND_NAMES[kind]}, layer ${layer + 1}, head ${head + 1}${badge ? ` (${badge})` : ""}`,
          onclick: () => this.#disableHeads(off ? selection.off.filter((other) => other !== name) : [...selection.off, name]),
        }, h("span", null, `${layer + 1}.${head + 1}`), h("small", null, off ? "off" : "on"), h("small", { class: "attention-pattern" }, badge && badge !== "off" ? badge : "–"));
      }),
      h("button", { type: "button", class: "small", data: { name: `${kind}.${layer}` }, "aria-label": `${KIND_NAMES[kind]}, layer ${layer + 1} ${allOff ? "on" : "off"}`,
        onclick: () => this.#disableHeads(allOff ? others : [...others, ...names]) }, allOff ? "Layer on" : "Layer off"));
  }

  /** @param {string[]} off */
  #disableHeads(off) {
    this.page.store.set({ off: [...off].sort(), step: 0 });
  }

  /** @param {Selection} selection @param {Trace} trace */
  #renderWordToggles(selection, trace) {
    const { hidden } = selection;
    this.wordToggles.hidden = !trace.sides.source.ids.length;
    if (this.wordToggles.hidden) return;
    const hideTokens = (/** @type {number[]} */ indices) => this.page.store.set({ hidden: indices.sort((a, b) => a - b), step: 0 });
    const createToggle = (/** @type {import("heedful/data/trace.js").Word} */ { word, subwords }) => {
      const isHidden = subwords.every((index) => hidden.includes(index));
      const others = hidden.filter((index) => !subwords.includes(index));
      return h("button", { type: "button", class: "toggle", dir: "auto", data: { name: `token ${subwords[0]}` }, "aria-pressed": String(isHidden), onclick: () => hideTokens(isHidden ? others : [...others, ...subwords]) },
        h("span", null, word), h("small", null, isHidden ? "hidden" : "visible"));
    };
    updateChildren(this.wordToggles,
      h("h3", null, trace.getLayerCount("cross") ? "Hide a source word" : "Hide a word"),
      h("p", { class: "intro" }, "A hidden word is masked like padding: no word can attend to it (weight exactly 0), and all positions stay the same. ",
        "The change shows what the model used the word for. The encoder still computes its row, but nothing attends to it."),
      h("div", { class: "toggle-row", role: "group", "aria-label": "Source words" },
        listWords(trace.sides.source).slice(0, -1).filter(({ subwords }) => !trace.manifest.blank_positions?.includes(subwords[0])).map(createToggle),
        h("button", { type: "button", class: "small", disabled: !hidden.length, onclick: () => hideTokens([]) }, "Show all")));
  }

  /** @param {Selection} selection @param {Trace} trace @param {any} original @param {any} rescored */
  #renderResult(selection, trace, original, rescored) {
    const changed = trace.manifest;
    const { resultNoun } = getTask(changed.model);
    if (!isChanged(selection)) {
      this.result.replaceChildren();
      this.changes.replaceChildren(h("h3", null, "Change per word"),
        h("p", { class: "intro" }, `Switch off a head${trace.sides.source.ids.length ? " or hide a word" : ""} to see how the probability of each word changes in the original ${resultNoun}.`));
      return;
    }
    const [before, after] = [scoreWords(original), scoreWords(rescored, original.translation.complete)];
    const change = sumScores(after) - sumScores(before);
    this.result.replaceChildren(
      renderSideBySide([selection.hidden.length ? "Original, nothing hidden or off" : "Original, all heads on", original], [describeChange(selection, trace), changed]),
      h("p", { class: "status-line", role: "status" }, changed.translation.text === original.translation.text ? `The ${resultNoun} is unchanged. ` : `The ${resultNoun} changes. `,
        `Log-probability of the original ${resultNoun}: ${formatNumber(sumScores(before))} → ${formatNumber(sumScores(after))}, change ${formatSigned(change)}`,
        ` (${formatPercent(Math.exp(sumScores(before)))} → ${formatPercent(Math.exp(sumScores(after)))}).`),
    );
    this.changes.replaceChildren(
      h("h3", null, "Change per word"),
      h("p", { class: "legend" }, `Natural logarithm of the probability of each word ${changed.blank_positions ? "that fills a blank" : `of the original ${resultNoun}, given the words before it`}. `,
        "The rows add up to the last one (rounded to four decimals). Each word links to its alternatives."),
      renderChangeTable(before, after, (scored) => formatUrl({ ...selection, view: "translate", step: scored.step })));
  }

  /** @param {Selection} selection @param {any} original */
  #renderRanking(selection, original) {
    const subject = JSON.stringify(this.page.buildRequest({ off: [], hidden: [] }));
    if (subject !== this.subject) {
      this.ablation?.stop();
      Object.assign(this, { subject, ablation: null, wordIndex: null });
    }
    const words = scoreWords(original, false);
    const busy = this.ablation !== null && !this.ablation.finished;
    const selectWord = (/** @type {any} */ event) => {
      this.wordIndex = event.target.value === "" ? null : Number(event.target.value);
    };
    updateChildren(this.ranking,
      h("h3", null, "Rank heads by importance"),
      h("p", { class: "intro" }, "Each head is switched off alone, and the model scores the original again. The larger the drop, the more important the head. ",
        "If no single head changes the word, pairs of the strongest heads and full layers are tried."),
      h("div", { class: "controls" },
        h("label", { class: "select-field" }, h("span", null, "For"), h("select", { disabled: busy, onchange: selectWord },
          h("option", { value: "", selected: this.wordIndex === null }, `the full ${getTask(original.model).resultNoun}`),
          words.map((word, i) => h("option", { value: String(i), selected: this.wordIndex === i }, `“${word.word}” (word ${i + 1})`)))),
        busy ? h("button", { type: "button", data: { name: "find" }, onclick: () => this.ablation?.stop() }, "Stop")
          : h("button", { type: "button", class: "primary", data: { name: "find" }, onclick: () => this.#rankHeads(original) }, "Rank heads")),
      h("div", { class: "findings" }));
    this.#renderFindings(selection);
  }

  /** @param {any} original */
  async #rankHeads(original) {
    const ablation = new HeadAblation((off) => this.#rescore(original, off), original, this.wordIndex);
    this.ablation = ablation;
    const running = ablation.run(() => this.ablation === ablation && this.#renderFindings(this.page.store.selection));
    this.#renderRanking(this.page.store.selection, original);
    try {
      await running;
    } catch (error) {
      if (!ablation.stopped) this.page.showError(error, () => this.#rankHeads(original));
      ablation.stop();
    }
    if (this.ablation === ablation) this.#renderRanking(this.page.store.selection, original);
  }

  /** @param {Selection} selection */
  #renderFindings(selection) {
    const host = /** @type {HTMLElement} */ (this.ranking.querySelector(".findings"));
    if (!this.ablation) return;
    const { findings, triedCount, plannedCount, stopped, finished } = this.ablation;
    const ranked = [...findings].sort((a, b) => a.change - b.change);
    const changingCount = ranked.filter((finding) => finding.changedWord).length;
    updateChildren(host,
      finished ? "" : h("progress", { max: plannedCount, value: triedCount, "aria-label": "Heads tried" }),
      h("p", { class: "legend", role: finished ? "status" : null },
        `${finished ? `${stopped ? "Stopped: " : ""}${stopped ? "tried" : "Tried"} ${triedCount}` : `Trying ${Math.min(triedCount + 1, plannedCount)} of ${plannedCount}`}; ${changingCount} ${changingCount === 1 ? "changes" : "change"} a word.`),
      h("div", { class: "scroll" }, h("table", { class: "ranking" },
        h("thead", null, h("tr", null, ["without", "change of log P", "new word", ""].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", null, ranked.slice(0, MAX_RANKED).map((finding) => h("tr", null,
          h("th", { scope: "row" }, finding.name),
          h("td", null, formatSigned(finding.change)),
          h("td", { dir: "auto", class: "changed-word" }, finding.changedWord ? [finding.changedWord.from, " → ", h("mark", null, finding.changedWord.to), ` ${formatPercent(finding.changedWord.probability)}`] : "unchanged"),
          h("td", null, h("button", { type: "button", class: "small", "aria-pressed": String(isSameSet(selection.off, finding.off)), "aria-label": `Switch off only ${finding.name}`,
            onclick: () => this.#disableHeads(finding.off) }, "Switch off"))))))));
  }

  /** @param {Selection} selection @param {any} original */
  #renderForcedWords(selection, original) {
    const forcedCount = selection.prefix.length;
    this.forcedWords.hidden = Boolean(original.blank_positions);
    this.forcedWords.replaceChildren(
      h("h3", null, "Force a word"),
      h("p", { class: "intro" }, "Choose a word to see its alternatives; choose an alternative to rewrite the rest."),
      h("div", { class: "row-buttons" }, scoreWords(original, false).map((word) =>
        h("a", { class: "word-link", dir: "auto", href: formatUrl({ ...selection, view: "translate", step: word.step }) }, word.word))),
      forcedCount ? h("p", null, `The first ${forcedCount} ${forcedCount === 1 ? "token is" : "tokens are"} forced. `,
        h("button", { type: "button", class: "small", onclick: () => this.page.store.set({ prefix: [] }) }, "Remove the forced start")) : "");
  }
}

/** @param {Selection} selection */
function isChanged({ off, hidden }) {
  return off.length + hidden.length > 0;
}

/** The change in words. @param {Selection} selection @param {Trace} trace */
function describeChange({ off, hidden }, trace) {
  const words = findWords(trace.sides.source, hidden).map(({ word }) => `“${word}”`).join(", ");
  return [off.length ? `Without ${describeHeads(off)}` : "", words ? `${off.length ? "w" : "W"}ith ${words} hidden` : ""].filter(Boolean).join(", ");
}

/** @param {string[]} left @param {string[]} right */
function isSameSet(left, right) {
  return left.length === right.length && right.every((name) => left.includes(name));
}
