// The translation of the text: the inspected sentence, marked, and all others around it.

import { h } from "heedful/parts/dom.js";
import { selectSentence } from "heedful/state/selection.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */

/** Sentences per request, so that the first appear soon. */
const BATCH_SIZE = 40;
const PLACEHOLDER = "…";
/** Not a valid sentence index. */
const NO_SEGMENT = -1;

export class Sentences {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    this.result = h("div", { class: "result", "aria-live": "polite", role: "region" });
    this.note = h("p", { class: "legend" });
    host.append(this.result, this.note);
    /** Translations of other sentences, by cache key. @type {Map<string, string>} */
    this.translations = new Map();
    this.abortController = new AbortController();
    /** @type {Trace | null} */
    this.trace = null;
  }

  /** @param {string} text */
  showMessage(text) {
    this.trace = null;
    this.abortController.abort();
    this.result.removeAttribute("aria-busy");
    this.result.replaceChildren(h("span", { class: "hint" }, text));
    this.note.textContent = "";
  }

  /** The full translation as plain text. */
  get text() {
    const { segments, segment, translation } = /** @type {Trace} */ (this.trace).manifest;
    return segments.map((/** @type {string[]} */ [source, separator], /** @type {number} */ i) => (i === segment ? translation.text : this.#getTranslation(source, i)) + separator).join("");
  }

  /** @param {Trace} trace */
  show(trace) {
    this.result.removeAttribute("aria-busy");
    if (trace === this.trace) return;
    this.trace = trace;
    this.abortController.abort();
    this.abortController = new AbortController();
    this.note.textContent = this.#getNote(trace);
    this.#render();
    this.#translateOthers(trace, this.abortController.signal);
  }

  /** @param {Trace} trace */
  #getNote({ manifest: { segments, checkpoint, request } }) {
    if (segments.length < 2) return "";
    const changed = request.ablated_heads.length || request.masked_source.length || request.prefix_ids.length || checkpoint !== null;
    const { engine } = this.page.model;
    const engineNote = engine === "PyTorch" ? "" : ` (${engine}), which may choose other words`;
    return [
      "The marked sentence is inspected below; choose another one.",
      changed || engineNote ? `The others are translated by the ${changed ? "unmodified model" : "server's fast engine"}${engineNote}.` : "",
    ].join(" ").trim();
  }

  #render() {
    const { segments, segment, translation } = /** @type {Trace} */ (this.trace).manifest;
    if (segments.length === 1) {
      this.result.replaceChildren(h("span", { class: "sentence", dir: "auto" }, renderText(/** @type {Trace} */ (this.trace))));
      return;
    }
    this.result.replaceChildren(...segments.flatMap((/** @type {string[]} */ [source, separator], /** @type {number} */ i) => [
      source.trim() ? this.#createSentence(i, i === segment ? translation.text : this.#getTranslation(source, i), i === segment, segments.length) : source, separator]));
  }

  /** @param {number} segment @param {string} text @param {boolean} isSelected @param {number} count */
  #createSentence(segment, text, isSelected, count) {
    const choose = () => isSelected || this.page.store.set({ ...selectSentence(this.page.store.selection, segment), hidden: [] });
    // A span, since a button cannot wrap over several lines.
    return h("span", {
      class: "sentence", role: "button", tabIndex: 0, "aria-pressed": String(isSelected), title: `Sentence ${segment + 1} of ${count}`, onclick: choose,
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        choose();
      },
    }, text);
  }

  /** @param {string} source @param {number} segment */
  #getTranslation(source, segment) {
    if (!source.trim()) return source;
    return this.translations.get(this.#getCacheKey(source, segment)) ?? PLACEHOLDER;
  }

  /** A translation also depends on the forced prefix of its sentence. @param {string} source @param {number} segment */
  #getCacheKey(source, segment) {
    const { model, beam, otherPrefixes } = this.page.store.selection;
    return JSON.stringify([model, beam, source, otherPrefixes[segment] ?? []]);
  }

  /** A sentence with a forced prefix is translated by the model with that prefix. @param {number} segment @param {string} source @param {AbortSignal} signal */
  async #translateForced(segment, source, signal) {
    const key = this.#getCacheKey(source, segment);
    const { otherPrefixes } = this.page.store.selection;
    const { translation } = await this.page.source.fetchTrace(this.page.buildRequest({ segment, prefix: otherPrefixes[segment], off: [], hidden: [], checkpoint: null }), signal);
    this.translations.set(key, translation.text);
    this.#render();
  }

  /** @param {Trace} trace @param {AbortSignal} signal */
  async #translateOthers({ manifest: { segments, segment } }, signal) {
    const { source, target } = this.page.model;
    const { beam, otherPrefixes } = this.page.store.selection;
    /** @type {{text: string, i: number}[]} */
    const sentences = segments.map((/** @type {string[]} */ [text], /** @type {number} */ i) => ({ text, i }));
    const others = sentences.filter(({ text, i }) => i !== segment && text.trim() && !this.translations.has(this.#getCacheKey(text, i)));
    const missing = [...new Set(others.filter(({ i }) => !otherPrefixes[i]).map(({ text }) => text))];
    try {
      for (const { text, i } of others) if (otherPrefixes[i]) await this.#translateForced(i, text, signal);
      for (let first = 0; first < missing.length; first += BATCH_SIZE) {
        const text = missing.slice(first, first + BATCH_SIZE);
        const keys = text.map((sentence) => this.#getCacheKey(sentence, NO_SEGMENT));
        const response = await /** @type {any} */ (this.page.source).translate({ text, source, target, ...(beam ? { generation: { beam_size: beam } } : {}) }, signal);
        if (signal.aborted) return;
        response.translations.forEach((/** @type {any} */ translation, /** @type {number} */ i) => this.translations.set(keys[i], translation.text));
        this.#render();
      }
    } catch (error) {
      const { name, message } = /** @type {Error} */ (error);
      if (name !== "AbortError") this.note.textContent = `The other sentences could not be translated: ${message}`;
    }
  }
}

/** The text; in generated text, what the model added is marked. @param {Trace} trace @returns {(string | HTMLElement)[]} */
function renderText({ steps, sides: { target }, manifest: { translation, model } }) {
  const characters = Array.from(translation.text); // spans count characters, not UTF-16 units
  if (model.task === "translate") return [translation.text];
  /** @type {(string | HTMLElement)[]} */
  const parts = [];
  let end = 0;
  for (const [start, stop] of mergeSpans(steps.filter((step) => step >= translation.prefix_length).map((step) => target.spans[step]))) {
    parts.push(characters.slice(end, start).join(""), h("mark", { class: "generated" }, characters.slice(start, stop).join("")));
    end = stop;
  }
  return [...parts, characters.slice(end).join("")];
}

/** Spans merged if they touch or have only a space between them. @param {([number, number] | null)[]} spans @returns {[number, number][]} */
function mergeSpans(spans) {
  /** @type {[number, number][]} */
  const merged = [];
  for (const span of spans) {
    if (!span) continue;
    const last = merged[merged.length - 1];
    if (last && span[0] <= last[1] + 1) last[1] = Math.max(last[1], span[1]);
    else merged.push([...span]);
  }
  return merged;
}
