// Logits to probabilities, in the browser's 64 bits: softmax(logits / T), its sum, and its entropy.

/**
 * @typedef {object} Distribution
 * @property {Float64Array} probabilities  they sum to 1
 * @property {number} logSum  ln of the sum of exp(logit / T): the sum itself may be too large for a number
 * @property {number} entropy  in bits
 */

/** @param {ArrayLike<number>} logits @param {number} temperature @returns {Distribution} */
export function distribution(logits, temperature) {
  const heated = Float64Array.from(logits, (logit) => logit / temperature);
  const most = heated.reduce((one, other) => Math.max(one, other), -Infinity);
  const logSum = most + Math.log(heated.reduce((sum, value) => sum + Math.exp(value - most), 0));
  const probabilities = heated.map((value) => Math.exp(value - logSum));
  const entropy = probabilities.reduce((sum, p) => (p > 0 ? sum - p * Math.log2(p) : sum), 0);
  return { probabilities, logSum, entropy: Math.max(0, entropy) };
}

/** The places of the largest numbers, largest first. @param {ArrayLike<number>} values @param {number} count @returns {number[]} */
export function largest(values, count) {
  const finite = Array.from(values, (_, place) => place).filter((place) => values[place] > -Infinity);
  return finite.sort((one, other) => values[other] - values[one] || one - other).slice(0, count);
}

/** e to a power as people write it, even where it is too large for a number: 3.6238 × 10⁴. @param {number} power */
export function exponential(power) {
  const decimal = power / Math.LN10;
  if (decimal > -3 && decimal < 6) return Math.exp(power).toPrecision(6);
  let exponent = Math.floor(decimal);
  let mantissa = (10 ** (decimal - exponent)).toFixed(5);
  if (mantissa === "10.00000") [mantissa, exponent] = ["1.00000", exponent + 1];
  const raised = String(exponent).replace("-", "⁻").replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(digit)]);
  return `${mantissa} × 10${raised}`;
}
