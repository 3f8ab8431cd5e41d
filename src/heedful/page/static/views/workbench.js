// The translator's workbench, on top of every view: the text, its translation, where each word comes from.

import { taskOf } from "heedful/data/task.js";
import { Alternatives } from "heedful/parts/alternatives.js";
import { chips } from "heedful/parts/chips.js";
import { h, percent, shown } from "heedful/parts/dom.js";
import { rowOfStep, stepOf } from "heedful/parts/forcing.js";
import { Ribbon } from "heedful/parts/ribbon.js";
import { Sentences } from "heedful/parts/sentences.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */

/** Milliseconds without a key before what was typed is translated. */
const PAUSE = 350;
/** Probability of a piece, on average, below which a person is warned; ordinary sentences have more than twice as much. */
const UNSURE = 0.35;

export class Workbench {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    this.timer = 0;
    /** What the field last had in common with the selection. */
    this.agreed = "";
    /** A word that gets the focus when the new translation is there. @type {number | null} */
    this.refocus = null;
    this.text = h("textarea", {
      rows: 2, dir: "auto", readOnly: !page.source.live, spellcheck: false, oninput: () => this.#typed(),
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.#send();
      },
    });
    this.copy = h("button", { type: "button", class: "small", onclick: () => this.#copied() }, "Copy");
    this.score = h("p", { class: "legend" });
    this.chips = h("div", { class: "chips" });
    this.notes = h("div", { class: "notes" });
    const translation = h("div", { class: "translation" });
    const ribbon = h("div", { class: "ribbon" });
    const alternatives = h("section", { class: "alternatives", "aria-label": "Alternatives" });
    this.inside = h("div", null, this.notes, ribbon, alternatives);
    this.saved = h("p", { class: "legend", hidden: page.source.live });
    host.append(h("div", { class: "bench-two" }, h("div", { class: "bench-source" }, this.text, this.saved), translation), this.chips, this.inside);
    /** The sentence and its translation in one line, when all else is folded away to give a view the room. */
    this.line = h("p", { class: "folded-line" });
    this.fold = h("button", { type: "button", class: "small no-picture", "aria-expanded": "true", onclick: () => this.#folded(!host.classList.contains("folded")) }, "Fold");
    host.append(h("div", { class: "fold" }, this.line, this.fold));
    this.host = host;
    this.sentences = new Sentences(translation, page);
    translation.append(h("div", { class: "translation-foot" }, this.copy, this.score));
    this.ribbon = new Ribbon(ribbon, (step) => this.#chose(step));
    this.alternatives = new Alternatives(alternatives, page, (step, forced) => this.#left(step, forced));
  }

  /** @param {boolean} folded */
  #folded(folded) {
    this.host.classList.toggle("folded", folded);
    this.fold.setAttribute("aria-expanded", String(!folded));
    this.fold.textContent = folded ? "Unfold text and words" : "Fold";
  }

  #typed() {
    this.#grow();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#send(), PAUSE);
  }

  #send() {
    clearTimeout(this.timer);
    this.timer = 0;
    this.agreed = this.text.value;
    this.page.store.set({ text: this.text.value, segment: 0, prefix: [], kept: {}, hidden: [], query: null, key: null, rows: [], step: 0 }, { replace: true });
  }

  #grow() {
    this.text.style.height = "auto";
    this.text.style.height = `${Math.min(this.text.scrollHeight + 2, innerHeight / 2)}px`;
  }

  /** The field follows the selection (Back, a link), but never takes away what is being typed. */
  #follow() {
    const { field, saved, result } = taskOf(this.page.model);
    Object.assign(this.text, { placeholder: field, ariaLabel: field });
    this.saved.textContent = saved;
    this.sentences.result.setAttribute("aria-label", result);
    const { text } = this.page.store.selection;
    if (text === this.agreed || this.timer) return;
    this.agreed = this.text.value = text;
    this.#grow();
  }

  async #copied() {
    await copied(this.sentences.text);
    this.copy.focus();
    this.copy.textContent = "Copied";
    setTimeout(() => (this.copy.textContent = "Copy"), 1500);
  }

  empty() {
    this.#follow();
    this.#nothing(taskOf(this.page.model).invitation);
    this.chips.replaceChildren();
  }

  waiting() {
    this.#follow();
    this.sentences.result.setAttribute("aria-busy", "true");
    this.inside.setAttribute("aria-busy", "true");
  }

  failed() {
    this.refocus = null;
    this.#nothing(taskOf(this.page.model).none);
    this.chips.replaceChildren(...chips(this.page, this.page.store.selection, this.page.trace));
  }

  /** @param {string} text */
  #nothing(text) {
    this.inside.removeAttribute("aria-busy");
    this.sentences.say(text);
    this.score.textContent = "";
    this.copy.hidden = this.inside.hidden = true;
    this.alternatives.close();
  }

  /** @param {Selection} selection @param {Trace} trace */
  async show(selection, trace) {
    this.#follow();
    this.copy.hidden = this.inside.hidden = false;
    this.inside.removeAttribute("aria-busy");
    this.sentences.show(trace);
    this.score.textContent = scoreText(trace);
    const { segments, segment, translation } = trace.manifest;
    this.line.replaceChildren(h("bdi", null, segments[segment][0]), " → ", h("bdi", null, translation.text));
    this.chips.replaceChildren(...chips(this.page, selection, trace));
    this.notes.replaceChildren(...notes(trace).map((note) => h("p", { class: "note", dir: "auto" }, note)));
    const step = stepOf(selection, trace);
    if (this.alternatives.trace !== trace || this.alternatives.step !== step) this.alternatives.close();
    await this.ribbon.show(trace, step);
    if (this.refocus !== null && trace === this.page.trace) {
      this.ribbon.focus(this.refocus);
      this.refocus = null;
    }
  }

  /** A word of the translation was clicked: it is the chosen one, and its alternatives open. @param {number} step */
  #chose(step) {
    const { store, trace } = this.page;
    if (!trace) return;
    store.set({ step, query: rowOfStep(store.selection, trace, step) }, { replace: true });
    if (!trace.manifest.blanks) this.alternatives.open(trace, step); // of a blank all guesses are listed below
  }

  /** The keyboard goes on where it was. @param {number} step @param {boolean} forced */
  #left(step, forced) {
    if (forced) this.refocus = step;
    else this.ribbon.focus(step);
  }
}

