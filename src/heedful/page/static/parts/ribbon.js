// The ribbon: source words above, target words below, and bands between them as wide as the attention.

import { taskOf } from "heedful/data/task.js";
import { place } from "heedful/data/trace.js";
import { h, percent, shown, svg } from "heedful/parts/dom.js";
import { pictureButtons } from "heedful/parts/picture.js";
import { snapshot } from "heedful/parts/snapshot.js";

/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/data/trace.js").Weights} Weights */

const HEIGHT = 64;
/** Bands of a word that are drawn: at least this much weight. */
const LEAST = 0.05;
/** Words that a sentence below the ribbon lists, and the weight they have at least. */
const LISTED = 5;
const MENTIONED = 0.01;
/** A word of the source that gets less than this from all words of the translation together: hardly any draws from it. */
const HARDLY = 0.3;
const LEFT_OUT = "hardly any word of the translation draws from it; something may be left out";
/** Pixels at an edge where words fade because there are more. */
const FADE = 44;

export class Ribbon {
  /** @param {HTMLElement} host @param {(step: number) => void} choose called with the first piece of a word that is clicked */
  constructor(host, choose) {
    this.host = host;
    this.choose = choose;
    /** @type {Trace | null} */
    this.trace = null;
    /** @type {Weights | null} */
    this.weights = null;
    /** @type {HTMLElement[]} */
    this.above = [];
    /** Buttons, but for words that the model did not decide. @type {HTMLElement[]} */
    this.below = [];
    this.chosen = 0;
    /** The word under the pointer or the focus. @type {number | null} */
    this.pointed = null;
    this.sourceRow = h("div", { class: "ribbon-row", dir: "auto", role: "group", "aria-label": "Source words" });
    this.targetRow = h("div", { class: "ribbon-row", dir: "auto", role: "group" });
    this.bands = svg("svg", { class: "ribbon-bands", height: HEIGHT, "aria-hidden": "true" });
    this.inner = h("div", { class: "ribbon-inner" }, this.sourceRow, this.bands, this.targetRow);
    this.told = h("p", { class: "told", role: "status" });
    this.caption = h("p", { class: "legend" });
    this.scroller = h("div", { class: "ribbon-scroll", onscroll: () => this.#edges() }, this.inner);
    this.frame = h("div", { class: "ribbon-frame" }, this.scroller);
    const taking = h("div", { class: "toolbar", role: "group", "aria-label": "Download the ribbon" },
      h("span", { class: "toolbar-label" }, "Ribbon"), pictureButtons(() => this.#picture(), "heedful-ribbon", "ribbon"));
    host.append(this.frame, h("div", { class: "ribbon-foot" }, this.told, taking), this.caption);
    const sizes = new ResizeObserver(() => {
      this.#draw();
      this.#reveal();
      this.#edges();
    });
    for (const part of [this.scroller, this.inner]) sizes.observe(part);
  }

  /** Where there are more words to the left or to the right, the row fades and an arrow says so. */
  #edges() {
    const { scrollLeft, scrollWidth, clientWidth } = this.scroller;
    this.frame.classList.toggle("more-left", scrollLeft > 1);
    this.frame.classList.toggle("more-right", scrollLeft + clientWidth < scrollWidth - 1);
  }

  #picture() {
    const { asked, translation, ribbon } = /** @type {Trace} */ (this.trace).manifest;
    return snapshot([this.host], `${ribbon ? "Where each word comes from" : "How likely each word is"} · Heedful`, [asked.source, `→ ${translation.text}`]);
  }

  /** Words and weights of a trace. @param {Trace} trace @param {number} step */
  async show(trace, step) {
    if (trace !== this.trace) {
      this.trace = trace;
      this.weights = null;
      this.pointed = null;
      this.#words(trace);
    }
    this.chosen = trace.sides.written.groups[step];
    this.below.forEach((word, i) => word instanceof HTMLButtonElement && word.setAttribute("aria-pressed", String(i === this.chosen)));
    const bands = trace.manifest.ribbon !== null; // there is a source that words come from
    for (const part of [this.sourceRow, this.bands, this.told]) part.toggleAttribute("hidden", !bands);
    if (!bands) {
      this.#reveal();
      this.#edges();
      return;
    }
    const { layer, head } = trace.manifest.ribbon;
    if (!(`${place("cross", layer)}.weights` in trace.manifest.tensors)) {
      this.bands.replaceChildren();
      this.told.textContent = "To stay small, this file leaves out the weights of the ribbon. A running server shows them: heedful serve MODEL.";
      return;
    }
    const weights = await trace.weights("cross", layer, head, true);
    if (trace !== this.trace) return;
    this.weights = weights;
    this.#leftOut(trace, weights);
    this.#draw();
    this.#reveal();
    this.#edges();
  }

  /** Move sideways to the chosen word if it is out of sight: another view may have chosen it. */
  #reveal() {
    const word = this.below[this.chosen];
    if (!word) return;
    const { scrollLeft, clientWidth } = this.scroller;
    if (word.offsetLeft >= scrollLeft + FADE && word.offsetLeft + word.offsetWidth <= scrollLeft + clientWidth - FADE) return;
    this.scroller.scrollLeft = middle(word) - clientWidth / 2;
  }

  /** @param {number} step */
  focus(step) {
    if (this.trace) this.below[this.trace.sides.written.groups[step]]?.focus();
  }

  /** @param {Trace} trace */
  #words(trace) {
    const { source, written } = trace.sides;
    this.above = source.words.map((word) => h("span", { class: "source-word", title: isEnd(word) ? "the end of the sentence" : "" }, word));
    const chances = wordProbabilities(trace);
    const decided = new Set(trace.steps.map((step) => written.groups[step]));
    this.below = written.words.map((word, i) => !decided.has(i) ? h("span", { class: "source-word" }, word) :
      h("button", {
        type: "button", class: "target-word", style: `--p: ${chances[i].toFixed(4)}`,
        "aria-label": `${isEnd(word) ? "end of the sentence" : word}, probability ${percent(chances[i])}. Show alternatives.`,
        onclick: () => this.choose(/** @type {number} */ (trace.steps.find((step) => written.groups[step] === i))),
        onpointerenter: () => this.#point(i), onpointerleave: () => this.#point(null),
        onfocus: () => this.#point(i), onblur: () => this.#point(null),
      }, h("span", { class: "target-text" }, word), h("small", null, percent(chances[i]))));
    this.sourceRow.replaceChildren(...this.above);
    this.targetRow.replaceChildren(...this.below);
    this.targetRow.setAttribute("aria-label", `Words of the ${taskOf(trace.manifest.model).written}`);
    this.caption.textContent = captionOf(trace);
  }

