// Training curves: SVG charts over updates, read with the pointer or a slider.

import { h, svg } from "heedful/parts/dom.js";

/** @typedef {{name: string, points: [number, number][], style: "first" | "second"}} Series */
/** @typedef {{title: string, unit: string, series: Series[], format: (value: number) => string}} Chart */

const HEIGHT = 210;
const GAP = 20;
const MARGIN = { left: 58, right: 14, top: 12, bottom: 38 };
/** Series with at most this many points show each of them. */
const MAX_DOTS = 40;

/** Round numbers from 0 to at least ``max``, approximately ``count`` of them. @param {number} max @param {number} count */
export function getRoundTicks(max, count) {
  const rough = (max > 0 ? max : 1) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * /** @type {number} */ ([1, 2, 5, 10].find((factor) => factor * power >= rough * (1 - 1e-9)));
  return Array.from({ length: Math.max(2, Math.ceil(max / step - 1e-9) + 1 || 2) }, (_, i) => Number((i * step).toPrecision(12)));
}

/** The last point at or before x, else the first. @param {[number, number][]} points @param {number} x */
export function findPoint(points, x) {
  return points.filter(([update]) => update <= x).at(-1) ?? points[0];
}

export class LineCharts {
  /** @param {HTMLElement} host @param {(x: number) => void} onMove called when the pointer selects another update */
  constructor(host, onMove) {
    this.onMove = onMove;
    /** @type {Chart[]} */
    this.charts = [];
    /** @type {number[]} */
    this.checkpoints = [];
    this.lastUpdate = 1;
    this.update = 0;
    this.width = 0;
    /** Per chart: the cursor line and the text with its values. @type {{line: SVGElement, readout: HTMLElement}[]} */
    this.cursors = [];
    this.host = h("div", { class: "curves" });
    host.append(this.host);
    new ResizeObserver(() => this.host.clientWidth !== this.width && this.#render()).observe(this.host);
  }

  /** @param {Chart[]} charts @param {number} lastUpdate the last update @param {number[]} checkpoints updates with a checkpoint @param {number} update */
  draw(charts, lastUpdate, checkpoints, update) {
    Object.assign(this, { charts, lastUpdate, checkpoints, update });
    this.#render();
  }

  /** Move the cursor to this update. @param {number} x */
  moveCursor(x) {
    this.update = x;
    this.cursors.forEach(({ line, readout }, i) => {
      const position = this.#scaleX(x);
      line.setAttribute("x1", String(position));
      line.setAttribute("x2", String(position));
      readout.textContent = this.#describe(this.charts[i]);
    });
  }

  get #columns() {
    return this.host.clientWidth >= 700 ? 2 : 1;
  }

