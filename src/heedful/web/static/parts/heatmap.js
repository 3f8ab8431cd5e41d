// A heat map: a canvas with words on both axes, arrow-key navigation, and the values as a table.

import { describeLegend, renderMatrixSvg } from "heedful/export/matrix_svg.js";
import { registerSvg } from "heedful/export/svg.js";
import { getColor, readPalette } from "heedful/parts/colors.js";
import { formatNumber, h } from "heedful/parts/dom.js";

/**
 * @typedef {object} MatrixFigure
 * @property {string} title
 * @property {string[]} rows  queries
 * @property {string[]} columns  keys
 * @property {Float32Array | Uint8Array} values  in row-major order
 * @property {"unit" | "signed" | "named"} [scale]  0 to the maximum, in one hue; negative to positive; or indices of names
 * @property {string[]} [names]  the meaning of the values of a named scale
 * @property {string} [hatched]  the meaning of hatched cells, if not masked
 * @property {string} [axes]  the meaning of rows and columns
 * @property {(row: number, column: number) => boolean} [isMasked]
 * @property {(row: number, column: number) => string} describe  a cell in words
 * @property {[number | null, number | null]} [selected]
 * @property {(row: number, column: number) => void} [choose]
 * @property {string} [actionLabel]  what choosing a cell does, as a button label
 */

/** Minimum cell sizes: channels are only viewed, words are clicked. */
const MIN_CELL_SIZE = { signed: 3, unit: 7, named: 7 };
const MAX_CELL_SIZE = 34;
/** Values shown in a table at once; for a larger matrix it shows one row. */
const TABLE_CELLS = 900;
/** Rows are tall enough to read their names. */
const MIN_ROW_HEIGHT = 14;
/** Maximum canvas length that browsers draw, in pixels. */
const MAX_CANVAS_LENGTH = 16_000;
/** Distance between the lines of hatched cells. */
const HATCH_GAP = 5;
/** Columns narrower than this have smaller, vertical names. */
const NARROW_COLUMN = 18;
const SMALL_FONT = "11px system-ui, sans-serif";
const FONT = "13px system-ui, sans-serif";

