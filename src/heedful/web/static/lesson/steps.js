// The steps of the lesson, in the order of the lecture; questions and answers are computed from this sentence.

import { computeNorm } from "heedful/data/numerics.js";
import { getTokenText } from "heedful/data/trace.js";
import { getWeightsName } from "heedful/lesson/example.js";
import { addNote, argmax, askWhichNumber, askWhichToken, createChannelTable, createRemainderRow, createTable, getRemainder, getUniqueName, MAX_CHANNELS, pickWrongAnswers, rankIndices, round, sortIndices, sumNumbers } from "heedful/lesson/tables.js";
import { formatNumber, formatPercent, h } from "heedful/parts/dom.js";

/** @typedef {import("heedful/lesson/example.js").LessonExample} LessonExample */
/** @typedef {import("heedful/lesson/example.js").StepContent} StepContent */
/** @typedef {import("heedful/lesson/tables.js").Row} Row */
/** A step of the lesson; ``pre`` is the wording for a pre-norm model. @typedef {{title: string, text: string, formula: string, pre?: {text: string, formula: string}, make: (place: LessonExample) => Promise<StepContent>}} Step */

const MAX_LISTED = 6;
/** Tokens listed for a long sentence. */
const MAX_TOKENS = 40;
/** Digits of intermediate numbers, so that results computed from them are right to four digits. */
const PRECISE_DIGITS = 6;
const ID_CHOICES = ["the same id", "different ids"];

/** @param {LessonExample} example @returns {Promise<StepContent>} */
async function buildTokens(example) {
  const { subwords, ids } = example.trace.sides.source;
  return {
    question: askSameId(subwords, ids),
    numbers: createTable(["token", "id"], subwords.slice(0, MAX_TOKENS).map((subword, i) => [subword, String(ids[i])])),
    link: ["Show the tokens on the axes of a head", { view: "head", words: false, ...example.selection }],
  };
}

/** A question about two tokens that differ only in case, or about a repeated token. @param {string[]} subwords @param {number[]} ids @returns {import("heedful/lesson/example.js").Question} */
function askSameId(subwords, ids) {
  const pairs = subwords.flatMap((left, i) => subwords.slice(i + 1).map((right, j) => ({ left, right, ids: [ids[i], ids[i + 1 + j]] })));
  const pair = pairs.find(({ left, right }) => left !== right && left.toLowerCase() === right.toLowerCase()) ?? pairs.find(({ left, right }) => left === right);
  if (!pair) return { prompt: `If “${subwords[0]}” appeared again at the end of the sentence, would both have the same id?`, choices: ID_CHOICES, answer: ID_CHOICES[0], explanation: `${ids[0]}: an id belongs to the spelling, at any position` };
  const [firstId, secondId] = pair.ids;
  const prompt = pair.left === pair.right ? `“${pair.left}” appears twice. Do both have the same id?` : `The sentence contains “${pair.left}” and “${pair.right}”. Do they have the same id?`;
  return firstId === secondId
    ? { prompt, choices: ID_CHOICES, answer: ID_CHOICES[0], explanation: `both ${firstId}: only their positions, in the next step, distinguish them` }
    : { prompt, choices: ID_CHOICES, answer: ID_CHOICES[1], explanation: `${firstId} and ${secondId}: each spelling is a separate token, and the model must learn that they mean the same` };
}

/** @param {LessonExample} example @returns {Promise<StepContent>} */
async function buildEmbedding(example) {
  const { word, cell } = await example.loadEmbedding();
  const [scaled, position] = cell.sections.find((/** @type {any} */ section) => section.heading === "The vector x").tables[0].cells.slice(-2);
  /** @type {[string, number[]][]} */
  const parts = [[example.manifest.model.scale_embeddings ? "embedding × √d" : "embedding", scaled], ["+ position", position]];
  return {
    introduction: createChannelTable(word, parts),
    question: { prompt: `At “${word}”: which vector is longer, the word embedding or the position?`, choices: ["the word", "the position"], answer: computeNorm(scaled) > computeNorm(position) ? "the word" : "the position",
      explanation: `the word's vector has length ${formatNumber(computeNorm(scaled), 2)}, the position's ${formatNumber(computeNorm(position), 2)}; the length is the square root of the sum of squares` },
    numbers: createChannelTable(word, parts, { added: "= x" }),
    link: ["Show all positions", { view: "positions" }],
  };
}

