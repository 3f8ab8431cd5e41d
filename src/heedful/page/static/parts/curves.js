// Curves over the updates of a training: SVG with round ticks, read with the pointer or with a slider.

import { h, svg } from "heedful/parts/dom.js";

/** @typedef {{name: string, points: [number, number][], style: "first" | "second"}} Series */
/** @typedef {{title: string, unit: string, series: Series[], format: (value: number) => string}} Chart */

const HEIGHT = 210;
const GAP = 20;
const MARGIN = { left: 58, right: 14, top: 12, bottom: 38 };
/** Curves with at most so many points show each of them. */
const DOTTED = 40;

/** Round numbers from 0 to at least ``most``, about so many. @param {number} most @param {number} count */
export function roundTicks(most, count) {
  const rough = (most > 0 ? most : 1) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * /** @type {number} */ ([1, 2, 5, 10].find((factor) => factor * power >= rough * (1 - 1e-9)));
  return Array.from({ length: Math.max(2, Math.ceil(most / step - 1e-9) + 1 || 2) }, (_, i) => Number((i * step).toPrecision(12)));
}

/** The last point at or before a place, or the first one. @param {[number, number][]} points @param {number} x */
export function pointAt(points, x) {
  return points.filter(([place]) => place <= x).at(-1) ?? points[0];
}

export class Curves {
  /** @param {HTMLElement} host @param {(x: number) => void} pointed the reader has gone to another update */
  constructor(host, pointed) {
    this.pointed = pointed;
    /** @type {Chart[]} */
    this.charts = [];
    /** @type {number[]} */
    this.marks = [];
    this.most = 1;
    this.at = 0;
    this.width = 0;
    /** Per chart: the cursor line and the sentence that tells its values. @type {{line: SVGElement, told: HTMLElement}[]} */
    this.cursors = [];
    this.host = h("div", { class: "curves" });
    host.append(this.host);
    new ResizeObserver(() => this.host.clientWidth !== this.width && this.#paint()).observe(this.host);
  }

  /** @param {Chart[]} charts @param {number} most the last update @param {number[]} marks updates with a checkpoint @param {number} at */
  draw(charts, most, marks, at) {
    Object.assign(this, { charts, most, marks, at });
    this.#paint();
  }

  /** Read the curves at this update. @param {number} x */
  read(x) {
    this.at = x;
    this.cursors.forEach(({ line, told }, i) => {
      const place = this.#x(x);
      line.setAttribute("x1", String(place));
      line.setAttribute("x2", String(place));
      told.textContent = this.#told(this.charts[i]);
    });
  }

  get #columns() {
    return this.host.clientWidth >= 700 ? 2 : 1;
  }