export class Heatmap {
  /** @param {HTMLElement} host */
  constructor(host) {
    /** @type {MatrixFigure | null} */
    this.figure = null;
    this.active = [0, 0];
    /** The last pointer was a finger: the first tap reads a cell, the second opens it. */
    this.isTouch = false;
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.cell = h("div", { role: "gridcell", id: `cell-${Heatmap.count++}`, class: "matrix-cell" });
    this.grid = h(
      "div",
      {
        class: "matrix", role: "grid", tabIndex: 0, "aria-activedescendant": this.cell.id,
        onkeydown: (/** @type {KeyboardEvent} */ event) => this.#handleKey(event),
        onfocus: () => this.#updateActiveCell(),
        onpointerdown: (/** @type {PointerEvent} */ event) => (this.isTouch = event.pointerType === "touch"),
        onpointermove: (/** @type {PointerEvent} */ event) => event.pointerType !== "touch" && this.#handlePointer(event, false),
        onclick: (/** @type {PointerEvent} */ event) => this.#handlePointer(event, true),
      },
      this.canvas,
      h("div", { role: "row", class: "matrix-row" }, this.cell),
    );
    this.status = h("p", { class: "status-line", role: "status" });
    this.actionButton = h("button", { type: "button", class: "small no-export", hidden: true, onclick: () => this.figure?.choose?.(this.active[0], this.active[1]) });
    this.legend = h("p", { class: "legend" });
    this.table = h("div", { class: "scroll", tabIndex: 0, role: "region" });
    this.details = h(
      "details",
      { class: "as-table", ontoggle: () => this.#fillTable() },
      h("summary", null, "Show as table"),
      this.table,
    );
    this.scroller = h("div", { class: "scroll" }, this.grid);
    host.append(this.scroller, this.status, this.actionButton, this.legend, this.details);
    new ResizeObserver(() => this.#paint()).observe(this.scroller);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#paint());
  }

  /** @param {MatrixFigure} figure */
  draw(figure) {
    this.figure = figure;
    registerSvg(this.canvas, () => renderMatrixSvg(figure, { bare: true }));
    const [row, column] = figure.selected ?? [null, null];
    this.active = [
      clamp(row ?? this.active[0], figure.rows.length),
      clamp(column ?? (row === null ? this.active[1] : this.#findStrongestColumn(row)), figure.columns.length),
    ];
    this.grid.setAttribute("aria-label", `${figure.title}. ${figure.axes ?? "Rows attend to columns."} Use the arrow keys to move.`);
    this.grid.setAttribute("aria-rowcount", figure.rows.length);
    this.grid.setAttribute("aria-colcount", figure.columns.length);
    this.table.setAttribute("aria-label", `${figure.title} as a table`);
    this.actionButton.textContent = figure.actionLabel ?? "";
    this.actionButton.hidden = !figure.actionLabel;
    this.#paint();
    this.#updateActiveCell();
    this.#fillTable();
  }

  /** The column with the largest weight of a row. @param {number} row */
  #findStrongestColumn(row) {
    const { columns, values } = /** @type {MatrixFigure} */ (this.figure);
    const rowValues = Array.from(values.subarray(row * columns.length, (row + 1) * columns.length));
    return rowValues.indexOf(Math.max(...rowValues));
  }

  get maxValue() {
    let max = 0;
    for (const value of this.figure?.values ?? []) if (Math.abs(value) > max && Number.isFinite(value)) max = Math.abs(value);
    return max || 1;
  }

  /** The cell size, and the space for the words. */
  #layout() {
    const { rows, columns, scale = "unit" } = /** @type {MatrixFigure} */ (this.figure);
    const context = this.canvas.getContext("2d");
    context.font = FONT;
    const measureWidest = (/** @type {string[]} */ names) => Math.min(150, Math.max(20, ...names.map((name) => context.measureText(name).width)));
    const left = measureWidest(rows) + 12;
    const right = Math.max(12, measureWidest(columns) * 0.75 - 8); // the last name is slanted over the edge
    const availableWidth = (this.scroller.clientWidth || 600) - left - right;
    const fittingSize = Math.floor(availableWidth / columns.length);
    const size = Math.max(Math.min(MAX_CELL_SIZE, fittingSize), columns.length > 80 || scale === "signed" ? MIN_CELL_SIZE[scale] : 14);
    const hasColumnNames = size >= 11; // else only rows have names: their cells can be taller than wide
    const isUpright = size < NARROW_COLUMN;
    return { size, rowHeight: Math.max(size, MIN_ROW_HEIGHT), left, right: hasColumnNames && !isUpright ? right : 8, top: hasColumnNames ? measureWidest(columns) * (isUpright ? 0.85 : 0.75) + (isUpright ? 12 : 22) : 8, named: hasColumnNames, upright: isUpright };
  }

  #paint() {
    if (!this.figure || !this.scroller.clientWidth) return;
    const { rows, columns, values, isMasked, scale = "unit" } = this.figure;
    const { size, rowHeight, left, right, top } = (this.layout = this.#layout());
    const [width, height] = [left + columns.length * size + right, top + rows.length * rowHeight + 8];
    const ratio = Math.min(window.devicePixelRatio || 1, MAX_CANVAS_LENGTH / Math.max(width, height));
    Object.assign(this.canvas, { width: width * ratio, height: height * ratio });
    Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    const colors = readPalette();
    const max = this.maxValue;
    for (let row = 0; row < rows.length; row++) {
      for (let column = 0; column < columns.length; column++) {
        const [x, y] = [left + column * size, top + row * rowHeight];
        if (isMasked?.(row, column)) {
          hatch(context, x, y, size, rowHeight, colors);
          continue;
        }
        context.fillStyle = getColor(colors, scale, values[row * columns.length + column], max);
        context.fillRect(x, y, size, rowHeight);
      }
    }
    context.strokeStyle = colors.line;
    context.strokeRect(left, top, columns.length * size, rows.length * rowHeight);
    this.#paintNames(context, colors);
    this.#updateLegend(max);
    this.#updateActiveCell();
  }

  /** @param {CanvasRenderingContext2D} context @param {ReturnType<typeof readPalette>} colors */
  #paintNames(context, colors) {
    const { rows, columns, selected } = /** @type {MatrixFigure} */ (this.figure);
    const { size, rowHeight, left, top, hasColumnNames, isUpright } = /** @type {any} */ (this.layout);
    context.font = FONT;
    context.textBaseline = "middle";
    context.textAlign = "right";
    rows.forEach((name, row) => {
      context.fillStyle = selected?.[0] === row ? colors.focus : colors.ink;
      context.fillText(truncate(context, name), left - 6, top + (row + 0.5) * rowHeight);
    });
    if (!hasColumnNames) return;
    context.textAlign = "left";
    if (isUpright) context.font = SMALL_FONT;
    columns.forEach((name, column) => {
      context.save();
      context.translate(left + (column + 0.5) * size, top - 6);
      context.rotate(isUpright ? -Math.PI / 2 : -Math.PI / 4);
      context.fillStyle = selected?.[1] === column ? colors.focus : colors.ink;
      context.fillText(truncate(context, name), 0, 0);
      context.restore();
    });
  }

  /** @param {number} max */
  #updateLegend(max) {
    this.legend.textContent = describeLegend(/** @type {MatrixFigure} */ (this.figure), max);
  }