/** @param {LessonExample} example @returns {Promise<StepContent>} */
async function buildProjections(example) {
  const { values } = await example.loadCell();
  const { d_model: dModel, heads } = example.manifest.model;
  const { queryText, keyText, key } = example;
  const vectors = createChannelTable("in this head", [[`q of ${queryText}: what it searches for`, values.q], [`k of ${keyText}: what it matches`, values.k[key]], [`v of ${keyText}: what it contributes`, values.v[key]]]);
  return {
    question: { prompt: `x has ${dModel} numbers, and the layer has ${heads} heads. How many numbers does q have in one head?`, ...askWhichNumber(values.q.length, [dModel, heads], String),
      explanation: `${dModel} / ${heads} = ${values.q.length}, also for k and v` },
    numbers: example.kind === "cross" ? addNote(vectors, `In cross-attention q comes from the decoder's row that writes “${queryText}”, k and v from the encoder's output for “${keyText}”.`) : vectors,
    link: ["Show q, k and v of every word", { view: "cell", ...example.selection }],
  };
}

/** @param {LessonExample} example @returns {Promise<StepContent>} */
async function buildScores(example) {
  const { values } = await example.loadCell();
  const subwords = values.column_subwords;
  const scores = hideMasked(values, values.scores);
  const [best] = rankIndices(scores, 1);
  const rivals = sortIndices(rankIndices(scores, 4).filter((i) => scores[i] > -Infinity));
  const channelIndices = findDecidingChannels(values.q, rivals.map((i) => values.k[i]), rivals.indexOf(best));
  const products = channelIndices.map((c) => round(round(values.q[c]) * round(values.k[best][c])));
  const others = values.q.length - channelIndices.length;
  const note = `${others ? `The channels that decide (of ${values.q.length}): enough to see which score is the largest.` : "All channels."} Multiply q by each k, channel by channel, and add up.`;
  const names = channelIndices.map((c) => `channel ${c + 1}`);
  return {
    introduction: addNote(createTable(["in this head", ...names], [[`q of ${example.queryText}`, ...channelIndices.map((c) => formatNumber(values.q[c], 2))],
      ...rivals.map((i) => /** @type {Row} */ ([`k of ${getUniqueName(subwords, i)}`, ...channelIndices.map((c) => formatNumber(values.k[i][c], 2))]))]), note),
    question: { prompt: `Which token gets the largest score from ${example.queryLabel}?`, ...askWhichToken(subwords, scores), explanation: `q · k = ${formatNumber(scores[best])}, the largest of the row` },
    numbers: h("div", null,
      createTable([`${example.queryText} · ${subwords[best]}`, ...names, ...(others ? [`${others} other channels`] : []), "score"], [
        ["q", ...channelIndices.map((c) => values.q[c]), ...(others ? [""] : []), ""], ["k", ...channelIndices.map((c) => values.k[best][c]), ...(others ? [""] : []), ""],
        ["q × k", ...products, ...(others ? [getRemainder(scores[best], products)] : []), scores[best]]]),
      createTable(["attends to", "score"], rankIndices(scores, rivals.length).map((i) => [getUniqueName(subwords, i), scores[i]]))),
    link: ["Show all products", { view: "cell", ...example.selection, key: best }],
  };
}

