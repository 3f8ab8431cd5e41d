// Decoding: the tree of beam search candidates, and the length penalty that ranks hypotheses.

import { getTask } from "heedful/data/task.js";
import { BeamTree, findChosenPath, getPath } from "heedful/parts/beam_tree.js";
import { decodeIds, getEndId, StepSlider } from "heedful/parts/decoding.js";
import { formatNumber, h } from "heedful/parts/dom.js";

/** @typedef {import("heedful/main.js").Page} Page */
/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/state/selection.js").Selection} Selection */
/** @typedef {import("heedful/parts/beam_tree.js").Node} Node */

const MAX_BEAM = 8;
/** A beam size that shows a tree. */
const EXAMPLE_BEAM = 4;

/** @type {import("heedful/main.js").View} */
export const decodeView = {
  id: "decode",
  title: "Decode",
  supports: (model) => model.task !== "fill",
  mount: (host, page) => new DecodeView(host, page),
};

class DecodeView {
  /** @param {HTMLElement} host @param {Page} page */
  constructor(host, page) {
    this.page = page;
    this.beamSelect = h("select", { onchange: () => page.store.set({ beam: Number(this.beamSelect.value) }) });
    const steps = h("div", { class: "decode-steps" });
    const tree = h("div");
    this.noTreeMessage = h("p", { hidden: true });
    this.greedyHint = h("p", { class: "legend", hidden: true }, "A beam of 1 is greedy search: a single path. ",
      h("button", { type: "button", class: "small", onclick: () => page.store.set({ beam: EXAMPLE_BEAM }) }, `Use a beam of ${EXAMPLE_BEAM}`));
    this.hypotheses = h("div");
    this.searchResult = h("div", null, tree, h("h2", null, "Length penalty"), this.hypotheses);
    host.append(
      h("p", { class: "intro" }, "The model writes one token at a time. Beam search keeps the best hypotheses, prunes the others, and continues until enough have finished. ",
        page.source.live ? h("span", { class: "no-export" }, "Choose any candidate to force it.") : "Search settings cannot be changed in a saved page. Use a running server: heedful serve MODEL."),
      h("div", { class: "controls" }, h("label", { class: "select-field" }, h("span", null, "Beam size"), this.beamSelect,
        page.source.live ? null : h("span", null, "(fixed in a saved page)"))),
      this.greedyHint, steps, this.noTreeMessage, this.searchResult);
    this.steps = new StepSlider(steps, page);
    this.tree = new BeamTree(tree, page);
  }

  /** @param {Selection} selection @param {Trace} trace */
  show(selection, trace) {
    this.steps.show(selection, trace);
    this.#updateBeamSelect(selection, trace);
    const { resultNoun } = getTask(trace.manifest.model);
    this.noTreeMessage.textContent = trace.manifest.translation.is_reference ? `This ${resultNoun} was given, not searched: there is no tree.` : `This ${resultNoun} was sampled, not searched: there is no tree.`;
    this.noTreeMessage.hidden = trace.manifest.beam_search !== null;
    this.searchResult.hidden = !this.noTreeMessage.hidden;
    this.greedyHint.hidden = !this.page.source.live || trace.manifest.beam_search?.beam_size !== 1;
    if (!trace.manifest.beam_search) return;
    this.tree.show(selection, trace);
    this.hypotheses.replaceChildren(renderHypotheses(trace, findChosenPath(trace)));
  }

  /** @param {Selection} selection @param {Trace} trace */
  #updateBeamSelect({ beam }, { manifest }) {
    const widths = [...new Set([...Array.from({ length: MAX_BEAM }, (_, i) => i + 1), ...(beam ? [beam] : [])])];
    this.beamSelect.disabled = !this.page.source.live;
    this.beamSelect.replaceChildren(
      h("option", { value: "0", selected: !beam }, `default: ${manifest.model.beam_size}`),
      ...widths.map((width) => h("option", { value: String(width), selected: width === beam }, width === 1 ? "1 (greedy)" : String(width))));
  }
}

/** @param {Trace} trace @param {Set<number>} chosenPath indices of the chosen path @returns {HTMLElement} */
function renderHypotheses(trace, chosenPath) {
  const { nodes, length_penalty: alpha, length_normalization: normalization } = trace.manifest.beam_search;
  const finished = /** @type {Node[]} */ (nodes).map((node, index) => ({ ...node, index })).filter(({ status }) => status === "finished");
  if (!finished.length) return h("p", null, "No hypothesis finished before the maximum length: the output is truncated.");
  finished.sort((a, b) => b.score - a.score);
  return h("div", null,
    h("p", { class: "legend" }, `Every additional token lowers the log-probability, so the total is divided by ${formatDivisor("n", normalization)}^α, with n tokens (including the end) and α = ${alpha}. The highest score wins.`),
    h("div", { class: "scroll" }, h("table", { class: "hypotheses" },
      h("thead", null, h("tr", null, ["Finished hypothesis", `total / ${formatDivisor("n", normalization)}^α = score`].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", null, finished.map(({ index, step, total, score }) => {
        const ids = getPath(nodes, index).map((i) => nodes[i].id).filter((id) => id !== getEndId(trace));
        return h("tr", null,
          h("td", null, chosenPath.has(index) ? "★ " : "", h("bdi", null, decodeIds(trace, ids) || "(nothing)"), chosenPath.has(index) ? h("span", { class: "badge" }, "chosen") : null),
          h("td", { class: "arithmetic" }, formatPenalty(total, step + 1, alpha, score, normalization)));
      })))));
}

/** The divisor of a total, before the power. @param {number | string} count @param {string} normalization */
function formatDivisor(count, normalization) {
  return normalization === "length" ? `${count}` : `((5 + ${count}) / 6)`;
}

/** @param {number} total @param {number} count @param {number} alpha @param {number} score @param {string} normalization */
function formatPenalty(total, count, alpha, score, normalization) {
  const base = normalization === "length" ? count : (5 + count) / 6;
  return `${formatNumber(total)} / ${formatDivisor(count, normalization)}^${alpha} = ${formatNumber(total)} / ${formatNumber(base ** alpha)} = ${formatNumber(score)}`;
}