  /** Highlight and announce the active cell. */
  #updateActiveCell() {
    if (!this.figure || !this.layout) return;
    const [row, column] = this.active;
    const { size, rowHeight, left, top } = this.layout;
    const description = this.figure.describe(row, column);
    this.cell.setAttribute("aria-label", description);
    this.cell.setAttribute("aria-rowindex", row + 1);
    this.cell.setAttribute("aria-colindex", column + 1);
    Object.assign(this.cell.style, {
      left: `${left + column * size}px`, top: `${top + row * rowHeight}px`, width: `${size}px`, height: `${rowHeight}px`,
    });
    this.status.textContent = description;
  }

  /** @param {KeyboardEvent} event */
  #handleKey(event) {
    if (!this.figure) return;
    const [row, column] = this.active;
    const [rows, columns] = [this.figure.rows.length, this.figure.columns.length];
    /** @type {Record<string, [number, number]>} */
    const targets = {
      ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1], Home: [row, 0], End: [row, columns - 1],
      PageUp: [0, column], PageDown: [rows - 1, column],
    };
    if (event.key === "Enter" || event.key === " ") this.figure.choose?.(row, column);
    else if (event.key in targets) this.#moveTo(clamp(targets[event.key][0], rows), clamp(targets[event.key][1], columns));
    else return;
    event.preventDefault();
    this.cell.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  /** @param {PointerEvent} event @param {boolean} isClick */
  #handlePointer(event, isClick) {
    if (!this.figure || !this.layout) return;
    const bounds = this.canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - bounds.top - this.layout.top) / this.layout.rowHeight);
    const column = Math.floor((event.clientX - bounds.left - this.layout.left) / this.layout.size);
    if (row < 0 || column < 0 || row >= this.figure.rows.length || column >= this.figure.columns.length) return;
    const isActive = row === this.active[0] && column === this.active[1];
    this.#moveTo(row, column);
    if (isClick && (isActive || !this.isTouch)) this.figure.choose?.(row, column);
  }

  /** Move to another cell; a single-row table follows. @param {number} row @param {number} column */
  #moveTo(row, column) {
    const rowChanged = row !== this.active[0];
    this.active = [row, column];
    this.#updateActiveCell();
    if (rowChanged && this.#isLong) this.#fillTable();
  }

  /** Whether the table shows a single row. */
  get #isLong() {
    const { rows, columns } = /** @type {MatrixFigure} */ (this.figure);
    return rows.length * columns.length > TABLE_CELLS;
  }

  /** The values as a table; filled when opened, limited to what a page can hold. */
  #fillTable() {
    this.table.replaceChildren();
    if (!this.details.open || !this.figure) return;
    const { rows, columns, values, isMasked, names, hatched } = this.figure;
    const [row] = this.active;
    const isLong = this.#isLong;
    const shownRows = isLong ? [row] : rows.map((_, i) => i);
    if (isLong) this.table.append(h("p", null, `Row ${row + 1} of ${rows.length}; move to another row with the arrow keys, a pointer or a tap.`));
    const columnIndices = columns.map((_, column) => column);
    const formatCell = (/** @type {number} */ i, /** @type {number} */ j) => (isMasked?.(i, j) ? (names && hatched) || "masked" : names ? names[values[i * columns.length + j]] : formatNumber(values[i * columns.length + j]));
    this.table.append(
      isLong
        ? h("table", null, h("thead", null, h("tr", null, h("th", { scope: "col" }, "attends to"), h("th", { scope: "col" }, rows[row]))),
            h("tbody", null, columnIndices.map((j) => h("tr", null, h("th", { scope: "row", dir: "auto" }, columns[j]), h("td", null, formatCell(row, j))))))
        : h("table", null, h("thead", null, h("tr", null, h("td"), columnIndices.map((j) => h("th", { scope: "col", dir: "auto" }, columns[j])))),
            h("tbody", null, shownRows.map((i) => h("tr", null, h("th", { scope: "row", dir: "auto" }, rows[i]), columnIndices.map((j) => h("td", null, formatCell(i, j))))))),
    );
  }
}
Heatmap.count = 0;

/** @param {number} value @param {number} length */
function clamp(value, length) {
  return Math.max(0, Math.min(length - 1, value));
}

/** @param {CanvasRenderingContext2D} context @param {string} name */
function truncate(context, name) {
  if (context.measureText(name).width <= 150) return name;
  const characters = Array.from(name);
  while (characters.length && context.measureText(`${characters.join("")}…`).width > 150) characters.pop();
  return `${characters.join("")}…`;
}

/**
 * Hatch the masked cells of a small matrix, one run at a time.
 * @param {CanvasRenderingContext2D} context @param {number} rows @param {number} columns @param {number} size
 * @param {(row: number, column: number) => boolean} isMasked @param {ReturnType<typeof readPalette>} colors
 */
export function hatchMasked(context, rows, columns, size, isMasked, colors) {
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const first = column;
      while (column < columns && isMasked(row, column)) column++;
      if (column > first) hatch(context, first * size, row * size, (column - first) * size, size, colors);
    }
  }
}

/** @param {CanvasRenderingContext2D} context @param {number} x @param {number} y @param {number} width @param {number} height @param {ReturnType<typeof readPalette>} colors */
export function hatch(context, x, y, width, height, colors) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = colors.soft;
  context.lineWidth = 0.6;
  context.beginPath();
  // Lines where x + y is a multiple of the gap: they continue from cell to cell.
  for (let sum = Math.ceil((x + y) / HATCH_GAP) * HATCH_GAP; sum < x + y + width + height; sum += HATCH_GAP) {
    context.moveTo(sum - y - height, y + height);
    context.lineTo(sum - y, y);
  }
  context.stroke();
  context.restore();
}