/** The fewest channels that show which key matches the query best, those with the largest differences. @param {number[]} query @param {number[][]} keys @param {number} best */
function findDecidingChannels(query, keys, best) {
  const products = keys.map((key) => key.map((value, c) => round(value, 2) * round(query[c], 2)));
  const spread = query.map((_, c) => Math.max(...products.map((row) => row[c])) - Math.min(...products.map((row) => row[c])));
  const order = rankIndices(spread, query.length);
  for (let count = Math.min(4, order.length); count < order.length; count++) {
    const selected = order.slice(0, count);
    if (argmax(products.map((row) => sumNumbers(selected.map((c) => row[c])))) === best) return sortIndices(selected);
  }
  return sortIndices(order);
}

/** Values of a row, −∞ where it is masked. @param {any} values @param {number[]} numbers @returns {number[]} */
function hideMasked({ weights }, numbers) {
  return numbers.map((number, i) => (weights[i] > 0 ? number : -Infinity));
}

/** @param {LessonExample} example @returns {Promise<StepContent>} */
async function buildScaling(example) {
  const { values } = await example.loadCell();
  const scores = hideMasked(values, values.scores);
  const best = argmax(scores);
  const { divisor } = values;
  const score = round(scores[best], PRECISE_DIGITS);
  return {
    question: { prompt: `The score of “${getUniqueName(values.column_subwords, best)}” is ${formatNumber(score, PRECISE_DIGITS)}, and d_k = ${values.q.length}. What is the scaled score?`, ...askWhichNumber(score / divisor, pickWrongAnswers([score / divisor ** 2, score / divisor ** 3], [score, score * divisor], example.answerSeed + 1), formatNumber),
      explanation: `${formatNumber(score, PRECISE_DIGITS)} / √${values.q.length} = ${formatNumber(score, PRECISE_DIGITS)} / ${formatNumber(divisor, PRECISE_DIGITS)} = ${formatNumber(score / divisor)}` },
    numbers: createTable(["attends to", "score", "score / √d_k"], rankIndices(scores, MAX_LISTED).map((i) => [getUniqueName(values.column_subwords, i), formatNumber(scores[i], PRECISE_DIGITS), scores[i] / divisor])),
    link: ["Show the full row", { view: "cell", ...example.selection, key: best }],
  };
}

/** @param {LessonExample} example @returns {Promise<StepContent>} */
async function buildMask(example) {
  const { decoder_input: decoderInput } = example.trace.sides;
  const visible = example.step + 1;
  const tokenCount = decoderInput.subwords.length;
  const below = /** @type {[number, number]} */ ([visible - 1, Math.max(0, visible - 2)]);
  return {
    introduction: addNote(h("ol", { class: "lesson-tokens" }, decoderInput.subwords.slice(0, MAX_TOKENS).map((subword) => h("li", { dir: "auto" }, subword))),
      `What the decoder reads: ${tokenCount} tokens. It starts from <s>; the row of each token writes the next one.`),
    question: { prompt: `The decoder will write “${example.writtenText}”. To how many of these ${tokenCount} tokens may it attend?`, ...askWhichNumber(visible, pickWrongAnswers(below, [visible + 1, tokenCount + 1], example.answerSeed + 2), String),
      explanation: `to the ${visible} written by then, ending with ${decoderInput.subwords.slice(0, visible).slice(-MAX_LISTED).join(" ")}` },
    numbers: createTable(["token", `for “${example.writtenText}”`], decoderInput.subwords.slice(0, MAX_TOKENS).map((subword, i) => [subword, i < visible ? "visible" : "masked: −∞, weight 0"])),
    link: ["Show the causal mask", { view: "head", kind: "decoder", layer: 0, head: 0, query: null, key: null }],
  };
}

