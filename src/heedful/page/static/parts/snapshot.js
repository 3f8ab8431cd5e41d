// Any part of the page as SVG: boxes, words and drawings stand where the browser has put them.
// No view needs to know of it. Words stay words, so that numbers can be copied out of the picture.

import { svg } from "heedful/parts/dom.js";
import { wrapped } from "heedful/parts/matrix_picture.js";
import { canvasPicture, inlined, paper, pen, plainColour } from "heedful/parts/picture.js";

const MARGIN = 16;
const LINE = 22;
const DASHES = "5 3";
/** While a picture is taken: style sheets hide what belongs to the page alone (controls), so that no gaps stay behind. */
const PICTURED = "being-pictured";

/**
 * @param {HTMLElement[]} parts  what is pictured, one below the other
 * @param {string} title @param {string[]} lines  what stands above them
 * @returns {SVGSVGElement}
 */
export function snapshot(parts, title, lines) {
  const root = document.documentElement;
  const { scrollX, scrollY } = window;
  root.classList.add(PICTURED);
  try {
    return drawn(parts, title, lines);
  } finally {
    root.classList.remove(PICTURED);
    window.scrollTo({ left: scrollX, top: scrollY, behavior: "instant" }); // with less on it the page was shorter
  }
}

/** @param {HTMLElement[]} parts @param {string} title @param {string[]} lines @returns {SVGSVGElement} */
function drawn(parts, title, lines) {
  const boxes = parts.map((part) => part.getBoundingClientRect());
  const widest = Math.max(...parts.map((part) => part.scrollWidth));
  const width = Math.ceil(widest + 2 * MARGIN);
  pen().font = "14px system-ui, sans-serif";
  const above = lines.flatMap((line) => wrapped(line, widest));
  const top = 2 * MARGIN + LINE * (above.length + 1);
  const height = Math.ceil(top + boxes.reduce((sum, box) => sum + box.height + MARGIN, 0));
  const ink = plainColour(getComputedStyle(parts[0]).color);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "font-family": "system-ui, sans-serif" },
    svg("title", null, title), svg("desc", null, lines.join("\n")), paper(0, 0, width, height),
    svg("text", { x: MARGIN, y: MARGIN + 16, "font-size": 18, "font-weight": 600, fill: ink }, title),
    above.map((line, i) => svg("text", { x: MARGIN, y: MARGIN + 16 + LINE * (i + 1), "font-size": 14, fill: ink }, line)));
  let below = top;
  parts.forEach((part, i) => {
    draw(part, picture, { x: MARGIN - boxes[i].left, y: below - boxes[i].top });
    below += boxes[i].height + MARGIN;
  });
  return picture;
}

/** @typedef {{x: number, y: number}} Shift  from the window to the picture */

/** @param {Element} element @param {SVGElement} into @param {Shift} shift */
function draw(element, into, shift) {
  const style = getComputedStyle(element);
  if (!element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) return;
  const box = element.getBoundingClientRect();
  const [x, y] = [box.left + shift.x, box.top + shift.y];
  if (box.width === 0 && box.height === 0 && style.display !== "contents") return;
  if (style.clipPath === "inset(50%)") return; // for screen readers only
  if (element instanceof SVGSVGElement) return into.append(placed(inlined(element), x, y, box));
  frame(style, into, x, y, box);
  if (element instanceof HTMLCanvasElement) return into.append(placed(canvasPicture(element), x + element.clientLeft, y + element.clientTop, { width: element.clientWidth, height: element.clientHeight }));
  sample(element, style, into, x, y, box);
  const typed = typedText(element);
  if (typed !== null) return words(typed, style, into, { left: x + parseFloat(style.paddingLeft), top: y + (box.height - parseFloat(style.fontSize) * 1.2) / 2, width: box.width, height: parseFloat(style.fontSize) * 1.2 });
  const inner = clipped(element, style) ? opening(into, x, y, box) : into;
  for (const child of element.childNodes) {
    if (child instanceof Element) draw(child, inner, shift);
    else if (child instanceof Text) lettered(child, style, inner, shift);
  }
}

/** @param {SVGElement} picture @param {number} x @param {number} y @param {{width: number, height: number}} box */
function placed(picture, x, y, box) {
  for (const [name, value] of Object.entries({ x, y, width: box.width, height: box.height })) picture.setAttribute(name, String(value));
  return picture;
}

/** @param {Element} element @param {CSSStyleDeclaration} style */
function clipped(element, style) {
  const larger = element.scrollWidth > element.clientWidth + 1 || element.scrollHeight > element.clientHeight + 1;
  return larger && (style.overflowX !== "visible" || style.overflowY !== "visible");
}

/** A part that shows no more than the box. @param {SVGElement} into @param {number} x @param {number} y @param {DOMRect} box */
function opening(into, x, y, { width, height }) {
  const inner = svg("svg", { x, y, width, height, viewBox: `${x} ${y} ${width} ${height}` });
  into.append(inner);
  return inner;
}

/** What a style sheet puts before the words: the sample of a line in a legend, or a sign. @param {Element} element @param {CSSStyleDeclaration} around @param {SVGElement} into @param {number} x @param {number} y @param {DOMRect} box */
function sample(element, around, into, x, y, { height }) {
  const style = getComputedStyle(element, "::before");
  const text = style.content.match(/^"(.*)"$/)?.[1];
  if (text === undefined || style.position === "absolute") return;
  const left = x + parseFloat(around.paddingLeft);
  if (text) words(text, style, into, { left, top: y + parseFloat(around.paddingTop), width: 0, height: parseFloat(style.fontSize) * 1.4 });
  else frame(style, into, left, y + height / 2, { width: parseFloat(style.width) || 0, height: parseFloat(style.height) || 0 });
}

