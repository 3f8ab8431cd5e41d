// The page: one selection, one trace, and the views that show them.

import { EmbeddedSource, embedded } from "heedful/data/embedded.js";
import { LiveSource } from "heedful/data/live.js";
import { taskOf } from "heedful/data/task.js";
import { KINDS, Trace } from "heedful/data/trace.js";
import { h } from "heedful/parts/dom.js";
import { takeAway } from "heedful/parts/toolbar.js";
import { fromUrl, NOTHING, Store, toUrl, within } from "heedful/state/selection.js";
import { VIEWS } from "heedful/views/all.js";
import { Workbench } from "heedful/views/workbench.js";

/** @typedef {import("heedful/state/selection.js").Selection} Selection */
/** What a mounted view does. @typedef {{show: (selection: Selection, trace: Trace) => unknown, hide?: () => void}} Shown */
/** ``fits`` says whether a model has what the view shows. @typedef {{id: string, title: string, needsServer?: boolean, fits?: (model: any) => boolean, mount: (host: HTMLElement, page: Page) => Shown}} View */

/** Milliseconds after which a server that did not answer is asked again. */
const RETRY = 4000;
const EXAMPLE = "The animal didn't cross the street because it was too tired.";
/** A question with nothing special: what the finished model itself says to the text. */
const PLAIN = { segment: NOTHING.segment, beam: NOTHING.beam, seed: NOTHING.seed, prefix: NOTHING.prefix, off: NOTHING.off, hidden: NOTHING.hidden, checkpoint: NOTHING.checkpoint };

export class Page {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.source = embedded() ? new EmbeddedSource() : new LiveSource();
    this.store = new Store(fromUrl(location.hash, NOTHING));
    /** @type {Trace | null} */
    this.trace = null;
    /** @type {any[]} */
    this.models = [];
    /** @type {Map<string, Shown>} */
    this.mounted = new Map();
    this.asking = new AbortController();
    /** The models are known and the first question is asked. */
    this.started = false;
    /** An answer is on its way: the trace is not yet that of the selection. */
    this.waiting = false;
    /** The lesson as it was last seen. @type {Selection | null} */
    this.left = null;
    /** The server had forgotten the trace and was asked for it again. */
    this.forgotten = false;
    /** The timer of the next try, after the server did not answer. */
    this.retrying = 0;
    this.bench = this.#build(root);
    this.store.subscribe((now, before) => this.#changed(now, before));
  }