  /** Words that the translation hardly draws from get a dashed border. @param {Trace} trace @param {Weights} weights */
  #leftOut(trace, weights) {
    const drawn = drawnFrom(weights);
    const dashed = weights.columns.map((word, j) => drawn[j] < HARDLY && /[\p{L}\p{N}]/u.test(word) && !isEnd(word));
    this.above.forEach((word, j) => {
      word.classList.toggle("left-out", dashed[j]);
      if (dashed[j]) word.title = LEFT_OUT;
    });
    const found = weights.columns.filter((_, j) => dashed[j]);
    this.caption.replaceChildren(captionOf(trace));
    if (!found.length) return;
    const more = found.length > LISTED ? ` and ${found.length - LISTED} more` : "";
    this.caption.append(" Dashed (here ", ...found.slice(0, LISTED).flatMap((word, i) => [i ? ", " : "", h("bdi", null, `“${word}”`)]), `${more}): ${LEFT_OUT}.`);
  }

  /** @param {number | null} row */
  #point(row) {
    this.pointed = row;
    this.#draw();
  }

  /** Light up what the word drew from: the one pointed at, or else the chosen one. */
  #draw() {
    const { weights } = this;
    if (!weights || !this.inner.clientWidth) return;
    const lit = this.pointed ?? this.chosen;
    const columns = weights.columns.length;
    const row = weights.values.subarray(lit * columns, (lit + 1) * columns);
    this.above.forEach((word, j) => {
      word.style.setProperty("--w", row[j].toFixed(4));
      word.classList.toggle("lit", row[j] >= LEAST);
    });
    this.below.forEach((word, i) => word.classList.toggle("lit", i === lit));
    const faint = weights.rows.map((_, i) => (i === lit ? null : this.#band(i, strongest(weights, i), 0.12, "faint")));
    const strong = Array.from(row, (weight, j) => (weight >= LEAST ? this.#band(lit, j, weight, "strong") : null));
    this.bands.setAttribute("width", String(this.inner.clientWidth));
    this.bands.replaceChildren(...[...faint, ...strong].filter((band) => band !== null));
    this.#tell(weights.rows[lit], Array.from(row, (weight, j) => ({ weight, word: weights.columns[j] })));
  }

  /** The same in words. @param {string} word @param {{weight: number, word: string}[]} sources */
  #tell(word, sources) {
    const most = sources.filter(({ weight }) => weight >= MENTIONED).sort((one, other) => other.weight - one.weight).slice(0, LISTED);
    this.told.replaceChildren(h("bdi", null, `“${word}”`), " drew from ",
      ...most.flatMap((each, i) => [i ? ", " : "", h("bdi", null, each.word), ` ${shown(each.weight, 2)}`]), ".");
  }

  /** A band between two words, where they stand on the screen. @param {number} target @param {number} source @param {number} weight @param {string} name */
  #band(target, source, weight, name) {
    const x1 = middle(this.above[source]);
    const x2 = middle(this.below[target]);
    return svg("path", {
      class: `band ${name}`, d: `M${x1} 0 C${x1} ${HEIGHT / 2} ${x2} ${HEIGHT / 2} ${x2} ${HEIGHT}`,
      "stroke-width": (1 + 11 * weight).toFixed(2), "stroke-opacity": (0.25 + 0.6 * weight).toFixed(2),
    });
  }
}

