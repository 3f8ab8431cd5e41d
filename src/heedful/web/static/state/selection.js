// The selection. Every view reads and writes it, and it is the URL: a link shows the same to everyone.

/** @typedef {import("heedful/data/trace.js").Kind} Kind */

/**
 * Layers, heads, rows and steps count from 0 here, and from 1 in the URL and on the page.
 * @typedef {object} Selection
 * @property {string} view
 * @property {string} model
 * @property {string} text
 * @property {number} segment  index of the sentence
 * @property {Kind} kind
 * @property {number} layer
 * @property {number | null} head  null is the mean of the layer's heads
 * @property {number | null} query  query token (row)
 * @property {number | null} key  key token (column)
 * @property {number[]} extraHeads  heads of the same layer shown beside the selected one
 * @property {number[]} rows  query tokens whose lines are shown with the selected one
 * @property {boolean} words  words, not subwords
 * @property {number} step  decoding step
 * @property {number} beam  beam size; 0 is the model's default
 * @property {number | null} seed  of sampling; null for search
 * @property {number} top_k  sample from this many tokens; 0 is all
 * @property {number} top_p  sample from the most probable tokens that reach this probability
 * @property {number} temperature  of sampling and of the displayed distribution
 * @property {number[]} prefix  ids that the translation must start with
 * @property {Record<number, number[]>} otherPrefixes  the same for other sentences, by index
 * @property {string[]} off  disabled heads, such as cross.1.2 (in the URL, cross.2.3)
 * @property {number[]} hidden  masked source tokens
 * @property {number | null} checkpoint  updates; null is the finished model
 * @property {number} lesson  step of the lesson
 */

/** The largest seed. */
export const MAX_SEED = 2 ** 31 - 1;

/** @type {Selection} */
export const DEFAULT_SELECTION = {
  view: "translate",
  model: "",
  text: "",
  segment: 0,
  kind: "cross",
  layer: 0,
  head: 0,
  query: null,
  key: null,
  extraHeads: [],
  rows: [],
  words: true,
  step: 0,
  beam: 0,
  seed: null,
  top_k: 0,
  top_p: 1,
  temperature: 1,
  prefix: [],
  otherPrefixes: {},
  off: [],
  hidden: [],
  checkpoint: null,
  lesson: 0,
};

/** @param {string} hash such as #/head?kind=cross&layer=2 @param {Selection} defaults @returns {Selection} */
export function parseUrl(hash, defaults = DEFAULT_SELECTION) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const params = new URLSearchParams(query);
  const kind = params.get("kind");
  return {
    view: /^[a-z]+$/.test(path) ? path : defaults.view,
    model: params.get("model") ?? defaults.model,
    text: params.get("text") ?? defaults.text,
    segment: parseIndex(params.get("sentence")) ?? defaults.segment,
    kind: kind === "encoder" || kind === "decoder" || kind === "cross" ? kind : defaults.kind,
    layer: parseIndex(params.get("layer")) ?? defaults.layer,
    head: params.get("head") === "mean" ? null : (parseIndex(params.get("head")) ?? defaults.head),
    query: parseIndex(params.get("query")),
    key: parseIndex(params.get("key")),
    extraHeads: splitList(params.get("also"), ".").map(parseIndex).filter((index) => index !== null),
    rows: splitList(params.get("rows"), ".").map(parseIndex).filter((index) => index !== null),
    words: params.has("words") ? params.get("words") !== "no" : defaults.words,
    step: parseIndex(params.get("step")) ?? defaults.step,
    beam: parseInteger(params.get("beam"), 1, 16) ?? defaults.beam,
    seed: parseInteger(params.get("seed"), 0, MAX_SEED) ?? defaults.seed,
    top_k: parseInteger(params.get("top_k"), 0, 1e9) ?? defaults.top_k,
    top_p: parseNumber(params.get("top_p"), 0.001, 1) ?? defaults.top_p,
    temperature: parseNumber(params.get("temperature"), 0.05, 20) ?? defaults.temperature,
    prefix: splitList(params.get("prefix"), ".").map(Number).filter(Number.isInteger),
    otherPrefixes: parsePrefixes(splitList(params.get("kept"), ",")),
    off: splitList(params.get("off"), ",").filter((name) => /^(encoder|decoder|cross)\.[1-9]\d*\.[1-9]\d*$/.test(name)).map((name) => shiftNumbers(name, -1)),
    hidden: splitList(params.get("hidden"), ".").map(parseIndex).filter((index) => index !== null),
    checkpoint: parseInteger(params.get("checkpoint"), 0, 1e12),
    lesson: parseIndex(params.get("lesson")) ?? defaults.lesson,
  };
}