  /** The width of one chart in pixels. */
  get #chartWidth() {
    return Math.max(260, (this.host.clientWidth - (this.#columns - 1) * GAP) / this.#columns);
  }

  /** @param {number} x */
  #scaleX(x) {
    return MARGIN.left + (x / this.lastUpdate) * (this.#chartWidth - MARGIN.left - MARGIN.right);
  }

  /** Round updates, with enough space for their labels. */
  get #ticks() {
    return getRoundTicks(this.lastUpdate, this.#chartWidth > 400 ? 6 : 4).filter((tick) => tick <= this.lastUpdate);
  }

  #render() {
    if (!this.host.clientWidth) return;
    this.width = this.host.clientWidth;
    this.cursors = [];
    this.host.style.gridTemplateColumns = `repeat(${this.#columns}, minmax(0, 1fr))`;
    this.host.replaceChildren(...this.charts.map((chart) => this.#createChart(chart)));
    this.moveCursor(this.update);
  }

  /** @param {Chart} chart */
  #createChart(chart) {
    const values = chart.series.flatMap((series) => series.points.map(([, y]) => y));
    const levels = getRoundTicks(Math.max(0, ...values), 4);
    const top = levels[levels.length - 1];
    const scaleY = (/** @type {number} */ value) => HEIGHT - MARGIN.bottom - (value / top) * (HEIGHT - MARGIN.top - MARGIN.bottom);
    const line = svg("line", { class: "cursor", y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom });
    const readout = h("p", { class: "status-line" });
    this.cursors.push({ line, readout });
    const legend = chart.series.length > 1 ? h("p", { class: "legend" }, chart.series.map((series) => h("span", { class: `key-${series.style}` }, series.name))) : null;
    return h("figure", { class: "curve" },
      h("figcaption", null, h("strong", null, chart.title), ` ${chart.unit}`), legend,
      svg("svg", {
        viewBox: `0 0 ${this.#chartWidth} ${HEIGHT}`, width: this.#chartWidth, height: HEIGHT, role: "img",
        "aria-label": `${chart.title} over ${this.lastUpdate.toLocaleString("en")} updates; the slider reads its values`,
        onpointermove: (/** @type {PointerEvent} */ event) => this.#handlePointer(event),
        onpointerdown: (/** @type {PointerEvent} */ event) => this.#handlePointer(event),
      }, this.#createAxes(levels, scaleY, chart.format), chart.series.map((series) => this.#createSeries(series, scaleY)), line),
      readout);
  }

  /** @param {number[]} levels @param {(value: number) => number} scaleY @param {(value: number) => string} format */
  #createAxes(levels, scaleY, format) {
    const right = this.#chartWidth - MARGIN.right;
    const bottom = HEIGHT - MARGIN.bottom;
    return [
      levels.map((level) => [
        svg("line", { class: "grid", x1: MARGIN.left, x2: right, y1: scaleY(level), y2: scaleY(level) }),
        svg("text", { x: MARGIN.left - 6, y: scaleY(level), "text-anchor": "end", "dominant-baseline": "central" }, format(level))]),
      this.checkpoints.map((mark) => svg("line", { class: "mark", x1: this.#scaleX(mark), x2: this.#scaleX(mark), y1: bottom, y2: bottom + 5 })),
      this.#ticks.map((tick) => svg("text", { x: this.#scaleX(tick), y: bottom + 17, "text-anchor": tick === this.lastUpdate ? "end" : "middle" }, tick.toLocaleString("en"))),
      svg("text", { x: right, y: HEIGHT - 4, "text-anchor": "end" }, "updates"),
    ].flat(3);
  }

  /** @param {Series} series @param {(value: number) => number} scaleY */
  #createSeries({ name, points, style }, scaleY) {
    const d = points.map(([x, value], i) => `${i ? "L" : "M"}${this.#scaleX(x).toFixed(2)} ${scaleY(value).toFixed(2)}`).join("");
    return [
      svg("path", { d, class: `series ${style}`, "data-name": name }),
      points.length <= MAX_DOTS ? points.map(([x, value]) => svg("circle", { cx: this.#scaleX(x), cy: scaleY(value), r: 3, class: `dot ${style}` })) : [],
    ].flat();
  }

  /** @param {Chart} chart */
  #describe(chart) {
    const values = chart.series.filter((series) => series.points.length).map((series) => {
      const [x, value] = findPoint(series.points, this.update);
      return `${series.name} ${chart.format(value)} (update ${x.toLocaleString("en")})`;
    });
    return values.join(", ") || "no values yet";
  }

  /** @param {PointerEvent} event */
  #handlePointer(event) {
    const bounds = /** @type {Element} */ (event.currentTarget).getBoundingClientRect();
    const share = (event.clientX - bounds.left - MARGIN.left) / (this.#chartWidth - MARGIN.left - MARGIN.right);
    this.onMove(Math.round(Math.max(0, Math.min(1, share)) * this.lastUpdate));
  }
}

/** Maximum rows of the table. */
const MAX_TABLE_ROWS = 100;

/** The metrics as a table, filled when opened. @param {any[]} metrics */
export function createMetricsTable(metrics) {
  const columns = [["loss", "training loss"], ["validation_loss", "validation loss"], ["BLEU", "BLEU"], ["chrF", "chrF"], ["learning_rate", "learning rate"], ["tokens_per_second", "tokens/s"]];
  const interval = Math.ceil(metrics.length / MAX_TABLE_ROWS);
  const rows = metrics.filter((row, i) => i % interval === 0 || "validation_loss" in row || i === metrics.length - 1).slice(-2 * MAX_TABLE_ROWS);
  const host = h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Training metrics" });
  const fillTable = (/** @type {any} */ event) => {
    if (!event.target.open) return host.replaceChildren();
    return host.replaceChildren(
      interval > 1 ? h("p", { class: "legend" }, `Every ${interval}th row, and every validation. All rows: training/metrics.jsonl in the model folder.`) : "",
      h("table", null,
        h("thead", null, h("tr", null, h("th", { scope: "col" }, "update"), columns.map(([, name]) => h("th", { scope: "col" }, name)))),
        h("tbody", null, rows.map((row) => h("tr", null, h("th", { scope: "row" }, row.update.toLocaleString("en")),
          columns.map(([id]) => h("td", null, id in row ? Number(row[id].toPrecision(6)).toLocaleString("en", { maximumSignificantDigits: 6 }) : "")))))));
  };
  return h("details", { class: "as-table", ontoggle: fillTable }, h("summary", null, "Show as table"), host);
}
