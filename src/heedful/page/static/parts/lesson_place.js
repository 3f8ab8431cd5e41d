// What the lesson talks about: one word that looks at another in one head. The model's own numbers choose it, unless somebody came with a head.

import { KIND_NAMES, place as placeName } from "heedful/data/trace.js";
import { NOTHING } from "heedful/state/selection.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/data/trace.js").Kind} Kind */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */
/** "Predict, then reveal". @typedef {{ask: string, choices: string[], answer: string, because: string}} Question */
/** A step for this sentence: what one can predict from, the question, what is revealed, and where to see more. @typedef {{before?: Node, question: Question, numbers: Node, link: [string, Partial<Selection>]}} Made */
/** @typedef {{kind: Kind, layer: number, head: number}} Head */
/** A word that looks at another. @typedef {Head & {row: number, key: number, weight: number}} Look */

/** Words that are the most fun to follow, if the sentence has one: what do they stand for? */
const PRONOUNS = new Set("it they he she them him her il elle ils elles lui er sie es ihn ihm él ella ellos ellas egli lei esso essa ele ela eles elas он она оно они".split(" "));
/** A pronoun that looks nowhere in particular is no story. */
const TELLING = 0.3;

const ROWS = {
  encoder: "a word of the source looks at the words of the source",
  decoder: "a word of the translation looks at itself and the words before it",
  cross: "a word of the translation looks at the words of the source",
};

/** What is followed where nobody has chosen. @param {Trace} trace @returns {Partial<Selection>} */
export function unchosen(trace) {
  return { kind: "cross", layer: trace.layers("cross") - 1, head: 0, query: null, key: null };
}

export class Place {
  /** @param {Page} page @param {Selection} selection @param {Trace} trace @param {Look} look @param {{why: string, chosen: boolean}} reason */
  constructor(page, selection, trace, look, { why, chosen }) {
    this.page = page;
    this.trace = trace;
    this.manifest = trace.manifest;
    const { kind, layer, head, row, key } = look;
    this.kind = kind;
    this.layer = layer;
    this.head = head;
    this.row = row;
    this.key = key;
    this.why = why;
    /** By who looks at the page, not by the model. */
    this.chosen = chosen;
    const { source, written } = trace.sides;
    /** Another sentence, another turn: where the right answer stands among others. */
    this.turn = source.ids.reduce((sum, id) => sum + id, 0);
    this.step = Math.min(kind === "encoder" ? selection.step || 1 : row, written.pieces.length - 1);
  }

  /** The piece that looks. */
  get word() {
    return this.trace.of(this.kind)[0].pieces[this.row];
  }

  /** The same in a sentence: rows of cross-attention are called by what they write. */
  get who() {
    return this.kind === "cross" ? `the row that writes “${this.word}”` : `“${this.word}”`;
  }

  /** The piece that is looked at. */
  get lookedAt() {
    return this.trace.of(this.kind)[1].pieces[this.key];
  }

  /** The piece that is written. */
  get written() {
    return this.trace.sides.written.pieces[this.step];
  }

  get name() {
    return `${KIND_NAMES[this.kind].toLowerCase()}, layer ${this.layer + 1}, head ${this.head + 1}`;
  }

  /** Who is followed; with the reason, if it is told for the first time. @param {boolean} first */
  told(first) {
    const who = `We follow ${this.who} in ${this.name}`;
    return first ? `${who}: there ${ROWS[this.kind]}. ${this.why}` : `${who}.`;
  }

  /** The selection that shows it. @returns {Partial<Selection>} */
  get selection() {
    return { kind: this.kind, layer: this.layer, head: this.head, query: this.row, key: null };
  }

  /** All numbers of the row in the head. @returns {Promise<any>} */
  async cell() {
    const { kind, layer, head, row } = this;
    return this.page.source.cell(this.trace.id, { kind, layer, head, row });
  }

  /** A word with its vector in the first layer: in cross-attention that which is looked at, since the source is embedded first. @returns {Promise<{word: string, cell: any}>} */
  async embedded() {
    const { kind, head, trace, row, key } = this;
    const [side, place] = kind === "cross" ? [/** @type {const} */ ("encoder"), key] : [kind, row];
    return { word: trace.of(side)[0].pieces[place], cell: await this.page.source.cell(trace.id, { kind: side, layer: 0, head, row: place }) };
  }
}

