// The lesson: attention step by step, each step with a question before its numbers.

import { findExample, getDefaultHead } from "heedful/lesson/example.js";
import { STEPS } from "heedful/lesson/steps.js";
import { h, updateChildren } from "heedful/parts/dom.js";
import { formatUrl } from "heedful/state/selection.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */
/** @typedef {import("heedful/lesson/example.js").StepContent} StepContent */
/** @typedef {import("heedful/lesson/example.js").LessonExample} LessonExample */

/** @type {import("heedful/main.js").View} */
export const lessonView = {
  id: "lesson",
  title: "Lesson",
  supports: (model) => model.has_arithmetic && model.layers.cross > 0, // it is about translation
  mount: (host, page) => new LessonView(host, page),
};

/** The first and the last step about the example head. */
const EXAMPLE_STEPS = [2, 10];

class LessonView {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    this.host = host;
    this.active = false;
    this.number = 0;
    /** Counts renderings: only the latest one may update the page. */
    this.renderCount = 0;
    /** Answers by trace and step; null if the numbers were revealed without an answer. @type {Map<string, string | null>} */
    this.answers = new Map();
    this.back = h("button", { type: "button", onclick: () => this.#goBy(-1) }, "← Back");
    this.next = h("button", { type: "button", class: "primary", onclick: () => this.#goBy(1) });
    this.steps = h("ol", { class: "lesson-steps", "aria-label": "Steps of the lesson" });
    this.body = h("article", { class: "lesson" });
    host.append(
      h("nav", { class: "lesson-nav", "aria-label": "Lesson navigation" }, this.back, this.steps, this.next),
      h("p", { class: "legend" }, "Use the arrow keys ← and → to move through the steps. Every number comes from this model and this sentence."),
      this.body);
    document.addEventListener("keydown", (event) => this.#handleKey(event));
  }

  /** @param {Selection} selection @param {Trace} trace */
  async show(selection, trace) {
    this.active = true;
    const renderId = ++this.renderCount;
    this.number = Math.min(selection.lesson, STEPS.length - 1);
    const step = STEPS[this.number];
    const { text, formula } = (trace.manifest.model.norm_placement === "pre" && step.pre) || step;
    const content = await findExample(this.page, selection, trace).then(async (example) => ({ example, step: await step.make(example) })).catch(getMissingMessage);
    if (renderId !== this.renderCount) return; // a newer rendering started
    updateChildren(this.steps, ...STEPS.map(({ title }, i) => h("li", null,
      h("a", { href: formatUrl({ ...selection, lesson: i }), "aria-label": `${i + 1}: ${title}`, "aria-current": i === this.number ? "step" : null }, i + 1))));
    updateChildren(this.body,
      h("h2", { tabIndex: -1, data: { name: "title" } }, `${this.number + 1}. ${step.title}`),
      h("p", null, text),
      h("p", { class: "formula" }, formula),
      ...(typeof content === "string" ? [h("p", { class: "legend" }, content)] : this.#renderQuestion(selection, trace, content.example, content.step)));
    this.#updateNavigation();
  }

  hide() {
    this.active = false;
  }

  /** @param {Selection} selection @param {Trace} trace @param {LessonExample} example @param {StepContent} content */
  #renderQuestion(selection, trace, example, { introduction, question, numbers, link }) {
    const key = `${trace.id} ${this.number} ${example.kind} ${example.layer} ${example.head} ${example.row} ${example.step}`;
    const userAnswer = this.answers.get(key);
    const isRevealed = this.answers.has(key);
    const setAnswer = (/** @type {string | null} */ choice) => {
      this.answers.set(key, choice);
      this.show(selection, trace);
    };
    const getClass = (/** @type {string} */ choice) => (!isRevealed ? "" : choice === question.answer ? "right" : choice === userAnswer ? "wrong" : "");
    const verdict = userAnswer === null ? "The answer: " : userAnswer === question.answer ? "✓ Correct: " : `✗ Not “${userAnswer}” but `;
    return [
      this.number >= EXAMPLE_STEPS[0] && this.number <= EXAMPLE_STEPS[1] ? renderExample(selection, trace, example, this.number === EXAMPLE_STEPS[0]) : "",
      introduction ?? "",
      h("fieldset", { class: "question" }, h("legend", null, "Predict, then reveal"),
        h("p", { dir: "auto" }, question.prompt),
        h("div", { class: "choices" },
          question.choices.map((choice) => h("button", { type: "button", dir: "auto", class: getClass(choice), "aria-pressed": String(isRevealed && userAnswer === choice), onclick: () => setAnswer(choice) }, choice)),
          isRevealed ? null : h("button", { type: "button", class: "small", onclick: () => setAnswer(null) }, "Show the answer")),
        h("p", { role: "status", class: "verdict", dir: "auto" }, isRevealed ? [verdict, h("strong", null, question.answer), ` (${question.explanation}).`] : "")),
      isRevealed ? h("div", { class: "lesson-numbers" }, numbers, h("p", null, h("a", { href: formatUrl({ ...selection, ...link[1] }) }, `${link[0]} →`))) : "",
    ];
  }

  #updateNavigation() {
    const last = this.number === STEPS.length - 1;
    this.back.disabled = this.number === 0;
    this.next.disabled = last;
    this.next.textContent = last ? "End" : "Next →";
  }

  /** @param {number} offset */
  #goBy(offset) {
    const lesson = this.number + offset;
    if (lesson < 0 || lesson >= STEPS.length) return;
    const hasFocus = this.body.contains(document.activeElement);
    this.page.store.set({ lesson });
    if (hasFocus) this.body.querySelector("h2")?.focus({ preventScroll: true });
  }

  /** Arrow keys change the step, unless they have another meaning. @param {KeyboardEvent} event */
  #handleKey(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    const isFree = target === document.body || this.page.tabs.contains(target) || this.host.contains(target);
    const offset = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!this.active || !offset || !isFree || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    this.#goBy(offset);
  }
}

/** The example and its reason; users who selected it can return to the default. @param {Selection} selection @param {Trace} trace @param {LessonExample} example @param {boolean} isFirst */
function renderExample(selection, trace, example, isFirst) {
  const defaultUrl = formatUrl({ ...selection, ...getDefaultHead(trace) });
  return h("p", { class: "legend example", dir: "auto" }, example.describe(isFirst), example.isUserChoice ? [" ", h("a", { href: defaultUrl }, "Use the default example")] : null);
}

/** A saved page may not include the numbers of this head: then the step is shown without them. @param {any} error @returns {string} */
function getMissingMessage(error) {
  if (error.status !== 400) throw error;
  return error.message;
}
