// What else could have been written at a step: choose one, and the rest of the translation is rewritten.

import { taskOf } from "heedful/data/task.js";
import { pieceName } from "heedful/data/trace.js";
import { h, percent } from "heedful/parts/dom.js";
import { endId, force, textOf } from "heedful/parts/forcing.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** ``text`` is empty where there is no server to write it. @typedef {{id: number, probability: number, word: string, text: string}} Alternative */

const COUNT = 8;

export class Alternatives {
  /** @param {HTMLElement} host @param {Page} page @param {(step: number, forced: boolean) => void} closed */
  constructor(host, page, closed) {
    this.host = host;
    this.page = page;
    this.closed = closed;
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
    this.#fill(h("p", { class: "legend", role: "status" }, "The model writes each of them to the end …"));
    try {
      const found = await this.#found(trace, step);
      if (trace === this.trace && step === this.step) this.#fill(this.#list(found));
    } catch (error) {
      if (trace !== this.trace) return;
      this.close();
      if (/** @type {any} */ (error).status === 404) this.page.ask(); // the server has forgotten this trace
      else this.page.say(error, () => this.open(trace, step));
    }
  }

  /** @param {Trace} trace @param {number} step @returns {Promise<Alternative[]>} */
  async #found(trace, step) {
    const { source } = this.page;
    if (source.live) return (await /** @type {any} */ (source).alternatives(trace.id, step)).alternatives;
    return trace.manifest.steps[step].top.slice(0, COUNT).map((/** @type {any} */ each) => ({ ...each, word: pieceName(trace.manifest, each.id), text: "" }));
  }

  /** @param {HTMLElement} content */
  #fill(content) {
    const trace = /** @type {Trace} */ (this.trace);
    const before = textOf(trace, trace.sides.written.ids.slice(0, this.step));
    this.host.replaceChildren(
      h("div", { class: "alternatives-top" },
        h("h2", null, before ? ["After ", h("bdi", null, `“${before}”`), " the model could write"] : `The ${taskOf(trace.manifest.model).written} could start with`),
        h("button", { type: "button", class: "small", "aria-label": "Close the alternatives", onclick: () => this.#leave() }, "Close ×")),
      content);
  }

  #leave() {
    this.close();
    this.closed(this.step, false);
  }

  /** @param {Alternative[]} found */
  #list(found) {
    const { live } = this.page.source;
    return h("div", null,
      h("ol", { class: "alternatives-list" }, found.map((each) => h("li", null, this.#one(each)))),
      h("p", { class: "legend" }, live
        ? "The percentage is the probability of the word's first piece here. Choose a line: the rest is rewritten from there, and Back undoes it."
        : "The percentage is the probability of the next piece. Rewriting the rest needs the model itself: heedful serve MODEL."));
  }

  /** @param {Alternative} each */
  #one({ id, probability, word, text }) {
    const trace = /** @type {Trace} */ (this.trace);
    const ends = id === endId(trace);
    const written = id === trace.sides.written.ids[this.step];
    const parts = [
      h("span", { class: "alternative-chance" }, percent(probability)),
      h("span", { class: "alternative-bar", "aria-hidden": "true", style: `--p: ${probability.toFixed(4)}` }),
      h("bdi", { class: "alternative-word" }, ends ? "the sentence ends here" : word, written ? h("span", { class: "badge" }, "written") : null),
      h("span", { class: "alternative-text", dir: "auto" }, changed(text, trace.manifest.translation.text)),
    ];
    if (ends || !this.page.source.live) return h("div", { class: "alternative" }, parts);
    return h("button", { type: "button", class: "alternative", onclick: () => {
      if (written) return this.#leave(); // it stands there already
      const { step } = this;
      this.close();
      this.closed(step, true);
      force(this.page, trace, step, id);
    } }, parts);
  }
}

/** A text in which the words that differ from another stand out. @param {string} text @param {string} other */
function changed(text, other) {
  const [ours, theirs] = [text.split(/(?<=\s)/), other.split(/(?<=\s)/)];
  const most = Math.min(ours.length, theirs.length);
  let start = 0;
  while (start < most && ours[start] === theirs[start]) start++;
  let end = 0;
  while (end < most - start && ours[ours.length - 1 - end] === theirs[theirs.length - 1 - end]) end++;
  const last = ours.length - end;
  return [ours.slice(0, start).join(""), h("mark", null, ours.slice(start, last).join("")), ours.slice(last).join("")];
}
