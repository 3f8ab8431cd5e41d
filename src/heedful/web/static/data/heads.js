// Names of heads, and the meaning of their badges.

import { KIND_NAMES } from "heedful/data/trace.js";

/** @typedef {import("heedful/data/trace.js").Kind} Kind */

/** Keys are the pattern names of the manifest. @type {Record<string, {does: string, means: string}>} */
export const BADGES = {
  "previous word": { does: "attends mostly to the previous word", means: "at least half of its weight goes to the previous token" },
  "next word": { does: "attends mostly to the next word", means: "at least half of its weight goes to the next token" },
  itself: { does: "attends mostly to the word itself", means: "at least half of its weight stays on the same token" },
  "end sink": { does: "attends mostly to </s>, the end", means: "attention sink: it rests on </s>, the end, when it has nothing to contribute" },
  "start sink": { does: "attends mostly to <s>, the start", means: "attention sink: it rests on <s>, the start, when it has nothing to contribute" },
  aligner: { does: "aligns: each word attends to one source word", means: "each word attends to one source word, and most source words are attended to: an alignment" },
  broad: { does: "attends broadly, to many words at once", means: "its weight is spread almost evenly" },
  guided: { does: "was trained with guided attention", means: "training supervised this head with what “it” refers to" },
  off: { does: "is switched off", means: "an experiment switched this head off: it contributes nothing" },
};

/** The display name of a head. @param {Kind} kind @param {number} layer @param {number | null} head */
export function getHeadName(kind, layer, head) {
  return `${KIND_NAMES[kind]}, layer ${layer + 1}, ${head === null ? "mean of all heads" : `head ${head + 1}`}`;
}

/** @param {string} name such as cross.1.2, from 0 */
export function describeHead(name) {
  const [kind, layer, head] = name.split(".");
  return `${kind === "cross" ? "cross-attention" : kind} layer ${Number(layer) + 1} head ${Number(head) + 1}`;
}

/** Short names of heads: cross 1.4 is the fourth head of the first layer. @param {string[]} off */
export function describeHeads(off) {
  return off.map((name) => {
    const [kind, layer, head] = name.split(".");
    return `${kind} ${Number(layer) + 1}.${Number(head) + 1}`;
  }).join(" + ");
}

/** @param {Kind} kind @param {number} layer @param {number} heads */
export function listLayerHeads(kind, layer, heads) {
  return Array.from({ length: heads }, (_, head) => `${kind}.${layer}.${head}`);
}

/** What the row names mean: each decoder row reads one word and writes the next. @param {Kind} kind */
export function describeRows(kind) {
  if (kind === "encoder") return "";
  return kind === "cross" ? "A cross-attention row is named after the word it writes." : "A decoder self-attention row is named after the word it reads; it writes the next one.";
}
