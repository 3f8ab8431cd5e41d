// The ribbon: source words above, target words below, and bands between them; band width is attention weight.

import { getTask } from "heedful/data/task.js";
import { getTensorPrefix } from "heedful/data/trace.js";
import { renderElements } from "heedful/export/page_svg.js";
import { createImageButtons } from "heedful/export/svg.js";
import { formatNumber, formatPercent, h, svg } from "heedful/parts/dom.js";

/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/data/trace.js").Weights} Weights */

const HEIGHT = 64;
/** Minimum weight of a band. */
const MIN_BAND_WEIGHT = 0.05;
/** Source words listed below the ribbon: maximum number and minimum weight. */
const MAX_LISTED = 5;
const MIN_LISTED_WEIGHT = 0.01;
/** Coverage: a source word with less total weight from all target words may be untranslated. */
const MIN_COVERAGE = 0.3;
const LOW_COVERAGE = "almost no target word attends to it; it may be untranslated";
/** Pixels at an edge where words fade out. */
const FADE_WIDTH = 44;

export class Ribbon {
  /** @param {HTMLElement} host @param {(step: number) => void} choose called with the first token of a clicked word */
  constructor(host, choose) {
    this.host = host;
    this.choose = choose;
    /** @type {Trace | null} */
    this.trace = null;
    /** @type {Weights | null} */
    this.weights = null;
    /** @type {HTMLElement[]} */
    this.sourceWords = [];
    /** Buttons, except for words that the model did not predict. @type {HTMLElement[]} */
    this.targetWords = [];
    this.selectedWord = 0;
    /** The word under the pointer or with the focus. @type {number | null} */
    this.hoveredWord = null;
    this.sourceRow = h("div", { class: "ribbon-row", dir: "auto", role: "group", "aria-label": "Source words" });
    this.targetRow = h("div", { class: "ribbon-row", dir: "auto", role: "group" });
    this.bands = svg("svg", { class: "ribbon-bands", height: HEIGHT, "aria-hidden": "true" });
    this.inner = h("div", { class: "ribbon-inner" }, this.sourceRow, this.bands, this.targetRow);
    this.status = h("p", { class: "status-line", role: "status" });
    this.caption = h("p", { class: "legend" });
    this.scroller = h("div", { class: "ribbon-scroll", onscroll: () => this.#updateEdges() }, this.inner);
    this.frame = h("div", { class: "ribbon-frame" }, this.scroller);
    const downloads = h("div", { class: "toolbar", role: "group", "aria-label": "Download the ribbon" },
      h("span", { class: "toolbar-label" }, "Ribbon"), createImageButtons(() => this.#renderSvg(), "heedful-ribbon", "ribbon"));
    host.append(this.frame, h("div", { class: "ribbon-foot" }, this.status, downloads), this.caption);
    const resizeObserver = new ResizeObserver(() => {
      this.#render();
      this.#scrollToSelected();
      this.#updateEdges();
    });
    for (const part of [this.scroller, this.inner]) resizeObserver.observe(part);
  }

  /** Fade the edges where more words follow. */
  #updateEdges() {
    const { scrollLeft, scrollWidth, clientWidth } = this.scroller;
    this.frame.classList.toggle("more-left", scrollLeft > 1);
    this.frame.classList.toggle("more-right", scrollLeft + clientWidth < scrollWidth - 1);
  }

  #renderSvg() {
    const { request, translation, alignment } = /** @type {Trace} */ (this.trace).manifest;
    return renderElements([this.host], `${alignment ? "Where each word comes from" : "Probability of each word"} · Heedful`, [request.source, `→ ${translation.text}`]);
  }

  /** Words and weights of a trace. @param {Trace} trace @param {number} step */
  async show(trace, step) {
    if (trace !== this.trace) {
      this.trace = trace;
      this.weights = null;
      this.hoveredWord = null;
      this.#renderWords(trace);
    }
    this.selectedWord = trace.sides.target.word_ids[step];
    this.targetWords.forEach((word, i) => word instanceof HTMLButtonElement && word.setAttribute("aria-pressed", String(i === this.selectedWord)));
    const hasBands = trace.manifest.alignment !== null; // there is a source to attend to
    for (const part of [this.sourceRow, this.bands, this.status]) part.toggleAttribute("hidden", !hasBands);
    if (!hasBands) {
      this.#scrollToSelected();
      this.#updateEdges();
      return;
    }
    const { layer, head } = trace.manifest.alignment;
    if (!(`${getTensorPrefix("cross", layer)}.weights` in trace.manifest.tensors)) {
      this.bands.replaceChildren();
      this.status.textContent = "To stay small, this file does not include the weights of the ribbon. A running server shows them: heedful serve MODEL.";
      return;
    }
    const weights = await trace.loadWeights("cross", layer, head, true);
    if (trace !== this.trace) return;
    this.weights = weights;
    this.#markLowCoverage(trace, weights);
    this.#render();
    this.#scrollToSelected();
    this.#updateEdges();
  }

  /** Scroll to the selected word: another view may have selected it. */
  #scrollToSelected() {
    const word = this.targetWords[this.selectedWord];
    if (!word) return;
    const { scrollLeft, clientWidth } = this.scroller;
    if (word.offsetLeft >= scrollLeft + FADE_WIDTH && word.offsetLeft + word.offsetWidth <= scrollLeft + clientWidth - FADE_WIDTH) return;
    this.scroller.scrollLeft = getMiddle(word) - clientWidth / 2;
  }

  /** @param {number} step */
  focus(step) {
    if (this.trace) this.targetWords[this.trace.sides.target.word_ids[step]]?.focus();
  }

  /** @param {Trace} trace */
  #renderWords(trace) {
    const { source, target } = trace.sides;
    this.sourceWords = source.words.map((word) => h("span", { class: "source-word", title: isEnd(word) ? "the end of the sentence" : "" }, word));
    const probabilities = computeWordProbabilities(trace);
    const decidedWords = new Set(trace.steps.map((step) => target.word_ids[step]));
    this.targetWords = target.words.map((word, i) => !decidedWords.has(i) ? h("span", { class: "source-word" }, word) :
      h("button", {
        type: "button", class: "target-word", style: `--p: ${probabilities[i].toFixed(4)}`,
        "aria-label": `${isEnd(word) ? "end of the sentence" : word}, probability ${formatPercent(probabilities[i])}. Show alternatives.`,
        onclick: () => this.choose(/** @type {number} */ (trace.steps.find((step) => target.word_ids[step] === i))),
        onpointerenter: () => this.#setHovered(i), onpointerleave: () => this.#setHovered(null),
        onfocus: () => this.#setHovered(i), onblur: () => this.#setHovered(null),
      }, h("span", { class: "target-text" }, word), h("small", null, formatPercent(probabilities[i]))));
    this.sourceRow.replaceChildren(...this.sourceWords);
    this.targetRow.replaceChildren(...this.targetWords);
    this.targetRow.setAttribute("aria-label", `Words of the ${getTask(trace.manifest.model).resultNoun}`);
    this.caption.textContent = getCaption(trace);
  }

