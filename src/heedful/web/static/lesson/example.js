// The example that the lesson follows: one word that attends to another in one head, chosen by weight unless the user selected a head.

import { getTensorPrefix, KIND_NAMES } from "heedful/data/trace.js";
import { DEFAULT_SELECTION } from "heedful/state/selection.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/data/trace.js").Kind} Kind */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */
/** A "predict, then reveal" question. @typedef {{prompt: string, choices: string[], answer: string, explanation: string}} Question */
/** The content of a step: an introduction to predict from, the question, the revealed numbers, and a link to more. @typedef {{introduction?: Node, question: Question, numbers: Node, link: [string, Partial<Selection>]}} StepContent */
/** @typedef {{kind: Kind, layer: number, head: number}} Head */
/** A query and a key with their attention weight. @typedef {Head & {row: number, key: number, weight: number}} AttentionPair */

/** Pronouns make the best examples: what do they refer to? */
const PRONOUNS = new Set("it they he she them him her il elle ils elles lui er sie es ihn ihm él ella ellos ellas egli lei esso essa ele ela eles elas он она оно они".split(" "));
/** A pronoun needs at least this weight on one word to be the example. */
const MIN_PRONOUN_WEIGHT = 0.3;

const ROW_MEANINGS = {
  encoder: "source words attend to source words",
  decoder: "each target word attends to itself and the words before it",
  cross: "target words attend to source words",
};

/** The head of a selection without a choice. @param {Trace} trace @returns {Partial<Selection>} */
export function getDefaultHead(trace) {
  return { kind: "cross", layer: trace.getLayerCount("cross") - 1, head: 0, query: null, key: null };
}

export class LessonExample {
  /** @param {Page} page @param {Selection} selection @param {Trace} trace @param {AttentionPair} pair @param {{reason: string, isUserChoice: boolean}} origin */
  constructor(page, selection, trace, pair, { reason, isUserChoice }) {
    this.page = page;
    this.trace = trace;
    this.manifest = trace.manifest;
    const { kind, layer, head, row, key } = pair;
    this.kind = kind;
    this.layer = layer;
    this.head = head;
    this.row = row;
    this.key = key;
    this.reason = reason;
    /** Selected by the user, not by weight. */
    this.isUserChoice = isUserChoice;
    const { source, target } = trace.sides;
    /** Varies by sentence: the position of the right answer among the others. */
    this.answerSeed = source.ids.reduce((sum, id) => sum + id, 0);
    this.step = Math.min(kind === "encoder" ? selection.step || 1 : row, target.subwords.length - 1);
  }

  /** The query token. */
  get queryText() {
    return this.trace.getAxes(this.kind)[0].subwords[this.row];
  }

  /** The query within a sentence: cross-attention rows are named after what they write. */
  get queryLabel() {
    return this.kind === "cross" ? `the row that writes “${this.queryText}”` : `“${this.queryText}”`;
  }

  /** The key token. */
  get keyText() {
    return this.trace.getAxes(this.kind)[1].subwords[this.key];
  }

  /** The token that this step writes. */
  get writtenText() {
    return this.trace.sides.target.subwords[this.step];
  }

  get headName() {
    return `${KIND_NAMES[this.kind].toLowerCase()}, layer ${this.layer + 1}, head ${this.head + 1}`;
  }

  /** The example in words; at its first mention with the reason. @param {boolean} isFirst */
  describe(isFirst) {
    const subject = `We follow ${this.queryLabel} in ${this.headName}`;
    return isFirst ? `${subject}: there, ${ROW_MEANINGS[this.kind]}. ${this.reason}` : `${subject}.`;
  }

  /** The selection that shows this example. @returns {Partial<Selection>} */
  get selection() {
    return { kind: this.kind, layer: this.layer, head: this.head, query: this.row, key: null };
  }

  /** All numbers of this row of the head. @returns {Promise<any>} */
  async loadCell() {
    const { kind, layer, head, row } = this;
    return this.page.source.fetchCell(this.trace.id, { kind, layer, head, row });
  }

  /** A word with its vector in the first layer: for cross-attention the key, since the source is embedded first. @returns {Promise<{word: string, cell: any}>} */
  async loadEmbedding() {
    const { kind, head, trace, row, key } = this;
    const [side, index] = kind === "cross" ? [/** @type {const} */ ("encoder"), key] : [kind, row];
    return { word: trace.getAxes(side)[0].subwords[index], cell: await this.page.source.fetchCell(trace.id, { kind: side, layer: 0, head, row: index }) };
  }
}

