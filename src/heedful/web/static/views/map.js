// The map: every head as a thumbnail, with badges for its attention pattern.

import { BADGES } from "heedful/data/heads.js";
import { KIND_NAMES } from "heedful/data/trace.js";
import { readPalette } from "heedful/parts/colors.js";
import { h, updateChildren } from "heedful/parts/dom.js";
import { hatchMasked } from "heedful/parts/heatmap.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/data/trace.js").Kind} Kind */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */

const THUMBNAIL_SIZE = 76;
/** On a phone, four heads fit side by side. */
const PHONE_THUMBNAIL_SIZE = 58;
const PHONE = matchMedia("(max-width: 760px)");
/** Small weights would be invisible, so they are drawn stronger: color is weight to this power. */
const COLOR_EXPONENT = 0.6;

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
    const { kinds } = trace;
    const thumbnails = await trace.loadTensors(kinds.map((kind) => `thumbnails.${kind}`));
    if (this.page.isStale(selection, trace)) return;
    this.buttons = [];
    const sections = kinds.map((kind, i) => this.#createKind(kind, thumbnails[i], trace, selection));
    updateChildren(
      this.host,
      h("p", { class: "intro" }, "Every head of the model on this sentence. Rows (queries) attend to columns (keys); stronger color means more weight; hatched means masked. ", h("span", { class: "no-export" }, "Choose a head to enlarge it.")),
      h("p", { class: "legend map-scale" }, `Small weights are drawn stronger: color is weight^${COLOR_EXPONENT}.`, isPooled(trace, thumbnails) ? " The sentence is long: each cell shows the largest of several weights." : ""),
      h("div", { class: "map-kinds" }, sections),
      this.#createLegend(),
    );
  }

  /** @param {Kind} kind @param {import("heedful/data/safetensors.js").Tensor} thumbnails @param {Trace} trace @param {Selection} selection */
  #createKind(kind, thumbnails, trace, selection) {
    const [layers, heads, rows, columns] = thumbnails.shape;
    const colors = readPalette();
    const summaries = trace.manifest.heads.filter((/** @type {any} */ entry) => entry.kind === kind);
    const createLayer = (/** @type {number} */ layer) =>
      h("div", { class: "map-layer" },
        h("span", { class: "map-label" }, `Layer ${layer + 1}`),
        h("div", { class: "map-heads" },
          Array.from({ length: heads }, (_, head) => {
            const start = (layer * heads + head) * rows * columns;
            const values = thumbnails.data.subarray(start, start + rows * columns);
            const { pattern: badge } = summaries.find((/** @type {any} */ entry) => entry.layer === layer && entry.head === head);
            return this.#createHead({ kind, layer, head, values, rows, columns, badge, colors, trace, selection });
          })));
    return h("section", { class: "map-kind", "aria-label": KIND_NAMES[kind] },
      h("h3", null, KIND_NAMES[kind]),
      Array.from({ length: layers }, (_, layer) => createLayer(layer)));
  }

  /** The meaning of the badges in use. */
  #createLegend() {
    const used = Object.entries(BADGES).filter(([name]) => this.buttons.some((button) => button.dataset.badges?.split(", ").includes(name)));
    return used.length
      ? h("dl", { class: "map-legend", "aria-label": "Badges" }, used.map(([name, { means }]) => h("div", null, h("dt", { class: "badge" }, name), h("dd", null, means))))
      : h("p", { class: "legend" }, "No head of this model has a simple pattern on this sentence.");
  }

  /** @param {any} head */
  #createHead({ kind, layer, head, values, rows, columns, badge, colors, trace, selection }) {
    const isSelected = selection.kind === kind && selection.layer === layer && selection.head === head;
    const off = selection.off.includes(`${kind}.${layer}.${head}`);
    const guided = trace.manifest.model.guided_head;
    const isGuided = kind === "encoder" && guided && guided[0] === layer + 1 && guided[1] === head + 1;
    const badges = [badge, isGuided && "guided", off && "off"].filter(Boolean);
    const canvas = h("canvas", { "aria-hidden": "true" });
    const isUnpooled = columns === trace.getAxes(kind)[1].ids.length; // a long sentence is pooled: then a column is several tokens
    paintThumbnail(canvas, values, rows, columns, kind === "decoder" || isUnpooled ? trace.getMask(kind, false, layer) : undefined, colors);
    const button = h("button", {
      class: "map-head", type: "button", "aria-pressed": String(isSelected), data: { badges: badges.join(", ") },
      "aria-label": `${KIND_NAMES[/** @type {Kind} */ (kind)]}, layer ${layer + 1}, head ${head + 1}${badges.length ? `: ${badges.join(", ")}` : ""}`,
      onclick: () => this.page.store.set({ view: "head", kind, layer, head, query: null, key: null, rows: [], extraHeads: [] }),
    }, canvas, h("span", { class: "map-number" }, `${layer + 1}.${head + 1}`), badges.map((badge) => h("span", { class: "badge" }, badge)));
    this.buttons.push(button);
    return button;
  }
}

/** Whether a thumbnail cell represents several weights. @param {Trace} trace @param {import("heedful/data/safetensors.js").Tensor[]} thumbnails */
function isPooled(trace, thumbnails) {
  return trace.kinds.some((kind, i) => trace.getAxes(kind).some((side, axis) => side.ids.length > thumbnails[i].shape[2 + axis]));
}

/**
 * @param {HTMLCanvasElement} canvas @param {Uint8Array} values @param {number} rows @param {number} columns
 * @param {((row: number, column: number) => boolean) | undefined} isMasked @param {ReturnType<typeof readPalette>} colors
 */
function paintThumbnail(canvas, values, rows, columns, isMasked, colors) {
  const ratio = window.devicePixelRatio || 1;
  const size = (PHONE.matches ? PHONE_THUMBNAIL_SIZE : THUMBNAIL_SIZE) / Math.max(rows, columns);
  const [width, height] = [columns * size, rows * size];
  Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.scale(ratio, ratio);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      if (isMasked?.(row, column)) continue;
      context.fillStyle = colors.unit((values[row * columns + column] / 255) ** COLOR_EXPONENT);
      context.fillRect(column * size, row * size, size + 0.5, size + 0.5);
    }
  }
  if (isMasked) hatchMasked(context, rows, columns, size, isMasked, colors);
}
