// A matrix to look at: a canvas with words on both axes, walked with the arrow keys, and the same as a table.

import { colourOf, palette } from "heedful/parts/colours.js";
import { h, shown } from "heedful/parts/dom.js";
import { legend, matrixPicture } from "heedful/parts/matrix_picture.js";
import { drawnAs } from "heedful/parts/picture.js";

/**
 * @typedef {object} MatrixFigure
 * @property {string} title
 * @property {string[]} rows  who looks
 * @property {string[]} columns  what is looked at
 * @property {Float32Array | Uint8Array} values  row after row
 * @property {"unit" | "signed" | "named"} [scale]  0 to the largest, in one hue; or minus to plus; or places of names
 * @property {string[]} [names]  what the numbers of a named scale stand for
 * @property {string} [hatched]  what hatched cells are, if not masked
 * @property {string} [axes]  what rows and columns are
 * @property {(row: number, column: number) => boolean} [masked]
 * @property {(row: number, column: number) => string} spoken  a cell in words
 * @property {[number | null, number | null]} [selected]
 * @property {(row: number, column: number) => void} [choose]
 * @property {string} [opens]  what choosing a cell does, for a button of its own
 */

/** The smallest cells: channels are only looked at, words are clicked. */
const SMALLEST = { signed: 3, unit: 7, named: 7 };
const LARGEST = 34;
/** Numbers that a table shows at once; of a larger matrix it shows one row. */
const TABLE_CELLS = 900;
/** A row is at least so tall that its name can be read. */
const LOWEST = 14;
/** Pixels of the longest canvas that browsers draw. */
const LONGEST = 16_000;
/** Between the lines of hatched cells. */
const GAP = 5;
/** Columns narrower than this have their names upright and smaller. */
const NARROW = 18;
const SMALL_FONT = "11px system-ui, sans-serif";
const FONT = "13px system-ui, sans-serif";

