// The steps of the lesson in the order of the lecture; questions and answers are computed from this sentence.

import { pieceName } from "heedful/data/trace.js";
import { h, percent, shown } from "heedful/parts/dom.js";
import { tensorName } from "heedful/parts/lesson_place.js";
import { around, CHANNELS, channels, inOrder, largest, named, norm, remarked, rest, restLine, rounded, strongest, sum, table, whichNumber, whichPiece } from "heedful/parts/lesson_tables.js";

/** @typedef {import("heedful/parts/lesson_place.js").Place} Place */
/** @typedef {import("heedful/parts/lesson_place.js").Made} Made */
/** @typedef {import("heedful/parts/lesson_tables.js").Line} Line */
/** What a step tells; ``pre`` is what a pre-norm model does instead. @typedef {{title: string, text: string, formula: string, pre?: {text: string, formula: string}, make: (place: Place) => Promise<Made>}} Step */

const LISTED = 6;
/** Pieces of a long sentence that are listed. */
const SHOWN = 40;
/** Digits of numbers that others are computed from, so that these come out right in four. */
const FINE = 6;
const SAME = ["the same id", "different ids"];

/** @param {Place} place @returns {Promise<Made>} */
async function tokens(place) {
  const { pieces, ids } = place.trace.sides.source;
  return {
    question: sameId(pieces, ids),
    numbers: table(["piece", "id"], pieces.slice(0, SHOWN).map((piece, i) => [piece, String(ids[i])])),
    link: ["See the pieces on the axes of a head", { view: "head", words: false, ...place.selection }],
  };
}

/** Two pieces that differ in their capital only, or one that comes twice, or might. @param {string[]} pieces @param {number[]} ids @returns {import("heedful/parts/lesson_place.js").Question} */
function sameId(pieces, ids) {
  const pairs = pieces.flatMap((one, i) => pieces.slice(i + 1).map((other, j) => ({ one, other, ids: [ids[i], ids[i + 1 + j]] })));
  const pair = pairs.find(({ one, other }) => one !== other && one.toLowerCase() === other.toLowerCase()) ?? pairs.find(({ one, other }) => one === other);
  if (!pair) return { ask: `If “${pieces[0]}” came once more at the end of the sentence: would both have the same id?`, choices: SAME, answer: SAME[0], because: `${ids[0]}: an id belongs to the spelling, wherever it stands` };
  const [one, other] = pair.ids;
  const ask = pair.one === pair.other ? `“${pair.one}” comes twice. Do both have the same id?` : `The sentence has “${pair.one}” and “${pair.other}”. Do they have the same id?`;
  return one === other
    ? { ask, choices: SAME, answer: SAME[0], because: `both ${one}: only their positions, in the next step, tell them apart` }
    : { ask, choices: SAME, answer: SAME[1], because: `${one} and ${other}: each spelling is a piece of its own, and the model must learn that they mean the same` };
}

/** @param {Place} place @returns {Promise<Made>} */
async function embedding(place) {
  const { word, cell } = await place.embedded();
  const [scaled, position] = cell.sections.find((/** @type {any} */ section) => section.heading === "The vector x").tables[0].cells.slice(-2);
  /** @type {[string, number[]][]} */
  const parts = [[place.manifest.model.scaled_embeddings ? "embedding × √d" : "embedding", scaled], ["+ position", position]];
  return {
    before: channels(word, parts),
    question: { ask: `At “${word}”: which vector is longer, the word's or the position's?`, choices: ["the word", "the position"], answer: norm(scaled) > norm(position) ? "the word" : "the position",
      because: `the word's vector has length ${shown(norm(scaled), 2)}, the position's ${shown(norm(position), 2)}; the length is √ of the sum of all squares` },
    numbers: channels(word, parts, { added: "= x" }),
    link: ["See all positions", { view: "positions" }],
  };
}

