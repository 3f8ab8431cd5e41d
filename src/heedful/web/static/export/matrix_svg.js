// A matrix as SVG: one square per value, words on both axes, and a color legend.

import { createBackground, getContext, toRgbColor } from "heedful/export/svg.js";
import { getColor, readPalette } from "heedful/parts/colors.js";
import { formatNumber, h, svg } from "heedful/parts/dom.js";

/** @typedef {import("heedful/parts/heatmap.js").MatrixFigure} MatrixFigure */
/** @typedef {{size: number, left: number, top: number, width: number, height: number, max: number}} Layout */

const FONT = "system-ui, sans-serif";
const MARGIN = 12;
/** Up to this many values are squares; a larger matrix is one image. */
export const MAX_SQUARES = 40_000;
let pictureCount = 0;

/**
 * @param {MatrixFigure} figure @param {{bare?: boolean}} [how]  plain: without title and legend, which the page shows beside it
 * @returns {SVGSVGElement}
 */
export function renderMatrixSvg(figure, { bare: plain = false } = {}) {
  const layout = computeLayout(figure, plain);
  const { size, left, top, width, height } = layout;
  const colors = readPalette();
  const ink = toRgbColor(colors.ink);
  const pattern = `masked-${++pictureCount}`; // one file may contain several
  const useImage = figure.rows.length * figure.columns.length > MAX_SQUARES;
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, preserveAspectRatio: "xMinYMin", "font-family": FONT, "font-size": 13, fill: ink },
    svg("title", null, figure.title),
    svg("desc", null, describeLegend(figure, layout.max)),
    svg("defs", null, svg("pattern", { id: pattern, width: 6, height: 6, patternUnits: "userSpaceOnUse" },
      svg("path", { d: "M0 6L6 0", stroke: toRgbColor(colors.line), "stroke-width": 1 }))),
    createBackground(0, 0, width, height),
    plain ? null : svg("text", { x: MARGIN, y: 24, "font-size": 15, "font-weight": 600 }, figure.title),
    useImage ? [renderHatching(figure, layout, pattern), renderImage(figure, layout, colors)] : renderSquares(figure, layout, colors, pattern),
    svg("rect", { x: left, y: top, width: size * figure.columns.length, height: size * figure.rows.length, fill: "none", stroke: toRgbColor(colors.line) }),
    size < 11 ? null : renderNames(figure, layout),
    plain ? null : wrapText(describeLegend(figure, layout.max), width - 2 * MARGIN).map((line, i) =>
      svg("text", { x: MARGIN, y: top + size * figure.rows.length + 24 + i * 18, fill: toRgbColor(colors.soft) }, line)));
}

/** @param {MatrixFigure} figure @param {boolean} plain @returns {Layout} */
function computeLayout(figure, plain) {
  const { rows, columns, values } = figure;
  let max = 0;
  for (const value of values) if (Number.isFinite(value)) max = Math.max(max, Math.abs(value));
  const longest = Math.max(rows.length, columns.length);
  const size = longest > 200 ? 4 : longest > 60 ? 12 : 26;
  const context = getContext();
  context.font = `13px ${FONT}`;
  const measureWidest = (/** @type {string[]} */ texts) => Math.max(20, ...texts.map((text) => context.measureText(text).width));
  const hasNames = size >= 11;
  const margin = plain ? 2 : MARGIN;
  const left = margin + (hasNames ? measureWidest(rows) + 8 : 0);
  const slant = hasNames ? measureWidest(columns) * Math.SQRT1_2 + 14 : 0;
  const top = (plain ? margin : 36) + slant;
  context.font = `600 15px ${FONT}`;
  const matrixWidth = left + size * columns.length + slant;
  const width = Math.ceil(plain ? matrixWidth : Math.max(matrixWidth, context.measureText(figure.title).width + 2 * MARGIN, 420));
  context.font = `13px ${FONT}`;
  const legendHeight = plain ? margin : 24 + 18 * wrapText(describeLegend(figure, max), width - 2 * MARGIN).length;
  return { size, left, top, width, height: Math.ceil(top + size * rows.length + legendHeight), max: max || 1 };
}

