// The beam as a tree: one column per step, best candidate on top; line, box and label show the status.

import { getTokenText } from "heedful/data/trace.js";
import { forcePrefix, getEndId, getStep } from "heedful/parts/decoding.js";
import { formatNumber, h, svg } from "heedful/parts/dom.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */

const COLUMN = 168;
const BOX = 122;
const ROW = 46;
const TOP = 30;
const MAX_CHARACTERS = 13;
const STATUS_LABELS = { kept: "kept", pruned: "pruned", finished: "ends here" };

export class BeamTree {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    /** @type {Trace | null} */
    this.trace = null;
    /** @type {Node[]} */
    this.nodes = [];
    /** Indices of the candidates drawn. @type {number[]} */
    this.indices = [];
    /** Indices of the chosen path. @type {Set<number>} */
    this.chosenPath = new Set();
    this.step = 0;
    /** The range of steps drawn. */
    this.first = 0;
    this.last = 0;
    /** Whether the tree had focus when a candidate was forced. */
    this.refocus = false;
    /** @type {Map<number, SVGElement>} */
    this.nodeElements = new Map();
    this.scroller = h("div", { class: "tree-scroll" });
    this.legend = h("span", { class: "legend" });
    /** Steps by which the window is moved away from the selected step: search may continue after the chosen translation ends. */
    this.windowOffset = 0;
    this.earlier = h("button", { type: "button", class: "small", onclick: () => this.#moveWindow(-1) }, "‹ Earlier steps");
    this.later = h("button", { type: "button", class: "small", onclick: () => this.#moveWindow(1) }, "Later steps ›");
    this.table = h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Candidates as a table" });
    this.details = h("details", { class: "as-table", ontoggle: () => this.#fillTable() }, h("summary", null, "Show as table"), this.table);
    host.append(createKey(), this.scroller, h("p", { class: "tree-foot" }, this.earlier, this.later, this.legend), this.details);
  }

  /** @param {import("heedful/state/selection.js").Selection} selection @param {Trace} trace */
  show(selection, trace) {
    const step = getStep(selection, trace);
    if (trace !== this.trace || step !== this.step) this.windowOffset = 0;
    this.trace = trace;
    this.step = step;
    this.nodes = trace.manifest.beam_search.nodes;
    this.chosenPath = findChosenPath(trace);
    this.#updateWindow();
  }

  /** @param {number} direction */
  #moveWindow(direction) {
    this.windowOffset += direction * (this.last - this.first);
    this.#updateWindow();
    if (document.activeElement === document.body) (direction < 0 ? this.later : this.earlier).focus(); // the button is disabled now
  }

  /** Draw the steps around the selected one, or where the window was moved. */
  #updateWindow() {
    const steps = this.nodes[this.nodes.length - 1].step + 1;
    const center = Math.max(0, Math.min(steps - 1, this.step + this.windowOffset));
    this.windowOffset = center - this.step;
    [this.first, this.last] = getStepWindow(center, this.trace?.manifest.beam_search.beam_size, steps);
    this.earlier.disabled = this.first === 0;
    this.later.disabled = this.last === steps - 1;
    this.indices = this.nodes.flatMap(({ step }, index) => (step >= this.first && step <= this.last ? [index] : []));
    this.#draw(steps);
    this.#fillTable();
  }

  /** @param {number} steps */
  #draw(steps) {
    const { nodes, indices, first, last, step } = this;
    const columns = last - first + 1;
    /** Column and row of each candidate. @type {Map<number, [number, number]>} */
    const cells = new Map();
    const rowCounts = new Array(columns).fill(0);
    for (const index of indices) cells.set(index, [nodes[index].step - first, rowCounts[nodes[index].step - first]++]);
    const [width, height] = [columns * COLUMN, TOP + Math.max(...rowCounts) * ROW + 6];
    const edges = [...indices].sort((a, b) => Number(this.chosenPath.has(a)) - Number(this.chosenPath.has(b))).map((index) => this.#createEdge(index, cells)); // the chosen path on top
    this.nodeElements = new Map(indices.map((index) => [index, this.#createNode(index, /** @type {[number, number]} */ (cells.get(index)))]));
    const headers = Array.from({ length: columns }, (_, i) => svg("text", { x: getLeft(i) + BOX / 2, y: 18, "text-anchor": "middle", class: "small-text" }, `Step ${first + i + 1}`));
    this.scroller.replaceChildren(svg("svg", {
      class: "tree", width, height, viewBox: `0 0 ${width} ${height}`, role: "group",
      "aria-label": `Beam search, steps ${first + 1} to ${last + 1}. Arrow keys move, Enter forces.`,
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.#handleKey(event),
    }, svg("rect", { class: "current-step", x: getLeft(step - first) - 12, y: 2, width: BOX + 24, height: height - 4, rx: 8, visibility: step >= first && step <= last ? "visible" : "hidden" }),
      headers, edges, [...this.nodeElements.values()]));
    const start = indices.find((index) => this.chosenPath.has(index) && nodes[index].step === Math.max(first, Math.min(step, last))) ?? indices[0];
    const current = this.nodeElements.get(start);
    current?.setAttribute("tabindex", "0");
    if (this.refocus) current?.focus();
    this.refocus = false;
    this.scroller.scrollLeft = getLeft(step - first) - (this.scroller.clientWidth - BOX) / 2;
    this.legend.textContent = `Steps ${first + 1} to ${last + 1} of ${steps}; the slider also moves them. Under each token: its log-probability, and the total of the path.`;
  }

  /** @param {number} index @param {Map<number, [number, number]>} cells */
  #createEdge(index, cells) {
    const { status, parent } = this.nodes[index];
    const [column, row] = /** @type {[number, number]} */ (cells.get(index));
    const before = cells.get(parent);
    const [x2, y2] = [getLeft(column), getMiddle(row)];
    const [x1, y1] = before ? [getLeft(before[0]) + BOX, getMiddle(before[1])] : [x2 - 14, y2];
    const bend = (x2 - x1) / 2;
    return svg("path", { class: `edge ${status}${this.chosenPath.has(index) ? " chosen" : ""}`, d: `M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}` });
  }

  /** @param {number} index @param {[number, number]} spot */
  #createNode(index, [column, row]) {
    const { status, id, log_probability, total, step } = this.nodes[index];
    const trace = /** @type {Trace} */ (this.trace);
    const isChosen = this.chosenPath.has(index);
    const [x, y] = [getLeft(column), TOP + row * ROW];
    const name = getTokenText(trace.manifest, id);
    const label = `Step ${step + 1}, ${name}, ${STATUS_LABELS[status]}${isChosen ? ", on the chosen path" : ""}, log-probability ${formatNumber(log_probability)}, total ${formatNumber(total)}.${this.page.source.live ? " Force it." : ""}`;
    return svg("g", { class: `node ${status}${isChosen ? " chosen" : ""}`, role: "button", tabindex: "-1", "aria-label": label, "data-index": index, onclick: () => this.#force(index) },
      svg("title", null, label),
      svg("rect", { class: "ring", x: x - 3, y: y - 1, width: BOX + 6, height: ROW - 4, rx: 9 }),
      svg("rect", { class: "box", x, y: y + 2, width: BOX, height: ROW - 10, rx: status === "finished" ? 0 : 7 }),
      status === "finished" ? svg("rect", { class: "box", x: x + 4, y: y + 6, width: BOX - 8, height: ROW - 18 }) : null,
      svg("text", { class: "name", x: x + 9, y: y + 17 }, truncate(name)),
      svg("text", { class: "small-text", x: x + BOX - 8, y: y + 16, "text-anchor": "end" }, getMark(status, isChosen)),
      svg("text", { class: "small-text", x: x + 9, y: y + 31 }, `${formatNumber(log_probability, 2)} → ${formatNumber(total, 2)}`));
  }

  /** Force the path to a candidate; for a finished one, without its end token. @param {number} index */
  #force(index) {
    const trace = /** @type {Trace} */ (this.trace);
    const ids = getPath(this.nodes, index).map((i) => this.nodes[i].id).filter((id) => id !== getEndId(trace));
    if (!ids.length || !this.page.source.live) return;
    this.refocus = true;
    forcePrefix(this.page, ids);
  }

  /** @param {KeyboardEvent} event */
  #handleKey(event) {
    const { nodes, indices } = this;
    const current = Number(/** @type {Element} */ (event.target).getAttribute("data-index") ?? -1);
    if (current < 0) return;
    const column = indices.filter((index) => nodes[index].step === nodes[current].step);
    const children = indices.filter((index) => nodes[index].parent === current);
    /** @type {Record<string, number | undefined>} */
    const targets = { ArrowUp: column[column.indexOf(current) - 1], ArrowDown: column[column.indexOf(current) + 1], ArrowLeft: nodes[current].parent, ArrowRight: children[0] };
    if (event.key === "Enter" || event.key === " ") this.#force(current);
    else if (event.key in targets) this.#moveFocus(current, targets[event.key]);
    else return;
    event.preventDefault();
  }

  /** @param {number} from @param {number | undefined} to */
  #moveFocus(from, to) {
    const next = to === undefined ? undefined : this.nodeElements.get(to);
    if (!next) return;
    this.nodeElements.get(from)?.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  }

  #fillTable() {
    this.table.replaceChildren();
    if (!this.details.open || !this.trace) return;
    const { manifest } = this.trace;
    const { nodes } = this;
    const names = ["Step", "Token", "After", "Log-probability", "Total", "Score", "Status"];
    this.table.append(h("table", null,
      h("thead", null, h("tr", null, names.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", null, this.indices.map((index) => {
        const { step, id, parent, log_probability, total, score, status } = nodes[index];
        const cells = [step + 1, h("bdi", null, getTokenText(manifest, id)), parent < 0 ? "the start" : h("bdi", null, getTokenText(manifest, nodes[parent].id)), formatNumber(log_probability), formatNumber(total), formatNumber(score), `${STATUS_LABELS[status]}${this.chosenPath.has(index) ? ", chosen ★" : ""}`];
        return h("tr", null, cells.map((cell) => h("td", null, cell)));
      }))));
  }
}

