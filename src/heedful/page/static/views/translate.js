// Under the workbench on the first screen: the next word, and the map of all heads.

import { Drawing } from "heedful/parts/drawing.js";
import { h } from "heedful/parts/dom.js";
import { NextWord } from "heedful/parts/next_word.js";
import { MapView } from "heedful/views/map.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */

/** @type {import("heedful/main.js").View} */
export const translateView = {
  id: "translate",
  title: "Translate",
  mount: (host, page) => new TranslateView(host, page),
};

class TranslateView {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    const drawing = h("section", { class: "drawing", "aria-label": "How the text goes on", hidden: true });
    const next = h("section", { class: "next-word", "aria-label": "Next word" });
    const map = h("div", { class: "small-map" });
    host.append(drawing, h("div", { class: "first-screen" }, next, map)); // side by side where there is room for both
    this.drawing = new Drawing(drawing, page);
    this.next = new NextWord(next, page);
    this.map = new MapView(map, page);
    /** What the map was last drawn of: sliders must not draw it again. */
    this.drawn = "";
  }

  /** @param {Selection} selection @param {Trace} trace */
  async show(selection, trace) {
    const { kind, layer, head, off } = selection;
    const map = JSON.stringify([trace.id, kind, layer, head, off]);
    const again = map !== this.drawn;
    this.drawing.show(selection, trace);
    await Promise.all([this.next.show(selection, trace), again ? this.map.show(selection, trace) : null]);
    if (!this.page.stale(selection, trace)) this.drawn = map;
  }

  hide() {
    this.drawn = ""; // while another view was shown the theme may have changed
  }
}
