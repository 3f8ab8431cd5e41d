// Images for download: self-contained SVG, and PNG rendered from it.

import { h, svg } from "heedful/parts/dom.js";

/** Properties that come from style sheets and must be inlined. */
const SVG_PROPERTIES = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "opacity",
  "font-family", "font-size", "font-weight", "font-style", "text-anchor", "dominant-baseline", "visibility", "display", "direction",
];
const COLOR_PROPERTIES = new Set(["fill", "stroke"]);
/** Pixels of the largest PNG. */
const MAX_PIXELS = 32_000_000;
/** Characters that XML cannot represent, even escaped: control characters and lone surrogates. */
const INVALID_XML = /[^\t\n\r\u0020-\uD7FF\uE000-\uFFFD\u{10000}-\u{10FFFF}]/gu;

/** @type {WeakMap<HTMLCanvasElement, () => SVGSVGElement>} */
const svgRenderers = new WeakMap();

/** Register how to draw a canvas as SVG instead of pixels. @param {HTMLCanvasElement} canvas @param {() => SVGSVGElement} render */
export function registerSvg(canvas, render) {
  svgRenderers.set(canvas, render);
}

/** A canvas as SVG: from its registered renderer, or as pixels. @param {HTMLCanvasElement} canvas @returns {SVGElement} */
export function renderCanvas(canvas) {
  const drawing = svgRenderers.get(canvas)?.();
  const pixels = getComputedStyle(canvas).imageRendering === "pixelated" ? enlargePixels(canvas) : canvas;
  return drawing ?? svg("image", { href: pixels.toDataURL("image/png"), width: canvas.clientWidth, height: canvas.clientHeight, preserveAspectRatio: "none" });
}

/** Scale each pixel up to a block: image viewers blur pixels when they scale. @param {HTMLCanvasElement} canvas */
function enlargePixels(canvas) {
  const scaleUp = (/** @type {number} */ displaySize, /** @type {number} */ pixelSize) => pixelSize * Math.max(1, Math.ceil((2 * displaySize) / pixelSize));
  const large = h("canvas", { width: scaleUp(canvas.clientWidth, canvas.width), height: scaleUp(canvas.clientHeight, canvas.height) });
  const context = large.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(canvas, 0, 0, large.width, large.height);
  return large;
}

/** A copy of a drawing with all styles inlined. @param {SVGSVGElement} drawing @returns {SVGSVGElement} */
export function inlineStyles(drawing) {
  const copy = /** @type {SVGSVGElement} */ (drawing.cloneNode(true));
  const { width, height } = drawing.getBoundingClientRect();
  const originals = [drawing, ...drawing.querySelectorAll("*")];
  const copies = [copy, ...copy.querySelectorAll("*")];
  originals.forEach((original, i) => applyStyles(copies[i], getComputedStyle(original)));
  if (!copy.hasAttribute("viewBox")) copy.setAttribute("viewBox", `0 0 ${width} ${height}`);
  copy.setAttribute("width", String(width));
  copy.setAttribute("height", String(height));
  return copy;
}

/** @param {Element} element @param {CSSStyleDeclaration} style */
function applyStyles(element, style) {
  for (const name of ["class", "style", "tabindex", "role"]) element.removeAttribute(name);
  for (const name of SVG_PROPERTIES) {
    const value = style.getPropertyValue(name);
    if (value) element.setAttribute(name, COLOR_PROPERTIES.has(name) ? toRgbColor(value) : value);
  }
}

/** A color in a notation that every program supports; ``none`` and patterns stay. @param {string} color */
export function toRgbColor(color) {
  if (!color || color === "none" || color.startsWith("url")) return color;
  const context = getContext();
  context.fillStyle = "#000000";
  context.fillStyle = color;
  if (/^(#|rgb)/.test(String(context.fillStyle))) return String(context.fillStyle);
  context.clearRect(0, 0, 1, 1); // color-mix(), which older programs cannot read
  context.fillRect(0, 0, 1, 1);
  const [red, green, blue, alpha] = context.getImageData(0, 0, 1, 1).data;
  return `rgba(${red}, ${green}, ${blue}, ${(alpha / 255).toFixed(3)})`;
}

/** For measuring text and parsing colors. @type {CanvasRenderingContext2D | null} */
let sharedContext = null;
export function getContext() {
  sharedContext ??= /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d", { willReadFrequently: true }));
  return sharedContext;
}

/** An SVG image as file content. @param {SVGSVGElement} picture */
export function serializeSvg(picture) {
  picture.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(picture).replace(INVALID_XML, "\uFFFD")}\n`;
}

/** The image as PNG, at twice the screen resolution. @param {SVGSVGElement} picture @returns {Promise<Blob>} */
export async function renderPng(picture) {
  const [width, height] = [Number(picture.getAttribute("width")), Number(picture.getAttribute("height"))];
  const scale = Math.min(2, Math.sqrt(MAX_PIXELS / (width * height)));
  const url = URL.createObjectURL(new Blob([serializeSvg(picture)], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = h("canvas", { width: Math.ceil(width * scale), height: Math.ceil(height * scale) });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((done, failed) =>
      canvas.toBlob((/** @type {Blob | null} */ blob) => (blob ? done(blob) : failed(new Error("The image is too large for a PNG; use the SVG.")))));
  } finally {
    URL.revokeObjectURL(url);
  }
}

/**
 * Buttons that save a drawing as SVG and as PNG.
 * @param {SVGSVGElement | (() => SVGSVGElement)} drawing  an element of the page, or a function that returns one
 * @param {string} name  file name without extension
 * @param {string} [subject]  what is saved, for the accessible label
 */
export function createImageButtons(drawing, name, subject = "figure") {
  const render = () => {
    const source = typeof drawing === "function" ? drawing() : drawing;
    return addBackground(source.isConnected ? inlineStyles(source) : source);
  };
  return [
    h("button", { type: "button", "aria-label": `Download SVG of the ${subject}`, onclick: () => saveFile(`${name}.svg`, "image/svg+xml", serializeSvg(render())) }, "SVG"),
    h("button", { type: "button", "aria-label": `Download PNG of the ${subject}`, onclick: async () => saveFile(`${name}.png`, "image/png", await renderPng(render())) }, "PNG"),
  ];
}

/** On the page's background color: a drawing for the dark theme is invisible on white. @param {SVGSVGElement} picture */
function addBackground(picture) {
  if (picture.querySelector(":scope > [data-background]")) return picture;
  const [x, y, width, height] = (picture.getAttribute("viewBox") ?? "0 0 0 0").split(/[\s,]+/).map(Number);
  picture.prepend(createBackground(x, y, width, height));
  return picture;
}

/** @param {number} x @param {number} y @param {number} width @param {number} height @returns {SVGElement} */
export function createBackground(x, y, width, height) {
  return svg("rect", { x, y, width, height, fill: toRgbColor(getComputedStyle(document.body).backgroundColor), "data-background": "" });
}

/** Download a file. @param {string} name @param {string} type @param {BlobPart} content */
export function saveFile(name, type, content) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
