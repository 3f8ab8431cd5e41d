// The translation of the whole text: the sentence that is looked into, marked, and all others around it.

import { h } from "heedful/parts/dom.js";
import { otherSentence } from "heedful/state/selection.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */

/** Sentences of one request, so that the first appear soon. */
const TOGETHER = 40;
const WAITING = "…";
/** The number of no sentence. */
const NEVER_FORCED = -1;

export class Sentences {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    this.result = h("div", { class: "result", "aria-live": "polite", role: "region" });
    this.note = h("p", { class: "legend" });
    host.append(this.result, this.note);
    /** Translations of the sentences of one model. @type {Map<string, string>} */
    this.known = new Map();
    this.asking = new AbortController();
    /** @type {Trace | null} */
    this.trace = null;
  }

  /** @param {string} text */
  say(text) {
    this.trace = null;
    this.asking.abort();
    this.result.removeAttribute("aria-busy");
    this.result.replaceChildren(h("span", { class: "hint" }, text));
    this.note.textContent = "";
  }

  /** The whole translation as plain text. */
  get text() {
    const { segments, segment, translation } = /** @type {Trace} */ (this.trace).manifest;
    return segments.map((/** @type {string[]} */ [source, separator], /** @type {number} */ i) => (i === segment ? translation.text : this.#other(source, i)) + separator).join("");
  }

  /** @param {Trace} trace */
  show(trace) {
    this.result.removeAttribute("aria-busy");
    if (trace === this.trace) return;
    this.trace = trace;
    this.asking.abort();
    this.asking = new AbortController();
    this.note.textContent = this.#remark(trace);
    this.#draw();
    this.#translateOthers(trace, this.asking.signal);
  }

  /** @param {Trace} trace */
  #remark({ manifest: { segments, checkpoint, asked } }) {
    if (segments.length < 2) return "";
    const changed = asked.off.length || asked.hidden.length || asked.prefix_ids.length || checkpoint !== null;
    const { engine } = this.page.model;
    const quick = engine === "PyTorch" ? "" : ` (${engine}), which may choose other words`;
    return [
      "The marked sentence is the one looked into below; choose another.",
      changed || quick ? `The others are translated by the ${changed ? "whole, finished model" : "server's quick engine"}${quick}.` : "",
    ].join(" ").trim();
  }

  #draw() {
    const { segments, segment, translation } = /** @type {Trace} */ (this.trace).manifest;
    if (segments.length === 1) {
      this.result.replaceChildren(h("span", { class: "sentence", dir: "auto" }, ownWords(/** @type {Trace} */ (this.trace))));
      return;
    }
    this.result.replaceChildren(...segments.flatMap((/** @type {string[]} */ [source, separator], /** @type {number} */ i) => [
      source.trim() ? this.#sentence(i, i === segment ? translation.text : this.#other(source, i), i === segment, segments.length) : source, separator]));
  }

  /** @param {number} segment @param {string} text @param {boolean} chosen @param {number} count */
  #sentence(segment, text, chosen, count) {
    const choose = () => chosen || this.page.store.set({ ...otherSentence(this.page.store.selection, segment), hidden: [] });
    // A span, since a real button cannot run on over several lines.
    return h("span", {
      class: "sentence", role: "button", tabIndex: 0, "aria-pressed": String(chosen), title: `Sentence ${segment + 1} of ${count}`, onclick: choose,
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        choose();
      },
    }, text);
  }

  /** @param {string} source @param {number} segment */
  #other(source, segment) {
    if (!source.trim()) return source;
    return this.known.get(this.#key(source, segment)) ?? WAITING;
  }

  /** What a translation depends on: also on what was forced in that sentence. @param {string} source @param {number} segment */
  #key(source, segment) {
    const { model, beam, kept } = this.page.store.selection;
    return JSON.stringify([model, beam, source, kept[segment] ?? []]);
  }

  /** A sentence in which a word was forced is written by the model itself, from there on. @param {number} segment @param {string} source @param {AbortSignal} signal */
  async #translateForced(segment, source, signal) {
    const key = this.#key(source, segment);
    const { kept } = this.page.store.selection;
    const { translation } = await this.page.source.trace(this.page.question({ segment, prefix: kept[segment], off: [], hidden: [], checkpoint: null }), signal);
    this.known.set(key, translation.text);
    this.#draw();
  }

  /** @param {Trace} trace @param {AbortSignal} signal */
  async #translateOthers({ manifest: { segments, segment } }, signal) {
    const { source, target } = this.page.model;
    const { beam, kept } = this.page.store.selection;
    /** @type {{text: string, i: number}[]} */
    const all = segments.map((/** @type {string[]} */ [text], /** @type {number} */ i) => ({ text, i }));
    const others = all.filter(({ text, i }) => i !== segment && text.trim() && !this.known.has(this.#key(text, i)));
    const missing = [...new Set(others.filter(({ i }) => !kept[i]).map(({ text }) => text))];
    try {
      for (const { text, i } of others) if (kept[i]) await this.#translateForced(i, text, signal);
      for (let first = 0; first < missing.length; first += TOGETHER) {
        const text = missing.slice(first, first + TOGETHER);
        const keys = text.map((each) => this.#key(each, NEVER_FORCED));
        const answer = await /** @type {any} */ (this.page.source).translate({ text, source, target, ...(beam ? { search: { beam } } : {}) }, signal);
        if (signal.aborted) return;
        answer.translations.forEach((/** @type {any} */ each, /** @type {number} */ i) => this.known.set(keys[i], each.text));
        this.#draw();
      }
    } catch (error) {
      const { name, message } = /** @type {Error} */ (error);
      if (name !== "AbortError") this.note.textContent = `The other sentences are not translated: ${message}`;
    }
  }
}

/** The text, what the model has added to it marked: of a translation all is, so nothing stands out. @param {Trace} trace @returns {(string | HTMLElement)[]} */
function ownWords({ steps, sides: { written }, manifest: { translation, model } }) {
  const letters = Array.from(translation.text); // spans count characters, not UTF-16 units
  if (model.task === "translate") return [translation.text];
  /** @type {(string | HTMLElement)[]} */
  const parts = [];
  let end = 0;
  for (const [start, stop] of ranges(steps.filter((step) => step >= translation.forced).map((step) => written.spans[step]))) {
    parts.push(letters.slice(end, start).join(""), h("mark", { class: "added" }, letters.slice(start, stop).join("")));
    end = stop;
  }
  return [...parts, letters.slice(end).join("")];
}

/** Spans that touch, or have but a space between them, joined. @param {([number, number] | null)[]} spans @returns {[number, number][]} */
function ranges(spans) {
  /** @type {[number, number][]} */
  const found = [];
  for (const span of spans) {
    if (!span) continue;
    const last = found[found.length - 1];
    if (last && span[0] <= last[1] + 1) last[1] = Math.max(last[1], span[1]);
    else found.push([...span]);
  }
  return found;
}