/** Into the clipboard; browsers keep the modern way from pages that come from another machine without https. @param {string} text */
async function copied(text) {
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

/** How sure the model is of the whole sentence. @param {Trace} trace */
function scoreText({ steps, manifest: { translation, model } }) {
  const count = steps.length - (translation.complete ? 0 : 1); // a translation that was cut has no end
  const { log_probability: total, score } = translation;
  const ranked = model.task === "mask" ? "" : ` Score with length penalty ${shown(score)}.`;
  return `Log-probability ${shown(total)}; ${percent(Math.exp(total / count))} for a piece on (geometric) average: exp(${shown(total)} / ${count}).${ranked}`;
}

/** @param {Trace} trace @returns {string[]} */
function notes({ manifest }) {
  const { asked, translation, model } = manifest;
  const { written } = taskOf(model);
  const given = translation.given ? `This ${written} was given, not written by the model: the page shows how the model reads it.` : "";
  const start = asked.prefix ? `The start “${asked.prefix}” was given; the model wrote the rest.` : "";
  const sure = Math.exp(translation.log_probability / (manifest.steps.length - (translation.complete ? 0 : 1)));
  const unsure = model.task === "translate" && sure < UNSURE ? `The model is unsure: on average it gave each piece only ${percent(sure)}. It may never have learned such text.` : "";
  const cut = `The model reached the longest length before the sentence ended, so the ${written} is cut off.`;
  return [given, start, ...manifest.notes, unsure, translation.complete ? "" : cut].filter(Boolean);
}