/** @param {Place} place @returns {Promise<Made>} */
async function projections(place) {
  const { values } = await place.cell();
  const { width, heads } = place.manifest.model;
  const { word, lookedAt, key } = place;
  const vectors = channels("in this head", [[`q of ${word}: what it looks for`, values.q], [`k of ${lookedAt}: what it can be found by`, values.k[key]], [`v of ${lookedAt}: what it hands over`, values.v[key]]]);
  return {
    question: { ask: `x has ${width} numbers, and the layer has ${heads} heads. How many numbers has q in one head?`, ...whichNumber(values.q.length, [width, heads], String),
      because: `${width} / ${heads} = ${values.q.length}, for k and v as well` },
    numbers: place.kind === "cross" ? remarked(vectors, `In cross-attention q comes from the decoder's row that writes “${word}”, k and v from the encoder's output for “${lookedAt}”.`) : vectors,
    link: ["See q, k and v of every word", { view: "cell", ...place.selection }],
  };
}

/** @param {Place} place @returns {Promise<Made>} */
async function scores(place) {
  const { values } = await place.cell();
  const pieces = values.column_pieces;
  const score = seen(values, values.scores);
  const [best] = strongest(score, 1);
  const rivals = inOrder(strongest(score, 4).filter((i) => score[i] > -Infinity));
  const told = tellingChannels(values.q, rivals.map((i) => values.k[i]), rivals.indexOf(best));
  const products = told.map((c) => rounded(rounded(values.q[c]) * rounded(values.k[best][c])));
  const others = values.q.length - told.length;
  const remark = `${others ? `Those of the ${values.q.length} channels that decide: enough to see which score is the largest.` : "All channels."} Multiply q by each k, channel by channel, and add up.`;
  const names = told.map((c) => `channel ${c + 1}`);
  return {
    before: remarked(table(["in this head", ...names], [[`q of ${place.word}`, ...told.map((c) => shown(values.q[c], 2))],
      ...rivals.map((i) => /** @type {Line} */ ([`k of ${named(pieces, i)}`, ...told.map((c) => shown(values.k[i][c], 2))]))]), remark),
    question: { ask: `Which piece gets the largest score from ${place.who}?`, ...whichPiece(pieces, score), because: `q · k = ${shown(score[best])}, the largest of the row` },
    numbers: h("div", null,
      table([`${place.word} · ${pieces[best]}`, ...names, ...(others ? [`${others} other channels`] : []), "score"], [
        ["q", ...told.map((c) => values.q[c]), ...(others ? [""] : []), ""], ["k", ...told.map((c) => values.k[best][c]), ...(others ? [""] : []), ""],
        ["q × k", ...products, ...(others ? [rest(score[best], products)] : []), score[best]]]),
      table(["looks at", "score"], strongest(score, rivals.length).map((i) => [named(pieces, i), score[i]]))),
    link: ["See all products", { view: "cell", ...place.selection, key: best }],
  };
}

/** As few channels as show which key fits the query best, those with the largest differences. @param {number[]} query @param {number[][]} keys @param {number} best */
function tellingChannels(query, keys, best) {
  const products = keys.map((key) => key.map((value, c) => rounded(value, 2) * rounded(query[c], 2)));
  const spread = query.map((_, c) => Math.max(...products.map((each) => each[c])) - Math.min(...products.map((each) => each[c])));
  const order = strongest(spread, query.length);
  for (let count = Math.min(4, order.length); count < order.length; count++) {
    const few = order.slice(0, count);
    if (largest(products.map((each) => sum(few.map((c) => each[c])))) === best) return inOrder(few);
  }
  return inOrder(order);
}

/** Numbers of a row where it may look, −∞ elsewhere. @param {any} values @param {number[]} numbers @returns {number[]} */
function seen({ weights }, numbers) {
  return numbers.map((number, i) => (weights[i] > 0 ? number : -Infinity));
}

