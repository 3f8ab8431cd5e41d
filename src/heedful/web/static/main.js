// The page: one selection, one trace, and the views that show them.

import { EmbeddedSource, findEmbeddedTrace } from "heedful/data/embedded_source.js";
import { ServerSource } from "heedful/data/server_source.js";
import { getTask } from "heedful/data/task.js";
import { KINDS, Trace } from "heedful/data/trace.js";
import { createPageDownloads } from "heedful/export/downloads.js";
import { h } from "heedful/parts/dom.js";
import { clampSelection, DEFAULT_SELECTION, formatUrl, parseUrl, Store } from "heedful/state/selection.js";
import { VIEWS } from "heedful/views/index.js";
import { showPlainTranslation } from "heedful/workbench/plain_translation.js";
import { Workbench } from "heedful/workbench/workbench.js";

/** @typedef {import("heedful/state/selection.js").Selection} Selection */
/** A mounted view. @typedef {{show: (selection: Selection, trace: Trace) => unknown, hide?: () => void}} MountedView */
/** ``supports`` tells whether the view applies to a model. @typedef {{id: string, title: string, needsServer?: boolean, supports?: (model: any) => boolean, mount: (host: HTMLElement, page: Page) => MountedView}} View */

/** Milliseconds before a request to an unresponsive server is repeated. */
const RETRY_DELAY = 4000;
const EXAMPLE = "The animal didn't cross the street because it was too tired.";
/** The request of the finished model with default settings. */
const DEFAULT_REQUEST = { segment: DEFAULT_SELECTION.segment, beam: DEFAULT_SELECTION.beam, seed: DEFAULT_SELECTION.seed, prefix: DEFAULT_SELECTION.prefix, off: DEFAULT_SELECTION.off, hidden: DEFAULT_SELECTION.hidden, checkpoint: DEFAULT_SELECTION.checkpoint };

export class Page {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.source = findEmbeddedTrace() ? new EmbeddedSource() : new ServerSource();
    this.store = new Store(parseUrl(location.hash, DEFAULT_SELECTION));
    /** @type {Trace | null} */
    this.trace = null;
    /** @type {any[]} */
    this.models = [];
    /** @type {Map<string, MountedView>} */
    this.mountedViews = new Map();
    this.abortController = new AbortController();
    /** The models are loaded and the first trace is requested. */
    this.started = false;
    /** A response is pending: the trace does not match the selection yet. */
    this.loading = false;
    /** The last selection of the lesson view. @type {Selection | null} */
    this.lessonSelection = null;
    /** The server no longer had the trace, and it was requested again. */
    this.retriedTrace = false;
    /** The timer of the next retry. */
    this.retryTimer = 0;
    this.workbench = this.#buildLayout(root);
    this.store.subscribe((now, before) => this.#handleChange(now, before));
  }

