// The colors of values, from the current theme.

/** Color strength of a category. */
const CATEGORY_STRENGTH = 0.75;

/** The three numbers of a custom property such as ``--weight: 88 28 135``. @param {string} name @returns {number[]} */
function readRgb(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim().split(/\s+/).map(Number);
}

/** The colors for canvases; read again for every drawing, since the theme may change. */
export function readPalette() {
  const [paper, weight, plus, minus] = ["--paper-rgb", "--weight-rgb", "--plus-rgb", "--minus-rgb"].map(readRgb);
  const style = getComputedStyle(document.documentElement);
  const readProperty = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  return {
    ink: readProperty("--ink"),
    soft: readProperty("--soft"),
    line: readProperty("--line"),
    focus: readProperty("--focus"),
    paper: `rgb(${paper.join(" ")})`,
    /** A weight from 0 to 1: one hue. @param {number} share */
    unit: (share) => mixColors(paper, weight, Math.min(1, Math.max(0, share))),
    /** A signed number from -1 to 1: orange below, blue above. @param {number} share */
    signed: (share) => mixColors(paper, share < 0 ? minus : plus, Math.min(1, Math.abs(share))),
    /** One of a few categories. @param {number} index */
    named: (index) => mixColors(paper, [weight, plus, minus][index], CATEGORY_STRENGTH),
  };
}

/** The color of a figure's value. @param {ReturnType<typeof readPalette>} colors @param {"unit" | "signed" | "named" | undefined} scale @param {number} value @param {number} max the largest value */
export function getColor(colors, scale, value, max) {
  return scale === "named" ? colors.named(value) : scale === "signed" ? colors.signed(value / max) : colors.unit(value / max);
}

/** @param {number[]} from @param {number[]} to @param {number} share */
function mixColors(from, to, share) {
  return `rgb(${from.map((value, i) => Math.round(value + (to[i] - value) * share)).join(" ")})`;
}
