// The workbench on top of every view: the text, its translation, and the ribbon.

import { describeHead } from "heedful/data/heads.js";
import { getTask } from "heedful/data/task.js";
import { findWords } from "heedful/data/trace.js";
import { decodeIds, getRowOfStep, getStep } from "heedful/parts/decoding.js";
import { formatNumber, formatPercent, h } from "heedful/parts/dom.js";
import { Alternatives } from "heedful/workbench/alternatives.js";
import { Ribbon } from "heedful/workbench/ribbon.js";
import { Sentences } from "heedful/workbench/sentences.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */

/** Milliseconds without a key press before the text is submitted. */
const TYPING_DELAY = 350;
/** Mean token probability below which a warning is shown; ordinary sentences have more than twice as much. */
const LOW_CONFIDENCE = 0.35;

export class Workbench {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    this.timer = 0;
    /** The text that field and selection last had in common. */
    this.syncedText = "";
    /** The word that gets the focus after the update. @type {number | null} */
    this.refocusStep = null;
    this.text = h("textarea", {
      rows: 2, dir: "auto", readOnly: !page.source.live, spellcheck: false, oninput: () => this.#handleInput(),
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.#submit();
      },
    });
    this.copyButton = h("button", { type: "button", class: "small", onclick: () => this.#copyTranslation() }, "Copy");
    this.score = h("p", { class: "legend" });
    this.chips = h("div", { class: "chips" });
    this.notes = h("div", { class: "notes" });
    const translation = h("div", { class: "translation" });
    const ribbon = h("div", { class: "ribbon" });
    const alternatives = h("section", { class: "alternatives", "aria-label": "Alternatives" });
    this.details = h("div", null, this.notes, ribbon, alternatives);
    this.savedNote = h("p", { class: "legend", hidden: page.source.live });
    host.append(h("div", { class: "workbench-columns" }, h("div", { class: "workbench-source" }, this.text, this.savedNote), translation), this.chips, this.details);
    /** The sentence and its translation in one line, shown when the workbench is collapsed. */
    this.collapsedSummary = h("p", { class: "collapsed-summary" });
    this.collapseButton = h("button", { type: "button", class: "small no-export", "aria-expanded": "true", onclick: () => this.#setCollapsed(!host.classList.contains("collapsed")) }, "Collapse");
    host.append(h("div", { class: "collapse-bar" }, this.collapsedSummary, this.collapseButton));
    this.host = host;
    this.sentences = new Sentences(translation, page);
    translation.append(h("div", { class: "translation-foot" }, this.copyButton, this.score));
    this.ribbon = new Ribbon(ribbon, (step) => this.#selectWord(step));
    this.alternatives = new Alternatives(alternatives, page, (step, forced) => this.#restoreFocus(step, forced));
  }

  /** @param {boolean} collapsed */
  #setCollapsed(collapsed) {
    this.host.classList.toggle("collapsed", collapsed);
    this.collapseButton.setAttribute("aria-expanded", String(!collapsed));
    this.collapseButton.textContent = collapsed ? "Expand text and words" : "Collapse";
  }

  #handleInput() {
    this.#resizeInput();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#submit(), TYPING_DELAY);
  }

  #submit() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.syncedText = this.text.value;
    this.page.store.set({ text: this.text.value, segment: 0, prefix: [], otherPrefixes: {}, hidden: [], query: null, key: null, rows: [], step: 0 }, { replace: true });
  }

  #resizeInput() {
    this.text.style.height = "auto";
    this.text.style.height = `${Math.min(this.text.scrollHeight + 2, innerHeight / 2)}px`;
  }

  /** The field follows the selection (Back, a link), but never overwrites what is being typed. */
  #syncInput() {
    const { inputLabel, savedHint, resultLabel } = getTask(this.page.model);
    Object.assign(this.text, { placeholder: inputLabel, ariaLabel: inputLabel });
    this.savedNote.textContent = savedHint;
    this.sentences.result.setAttribute("aria-label", resultLabel);
    const { text } = this.page.store.selection;
    if (text === this.syncedText || this.timer) return;
    this.syncedText = this.text.value = text;
    this.#resizeInput();
  }

  async #copyTranslation() {
    await copyText(this.sentences.text);
    this.copyButton.focus();
    this.copyButton.textContent = "Copied";
    setTimeout(() => (this.copyButton.textContent = "Copy"), 1500);
  }

  showEmpty() {
    this.#syncInput();
    this.#showMessage(getTask(this.page.model).emptyHint);
    this.chips.replaceChildren();
  }

  showLoading() {
    this.#syncInput();
    this.sentences.result.setAttribute("aria-busy", "true");
    this.details.setAttribute("aria-busy", "true");
  }

  showFailure() {
    this.refocusStep = null;
    this.#showMessage(getTask(this.page.model).failureHint);
    this.chips.replaceChildren(...createChips(this.page, this.page.store.selection, this.page.trace));
  }

  /** @param {string} text */
  #showMessage(text) {
    this.details.removeAttribute("aria-busy");
    this.sentences.showMessage(text);
    this.score.textContent = "";
    this.copyButton.hidden = this.details.hidden = true;
    this.alternatives.close();
  }

  /** @param {Selection} selection @param {Trace} trace */
  async show(selection, trace) {
    this.#syncInput();
    this.copyButton.hidden = this.details.hidden = false;
    this.details.removeAttribute("aria-busy");
    this.sentences.show(trace);
    this.score.textContent = formatScore(trace);
    const { segments, segment, translation } = trace.manifest;
    this.collapsedSummary.replaceChildren(h("bdi", null, segments[segment][0]), " → ", h("bdi", null, translation.text));
    this.chips.replaceChildren(...createChips(this.page, selection, trace));
    this.notes.replaceChildren(...getNotes(trace).map((note) => h("p", { class: "note", dir: "auto" }, note)));
    const step = getStep(selection, trace);
    if (this.alternatives.trace !== trace || this.alternatives.step !== step) this.alternatives.close();
    await this.ribbon.show(trace, step);
    if (this.refocusStep !== null && trace === this.page.trace) {
      this.ribbon.focus(this.refocusStep);
      this.refocusStep = null;
    }
  }

  /** A target word was clicked: select it and open its alternatives. @param {number} step */
  #selectWord(step) {
    const { store, trace } = this.page;
    if (!trace) return;
    store.set({ step, query: getRowOfStep(store.selection, trace, step) }, { replace: true });
    if (!trace.manifest.blank_positions) this.alternatives.open(trace, step); // all predictions for a blank are listed below
  }

  /** Restore the keyboard focus. @param {number} step @param {boolean} forced */
  #restoreFocus(step, forced) {
    if (forced) this.refocusStep = step;
    else this.ribbon.focus(step);
  }
}