  /** @param {HTMLElement} root */
  #build(root) {
    this.models_choice = h("select", { "aria-label": "Model", onchange: (/** @type {any} */ event) => this.store.set({ ...PLAIN, model: event.target.value, query: null, key: null, rows: [], also: [], step: 0 }) });
    this.facts = h("span", { class: "facts" });
    this.message = h("div", { class: "message", role: "alert", hidden: true });
    /** @type {Map<string, HTMLAnchorElement>} */
    this.links = new Map(VIEWS.filter((view) => this.source.live || !view.needsServer).map((view) => [view.id, h("a", null, view.title)]));
    this.tabs = h("nav", { class: "tabs", "aria-label": "Views", hidden: true }, [...this.links.values()]);
    this.lessonLink = h("a", null, "← Back to the lesson");
    this.backToLesson = h("p", { class: "back-to-lesson", hidden: true }, this.lessonLink);
    this.heading = h("h2", { class: "spoken" });
    const bench = h("section", { class: "bench", "aria-label": "Text and result" });
    /** @type {Map<string, HTMLElement>} */
    this.hosts = new Map(VIEWS.map((view) => [view.id, h("section", { class: "view", id: `view-${view.id}`, "aria-label": view.title, tabIndex: -1, hidden: true })]));
    this.main = h("main", { tabIndex: -1 }, bench, this.tabs, this.backToLesson, this.heading);
    root.replaceChildren(
      h("header", { class: "top" }, h("h1", null, "Heedful"), this.models_choice, this.facts, takeAway(this)),
      this.message,
      this.main,
    );
    return new Workbench(bench, this);
  }

  /** Find the models, and look at the first sentence. */
  async start() {
    try {
      this.models = await this.source.models();
      this.quiet();
    } catch (error) {
      this.say(error, () => this.start());
      return;
    }
    const { text, layer, head, kind } = this.store.selection;
    const known = this.model;
    this.models_choice.replaceChildren(...this.models.map((each) => h("option", { value: each.name, selected: each === known }, each.source && each.target ? `${each.source} → ${each.target} (${each.zero_shot ? "zero-shot, " : ""}${each.folder})` : each.folder)));
    const first = { text: text || this.source.text || (known.source === "en" ? EXAMPLE : "") };
    const place = location.hash.includes("layer=") ? { layer, head, kind } : lastAttention(known);
    this.store.set({ ...first, ...place, ...this.#known() }, { replace: true });
    this.started = true;
    await this.ask();
  }

  /** The view and the model of the selection, or the first ones if there are none of these names. */
  #known() {
    const { view } = this.store.selection;
    return { view: VIEWS.some((each) => each.id === view && this.#fits(each)) ? view : NOTHING.view, model: /** @type {string} */ (this.model.name) };
  }

  /** Whether the model has what a view shows. @param {View} view */
  #fits(view) {
    return !view.fits || view.fits(this.model);
  }

  /** The name of a view; the first is called what the model does. @param {View} view @returns {string} */
  #title(view) {
    return view.id === NOTHING.view ? taskOf(this.model).view : view.title;
  }

  /** The model of the selection. @returns {any} */
  get model() {
    return this.models.find((each) => each.name === this.store.selection.model) ?? this.models[0];
  }

  /** The question that the selection asks. @param {Partial<Selection>} [changes] @param {object} [more] */
  question(changes = {}, more = {}) {
    const { model, text, segment, beam, seed, top_k, top_p, temperature, prefix, off, hidden, checkpoint } = { ...this.store.selection, ...changes };
    const search = seed === null ? (beam ? { beam } : {}) : { seed, top_k, top_p, temperature };
    return { model, source: text, segment, off, hidden, checkpoint, prefix_ids: prefix, ...search, ...more };
  }

  /** Whether two selections ask the same; else a new trace is necessary. @param {Selection} one @param {Selection} other */
  #same(one, other) {
    return JSON.stringify(this.question(one)) === JSON.stringify(this.question(other));
  }

  /** Get the trace of the selection and show it. */
  async ask() {
    const { text } = this.store.selection;
    this.asking.abort();
    this.asking = new AbortController();
    this.waiting = taskOf(this.model).ready(text);
    if (!this.waiting) {
      this.trace = null;
      this.quiet();
      this.bench.empty();
      await this.#show();
      return;
    }
    this.bench.waiting();
    try {
      const manifest = await this.source.trace(this.question(), this.asking.signal);
      this.trace = new Trace(manifest, this.source);
      const { step, prefix } = this.store.selection; // a text is looked at where the model goes on with it
      if (step === 0 && !prefix.length) this.store.set({ step: manifest.translation.forced }, { replace: true, silent: true });
      this.quiet();
    } catch (error) {
      if (/** @type {Error} */ (error).name === "AbortError") return;
      this.trace = null; // what was there belongs to another question
      this.waiting = false;
      this.bench.failed();
      await this.#show();
      this.say(error, () => this.ask());
      return;
    }
    this.waiting = false;
    await this.#show();
  }

  /** @param {Selection} now @param {Selection} before */
  #changed(now, before) {
    if (!this.started) return;
    const known = this.#known();
    if (known.view !== now.view || known.model !== now.model) this.store.set(known, { replace: true, silent: true }); // a link to nowhere
    const { selection } = this.store;
    if (!this.#same(selection, before)) this.ask();
    else {
      if (this.trace) this.quiet();
      this.#show();
    }
  }

  /** Show the selection in the view that is chosen. */
  async #show() {
    if (this.trace && !this.waiting) this.store.set(within(this.store.selection, this.trace), { replace: true, silent: true });
    const { selection } = this.store;
    const { trace } = this;
    this.#surround(selection);
    this.#place(selection);
    if (this.waiting) return; // the trace that is here answers another question; all is shown with its own
    try {
      if (trace) await this.bench.show(selection, trace);
      if (this.stale(selection, trace)) return;
      const host = this.hosts.get(selection.view);
      if (host && !host.hidden) await this.mounted.get(selection.view)?.show(selection, /** @type {Trace} */ (trace));
      this.forgotten = false;
    } catch (error) {
      if (trace !== this.trace) return; // of no interest any more
      const { status } = /** @type {any} */ (error);
      if (status === 404 && !this.forgotten) {
        this.forgotten = true; // the server has forgotten this trace, or was started anew: ask, but only once
        this.ask();
      } else this.say(error, () => this.#show());
    }
  }

  /** Whether somebody was quicker: views ask after every wait, and draw nothing old over what is new. @param {Selection} selection @param {Trace | null} trace */
  stale(selection, trace) {
    return trace !== this.trace || selection !== this.store.selection;
  }

  /** Put the chosen view on the page, and no other: with a long sentence all together are thousands of nodes. @param {Selection} selection */
  #place(selection) {
    let left = false;
    for (const view of VIEWS) {
      const host = /** @type {HTMLElement} */ (this.hosts?.get(view.id));
      const hidden = view.id !== selection.view || (!this.trace && !view.needsServer);
      if (hidden === host.hidden) continue;
      if (hidden) this.mounted.get(view.id)?.hide?.();
      left ||= hidden && host.contains(document.activeElement);
      host.hidden = hidden;
      if (hidden) host.remove();
      else this.main.append(host);
      if (!hidden && !this.mounted.has(view.id)) this.mounted.set(view.id, view.mount(host, this));
    }
    if (!left) return;
    this.main.lastElementChild.focus({ preventScroll: true }); // who chose something there goes on here
    if (this.tabs.getBoundingClientRect().top < 0) this.tabs.scrollIntoView();
  }

  /** Title, model and tabs. @param {Selection} selection */
  #surround(selection) {
    const { family, arithmetic, depth, heads, width, parameters } = this.model;
    const kind = arithmetic ? taskOf(this.model).kind : `${family.toUpperCase()} with attention, `;
    this.models_choice.value = selection.model;
    this.facts.textContent = `${kind}${depth.filter(Boolean).join("+")} layers, ${heads} head${heads === 1 ? "" : "s"}, width ${width}, ${parameters.toLocaleString("en")} parameters`;
    this.heading.textContent = this.#title(/** @type {View} */ (VIEWS.find((view) => view.id === selection.view)));
    document.title = `${this.heading.textContent} · Heedful`;
    this.tabs.hidden = false;
    for (const [id, link] of this.links ?? []) {
      const view = /** @type {View} */ (VIEWS.find((each) => each.id === id));
      link.href = toUrl({ ...selection, view: id });
      link.textContent = this.#title(view);
      link.hidden = !this.#fits(view);
      this.hosts?.get(id)?.setAttribute("aria-label", link.textContent);
      if (id === selection.view) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    this.#lesson(selection);
  }

  /** Who left the lesson to see something finds the way back, to the step and the word it was about. @param {Selection} selection */
  #lesson(selection) {
    if (selection.view === "lesson") this.left = selection;
    this.backToLesson.hidden = selection.view === "lesson" || !(this.left || selection.lesson) || Boolean(this.links.get("lesson")?.hidden);
    const same = this.left && this.#same(selection, this.left);
    this.lessonLink.href = toUrl(same ? /** @type {Selection} */ (this.left) : { ...selection, view: "lesson" });
  }

  /** Say what went wrong, with a way on. @param {unknown} error @param {() => void} again */
  say(error, again) {
    const { status, message } = /** @type {any} */ (error);
    if (status === undefined) console.error(error);
    const special = status === 400 && Object.entries(PLAIN).some(([name, value]) => JSON.stringify(this.store.selection[/** @type {keyof Selection} */ (name)]) !== JSON.stringify(value));
    const retry = async () => {
      this.quiet();
      if (status === 404) await this.ask(); // the trace is gone
      again();
    };
    this.message.replaceChildren(h("span", null, message), " ", !this.source.live
      ? h("button", { type: "button", onclick: () => (this.quiet(), this.store.set(fromUrl(this.source.saved))) }, "Show the saved sentence")
      : special ? h("button", { type: "button", onclick: () => (this.quiet(), this.store.set(PLAIN)) }, taskOf(this.model).plainly)
      : h("button", { type: "button", onclick: retry }, "Try again"));
    if (status === 403) this.message.append(" ", this.#key(retry));
    this.message.hidden = false;
    clearTimeout(this.retrying);
    if (status === 0) this.retrying = setTimeout(retry, RETRY); // the server may come back
  }

  /** Take the message away; the keyboard goes on below it. */
  quiet() {
    clearTimeout(this.retrying);
    const focused = this.message.contains(document.activeElement);
    this.message.hidden = true;
    if (focused) this.main.focus();
  }

  /** @param {() => void} again */
  #key(again) {
    const field = h("input", { type: "password", "aria-label": "API key", placeholder: "API key" });
    return h("form", { class: "key", onsubmit: (/** @type {Event} */ event) => {
      event.preventDefault();
      /** @type {any} */ (this.source).useKey(field.value);
      again();
    } }, field, h("button", null, "Use key"));
  }
}

/** The last attention of a model, which is the nearest to what it writes. @param {any} model @returns {Pick<Selection, "kind" | "layer" | "head">} */
function lastAttention({ layers }) {
  const kind = KINDS.filter((each) => layers[each]).pop() ?? NOTHING.kind;
  return { kind, layer: layers[kind] - 1, head: 0 };
}

const page = new Page(/** @type {HTMLElement} */ (document.getElementById("heedful")));
page.start();