export class Matrix {
  /** @param {HTMLElement} host */
  constructor(host) {
    /** @type {MatrixFigure | null} */
    this.figure = null;
    this.active = [0, 0];
    /** How the pointer last came down: a finger reads a cell first, and opens it with a second tap. */
    this.touched = false;
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.cell = h("div", { role: "gridcell", id: `cell-${Matrix.count++}`, class: "matrix-cell" });
    this.grid = h(
      "div",
      {
        class: "matrix", role: "grid", tabIndex: 0, "aria-activedescendant": this.cell.id,
        onkeydown: (/** @type {KeyboardEvent} */ event) => this.#walk(event),
        onfocus: () => this.#mark(),
        onpointerdown: (/** @type {PointerEvent} */ event) => (this.touched = event.pointerType === "touch"),
        onpointermove: (/** @type {PointerEvent} */ event) => event.pointerType !== "touch" && this.#point(event, false),
        onclick: (/** @type {PointerEvent} */ event) => this.#point(event, true),
      },
      this.canvas,
      h("div", { role: "row", class: "matrix-row" }, this.cell),
    );
    this.told = h("p", { class: "told", role: "status" });
    this.opener = h("button", { type: "button", class: "small no-picture", hidden: true, onclick: () => this.figure?.choose?.(this.active[0], this.active[1]) });
    this.legend = h("p", { class: "legend" });
    this.table = h("div", { class: "scroll", tabIndex: 0, role: "region" });
    this.details = h(
      "details",
      { class: "as-table", ontoggle: () => this.#fillTable() },
      h("summary", null, "Show as table"),
      this.table,
    );
    this.scroller = h("div", { class: "scroll" }, this.grid);
    host.append(this.scroller, this.told, this.opener, this.legend, this.details);
    new ResizeObserver(() => this.#paint()).observe(this.scroller);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#paint());
  }

  /** @param {MatrixFigure} figure */
  draw(figure) {
    this.figure = figure;
    drawnAs(this.canvas, () => matrixPicture(figure, { bare: true }));
    const [row, column] = figure.selected ?? [null, null];
    this.active = [
      clamp(row ?? this.active[0], figure.rows.length),
      clamp(column ?? (row === null ? this.active[1] : this.#strongest(row)), figure.columns.length),
    ];
    this.grid.setAttribute("aria-label", `${figure.title}. ${figure.axes ?? "Rows look at columns."} Arrow keys walk.`);
    this.grid.setAttribute("aria-rowcount", figure.rows.length);
    this.grid.setAttribute("aria-colcount", figure.columns.length);
    this.table.setAttribute("aria-label", `${figure.title} as a table`);
    this.opener.textContent = figure.opens ?? "";
    this.opener.hidden = !figure.opens;
    this.#paint();
    this.#mark();
    this.#fillTable();
  }

  /** The column that a row looks at most. @param {number} row */
  #strongest(row) {
    const { columns, values } = /** @type {MatrixFigure} */ (this.figure);
    const own = Array.from(values.subarray(row * columns.length, (row + 1) * columns.length));
    return own.indexOf(Math.max(...own));
  }

  get largest() {
    let most = 0;
    for (const value of this.figure?.values ?? []) if (Math.abs(value) > most && Number.isFinite(value)) most = Math.abs(value);
    return most || 1;
  }

  /** How large a cell is, and how much room the words take. */
  #layout() {
    const { rows, columns, scale = "unit" } = /** @type {MatrixFigure} */ (this.figure);
    const context = this.canvas.getContext("2d");
    context.font = FONT;
    const widest = (/** @type {string[]} */ names) => Math.min(150, Math.max(20, ...names.map((name) => context.measureText(name).width)));
    const left = widest(rows) + 12;
    const right = Math.max(12, widest(columns) * 0.75 - 8); // the last name leans over the edge
    const room = (this.scroller.clientWidth || 600) - left - right;
    const fitting = Math.floor(room / columns.length);
    const size = Math.max(Math.min(LARGEST, fitting), columns.length > 80 || scale === "signed" ? SMALLEST[scale] : 14);
    const named = size >= 11; // else only the rows are: their cells can be taller than wide
    const upright = size < NARROW;
    return { size, tall: Math.max(size, LOWEST), left, right: named && !upright ? right : 8, top: named ? widest(columns) * (upright ? 0.85 : 0.75) + (upright ? 12 : 22) : 8, named, upright };
  }

  #paint() {
    if (!this.figure || !this.scroller.clientWidth) return;
    const { rows, columns, values, masked, scale = "unit" } = this.figure;
    const { size, tall, left, right, top } = (this.place = this.#layout());
    const [width, height] = [left + columns.length * size + right, top + rows.length * tall + 8];
    const ratio = Math.min(window.devicePixelRatio || 1, LONGEST / Math.max(width, height));
    Object.assign(this.canvas, { width: width * ratio, height: height * ratio });
    Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    const colours = palette();
    const most = this.largest;
    for (let row = 0; row < rows.length; row++) {
      for (let column = 0; column < columns.length; column++) {
        const [x, y] = [left + column * size, top + row * tall];
        if (masked?.(row, column)) {
          hatch(context, x, y, size, tall, colours);
          continue;
        }
        context.fillStyle = colourOf(colours, scale, values[row * columns.length + column], most);
        context.fillRect(x, y, size, tall);
      }
    }
    context.strokeStyle = colours.line;
    context.strokeRect(left, top, columns.length * size, rows.length * tall);
    this.#names(context, colours);
    this.#legend(most);
    this.#mark();
  }

  /** @param {CanvasRenderingContext2D} context @param {ReturnType<typeof palette>} colours */
  #names(context, colours) {
    const { rows, columns, selected } = /** @type {MatrixFigure} */ (this.figure);
    const { size, tall, left, top, named, upright } = /** @type {any} */ (this.place);
    context.font = FONT;
    context.textBaseline = "middle";
    context.textAlign = "right";
    rows.forEach((name, row) => {
      context.fillStyle = selected?.[0] === row ? colours.focus : colours.ink;
      context.fillText(cut(context, name), left - 6, top + (row + 0.5) * tall);
    });
    if (!named) return;
    context.textAlign = "left";
    if (upright) context.font = SMALL_FONT;
    columns.forEach((name, column) => {
      context.save();
      context.translate(left + (column + 0.5) * size, top - 6);
      context.rotate(upright ? -Math.PI / 2 : -Math.PI / 4);
      context.fillStyle = selected?.[1] === column ? colours.focus : colours.ink;
      context.fillText(cut(context, name), 0, 0);
      context.restore();
    });
  }

  /** @param {number} most */
  #legend(most) {
    this.legend.textContent = legend(/** @type {MatrixFigure} */ (this.figure), most);
  }