/** @param {Place} place @returns {Promise<Made>} */
async function scaling(place) {
  const { values } = await place.cell();
  const all = seen(values, values.scores);
  const best = largest(all);
  const { divisor } = values;
  const score = rounded(all[best], FINE);
  return {
    question: { ask: `The score of “${named(values.column_pieces, best)}” is ${shown(score, FINE)}, and d_k = ${values.q.length}. What is left after scaling?`, ...whichNumber(score / divisor, around([score / divisor ** 2, score / divisor ** 3], [score, score * divisor], place.turn + 1), shown),
      because: `${shown(score, FINE)} / √${values.q.length} = ${shown(score, FINE)} / ${shown(divisor, FINE)} = ${shown(score / divisor)}` },
    numbers: table(["looks at", "score", "score / √d_k"], strongest(all, LISTED).map((i) => [named(values.column_pieces, i), shown(all[i], FINE), all[i] / divisor])),
    link: ["See the whole row", { view: "cell", ...place.selection, key: best }],
  };
}

/** @param {Place} place @returns {Promise<Made>} */
async function mask(place) {
  const { read } = place.trace.sides;
  const visible = place.step + 1;
  const all = read.pieces.length;
  const below = /** @type {[number, number]} */ ([visible - 1, Math.max(0, visible - 2)]);
  return {
    before: remarked(h("ol", { class: "lesson-pieces" }, read.pieces.slice(0, SHOWN).map((piece) => h("li", { dir: "auto" }, piece))),
      `What the decoder reads: ${all} pieces. <s> starts it; the row of each piece writes the next one.`),
    question: { ask: `The decoder is about to write “${place.written}”. At how many of these ${all} pieces may it look?`, ...whichNumber(visible, around(below, [visible + 1, all + 1], place.turn + 2), String),
      because: `at the ${visible} that are there by then, ending with ${read.pieces.slice(0, visible).slice(-LISTED).join(" ")}` },
    numbers: table(["piece", `for “${place.written}”`], read.pieces.slice(0, SHOWN).map((piece, i) => [piece, i < visible ? "visible" : "masked: −∞, weight 0"])),
    link: ["See the masked triangle", { view: "head", kind: "decoder", layer: 0, head: 0, query: null, key: null }],
  };
}

/** @param {Place} place @returns {Promise<Made>} */
async function softmax(place) {
  const { values } = await place.cell();
  const { weights, column_pieces: pieces } = values;
  const scaled = seen(values, values.scaled).map((s) => (s === -Infinity ? s : rounded(s, FINE)));
  const best = largest(weights);
  const weight = weights[best];
  const powers = scaled.map((s) => rounded(Math.exp(s - Math.max(...scaled)), FINE));
  const listed = strongest(weights, LISTED).filter((i) => weights[i] > 0);
  const others = weights.length - listed.length;
  const total = powers[best] / weight;
  const missing = rest(total, listed.map((i) => powers[i]), FINE);
  const wrong = around([weight / 2, weight / 4], weight < 0.8 ? [(2 * weight + 1) / 3, (weight + 2) / 3] : [weight / 3, weight / 5], place.turn);
  return {
    before: remarked(table(["looks at", "s"], inOrder(listed).map((i) => [named(pieces, i), shown(scaled[i], FINE)])),
      `Subtract the largest s, so that it becomes exp(0) = 1${others ? `; the ${others} others together have ${fixed(missing)}` : ""}.`),
    question: { ask: `${upper(place.who)} looks most at “${named(pieces, best)}”. With how much of its attention?`, ...whichNumber(weight, wrong, percent),
      because: `1 / ${fixed(total)} = ${fixed(weight)}; all weights together are 1` },
    numbers: table(["looks at", "s", "exp(s − max)", "weight"],
      [...listed.map((i) => /** @type {Line} */ ([named(pieces, i), fixed(scaled[i]), fixed(powers[i]), fixed(weights[i])])), ...restLine(others, missing, () => ["", fixed(missing), fixed(rest(1, listed.map((i) => weights[i]), FINE))])],
      [["Sum", "", fixed(total), fixed(1)]]),
    link: ["See this head, large", { view: "head", ...place.selection }],
  };
}