  /** Words with low coverage get a dashed border. @param {Trace} trace @param {Weights} weights */
  #markLowCoverage(trace, weights) {
    const coverage = computeCoverage(weights);
    const isLow = weights.columns.map((word, j) => coverage[j] < MIN_COVERAGE && /[\p{L}\p{N}]/u.test(word) && !isEnd(word));
    this.sourceWords.forEach((word, j) => {
      word.classList.toggle("low-coverage", isLow[j]);
      if (isLow[j]) word.title = LOW_COVERAGE;
    });
    const words = weights.columns.filter((_, j) => isLow[j]);
    this.caption.replaceChildren(getCaption(trace));
    if (!words.length) return;
    const suffix = words.length > MAX_LISTED ? ` and ${words.length - MAX_LISTED} more` : "";
    this.caption.append(" Dashed (here ", ...words.slice(0, MAX_LISTED).flatMap((word, i) => [i ? ", " : "", h("bdi", null, `“${word}”`)]), `${suffix}): ${LOW_COVERAGE}.`);
  }

  /** @param {number | null} row */
  #setHovered(row) {
    this.hoveredWord = row;
    this.#render();
  }

  /** Highlight the sources of the hovered or selected word. */
  #render() {
    const { weights } = this;
    if (!weights || !this.inner.clientWidth) return;
    const active = this.hoveredWord ?? this.selectedWord;
    const columns = weights.columns.length;
    const row = weights.values.subarray(active * columns, (active + 1) * columns);
    this.sourceWords.forEach((word, j) => {
      word.style.setProperty("--w", row[j].toFixed(4));
      word.classList.toggle("highlighted", row[j] >= MIN_BAND_WEIGHT);
    });
    this.targetWords.forEach((word, i) => word.classList.toggle("highlighted", i === active));
    const faint = weights.rows.map((_, i) => (i === active ? null : this.#createBand(i, findStrongest(weights, i), 0.12, "faint")));
    const strong = Array.from(row, (weight, j) => (weight >= MIN_BAND_WEIGHT ? this.#createBand(active, j, weight, "strong") : null));
    this.bands.setAttribute("width", String(this.inner.clientWidth));
    this.bands.replaceChildren(...[...faint, ...strong].filter((band) => band !== null));
    this.#describe(weights.rows[active], Array.from(row, (weight, j) => ({ weight, word: weights.columns[j] })));
  }

  /** The sources in words. @param {string} word @param {{weight: number, word: string}[]} sources */
  #describe(word, sources) {
    const strongest = sources.filter(({ weight }) => weight >= MIN_LISTED_WEIGHT).sort((a, b) => b.weight - a.weight).slice(0, MAX_LISTED);
    this.status.replaceChildren(h("bdi", null, `“${word}”`), " attends to ",
      ...strongest.flatMap((source, i) => [i ? ", " : "", h("bdi", null, source.word), ` ${formatNumber(source.weight, 2)}`]), ".");
  }

  /** A band between two words, at their positions on the screen. @param {number} target @param {number} source @param {number} weight @param {string} name */
  #createBand(target, source, weight, name) {
    const x1 = getMiddle(this.sourceWords[source]);
    const x2 = getMiddle(this.targetWords[target]);
    return svg("path", {
      class: `band ${name}`, d: `M${x1} 0 C${x1} ${HEIGHT / 2} ${x2} ${HEIGHT / 2} ${x2} ${HEIGHT}`,
      "stroke-width": (1 + 11 * weight).toFixed(2), "stroke-opacity": (0.25 + 0.6 * weight).toFixed(2),
    });
  }
}

