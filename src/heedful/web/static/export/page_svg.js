// Any part of the page as SVG: boxes, text and drawings at the positions of the browser's layout.
// Views need not know about it. Text stays text, so numbers can be copied from the image.

import { wrapText } from "heedful/export/matrix_svg.js";
import { createBackground, getContext, inlineStyles, renderCanvas, toRgbColor } from "heedful/export/svg.js";
import { svg } from "heedful/parts/dom.js";

const MARGIN = 16;
const LINE = 22;
const DASHES = "5 3";
/** Set during an export: style sheets hide controls, so that they leave no gaps. */
const EXPORTING = "exporting";

/**
 * @param {HTMLElement[]} parts  elements to export, one below the other
 * @param {string} title @param {string[]} lines  text above them
 * @returns {SVGSVGElement}
 */
export function renderElements(parts, title, lines) {
  const root = document.documentElement;
  const { scrollX, scrollY } = window;
  root.classList.add(EXPORTING);
  try {
    return layOut(parts, title, lines);
  } finally {
    root.classList.remove(EXPORTING);
    window.scrollTo({ left: scrollX, top: scrollY, behavior: "instant" }); // the page was shorter during the export
  }
}

/** @param {HTMLElement[]} parts @param {string} title @param {string[]} lines @returns {SVGSVGElement} */
function layOut(parts, title, lines) {
  const boxes = parts.map((part) => part.getBoundingClientRect());
  const contentWidth = Math.max(...parts.map((part) => part.scrollWidth));
  const width = Math.ceil(contentWidth + 2 * MARGIN);
  getContext().font = "14px system-ui, sans-serif";
  const headerLines = lines.flatMap((line) => wrapText(line, contentWidth));
  const top = 2 * MARGIN + LINE * (headerLines.length + 1);
  const height = Math.ceil(top + boxes.reduce((sum, box) => sum + box.height + MARGIN, 0));
  const ink = toRgbColor(getComputedStyle(parts[0]).color);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "font-family": "system-ui, sans-serif" },
    svg("title", null, title), svg("desc", null, lines.join("\n")), createBackground(0, 0, width, height),
    svg("text", { x: MARGIN, y: MARGIN + 16, "font-size": 18, "font-weight": 600, fill: ink }, title),
    headerLines.map((line, i) => svg("text", { x: MARGIN, y: MARGIN + 16 + LINE * (i + 1), "font-size": 14, fill: ink }, line)));
  let offset = top;
  parts.forEach((part, i) => {
    drawElement(part, picture, { x: MARGIN - boxes[i].left, y: offset - boxes[i].top });
    offset += boxes[i].height + MARGIN;
  });
  return picture;
}

/** @typedef {{x: number, y: number}} Offset  from the window to the picture */

/** @param {Element} element @param {SVGElement} parent @param {Offset} offset */
function drawElement(element, parent, offset) {
  const style = getComputedStyle(element);
  if (!element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) return;
  const box = element.getBoundingClientRect();
  const [x, y] = [box.left + offset.x, box.top + offset.y];
  if (box.width === 0 && box.height === 0 && style.display !== "contents") return;
  if (style.clipPath === "inset(50%)") return; // for screen readers only
  if (element instanceof SVGSVGElement) return parent.append(setBounds(inlineStyles(element), x, y, box));
  drawBox(style, parent, x, y, box);
  if (element instanceof HTMLCanvasElement) return parent.append(setBounds(renderCanvas(element), x + element.clientLeft, y + element.clientTop, { width: element.clientWidth, height: element.clientHeight }));
  drawBefore(element, style, parent, x, y, box);
  const fieldText = getFieldText(element);
  if (fieldText !== null) return drawWords(fieldText, style, parent, { left: x + parseFloat(style.paddingLeft), top: y + (box.height - parseFloat(style.fontSize) * 1.2) / 2, width: box.width, height: parseFloat(style.fontSize) * 1.2 });
  const inner = isClipped(element, style) ? createClip(parent, x, y, box) : parent;
  for (const child of element.childNodes) {
    if (child instanceof Element) drawElement(child, inner, offset);
    else if (child instanceof Text) drawText(child, style, inner, offset);
  }
}