/** @param {Place} place @returns {Promise<Made>} */
async function weightedSum(place) {
  const { values } = await place.cell();
  const { weights, column_pieces: pieces } = values;
  const value = values.v.map((/** @type {number[]} */ each) => each[0]);
  /** @type {number[]} */
  const terms = value.map((/** @type {number} */ v, /** @type {number} */ i) => rounded(rounded(weights[i]) * rounded(v)));
  const sizes = values.contributions.map((/** @type {number[]} */ each) => Math.abs(each[0]));
  const listed = strongest(sizes, LISTED);
  const best = listed[0];
  return {
    before: table(["looks at", "weight", "v, channel 1"], inOrder(listed).map((i) => [named(pieces, i), weights[i], value[i]])),
    question: { ask: "Which piece adds the most (plus or minus) to channel 1 of z?", ...whichPiece(pieces, sizes),
      because: `${shown(weights[best])} × ${shown(value[best])} = ${shown(terms[best])}` },
    numbers: table(["looks at", "weight", "v, channel 1", "weight × v"],
      [...listed.map((i) => /** @type {Line} */ ([named(pieces, i), weights[i], value[i], terms[i]])), ...restLine(pieces.length - listed.length, rest(values.z[0], listed.map((i) => terms[i])), (missing) => ["", "", missing])],
      [["z, channel 1", "", "", values.z[0]]]),
    link: ["See the whole sum", { view: "cell", ...place.selection, key: best }],
  };
}

/** @param {Place} place @returns {Promise<Made>} */
async function heads(place) {
  const { pieces } = place.trace.of(place.kind)[1];
  const tensor = await place.trace.tensor(tensorName(place));
  const [count, rows, columns] = tensor.shape;
  const all = Array.from({ length: count }, (_, head) => Array.from(tensor.data.subarray((head * rows + place.row) * columns, (head * rows + place.row + 1) * columns), (weight) => rounded(weight)));
  const mean = pieces.map((_, i) => sum(all.map((row) => row[i])) / count);
  const listed = inOrder(strongest(mean, LISTED));
  const favourites = all.map((row, head) => /** @type {Line} */ ([`head ${head + 1}`, named(pieces, largest(row)), row[largest(row)]]));
  const best = largest(mean);
  return {
    before: remarked(table(["looks at", ...all.map((_, head) => `head ${head + 1}`)], listed.map((i) => [named(pieces, i), ...all.map((row) => row[i])])),
      `Weights of ${place.who} in all heads of the layer.`),
    question: { ask: "Maps of a whole layer show the mean of its heads. Which piece gets the most there?", ...whichPiece(pieces, mean), because: `(${all.map((row) => shown(row[best])).join(" + ")}) / ${count} = ${shown(mean[best])}` },
    numbers: table(["head", `${place.word} looks most at`, "weight"], favourites, [["mean", named(pieces, best), mean[best]]]),
    link: ["See all heads on the map", { view: "map" }],
  };
}

/** @param {Place} place @returns {Promise<Made>} */
async function residual(place) {
  const { values } = await place.cell();
  const turned = Array.from({ length: Math.min(CHANNELS, values.stream.length) }, (_, c) => c).filter((c) => (values.stream[c] < 0) !== (values.residual[c] < 0)).map((c) => c + 1);
  const count = turned.length;
  /** @type {[string, number[]][]} */
  const parts = [["x", values.stream], ["+ attention", values.output]];
  /** A pre-norm model goes on with the sum itself. @type {[string, number[]][]} */
  const after = values.norm === "post" ? [["after LayerNorm", values.result]] : [];
  return {
    before: channels(place.word, parts),
    question: { ask: `Attention is added to x. In how many of these ${CHANNELS} channels does x change its sign?`, ...whichNumber(count, around([Math.max(0, count - 1), Math.max(0, count - 2)], [count + 1, count + 2], place.turn + 1), String),
      because: `${count ? `in channel ${turned.join(", ")}` : "in none"}; x is ${shown(norm(values.stream), 2)} long, what attention adds ${shown(norm(values.output), 2)}` },
    numbers: channels(place.word, parts, { added: "= sum", after }),
    link: ["See the word's whole path", { view: "path", ...place.selection }],
  };
}

