// DOM helpers: elements, number formats, and updates that keep the focus.

/** @typedef {Node | string | number | null | undefined | false | Child[]} Child */

/**
 * An element with properties (``on...`` are listeners, names with - and ``role`` are attributes) and children.
 * @param {string} tag @param {Record<string, any> | null} [properties] @param {...Child} children
 * @returns {any}
 */
export function h(tag, properties, ...children) {
  return applyProperties(document.createElement(tag), properties, children);
}

/** An SVG element. @param {string} tag @param {Record<string, any> | null} [properties] @param {...Child} children @returns {any} */
export function svg(tag, properties, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, String(value));
  }
  appendChildren(element, children);
  return element;
}

/** @param {HTMLElement} element @param {Record<string, any> | null | undefined} properties @param {Child[]} children */
function applyProperties(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "style") element.style.cssText = value;
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name.includes("-") || name === "role" || name === "for" || name === "list") element.setAttribute(name, value);
    else /** @type {any} */ (element)[name] = value;
  }
  appendChildren(element, children);
  return element;
}

/** @param {Element} element @param {Child[]} children */
function appendChildren(element, children) {
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(typeof child === "number" ? String(child) : /** @type {Node | string} */ (child));
  }
}

/** A number for display: four decimals, or scientific notation if they would all be zero. @param {number} value @param {number} [digits] */
export function formatNumber(value, digits = 4) {
  if (!Number.isFinite(value)) return value === -Infinity ? "−∞" : String(value);
  const fixed = value.toFixed(digits);
  const text = value !== 0 && Number(fixed) === 0 ? value.toExponential(1) : fixed;
  return text.replace("-", "−");
}

const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;

/** A word within plain text: right-to-left words do not reorder their surroundings. @param {string} word */
export function isolateDirection(word) {
  return RIGHT_TO_LEFT.test(word) ? `\u2068${word}\u2069` : word;
}

/** A fraction as a percentage; values close to 0 or 1 are not rounded to 0% or 100%. @param {number} value */
export function formatPercent(value) {
  if (value > 0 && value < 0.0001) return "<0.01%";
  if (value >= 0.995 && value < 1) return value > 0.9999 ? ">99.99%" : `${(Math.floor(value * 1e4) / 100).toFixed(2)}%`;
  return `${(value * 100).toFixed(value >= 0.1 || value === 0 ? 0 : value >= 0.01 ? 1 : 2)}%`;
}

/**
 * Replace the children of a host; if a control had the focus, the new control of the same name gets it.
 * @param {HTMLElement} host @param {...(Node | string)} children
 */
export function updateChildren(host, ...children) {
  const active = /** @type {HTMLElement | null} */ (document.activeElement);
  const focusedName = active && active !== host && host.contains(active) ? getControlName(active) : null;
  host.replaceChildren(...children);
  if (focusedName === null) return;
  const controls = /** @type {NodeListOf<HTMLElement>} */ (host.querySelectorAll("button, select, input, a, summary, [tabindex]"));
  [...controls].find((control) => getControlName(control) === focusedName)?.focus({ preventScroll: true });
}

/** The name of a control, without its value. @param {HTMLElement} control */
function getControlName(control) {
  const label = control.dataset.name ?? control.getAttribute("aria-label") ?? control.closest("label")?.firstElementChild?.textContent ?? control.textContent;
  return `${control.tagName} ${label}`;
}