/** @param {Selection} selection */
export function formatUrl(selection) {
  const params = new URLSearchParams();
  const s = selection;
  if (s.model) params.set("model", s.model);
  if (s.text) params.set("text", s.text);
  if (s.segment) params.set("sentence", String(s.segment + 1));
  params.set("kind", s.kind);
  params.set("layer", String(s.layer + 1));
  params.set("head", s.head === null ? "mean" : String(s.head + 1));
  if (s.query !== null) params.set("query", String(s.query + 1));
  if (s.key !== null) params.set("key", String(s.key + 1));
  if (s.extraHeads.length) params.set("also", s.extraHeads.map((head) => head + 1).join("."));
  if (s.rows.length) params.set("rows", s.rows.map((row) => row + 1).join("."));
  if (!s.words) params.set("words", "no");
  if (s.step) params.set("step", String(s.step + 1));
  if (s.beam) params.set("beam", String(s.beam));
  if (s.seed !== null) params.set("seed", String(s.seed));
  if (s.top_k) params.set("top_k", String(s.top_k));
  if (s.top_p !== 1) params.set("top_p", String(s.top_p));
  if (s.temperature !== 1) params.set("temperature", String(s.temperature));
  if (s.prefix.length) params.set("prefix", s.prefix.join("."));
  const otherPrefixes = Object.entries(s.otherPrefixes).map(([segment, ids]) => `${Number(segment) + 1}:${ids.join(".")}`);
  if (otherPrefixes.length) params.set("kept", otherPrefixes.join(","));
  if (s.off.length) params.set("off", s.off.map((name) => shiftNumbers(name, 1)).join(","));
  if (s.hidden.length) params.set("hidden", s.hidden.map((index) => index + 1).join("."));
  if (s.checkpoint !== null) params.set("checkpoint", String(s.checkpoint));
  if (s.lesson) params.set("lesson", String(s.lesson + 1));
  return `#/${s.view}?${params}`;
}

/**
 * Limit a selection to a trace: a link may come from another sentence or model. An index out of range becomes the
 * last one; a word out of range becomes none.
 * @param {Selection} selection @param {import("heedful/data/trace.js").Trace} trace @returns {Selection}
 */
export function clampSelection(selection, trace) {
  const { layer, head, query, key, extraHeads, rows, step } = selection;
  const kind = trace.getLayerCount(selection.kind) ? selection.kind : trace.kinds[trace.kinds.length - 1]; // not every model has all kinds
  const { source, decoder_input: decoderInput, target } = trace.sides;
  const queries = kind === "encoder" ? source.ids.length : target.ids.length;
  const keys = kind === "encoder" ? source.ids.length : Math.max(source.ids.length, decoderInput.ids.length); // keys, or positions
  return {
    ...selection,
    kind,
    layer: Math.min(layer, trace.getLayerCount(kind) - 1),
    head: head === null ? null : Math.min(head, trace.heads - 1),
    query: query !== null && query < queries ? query : null,
    key: key !== null && key < keys ? key : null,
    extraHeads: extraHeads.filter((head) => head < trace.heads),
    rows: rows.filter((row) => row < queries),
    step: trace.findStep(step),
  };
}

/** Add an offset to the numbers of a head name. @param {string} name such as cross.1.2 @param {number} offset */
function shiftNumbers(name, offset) {
  return name.replace(/\d+/g, (number) => String(Number(number) + offset));
}

/** Forced prefixes by sentence, written as 2:17.5,3:8 with sentences from 1. @param {string[]} parts @returns {Record<number, number[]>} */
function parsePrefixes(parts) {
  const matches = parts.map((part) => /^(\d+):([\d.]+)$/.exec(part)).filter((match) => match !== null);
  return Object.fromEntries(matches.map(([, segment, ids]) => [Number(segment) - 1, splitList(ids, ".").map(Number)]));
}

/** Select another sentence; the prefix forced in this one is stored and restored with it. @param {Selection} selection @param {number} segment @returns {Partial<Selection>} */
export function selectSentence({ segment: previous, prefix, otherPrefixes }, segment) {
  const prefixes = { ...otherPrefixes, [previous]: prefix };
  const forced = prefixes[segment] ?? [];
  const others = Object.entries(prefixes).filter(([number, ids]) => Number(number) !== segment && ids.length);
  return { segment, prefix: forced, otherPrefixes: Object.fromEntries(others), step: 0, query: null, key: null, rows: [] };
}

/** A number counted from 1, as an index from 0. @param {string | null} text */
function parseIndex(text) {
  const count = parseInteger(text, 1, 1e6);
  return count === null ? null : count - 1;
}

/** @param {string | null} text @param {number} min @param {number} max */
function parseInteger(text, min, max) {
  const value = parseNumber(text, min, max);
  return Number.isInteger(value) ? value : null;
}

/** @param {string | null} text @param {number} min @param {number} max */
function parseNumber(text, min, max) {
  const value = text === null || text === "" ? NaN : Number(text);
  return value >= min && value <= max ? value : null;
}

/** @param {string | null} text @param {string} separator */
function splitList(text, separator) {
  return text ? text.split(separator).filter(Boolean) : [];
}

/** The selection and its listeners. */
export class Store {
  /** @param {Selection} selection */
  constructor(selection) {
    this.selection = selection;
    /** @type {((now: Selection, before: Selection) => void)[]} */
    this.listeners = [];
    window.addEventListener("hashchange", () => this.#apply(parseUrl(location.hash)));
  }

  /** @param {(now: Selection, before: Selection) => void} listener */
  subscribe(listener) {
    this.listeners.push(listener);
  }

  /**
   * Change parts of the selection. A step that Back should undo is pushed; one of many (a slider, typing) replaces.
   * With ``silent``, listeners are not called.
   * @param {Partial<Selection>} changes @param {{replace?: boolean, silent?: boolean}} [how]
   */
  set(changes, { replace = false, silent = false } = {}) {
    const next = { ...this.selection, ...changes };
    const url = formatUrl(next);
    if (url !== location.hash) history[replace ? "replaceState" : "pushState"](null, "", url);
    this.#apply(next, silent);
  }

  /** @param {Selection} selection @param {boolean} [silent] */
  #apply(selection, silent = false) {
    const previous = this.selection;
    if (formatUrl(previous) === formatUrl(selection)) return; // the same object means no change
    this.selection = selection;
    if (!silent) for (const listener of this.listeners) listener(selection, previous);
  }
}