  /** Pixels of one figure. */
  get #wide() {
    return Math.max(260, (this.host.clientWidth - (this.#columns - 1) * GAP) / this.#columns);
  }

  /** @param {number} x */
  #x(x) {
    return MARGIN.left + (x / this.most) * (this.#wide - MARGIN.left - MARGIN.right);
  }

  /** Round updates, wide enough apart for their numbers. */
  get ticks() {
    return roundTicks(this.most, this.#wide > 400 ? 6 : 4).filter((tick) => tick <= this.most);
  }

  #paint() {
    if (!this.host.clientWidth) return;
    this.width = this.host.clientWidth;
    this.cursors = [];
    this.host.style.gridTemplateColumns = `repeat(${this.#columns}, minmax(0, 1fr))`;
    this.host.replaceChildren(...this.charts.map((chart) => this.#chart(chart)));
    this.read(this.at);
  }

  /** @param {Chart} chart */
  #chart(chart) {
    const values = chart.series.flatMap((each) => each.points.map(([, y]) => y));
    const levels = roundTicks(Math.max(0, ...values), 4);
    const top = levels[levels.length - 1];
    const y = (/** @type {number} */ value) => HEIGHT - MARGIN.bottom - (value / top) * (HEIGHT - MARGIN.top - MARGIN.bottom);
    const line = svg("line", { class: "cursor", y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom });
    const told = h("p", { class: "told" });
    this.cursors.push({ line, told });
    const legend = chart.series.length > 1 ? h("p", { class: "legend" }, chart.series.map((each) => h("span", { class: `key-${each.style}` }, each.name))) : null;
    return h("figure", { class: "curve" },
      h("figcaption", null, h("strong", null, chart.title), ` ${chart.unit}`), legend,
      svg("svg", {
        viewBox: `0 0 ${this.#wide} ${HEIGHT}`, width: this.#wide, height: HEIGHT, role: "img",
        "aria-label": `${chart.title} over ${this.most.toLocaleString("en")} updates; the slider reads its values`,
        onpointermove: (/** @type {PointerEvent} */ event) => this.#point(event),
        onpointerdown: (/** @type {PointerEvent} */ event) => this.#point(event),
      }, this.#axes(levels, y, chart.format), chart.series.map((each) => this.#series(each, y)), line),
      told);
  }

  /** @param {number[]} levels @param {(value: number) => number} y @param {(value: number) => string} format */
  #axes(levels, y, format) {
    const right = this.#wide - MARGIN.right;
    const bottom = HEIGHT - MARGIN.bottom;
    return [
      levels.map((level) => [
        svg("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y(level), y2: y(level) }),
        svg("text", { x: MARGIN.left - 6, y: y(level), "text-anchor": "end", "dominant-baseline": "central" }, format(level))]),
      this.marks.map((mark) => svg("line", { class: "mark", x1: this.#x(mark), x2: this.#x(mark), y1: bottom, y2: bottom + 5 })),
      this.ticks.map((tick) => svg("text", { x: this.#x(tick), y: bottom + 17, "text-anchor": tick === this.most ? "end" : "middle" }, tick.toLocaleString("en"))),
      svg("text", { x: right, y: HEIGHT - 4, "text-anchor": "end" }, "updates"),
    ].flat(3);
  }

  /** @param {Series} series @param {(value: number) => number} y */
  #series({ name, points, style }, y) {
    const path = points.map(([x, value], i) => `${i ? "L" : "M"}${this.#x(x).toFixed(2)} ${y(value).toFixed(2)}`).join("");
    return [
      svg("path", { d: path, class: `series ${style}`, "data-name": name }),
      points.length <= DOTTED ? points.map(([x, value]) => svg("circle", { cx: this.#x(x), cy: y(value), r: 3, class: `dot ${style}` })) : [],
    ].flat();
  }

  /** @param {Chart} chart */
  #told(chart) {
    const values = chart.series.filter((each) => each.points.length).map((each) => {
      const [x, value] = pointAt(each.points, this.at);
      return `${each.name} ${chart.format(value)} (update ${x.toLocaleString("en")})`;
    });
    return values.join(", ") || "no numbers yet";
  }

  /** @param {PointerEvent} event */
  #point(event) {
    const box = /** @type {Element} */ (event.currentTarget).getBoundingClientRect();
    const share = (event.clientX - box.left - MARGIN.left) / (this.#wide - MARGIN.left - MARGIN.right);
    this.pointed(Math.round(Math.max(0, Math.min(1, share)) * this.most));
  }
}

/** Rows of the table at most. */
const LISTED = 100;

/** The same numbers as a table, made when it is opened. @param {any[]} metrics */
export function metricsTable(metrics) {
  const names = [["loss", "training loss"], ["validation_loss", "validation loss"], ["BLEU", "BLEU"], ["chrF", "chrF"], ["rate", "learning rate"], ["tokens_per_second", "tokens/s"]];
  const every = Math.ceil(metrics.length / LISTED);
  const listed = metrics.filter((each, i) => i % every === 0 || "validation_loss" in each || i === metrics.length - 1).slice(-2 * LISTED);
  const room = h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Training in numbers" });
  const fill = (/** @type {any} */ event) => {
    if (!event.target.open) return room.replaceChildren();
    return room.replaceChildren(
      every > 1 ? h("p", { class: "legend" }, `Every ${every}th line, and every validation. All lines: training/metrics.jsonl in the model's folder.`) : "",
      h("table", null,
        h("thead", null, h("tr", null, h("th", { scope: "col" }, "update"), names.map(([, name]) => h("th", { scope: "col" }, name)))),
        h("tbody", null, listed.map((each) => h("tr", null, h("th", { scope: "row" }, each.update.toLocaleString("en")),
          names.map(([id]) => h("td", null, id in each ? Number(each[id].toPrecision(6)).toLocaleString("en", { maximumSignificantDigits: 6 }) : "")))))));
  };
  return h("details", { class: "as-table", ontoggle: fill }, h("summary", null, "Show as table"), room);
}
