// One forward pass of a model: its manifest, its tensors (loaded on demand), and attention weights between words.

/** @typedef {import("heedful/data/safetensors.js").Tensor} Tensor */
/** @typedef {"encoder" | "decoder" | "cross"} Kind */
/** Spans count characters, not UTF-16 units. @typedef {{ids: number[], subwords: string[], word_ids: number[], words: string[], spans: ([number, number] | null)[]}} Tokens */
/** A named matrix: rows (queries) attend to columns (keys). @typedef {{rows: string[], columns: string[], values: Float32Array}} Weights */

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

  /** ``projected_keys`` are what words attend to in a Linformer, instead of words. @returns {{source: Tokens, decoder_input: Tokens, target: Tokens, projected_keys: Tokens | null}} */
  get sides() {
    return this.manifest.sides;
  }

  /** The queries (rows) and the keys (columns) of an attention. @param {Kind} kind @returns {[Tokens, Tokens]} */
  getAxes(kind) {
    const { source, decoder_input: decoderInput, target, projected_keys: projectedKeys } = this.sides;
    if (kind === "encoder") return [source, projectedKeys ?? source];
    return kind === "decoder" ? [decoderInput, decoderInput] : [target, source];
  }

  /** The kinds of attention of this model. */
  get kinds() {
    return KINDS.filter((kind) => this.getLayerCount(kind));
  }

  /** Positions of the output that the model predicted: all, or only the blanks of a masked text. @returns {number[]} */
  get steps() {
    return this.manifest.blank_positions ?? this.sides.target.ids.map((_, step) => step);
  }

  /** The step at a position, else the next one, else the last. @param {number} position */
  findStep(position) {
    return this.steps.find((step) => step >= position) ?? this.steps[this.steps.length - 1];
  }

  /** @param {Kind} kind @returns {number} */
  getLayerCount(kind) {
    return this.manifest.model.layers[kind];
  }

  /** @returns {number} */
  get heads() {
    return this.manifest.model.heads;
  }

  /** A tensor by name, fetched once. @param {string} name @returns {Promise<Tensor>} */
  async loadTensor(name) {
    const [tensor] = await this.loadTensors([name]);
    return tensor;
  }

  /** Several tensors in one request. @param {string[]} names @returns {Promise<Tensor[]>} */
  loadTensors(names) {
    const missing = names.filter((name) => !this.loaded.has(name));
    if (missing.length) {
      const response = this.source.fetchTensors(this.id, missing);
      for (const name of missing) {
        const tensor = response.then((/** @type {Map<string, Tensor>} */ tensors) => tensors.get(name));
        tensor.catch(() => this.loaded.delete(name)); // allow a retry
        this.loaded.set(name, tensor);
      }
    }
    return Promise.all(names.map((name) => /** @type {Promise<Tensor>} */ (this.loaded.get(name))));
  }

  /**
   * The weights of one head (null: the mean of the layer's heads), between tokens or between words.
   * @param {Kind} kind @param {number} layer @param {number | null} head @param {boolean} words
   * @returns {Promise<Weights>}
   */
  async loadWeights(kind, layer, head, words) {
    const tensor = await this.loadTensor(`${getTensorPrefix(kind, layer)}.weights`);
    const [queries, keys] = this.getAxes(kind);
    const headWeights = selectHead(tensor, head);
    if (!words) return { rows: queries.subwords, columns: keys.subwords, values: headWeights };
    return { rows: queries.words, columns: keys.words, values: aggregateWords(headWeights, queries, keys) };
  }

  /** Indices of masked source tokens. @returns {number[]} */
  get hidden() {
    return this.manifest.request.masked_source;
  }

  /** Source words of which every token is hidden. */
  get hiddenWords() {
    return findWords(this.sides.source, this.hidden).filter(({ subwords }) => subwords.every((index) => this.hidden.includes(index)));
  }

  /**
   * Which queries may not attend to which keys, for words or tokens; undefined if nothing is masked.
   * @param {Kind} kind @param {boolean} words @param {number} layer @returns {((row: number, column: number) => boolean) | undefined}
   */
  getMask(kind, words, layer) {
    if (kind === "encoder" && this.sides.projected_keys) return undefined; // each sum covers all words that are not hidden
    const pattern = this.manifest.sparse_patterns?.[getTensorPrefix(kind, layer)];
    if (pattern) return this.#getBlockMask(kind, words, pattern);
    if (kind === "decoder") return (row, column) => column > row; // also holds for words: target words are in order
    if (!this.hidden.length) return undefined;
    const columns = new Set(words ? this.hiddenWords.map(({ number }) => number) : this.hidden);
    return (_row, column) => columns.has(column);
  }

  /**
   * The mask where blocks of tokens attend to some blocks only (BigBird).
   * @param {Kind} kind @param {boolean} words @param {{block_size: number, rows: number[][]}} pattern
   */
  #getBlockMask(kind, words, { block_size: blockSize, rows }) {
    const visibleBlocks = rows.map((row) => new Set(row));
    const hidden = new Set(kind === "decoder" ? [] : this.hidden);
    const isMasked = (/** @type {number} */ row, /** @type {number} */ column) =>
      !visibleBlocks[Math.floor(row / blockSize)].has(Math.floor(column / blockSize)) || hidden.has(column) || (kind === "decoder" && column > row);
    if (!words) return isMasked;
    const [queries, keys] = this.getAxes(kind).map(listWords);
    return (/** @type {number} */ row, /** @type {number} */ column) =>
      queries[row].subwords.every((r) => keys[column].subwords.every((c) => isMasked(r, c)));
  }
}