/** @param {LessonExample} example @returns {Promise<StepContent>} */
async function buildSoftmax(example) {
  const { values } = await example.loadCell();
  const { weights, column_subwords: subwords } = values;
  const scaled = hideMasked(values, values.scaled).map((s) => (s === -Infinity ? s : round(s, PRECISE_DIGITS)));
  const best = argmax(weights);
  const weight = weights[best];
  const powers = scaled.map((s) => round(Math.exp(s - Math.max(...scaled)), PRECISE_DIGITS));
  const listedIndices = rankIndices(weights, MAX_LISTED).filter((i) => weights[i] > 0);
  const others = weights.length - listedIndices.length;
  const total = powers[best] / weight;
  const missing = getRemainder(total, listedIndices.map((i) => powers[i]), PRECISE_DIGITS);
  const wrongAnswers = pickWrongAnswers([weight / 2, weight / 4], weight < 0.8 ? [(2 * weight + 1) / 3, (weight + 2) / 3] : [weight / 3, weight / 5], example.answerSeed);
  return {
    introduction: addNote(createTable(["attends to", "s"], sortIndices(listedIndices).map((i) => [getUniqueName(subwords, i), formatNumber(scaled[i], PRECISE_DIGITS)])),
      `Subtract the largest s, so that its exponential is exp(0) = 1${others ? `; the ${others} others sum to ${formatFixed(missing)}` : ""}.`),
    question: { prompt: `${capitalize(example.queryLabel)} attends most to “${getUniqueName(subwords, best)}”. With what weight?`, ...askWhichNumber(weight, wrongAnswers, formatPercent),
      explanation: `1 / ${formatFixed(total)} = ${formatFixed(weight)}; all weights sum to 1` },
    numbers: createTable(["attends to", "s", "exp(s − max)", "weight"],
      [...listedIndices.map((i) => /** @type {Row} */ ([getUniqueName(subwords, i), formatFixed(scaled[i]), formatFixed(powers[i]), formatFixed(weights[i])])), ...createRemainderRow(others, missing, () => ["", formatFixed(missing), formatFixed(getRemainder(1, listedIndices.map((i) => weights[i]), PRECISE_DIGITS))])],
      [["Sum", "", formatFixed(total), formatFixed(1)]]),
    link: ["Show this head", { view: "head", ...example.selection }],
  };
}

/** @param {LessonExample} example @returns {Promise<StepContent>} */
async function buildWeightedSum(example) {
  const { values } = await example.loadCell();
  const { weights, column_subwords: subwords } = values;
  const channelValues = values.v.map((/** @type {number[]} */ row) => row[0]);
  /** @type {number[]} */
  const terms = channelValues.map((/** @type {number} */ v, /** @type {number} */ i) => round(round(weights[i]) * round(v)));
  const sizes = values.contributions.map((/** @type {number[]} */ row) => Math.abs(row[0]));
  const listedIndices = rankIndices(sizes, MAX_LISTED);
  const best = listedIndices[0];
  return {
    introduction: createTable(["attends to", "weight", "v, channel 1"], sortIndices(listedIndices).map((i) => [getUniqueName(subwords, i), weights[i], channelValues[i]])),
    question: { prompt: "Which token contributes the most (positive or negative) to channel 1 of z?", ...askWhichToken(subwords, sizes),
      explanation: `${formatNumber(weights[best])} × ${formatNumber(channelValues[best])} = ${formatNumber(terms[best])}` },
    numbers: createTable(["attends to", "weight", "v, channel 1", "weight × v"],
      [...listedIndices.map((i) => /** @type {Row} */ ([getUniqueName(subwords, i), weights[i], channelValues[i], terms[i]])), ...createRemainderRow(subwords.length - listedIndices.length, getRemainder(values.z[0], listedIndices.map((i) => terms[i])), (missing) => ["", "", missing])],
      [["z, channel 1", "", "", values.z[0]]]),
    link: ["Show the full sum", { view: "cell", ...example.selection, key: best }],
  };
}

