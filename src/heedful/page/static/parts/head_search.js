// Which heads matter: each is switched off alone, and what becomes of the original translation ranks them.

import { KINDS, pieceName } from "heedful/data/trace.js";
import { scoredWords, total } from "heedful/parts/comparison.js";

/** @typedef {import("heedful/data/trace.js").Kind} Kind */
/**
 * What happens without some heads: the change of log-probability, and the first word that would be another one.
 * @typedef {{off: string[], name: string, change: number, turned: {from: string, to: string, probability: number} | null}} Finding
 */

/** Heads that are tried at most: the largest model of the paper has 288. */
const MOST = 400;
/** The strongest heads whose pairs are tried where no single head changes the word. */
const PAIRED = 5;

export class HeadSearch {
  /**
   * @param {(off: string[]) => Promise<any>} read the original translation as read without these heads
   * @param {any} original the manifest of the original translation
   * @param {number | null} word the word that is watched; null for all of them
   */
  constructor(read, original, word) {
    this.read = read;
    this.original = original;
    this.word = word;
    this.stopping = new AbortController();
    /** Comes true when somebody stops: nobody waits here for the answer then, but it may be of use to others. */
    this.halted = new Promise((resolve) => this.stopping.signal.addEventListener("abort", resolve));
    this.before = this.#measured(original);
    /** @type {Finding[]} */
    this.findings = [];
    this.tried = 0;
    this.planned = 0;
    /** Whether nothing more will come. */
    this.finished = false;
  }

  stop() {
    this.stopping.abort();
    this.finished = true;
  }

  get stopped() {
    return this.stopping.signal.aborted;
  }

  /** @param {() => void} progressed */
  async run(progressed) {
    const { layers, heads } = this.original.model;
    await this.#try(allHeads(layers, heads).slice(0, MOST).map((head) => [head]), progressed);
    if (!this.stopped && !this.findings.some((each) => each.turned)) {
      await this.#try([...this.#pairs(), ...wholeLayers(layers, heads)], progressed);
    }
    this.finished = true;
  }

  /** Pairs of the heads that matter most. @returns {string[][]} */
  #pairs() {
    const strongest = [...this.findings].sort((one, other) => one.change - other.change).slice(0, PAIRED).map((each) => each.off[0]);
    return strongest.flatMap((one, i) => strongest.slice(i + 1).map((other) => [one, other]));
  }

  /** @param {string[][]} sets @param {() => void} progressed */
  async #try(sets, progressed) {
    this.planned += sets.length;
    for (const off of sets) {
      if (this.stopped) return;
      const manifest = await Promise.race([this.read(off), this.halted]);
      if (this.stopped) return;
      this.tried += 1;
      this.findings.push({ off, name: setName(off), change: this.#measured(manifest) - this.before, turned: this.#turned(manifest) });
      progressed();
    }
  }

  /** @param {any} manifest */
  #measured(manifest) {
    const scored = scoredWords(manifest, this.original.translation.complete);
    return this.word === null ? total(scored) : scored[this.word].logProbability;
  }

  /** The first watched word that is no longer the likeliest. @param {any} manifest */
  #turned(manifest) {
    const { groups, words } = manifest.sides.written;
    const watched = words.length - (this.original.translation.complete ? 0 : 1);
    const step = manifest.steps.findIndex((/** @type {any} */ each, /** @type {number} */ number) =>
      (this.word === null ? groups[number] < watched : groups[number] === this.word) && each.rank > 1);
    if (step < 0) return null;
    const [best] = manifest.steps[step].top;
    return { from: spelled(manifest, manifest.steps[step].id), to: spelled(manifest, best.id), probability: best.probability };
  }
}

/** Every head by name. @param {Record<Kind, number>} layers @param {number} heads @returns {string[]} */
function allHeads(layers, heads) {
  return wholeLayers(layers, heads).flat();
}

/** The heads of every attention. @param {Record<Kind, number>} layers @param {number} heads @returns {string[][]} */
function wholeLayers(layers, heads) {
  return KINDS.flatMap((kind) => Array.from({ length: layers[kind] }, (_, layer) => layerHeads(kind, layer, heads)));
}

/** @param {Kind} kind @param {number} layer @param {number} heads */
export function layerHeads(kind, layer, heads) {
  return Array.from({ length: heads }, (_, head) => `${kind}.${layer}.${head}`);
}

/** Heads as people call them: cross 1.4 is the fourth head of the first layer. @param {string[]} off */
export function setName(off) {
  return off.map((each) => {
    const [kind, layer, head] = each.split(".");
    return `${kind} ${Number(layer) + 1}.${Number(head) + 1}`;
  }).join(" + ");
}

/** A piece without the mark of a space before it. @param {any} manifest @param {number} id */
function spelled(manifest, id) {
  const name = pieceName(manifest, id);
  return name.replaceAll("▁", "") || name;
}