  /** @param {HTMLElement} root */
  #buildLayout(root) {
    this.modelSelect = h("select", { "aria-label": "Model", onchange: (/** @type {any} */ event) => this.store.set({ ...DEFAULT_REQUEST, model: event.target.value, query: null, key: null, rows: [], extraHeads: [], step: 0 }) });
    this.modelSummary = h("span", { class: "facts" });
    this.downloads = createPageDownloads(this);
    this.alert = h("div", { class: "message", role: "alert", hidden: true });
    /** @type {Map<string, HTMLAnchorElement>} */
    this.links = new Map(VIEWS.filter((view) => this.source.live || !view.needsServer).map((view) => [view.id, h("a", null, view.title)]));
    this.tabs = h("nav", { class: "tabs", "aria-label": "Views", hidden: true }, [...this.links.values()]);
    this.lessonLink = h("a", null, "← Back to the lesson");
    this.backToLesson = h("p", { class: "back-to-lesson", hidden: true }, this.lessonLink);
    this.heading = h("h2", { class: "visually-hidden" });
    const host = h("section", { class: "workbench", "aria-label": "Text and result" });
    /** @type {Map<string, HTMLElement>} */
    this.viewHosts = new Map(VIEWS.map((view) => [view.id, h("section", { class: "view", id: `view-${view.id}`, "aria-label": view.title, tabIndex: -1, hidden: true })]));
    this.main = h("main", { tabIndex: -1 }, host, this.tabs, this.backToLesson, this.heading);
    root.replaceChildren(
      h("header", { class: "page-header" }, h("h1", null, "Heedful"), this.modelSelect, this.modelSummary, this.downloads),
      this.alert,
      this.main,
    );
    return new Workbench(host, this);
  }

  /** Load the models, then the first trace. */
  async start() {
    try {
      this.models = await this.source.fetchModels();
      this.clearError();
    } catch (error) {
      const { status, message } = /** @type {any} */ (error);
      if (status === 501) await this.#showPlainTranslation(message);
      else this.showError(error, () => this.start());
      return;
    }
    const { text, layer, head, kind } = this.store.selection;
    const current = this.model;
    this.modelSelect.replaceChildren(...this.models.map((model) => h("option", { value: model.name, selected: model === current }, model.source && model.target ? `${model.source} → ${model.target} (${model.zero_shot ? "zero-shot, " : ""}${model.folder})` : model.folder)));
    const first = { text: text || this.source.text || (current.source === "en" ? EXAMPLE : "") };
    const attention = location.hash.includes("layer=") ? { layer, head, kind } : getLastAttention(current);
    this.store.set({ ...first, ...attention, ...this.#resolveViewAndModel() }, { replace: true });
    this.started = true;
    await this.loadTrace();
  }

  /** Translate only: the server lacks what the views need. @param {string} note */
  async #showPlainTranslation(note) {
    try {
      await showPlainTranslation(this.workbench.host, /** @type {ServerSource} */ (this.source), note);
      this.clearError();
    } catch (error) {
      this.showError(error, () => this.start());
    }
    for (const part of [this.modelSelect, this.modelSummary, this.downloads]) part.remove();
  }

  /** The view and the model of the selection, or the defaults if they do not exist. */
  #resolveViewAndModel() {
    const { view } = this.store.selection;
    return { view: VIEWS.some((candidate) => candidate.id === view && this.#supports(candidate)) ? view : DEFAULT_SELECTION.view, model: /** @type {string} */ (this.model.name) };
  }

  /** Whether a view applies to the model. @param {View} view */
  #supports(view) {
    return !view.supports || view.supports(this.model);
  }

  /** The title of a view; the first is named after the model's task. @param {View} view @returns {string} */
  #getTitle(view) {
    return view.id === DEFAULT_SELECTION.view ? getTask(this.model).viewTitle : view.title;
  }

  /** The selected model. @returns {any} */
  get model() {
    return this.models.find((model) => model.name === this.store.selection.model) ?? this.models[0];
  }

  /** The trace request for the selection. @param {Partial<Selection>} [changes] @param {object} [extra] */
  buildRequest(changes = {}, extra = {}) {
    const { model, text, segment, beam, seed, top_k, top_p, temperature, prefix, off, hidden, checkpoint } = { ...this.store.selection, ...changes };
    const search = seed === null ? (beam ? { beam_size: beam } : {}) : { seed, top_k, top_p, temperature };
    return { model, source: text, segment, ablated_heads: off, masked_source: hidden, checkpoint, prefix_ids: prefix, ...search, ...extra };
  }

  /** Whether two selections need the same trace. @param {Selection} selection @param {Selection} otherSelection */
  #isSameRequest(selection, otherSelection) {
    return JSON.stringify(this.buildRequest(selection)) === JSON.stringify(this.buildRequest(otherSelection));
  }

  /** Load and show the trace of the selection. */
  async loadTrace() {
    const { text } = this.store.selection;
    this.abortController.abort();
    this.abortController = new AbortController();
    this.loading = getTask(this.model).canSubmit(text);
    if (!this.loading) {
      this.trace = null;
      this.clearError();
      this.workbench.showEmpty();
      await this.#render();
      return;
    }
    this.workbench.showLoading();
    try {
      const manifest = await this.source.fetchTrace(this.buildRequest(), this.abortController.signal);
      this.trace = new Trace(manifest, this.source);
      const { step, prefix } = this.store.selection; // start where the model continues the prompt
      if (step === 0 && !prefix.length) this.store.set({ step: manifest.translation.prefix_length }, { replace: true, silent: true });
      this.clearError();
    } catch (error) {
      if (/** @type {Error} */ (error).name === "AbortError") return;
      this.trace = null; // the old trace belongs to another request
      this.loading = false;
      this.workbench.showFailure();
      await this.#render();
      this.showError(error, () => this.loadTrace());
      return;
    }
    this.loading = false;
    await this.#render();
  }

  /** @param {Selection} next @param {Selection} previous */
  #handleChange(next, previous) {
    if (!this.started) return;
    const resolved = this.#resolveViewAndModel();
    if (resolved.view !== next.view || resolved.model !== next.model) this.store.set(resolved, { replace: true, silent: true }); // an invalid link
    const { selection } = this.store;
    if (!this.#isSameRequest(selection, previous)) this.loadTrace();
    else {
      if (this.trace) this.clearError();
      this.#render();
    }
  }

  /** Show the selection in the selected view. */
  async #render() {
    if (this.trace && !this.loading) this.store.set(clampSelection(this.store.selection, this.trace), { replace: true, silent: true });
    const { selection } = this.store;
    const { trace } = this;
    this.#updateHeader(selection);
    this.#mountView(selection);
    if (this.loading) return; // this trace belongs to another request
    try {
      if (trace) await this.workbench.show(selection, trace);
      if (this.isStale(selection, trace)) return;
      const host = this.viewHosts.get(selection.view);
      if (host && !host.hidden) await this.mountedViews.get(selection.view)?.show(selection, /** @type {Trace} */ (trace));
      this.retriedTrace = false;
    } catch (error) {
      if (trace !== this.trace) return; // outdated
      const { status } = /** @type {any} */ (error);
      if (status === 404 && !this.retriedTrace) {
        this.retriedTrace = true; // the server dropped this trace or restarted: request it again, once
        this.loadTrace();
      } else this.showError(error, () => this.#render());
    }
  }

  /** Whether a newer trace or selection arrived: views check this after every await and never draw outdated content. @param {Selection} selection @param {Trace | null} trace */
  isStale(selection, trace) {
    return trace !== this.trace || selection !== this.store.selection;
  }

  /** Attach the selected view only: with a long sentence, all views together have thousands of nodes. @param {Selection} selection */
  #mountView(selection) {
    let lostFocus = false;
    for (const view of VIEWS) {
      const host = /** @type {HTMLElement} */ (this.viewHosts?.get(view.id));
      const hidden = view.id !== selection.view || (!this.trace && !view.needsServer);
      if (hidden === host.hidden) continue;
      if (hidden) this.mountedViews.get(view.id)?.hide?.();
      lostFocus ||= hidden && host.contains(document.activeElement);
      host.hidden = hidden;
      if (hidden) host.remove();
      else this.main.append(host);
      if (!hidden && !this.mountedViews.has(view.id)) this.mountedViews.set(view.id, view.mount(host, this));
    }
    if (!lostFocus) return;
    this.main.lastElementChild.focus({ preventScroll: true }); // keep the keyboard position
    if (this.tabs.getBoundingClientRect().top < 0) this.tabs.scrollIntoView();
  }

  /** Title, model and tabs. @param {Selection} selection */
  #updateHeader(selection) {
    const { architecture, has_arithmetic: hasArithmetic, encoder_layers: encoderLayers, decoder_layers: decoderLayers, heads, d_model: dModel, parameters } = this.model;
    const prefix = hasArithmetic ? getTask(this.model).modelPrefix : `${architecture.toUpperCase()} with attention, `;
    this.modelSelect.value = selection.model;
    this.modelSummary.textContent = `${prefix}${[encoderLayers, decoderLayers].filter(Boolean).join("+")} layers, ${heads} head${heads === 1 ? "" : "s"}, d_model ${dModel}, ${parameters.toLocaleString("en")} parameters`;
    this.heading.textContent = this.#getTitle(/** @type {View} */ (VIEWS.find((view) => view.id === selection.view)));
    document.title = `${this.heading.textContent} · Heedful`;
    this.tabs.hidden = false;
    for (const [id, link] of this.links ?? []) {
      const view = /** @type {View} */ (VIEWS.find((candidate) => candidate.id === id));
      link.href = formatUrl({ ...selection, view: id });
      link.textContent = this.#getTitle(view);
      link.hidden = !this.#supports(view);
      this.viewHosts?.get(id)?.setAttribute("aria-label", link.textContent);
      if (id === selection.view) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    this.#updateLessonLink(selection);
  }

  /** The link back to the lesson, to the step and word it was about. @param {Selection} selection */
  #updateLessonLink(selection) {
    if (selection.view === "lesson") this.lessonSelection = selection;
    this.backToLesson.hidden = selection.view === "lesson" || !(this.lessonSelection || selection.lesson) || Boolean(this.links.get("lesson")?.hidden);
    const sameRequest = this.lessonSelection && this.#isSameRequest(selection, this.lessonSelection);
    this.lessonLink.href = formatUrl(sameRequest ? /** @type {Selection} */ (this.lessonSelection) : { ...selection, view: "lesson" });
  }

  /** Show an error and a way to recover. @param {unknown} error @param {() => void} onRetry */
  showError(error, onRetry) {
    const { status, message } = /** @type {any} */ (error);
    if (status === undefined) console.error(error);
    const hasOverrides = status === 400 && Object.entries(DEFAULT_REQUEST).some(([name, value]) => JSON.stringify(this.store.selection[/** @type {keyof Selection} */ (name)]) !== JSON.stringify(value));
    const retry = async () => {
      this.clearError();
      if (status === 404) await this.loadTrace(); // the trace is gone
      onRetry();
    };
    this.alert.replaceChildren(h("span", null, message), " ", !this.source.live
      ? h("button", { type: "button", onclick: () => (this.clearError(), this.store.set(parseUrl(this.source.savedUrl))) }, "Show the saved sentence")
      : hasOverrides ? h("button", { type: "button", onclick: () => (this.clearError(), this.store.set(DEFAULT_REQUEST)) }, getTask(this.model).resetLabel)
      : h("button", { type: "button", onclick: retry }, "Try again"));
    if (status === 403) this.alert.append(" ", this.#createKeyForm(retry));
    this.alert.hidden = false;
    clearTimeout(this.retryTimer);
    if (status === 0) this.retryTimer = setTimeout(retry, RETRY_DELAY); // the server may come back
  }

  /** Remove the error; focus continues below it. */
  clearError() {
    clearTimeout(this.retryTimer);
    const focused = this.alert.contains(document.activeElement);
    this.alert.hidden = true;
    if (focused) this.main.focus();
  }

  /** @param {() => void} onSubmit */
  #createKeyForm(onSubmit) {
    const field = h("input", { type: "password", "aria-label": "API key", placeholder: "API key" });
    return h("form", { class: "key-form", onsubmit: (/** @type {Event} */ event) => {
      event.preventDefault();
      /** @type {any} */ (this.source).setApiKey(field.value);
      onSubmit();
    } }, field, h("button", null, "Use key"));
  }
}

/** The last attention of a model: the closest to its output. @param {any} model @returns {Pick<Selection, "kind" | "layer" | "head">} */
function getLastAttention({ layers }) {
  const kind = KINDS.filter((kind) => layers[kind]).pop() ?? DEFAULT_SELECTION.kind;
  return { kind, layer: layers[kind] - 1, head: 0 };
}

const page = new Page(/** @type {HTMLElement} */ (document.getElementById("heedful")));
page.start();
