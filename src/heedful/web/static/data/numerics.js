// Numerics in float64: softmax(logits / T), entropy, top-k, dot products.

/**
 * @typedef {object} Distribution
 * @property {Float64Array} probabilities  they sum to 1
 * @property {number} logSum  ln of the sum of exp(logit / T); the sum itself may overflow
 * @property {number} entropy  in bits
 */

/** @param {ArrayLike<number>} logits @param {number} temperature @returns {Distribution} */
export function computeDistribution(logits, temperature) {
  const scaledLogits = Float64Array.from(logits, (logit) => logit / temperature);
  const max = scaledLogits.reduce((a, b) => Math.max(a, b), -Infinity);
  const logSum = max + Math.log(scaledLogits.reduce((sum, value) => sum + Math.exp(value - max), 0));
  const probabilities = scaledLogits.map((value) => Math.exp(value - logSum));
  const entropy = probabilities.reduce((sum, p) => (p > 0 ? sum - p * Math.log2(p) : sum), 0);
  return { probabilities, logSum, entropy: Math.max(0, entropy) };
}

/** The indices of the largest values, largest first. @param {ArrayLike<number>} values @param {number} count @returns {number[]} */
export function getTopK(values, count) {
  const finite = Array.from(values, (_, index) => index).filter((index) => values[index] > -Infinity);
  return finite.sort((a, b) => values[b] - values[a] || a - b).slice(0, count);
}

/** e^power in scientific notation, even where it would overflow: 3.6238 × 10⁴. @param {number} power */
export function formatExponential(power) {
  const log10 = power / Math.LN10;
  if (log10 > -3 && log10 < 6) return Math.exp(power).toPrecision(6);
  let exponent = Math.floor(log10);
  let mantissa = (10 ** (log10 - exponent)).toFixed(5);
  if (mantissa === "10.00000") [mantissa, exponent] = ["1.00000", exponent + 1];
  const superscript = String(exponent).replace("-", "⁻").replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(digit)]);
  return `${mantissa} × 10${superscript}`;
}

/** The Euclidean norm of a vector. @param {ArrayLike<number>} vector */
export function computeNorm(vector) {
  return Math.sqrt(computeDot(vector, vector));
}

/** @param {ArrayLike<number>} left @param {ArrayLike<number>} right */
export function computeDot(left, right) {
  let sum = 0;
  for (let i = 0; i < left.length; i++) sum += left[i] * right[i];
  return sum;
}

/** One row of a matrix. @param {import("heedful/data/safetensors.js").Tensor} tensor @param {number} row */
export function getRow({ shape: [, width], data }, row) {
  return data.subarray(row * width, (row + 1) * width);
}
