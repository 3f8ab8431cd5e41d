// A running server as the source of all numbers.

import { readTensors } from "heedful/data/safetensors.js";

/** What went wrong, in words for people; ``status`` is HTTP's, or 0 if there was no answer at all. */
export class Trouble extends Error {
  /** @param {string} message @param {number} status */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export class LiveSource {
  constructor() {
    this.live = true;
    /** A text of its own, to begin with. */
    this.text = "";
    /** Nothing is saved here: whatever is asked for is made. */
    this.saved = "";
    /** A key that the server asks for, if it does; kept for this tab only. */
    this.key = sessionStorage.getItem("heedful-key") ?? "";
  }

  /** @param {string} key */
  useKey(key) {
    this.key = key;
    sessionStorage.setItem("heedful-key", key);
  }

  /** @returns {Promise<any[]>} */
  models() {
    return this.#json("/api/models");
  }

  /** @param {object} asked @param {AbortSignal} [signal] @returns {Promise<any>} */
  trace(asked, signal) {
    return this.#json("/api/trace", asked, signal);
  }

  /** @param {object} asked @param {AbortSignal} [signal] @returns {Promise<any>} */
  translate(asked, signal) {
    return this.#json("/api/translate", asked, signal);
  }

  /** @param {string} id @param {string[]} names */
  async tensors(id, names) {
    const query = new URLSearchParams({ names: names.join(",") });
    const answer = await this.#answer(`/api/trace/${id}/tensors?${query}`);
    return readTensors(await answer.arrayBuffer());
  }

  /** @param {string} id @param {Record<string, string | number>} place @returns {Promise<any>} */
  cell(id, place) {
    return this.#json(`/api/trace/${id}/cell?${query(place)}`);
  }

  /** Whether the arithmetic of a head can be asked for: a model has all of its own. @param {object} _head */
  holds(_head) {
    return true;
  }

  /** How the translation could go on from a step. @param {string} id @param {number} step @returns {Promise<any>} */
  alternatives(id, step) {
    return this.#json(`/api/trace/${id}/alternatives?${query({ step })}`);
  }

  /** The numbers of a model's training. @param {string} model @returns {Promise<any>} */
  training(model) {
    return this.#json(`/api/training?${query({ model })}`);
  }

  /** The page of a trace as one file. @param {string} id @param {string} hash @returns {Promise<Blob>} */
  async page(id, hash) {
    const answer = await this.#answer(`/api/trace/${id}/page?${query({ view: hash })}`);
    return answer.blob();
  }

  /** @param {string} path @param {object} [body] @param {AbortSignal} [signal] */
  async #json(path, body, signal) {
    const answer = await this.#answer(path, body, signal);
    return answer.json();
  }

  /** @param {string} path @param {object} [body] @param {AbortSignal} [signal] */
  async #answer(path, body, signal) {
    /** @type {Record<string, string>} */
    const headers = this.key ? { Authorization: `Bearer ${this.key}` } : {};
    if (body) headers["Content-Type"] = "application/json";
    let answer;
    try {
      answer = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
    } catch (error) {
      if (/** @type {Error} */ (error).name === "AbortError") throw error;
      throw new Trouble("The server does not answer. Is `heedful serve` still running?", 0);
    }
    if (answer.ok) return answer;
    const told = await answer.json().catch(() => ({}));
    throw new Trouble(sentence(told.error ?? told.message ?? `the server answered ${answer.status}`), answer.status);
  }
}

/** What the server says to programs, as a sentence. @param {string} error */
function sentence(error) {
  const text = error.replace(/^Invalid request: /, "").replace(/([^.!?])$/, "$1.");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** @param {Record<string, string | number>} values */
function query(values) {
  return new URLSearchParams(Object.entries(values).map(([name, value]) => [name, String(value)]));
}