/** @param {LessonExample} example @returns {Promise<StepContent>} */
async function buildHeads(example) {
  const { subwords } = example.trace.getAxes(example.kind)[1];
  const tensor = await example.trace.loadTensor(getWeightsName(example));
  const [count, rows, columns] = tensor.shape;
  const headWeights = Array.from({ length: count }, (_, head) => Array.from(tensor.data.subarray((head * rows + example.row) * columns, (head * rows + example.row + 1) * columns), (weight) => round(weight)));
  const mean = subwords.map((_, i) => sumNumbers(headWeights.map((row) => row[i])) / count);
  const listedIndices = sortIndices(rankIndices(mean, MAX_LISTED));
  const strongestKeys = headWeights.map((row, head) => /** @type {Row} */ ([`head ${head + 1}`, getUniqueName(subwords, argmax(row)), row[argmax(row)]]));
  const best = argmax(mean);
  return {
    introduction: addNote(createTable(["attends to", ...headWeights.map((_, head) => `head ${head + 1}`)], listedIndices.map((i) => [getUniqueName(subwords, i), ...headWeights.map((row) => row[i])])),
      `Weights of ${example.queryLabel} in all heads of the layer.`),
    question: { prompt: "The mean of a layer averages its heads. Which token gets the largest mean weight?", ...askWhichToken(subwords, mean), explanation: `(${headWeights.map((row) => formatNumber(row[best])).join(" + ")}) / ${count} = ${formatNumber(mean[best])}` },
    numbers: createTable(["head", `${example.queryText} attends most to`, "weight"], strongestKeys, [["mean", getUniqueName(subwords, best), mean[best]]]),
    link: ["Show all heads on the map", { view: "map" }],
  };
}

/** @param {LessonExample} example @returns {Promise<StepContent>} */
async function buildResidual(example) {
  const { values } = await example.loadCell();
  const flippedChannels = Array.from({ length: Math.min(MAX_CHANNELS, values.stream.length) }, (_, c) => c).filter((c) => (values.stream[c] < 0) !== (values.residual[c] < 0)).map((c) => c + 1);
  const count = flippedChannels.length;
  /** @type {[string, number[]][]} */
  const parts = [["x", values.stream], ["+ attention", values.output]];
  /** A pre-norm model passes on the sum itself. @type {[string, number[]][]} */
  const after = values.norm === "post" ? [["after LayerNorm", values.result]] : [];
  return {
    introduction: createChannelTable(example.queryText, parts),
    question: { prompt: `Attention is added to x. In how many of these ${MAX_CHANNELS} channels does x change its sign?`, ...askWhichNumber(count, pickWrongAnswers([Math.max(0, count - 1), Math.max(0, count - 2)], [count + 1, count + 2], example.answerSeed + 1), String),
      explanation: `${count ? `in channel ${flippedChannels.join(", ")}` : "in none"}; x has length ${formatNumber(computeNorm(values.stream), 2)}, the attention output ${formatNumber(computeNorm(values.output), 2)}` },
    numbers: createChannelTable(example.queryText, parts, { added: "= sum", after }),
    link: ["Show the word's path", { view: "path", ...example.selection }],
  };
}

/** @param {LessonExample} example @returns {Promise<StepContent>} */
async function buildDecoder(example) {
  const { trace } = example;
  const [layer, head] = example.kind === "cross" ? [example.layer, example.head] : [trace.getLayerCount("cross") - 1, null];
  const { values, rows, columns } = await trace.loadWeights("cross", layer, head, false);
  const [rowCount, columnCount] = [rows.length, columns.length];
  const best = rows.map((_, i) => argmax(values.subarray(i * columnCount, (i + 1) * columnCount)));
  return {
    question: { prompt: `The translation has ${rowCount} rows, one for each token it writes, including </s>; the source has ${columnCount} tokens. How many weights does one cross-attention head have?`,
      ...askWhichNumber(rowCount * columnCount, [rowCount * rowCount, columnCount * columnCount, rowCount + columnCount], String), explanation: `${rowCount} × ${columnCount}: each target row attends to each source token` },
    numbers: addNote(createTable(["writes", "attends most to", "weight"], rows.slice(0, MAX_TOKENS).map((subword, i) => [subword, getUniqueName(columns, best[i]), formatNumber(values[i * columnCount + best[i]], 3)])),
      `Cross-attention of decoder layer ${layer + 1}, ${head === null ? "mean of heads" : `head ${head + 1}`}.`),
    link: ["Show cross-attention", { view: "head", kind: "cross", layer, head, query: example.step, key: null }],
  };
}