/** The place of the lesson. @param {Page} page @param {Selection} selection @param {Trace} trace */
export async function findPlace(page, selection, trace) {
  const { kind, layer, head, query } = selection;
  if (!isChosen(selection, trace)) return chosenByModel(page, selection, trace);
  const heads = head === null ? headsOf(trace, kind, layer) : [{ kind, layer, head }];
  const looks = await allLooks(trace, heads);
  const own = query === null ? looks : looks.filter((look) => look.row === query);
  const best = strongestOf(own.filter((look) => isTelling(look, trace))) ?? strongestOf(own);
  return new Place(page, selection, trace, /** @type {Look} */ (best), { why: "You came here with this head.", chosen: true });
}

/** Whether somebody has chosen a head: it is not the one where the page or a link without a head begins. @param {Selection} selection @param {Trace} trace */
function isChosen({ kind, layer, head, query }, trace) {
  const usual = unchosen(trace);
  return query !== null || kind !== usual.kind || head !== usual.head || ![usual.layer, NOTHING.layer].includes(layer);
}

/** @param {Page} page @param {Selection} selection @param {Trace} trace */
async function chosenByModel(page, selection, trace) {
  const last = /** @type {Kind[]} */ (["encoder", "cross"]).flatMap((kind) => headsOf(trace, kind, trace.layers(kind) - 1));
  const here = last.filter((head) => page.source.holds(head)); // a saved page may lack some
  const looks = await allLooks(trace, here.length ? here : [{ kind: "cross", layer: trace.layers("cross") - 1, head: 0 }]);
  const telling = looks.filter((look) => isTelling(look, trace));
  const pronoun = strongestOf(telling.filter(({ kind, row }) => PRONOUNS.has(letters(trace.of(kind)[0].pieces[row]))));
  const chosen = pronoun && pronoun.weight >= TELLING ? pronoun : (strongestOf(telling) ?? strongestOf(looks));
  const look = /** @type {Look} */ (chosen);
  const rows = look === pronoun ? "no row of a pronoun" : "no row"; // at which word it looks is for the steps to ask
  return new Place(page, selection, trace, look, { chosen: false, why: `The model's own numbers chose it: in the last layers of encoder and decoder, ${rows} gives another word a larger weight.` });
}

/** @param {Trace} trace @param {Kind} kind @param {number} layer @returns {Head[]} */
function headsOf(trace, kind, layer) {
  return Array.from({ length: trace.heads }, (_, head) => ({ kind, layer, head }));
}

/** Every pair of every head. @param {Trace} trace @param {Head[]} heads @returns {Promise<Look[]>} */
async function allLooks(trace, heads) {
  const weights = await Promise.all(heads.map(({ kind, layer, head }) => trace.weights(kind, layer, head, false)));
  return heads.flatMap((head, i) => {
    const { values, columns } = weights[i];
    return Array.from(values, (weight, at) => ({ ...head, row: Math.floor(at / columns.length), key: at % columns.length, weight }));
  });
}

/** A word that looks at another word: not at itself, not at a comma, and not at the end or the start. @param {Look} look @param {Trace} trace */
function isTelling({ kind, row, key }, trace) {
  const [queries, keys] = trace.of(kind);
  return isWord(queries.pieces[row]) && isWord(keys.pieces[key]) && (kind === "cross" || row !== key);
}

/** @param {string} piece */
function isWord(piece) {
  return !/^<.*>$/.test(piece) && letters(piece) !== "";
}

/** @param {string} piece */
function letters(piece) {
  return piece.replace(/[^\p{L}\p{M}]/gu, "").toLowerCase();
}

/** @param {Look[]} looks @returns {Look | undefined} */
function strongestOf(looks) {
  return looks.length ? looks.reduce((best, look) => (look.weight > best.weight ? look : best)) : undefined;
}

/** The name of a layer's attention, as tensors are called. @param {Place} place */
export function tensorName({ kind, layer }) {
  return `${placeName(kind, layer)}.weights`;
}