/** For each word the product of the probabilities of its tokens. @param {Trace} trace @returns {number[]} */
export function computeWordProbabilities(trace) {
  const { word_ids: wordIds, words } = trace.sides.target;
  const probabilities = words.map(() => 1);
  for (const step of trace.steps) probabilities[wordIds[step]] *= trace.manifest.steps[step].probability;
  return probabilities;
}

/** @param {string} word */
function isEnd(word) {
  return word === "</s>";
}

/** @param {HTMLElement} word both rows have the same offset parent */
function getMiddle(word) {
  return word.offsetLeft + word.offsetWidth / 2;
}

/** The source word with the largest weight for a target word. @param {Weights} weights @param {number} row */
function findStrongest({ values, columns }, row) {
  let best = 0;
  for (let j = 1; j < columns.length; j++) if (values[row * columns.length + j] > values[row * columns.length + best]) best = j;
  return best;
}

/** The meaning of bands and shades. @param {Trace} trace */
function getCaption({ manifest: { blank_positions: blanks, alignment, model: { layers: { cross: layers } } } }) {
  if (blanks) return "Shade and percentage of a word: the probability of the most probable token in its blank; each blank is filled independently.";
  if (!alignment) return "Shade and percentage of a word: its probability given the words before it, the product over its tokens. </s> is the end of the text.";
  const { layer, head } = alignment;
  return `Bands: cross-attention of decoder layer ${layer + 1}, ${head === null ? "mean of all heads" : `head ${head + 1}`}, in the row that writes the word${layer + 1 < layers ? ": the second-to-last layer usually aligns words best" : ""}. ` +
    "Shade and percentage of a word: its probability given the words before it, the product over its tokens. " +
    "</s> is the end of the sentence, a common attention sink.";
}

/** Coverage: the total weight of each source word over all target words; the end row does not count. @param {Weights} weights */
function computeCoverage({ rows, columns, values }) {
  return columns.map((_, j) => rows.reduce((sum, word, i) => (isEnd(word) ? sum : sum + values[i * columns.length + j]), 0));
}
