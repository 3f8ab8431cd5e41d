// The hypotheses that ended, and the arithmetic of the length penalty that chose among them.

import { path } from "heedful/parts/beam_nodes.js";
import { h, shown } from "heedful/parts/dom.js";
import { endId, textOf } from "heedful/parts/forcing.js";

/** @typedef {import("heedful/data/trace.js").Trace} Trace */
/** @typedef {import("heedful/parts/beam_nodes.js").Node} Node */

/** @param {Trace} trace @param {Set<number>} chosen the places of the translation's path @returns {HTMLElement} */
export function hypotheses(trace, chosen) {
  const { nodes, alpha, normalization } = trace.manifest.beam;
  const ended = /** @type {Node[]} */ (nodes).map((node, place) => ({ ...node, place })).filter(({ fate }) => fate === "finished");
  if (!ended.length) return h("p", null, "No hypothesis ended before the longest length: what was written is cut off.");
  ended.sort((one, other) => other.score - one.score);
  return h("div", null,
    h("p", { class: "legend" }, `Every more word makes a sentence less likely, so its total log-probability is divided by ${divisor("n", normalization)}^α, with n pieces (the end counts) and α = ${alpha}. The highest score wins.`),
    h("div", { class: "scroll" }, h("table", { class: "hypotheses" },
      h("thead", null, h("tr", null, ["Finished hypothesis", `total / ${divisor("n", normalization)}^α = score`].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", null, ended.map(({ place, step, total, score }) => {
        const ids = path(nodes, place).map((each) => nodes[each].id).filter((id) => id !== endId(trace));
        return h("tr", null,
          h("td", null, chosen.has(place) ? "★ " : "", h("bdi", null, textOf(trace, ids) || "(nothing)"), chosen.has(place) ? h("span", { class: "badge" }, "chosen") : null),
          h("td", { class: "arithmetic" }, penalised(total, step + 1, alpha, score, normalization)));
      })))));
}

/** What a total is divided by, before the power. @param {number | string} count @param {string} normalization */
function divisor(count, normalization) {
  return normalization === "length" ? `${count}` : `((5 + ${count}) / 6)`;
}

/** @param {number} total @param {number} count @param {number} alpha @param {number} score @param {string} normalization */
function penalised(total, count, alpha, score, normalization) {
  const base = normalization === "length" ? count : (5 + count) / 6;
  return `${shown(total)} / ${divisor(count, normalization)}^${alpha} = ${shown(total)} / ${shown(base ** alpha)} = ${shown(score)}`;
}