/** @param {Place} place @returns {Promise<Made>} */
async function decoder(place) {
  const { trace } = place;
  const [layer, head] = place.kind === "cross" ? [place.layer, place.head] : [trace.layers("cross") - 1, null];
  const { values, rows, columns } = await trace.weights("cross", layer, head, false);
  const [high, wide] = [rows.length, columns.length];
  const best = rows.map((_, i) => largest(values.subarray(i * wide, (i + 1) * wide)));
  return {
    question: { ask: `The translation has ${high} rows, one for each piece it writes, </s> too; the source has ${wide} pieces. How many weights has one head of cross-attention?`,
      ...whichNumber(high * wide, [high * high, wide * wide, high + wide], String), because: `${high} × ${wide}: each row of the translation looks at each piece of the source` },
    numbers: remarked(table(["writes", "looks most at", "weight"], rows.slice(0, SHOWN).map((piece, i) => [piece, named(columns, best[i]), shown(values[i * wide + best[i]], 3)])),
      `Cross-attention of decoder layer ${layer + 1}, ${head === null ? "mean of heads" : `head ${head + 1}`}.`),
    link: ["See cross-attention", { view: "head", kind: "cross", layer, head, query: place.step, key: null }],
  };
}

/** @param {Place} place @returns {Promise<Made>} */
async function nextWord(place) {
  const { manifest } = place;
  const { top } = manifest.steps[place.step];
  const listed = top.slice(0, LISTED);
  const names = listed.map((/** @type {any} */ each) => pieceName(manifest, each.id));
  const [first, second] = listed;
  const apart = rounded(second.logit, FINE) - rounded(first.logit, FINE);
  const { probability } = second;
  const above = /** @type {[number, number]} */ ([Math.sqrt(probability * first.probability), first.probability]);
  return {
    before: remarked(table(["piece", "logit"], listed.map((/** @type {any} */ each, /** @type {number} */ i) => [names[i], shown(each.logit, FINE)])), "▁ is a space before the piece."),
    question: { ask: `“${names[0]}” has probability ${shown(first.probability, FINE)}. How likely is “${names[1]}”, whose logit is ${shown(-apart, FINE)} smaller?`,
      ...whichNumber(probability, around([probability / 10, probability / 100], above, place.turn), (value) => shown(value, FINE)), because: `softmax: ${shown(first.probability, FINE)} × exp(${shown(apart, FINE)}) = ${shown(probability, FINE)}` },
    numbers: table(["piece", "logit", "probability"], listed.map((/** @type {any} */ each, /** @type {number} */ i) => [names[i], shown(each.logit, FINE), shown(each.probability, FINE)])),
    link: ["See the next-word bars", { view: "translate", step: place.step }],
  };
}

/** @param {Place} place @returns {Promise<Made>} */
async function beam(place) {
  const { manifest } = place;
  const steps = manifest.translation.complete ? manifest.steps : manifest.steps.slice(0, -1);
  const total = rounded(manifest.translation.log_probability, FINE);
  const width = manifest.beam?.width ?? 1;
  const listed = steps.slice(0, SHOWN);
  const fine = (/** @type {number} */ value) => shown(value, FINE);
  const missing = rest(total, listed.map((/** @type {any} */ each) => each.log_probability), FINE);
  return {
    question: { ask: `The log-probabilities of all ${steps.length} pieces add up to ${fine(total)}. How likely is the whole translation?`,
      ...whichNumber(Math.exp(total), [Math.exp(total / steps.length), Math.min(...steps.map((/** @type {any} */ each) => each.probability))], percent), because: `exp(${fine(total)}) = ${shown(Math.exp(total))}: the product of all probabilities` },
    numbers: remarked(table(["piece", "log-probability"],
      [...listed.map((/** @type {any} */ each) => /** @type {Line} */ ([pieceName(manifest, each.id), fixed(each.log_probability)])), ...restLine(steps.length - listed.length, missing, (value) => [fixed(value)])],
      [["Sum", fixed(total)], ["Score, with length penalty", fixed(manifest.translation.score)]]), "▁ is a space before the piece."),
    link: [width > 1 ? `See how ${width} hypotheses compete` : "See what search has thought of", { view: "decode", step: place.step }],
  };
}

