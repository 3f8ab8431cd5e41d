// Which blocks of pieces see which, and why: BigBird's attention, in place of every piece seeing every other.

import { place } from "heedful/data/trace.js";
import { h } from "heedful/parts/dom.js";
import { Matrix } from "heedful/parts/matrix.js";
import { refill } from "heedful/parts/refill.js";

/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/data/trace.js").Kind} Kind */

/** By the names that the manifest has, in the order of their colours. @type {Record<string, string>} */
const REASONS = { first: "one of the first blocks", window: "in its window", random: "by chance" };
const NOT_SEEN = "not seen";

export class Blocks {
  /** @param {HTMLElement} host */
  constructor(host) {
    this.host = host;
    this.about = h("p", { class: "explained" });
    this.key = h("ul", { class: "block-key", "aria-label": "Why a block is seen" });
    const figure = h("div", { class: "figure", "data-figure": "blocks" });
    host.append(h("h3", null, "Blocks that see each other"), this.about, this.key, figure);
    this.matrix = new Matrix(figure);
  }

  /** @param {Trace} trace @param {Kind} kind @param {number} layer */
  show(trace, kind, layer) {
    const pattern = trace.manifest.patterns[place(kind, layer)];
    this.host.hidden = !pattern;
    if (!pattern) return;
    const { block, rows, reasons } = pattern;
    const { pieces } = trace.of(kind)[0];
    const labels = rows.map((/** @type {number[]} */ _, /** @type {number} */ i) => `${i + 1}: ${pieces[i * block]}${block > 1 && i * block + 1 < pieces.length ? " …" : ""}`);
    const names = Object.keys(REASONS);
    const values = new Uint8Array(rows.length ** 2);
    const seen = new Uint8Array(rows.length ** 2);
    rows.forEach((/** @type {number[]} */ row, /** @type {number} */ i) => row.forEach((j, n) => {
      seen[i * rows.length + j] = 1;
      values[i * rows.length + j] = names.indexOf(reasons[i][n]);
    }));
    const used = names.filter((name) => reasons.flat().includes(name));
    const share = seen.reduce((sum, one) => sum + one, 0) / seen.length;
    this.about.textContent = `BigBird, layer ${layer + 1}: pieces stand in blocks of ${block}, and a block sees only some blocks${kind === "decoder" ? ", none of them later than itself" : "; the first ones also see all"}. Here ${share === 1 ? "the text is so short that every block is seen" : `${Math.round(share * 100)} % of all pairs of blocks are seen`}. The same cells are hatched in the heat maps of this layer's heads.`;
    refill(this.key, ...used.map((name) => h("li", null, h("span", { class: `swatch of-${name}`, "aria-hidden": "true" }), REASONS[name])), h("li", null, h("span", { class: "swatch of-none", "aria-hidden": "true" }), NOT_SEEN));
    const masked = (/** @type {number} */ row, /** @type {number} */ column) => seen[row * rows.length + column] === 0;
    this.matrix.draw({
      title: `Blocks that see each other, layer ${layer + 1}`, rows: labels, columns: labels, values, scale: "named", names: Object.values(REASONS), masked, hatched: NOT_SEEN,
      axes: "Rows look at columns; a block is named by its number and its first piece.",
      spoken: (row, column) => `block ${row + 1} ${masked(row, column) ? `does not see block ${column + 1}` : `sees block ${column + 1}: ${REASONS[names[values[row * rows.length + column]]]}`}`,
    });
  }
}