/** @param {LessonExample} example @returns {Promise<StepContent>} */
async function buildNextWord(example) {
  const { manifest } = example;
  const { top } = manifest.steps[example.step];
  const candidates = top.slice(0, MAX_LISTED);
  const names = candidates.map((/** @type {any} */ candidate) => getTokenText(manifest, candidate.id));
  const [first, second] = candidates;
  const difference = round(second.logit, PRECISE_DIGITS) - round(first.logit, PRECISE_DIGITS);
  const { probability } = second;
  const above = /** @type {[number, number]} */ ([Math.sqrt(probability * first.probability), first.probability]);
  return {
    introduction: addNote(createTable(["token", "logit"], candidates.map((/** @type {any} */ candidate, /** @type {number} */ i) => [names[i], formatNumber(candidate.logit, PRECISE_DIGITS)])), "▁ is a space before the token."),
    question: { prompt: `“${names[0]}” has probability ${formatNumber(first.probability, PRECISE_DIGITS)}. How probable is “${names[1]}”, whose logit is ${formatNumber(-difference, PRECISE_DIGITS)} smaller?`,
      ...askWhichNumber(probability, pickWrongAnswers([probability / 10, probability / 100], above, example.answerSeed), (value) => formatNumber(value, PRECISE_DIGITS)), explanation: `softmax: ${formatNumber(first.probability, PRECISE_DIGITS)} × exp(${formatNumber(difference, PRECISE_DIGITS)}) = ${formatNumber(probability, PRECISE_DIGITS)}` },
    numbers: createTable(["token", "logit", "probability"], candidates.map((/** @type {any} */ candidate, /** @type {number} */ i) => [names[i], formatNumber(candidate.logit, PRECISE_DIGITS), formatNumber(candidate.probability, PRECISE_DIGITS)])),
    link: ["Show the next-word probabilities", { view: "translate", step: example.step }],
  };
}

/** @param {LessonExample} example @returns {Promise<StepContent>} */
async function buildSearch(example) {
  const { manifest } = example;
  const steps = manifest.translation.complete ? manifest.steps : manifest.steps.slice(0, -1);
  const total = round(manifest.translation.log_probability, PRECISE_DIGITS);
  const width = manifest.beam_search?.beam_size ?? 1;
  const listedSteps = steps.slice(0, MAX_TOKENS);
  const formatPrecise = (/** @type {number} */ value) => formatNumber(value, PRECISE_DIGITS);
  const missing = getRemainder(total, listedSteps.map((/** @type {any} */ entry) => entry.log_probability), PRECISE_DIGITS);
  return {
    question: { prompt: `The log-probabilities of all ${steps.length} tokens sum to ${formatPrecise(total)}. How probable is the translation?`,
      ...askWhichNumber(Math.exp(total), [Math.exp(total / steps.length), Math.min(...steps.map((/** @type {any} */ entry) => entry.probability))], formatPercent), explanation: `exp(${formatPrecise(total)}) = ${formatNumber(Math.exp(total))}: the product of all probabilities` },
    numbers: addNote(createTable(["token", "log-probability"],
      [...listedSteps.map((/** @type {any} */ entry) => /** @type {Row} */ ([getTokenText(manifest, entry.id), formatFixed(entry.log_probability)])), ...createRemainderRow(steps.length - listedSteps.length, missing, (value) => [formatFixed(value)])],
      [["Sum", formatFixed(total)], ["Score, with length penalty", formatFixed(manifest.translation.score)]]), "▁ is a space before the token."),
    link: [width > 1 ? `Show how ${width} hypotheses compete` : "Show the search tree", { view: "decode", step: example.step }],
  };
}

/** With six digits, even for tiny values: numbers of a sum. @param {number} value */
function formatFixed(value) {
  return value.toFixed(PRECISE_DIGITS).replace("-", "−");
}

/** @param {string} text */
function capitalize(text) {
  return text[0].toUpperCase() + text.slice(1);
}

