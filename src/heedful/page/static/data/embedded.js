// The page's own file as the source of all numbers: a trace packed into it, no server needed.

import { Trouble } from "heedful/data/live.js";
import { readTensors } from "heedful/data/safetensors.js";

/** @typedef {import("heedful/data/safetensors.js").Tensor} Tensor */
/** The rows of a head; values and tables are places in ``parts``. @typedef {{parts: any[], rows: any[]}} HeadCells */

const SERVER = "A running server can do it: heedful serve MODEL.";

/** What ``heedful inspect -o page.html`` has put into the file. @returns {HTMLElement | null} */
export function embedded() {
  return document.getElementById("heedful-record");
}

export class EmbeddedSource {
  constructor() {
    this.live = false;
    const packed = JSON.parse(/** @type {HTMLElement} */ (embedded()).textContent ?? "{}");
    this.manifest = packed.manifest;
    /** @type {Record<string, string>} */
    this.packedCells = packed.cells;
    /** @type {string} */
    this.packedTensors = packed.tensors;
    /** @type {Map<string, Promise<HeadCells>>} */
    this.heads = new Map();
    /** @type {Map<string, Tensor> | null} */
    this.all = null;
    this.text = this.manifest.segments.map((/** @type {string[]} */ [text, separator]) => text + separator).join("");
    /** The place that was saved. @type {string} */
    this.saved = packed.view;
    if (!location.hash) history.replaceState(null, "", this.saved);
  }

  /** There is nobody to ask for a key. */
  useKey() {}

  async models() {
    const { model } = this.manifest;
    const [source, target] = model.languages ?? ["", ""];
    return [{ ...model, source, target, folder: model.name, engine: "", checkpoints: [] }];
  }

  /** @param {any} asked */
  async trace(asked) {
    const own = this.manifest.asked;
    const drawn = own.seed === null ? [null] : [own.seed, own.top_k, own.top_p, own.temperature];
    const wanted = (asked.seed ?? null) === null ? [null] : [asked.seed, asked.top_k, asked.top_p, asked.temperature];
    const same = asked.source === this.text && alike(wanted, drawn) && alike(asked.prefix_ids ?? [], own.prefix_ids) && alike(asked.off ?? [], own.off) && alike(asked.hidden ?? [], own.hidden)
      && (asked.checkpoint ?? null) === this.manifest.checkpoint && (asked.beam ?? null) === own.beam;
    if (!same) throw new Trouble("This file holds one sentence as it was translated once. For others: heedful serve MODEL.", 400);
    return this.manifest;
  }

  /** @returns {Promise<any>} */
  async translate() {
    throw new Trouble(`This file cannot translate anew. ${SERVER}`, 400);
  }

  /** @param {string} _id @param {string[]} names */
  async tensors(_id, names) {
    this.all ??= readTensors(decoded(this.packedTensors).buffer);
    const missing = names.find((name) => !this.all?.has(name));
    if (missing) throw new Trouble(`To keep it small, this file leaves out ${missing}. A running server shows it: heedful serve MODEL.`, 400);
    return new Map(names.map((name) => [name, /** @type {Tensor} */ (this.all?.get(name))]));
  }

  /** Whether the arithmetic of a head is in this file. @param {{kind: string, layer: number, head: number}} head */
  holds({ kind, layer, head }) {
    return `${kind}.${layer}.${head}` in this.packedCells;
  }

  /** @param {string} _id @param {any} place */
  async cell(_id, { kind, layer, head, row, key = null }) {
    const name = `${kind}.${layer}.${head}`;
    if (!this.packedCells[name]) throw new Trouble("The arithmetic of this head is not in this file. A running server shows every one: heedful serve MODEL.", 400);
    if (!this.heads.has(name)) this.heads.set(name, unpacked(this.packedCells[name]));
    const { parts, rows } = await /** @type {Promise<HeadCells>} */ (this.heads.get(name));
    const cell = whole(rows[row], parts);
    return key === null || key === cell.values.key - 1 ? cell : withKey(cell, Number(key));
  }

  /** @returns {Promise<any>} */
  async alternatives() {
    throw new Trouble(`This file cannot search for other translations. ${SERVER}`, 400);
  }

  /** @returns {Promise<any>} */
  async training() {
    throw new Trouble("How the model was trained is not in this file. A running server shows it: heedful serve MODEL.", 400);
  }

  /** @returns {Promise<Blob>} */
  async page() {
    throw new Trouble("This file is the saved page already.", 400);
  }
}

/** @param {any[]} one @param {any[]} other */
function alike(one, other) {
  return JSON.stringify(one) === JSON.stringify(other);
}

/** @param {string} text in base64 */
function decoded(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

/** @param {string} text @returns {Promise<HeadCells>} */
function unpacked(text) {
  return new Response(new Blob([decoded(text)]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

/** @param {any} row @param {any[]} parts */
function whole(row, parts) {
  return {
    ...row,
    values: Object.fromEntries(Object.entries(row.values).map(([name, place]) => [name, parts[place]])),
    sections: row.sections.map((/** @type {any} */ section) => ({ ...section, tables: section.tables.map((/** @type {number} */ place) => parts[place]) })),
  };
}

/**
 * The same row with the products of another column: all numbers that they need are there.
 * @param {any} cell @param {number} key
 */
function withKey(cell, key) {
  const { q, k, scores, column_pieces: pieces } = cell.values;
  const products = q.map((/** @type {number} */ value, /** @type {number} */ channel) => value * k[key][channel]);
  const sections = cell.sections.map((/** @type {any} */ section) => {
    if (!section.heading.startsWith("One score")) return section;
    const [table] = section.tables;
    const cells = [[...q, ""], [...k[key], ""], [...products, scores[key]]];
    return { ...section, notes: [], tables: [{ ...table, rows: [table.rows[0], `k of ${pieces[key]}`, table.rows[2]], cells }] };
  });
  return { ...cell, sections, values: { ...cell.values, key: key + 1, products } };
}