  /** Show and say the active cell. */
  #mark() {
    if (!this.figure || !this.place) return;
    const [row, column] = this.active;
    const { size, tall, left, top } = this.place;
    const spoken = this.figure.spoken(row, column);
    this.cell.setAttribute("aria-label", spoken);
    this.cell.setAttribute("aria-rowindex", row + 1);
    this.cell.setAttribute("aria-colindex", column + 1);
    Object.assign(this.cell.style, {
      left: `${left + column * size}px`, top: `${top + row * tall}px`, width: `${size}px`, height: `${tall}px`,
    });
    this.told.textContent = spoken;
  }

  /** @param {KeyboardEvent} event */
  #walk(event) {
    if (!this.figure) return;
    const [row, column] = this.active;
    const [rows, columns] = [this.figure.rows.length, this.figure.columns.length];
    /** @type {Record<string, [number, number]>} */
    const steps = {
      ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1], Home: [row, 0], End: [row, columns - 1],
      PageUp: [0, column], PageDown: [rows - 1, column],
    };
    if (event.key === "Enter" || event.key === " ") this.figure.choose?.(row, column);
    else if (event.key in steps) this.#go(clamp(steps[event.key][0], rows), clamp(steps[event.key][1], columns));
    else return;
    event.preventDefault();
    this.cell.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  /** @param {PointerEvent} event @param {boolean} choosing */
  #point(event, choosing) {
    if (!this.figure || !this.place) return;
    const box = this.canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top - this.place.top) / this.place.tall);
    const column = Math.floor((event.clientX - box.left - this.place.left) / this.place.size);
    if (row < 0 || column < 0 || row >= this.figure.rows.length || column >= this.figure.columns.length) return;
    const again = row === this.active[0] && column === this.active[1];
    this.#go(row, column);
    if (choosing && (again || !this.touched)) this.figure.choose?.(row, column);
  }

  /** Make another cell the active one; a table of one row follows. @param {number} row @param {number} column */
  #go(row, column) {
    const other = row !== this.active[0];
    this.active = [row, column];
    this.#mark();
    if (other && this.#long) this.#fillTable();
  }

  /** Whether the table has room for one row only. */
  get #long() {
    const { rows, columns } = /** @type {MatrixFigure} */ (this.figure);
    return rows.length * columns.length > TABLE_CELLS;
  }

  /** The numbers themselves; made when it is opened, and never more than a page can hold. */
  #fillTable() {
    this.table.replaceChildren();
    if (!this.details.open || !this.figure) return;
    const { rows, columns, values, masked, names, hatched } = this.figure;
    const [row] = this.active;
    const many = this.#long;
    const chosen = many ? [row] : rows.map((_, i) => i);
    if (many) this.table.append(h("p", null, `Row ${row + 1} of ${rows.length}; walk to another in the figure with the arrow keys, a pointer or a tap.`));
    const places = columns.map((_, column) => column);
    const text = (/** @type {number} */ i, /** @type {number} */ j) => (masked?.(i, j) ? (names && hatched) || "masked" : names ? names[values[i * columns.length + j]] : shown(values[i * columns.length + j]));
    this.table.append(
      many
        ? h("table", null, h("thead", null, h("tr", null, h("th", { scope: "col" }, "looks at"), h("th", { scope: "col" }, rows[row]))),
            h("tbody", null, places.map((j) => h("tr", null, h("th", { scope: "row", dir: "auto" }, columns[j]), h("td", null, text(row, j))))))
        : h("table", null, h("thead", null, h("tr", null, h("td"), places.map((j) => h("th", { scope: "col", dir: "auto" }, columns[j])))),
            h("tbody", null, chosen.map((i) => h("tr", null, h("th", { scope: "row", dir: "auto" }, rows[i]), places.map((j) => h("td", null, text(i, j))))))),
    );
  }
}
Matrix.count = 0;

/** @param {number} value @param {number} length */
function clamp(value, length) {
  return Math.max(0, Math.min(length - 1, value));
}

/** @param {CanvasRenderingContext2D} context @param {string} name */
function cut(context, name) {
  if (context.measureText(name).width <= 150) return name;
  const letters = Array.from(name);
  while (letters.length && context.measureText(`${letters.join("")}…`).width > 150) letters.pop();
  return `${letters.join("")}…`;
}

/**
 * Hatch the masked cells of a small matrix, a run of them at a time.
 * @param {CanvasRenderingContext2D} context @param {number} rows @param {number} columns @param {number} size
 * @param {(row: number, column: number) => boolean} masked @param {ReturnType<typeof palette>} colours
 */
export function hatchMasked(context, rows, columns, size, masked, colours) {
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const first = column;
      while (column < columns && masked(row, column)) column++;
      if (column > first) hatch(context, first * size, row * size, (column - first) * size, size, colours);
    }
  }
}

/** @param {CanvasRenderingContext2D} context @param {number} x @param {number} y @param {number} wide @param {number} tall @param {ReturnType<typeof palette>} colours */
export function hatch(context, x, y, wide, tall, colours) {
  context.save();
  context.beginPath();
  context.rect(x, y, wide, tall);
  context.clip();
  context.strokeStyle = colours.soft;
  context.lineWidth = 0.6;
  context.beginPath();
  // Lines where x + y is a multiple of the gap: they go on from cell to cell.
  for (let sum = Math.ceil((x + y) / GAP) * GAP; sum < x + y + wide + tall; sum += GAP) {
    context.moveTo(sum - y - tall, y + tall);
    context.lineTo(sum - y, y);
  }
  context.stroke();
  context.restore();
}
