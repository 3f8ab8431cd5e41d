// The next word: the likeliest pieces of a step, from logit to probability, at any temperature.

import { taskOf } from "heedful/data/task.js";
import { pieceName } from "heedful/data/trace.js";
import { distribution, exponential, largest } from "heedful/parts/distribution.js";
import { h, shown } from "heedful/parts/dom.js";
import { endId, force, stepOf } from "heedful/parts/forcing.js";
import { StepSlider } from "heedful/parts/step_slider.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */
/** @typedef {import("heedful/parts/distribution.js").Distribution} Distribution */

const SHOWN = 20;
/** Pieces that are seen at once; the rest is folded away, so that the map below stays on the first screen. */
const AT_ONCE = 10;
const COLDEST = 0.1;
const HOTTEST = 5;

export class NextWord {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    const steps = h("div");
    this.temperature = h("input", {
      type: "range", min: COLDEST, max: HOTTEST, step: 0.1, id: "next-word-temperature",
      oninput: () => this.#heat(this.temperature.valueAsNumber),
    });
    this.degrees = h("output", { for: "next-word-temperature" });
    this.reset = h("button", { type: "button", class: "small", onclick: () => this.#heat(1) }, "Back to 1");
    this.formula = h("div", { class: "softmax" });
    this.bars = h("div");
    this.more_bars = h("div");
    this.more = h("details", null, h("summary"), this.more_bars);
    this.heading = h("h2");
    this.heated = h("p", { class: "legend" });
    host.append(
      this.heading,
      h("div", { class: "next-two" },
        h("div", null, steps),
        h("div", null,
          h("div", { class: "temperature" }, h("label", { for: "next-word-temperature" }, "Temperature T"), this.temperature, this.degrees, this.reset),
          this.heated)),
      this.bars, this.more, this.formula);
    this.steps = new StepSlider(steps, page);
    /** Whether the piece that was forced gets the focus when the new translation is there. */
    this.refocus = false;
  }

  /** @param {number} temperature */
  #heat(temperature) {
    this.page.store.set({ temperature }, { replace: true });
  }

  /** @param {Selection} selection @param {Trace} trace */
  async show(selection, trace) {
    const step = stepOf(selection, trace);
    const { next, written } = taskOf(trace.manifest.model);
    this.heading.textContent = next;
    this.heated.textContent = `Below 1 the model is bolder, above 1 the rare words get a chance. ${selection.seed === null ? `It changes what is shown here, not the ${written}.` : "The words are drawn at this temperature."}`;
    this.steps.show(selection, trace);
    const name = `logits.${step}`;
    const left = !(name in trace.manifest.tensors); // a page that stands alone may leave them out to stay small
    const temperature = left ? 1 : selection.temperature;
    this.temperature.value = temperature;
    this.temperature.disabled = left;
    this.degrees.textContent = String(temperature);
    this.reset.hidden = temperature === 1;
    const { logits, found } = left ? listed(trace, step) : await this.#computed(trace, name, temperature);
    if (trace !== this.page.trace || stepOf(this.page.store.selection, trace) !== step) return; // the slider has gone on
    const best = largest(logits, SHOWN);
    this.#explain(trace, step, logits, found, best, temperature);
    const table = (/** @type {number} */ from, /** @type {number} */ to) => this.#table(trace, step, logits, found, best.slice(from, to), from + 1);
    this.bars.replaceChildren(table(0, AT_ONCE));
    this.more_bars.replaceChildren(table(AT_ONCE, SHOWN));
    this.more.firstChild.textContent = `The next ${best.length - AT_ONCE}`;
    this.more.hidden = best.length <= AT_ONCE;
    if (this.refocus) [this.bars, this.more_bars].map((bars) => bars.querySelector("button.written")).find(Boolean)?.focus();
    this.refocus = false;
  }

  /** @param {Trace} trace @param {string} name @param {number} temperature */
  async #computed(trace, name, temperature) {
    const { data: logits } = await trace.tensor(name);
    return { logits, found: distribution(logits, temperature) };
  }

  /**
   * The formula with this step's numbers in it.
   * @param {Trace} trace @param {number} step @param {ArrayLike<number>} logits @param {Distribution} found @param {number[]} best @param {number} temperature
   */
  #explain(trace, step, logits, { probabilities, logSum, entropy }, best, temperature) {
    const written = trace.sides.written.ids[step];
    const together = best.reduce((sum, id) => sum + probabilities[id], 0);
    const most = Math.log2(logits.length);
    this.formula.replaceChildren(
      h("p", null, "probability = exp(logit / T) / sum of exp(logit / T). For ", h("bdi", { class: "piece" }, pieceName(trace.manifest, written)),
        `: exp(${shown(logits[written])} / ${temperature}) / ${exponential(logSum)} = ${exponential(logits[written] / temperature)} / ${exponential(logSum)} = `,
        h("strong", null, shown(probabilities[written])), "."),
      h("p", { class: "legend" }, `The sum runs over all ${logits.length.toLocaleString("en")} pieces of the vocabulary; the ${best.length} listed hold ${shown(together)} of the probability. `,
        `Entropy ${shown(entropy, 3)} bits: 0 is certain, ${shown(most, 2)} would be a blind guess. ▁ is a space.`));
  }

  /**
   * @param {Trace} trace @param {number} step @param {ArrayLike<number>} logits @param {Distribution} found
   * @param {number[]} ids @param {number} first the rank of the first, from 1
   */
  #table(trace, step, logits, { probabilities }, ids, first) {
    const head = ["Piece", "Logit", "Probability"].map((name) => h("th", { scope: "col" }, name));
    return h("table", { class: "bars-table", "aria-label": `Likeliest pieces, ranks ${first} to ${first + ids.length - 1}` },
      h("thead", null, h("tr", null, head, h("td"))),
      h("tbody", null, ids.map((id) => h("tr", null,
        h("th", { scope: "row", dir: "auto" }, this.#piece(trace, step, id)),
        h("td", null, shown(logits[id])),
        h("td", null, shown(probabilities[id])),
        h("td", null, h("span", { class: "chance-bar", "aria-hidden": "true", style: `--p: ${probabilities[id].toFixed(4)}` }))))));
  }

  /** A button that forces the piece, where there is a model to go on with. @param {Trace} trace @param {number} step @param {number} id */
  #piece(trace, step, id) {
    const name = pieceName(trace.manifest, id);
    const written = id === trace.sides.written.ids[step];
    if (!this.page.source.live || id === endId(trace) || trace.manifest.blanks) return h("span", { class: "piece" }, name, written ? (trace.manifest.blanks ? " ✓" : " (written)") : "");
    return h("button", {
      type: "button", class: written ? "written" : "", title: `Write ${name} here`, "aria-label": `${name}${written ? ", written" : ""}: force it here`,
      onclick: () => {
        this.refocus = true;
        force(this.page, trace, step, id);
      },
    }, name);
  }
}

/**
 * What the manifest alone tells: the logits it lists. The sum over all pieces follows from the one that is written,
 * whose probability is at temperature 1, whatever temperature the listed ones were asked at.
 * @param {Trace} trace @param {number} step @returns {{logits: Float64Array, found: Distribution}}
 */
function listed({ manifest }, step) {
  const { top, entropy, id: written, logit, log_probability } = manifest.steps[step];
  const logSum = logit - log_probability;
  const logits = new Float64Array(manifest.model.vocabulary.target).fill(-Infinity);
  for (const each of [{ id: written, logit }, ...top]) logits[each.id] = each.logit;
  return { logits, found: { probabilities: logits.map((logit) => Math.exp(logit - logSum)), logSum, entropy } };
}
