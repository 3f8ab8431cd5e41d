// Head importance: each head is switched off alone, and the change of the original translation ranks them.

import { describeHeads, listLayerHeads } from "heedful/data/heads.js";
import { getTokenText, KINDS } from "heedful/data/trace.js";
import { scoreWords, sumScores } from "heedful/parts/comparison.js";

/** @typedef {import("heedful/data/trace.js").Kind} Kind */
/**
 * The effect of removing some heads: the change of log-probability, and the first word that changes.
 * @typedef {{off: string[], name: string, change: number, changedWord: {from: string, to: string, probability: number} | null}} Finding
 */

/** Heads tried at most: the largest model of the paper has 288. */
const MAX_HEADS = 400;
/** The strongest heads whose pairs are tried if no single head changes the word. */
const MAX_PAIRED = 5;

export class HeadAblation {
  /**
   * @param {(off: string[]) => Promise<any>} readWithout rescore the original translation without these heads
   * @param {any} original the manifest of the original translation
   * @param {number | null} word the word to watch; null for all words
   */
  constructor(readWithout, original, word) {
    this.readWithout = readWithout;
    this.original = original;
    this.word = word;
    this.abortController = new AbortController();
    /** Resolves on stop: the pending response is not awaited then, but stays in the cache. */
    this.aborted = new Promise((resolve) => this.abortController.signal.addEventListener("abort", resolve));
    this.baseline = this.#measure(original);
    /** @type {Finding[]} */
    this.findings = [];
    this.triedCount = 0;
    this.plannedCount = 0;
    /** Whether all findings are complete. */
    this.finished = false;
  }

  stop() {
    this.abortController.abort();
    this.finished = true;
  }

  get stopped() {
    return this.abortController.signal.aborted;
  }

  /** @param {() => void} onProgress */
  async run(onProgress) {
    const { layers, heads } = this.original.model;
    await this.#runSets(listHeads(layers, heads).slice(0, MAX_HEADS).map((head) => [head]), onProgress);
    if (!this.stopped && !this.findings.some((finding) => finding.changedWord)) {
      await this.#runSets([...this.#getPairs(), ...listLayers(layers, heads)], onProgress);
    }
    this.finished = true;
  }

  /** Pairs of the most important heads. @returns {string[][]} */
  #getPairs() {
    const strongest = [...this.findings].sort((a, b) => a.change - b.change).slice(0, MAX_PAIRED).map((finding) => finding.off[0]);
    return strongest.flatMap((first, i) => strongest.slice(i + 1).map((second) => [first, second]));
  }

  /** @param {string[][]} sets @param {() => void} onProgress */
  async #runSets(sets, onProgress) {
    this.plannedCount += sets.length;
    for (const off of sets) {
      if (this.stopped) return;
      const manifest = await Promise.race([this.readWithout(off), this.aborted]);
      if (this.stopped) return;
      this.triedCount += 1;
      this.findings.push({ off, name: describeHeads(off), change: this.#measure(manifest) - this.baseline, changedWord: this.#findChangedWord(manifest) });
      onProgress();
    }
  }

  /** @param {any} manifest */
  #measure(manifest) {
    const words = scoreWords(manifest, this.original.translation.complete);
    return this.word === null ? sumScores(words) : words[this.word].logProbability;
  }

  /** The first watched word that is no longer the most probable. @param {any} manifest */
  #findChangedWord(manifest) {
    const { word_ids: wordIds, words } = manifest.sides.target;
    const watchedCount = words.length - (this.original.translation.complete ? 0 : 1);
    const step = manifest.steps.findIndex((/** @type {any} */ entry, /** @type {number} */ number) =>
      (this.word === null ? wordIds[number] < watchedCount : wordIds[number] === this.word) && entry.rank > 1);
    if (step < 0) return null;
    const [best] = manifest.steps[step].top;
    return { from: getPlainText(manifest, manifest.steps[step].id), to: getPlainText(manifest, best.id), probability: best.probability };
  }
}

/** All head names. @param {Record<Kind, number>} layers @param {number} heads @returns {string[]} */
function listHeads(layers, heads) {
  return listLayers(layers, heads).flat();
}

/** The head names of every layer. @param {Record<Kind, number>} layers @param {number} heads @returns {string[][]} */
function listLayers(layers, heads) {
  return KINDS.flatMap((kind) => Array.from({ length: layers[kind] }, (_, layer) => listLayerHeads(kind, layer, heads)));
}

/** A token without its leading space mark. @param {any} manifest @param {number} id */
function getPlainText(manifest, id) {
  const name = getTokenText(manifest, id);
  return name.replaceAll("▁", "") || name;
}
