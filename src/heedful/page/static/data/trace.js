// One pass of a model: its manifest, its tensors when they are asked for, and weights between words.

/** @typedef {import("heedful/data/safetensors.js").Tensor} Tensor */
/** @typedef {"encoder" | "decoder" | "cross"} Kind */
/** Spans are in characters, not in UTF-16 units. @typedef {{ids: number[], pieces: string[], groups: number[], words: string[], spans: ([number, number] | null)[]}} Side */
/** A matrix with names: rows look at columns. @typedef {{rows: string[], columns: string[], values: Float32Array}} Weights */

/** @type {Kind[]} */
export const KINDS = ["encoder", "decoder", "cross"];

/** @type {Record<Kind, string>} */
export const KIND_NAMES = {
  encoder: "Encoder self-attention",
  decoder: "Decoder self-attention",
  cross: "Cross-attention",
};

export class Trace {
  /** @param {any} manifest @param {any} source */
  constructor(manifest, source) {
    this.manifest = manifest;
    this.source = source;
    /** @type {Map<string, Promise<Tensor>>} */
    this.loaded = new Map();
  }

  get id() {
    return this.manifest.id;
  }

  /** Sums are what a Linformer's words look at in place of words. @returns {{source: Side, read: Side, written: Side, sums: Side | null}} */
  get sides() {
    return this.manifest.sides;
  }

  /** Who looks (rows) and what is looked at (columns). @param {Kind} kind @returns {[Side, Side]} */
  of(kind) {
    const { source, read, written, sums } = this.sides;
    if (kind === "encoder") return [source, sums ?? source];
    return kind === "decoder" ? [read, read] : [written, source];
  }

  /** The kinds of attention that the model has. */
  get kinds() {
    return KINDS.filter((kind) => this.layers(kind));
  }

  /** Places of what is written that the model decided: all, or of a text with blanks these. @returns {number[]} */
  get steps() {
    return this.manifest.blanks ?? this.sides.written.ids.map((_, place) => place);
  }

  /** The step at a place, or the nearest after it, or else the last. @param {number} place */
  stepAt(place) {
    return this.steps.find((step) => step >= place) ?? this.steps[this.steps.length - 1];
  }

  /** @param {Kind} kind @returns {number} */
  layers(kind) {
    return this.manifest.model.layers[kind];
  }

  /** @returns {number} */
  get heads() {
    return this.manifest.model.heads;
  }

  /** A tensor by name, fetched once. @param {string} name @returns {Promise<Tensor>} */
  async tensor(name) {
    const [found] = await this.tensors([name]);
    return found;
  }

  /** Several tensors in one request. @param {string[]} names @returns {Promise<Tensor[]>} */
  tensors(names) {
    const missing = names.filter((name) => !this.loaded.has(name));
    if (missing.length) {
      const answer = this.source.tensors(this.id, missing);
      for (const name of missing) {
        const one = answer.then((/** @type {Map<string, Tensor>} */ all) => all.get(name));
        one.catch(() => this.loaded.delete(name)); // may be asked for again
        this.loaded.set(name, one);
      }
    }
    return Promise.all(names.map((name) => /** @type {Promise<Tensor>} */ (this.loaded.get(name))));
  }

  /**
   * The weights of one head (or the mean of a layer's heads, for null), between pieces or between words.
   * @param {Kind} kind @param {number} layer @param {number | null} head @param {boolean} words
   * @returns {Promise<Weights>}
   */
  async weights(kind, layer, head, words) {
    const tensor = await this.tensor(`${place(kind, layer)}.weights`);
    const [queries, keys] = this.of(kind);
    const chosen = oneHead(tensor, head);
    if (!words) return { rows: queries.pieces, columns: keys.pieces, values: chosen };
    return { rows: queries.words, columns: keys.words, values: betweenWords(chosen, queries, keys) };
  }

  /** Places of source pieces that nobody may look at. @returns {number[]} */
  get hidden() {
    return this.manifest.asked.hidden;
  }