/** The legend of the tree. */
function createKey() {
  const createItem = (/** @type {string} */ sign, /** @type {string} */ text) => h("li", null, h("b", null, sign), ` ${text}`);
  return h("ul", { class: "tree-key", "aria-label": "Legend" },
    createItem("★", "thick line: the chosen path"), createItem("solid box", "kept: continued, unless this is the last step"),
    createItem("✕", "dashed: pruned, others were better"), createItem("■", "double box: the sentence ends here"));
}

/** @param {Node["status"]} status @param {boolean | undefined} isChosen */
function getMark(status, isChosen) {
  return `${isChosen ? "★" : ""}${status === "pruned" ? "✕" : status === "finished" ? "■" : ""}`;
}

/** @param {number} column */
function getLeft(column) {
  return column * COLUMN + (COLUMN - BOX) / 2;
}

/** @param {number} row */
function getMiddle(row) {
  return TOP + row * ROW + ROW / 2 - 3;
}

/** @param {string} name */
function truncate(name) {
  const characters = Array.from(name);
  return characters.length > MAX_CHARACTERS ? `${characters.slice(0, MAX_CHARACTERS - 1).join("")}…` : name;
}

/**
 * A candidate of a step; ``parent`` is an index into the list, or -1 for the start.
 * @typedef {{step: number, parent: number, id: number, log_probability: number, total: number, score: number, status: "kept" | "pruned" | "finished"}} Node
 */

