// Experiments: switch heads off, hide words of the source, and see what they did. The original translation is the control.

import { KIND_NAMES, spelledWords, touchedWords } from "heedful/data/trace.js";
import { taskOf } from "heedful/data/task.js";
import { changeTable, comparable, scoredWords, sideBySide, signed, total } from "heedful/parts/comparison.js";
import { h, percent, shown } from "heedful/parts/dom.js";
import { HeadSearch, layerHeads, setName } from "heedful/parts/head_search.js";
import { refill } from "heedful/parts/refill.js";
import { toUrl } from "heedful/state/selection.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/data/trace.js").Kind} Kind */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */

/** Rows of the ranking that are shown. */
const RANKED = 12;
/** Answers that are remembered: a search asks for one a head. */
const KEPT = 500;

/** @type {import("heedful/main.js").View} */
export const experimentsView = {
  id: "experiments",
  title: "Experiments",
  fits: (model) => model.arithmetic,
  needsServer: true,
  mount: (host, page) => new ExperimentsView(host, page),
};

class ExperimentsView {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    /** Answers of this sentence by question: the original and its readings. @type {Map<string, Promise<any>>} */
    this.answers = new Map();
    /** @type {HeadSearch | null} */
    this.search = null;
    /** What the search and its word belong to. */
    this.subject = "";
    /** @type {number | null} */
    this.word = null;
    this.message = h("p", { class: "lead" });
    this.grid = h("div", { class: "off-grid" });
    this.hiding = h("section", { class: "hiding", "aria-label": "Hide a word of the source" });
    this.result = h("div", { class: "off-result" });
    this.finder = h("section", { class: "finder", "aria-label": "Find the heads that matter" });
    this.forcing = h("section", { class: "no-picture", "aria-label": "Force a word" });
    this.changes = h("section", { "aria-label": "Change of each word" });
    this.body = h("div", null, this.grid, this.hiding, this.result, h("div", { class: "two even" }, this.changes, h("div", null, this.finder, this.forcing)));
    host.append(this.message, this.body);
  }

  /** @param {Selection} selection @param {Trace | null} trace */
  async show(selection, trace) {
    this.body.hidden = !trace || !this.page.source.live;
    if (!this.page.source.live) this.message.textContent = "Experiments ask the model again, so they need a running server: heedful serve MODEL.";
    else if (!trace) this.message.textContent = "Write a sentence above, then switch heads off or hide words, and see what they did.";
    if (!trace || this.body.hidden) return;
    this.message.textContent = "A head that is switched off adds nothing: its rows of W^O count as zero. What gets lost shows what it did.";
    this.#grid(selection, trace);
    this.#hiding(selection, trace);
    const original = await this.#original(selection, trace);
    const forced = isChanged(selection) ? await this.#reading(original, selection.off, selection.hidden) : original;
    if (this.page.stale(selection, trace)) return;
    this.#result(selection, trace, original, forced);
    this.#finder(selection, original);
    this.#forcing(selection, original);
  }

  hide() {
    this.search?.stop();
  }

  /** The translation with all heads on and nothing hidden. @param {Selection} selection @param {Trace} trace */
  #original(selection, trace) {
    const asked = this.page.question({ off: [], hidden: [] });
    if (!isChanged(selection)) this.#keep(JSON.stringify(asked), Promise.resolve(comparable(trace.manifest)));
    return this.#answer(asked);
  }

  /** How the model reads the original translation without some heads and words. @param {any} original @param {string[]} off @param {number[]} [hidden] */
  #reading(original, off, hidden = []) {
    return this.#answer(this.page.question({ off: [...off].sort(), hidden, prefix: [] }, { target_ids: original.translation.ids }));
  }

  /** An answer, asked for once; several may wait for it, so nobody can call it off. @param {object} asked @returns {Promise<any>} */
  #answer(asked) {
    const key = JSON.stringify(asked);
    const known = this.answers.get(key);
    if (known) return known;
    const answer = this.page.source.trace(asked).then(comparable);
    answer.catch(() => this.answers.delete(key));
    this.#keep(key, answer);
    return answer;
  }

  /** @param {string} key @param {Promise<any>} answer */
  #keep(key, answer) {
    if (this.answers.size >= KEPT) this.answers.clear();
    this.answers.set(key, answer);
  }

  /** @param {Selection} selection @param {Trace} trace */
  #grid(selection, trace) {
    refill(this.grid,
      h("div", { class: "controls" }, h("button", { type: "button", disabled: !selection.off.length, onclick: () => this.#switch([]) }, "All on"),
        h("span", { class: "legend" }, selection.off.length ? `Off: ${setName(selection.off)}` : "All heads are on. Press a head to switch it off; a head is named layer.head. Below it: on or off, then its habit on this sentence (– if it has none).")),
      h("div", { class: "off-kinds" }, trace.kinds.map((kind) => h("section", { "aria-label": KIND_NAMES[kind] }, h("h3", null, KIND_NAMES[kind]),
        Array.from({ length: trace.layers(kind) }, (_, layer) => this.#layer(kind, layer, selection, trace))))));
  }

  /** @param {Kind} kind @param {number} layer @param {Selection} selection @param {Trace} trace */
  #layer(kind, layer, selection, trace) {
    const names = layerHeads(kind, layer, trace.heads);
    const allOff = names.every((name) => selection.off.includes(name));
    const others = selection.off.filter((name) => !names.includes(name));
    return h("div", { class: "off-layer" },
      names.map((name, head) => {
        const off = selection.off.includes(name);
        const badge = trace.manifest.heads.find((/** @type {any} */ each) => each.kind === kind && each.layer === layer && each.head === head)?.badge;
        return h("button", {
          type: "button", class: "off-head", "aria-pressed": String(off),
          "aria-label": `Switch off ${KIND_NAMES[kind]}, layer ${layer + 1}, head ${head + 1}${badge ? ` (${badge})` : ""}`,
          onclick: () => this.#switch(off ? selection.off.filter((each) => each !== name) : [...selection.off, name]),
        }, h("span", null, `${layer + 1}.${head + 1}`), h("small", null, off ? "off" : "on"), h("small", { class: "habit" }, badge && badge !== "off" ? badge : "–"));
      }),
      h("button", { type: "button", class: "small", data: { name: `${kind}.${layer}` }, "aria-label": `${KIND_NAMES[kind]}, whole layer ${layer + 1} ${allOff ? "on" : "off"}`,
        onclick: () => this.#switch(allOff ? others : [...others, ...names]) }, allOff ? "Layer on" : "Layer off"));
  }

  /** @param {string[]} off */
  #switch(off) {
    this.page.store.set({ off: [...off].sort(), step: 0 });
  }

  /** @param {Selection} selection @param {Trace} trace */
  #hiding(selection, trace) {
    const { hidden } = selection;
    this.hiding.hidden = !trace.sides.source.ids.length;
    if (this.hiding.hidden) return;
    const set = (/** @type {number[]} */ places) => this.page.store.set({ hidden: places.sort((one, other) => one - other), step: 0 });
    const toggle = (/** @type {import("heedful/data/trace.js").Spelled} */ { word, pieces }) => {
      const isHidden = pieces.every((place) => hidden.includes(place));
      const others = hidden.filter((place) => !pieces.includes(place));
      return h("button", { type: "button", class: "off-head", dir: "auto", data: { name: `piece ${pieces[0]}` }, "aria-pressed": String(isHidden), onclick: () => set(isHidden ? others : [...others, ...pieces]) },
        h("span", null, word), h("small", null, isHidden ? "hidden" : "seen"));
    };
    refill(this.hiding,
      h("h3", null, `Hide a word of the ${trace.layers("cross") ? "source" : "text"}`),
      h("p", { class: "lead" }, "A hidden word is masked like padding: no word can look at it (weight exactly 0), and all others keep their places. ",
        "What changes is what the model knew from it. Its own row in the encoder is still computed, but nobody sees it."),
      h("div", { class: "off-layer", role: "group", "aria-label": "Words of the source" },
        spelledWords(trace.sides.source).slice(0, -1).filter(({ pieces }) => !trace.manifest.blanks?.includes(pieces[0])).map(toggle),
        h("button", { type: "button", class: "small", disabled: !hidden.length, onclick: () => set([]) }, "Show all")));
  }

  /** @param {Selection} selection @param {Trace} trace @param {any} original @param {any} forced */
  #result(selection, trace, original, forced) {
    const now = trace.manifest;
    const { written } = taskOf(now.model);
    if (!isChanged(selection)) {
      this.result.replaceChildren();
      this.changes.replaceChildren(h("h3", null, "Change of each word"),
        h("p", { class: "lead" }, `Switch a head off${trace.sides.source.ids.length ? " or hide a word" : ""}, and here stands how much less (or more) likely that makes each word of the original ${written}.`));
      return;
    }
    const [before, after] = [scoredWords(original), scoredWords(forced, original.translation.complete)];
    const change = total(after) - total(before);
    this.result.replaceChildren(
      sideBySide([selection.hidden.length ? "Original, nothing hidden or off" : "Original, all heads on", original], [changeName(selection, trace), now]),
      h("p", { class: "told", role: "status" }, now.translation.text === original.translation.text ? `The ${written} stays the same. ` : `The ${written} changes. `,
        `Log-probability of the original ${written}: ${shown(total(before))} → ${shown(total(after))}, change ${signed(change)}`,
        ` (${percent(Math.exp(total(before)))} → ${percent(Math.exp(total(after)))}).`),
    );
    this.changes.replaceChildren(
      h("h3", null, "Change of each word"),
      h("p", { class: "legend" }, `Natural logarithm of the probability of each word ${now.blanks ? "that fills a blank" : `of the original ${written}, given the words before it`}. `,
        "The rows add up to the last one (rounded to four decimals). A word's link leads to its alternatives."),
      changeTable(before, after, (scored) => toUrl({ ...selection, view: "translate", step: scored.step })));
  }

  /** @param {Selection} selection @param {any} original */
  #finder(selection, original) {
    const subject = JSON.stringify(this.page.question({ off: [], hidden: [] }));
    if (subject !== this.subject) {
      this.search?.stop();
      Object.assign(this, { subject, search: null, word: null });
    }
    const words = scoredWords(original, false);
    const busy = this.search !== null && !this.search.finished;
    const choose = (/** @type {any} */ event) => {
      this.word = event.target.value === "" ? null : Number(event.target.value);
    };
    refill(this.finder,
      h("h3", null, "Find the heads that matter"),
      h("p", { class: "lead" }, "Each head is switched off alone, and the model reads the original again. The larger the drop, the more it needed the head. ",
        "Where no head alone turns the word into another, pairs of the strongest and whole layers are tried."),
      h("div", { class: "controls" },
        h("label", { class: "choice" }, h("span", null, "For"), h("select", { disabled: busy, onchange: choose },
          h("option", { value: "", selected: this.word === null }, `the whole ${taskOf(original.model).written}`),
          words.map((each, i) => h("option", { value: String(i), selected: this.word === i }, `“${each.word}” (word ${i + 1})`)))),
        busy ? h("button", { type: "button", data: { name: "find" }, onclick: () => this.search?.stop() }, "Stop")
          : h("button", { type: "button", class: "primary", data: { name: "find" }, onclick: () => this.#find(original) }, "Find the heads that matter")),
      h("div", { class: "findings" }));
    this.#findings(selection);
  }

  /** @param {any} original */
  async #find(original) {
    const search = new HeadSearch((off) => this.#reading(original, off), original, this.word);
    this.search = search;
    const working = search.run(() => this.search === search && this.#findings(this.page.store.selection));
    this.#finder(this.page.store.selection, original);
    try {
      await working;
    } catch (error) {
      if (!search.stopped) this.page.say(error, () => this.#find(original));
      search.stop();
    }
    if (this.search === search) this.#finder(this.page.store.selection, original);
  }

  /** @param {Selection} selection */
  #findings(selection) {
    const host = /** @type {HTMLElement} */ (this.finder.querySelector(".findings"));
    if (!this.search) return;
    const { findings, tried, planned, stopped, finished } = this.search;
    const ranked = [...findings].sort((one, other) => one.change - other.change);
    const turning = ranked.filter((each) => each.turned).length;
    refill(host,
      finished ? "" : h("progress", { max: planned, value: tried, "aria-label": "Heads tried" }),
      h("p", { class: "legend", role: finished ? "status" : null },
        `${finished ? `${stopped ? "Stopped: " : ""}${stopped ? "tried" : "Tried"} ${tried}` : `Trying ${Math.min(tried + 1, planned)} of ${planned}`}; ${turning} ${turning === 1 ? "turns" : "turn"} a word into another.`),
      h("div", { class: "scroll" }, h("table", { class: "ranking" },
        h("thead", null, h("tr", null, ["without", "change of log P", "would then write", ""].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", null, ranked.slice(0, RANKED).map((each) => h("tr", null,
          h("th", { scope: "row" }, each.name),
          h("td", null, signed(each.change)),
          h("td", { dir: "auto", class: "turned" }, each.turned ? [each.turned.from, " → ", h("mark", null, each.turned.to), ` ${percent(each.turned.probability)}`] : "the same"),
          h("td", null, h("button", { type: "button", class: "small", "aria-pressed": String(same(selection.off, each.off)), "aria-label": `Switch off only ${each.name}`,
            onclick: () => this.#switch(each.off) }, "Switch off"))))))));
  }

  /** @param {Selection} selection @param {any} original */
  #forcing(selection, original) {
    const forced = selection.prefix.length;
    this.forcing.hidden = Boolean(original.blanks);
    this.forcing.replaceChildren(
      h("h3", null, "Force a word"),
      h("p", { class: "lead" }, "Choose a word to see what else the model could write there; take one, and the rest is rewritten from it."),
      h("div", { class: "row-buttons" }, scoredWords(original, false).map((each) =>
        h("a", { class: "word-link", dir: "auto", href: toUrl({ ...selection, view: "translate", step: each.step }) }, each.word))),
      forced ? h("p", null, `The first ${forced} ${forced === 1 ? "piece is" : "pieces are"} forced. `,
        h("button", { type: "button", class: "small", onclick: () => this.page.store.set({ prefix: [] }) }, "Let the model write freely")) : "");
  }
}

/** @param {Selection} selection */
function isChanged({ off, hidden }) {
  return off.length + hidden.length > 0;
}

/** What was changed, for people. @param {Selection} selection @param {Trace} trace */
function changeName({ off, hidden }, trace) {
  const words = touchedWords(trace.sides.source, hidden).map(({ word }) => `“${word}”`).join(", ");
  return [off.length ? `Without ${setName(off)}` : "", words ? `${off.length ? "w" : "W"}ith ${words} hidden` : ""].filter(Boolean).join(", ");
}

/** @param {string[]} one @param {string[]} other */
function same(one, other) {
  return one.length === other.length && other.every((each) => one.includes(each));
}