  /** Words of the source of which every piece is hidden. */
  get hiddenWords() {
    return touchedWords(this.sides.source, this.hidden).filter(({ pieces }) => pieces.every((place) => this.hidden.includes(place)));
  }

  /**
   * Who may not look at whom in an attention, between words or pieces; undefined if all may look at all.
   * @param {Kind} kind @param {boolean} words @param {number} layer @returns {((row: number, column: number) => boolean) | undefined}
   */
  masked(kind, words, layer) {
    if (kind === "encoder" && this.sides.sums) return undefined; // each sum is of all words that are not hidden
    const pattern = this.manifest.patterns?.[place(kind, layer)];
    if (pattern) return this.#outside(kind, words, pattern);
    if (kind === "decoder") return (row, column) => column > row; // the same for words: those of the target come in order
    if (!this.hidden.length) return undefined;
    const columns = new Set(words ? this.hiddenWords.map(({ number }) => number) : this.hidden);
    return (_row, column) => columns.has(column);
  }

  /**
   * Who may not look at whom where blocks of pieces see only some blocks (BigBird).
   * @param {Kind} kind @param {boolean} words @param {{block: number, rows: number[][]}} pattern
   */
  #outside(kind, words, { block, rows }) {
    const seen = rows.map((row) => new Set(row));
    const hidden = new Set(kind === "decoder" ? [] : this.hidden);
    const outside = (/** @type {number} */ row, /** @type {number} */ column) =>
      !seen[Math.floor(row / block)].has(Math.floor(column / block)) || hidden.has(column) || (kind === "decoder" && column > row);
    if (!words) return outside;
    const [queries, keys] = this.of(kind).map(spelledWords);
    return (/** @type {number} */ row, /** @type {number} */ column) =>
      queries[row].pieces.every((r) => keys[column].pieces.every((c) => outside(r, c)));
  }
}

/** A word with the places of its pieces. @typedef {{number: number, word: string, pieces: number[]}} Spelled */

/** The words of a side with their pieces. @param {Side} side @returns {Spelled[]} */
export function spelledWords({ groups, words }) {
  return words.map((word, number) => ({ number, word, pieces: groups.flatMap((group, place) => (group === number ? [place] : [])) }));
}

/** Words that some of these pieces belong to. @param {Side} side @param {number[]} pieces */
export function touchedWords(side, pieces) {
  return spelledWords(side).filter((each) => each.pieces.some((place) => pieces.includes(place)));
}

/** The name of an attention, as tensors are called. @param {Kind} kind @param {number} layer */
export function place(kind, layer) {
  return `${kind === "encoder" ? "encoder" : "decoder"}.${layer}.${kind === "cross" ? "cross" : "self"}`;
}

/** @param {Tensor} tensor (heads, rows, columns) @param {number | null} head */
function oneHead({ shape: [heads, rows, columns], data }, head) {
  const size = rows * columns;
  const all = /** @type {Float32Array} */ (data);
  if (head !== null) return all.slice(head * size, (head + 1) * size);
  return Float32Array.from({ length: size }, (_, i) => {
    let sum = 0;
    for (let h = 0; h < heads; h++) sum += all[h * size + i];
    return sum / heads;
  });
}

/**
 * Weights between words: summed over a key's pieces, averaged over a query's, so that rows still sum to 1.
 * @param {Float32Array} weights @param {Side} queries @param {Side} keys
 */
export function betweenWords(weights, queries, keys) {
  const [rows, columns] = [queries.words.length, keys.words.length];
  const pieces = new Float32Array(rows);
  for (const group of queries.groups) pieces[group] += 1;
  const found = new Float32Array(rows * columns);
  queries.groups.forEach((row, i) => {
    keys.groups.forEach((column, j) => {
      found[row * columns + column] += weights[i * keys.ids.length + j] / pieces[row];
    });
  });
  return found;
}

/** A piece's name for people. @param {any} manifest @param {number} id */
export function pieceName(manifest, id) {
  const piece = manifest.pieces[id] ?? `#${id}`;
  return piece === "" ? "∅" : piece;
}