/** @param {SVGElement} picture @param {number} x @param {number} y @param {{width: number, height: number}} box */
function setBounds(picture, x, y, box) {
  for (const [name, value] of Object.entries({ x, y, width: box.width, height: box.height })) picture.setAttribute(name, String(value));
  return picture;
}

/** @param {Element} element @param {CSSStyleDeclaration} style */
function isClipped(element, style) {
  const larger = element.scrollWidth > element.clientWidth + 1 || element.scrollHeight > element.clientHeight + 1;
  return larger && (style.overflowX !== "visible" || style.overflowY !== "visible");
}

/** A nested SVG that clips its content to the box. @param {SVGElement} parent @param {number} x @param {number} y @param {DOMRect} box */
function createClip(parent, x, y, { width, height }) {
  const inner = svg("svg", { x, y, width, height, viewBox: `${x} ${y} ${width} ${height}` });
  parent.append(inner);
  return inner;
}

/** Generated ::before content: the line sample of a legend, or a symbol. @param {Element} element @param {CSSStyleDeclaration} elementStyle @param {SVGElement} parent @param {number} x @param {number} y @param {DOMRect} box */
function drawBefore(element, elementStyle, parent, x, y, { height }) {
  const style = getComputedStyle(element, "::before");
  const text = style.content.match(/^"(.*)"$/)?.[1];
  if (text === undefined || style.position === "absolute") return;
  const left = x + parseFloat(elementStyle.paddingLeft);
  if (text) drawWords(text, style, parent, { left, top: y + parseFloat(elementStyle.paddingTop), width: 0, height: parseFloat(style.fontSize) * 1.4 });
  else drawBox(style, parent, left, y + height / 2, { width: parseFloat(style.width) || 0, height: parseFloat(style.height) || 0 });
}

/** Background and borders. @param {CSSStyleDeclaration} style @param {SVGElement} parent @param {number} x @param {number} y @param {{width: number, height: number}} box */
function drawBox(style, parent, x, y, { width, height }) {
  const sides = ["Top", "Right", "Bottom", "Left"].map((side) => ({
    width: style.getPropertyValue(`border-${side.toLowerCase()}-style`) === "none" ? 0 : parseFloat(style.getPropertyValue(`border-${side.toLowerCase()}-width`)),
    color: style.getPropertyValue(`border-${side.toLowerCase()}-color`),
    dashes: style.getPropertyValue(`border-${side.toLowerCase()}-style`) === "dashed" ? DASHES : null,
  }));
  const isVisible = (/** @type {string} */ color) => !/^(transparent|rgba\(.*, 0\))$/.test(color);
  const isUniform = sides.every(({ width, color }) => width === sides[0].width && color === sides[0].color);
  const hasOutline = isUniform && sides[0].width > 0 && isVisible(sides[0].color);
  if (isVisible(style.backgroundColor) || hasOutline) {
    const inset = hasOutline ? sides[0].width / 2 : 0;
    parent.append(svg("rect", {
      x: x + inset, y: y + inset, width: Math.max(0, width - 2 * inset), height: Math.max(0, height - 2 * inset), rx: Math.min(parseFloat(style.borderTopLeftRadius) || 0, height / 2),
      fill: isVisible(style.backgroundColor) ? toRgbColor(style.backgroundColor) : "none", stroke: hasOutline ? toRgbColor(sides[0].color) : null, "stroke-width": hasOutline ? sides[0].width : null, "stroke-dasharray": hasOutline ? sides[0].dashes : null,
    }));
  }
  drawBar(style, parent, x, y, { width, height });
  if (isUniform) return;
  const [right, bottom] = [x + width, y + height];
  const ends = [[x, y, right, y], [right, y, right, bottom], [x, bottom, right, bottom], [x, y, x, bottom]];
  sides.forEach(({ width: borderWidth, color, dashes }, i) => {
    const [x1, y1, x2, y2] = ends[i];
    if (borderWidth > 0 && isVisible(color)) parent.append(svg("line", { x1, y1, x2, y2, stroke: toRgbColor(color), "stroke-width": borderWidth, "stroke-dasharray": dashes }));
  });
}

