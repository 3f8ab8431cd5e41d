// What is looked at. Every view reads and writes it, and it is the URL: a link shows another person the same.

/** @typedef {import("heedful/data/trace.js").Kind} Kind */

/**
 * Layers, heads, rows and steps count from 0 here, and from 1 in the URL as for people.
 * @typedef {object} Selection
 * @property {string} view
 * @property {string} model
 * @property {string} text
 * @property {number} segment  which sentence of the text
 * @property {Kind} kind
 * @property {number} layer
 * @property {number | null} head  null is the mean of the layer's heads
 * @property {number | null} query  the row that looks, a piece
 * @property {number | null} key  the column that is looked at, a piece
 * @property {number[]} also  heads of the same layer that are shown beside the chosen one
 * @property {number[]} rows  rows whose lines are shown beside the chosen one, pieces
 * @property {boolean} words  words, not pieces
 * @property {number} step  of decoding
 * @property {number} beam  0 is the model's own
 * @property {number | null} seed  of words drawn at random; null is the likeliest words
 * @property {number} top_k  words are drawn among so many; 0 is all
 * @property {number} top_p  words are drawn among those that together reach this probability
 * @property {number} temperature  of drawing, and of what is shown
 * @property {number[]} prefix  ids that the translation must start with
 * @property {Record<number, number[]>} kept  the same for other sentences of the text, by their number
 * @property {string[]} off  heads that are switched off, such as cross.1.2 (in the URL, cross.2.3)
 * @property {number[]} hidden  places of source pieces that nobody may look at
 * @property {number | null} checkpoint  updates; null is the finished model
 * @property {number} lesson  step of the lesson
 */

/** Seeds end here. */
export const MOST_SEED = 2 ** 31 - 1;

/** @type {Selection} */
export const NOTHING = {
  view: "translate",
  model: "",
  text: "",
  segment: 0,
  kind: "cross",
  layer: 0,
  head: 0,
  query: null,
  key: null,
  also: [],
  rows: [],
  words: true,
  step: 0,
  beam: 0,
  seed: null,
  top_k: 0,
  top_p: 1,
  temperature: 1,
  prefix: [],
  kept: {},
  off: [],
  hidden: [],
  checkpoint: null,
  lesson: 0,
};

/** @param {string} hash such as #/head?kind=cross&layer=2 @param {Selection} start @returns {Selection} */
export function fromUrl(hash, start = NOTHING) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const found = new URLSearchParams(query);
  const kind = found.get("kind");
  return {
    view: /^[a-z]+$/.test(path) ? path : start.view,
    model: found.get("model") ?? start.model,
    text: found.get("text") ?? start.text,
    segment: counted(found.get("sentence")) ?? start.segment,
    kind: kind === "encoder" || kind === "decoder" || kind === "cross" ? kind : start.kind,
    layer: counted(found.get("layer")) ?? start.layer,
    head: found.get("head") === "mean" ? null : (counted(found.get("head")) ?? start.head),
    query: counted(found.get("query")),
    key: counted(found.get("key")),
    also: list(found.get("also"), ".").map(counted).filter((place) => place !== null),
    rows: list(found.get("rows"), ".").map(counted).filter((place) => place !== null),
    words: found.has("words") ? found.get("words") !== "no" : start.words,
    step: counted(found.get("step")) ?? start.step,
    beam: whole(found.get("beam"), 1, 16) ?? start.beam,
    seed: whole(found.get("seed"), 0, MOST_SEED) ?? start.seed,
    top_k: whole(found.get("top_k"), 0, 1e9) ?? start.top_k,
    top_p: number(found.get("top_p"), 0.001, 1) ?? start.top_p,
    temperature: number(found.get("temperature"), 0.05, 20) ?? start.temperature,
    prefix: list(found.get("prefix"), ".").map(Number).filter(Number.isInteger),
    kept: keptFrom(list(found.get("kept"), ",")),
    off: list(found.get("off"), ",").filter((name) => /^(encoder|decoder|cross)\.[1-9]\d*\.[1-9]\d*$/.test(name)).map((name) => recounted(name, -1)),
    hidden: list(found.get("hidden"), ".").map(counted).filter((place) => place !== null),
    checkpoint: whole(found.get("checkpoint"), 0, 1e12),
    lesson: counted(found.get("lesson")) ?? start.lesson,
  };
}

