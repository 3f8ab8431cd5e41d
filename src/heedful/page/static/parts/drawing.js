// How a language model goes on: with the likeliest words, or with words drawn at random.

import { h } from "heedful/parts/dom.js";
import { refill } from "heedful/parts/refill.js";
import { MOST_SEED } from "heedful/state/selection.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */

export class Drawing {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.host = host;
    this.page = page;
  }

  /** @param {Selection} selection @param {import("heedful/data/trace.js").Trace} trace */
  show({ seed, top_k, top_p }, { manifest }) {
    const { store, source } = this.page;
    this.host.hidden = manifest.model.task !== "language" || !source.live;
    if (this.host.hidden) return;
    const draws = seed !== null;
    const number = (/** @type {string} */ name, /** @type {"seed" | "top_k" | "top_p"} */ which, /** @type {number} */ value, /** @type {object} */ range) =>
      h("label", { class: "choice" }, h("span", null, name), h("input", { type: "number", "aria-label": name, value, ...range, onchange: (/** @type {any} */ event) => {
        if (event.target.checkValidity() && event.target.value !== "") store.set({ [which]: event.target.valueAsNumber, prefix: [], step: 0 });
      } }));
    const manner = (/** @type {boolean} */ drawn, /** @type {string} */ text) =>
      h("button", { type: "button", "aria-pressed": String(drawn === draws), onclick: () => drawn !== draws && store.set({ seed: drawn ? 0 : null, beam: 0, prefix: [], step: 0 }) }, text);
    refill(this.host,
      h("div", { class: "row-buttons", role: "group", "aria-label": "How the text goes on" }, manner(false, "The likeliest words"), manner(true, "Words drawn at random")),
      draws ? h("div", { class: "controls" },
        number("Top k (0: all words)", "top_k", top_k, { min: 0, step: 1 }),
        number("Top p", "top_p", top_p, { min: 0.05, max: 1, step: 0.05 }),
        number("Seed", "seed", /** @type {number} */ (seed), { min: 0, max: MOST_SEED, step: 1 }),
        h("button", { type: "button", class: "primary", data: { name: "again" }, onclick: () => store.set({ seed: (Number(seed) + 1) % MOST_SEED, prefix: [], step: 0 }) }, "Draw again")) : "");
  }
}