/** A gradient from a color to transparent is a bar. @param {CSSStyleDeclaration} style @param {SVGElement} parent @param {number} x @param {number} y @param {{width: number, height: number}} box */
function drawBar(style, parent, x, y, { width, height }) {
  const match = style.backgroundImage.match(/^linear-gradient\((?:to right|90deg), (.+) ([\d.e-]+)%, rgba\(0, 0, 0, 0\) 0(?:px|%)?\)$/);
  if (!match) return;
  const barWidth = (width * Math.min(100, Number(match[2]))) / 100;
  const radius = Math.min(parseFloat(style.borderTopLeftRadius) || 0, height / 2, barWidth / 2);
  parent.append(svg("rect", { x, y, width: barWidth, height, rx: radius || null, fill: toRgbColor(match[1]) }));
}

/** The content of a form field; null for other elements. @param {Element} element */
function getFieldText(element) {
  if (element instanceof HTMLSelectElement) return element.selectedOptions[0]?.text ?? "";
  if (element instanceof HTMLInputElement) return element.type === "checkbox" || element.type === "radio" ? (element.checked ? "☑" : "☐") : element.value;
  return element instanceof HTMLTextAreaElement ? element.value : null;
}

/** A text node, line by line. @param {Text} text @param {CSSStyleDeclaration} style @param {SVGElement} parent @param {Offset} offset */
function drawText(text, style, parent, offset) {
  if (!text.data.trim()) return;
  const range = document.createRange();
  range.selectNodeContents(text);
  const isSingleLine = range.getClientRects().length === 1;
  for (const match of text.data.matchAll(isSingleLine ? /\S(?:.*\S)?/gs : /\S+/g)) {
    for (const [part, box] of splitLines(text, match.index, match[0])) {
      drawWords(part.replace(/\s+/g, " "), style, parent, { left: box.left + offset.x, top: box.top + offset.y, width: box.width, height: box.height });
    }
  }
}

/** The lines of a word with their boxes; a word may break after a hyphen. @param {Text} text @param {number} start @param {string} word @returns {[string, DOMRect][]} */
function splitLines(text, start, word) {
  const range = document.createRange();
  const boxes = (/** @type {number} */ from, /** @type {number} */ to) => {
    range.setStart(text, from);
    range.setEnd(text, to);
    return range.getClientRects();
  };
  /** @type {[string, DOMRect][]} */
  const lines = [];
  const end = start + word.length;
  for (let from = start; from < end; ) {
    let to = end;
    while (to > from + 1 && boxes(from, to).length > 1) to--;
    lines.push([text.data.slice(from, to), boxes(from, to)[0]]);
    from = to;
  }
  return lines.filter(([, box]) => box);
}

/** @param {string} text @param {CSSStyleDeclaration} style @param {SVGElement} parent @param {{left: number, top: number, width: number, height: number}} box */
function drawWords(text, style, parent, { left, top, width, height }) {
  const context = getContext();
  context.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  const { fontBoundingBoxAscent: ascent, fontBoundingBoxDescent: descent } = context.measureText(text);
  const isRtl = style.direction === "rtl";
  parent.append(svg("text", {
    x: isRtl ? left + width : left, y: top + (height * ascent) / (ascent + descent), fill: toRgbColor(style.color), direction: isRtl ? "rtl" : null,
    "font-family": style.fontFamily, "font-size": style.fontSize, "font-weight": style.fontWeight === "400" ? null : style.fontWeight,
    "font-style": style.fontStyle === "normal" ? null : style.fontStyle, "text-decoration": style.textDecorationLine === "none" ? null : style.textDecorationLine,
  }, style.textTransform === "uppercase" ? text.toUpperCase() : text));
}