/** The example of the lesson. @param {Page} page @param {Selection} selection @param {Trace} trace */
export async function findExample(page, selection, trace) {
  const { kind, layer, head, query } = selection;
  if (!isUserChoice(selection, trace)) return chooseByWeight(page, selection, trace);
  const heads = head === null ? listHeads(trace, kind, layer) : [{ kind, layer, head }];
  const pairs = await listPairs(trace, heads);
  const candidates = query === null ? pairs : pairs.filter((pair) => pair.row === query);
  const best = findStrongest(candidates.filter((pair) => isWordPair(pair, trace))) ?? findStrongest(candidates);
  return new LessonExample(page, selection, trace, /** @type {AttentionPair} */ (best), { reason: "You selected this head.", isUserChoice: true });
}

/** Whether the user selected a head: it differs from the default of the page and of links. @param {Selection} selection @param {Trace} trace */
function isUserChoice({ kind, layer, head, query }, trace) {
  const defaults = getDefaultHead(trace);
  return query !== null || kind !== defaults.kind || head !== defaults.head || ![defaults.layer, DEFAULT_SELECTION.layer].includes(layer);
}

/** @param {Page} page @param {Selection} selection @param {Trace} trace */
async function chooseByWeight(page, selection, trace) {
  const lastLayerHeads = /** @type {Kind[]} */ (["encoder", "cross"]).flatMap((kind) => listHeads(trace, kind, trace.getLayerCount(kind) - 1));
  const available = lastLayerHeads.filter((head) => page.source.hasArithmetic(head)); // a saved page may not include all heads
  const pairs = await listPairs(trace, available.length ? available : [{ kind: "cross", layer: trace.getLayerCount("cross") - 1, head: 0 }]);
  const wordPairs = pairs.filter((pair) => isWordPair(pair, trace));
  const pronoun = findStrongest(wordPairs.filter(({ kind, row }) => PRONOUNS.has(extractLetters(trace.getAxes(kind)[0].subwords[row]))));
  const best = pronoun && pronoun.weight >= MIN_PRONOUN_WEIGHT ? pronoun : (findStrongest(wordPairs) ?? findStrongest(pairs));
  const pair = /** @type {AttentionPair} */ (best);
  const rows = pair === pronoun ? "no row of a pronoun" : "no row"; // the questions ask for the key
  return new LessonExample(page, selection, trace, pair, { isUserChoice: false, reason: `It was chosen by weight: in the last layers of encoder and decoder, ${rows} gives another word a larger weight.` });
}

/** @param {Trace} trace @param {Kind} kind @param {number} layer @returns {Head[]} */
function listHeads(trace, kind, layer) {
  return Array.from({ length: trace.heads }, (_, head) => ({ kind, layer, head }));
}

/** Every query-key pair of every head. @param {Trace} trace @param {Head[]} heads @returns {Promise<AttentionPair[]>} */
async function listPairs(trace, heads) {
  const weights = await Promise.all(heads.map(({ kind, layer, head }) => trace.loadWeights(kind, layer, head, false)));
  return heads.flatMap((head, i) => {
    const { values, columns } = weights[i];
    return Array.from(values, (weight, i) => ({ ...head, row: Math.floor(i / columns.length), key: i % columns.length, weight }));
  });
}

/** A word that attends to another word: not to itself, punctuation, the end or the start. @param {AttentionPair} pair @param {Trace} trace */
function isWordPair({ kind, row, key }, trace) {
  const [queries, keys] = trace.getAxes(kind);
  return isWord(queries.subwords[row]) && isWord(keys.subwords[key]) && (kind === "cross" || row !== key);
}

/** @param {string} subword */
function isWord(subword) {
  return !/^<.*>$/.test(subword) && extractLetters(subword) !== "";
}

/** @param {string} subword */
function extractLetters(subword) {
  return subword.replace(/[^\p{L}\p{M}]/gu, "").toLowerCase();
}

/** @param {AttentionPair[]} pairs @returns {AttentionPair | undefined} */
function findStrongest(pairs) {
  return pairs.length ? pairs.reduce((best, pair) => (pair.weight > best.weight ? pair : best)) : undefined;
}

/** The tensor name of a layer's weights. @param {LessonExample} example */
export function getWeightsName({ kind, layer }) {
  return `${getTensorPrefix(kind, layer)}.weights`;
}
