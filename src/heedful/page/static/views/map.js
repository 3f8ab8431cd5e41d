// The map: every head as a small matrix, with what it mostly does.

import { KIND_NAMES } from "heedful/data/trace.js";
import { BADGES } from "heedful/parts/badges.js";
import { palette } from "heedful/parts/colours.js";
import { h } from "heedful/parts/dom.js";
import { hatchMasked } from "heedful/parts/matrix.js";
import { refill } from "heedful/parts/refill.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/data/trace.js").Kind} Kind */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */

const SIDE = 76;
/** On a phone: four heads stand side by side. */
const SMALL_SIDE = 58;
const PHONE = matchMedia("(max-width: 760px)");
/** Small weights are drawn stronger than they are, or one would see nothing of them: colour is weight to this power. */
const STRENGTH = 0.6;

/** @type {import("heedful/main.js").View} */
export const mapView = {
  id: "map",
  title: "Map",
  mount: (host, page) => new MapView(host, page),
};

export class MapView {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    this.host = host;
    /** @type {HTMLButtonElement[]} */
    this.buttons = [];
  }

  /** @param {Selection} selection @param {Trace} trace */
  async show(selection, trace) {
    const there = trace.kinds;
    const thumbnails = await trace.tensors(there.map((kind) => `thumbnails.${kind}`));
    if (this.page.stale(selection, trace)) return;
    this.buttons = [];
    const kinds = there.map((kind, i) => this.#kind(kind, thumbnails[i], trace, selection));
    refill(
      this.host,
      h("p", { class: "lead" }, "Every head of the model on this sentence. Rows look at columns; more colour is more weight; hatched is masked. ", h("span", { class: "no-picture" }, "Choose one to see it large.")),
      h("p", { class: "legend map-scale" }, `Small weights are drawn stronger than they are: colour is weight^${STRENGTH}.`, pooled(trace, thumbnails) ? " The sentence is long: each small cell shows the largest weight of several." : ""),
      h("div", { class: "map-kinds" }, kinds),
      this.#legend(),
    );
  }

  /** @param {Kind} kind @param {import("heedful/data/safetensors.js").Tensor} thumbnails @param {Trace} trace @param {Selection} selection */
  #kind(kind, thumbnails, trace, selection) {
    const [layers, heads, rows, columns] = thumbnails.shape;
    const colours = palette();
    const known = trace.manifest.heads.filter((/** @type {any} */ each) => each.kind === kind);
    const line = (/** @type {number} */ layer) =>
      h("div", { class: "map-layer" },
        h("span", { class: "map-label" }, `Layer ${layer + 1}`),
        h("div", { class: "map-heads" },
          Array.from({ length: heads }, (_, head) => {
            const start = (layer * heads + head) * rows * columns;
            const values = thumbnails.data.subarray(start, start + rows * columns);
            const { badge } = known.find((/** @type {any} */ each) => each.layer === layer && each.head === head);
            return this.#head({ kind, layer, head, values, rows, columns, badge, colours, trace, selection });
          })));
    return h("section", { class: "map-kind", "aria-label": KIND_NAMES[kind] },
      h("h3", null, KIND_NAMES[kind]),
      Array.from({ length: layers }, (_, layer) => line(layer)));
  }

  /** What the badges that are there mean. */
  #legend() {
    const used = Object.entries(BADGES).filter(([name]) => this.buttons.some((button) => button.dataset.badges?.split(", ").includes(name)));
    return used.length
      ? h("dl", { class: "map-legend", "aria-label": "What the badges mean" }, used.map(([name, { means }]) => h("div", null, h("dt", { class: "badge" }, name), h("dd", null, means))))
      : h("p", { class: "legend" }, "No head of this model has a simple habit on this sentence.");
  }

  /** @param {any} one */
  #head({ kind, layer, head, values, rows, columns, badge, colours, trace, selection }) {
    const chosen = selection.kind === kind && selection.layer === layer && selection.head === head;
    const off = selection.off.includes(`${kind}.${layer}.${head}`);
    const taught = trace.manifest.model.taught_head;
    const isTaught = kind === "encoder" && taught && taught[0] === layer + 1 && taught[1] === head + 1;
    const badges = [badge, isTaught && "taught", off && "off"].filter(Boolean);
    const canvas = h("canvas", { "aria-hidden": "true" });
    const whole = columns === trace.of(kind)[1].ids.length; // a long sentence is pooled: then a column is several pieces
    thumbnail(canvas, values, rows, columns, kind === "decoder" || whole ? trace.masked(kind, false, layer) : undefined, colours);
    const button = h("button", {
      class: "map-head", type: "button", "aria-pressed": String(chosen), data: { badges: badges.join(", ") },
      "aria-label": `${KIND_NAMES[/** @type {Kind} */ (kind)]}, layer ${layer + 1}, head ${head + 1}${badges.length ? `: ${badges.join(", ")}` : ""}`,
      onclick: () => this.page.store.set({ view: "head", kind, layer, head, query: null, key: null, rows: [], also: [] }),
    }, canvas, h("span", { class: "map-number" }, `${layer + 1}.${head + 1}`), badges.map((each) => h("span", { class: "badge" }, each)));
    this.buttons.push(button);
    return button;
  }
}

/** Whether a cell of some thumbnail stands for several weights. @param {Trace} trace @param {import("heedful/data/safetensors.js").Tensor[]} thumbnails */
function pooled(trace, thumbnails) {
  return trace.kinds.some((kind, i) => trace.of(kind).some((side, axis) => side.ids.length > thumbnails[i].shape[2 + axis]));
}

/**
 * @param {HTMLCanvasElement} canvas @param {Uint8Array} values @param {number} rows @param {number} columns
 * @param {((row: number, column: number) => boolean) | undefined} masked @param {ReturnType<typeof palette>} colours
 */
function thumbnail(canvas, values, rows, columns, masked, colours) {
  const ratio = window.devicePixelRatio || 1;
  const size = (PHONE.matches ? SMALL_SIDE : SIDE) / Math.max(rows, columns);
  const [width, height] = [columns * size, rows * size];
  Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.scale(ratio, ratio);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      if (masked?.(row, column)) continue;
      context.fillStyle = colours.unit((values[row * columns + column] / 255) ** STRENGTH);
      context.fillRect(column * size, row * size, size + 0.5, size + 0.5);
    }
  }
  if (masked) hatchMasked(context, rows, columns, size, masked, colours);
}