/** A word with the indices of its tokens. @typedef {{number: number, word: string, subwords: number[]}} Word */

/** All words with their tokens. @param {Tokens} side @returns {Word[]} */
export function listWords({ word_ids: wordIds, words }) {
  return words.map((word, number) => ({ number, word, subwords: wordIds.flatMap((wordId, index) => (wordId === number ? [index] : [])) }));
}

/** The words that contain any of these tokens. @param {Tokens} side @param {number[]} subwords */
export function findWords(side, subwords) {
  return listWords(side).filter((word) => word.subwords.some((index) => subwords.includes(index)));
}

/** The tensor name prefix of an attention. @param {Kind} kind @param {number} layer */
export function getTensorPrefix(kind, layer) {
  return `${kind === "encoder" ? "encoder" : "decoder"}.${layer}.${kind === "cross" ? "cross" : "self"}`;
}

/** @param {Tensor} tensor (heads, rows, columns) @param {number | null} head */
function selectHead({ shape: [heads, rows, columns], data }, head) {
  const size = rows * columns;
  const weights = /** @type {Float32Array} */ (data);
  if (head !== null) return weights.slice(head * size, (head + 1) * size);
  return Float32Array.from({ length: size }, (_, i) => {
    let sum = 0;
    for (let h = 0; h < heads; h++) sum += weights[h * size + i];
    return sum / heads;
  });
}

/**
 * Weights between words: summed over a key's tokens, averaged over a query's, so rows still sum to 1.
 * @param {Float32Array} weights @param {Tokens} queries @param {Tokens} keys
 */
export function aggregateWords(weights, queries, keys) {
  const [rows, columns] = [queries.words.length, keys.words.length];
  const counts = new Float32Array(rows);
  for (const wordId of queries.word_ids) counts[wordId] += 1;
  const wordWeights = new Float32Array(rows * columns);
  queries.word_ids.forEach((row, i) => {
    keys.word_ids.forEach((column, j) => {
      wordWeights[row * columns + column] += weights[i * keys.ids.length + j] / counts[row];
    });
  });
  return wordWeights;
}

/** The display text of a token. @param {any} manifest @param {number} id */
export function getTokenText(manifest, id) {
  const text = manifest.subwords[id] ?? `#${id}`;
  return text === "" ? "∅" : text;
}