/** @param {Selection} selection */
export function toUrl(selection) {
  const told = new URLSearchParams();
  const s = selection;
  if (s.model) told.set("model", s.model);
  if (s.text) told.set("text", s.text);
  if (s.segment) told.set("sentence", String(s.segment + 1));
  told.set("kind", s.kind);
  told.set("layer", String(s.layer + 1));
  told.set("head", s.head === null ? "mean" : String(s.head + 1));
  if (s.query !== null) told.set("query", String(s.query + 1));
  if (s.key !== null) told.set("key", String(s.key + 1));
  if (s.also.length) told.set("also", s.also.map((head) => head + 1).join("."));
  if (s.rows.length) told.set("rows", s.rows.map((row) => row + 1).join("."));
  if (!s.words) told.set("words", "no");
  if (s.step) told.set("step", String(s.step + 1));
  if (s.beam) told.set("beam", String(s.beam));
  if (s.seed !== null) told.set("seed", String(s.seed));
  if (s.top_k) told.set("top_k", String(s.top_k));
  if (s.top_p !== 1) told.set("top_p", String(s.top_p));
  if (s.temperature !== 1) told.set("temperature", String(s.temperature));
  if (s.prefix.length) told.set("prefix", s.prefix.join("."));
  const kept = Object.entries(s.kept).map(([segment, ids]) => `${Number(segment) + 1}:${ids.join(".")}`);
  if (kept.length) told.set("kept", kept.join(","));
  if (s.off.length) told.set("off", s.off.map((name) => recounted(name, 1)).join(","));
  if (s.hidden.length) told.set("hidden", s.hidden.map((place) => place + 1).join("."));
  if (s.checkpoint !== null) told.set("checkpoint", String(s.checkpoint));
  if (s.lesson) told.set("lesson", String(s.lesson + 1));
  return `#/${s.view}?${told}`;
}

/**
 * A selection of what there is: a link may come from another sentence or model. A place that is not there is the
 * last one, a word that is not there is no word.
 * @param {Selection} selection @param {import("heedful/data/trace.js").Trace} trace @returns {Selection}
 */
export function within(selection, trace) {
  const { layer, head, query, key, also, rows, step } = selection;
  const kind = trace.layers(selection.kind) ? selection.kind : trace.kinds[trace.kinds.length - 1]; // not every model has all
  const { source, read, written } = trace.sides;
  const queries = kind === "encoder" ? source.ids.length : written.ids.length;
  const keys = kind === "encoder" ? source.ids.length : Math.max(source.ids.length, read.ids.length); // of words, or of positions
  return {
    ...selection,
    kind,
    layer: Math.min(layer, trace.layers(kind) - 1),
    head: head === null ? null : Math.min(head, trace.heads - 1),
    query: query !== null && query < queries ? query : null,
    key: key !== null && key < keys ? key : null,
    also: also.filter((each) => each < trace.heads),
    rows: rows.filter((row) => row < queries),
    step: trace.stepAt(step),
  };
}

/** The name of a head that counts from another number. @param {string} name such as cross.1.2 @param {number} by */
function recounted(name, by) {
  return name.replace(/\d+/g, (number) => String(Number(number) + by));
}

/** Forced starts by sentence, written as 2:17.5,3:8 with sentences from 1. @param {string[]} parts @returns {Record<number, number[]>} */
function keptFrom(parts) {
  const found = parts.map((part) => /^(\d+):([\d.]+)$/.exec(part)).filter((each) => each !== null);
  return Object.fromEntries(found.map(([, segment, ids]) => [Number(segment) - 1, list(ids, ".").map(Number)]));
}

/** Look into another sentence; what was forced in this one is kept, and comes back with it. @param {Selection} selection @param {number} segment @returns {Partial<Selection>} */
export function otherSentence({ segment: before, prefix, kept }, segment) {
  const all = { ...kept, [before]: prefix };
  const forced = all[segment] ?? [];
  const others = Object.entries(all).filter(([number, ids]) => Number(number) !== segment && ids.length);
  return { segment, prefix: forced, kept: Object.fromEntries(others), step: 0, query: null, key: null, rows: [] };
}

/** A count from 1, as a place from 0. @param {string | null} text */
function counted(text) {
  const found = whole(text, 1, 1e6);
  return found === null ? null : found - 1;
}

/** @param {string | null} text @param {number} least @param {number} most */
function whole(text, least, most) {
  const found = number(text, least, most);
  return Number.isInteger(found) ? found : null;
}

/** @param {string | null} text @param {number} least @param {number} most */
function number(text, least, most) {
  const found = text === null || text === "" ? NaN : Number(text);
  return found >= least && found <= most ? found : null;
}

/** @param {string | null} text @param {string} mark */
function list(text, mark) {
  return text ? text.split(mark).filter(Boolean) : [];
}

/** The selection and those who want to know of its changes. */
export class Store {
  /** @param {Selection} selection */
  constructor(selection) {
    this.selection = selection;
    /** @type {((now: Selection, before: Selection) => void)[]} */
    this.listeners = [];
    window.addEventListener("hashchange", () => this.#become(fromUrl(location.hash)));
  }

  /** @param {(now: Selection, before: Selection) => void} listener */
  subscribe(listener) {
    this.listeners.push(listener);
  }

  /**
   * Change some of it. A step that Back should undo is pushed; one of many (a slider, typing) replaces.
   * Silent is for who shows it in the same moment.
   * @param {Partial<Selection>} changes @param {{replace?: boolean, silent?: boolean}} [how]
   */
  set(changes, { replace = false, silent = false } = {}) {
    const next = { ...this.selection, ...changes };
    const url = toUrl(next);
    if (url !== location.hash) history[replace ? "replaceState" : "pushState"](null, "", url);
    this.#become(next, silent);
  }

  /** @param {Selection} next @param {boolean} [silent] */
  #become(next, silent = false) {
    const before = this.selection;
    if (toUrl(before) === toUrl(next)) return; // the same object means: nothing has changed
    this.selection = next;
    if (!silent) for (const listener of this.listeners) listener(next, before);
  }
}