/** With six digits, also what is nearly nothing: numbers that are added up. @param {number} value */
function fixed(value) {
  return value.toFixed(FINE).replace("-", "−");
}

/** @param {string} text */
function upper(text) {
  return text[0].toUpperCase() + text.slice(1);
}

/** @type {Step[]} */
export const STEPS = [
  { title: "Tokens", text: "A model computes with numbers. So the sentence is cut into pieces that it knows, words or parts of words, and each piece has its number in the vocabulary. A last piece, </s>, says that the sentence ends.", formula: "sentence → pieces → ids", make: tokens },
  { title: "Embedding and position", text: "Each id picks a row of a learned table: the word as a vector of d numbers. That alone would not tell first from last, so a vector of its position is added. The sum is x.", formula: "x = embedding · √d + position", make: embedding },
  { title: "Query, key, value", text: "Each head makes three short vectors from x. The query q says what a word looks for, the key k what it can be found by, the value v what it hands over. W^Q, W^K, W^V and the biases b are learned (a model without biases has b = 0).", formula: "q = x W^Q + b^Q    k = x W^K + b^K    v = x W^V + b^V",
    pre: { text: "This model is pre-norm: LayerNorm first brings x into range. From that each head makes three short vectors. The query q says what a word looks for, the key k what it can be found by, the value v what it hands over. W^Q, W^K, W^V and the biases b are learned (a model without biases has b = 0).", formula: "n = LayerNorm(x)    q = n W^Q + b^Q    k = n W^K + b^K    v = n W^V + b^V" }, make: projections },
  { title: "Scores", text: "A word compares its query with the key of every word, itself included. Equal channels are multiplied and added up: a dot product. A large score means: this is what I look for.", formula: "score = q · k = Σ q_c k_c", make: scores },
  { title: "Scaling", text: "Sums of many products grow with their number. Divided by √d_k they stay in a range where softmax can still tell words apart without deciding for one at once.", formula: "s = score / √d_k", make: scaling },
  { title: "Mask", text: "The encoder may look everywhere. The decoder writes from left to right: a word that is not written yet must not be seen, or training would be cheating. Its score becomes −∞.", formula: "s = −∞ where the column comes after the row", make: mask },
  { title: "Softmax", text: "Scores become shares: all positive, and together 1. The largest score gets the largest share, and none is quite 0 unless it is masked. These are the weights that all heat maps show.", formula: "weight = exp(s) / Σ exp(s)", make: softmax },
  { title: "Weighted sum", text: "Now the word collects: the value of each word, times its weight, all added up. The result z is what the head has found for this word.", formula: "z = Σ weight · v", make: weightedSum },
  { title: "Many heads", text: "Every head does this with its own W^Q, W^K and W^V, so each can look for something else: the previous word, a noun, the end. Their results are put side by side and mixed by W^O.", formula: "Concat(z₁, …, z_h) W^O + b^O", make: heads },
  { title: "Add and norm", text: "What attention found is added to x, so that the word stays what it was and learns something new. LayerNorm keeps the numbers in range. A small network then works on each word by itself, and the next layer begins.", formula: "LayerNorm(x + attention(x))",
    pre: { text: "What attention found is added to x, so that the word stays what it was and learns something new. This model is pre-norm: LayerNorm came before attention, and the sum goes on as it is. A small network, again after a LayerNorm, then works on each word by itself, and the next layer begins.", formula: "x + attention(LayerNorm(x))" }, make: residual },
  { title: "Decoder", text: "The decoder has a second attention: its queries come from the words written so far, keys and values from the encoder. There one sees which source words a target word is made from.", formula: "q from the target, k and v from the source", make: decoder },
  { title: "Next word", text: "The last vector is compared with every word of the vocabulary: the logits. Softmax makes probabilities of them. One word is written, read again, and the next step begins.", formula: "P(word) = softmax(logits)", make: nextWord },
  { title: "Search", text: "The best word now may lead to a worse sentence later. Beam search keeps several beginnings side by side and compares sums of log-probabilities; a length penalty keeps short ones from winning for being short.", formula: "log P(sentence) = Σ log P(word)", make: beam },
];
