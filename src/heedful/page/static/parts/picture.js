// Pictures to take along: SVG that needs nothing from this page, and PNG drawn from it.

import { h, svg } from "heedful/parts/dom.js";

/** Looks of a drawing that come from style sheets, and must stand in the file itself. */
const LOOKS = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "opacity",
  "font-family", "font-size", "font-weight", "font-style", "text-anchor", "dominant-baseline", "visibility", "display", "direction",
];
const COLOURS = new Set(["fill", "stroke"]);
/** Pixels of the largest PNG. */
const MOST_PIXELS = 32_000_000;
/** What XML cannot hold, not even escaped: control characters and halves of letters. */
const NOT_XML = /[^\t\n\r\u0020-\uD7FF\uE000-\uFFFD\u{10000}-\u{10FFFF}]/gu;

/** @type {WeakMap<HTMLCanvasElement, () => SVGSVGElement>} */
const drawings = new WeakMap();

/** Say how a canvas is drawn as SVG, for those who want it sharp. @param {HTMLCanvasElement} canvas @param {() => SVGSVGElement} make */
export function drawnAs(canvas, make) {
  drawings.set(canvas, make);
}

/** A canvas as SVG: as its owner draws it, or its pixels. @param {HTMLCanvasElement} canvas @returns {SVGElement} */
export function canvasPicture(canvas) {
  const made = drawings.get(canvas)?.();
  const pixels = getComputedStyle(canvas).imageRendering === "pixelated" ? enlarged(canvas) : canvas;
  return made ?? svg("image", { href: pixels.toDataURL("image/png"), width: canvas.clientWidth, height: canvas.clientHeight, preserveAspectRatio: "none" });
}

/** Each pixel as a block, larger than it is shown: programs blur a picture that they have to enlarge. @param {HTMLCanvasElement} canvas */
function enlarged(canvas) {
  const times = (/** @type {number} */ shown, /** @type {number} */ own) => own * Math.max(1, Math.ceil((2 * shown) / own));
  const large = h("canvas", { width: times(canvas.clientWidth, canvas.width), height: times(canvas.clientHeight, canvas.height) });
  const context = large.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(canvas, 0, 0, large.width, large.height);
  return large;
}

/** A copy of a drawing that looks the same without this page's styles. @param {SVGSVGElement} drawing @returns {SVGSVGElement} */
export function inlined(drawing) {
  const copy = /** @type {SVGSVGElement} */ (drawing.cloneNode(true));
  const { width, height } = drawing.getBoundingClientRect();
  const originals = [drawing, ...drawing.querySelectorAll("*")];
  const copies = [copy, ...copy.querySelectorAll("*")];
  originals.forEach((original, i) => dress(copies[i], getComputedStyle(original)));
  if (!copy.hasAttribute("viewBox")) copy.setAttribute("viewBox", `0 0 ${width} ${height}`);
  copy.setAttribute("width", String(width));
  copy.setAttribute("height", String(height));
  return copy;
}

/** @param {Element} element @param {CSSStyleDeclaration} style */
function dress(element, style) {
  for (const name of ["class", "style", "tabindex", "role"]) element.removeAttribute(name);
  for (const name of LOOKS) {
    const value = style.getPropertyValue(name);
    if (value) element.setAttribute(name, COLOURS.has(name) ? plainColour(value) : value);
  }
}

/** A colour as every program reads it; ``none`` and patterns stay. @param {string} colour */
export function plainColour(colour) {
  if (!colour || colour === "none" || colour.startsWith("url")) return colour;
  const context = pen();
  context.fillStyle = "#000000";
  context.fillStyle = colour;
  if (/^(#|rgb)/.test(String(context.fillStyle))) return String(context.fillStyle);
  context.clearRect(0, 0, 1, 1); // a mixed colour, which older programs cannot read
  context.fillRect(0, 0, 1, 1);
  const [red, green, blue, alpha] = context.getImageData(0, 0, 1, 1).data;
  return `rgba(${red}, ${green}, ${blue}, ${(alpha / 255).toFixed(3)})`;
}

/** For measuring words and reading colours. @type {CanvasRenderingContext2D | null} */
let shared = null;
export function pen() {
  shared ??= /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d", { willReadFrequently: true }));
  return shared;
}

/** A picture as the text of a file. @param {SVGSVGElement} picture */
export function svgText(picture) {
  picture.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(picture).replace(NOT_XML, "\uFFFD")}\n`;
}

/** The same as pixels, twice as fine as on the screen. @param {SVGSVGElement} picture @returns {Promise<Blob>} */
export async function pngBlob(picture) {
  const [width, height] = [Number(picture.getAttribute("width")), Number(picture.getAttribute("height"))];
  const fine = Math.min(2, Math.sqrt(MOST_PIXELS / (width * height)));
  const url = URL.createObjectURL(new Blob([svgText(picture)], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = h("canvas", { width: Math.ceil(width * fine), height: Math.ceil(height * fine) });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((done, failed) =>
      canvas.toBlob((/** @type {Blob | null} */ blob) => (blob ? done(blob) : failed(new Error("The picture is too large for a PNG; take the SVG.")))));
  } finally {
    URL.revokeObjectURL(url);
  }
}

/**
 * Buttons that save a drawing as SVG and as PNG.
 * @param {SVGSVGElement | (() => SVGSVGElement)} drawing  one of the page, or a function that gives one
 * @param {string} name  of the file, without its ending
 * @param {string} [what]  is saved, for those who cannot see where the buttons stand
 */
export function pictureButtons(drawing, name, what = "figure") {
  const made = () => {
    const found = typeof drawing === "function" ? drawing() : drawing;
    return onPaper(found.isConnected ? inlined(found) : found);
  };
  return [
    h("button", { type: "button", "aria-label": `Download SVG of the ${what}`, onclick: () => save(`${name}.svg`, "image/svg+xml", svgText(made())) }, "SVG"),
    h("button", { type: "button", "aria-label": `Download PNG of the ${what}`, onclick: async () => save(`${name}.png`, "image/png", await pngBlob(made())) }, "PNG"),
  ];
}

/** On the page's own colour, since what is drawn for dark paper cannot be seen on white. @param {SVGSVGElement} picture */
function onPaper(picture) {
  if (picture.querySelector(":scope > [data-paper]")) return picture;
  const [x, y, width, height] = (picture.getAttribute("viewBox") ?? "0 0 0 0").split(/[\s,]+/).map(Number);
  picture.prepend(paper(x, y, width, height));
  return picture;
}

/** @param {number} x @param {number} y @param {number} width @param {number} height @returns {SVGElement} */
export function paper(x, y, width, height) {
  return svg("rect", { x, y, width, height, fill: plainColour(getComputedStyle(document.body).backgroundColor), "data-paper": "" });
}

/** Give the reader a file. @param {string} name @param {string} type @param {BlobPart} content */
export function save(name, type, content) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
