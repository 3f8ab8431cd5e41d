// The first screen under the workbench: sampling settings, the next word, and the map of all heads.

import { computeDistribution, formatExponential, getTopK } from "heedful/data/numerics.js";
import { getTask } from "heedful/data/task.js";
import { getTokenText } from "heedful/data/trace.js";
import { forceToken, getEndId, getStep, StepSlider } from "heedful/parts/decoding.js";
import { formatNumber, h, updateChildren } from "heedful/parts/dom.js";
import { MAX_SEED } from "heedful/state/selection.js";
import { MapView } from "heedful/views/map.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */
/** @typedef {import("heedful/data/numerics.js").Distribution} Distribution */

/** @type {import("heedful/main.js").View} */
export const translateView = {
  id: "translate",
  title: "Translate",
  mount: (host, page) => new TranslateView(host, page),
};

class TranslateView {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    const sampling = h("section", { class: "sampling", "aria-label": "Text generation", hidden: true });
    const next = h("section", { class: "next-word", "aria-label": "Next word" });
    const map = h("div", { class: "small-map" });
    host.append(sampling, h("div", { class: "first-screen" }, next, map)); // side by side on wide screens
    this.samplingControls = new SamplingControls(sampling, page);
    this.nextWord = new NextWord(next, page);
    this.map = new MapView(map, page);
    /** The state of the last map drawing: sliders must not redraw it. */
    this.renderedMap = "";
  }

  /** @param {Selection} selection @param {Trace} trace */
  async show(selection, trace) {
    const { kind, layer, head, off } = selection;
    const mapKey = JSON.stringify([trace.id, kind, layer, head, off]);
    const mapChanged = mapKey !== this.renderedMap;
    this.samplingControls.show(selection, trace);
    await Promise.all([this.nextWord.show(selection, trace), mapChanged ? this.map.show(selection, trace) : null]);
    if (!this.page.isStale(selection, trace)) this.renderedMap = mapKey;
  }

  hide() {
    this.renderedMap = ""; // the theme may have changed while another view was shown
  }
}

const MAX_ROWS = 20;
/** Tokens visible at once; the others are collapsed, so that the map stays on the first screen. */
const VISIBLE_ROWS = 10;
const MIN_TEMPERATURE = 0.1;
const MAX_TEMPERATURE = 5;

export class NextWord {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    const steps = h("div");
    this.temperature = h("input", {
      type: "range", min: MIN_TEMPERATURE, max: MAX_TEMPERATURE, step: 0.1, id: "next-word-temperature",
      oninput: () => this.#setTemperature(this.temperature.valueAsNumber),
    });
    this.temperatureValue = h("output", { for: "next-word-temperature" });
    this.reset = h("button", { type: "button", class: "small", onclick: () => this.#setTemperature(1) }, "Reset to 1");
    this.formula = h("div", { class: "softmax" });
    this.bars = h("div");
    this.moreBars = h("div");
    this.more = h("details", null, h("summary"), this.moreBars);
    this.heading = h("h2");
    this.temperatureHint = h("p", { class: "legend" });
    host.append(
      this.heading,
      h("div", { class: "next-word-columns" },
        h("div", null, steps),
        h("div", null,
          h("div", { class: "temperature" }, h("label", { for: "next-word-temperature" }, "Temperature T"), this.temperature, this.temperatureValue, this.reset),
          this.temperatureHint)),
      this.bars, this.more, this.formula);
    this.steps = new StepSlider(steps, page);
    /** Whether the forced token gets the focus after the update. */
    this.refocus = false;
  }

  /** @param {number} temperature */
  #setTemperature(temperature) {
    this.page.store.set({ temperature }, { replace: true });
  }

