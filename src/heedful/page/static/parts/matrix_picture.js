// A matrix as SVG: a square for every number, words on both axes, and what the colours mean.

import { colourOf, palette } from "heedful/parts/colours.js";
import { h, shown, svg } from "heedful/parts/dom.js";
import { paper, pen, plainColour } from "heedful/parts/picture.js";

/** @typedef {import("heedful/parts/matrix.js").MatrixFigure} MatrixFigure */
/** @typedef {{size: number, left: number, top: number, width: number, height: number, most: number}} Layout */

const FONT = "system-ui, sans-serif";
const MARGIN = 12;
/** Squares of their own up to here; a larger matrix is one image. */
export const MOST_SQUARES = 40_000;
let pictures = 0;

/**
 * @param {MatrixFigure} figure @param {{bare?: boolean}} [how]  bare: without title and legend, which stand beside it
 * @returns {SVGSVGElement}
 */
export function matrixPicture(figure, { bare = false } = {}) {
  const layout = laidOut(figure, bare);
  const { size, left, top, width, height } = layout;
  const colours = palette();
  const ink = plainColour(colours.ink);
  const pattern = `masked-${++pictures}`; // several may stand in one file
  const many = figure.rows.length * figure.columns.length > MOST_SQUARES;
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, preserveAspectRatio: "xMinYMin", "font-family": FONT, "font-size": 13, fill: ink },
    svg("title", null, figure.title),
    svg("desc", null, legend(figure, layout.most)),
    svg("defs", null, svg("pattern", { id: pattern, width: 6, height: 6, patternUnits: "userSpaceOnUse" },
      svg("path", { d: "M0 6L6 0", stroke: plainColour(colours.line), "stroke-width": 1 }))),
    paper(0, 0, width, height),
    bare ? null : svg("text", { x: MARGIN, y: 24, "font-size": 15, "font-weight": 600 }, figure.title),
    many ? [hatched(figure, layout, pattern), image(figure, layout, colours)] : squares(figure, layout, colours, pattern),
    svg("rect", { x: left, y: top, width: size * figure.columns.length, height: size * figure.rows.length, fill: "none", stroke: plainColour(colours.line) }),
    size < 11 ? null : names(figure, layout),
    bare ? null : wrapped(legend(figure, layout.most), width - 2 * MARGIN).map((line, i) =>
      svg("text", { x: MARGIN, y: top + size * figure.rows.length + 24 + i * 18, fill: plainColour(colours.soft) }, line)));
}

/** @param {MatrixFigure} figure @param {boolean} bare @returns {Layout} */
function laidOut(figure, bare) {
  const { rows, columns, values } = figure;
  let most = 0;
  for (const value of values) if (Number.isFinite(value)) most = Math.max(most, Math.abs(value));
  const longest = Math.max(rows.length, columns.length);
  const size = longest > 200 ? 4 : longest > 60 ? 12 : 26;
  const context = pen();
  context.font = `13px ${FONT}`;
  const widest = (/** @type {string[]} */ texts) => Math.max(20, ...texts.map((text) => context.measureText(text).width));
  const named = size >= 11;
  const margin = bare ? 2 : MARGIN;
  const left = margin + (named ? widest(rows) + 8 : 0);
  const slant = named ? widest(columns) * Math.SQRT1_2 + 14 : 0;
  const top = (bare ? margin : 36) + slant;
  context.font = `600 15px ${FONT}`;
  const own = left + size * columns.length + slant;
  const width = Math.ceil(bare ? own : Math.max(own, context.measureText(figure.title).width + 2 * MARGIN, 420));
  context.font = `13px ${FONT}`;
  const below = bare ? margin : 24 + 18 * wrapped(legend(figure, most), width - 2 * MARGIN).length;
  return { size, left, top, width, height: Math.ceil(top + size * rows.length + below), most: most || 1 };
}

/** What rows, columns and colours are. @param {MatrixFigure} figure @param {number} most the largest number */
export function legend(figure, most) {
  const { axes, scale = "unit" } = figure;
  const range = { unit: `No colour is 0, full colour is ${shown(most)}`, signed: `Orange is ${shown(-most)}, blue is ${shown(most)}`, named: "" }[scale];
  return `${axes ?? "Rows look at columns; each row sums to 1."} ${[range, hatchedCells(figure)].filter(Boolean).join("; ")}.`;
}

