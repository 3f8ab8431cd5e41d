// Data source of a saved page: the trace embedded in the file itself; no server needed.

import { readTensors } from "heedful/data/safetensors.js";
import { RequestError } from "heedful/data/server_source.js";

/** @typedef {import("heedful/data/safetensors.js").Tensor} Tensor */
/** The rows of a head; values and tables are indices into ``parts``. @typedef {{parts: any[], rows: any[]}} HeadCells */

const SERVER_HINT = "Start a server to do this: heedful serve MODEL.";

/** The trace that ``heedful inspect -o page.html`` embedded in the file. @returns {HTMLElement | null} */
export function findEmbeddedTrace() {
  return document.getElementById("heedful-trace");
}

export class EmbeddedSource {
  constructor() {
    this.live = false;
    const payload = JSON.parse(/** @type {HTMLElement} */ (findEmbeddedTrace()).textContent ?? "{}");
    this.manifest = payload.manifest;
    /** @type {Record<string, string>} */
    this.packedCells = payload.cells;
    /** @type {string} */
    this.packedTensors = payload.tensors;
    /** @type {Map<string, Promise<HeadCells>>} */
    this.cellsByHead = new Map();
    /** @type {Map<string, Tensor> | null} */
    this.loadedTensors = null;
    this.text = this.manifest.segments.map((/** @type {string[]} */ [text, separator]) => text + separator).join("");
    /** The URL of the saved view. @type {string} */
    this.savedUrl = payload.view;
    if (!location.hash) history.replaceState(null, "", this.savedUrl);
  }

  /** A saved page needs no key. */
  setApiKey() {}

  async fetchModels() {
    const { model } = this.manifest;
    const [source, target] = model.languages ?? ["", ""];
    return [{ ...model, source, target, folder: model.name, engine: "", checkpoints: [] }];
  }

  /** @param {any} request */
  async fetchTrace(request) {
    const savedRequest = this.manifest.request;
    const savedSampling = savedRequest.seed === null ? [null] : [savedRequest.seed, savedRequest.top_k, savedRequest.top_p, savedRequest.temperature];
    const requestedSampling = (request.seed ?? null) === null ? [null] : [request.seed, request.top_k, request.top_p, request.temperature];
    const matches = request.source === this.text && isEqual(requestedSampling, savedSampling) && isEqual(request.prefix_ids ?? [], savedRequest.prefix_ids) && isEqual(request.ablated_heads ?? [], savedRequest.ablated_heads) && isEqual(request.masked_source ?? [], savedRequest.masked_source)
      && (request.checkpoint ?? null) === this.manifest.checkpoint && (request.beam_size ?? null) === savedRequest.beam_size;
    if (!matches) throw new RequestError("This file contains one sentence and its translation. For other sentences: heedful serve MODEL.", 400);
    return this.manifest;
  }

  /** @returns {Promise<any>} */
  async translate() {
    throw new RequestError(`This file cannot translate again. ${SERVER_HINT}`, 400);
  }

  /** @param {string} _id @param {string[]} names */
  async fetchTensors(_id, names) {
    this.loadedTensors ??= readTensors(decodeBase64(this.packedTensors).buffer);
    const missing = names.find((name) => !this.loadedTensors?.has(name));
    if (missing) throw new RequestError(`To stay small, this file does not include ${missing}. A running server shows it: heedful serve MODEL.`, 400);
    return new Map(names.map((name) => [name, /** @type {Tensor} */ (this.loadedTensors?.get(name))]));
  }

  /** Whether this file includes the arithmetic of a head. @param {{kind: string, layer: number, head: number}} head */
  hasArithmetic({ kind, layer, head }) {
    return `${kind}.${layer}.${head}` in this.packedCells;
  }

  /** @param {string} _id @param {any} cell */
  async fetchCell(_id, { kind, layer, head, row, key = null }) {
    const name = `${kind}.${layer}.${head}`;
    if (!this.packedCells[name]) throw new RequestError("This file does not include the arithmetic of this head. A running server shows every head: heedful serve MODEL.", 400);
    if (!this.cellsByHead.has(name)) this.cellsByHead.set(name, decompress(this.packedCells[name]));
    const { parts, rows } = await /** @type {Promise<HeadCells>} */ (this.cellsByHead.get(name));
    const cell = expandRow(rows[row], parts);
    return key === null || key === cell.values.key - 1 ? cell : replaceKey(cell, Number(key));
  }

  /** @returns {Promise<any>} */
  async fetchAlternatives() {
    throw new RequestError(`This file cannot search for alternative translations. ${SERVER_HINT}`, 400);
  }

  /** @returns {Promise<any>} */
  async fetchTraining() {
    throw new RequestError("This file does not include the training history. A running server shows it: heedful serve MODEL.", 400);
  }

  /** @returns {Promise<Blob>} */
  async fetchPage() {
    throw new RequestError("This file is already the saved page.", 400);
  }
}

/** @param {any[]} left @param {any[]} right */
function isEqual(left, right) {
  return JSON.stringify(left) === JSON.stringify(right);
}

/** @param {string} text in base64 */
function decodeBase64(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/** @param {string} text @returns {Promise<HeadCells>} */
function decompress(text) {
  return new Response(new Blob([decodeBase64(text)]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

/** @param {any} row @param {any[]} parts */
function expandRow(row, parts) {
  return {
    ...row,
    values: Object.fromEntries(Object.entries(row.values).map(([name, index]) => [name, parts[index]])),
    sections: row.sections.map((/** @type {any} */ section) => ({ ...section, tables: section.tables.map((/** @type {number} */ index) => parts[index]) })),
  };
}

/**
 * The same row with the products of another column; all inputs are already loaded.
 * @param {any} cell @param {number} key
 */
function replaceKey(cell, key) {
  const { q, k, scores, column_subwords: subwords } = cell.values;
  const products = q.map((/** @type {number} */ value, /** @type {number} */ channel) => value * k[key][channel]);
  const sections = cell.sections.map((/** @type {any} */ section) => {
    if (!section.heading.startsWith("One score")) return section;
    const [table] = section.tables;
    const cells = [[...q, ""], [...k[key], ""], [...products, scores[key]]];
    return { ...section, notes: [], tables: [{ ...table, rows: [table.rows[0], `k of ${subwords[key]}`, table.rows[2]], cells }] };
  });
  return { ...cell, sections, values: { ...cell.values, key: key + 1, products } };
}