/** @type {Step[]} */
export const STEPS = [
  { title: "Tokens", text: "A model computes with numbers. The sentence is split into tokens of the vocabulary, words or subwords, and each token has an id. The last token, </s>, marks the end of the sentence.", formula: "sentence → tokens → ids", make: buildTokens },
  { title: "Embedding and position", text: "Each id selects a row of a learned matrix: the embedding, a vector of d numbers. Embeddings alone ignore word order, so a position vector is added. The sum is x.", formula: "x = embedding · √d + position", make: buildEmbedding },
  { title: "Query, key, value", text: "Each head projects x to three short vectors. The query q encodes what a word searches for, the key k what it matches, the value v what it contributes. W^Q, W^K, W^V and the biases b are learned (a model without biases has b = 0).", formula: "q = x W^Q + b^Q    k = x W^K + b^K    v = x W^V + b^V",
    pre: { text: "This model is pre-norm: LayerNorm normalizes x first. Each head projects the result to three short vectors. The query q encodes what a word searches for, the key k what it matches, the value v what it contributes. W^Q, W^K, W^V and the biases b are learned (a model without biases has b = 0).", formula: "n = LayerNorm(x)    q = n W^Q + b^Q    k = n W^K + b^K    v = n W^V + b^V" }, make: buildProjections },
  { title: "Scores", text: "The query of a word is compared with the key of every word, including its own. Matching channels are multiplied and summed: a dot product. A large score means a good match.", formula: "score = q · k = Σ q_c k_c", make: buildScores },
  { title: "Scaling", text: "Dot products grow with the number of channels. Divided by √d_k, they stay in a range where softmax does not saturate.", formula: "s = score / √d_k", make: buildScaling },
  { title: "Mask", text: "The encoder may attend to every word. The decoder writes from left to right: it must not see words that are not written yet, or training would leak the answer. Their scores become −∞.", formula: "s = −∞ where the column comes after the row", make: buildMask },
  { title: "Softmax", text: "Scores become weights: all positive, summing to 1. The largest score gets the largest weight, and a weight is exactly 0 only where it is masked. Heat maps show these weights.", formula: "weight = exp(s) / Σ exp(s)", make: buildSoftmax },
  { title: "Weighted sum", text: "The value of each word is multiplied by its weight, and all are summed. The result z is the output of the head for this word.", formula: "z = Σ weight · v", make: buildWeightedSum },
  { title: "Many heads", text: "Every head has its own W^Q, W^K and W^V, so each can search for something different: the previous word, a noun, the end. Their outputs are concatenated and projected by W^O.", formula: "Concat(z₁, …, z_h) W^O + b^O", make: buildHeads },
  { title: "Add and norm", text: "The attention output is added to x (a residual connection), so the word keeps its information and gains more. LayerNorm keeps the numbers in range. A feed-forward network then transforms each word separately, and the next layer starts.", formula: "LayerNorm(x + attention(x))",
    pre: { text: "The attention output is added to x (a residual connection), so the word keeps its information and gains more. This model is pre-norm: LayerNorm came before attention, and the sum is passed on unchanged. A feed-forward network, again after a LayerNorm, then transforms each word separately, and the next layer starts.", formula: "x + attention(LayerNorm(x))" }, make: buildResidual },
  { title: "Decoder", text: "The decoder has a second attention: queries come from the words written so far, keys and values from the encoder. It shows which source words a target word is based on.", formula: "q from the target, k and v from the source", make: buildDecoder },
  { title: "Next word", text: "The last vector is compared with every token of the vocabulary: the logits. Softmax turns them into probabilities. One token is written and read again, and the next step starts.", formula: "P(word) = softmax(logits)", make: buildNextWord },
  { title: "Search", text: "The best word now may lead to a worse sentence later. Beam search keeps several hypotheses and compares their summed log-probabilities; a length penalty keeps short ones from winning just because they are short.", formula: "log P(sentence) = Σ log P(word)", make: buildSearch },
];