/** What hatched cells mean, if there are any. @param {MatrixFigure} figure */
function hatchedCells({ masked, hatched = "masked", scale }) {
  const words = masked ? `hatched cells are ${hatched}` : "";
  return scale === "named" ? words.replace("hatched", "Hatched") : words;
}

/** @param {MatrixFigure} figure @param {Layout} layout @param {ReturnType<typeof palette>} colours @param {string} pattern */
function squares(figure, { size, left, top, most }, colours, pattern) {
  const { rows, columns, values, masked, spoken, scale } = figure;
  return rows.flatMap((_, row) => columns.map((_, column) => {
    const value = values[row * columns.length + column];
    const hidden = masked?.(row, column);
    const fill = hidden ? `url(#${pattern})` : plainColour(colourOf(colours, scale, value, most));
    return svg("rect", { x: left + column * size, y: top + row * size, width: size, height: size, fill, "data-value": hidden ? "masked" : value },
      svg("title", null, spoken(row, column)));
  }));
}

/** What is masked, below an image that leaves it out: one path for all cells. @param {MatrixFigure} figure @param {Layout} layout @param {string} pattern */
function hatched({ rows, columns, masked }, { size, left, top }, pattern) {
  if (!masked) return null;
  const runs = rows.flatMap((_, row) => maskedRuns(row, columns.length, masked).map(([from, to]) =>
    `M${left + from * size} ${top + row * size}h${(to - from) * size}v${size}h${(from - to) * size}z`));
  return svg("path", { d: runs.join(""), fill: `url(#${pattern})`, "data-value": "masked" });
}

/** Neighbours that are masked together, each as [from, to). @param {number} row @param {number} columns @param {NonNullable<MatrixFigure["masked"]>} masked */
function maskedRuns(row, columns, masked) {
  /** @type {[number, number][]} */
  const runs = [];
  for (let column = 0; column < columns; column++) {
    if (!masked(row, column)) continue;
    const last = runs[runs.length - 1];
    if (last?.[1] === column) last[1] += 1;
    else runs.push([column, column + 1]);
  }
  return runs;
}

/** One pixel a number, enlarged by who shows it; masked cells stay transparent. @param {MatrixFigure} figure @param {Layout} layout @param {ReturnType<typeof palette>} colours */
function image({ rows, columns, values, masked, scale }, { size, left, top, most }, colours) {
  const canvas = h("canvas", { width: columns.length, height: rows.length });
  const context = canvas.getContext("2d");
  values.forEach((/** @type {number} */ value, /** @type {number} */ i) => {
    const [row, column] = [Math.floor(i / columns.length), i % columns.length];
    if (masked?.(row, column)) return;
    context.fillStyle = colourOf(colours, scale, value, most);
    context.fillRect(column, row, 1, 1);
  });
  return svg("image", { href: canvas.toDataURL("image/png"), x: left, y: top, width: size * columns.length, height: size * rows.length, preserveAspectRatio: "none", "image-rendering": "pixelated" });
}

/** @param {MatrixFigure} figure @param {Layout} layout */
function names({ rows, columns }, { size, left, top }) {
  return [
    rows.map((name, row) => svg("text", { x: left - 6, y: top + (row + 0.5) * size + 4.5, "text-anchor": "end" }, name)),
    columns.map((name, column) => {
      const [x, y] = [left + (column + 0.6) * size, top - 6];
      return svg("text", { x, y, transform: `rotate(-45 ${x} ${y})` }, name);
    }),
  ];
}

/** Words in lines that fit, in the pen's font. @param {string} text @param {number} width @returns {string[]} */
export function wrapped(text, width) {
  const context = pen();
  /** @type {string[]} */
  const lines = [];
  for (const word of text.split(/\s+/)) {
    const longer = lines.length ? `${lines[lines.length - 1]} ${word}` : word;
    if (lines.length && context.measureText(longer).width <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}