  /** @param {Selection} selection @param {Trace} trace */
  async show(selection, trace) {
    const step = getStep(selection, trace);
    const { nextHeading, resultNoun } = getTask(trace.manifest.model);
    this.heading.textContent = nextHeading;
    this.temperatureHint.textContent = `Below 1 more deterministic, above 1 more random. ${selection.seed === null ? `It changes the probabilities shown here, not the ${resultNoun}.` : "Words are sampled at this temperature."}`;
    this.steps.show(selection, trace);
    const name = `logits.${step}`;
    const isMissing = !(name in trace.manifest.tensors); // a saved page may leave them out to stay small
    const temperature = isMissing ? 1 : selection.temperature;
    this.temperature.value = temperature;
    this.temperature.disabled = isMissing;
    this.temperatureValue.textContent = String(temperature);
    this.reset.hidden = temperature === 1;
    const { logits, distribution } = isMissing ? readListedLogits(trace, step) : await this.#computeDistribution(trace, name, temperature);
    if (trace !== this.page.trace || getStep(this.page.store.selection, trace) !== step) return; // the slider has moved on
    const best = getTopK(logits, MAX_ROWS);
    this.#renderFormula(trace, step, logits, distribution, best, temperature);
    const createTable = (/** @type {number} */ from, /** @type {number} */ to) => this.#createTable(trace, step, logits, distribution, best.slice(from, to), from + 1);
    this.bars.replaceChildren(createTable(0, VISIBLE_ROWS));
    this.moreBars.replaceChildren(createTable(VISIBLE_ROWS, MAX_ROWS));
    this.more.firstChild.textContent = `The next ${best.length - VISIBLE_ROWS}`;
    this.more.hidden = best.length <= VISIBLE_ROWS;
    if (this.refocus) [this.bars, this.moreBars].map((bars) => bars.querySelector("button.written")).find(Boolean)?.focus();
    this.refocus = false;
  }

  /** @param {Trace} trace @param {string} name @param {number} temperature */
  async #computeDistribution(trace, name, temperature) {
    const { data: logits } = await trace.loadTensor(name);
    return { logits, distribution: computeDistribution(logits, temperature) };
  }

  /**
   * The formula with the numbers of this step.
   * @param {Trace} trace @param {number} step @param {ArrayLike<number>} logits @param {Distribution} distribution @param {number[]} best @param {number} temperature
   */
  #renderFormula(trace, step, logits, { probabilities, logSum, entropy }, best, temperature) {
    const writtenId = trace.sides.target.ids[step];
    const listedProbability = best.reduce((sum, id) => sum + probabilities[id], 0);
    const maxEntropy = Math.log2(logits.length);
    this.formula.replaceChildren(
      h("p", null, "probability = exp(logit / T) / sum of exp(logit / T). For ", h("bdi", { class: "token" }, getTokenText(trace.manifest, writtenId)),
        `: exp(${formatNumber(logits[writtenId])} / ${temperature}) / ${formatExponential(logSum)} = ${formatExponential(logits[writtenId] / temperature)} / ${formatExponential(logSum)} = `,
        h("strong", null, formatNumber(probabilities[writtenId])), "."),
      h("p", { class: "legend" }, `The sum runs over all ${logits.length.toLocaleString("en")} tokens of the vocabulary; the ${best.length} listed tokens hold ${formatNumber(listedProbability)} of the probability. `,
        `Entropy ${formatNumber(entropy, 3)} bits: 0 is certain, ${formatNumber(maxEntropy, 2)} is a uniform distribution. ▁ is a space.`));
  }

  /**
   * @param {Trace} trace @param {number} step @param {ArrayLike<number>} logits @param {Distribution} distribution
   * @param {number[]} ids @param {number} first the rank of the first, from 1
   */
  #createTable(trace, step, logits, { probabilities }, ids, first) {
    const head = ["Token", "Logit", "Probability"].map((name) => h("th", { scope: "col" }, name));
    return h("table", { class: "probability-table", "aria-label": `Most probable tokens, ranks ${first} to ${first + ids.length - 1}` },
      h("thead", null, h("tr", null, head, h("td"))),
      h("tbody", null, ids.map((id) => h("tr", null,
        h("th", { scope: "row", dir: "auto" }, this.#createToken(trace, step, id)),
        h("td", null, formatNumber(logits[id])),
        h("td", null, formatNumber(probabilities[id])),
        h("td", null, h("span", { class: "probability-bar", "aria-hidden": "true", style: `--p: ${probabilities[id].toFixed(4)}` }))))));
  }

  /** A button that forces a token, if there is a live model. @param {Trace} trace @param {number} step @param {number} id */
  #createToken(trace, step, id) {
    const name = getTokenText(trace.manifest, id);
    const isWritten = id === trace.sides.target.ids[step];
    if (!this.page.source.live || id === getEndId(trace) || trace.manifest.blank_positions) return h("span", { class: "token" }, name, isWritten ? (trace.manifest.blank_positions ? " ✓" : " (written)") : "");
    return h("button", {
      type: "button", class: isWritten ? "written" : "", title: `Write ${name} here`, "aria-label": `${name}${isWritten ? ", written" : ""}: force it here`,
      onclick: () => {
        this.refocus = true;
        forceToken(this.page, trace, step, id);
      },
    }, name);
  }
}

