// Data source of a live page: a running server.

import { readTensors } from "heedful/data/safetensors.js";

/** An error message for users; ``status`` is the HTTP status, or 0 if there was no response. */
export class RequestError extends Error {
  /** @param {string} message @param {number} status */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export class ServerSource {
  constructor() {
    this.live = true;
    /** The initial text: none. */
    this.text = "";
    /** The URL of a saved view: none. */
    this.savedUrl = "";
    /** The API key, if the server requires one; stored for this tab only. */
    this.apiKey = sessionStorage.getItem("heedful-key") ?? "";
  }

  /** @param {string} key */
  setApiKey(key) {
    this.apiKey = key;
    sessionStorage.setItem("heedful-key", key);
  }

  /** @returns {Promise<any[]>} */
  fetchModels() {
    return this.#fetchJson("/api/models");
  }

  /** The languages and the targets of each. @returns {Promise<{code: string, targets: string[]}[]>} */
  fetchLanguages() {
    return this.#fetchJson("/languages");
  }

  /** @param {object} request @param {AbortSignal} [signal] @returns {Promise<any>} */
  fetchTrace(request, signal) {
    return this.#fetchJson("/api/trace", request, signal);
  }

  /** @param {object} request @param {AbortSignal} [signal] @returns {Promise<any>} */
  translate(request, signal) {
    return this.#fetchJson("/api/translate", request, signal);
  }

  /** @param {string} id @param {string[]} names */
  async fetchTensors(id, names) {
    const params = new URLSearchParams({ names: names.join(",") });
    const response = await this.#fetch(`/api/trace/${id}/tensors?${params}`);
    return readTensors(await response.arrayBuffer());
  }

  /** @param {string} id @param {Record<string, string | number>} head @returns {Promise<any>} */
  fetchCell(id, head) {
    return this.#fetchJson(`/api/trace/${id}/cell?${formatQuery(head)}`);
  }

  /** Whether the arithmetic of a head is available: on a server, always. @param {object} _head */
  hasArithmetic(_head) {
    return true;
  }

  /** Alternative continuations from a step. @param {string} id @param {number} step @returns {Promise<any>} */
  fetchAlternatives(id, step) {
    return this.#fetchJson(`/api/trace/${id}/alternatives?${formatQuery({ step })}`);
  }

  /** The metrics of a model's training. @param {string} model @returns {Promise<any>} */
  fetchTraining(model) {
    return this.#fetchJson(`/api/training?${formatQuery({ model })}`);
  }

  /** The page of a trace as a single file. @param {string} id @param {string} hash @returns {Promise<Blob>} */
  async fetchPage(id, hash) {
    const response = await this.#fetch(`/api/trace/${id}/page?${formatQuery({ view: hash })}`);
    return response.blob();
  }

  /** @param {string} path @param {object} [body] @param {AbortSignal} [signal] */
  async #fetchJson(path, body, signal) {
    const response = await this.#fetch(path, body, signal);
    return response.json();
  }

  /** @param {string} path @param {object} [body] @param {AbortSignal} [signal] */
  async #fetch(path, body, signal) {
    /** @type {Record<string, string>} */
    const headers = this.apiKey ? { Authorization: `Bearer ${this.apiKey}` } : {};
    if (body) headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
    } catch (error) {
      if (/** @type {Error} */ (error).name === "AbortError") throw error;
      throw new RequestError("The server does not respond. Is `heedful serve` still running?", 0);
    }
    if (response.ok) return response;
    const payload = await response.json().catch(() => ({}));
    throw new RequestError(formatError(payload.error ?? payload.message ?? `the server responded with ${response.status}`), response.status);
  }
}

/** A server error as a sentence for users; an identifier (prefix_ids) is not capitalized. @param {string} error */
function formatError(error) {
  const text = error.replace(/^Invalid request: /, "").replace(/([^.!?])$/, "$1.");
  return text.replace(/^[a-z]+(?![a-z_])/, (word) => word.charAt(0).toUpperCase() + word.slice(1));
}

/** @param {Record<string, string | number>} values */
function formatQuery(values) {
  return new URLSearchParams(Object.entries(values).map(([name, value]) => [name, String(value)]));
}
