// The beam as a tree: a column for each step, best candidate on top; told apart by line, box and label.

import { pieceName } from "heedful/data/trace.js";
import { chosenPath, path, stepsAround } from "heedful/parts/beam_nodes.js";
import { h, shown, svg } from "heedful/parts/dom.js";
import { endId, forcePath, stepOf } from "heedful/parts/forcing.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/parts/beam_nodes.js").Node} Node */

const COLUMN = 168;
const BOX = 122;
const ROW = 46;
const TOP = 30;
const LETTERS = 13;
const FATES = { kept: "kept", pruned: "pruned", finished: "ends here" };

export class BeamTree {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    /** @type {Trace | null} */
    this.trace = null;
    /** @type {Node[]} */
    this.nodes = [];
    /** Places of the candidates that are drawn. @type {number[]} */
    this.places = [];
    /** Places of the translation's own. @type {Set<number>} */
    this.chosen = new Set();
    this.step = 0;
    /** The steps that are drawn. */
    this.first = 0;
    this.last = 0;
    /** Whether the keyboard was in the tree when something was forced. */
    this.refocus = false;
    /** @type {Map<number, SVGElement>} */
    this.drawn = new Map();
    this.scroller = h("div", { class: "tree-scroll" });
    this.legend = h("span", { class: "legend" });
    /** Steps that the window is moved by, without moving the step: search may go on after the chosen translation ends. */
    this.moved = 0;
    this.earlier = h("button", { type: "button", class: "small", onclick: () => this.#move(-1) }, "‹ Earlier steps");
    this.later = h("button", { type: "button", class: "small", onclick: () => this.#move(1) }, "Later steps ›");
    this.table = h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Candidates as a table" });
    this.details = h("details", { class: "as-table", ontoggle: () => this.#fillTable() }, h("summary", null, "Show as table"), this.table);
    host.append(key(), this.scroller, h("p", { class: "tree-foot" }, this.earlier, this.later, this.legend), this.details);
  }

  /** @param {import("heedful/state/selection.js").Selection} selection @param {Trace} trace */
  show(selection, trace) {
    const step = stepOf(selection, trace);
    if (trace !== this.trace || step !== this.step) this.moved = 0;
    this.trace = trace;
    this.step = step;
    this.nodes = trace.manifest.beam.nodes;
    this.chosen = chosenPath(trace);
    this.#window();
  }

  /** @param {number} direction */
  #move(direction) {
    this.moved += direction * (this.last - this.first);
    this.#window();
    if (document.activeElement === document.body) (direction < 0 ? this.later : this.earlier).focus(); // the button is off now
  }

  /** Draw the steps around the chosen one, or where the window was moved to. */
  #window() {
    const steps = this.nodes[this.nodes.length - 1].step + 1;
    const centre = Math.max(0, Math.min(steps - 1, this.step + this.moved));
    this.moved = centre - this.step;
    [this.first, this.last] = stepsAround(centre, this.trace?.manifest.beam.width, steps);
    this.earlier.disabled = this.first === 0;
    this.later.disabled = this.last === steps - 1;
    this.places = this.nodes.flatMap(({ step }, place) => (step >= this.first && step <= this.last ? [place] : []));
    this.#draw(steps);
    this.#fillTable();
  }

  /** @param {number} steps */
  #draw(steps) {
    const { nodes, places, first, last, step } = this;
    const columns = last - first + 1;
    /** Where each candidate stands: column and row. @type {Map<number, [number, number]>} */
    const spots = new Map();
    const filled = new Array(columns).fill(0);
    for (const place of places) spots.set(place, [nodes[place].step - first, filled[nodes[place].step - first]++]);
    const [width, height] = [columns * COLUMN, TOP + Math.max(...filled) * ROW + 6];
    const edges = [...places].sort((one, other) => Number(this.chosen.has(one)) - Number(this.chosen.has(other))).map((place) => this.#edge(place, spots)); // the chosen path on top
    this.drawn = new Map(places.map((place) => [place, this.#node(place, /** @type {[number, number]} */ (spots.get(place)))]));
    const heads = Array.from({ length: columns }, (_, i) => svg("text", { x: left(i) + BOX / 2, y: 18, "text-anchor": "middle", class: "small-text" }, `Step ${first + i + 1}`));
    this.scroller.replaceChildren(svg("svg", {
      class: "tree", width, height, viewBox: `0 0 ${width} ${height}`, role: "group",
      "aria-label": `Beam search, steps ${first + 1} to ${last + 1}. Arrow keys walk, Enter forces.`,
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.#key(event),
    }, svg("rect", { class: "now", x: left(step - first) - 12, y: 2, width: BOX + 24, height: height - 4, rx: 8, visibility: step >= first && step <= last ? "visible" : "hidden" }),
      heads, edges, [...this.drawn.values()]));
    const start = places.find((place) => this.chosen.has(place) && nodes[place].step === Math.max(first, Math.min(step, last))) ?? places[0];
    const current = this.drawn.get(start);
    current?.setAttribute("tabindex", "0");
    if (this.refocus) current?.focus();
    this.refocus = false;
    this.scroller.scrollLeft = left(step - first) - (this.scroller.clientWidth - BOX) / 2;
    this.legend.textContent = `Steps ${first + 1} to ${last + 1} of ${steps}; the slider moves too. Under each piece: its log-probability, and the total of the path so far.`;
  }

  /** @param {number} place @param {Map<number, [number, number]>} spots */
  #edge(place, spots) {
    const { fate, parent } = this.nodes[place];
    const [column, row] = /** @type {[number, number]} */ (spots.get(place));
    const before = spots.get(parent);
    const [x2, y2] = [left(column), middle(row)];
    const [x1, y1] = before ? [left(before[0]) + BOX, middle(before[1])] : [x2 - 14, y2];
    const bend = (x2 - x1) / 2;
    return svg("path", { class: `edge ${fate}${this.chosen.has(place) ? " chosen" : ""}`, d: `M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}` });
  }

  /** @param {number} place @param {[number, number]} spot */
  #node(place, [column, row]) {
    const { fate, id, log_probability, total, step } = this.nodes[place];
    const trace = /** @type {Trace} */ (this.trace);
    const chosen = this.chosen.has(place);
    const [x, y] = [left(column), TOP + row * ROW];
    const name = pieceName(trace.manifest, id);
    const told = `Step ${step + 1}, ${name}, ${FATES[fate]}${chosen ? ", on the chosen path" : ""}, log-probability ${shown(log_probability)}, total ${shown(total)}.${this.page.source.live ? " Force it." : ""}`;
    return svg("g", { class: `node ${fate}${chosen ? " chosen" : ""}`, role: "button", tabindex: "-1", "aria-label": told, "data-place": place, onclick: () => this.#force(place) },
      svg("title", null, told),
      svg("rect", { class: "ring", x: x - 3, y: y - 1, width: BOX + 6, height: ROW - 4, rx: 9 }),
      svg("rect", { class: "box", x, y: y + 2, width: BOX, height: ROW - 10, rx: fate === "finished" ? 0 : 7 }),
      fate === "finished" ? svg("rect", { class: "box", x: x + 4, y: y + 6, width: BOX - 8, height: ROW - 18 }) : null,
      svg("text", { class: "name", x: x + 9, y: y + 17 }, cut(name)),
      svg("text", { class: "small-text", x: x + BOX - 8, y: y + 16, "text-anchor": "end" }, mark(fate, chosen)),
      svg("text", { class: "small-text", x: x + 9, y: y + 31 }, `${shown(log_probability, 2)} → ${shown(total, 2)}`));
  }

  /** The translation must go this way; an end itself cannot be forced, but its words can. @param {number} place */
  #force(place) {
    const trace = /** @type {Trace} */ (this.trace);
    const ids = path(this.nodes, place).map((each) => this.nodes[each].id).filter((id) => id !== endId(trace));
    if (!ids.length || !this.page.source.live) return;
    this.refocus = true;
    forcePath(this.page, ids);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const { nodes, places } = this;
    const at = Number(/** @type {Element} */ (event.target).getAttribute("data-place") ?? -1);
    if (at < 0) return;
    const column = places.filter((place) => nodes[place].step === nodes[at].step);
    const children = places.filter((place) => nodes[place].parent === at);
    /** @type {Record<string, number | undefined>} */
    const steps = { ArrowUp: column[column.indexOf(at) - 1], ArrowDown: column[column.indexOf(at) + 1], ArrowLeft: nodes[at].parent, ArrowRight: children[0] };
    if (event.key === "Enter" || event.key === " ") this.#force(at);
    else if (event.key in steps) this.#walk(at, steps[event.key]);
    else return;
    event.preventDefault();
  }

  /** @param {number} from @param {number | undefined} to */
  #walk(from, to) {
    const next = to === undefined ? undefined : this.drawn.get(to);
    if (!next) return;
    this.drawn.get(from)?.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  }

  #fillTable() {
    this.table.replaceChildren();
    if (!this.details.open || !this.trace) return;
    const { manifest } = this.trace;
    const { nodes } = this;
    const names = ["Step", "Piece", "After", "Log-probability", "Total", "Score", "What became of it"];
    this.table.append(h("table", null,
      h("thead", null, h("tr", null, names.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", null, this.places.map((place) => {
        const { step, id, parent, log_probability, total, score, fate } = nodes[place];
        const cells = [step + 1, h("bdi", null, pieceName(manifest, id)), parent < 0 ? "the start" : h("bdi", null, pieceName(manifest, nodes[parent].id)), shown(log_probability), shown(total), shown(score), `${FATES[fate]}${this.chosen.has(place) ? ", chosen ★" : ""}`];
        return h("tr", null, cells.map((cell) => h("td", null, cell)));
      }))));
  }
}

/** The signs of the tree in words. */
function key() {
  const one = (/** @type {string} */ sign, /** @type {string} */ text) => h("li", null, h("b", null, sign), ` ${text}`);
  return h("ul", { class: "tree-key", "aria-label": "Signs" },
    one("★", "thick line: what was chosen"), one("solid box", "kept: it goes on, unless this is the last step"),
    one("✕", "dashed: pruned, others were better"), one("■", "double box: the sentence ends here"));
}

/** @param {Node["fate"]} fate @param {boolean | undefined} chosen */
function mark(fate, chosen) {
  return `${chosen ? "★" : ""}${fate === "pruned" ? "✕" : fate === "finished" ? "■" : ""}`;
}

/** @param {number} column */
function left(column) {
  return column * COLUMN + (COLUMN - BOX) / 2;
}

/** @param {number} row */
function middle(row) {
  return TOP + row * ROW + ROW / 2 - 3;
}

/** @param {string} name */
function cut(name) {
  const letters = Array.from(name);
  return letters.length > LETTERS ? `${letters.slice(0, LETTERS - 1).join("")}…` : name;
}