/**
 * The distribution from the manifest alone. The normalizer follows from the written token, whose probability is given
 * at temperature 1, whatever the sampling temperature was.
 * @param {Trace} trace @param {number} step @returns {{logits: Float64Array, distribution: Distribution}}
 */
function readListedLogits({ manifest }, step) {
  const { top, entropy, id: writtenId, logit, log_probability } = manifest.steps[step];
  const logSum = logit - log_probability;
  const logits = new Float64Array(manifest.model.vocab_size.target).fill(-Infinity);
  for (const candidate of [{ id: writtenId, logit }, ...top]) logits[candidate.id] = candidate.logit;
  return { logits, distribution: { probabilities: logits.map((logit) => Math.exp(logit - logSum)), logSum, entropy } };
}

export class SamplingControls {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.host = host;
    this.page = page;
  }

  /** @param {Selection} selection @param {import("heedful/data/trace.js").Trace} trace */
  show({ seed, top_k, top_p }, { manifest }) {
    const { store, source } = this.page;
    this.host.hidden = manifest.model.task !== "generate" || !source.live;
    if (this.host.hidden) return;
    const isSampling = seed !== null;
    const createNumberField = (/** @type {string} */ name, /** @type {"seed" | "top_k" | "top_p"} */ field, /** @type {number} */ value, /** @type {object} */ range) =>
      h("label", { class: "select-field" }, h("span", null, name), h("input", { type: "number", "aria-label": name, value, ...range, onchange: (/** @type {any} */ event) => {
        if (event.target.checkValidity() && event.target.value !== "") store.set({ [field]: event.target.valueAsNumber, prefix: [], step: 0 });
      } }));
    const createModeButton = (/** @type {boolean} */ sampled, /** @type {string} */ text) =>
      h("button", { type: "button", "aria-pressed": String(sampled === isSampling), onclick: () => sampled !== isSampling && store.set({ seed: sampled ? 0 : null, beam: 0, prefix: [], step: 0 }) }, text);
    updateChildren(this.host,
      h("div", { class: "row-buttons", role: "group", "aria-label": "Text generation" }, createModeButton(false, "Most probable words"), createModeButton(true, "Random sampling")),
      isSampling ? h("div", { class: "controls" },
        createNumberField("Top k (0: all words)", "top_k", top_k, { min: 0, step: 1 }),
        createNumberField("Top p", "top_p", top_p, { min: 0.05, max: 1, step: 0.05 }),
        createNumberField("Seed", "seed", /** @type {number} */ (seed), { min: 0, max: MAX_SEED, step: 1 }),
        h("button", { type: "button", class: "primary", data: { name: "again" }, onclick: () => store.set({ seed: (Number(seed) + 1) % MAX_SEED, prefix: [], step: 0 }) }, "Sample again")) : "");
  }
}
