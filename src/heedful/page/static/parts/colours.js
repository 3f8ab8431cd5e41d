// The colours of numbers, as the theme has them.

/** How strong the colour of a name is. */
const NAMED = 0.75;

/** Three numbers of a custom property such as ``--weight: 88 28 135``. @param {string} name @returns {number[]} */
function triple(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim().split(/\s+/).map(Number);
}

/** What canvases are drawn with; read again for every drawing, since the theme may change. */
export function palette() {
  const [paper, weight, plus, minus] = ["--paper-rgb", "--weight-rgb", "--plus-rgb", "--minus-rgb"].map(triple);
  const style = getComputedStyle(document.documentElement);
  const read = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
  return {
    ink: read("--ink"),
    soft: read("--soft"),
    line: read("--line"),
    focus: read("--focus"),
    paper: `rgb(${paper.join(" ")})`,
    /** A weight from 0 to 1: one hue. @param {number} share */
    unit: (share) => mixed(paper, weight, Math.min(1, Math.max(0, share))),
    /** A signed number from -1 to 1: orange below, blue above. @param {number} share */
    signed: (share) => mixed(paper, share < 0 ? minus : plus, Math.min(1, Math.abs(share))),
    /** One of a few names. @param {number} place */
    named: (place) => mixed(paper, [weight, plus, minus][place], NAMED),
  };
}

/** The colour of a number of a figure. @param {ReturnType<typeof palette>} colours @param {"unit" | "signed" | "named" | undefined} scale @param {number} value @param {number} most the largest */
export function colourOf(colours, scale, value, most) {
  return scale === "named" ? colours.named(value) : scale === "signed" ? colours.signed(value / most) : colours.unit(value / most);
}

/** @param {number[]} from @param {number[]} to @param {number} share */
function mixed(from, to, share) {
  return `rgb(${from.map((value, i) => Math.round(value + (to[i] - value) * share)).join(" ")})`;
}
