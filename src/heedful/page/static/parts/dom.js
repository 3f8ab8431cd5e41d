// Elements in one line.

/** @typedef {Node | string | number | null | undefined | false | Child[]} Child */

/**
 * An element with properties (``on...`` are listeners, names with - and ``role`` are attributes) and children.
 * @param {string} tag @param {Record<string, any> | null} [properties] @param {...Child} children
 * @returns {any}
 */
export function h(tag, properties, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** The same in SVG. @param {string} tag @param {Record<string, any> | null} [properties] @param {...Child} children @returns {any} */
export function svg(tag, properties, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, String(value));
  }
  append(element, children);
  return element;
}

/** @param {HTMLElement} element @param {Record<string, any> | null | undefined} properties @param {Child[]} children */
function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "style") element.style.cssText = value;
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name.includes("-") || name === "role" || name === "for" || name === "list") element.setAttribute(name, value);
    else /** @type {any} */ (element)[name] = value;
  }
  append(element, children);
  return element;
}

/** @param {Element} element @param {Child[]} children */
function append(element, children) {
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(typeof child === "number" ? String(child) : /** @type {Node | string} */ (child));
  }
}

/** A number as people read it: four decimals, or powers of ten if there would be nothing left. @param {number} value @param {number} [digits] */
export function shown(value, digits = 4) {
  if (!Number.isFinite(value)) return value === -Infinity ? "−∞" : String(value);
  const plain = value.toFixed(digits);
  const text = value !== 0 && Number(plain) === 0 ? value.toExponential(1) : plain;
  return text.replace("-", "−");
}

const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;

/** A word within a plain text: one from right to left does not turn its surroundings round. @param {string} word */
export function isolated(word) {
  return RIGHT_TO_LEFT.test(word) ? `\u2068${word}\u2069` : word;
}

/** A share in percent; what is nearly all or nearly nothing is not rounded to all or nothing. @param {number} value */
export function percent(value) {
  if (value > 0 && value < 0.0001) return "<0.01%";
  if (value >= 0.995 && value < 1) return value > 0.9999 ? ">99.99%" : `${(Math.floor(value * 1e4) / 100).toFixed(2)}%`;
  return `${(value * 100).toFixed(value >= 0.1 || value === 0 ? 0 : value >= 0.01 ? 1 : 2)}%`;
}