/** Background and borders. @param {CSSStyleDeclaration} style @param {SVGElement} into @param {number} x @param {number} y @param {{width: number, height: number}} box */
function frame(style, into, x, y, { width, height }) {
  const sides = ["Top", "Right", "Bottom", "Left"].map((side) => ({
    wide: style.getPropertyValue(`border-${side.toLowerCase()}-style`) === "none" ? 0 : parseFloat(style.getPropertyValue(`border-${side.toLowerCase()}-width`)),
    colour: style.getPropertyValue(`border-${side.toLowerCase()}-color`),
    dashes: style.getPropertyValue(`border-${side.toLowerCase()}-style`) === "dashed" ? DASHES : null,
  }));
  const visible = (/** @type {string} */ colour) => !/^(transparent|rgba\(.*, 0\))$/.test(colour);
  const even = sides.every(({ wide, colour }) => wide === sides[0].wide && colour === sides[0].colour);
  const outlined = even && sides[0].wide > 0 && visible(sides[0].colour);
  if (visible(style.backgroundColor) || outlined) {
    const inset = outlined ? sides[0].wide / 2 : 0;
    into.append(svg("rect", {
      x: x + inset, y: y + inset, width: Math.max(0, width - 2 * inset), height: Math.max(0, height - 2 * inset), rx: Math.min(parseFloat(style.borderTopLeftRadius) || 0, height / 2),
      fill: visible(style.backgroundColor) ? plainColour(style.backgroundColor) : "none", stroke: outlined ? plainColour(sides[0].colour) : null, "stroke-width": outlined ? sides[0].wide : null, "stroke-dasharray": outlined ? sides[0].dashes : null,
    }));
  }
  bar(style, into, x, y, { width, height });
  if (even) return;
  const [right, bottom] = [x + width, y + height];
  const ends = [[x, y, right, y], [right, y, right, bottom], [x, bottom, right, bottom], [x, y, x, bottom]];
  sides.forEach(({ wide, colour, dashes }, i) => {
    const [x1, y1, x2, y2] = ends[i];
    if (wide > 0 && visible(colour)) into.append(svg("line", { x1, y1, x2, y2, stroke: plainColour(colour), "stroke-width": wide, "stroke-dasharray": dashes }));
  });
}

/** A gradient from a colour to nothing is a bar. @param {CSSStyleDeclaration} style @param {SVGElement} into @param {number} x @param {number} y @param {{width: number, height: number}} box */
function bar(style, into, x, y, { width, height }) {
  const found = style.backgroundImage.match(/^linear-gradient\((?:to right|90deg), (.+) ([\d.e-]+)%, rgba\(0, 0, 0, 0\) 0(?:px|%)?\)$/);
  if (!found) return;
  const filled = (width * Math.min(100, Number(found[2]))) / 100;
  const round = Math.min(parseFloat(style.borderTopLeftRadius) || 0, height / 2, filled / 2);
  into.append(svg("rect", { x, y, width: filled, height, rx: round || null, fill: plainColour(found[1]) }));
}

/** What stands in a field, which is no text of the page; null if it is none. @param {Element} element */
function typedText(element) {
  if (element instanceof HTMLSelectElement) return element.selectedOptions[0]?.text ?? "";
  if (element instanceof HTMLInputElement) return element.type === "checkbox" || element.type === "radio" ? (element.checked ? "☑" : "☐") : element.value;
  return element instanceof HTMLTextAreaElement ? element.value : null;
}

/** The words of a text, line by line. @param {Text} text @param {CSSStyleDeclaration} style @param {SVGElement} into @param {Shift} shift */
function lettered(text, style, into, shift) {
  if (!text.data.trim()) return;
  const range = document.createRange();
  range.selectNodeContents(text);
  const one = range.getClientRects().length === 1;
  for (const match of text.data.matchAll(one ? /\S(?:.*\S)?/gs : /\S+/g)) {
    for (const [part, box] of inLines(text, match.index, match[0])) {
      words(part.replace(/\s+/g, " "), style, into, { left: box.left + shift.x, top: box.top + shift.y, width: box.width, height: box.height });
    }
  }
}

/** A word with its place, line by line if it goes on in the next one (after a hyphen). @param {Text} text @param {number} start @param {string} word @returns {[string, DOMRect][]} */
function inLines(text, start, word) {
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

/** @param {string} text @param {CSSStyleDeclaration} style @param {SVGElement} into @param {{left: number, top: number, width: number, height: number}} box */
function words(text, style, into, { left, top, width, height }) {
  const context = pen();
  context.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  const { fontBoundingBoxAscent: ascent, fontBoundingBoxDescent: descent } = context.measureText(text);
  const backwards = style.direction === "rtl";
  into.append(svg("text", {
    x: backwards ? left + width : left, y: top + (height * ascent) / (ascent + descent), fill: plainColour(style.color), direction: backwards ? "rtl" : null,
    "font-family": style.fontFamily, "font-size": style.fontSize, "font-weight": style.fontWeight === "400" ? null : style.fontWeight,
    "font-style": style.fontStyle === "normal" ? null : style.fontStyle, "text-decoration": style.textDecorationLine === "none" ? null : style.textDecorationLine,
  }, style.textTransform === "uppercase" ? text.toUpperCase() : text));
}
