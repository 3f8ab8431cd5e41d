// Alternatives at a step: choose one, and the model rewrites the rest of the translation.

import { getTask } from "heedful/data/task.js";
import { getTokenText } from "heedful/data/trace.js";
import { decodeIds, forceToken, getEndId } from "heedful/parts/decoding.js";
import { formatPercent, h } from "heedful/parts/dom.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** ``text`` is empty in a saved page. @typedef {{id: number, probability: number, word: string, text: string}} Alternative */

const MAX_ALTERNATIVES = 8;

export class Alternatives {
  /** @param {HTMLElement} host @param {Page} page @param {(step: number, forced: boolean) => void} onClose */
  constructor(host, page, onClose) {
    this.host = host;
    this.page = page;
    this.onClose = onClose;
    this.step = -1;
    /** @type {Trace | null} */
    this.trace = null;
    this.close();
  }

  close() {
    this.host.hidden = true;
    this.host.replaceChildren();
    this.trace = null;
  }

  /** @param {Trace} trace @param {number} step */
  async open(trace, step) {
    [this.trace, this.step] = [trace, step];
    this.host.hidden = false;
    this.#render(h("p", { class: "legend", role: "status" }, "The model completes each alternative …"));
    try {
      const alternatives = await this.#fetchAlternatives(trace, step);
      if (trace === this.trace && step === this.step) this.#render(this.#createList(alternatives));
    } catch (error) {
      if (trace !== this.trace) return;
      this.close();
      if (/** @type {any} */ (error).status === 404) this.page.loadTrace(); // the server dropped this trace
      else this.page.showError(error, () => this.open(trace, step));
    }
  }

  /** @param {Trace} trace @param {number} step @returns {Promise<Alternative[]>} */
  async #fetchAlternatives(trace, step) {
    const { source } = this.page;
    if (source.live) return (await /** @type {any} */ (source).fetchAlternatives(trace.id, step)).alternatives;
    return trace.manifest.steps[step].top.slice(0, MAX_ALTERNATIVES).map((/** @type {any} */ candidate) => ({ ...candidate, word: getTokenText(trace.manifest, candidate.id), text: "" }));
  }

  /** @param {HTMLElement} content */
  #render(content) {
    const trace = /** @type {Trace} */ (this.trace);
    const before = decodeIds(trace, trace.sides.target.ids.slice(0, this.step));
    this.host.replaceChildren(
      h("div", { class: "alternatives-top" },
        h("h2", null, before ? ["After ", h("bdi", null, `“${before}”`), " the model could write"] : `The ${getTask(trace.manifest.model).resultNoun} could start with`),
        h("button", { type: "button", class: "small", "aria-label": "Close alternatives", onclick: () => this.#closeAndRefocus() }, "Close ×")),
      content);
  }

  #closeAndRefocus() {
    this.close();
    this.onClose(this.step, false);
  }

  /** @param {Alternative[]} alternatives */
  #createList(alternatives) {
    const { live } = this.page.source;
    return h("div", null,
      h("ol", { class: "alternatives-list" }, alternatives.map((alternative) => h("li", null, this.#createRow(alternative)))),
      h("p", { class: "legend" }, live
        ? "Percentages are the probability of the word's first token here. Choose a line to rewrite the rest from there; Back undoes it."
        : "Percentages are the probability of the next token. Rewriting the rest needs a running server: heedful serve MODEL."));
  }

  /** @param {Alternative} alternative */
  #createRow({ id, probability, word, text }) {
    const trace = /** @type {Trace} */ (this.trace);
    const isEnd = id === getEndId(trace);
    const isWritten = id === trace.sides.target.ids[this.step];
    const parts = [
      h("span", { class: "alternative-probability" }, formatPercent(probability)),
      h("span", { class: "alternative-bar", "aria-hidden": "true", style: `--p: ${probability.toFixed(4)}` }),
      h("bdi", { class: "alternative-word" }, isEnd ? "the sentence ends here" : word, isWritten ? h("span", { class: "badge" }, "written") : null),
      h("span", { class: "alternative-text", dir: "auto" }, markChanges(text, trace.manifest.translation.text)),
    ];
    if (isEnd || !this.page.source.live) return h("div", { class: "alternative" }, parts);
    return h("button", { type: "button", class: "alternative", onclick: () => {
      if (isWritten) return this.#closeAndRefocus(); // it is already written
      const { step } = this;
      this.close();
      this.onClose(step, true);
      forceToken(this.page, trace, step, id);
    } }, parts);
  }
}

/** A text with the words marked that differ from the original. @param {string} text @param {string} original */
function markChanges(text, original) {
  const [ours, theirs] = [text.split(/(?<=\s)/), original.split(/(?<=\s)/)];
  const shared = Math.min(ours.length, theirs.length);
  let start = 0;
  while (start < shared && ours[start] === theirs[start]) start++;
  let end = 0;
  while (end < shared - start && ours[ours.length - 1 - end] === theirs[theirs.length - 1 - end]) end++;
  const last = ours.length - end;
  return [ours.slice(0, start).join(""), h("mark", null, ours.slice(start, last).join("")), ours.slice(last).join("")];
}