/** The meaning of rows, columns and colors. @param {MatrixFigure} figure @param {number} max the largest value */
export function describeLegend(figure, max) {
  const { axes, scale = "unit" } = figure;
  const range = { unit: `No color is 0, full color is ${formatNumber(max)}`, signed: `Orange is ${formatNumber(-max)}, blue is ${formatNumber(max)}`, named: "" }[scale];
  return `${axes ?? "Rows attend to columns; each row sums to 1."} ${[range, describeHatching(figure)].filter(Boolean).join("; ")}.`;
}

/** The meaning of hatched cells, if there are any. @param {MatrixFigure} figure */
function describeHatching({ isMasked, hatched = "masked", scale }) {
  const words = isMasked ? `hatched cells are ${hatched}` : "";
  return scale === "named" ? words.replace("hatched", "Hatched") : words;
}

/** @param {MatrixFigure} figure @param {Layout} layout @param {ReturnType<typeof readPalette>} colors @param {string} pattern */
function renderSquares(figure, { size, left, top, max }, colors, pattern) {
  const { rows, columns, values, isMasked, describe, scale } = figure;
  return rows.flatMap((_, row) => columns.map((_, column) => {
    const value = values[row * columns.length + column];
    const hidden = isMasked?.(row, column);
    const fill = hidden ? `url(#${pattern})` : toRgbColor(getColor(colors, scale, value, max));
    return svg("rect", { x: left + column * size, y: top + row * size, width: size, height: size, fill, "data-value": hidden ? "masked" : value },
      svg("title", null, describe(row, column)));
  }));
}

/** Hatching for masked cells, below an image that leaves them out: one path for all. @param {MatrixFigure} figure @param {Layout} layout @param {string} pattern */
function renderHatching({ rows, columns, isMasked }, { size, left, top }, pattern) {
  if (!isMasked) return null;
  const runs = rows.flatMap((_, row) => findMaskedRuns(row, columns.length, isMasked).map(([from, to]) =>
    `M${left + from * size} ${top + row * size}h${(to - from) * size}v${size}h${(from - to) * size}z`));
  return svg("path", { d: runs.join(""), fill: `url(#${pattern})`, "data-value": "masked" });
}

/** Runs of adjacent masked cells, each as [from, to). @param {number} row @param {number} columns @param {NonNullable<MatrixFigure["isMasked"]>} isMasked */
function findMaskedRuns(row, columns, isMasked) {
  /** @type {[number, number][]} */
  const runs = [];
  for (let column = 0; column < columns; column++) {
    if (!isMasked(row, column)) continue;
    const last = runs[runs.length - 1];
    if (last?.[1] === column) last[1] += 1;
    else runs.push([column, column + 1]);
  }
  return runs;
}

/** One pixel per value, scaled by the viewer; masked cells stay transparent. @param {MatrixFigure} figure @param {Layout} layout @param {ReturnType<typeof readPalette>} colors */
function renderImage({ rows, columns, values, isMasked, scale }, { size, left, top, max }, colors) {
  const canvas = h("canvas", { width: columns.length, height: rows.length });
  const context = canvas.getContext("2d");
  values.forEach((/** @type {number} */ value, /** @type {number} */ i) => {
    const [row, column] = [Math.floor(i / columns.length), i % columns.length];
    if (isMasked?.(row, column)) return;
    context.fillStyle = getColor(colors, scale, value, max);
    context.fillRect(column, row, 1, 1);
  });
  return svg("image", { href: canvas.toDataURL("image/png"), x: left, y: top, width: size * columns.length, height: size * rows.length, preserveAspectRatio: "none", "image-rendering": "pixelated" });
}

/** @param {MatrixFigure} figure @param {Layout} layout */
function renderNames({ rows, columns }, { size, left, top }) {
  return [
    rows.map((name, row) => svg("text", { x: left - 6, y: top + (row + 0.5) * size + 4.5, "text-anchor": "end" }, name)),
    columns.map((name, column) => {
      const [x, y] = [left + (column + 0.6) * size, top - 6];
      return svg("text", { x, y, transform: `rotate(-45 ${x} ${y})` }, name);
    }),
  ];
}

/** Text wrapped into lines, in the current font of the shared context. @param {string} text @param {number} width @returns {string[]} */
export function wrapText(text, width) {
  const context = getContext();
  /** @type {string[]} */
  const lines = [];
  for (const word of text.split(/\s+/)) {
    const longer = lines.length ? `${lines[lines.length - 1]} ${word}` : word;
    if (lines.length && context.measureText(longer).width <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}