/** Copy to the clipboard; browsers disable the modern API on pages without https. @param {string} text */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = h("textarea", { value: text });
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
}

/** The model's confidence in the sentence. @param {Trace} trace */
function formatScore({ steps, manifest: { translation, model } }) {
  const count = steps.length - (translation.complete ? 0 : 1); // a truncated translation has no end
  const { log_probability: total, score } = translation;
  const scoreNote = model.task === "fill" ? "" : ` Score with length penalty ${formatNumber(score)}.`;
  return `Log-probability ${formatNumber(total)}; ${formatPercent(Math.exp(total / count))} per token (geometric mean): exp(${formatNumber(total)} / ${count}).${scoreNote}`;
}

/** @param {Trace} trace @returns {string[]} */
function getNotes({ manifest }) {
  const { request, translation, model } = manifest;
  const { resultNoun } = getTask(model);
  const givenNote = translation.is_reference ? `This ${resultNoun} was given, not generated: the page shows how the model scores it.` : "";
  const prefixNote = request.prefix ? `The start “${request.prefix}” was given; the model wrote the rest.` : "";
  const confidence = Math.exp(translation.log_probability / (manifest.steps.length - (translation.complete ? 0 : 1)));
  const unsureNote = model.task === "translate" && confidence < LOW_CONFIDENCE ? `The model is unsure: the mean token probability is only ${formatPercent(confidence)}. It may not have been trained on such text.` : "";
  const truncatedNote = `The model reached its maximum length before the sentence ended, so the ${resultNoun} is truncated.`;
  return [givenNote, prefixNote, ...manifest.notes, unsureNote, translation.complete ? "" : truncatedNote].filter(Boolean);
}

/** Heads with individual chips; more share one. */
const MAX_SINGLE = 6;

/** @param {Page} page @param {Selection} selection @param {import("heedful/data/trace.js").Trace | null} trace @returns {HTMLElement[]} */
export function createChips(page, selection, trace) {
  const createChip = (/** @type {string} */ name, /** @type {string} */ value, /** @type {Partial<Selection>} */ changes) =>
    h("button", { type: "button", class: "chip", "aria-label": `Remove: ${name} ${value}`, onclick: () => page.store.set(changes) },
      h("span", null, name), " ", h("bdi", null, value), h("span", { class: "chip-remove", "aria-hidden": "true" }, "× remove"));
  const { prefix, off, hidden, checkpoint, beam, seed } = selection;
  const chips = [];
  if (prefix.length) chips.push(createChip("Forced start:", trace ? `“${decodeIds(trace, prefix)}”` : `${prefix.length} ${prefix.length === 1 ? "token" : "tokens"}`, { prefix: [], query: null, key: null, rows: [] }));
  if (off.length > MAX_SINGLE) chips.push(createChip("Switched off:", `${off.length} heads`, { off: [] }));
  else chips.push(...off.map((head) => createChip("Switched off:", describeHead(head), { off: off.filter((other) => other !== head) })));
  const words = trace ? findWords(trace.sides.source, hidden) : [];
  if (hidden.length && (words.length > MAX_SINGLE || !words.length)) chips.push(createChip("Hidden:", words.length ? `${words.length} words` : `${hidden.length} ${hidden.length === 1 ? "token" : "tokens"}`, { hidden: [] }));
  else chips.push(...words.map(({ word, subwords }) => createChip("Hidden:", word, { hidden: hidden.filter((index) => !subwords.includes(index)) })));
  if (checkpoint !== null) chips.push(createChip("Weights after", `${checkpoint.toLocaleString("en")} updates`, { checkpoint: null }));
  if (seed !== null) chips.push(createChip("Random sampling,", `seed ${seed}`, { seed: null }));
  if (beam) chips.push(createChip("Beam of", String(beam), { beam: 0 }));
  return chips;
}