/** Approximate number of candidates drawn at once. */
const MAX_DRAWN = 150;

/** The indices of a candidate's path, first to last. @param {Node[]} nodes @param {number} index @returns {number[]} */
export function getPath(nodes, index) {
  const indices = [];
  for (let i = index; i >= 0; i = nodes[i].parent) indices.unshift(i);
  return indices;
}

/** The indices of the chosen path. @param {Trace} trace @returns {Set<number>} */
export function findChosenPath({ manifest: { beam_search: beamSearch, translation } }) {
  /** @type {Node[]} */
  const nodes = beamSearch.nodes;
  const last = nodes.findIndex((node, index) => {
    if (node.status !== (translation.complete ? "finished" : "kept")) return false;
    const ids = getPath(nodes, index).map((i) => nodes[i].id);
    if (translation.complete) ids.pop(); // the end token
    return ids.length === translation.ids.length && ids.every((id, i) => id === translation.ids[i]);
  });
  return new Set(last < 0 ? [] : getPath(nodes, last));
}

/** The first and last step to draw around a step. @param {number} step @param {number} width beam size @param {number} steps @returns {[number, number]} */
export function getStepWindow(step, width, steps) {
  const count = Math.min(steps, Math.max(3, Math.min(7, Math.floor(MAX_DRAWN / (2 * width)))));
  const first = Math.max(0, Math.min(step - Math.floor(count / 2), steps - count));
  return [first, first + count - 1];
}
