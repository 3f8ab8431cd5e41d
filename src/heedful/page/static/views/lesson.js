// The lesson: attention step by step, each with a question to answer before the numbers are shown.

import { h } from "heedful/parts/dom.js";
import { findPlace, unchosen } from "heedful/parts/lesson_place.js";
import { STEPS } from "heedful/parts/lesson_steps.js";
import { refill } from "heedful/parts/refill.js";
import { toUrl } from "heedful/state/selection.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */
/** @typedef {import("heedful/parts/lesson_place.js").Made} Made */
/** @typedef {import("heedful/parts/lesson_place.js").Place} Place */

/** @type {import("heedful/main.js").View} */
export const lessonView = {
  id: "lesson",
  title: "Lesson",
  fits: (model) => model.arithmetic && model.layers.cross > 0, // it is about translating
  mount: (host, page) => new LessonView(host, page),
};

/** The first and the last step that are about one head. */
const FOLLOWED = [2, 10];

class LessonView {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    this.host = host;
    this.active = false;
    this.number = 0;
    /** How often it was shown: only the last time counts. */
    this.turn = 0;
    /** What was answered, by trace and step; null if the numbers were only shown. @type {Map<string, string | null>} */
    this.answers = new Map();
    this.back = h("button", { type: "button", onclick: () => this.#go(-1) }, "← Back");
    this.next = h("button", { type: "button", class: "primary", onclick: () => this.#go(1) });
    this.steps = h("ol", { class: "lesson-steps", "aria-label": "Steps of the lesson" });
    this.body = h("article", { class: "lesson" });
    host.append(
      h("nav", { class: "lesson-moves", "aria-label": "Through the lesson" }, this.back, this.steps, this.next),
      h("p", { class: "legend" }, "The arrow keys ← and → go through the steps. Every number is this model's, on this sentence."),
      this.body);
    document.addEventListener("keydown", (event) => this.#key(event));
  }

  /** @param {Selection} selection @param {Trace} trace */
  async show(selection, trace) {
    this.active = true;
    const turn = ++this.turn;
    this.number = Math.min(selection.lesson, STEPS.length - 1);
    const step = STEPS[this.number];
    const { text, formula } = (trace.manifest.model.norm === "pre" && step.pre) || step;
    const made = await findPlace(this.page, selection, trace).then(async (place) => ({ place, step: await step.make(place) })).catch(withoutNumbers);
    if (turn !== this.turn) return; // somebody has gone on meanwhile
    refill(this.steps, ...STEPS.map(({ title }, i) => h("li", null,
      h("a", { href: toUrl({ ...selection, lesson: i }), "aria-label": `${i + 1}: ${title}`, "aria-current": i === this.number ? "step" : null }, i + 1))));
    refill(this.body,
      h("h2", { tabIndex: -1, data: { name: "title" } }, `${this.number + 1}. ${step.title}`),
      h("p", null, text),
      h("p", { class: "formula" }, formula),
      ...(typeof made === "string" ? [h("p", { class: "legend" }, made)] : this.#asked(selection, trace, made.place, made.step)));
    this.#moves();
  }

  hide() {
    this.active = false;
  }

  /** @param {Selection} selection @param {Trace} trace @param {Place} place @param {Made} made */
  #asked(selection, trace, place, { before, question, numbers, link }) {
    const key = `${trace.id} ${this.number} ${place.kind} ${place.layer} ${place.head} ${place.row} ${place.step}`;
    const answered = this.answers.get(key);
    const revealed = this.answers.has(key);
    const answer = (/** @type {string | null} */ choice) => {
      this.answers.set(key, choice);
      this.show(selection, trace);
    };
    const look = (/** @type {string} */ choice) => (!revealed ? "" : choice === question.answer ? "right" : choice === answered ? "wrong" : "");
    const verdict = answered === null ? "The answer: " : answered === question.answer ? "✓ Right: " : `✗ Not “${answered}” but `;
    return [
      this.number >= FOLLOWED[0] && this.number <= FOLLOWED[1] ? followed(selection, trace, place, this.number === FOLLOWED[0]) : "",
      before ?? "",
      h("fieldset", { class: "question" }, h("legend", null, "Predict, then reveal"),
        h("p", { dir: "auto" }, question.ask),
        h("div", { class: "choices" },
          question.choices.map((choice) => h("button", { type: "button", dir: "auto", class: look(choice), "aria-pressed": String(revealed && answered === choice), onclick: () => answer(choice) }, choice)),
          revealed ? null : h("button", { type: "button", class: "small", onclick: () => answer(null) }, "Just show me")),
        h("p", { role: "status", class: "verdict", dir: "auto" }, revealed ? [verdict, h("strong", null, question.answer), ` (${question.because}).`] : "")),
      revealed ? h("div", { class: "lesson-numbers" }, numbers, h("p", null, h("a", { href: toUrl({ ...selection, ...link[1] }) }, `${link[0]} →`))) : "",
    ];
  }

  #moves() {
    const last = this.number === STEPS.length - 1;
    this.back.disabled = this.number === 0;
    this.next.disabled = last;
    this.next.textContent = last ? "The end" : "Next →";
  }

  /** @param {number} by */
  #go(by) {
    const lesson = this.number + by;
    if (lesson < 0 || lesson >= STEPS.length) return;
    const within = this.body.contains(document.activeElement);
    this.page.store.set({ lesson });
    if (within) this.body.querySelector("h2")?.focus({ preventScroll: true });
  }

  /** Arrow keys go on and back, where they mean nothing else. @param {KeyboardEvent} event */
  #key(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    const free = target === document.body || this.page.tabs.contains(target) || this.host.contains(target);
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!this.active || !by || !free || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    this.#go(by);
  }
}

/** Who is followed through the steps, and why; who has chosen it may leave the choice to the model. @param {Selection} selection @param {Trace} trace @param {Place} place @param {boolean} first */
function followed(selection, trace, place, first) {
  const own = toUrl({ ...selection, ...unchosen(trace) });
  return h("p", { class: "legend followed", dir: "auto" }, place.told(first), place.chosen ? [" ", h("a", { href: own }, "Let the model choose")] : null);
}

/** A saved page may lack the numbers of this head: then the step goes without. @param {any} error @returns {string} */
function withoutNumbers(error) {
  if (error.status !== 400) throw error;
  return error.message;
}