/** For each word the product of the probabilities of its pieces. @param {Trace} trace @returns {number[]} */
export function wordProbabilities(trace) {
  const { groups, words } = trace.sides.written;
  const found = words.map(() => 1);
  for (const step of trace.steps) found[groups[step]] *= trace.manifest.steps[step].probability;
  return found;
}

/** @param {string} word */
function isEnd(word) {
  return word === "</s>";
}

/** @param {HTMLElement} word its row is the offset parent's child, so both rows count from the same edge */
function middle(word) {
  return word.offsetLeft + word.offsetWidth / 2;
}

/** The source word that a target word looks at most. @param {Weights} weights @param {number} row */
function strongest({ values, columns }, row) {
  let best = 0;
  for (let j = 1; j < columns.length; j++) if (values[row * columns.length + j] > values[row * columns.length + best]) best = j;
  return best;
}

/** What bands and shades mean. @param {Trace} trace */
function captionOf({ manifest: { blanks, ribbon, model: { layers: { cross: layers } } } }) {
  if (blanks) return "Shade and percentage of a word: the probability of the likeliest piece in its blank, which is filled as if it were the only one.";
  if (!ribbon) return "Shade and percentage of a word: its probability after the words before it, the product over its pieces. </s> is the end of the text.";
  const { layer, head } = ribbon;
  return `Bands: cross-attention of decoder layer ${layer + 1}, ${head === null ? "mean of all heads" : `head ${head + 1}`}, in the row that writes the word${layer + 1 < layers ? ": not the last layer, since the last but one mostly aligns words best" : ""}. ` +
    "Shade and percentage of a word: its probability after the words before it, the product over its pieces. " +
    "</s> is the end of the sentence; heads that have nothing to look for often rest there.";
}

/** How much weight each word of the source gets from all words of the translation together; the end's row does not count. @param {Weights} weights */
function drawnFrom({ rows, columns, values }) {
  return columns.map((_, j) => rows.reduce((sum, word, i) => (isEnd(word) ? sum : sum + values[i * columns.length + j]), 0));
}
