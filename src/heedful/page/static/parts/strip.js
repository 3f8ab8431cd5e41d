// A vector as a strip of colours: one channel beside the other, orange below zero, blue above.

import { palette } from "heedful/parts/colours.js";
import { h, shown } from "heedful/parts/dom.js";

/** @param {ArrayLike<number>} vector @param {number} most the number of full colour @param {string} name */
export function strip(vector, most, name) {
  const numbers = Array.from(vector);
  const canvas = h("canvas", {
    class: "strip", role: "img", width: numbers.length, height: 1,
    "aria-label": `${name}: ${numbers.length} channels from ${shown(Math.min(...numbers), 2)} to ${shown(Math.max(...numbers), 2)}`,
  });
  const context = canvas.getContext("2d");
  const colours = palette();
  numbers.forEach((value, channel) => {
    context.fillStyle = colours.signed(value / most);
    context.fillRect(channel, 0, 1, 1);
  });
  return canvas;
}

/** The length of a vector. @param {ArrayLike<number>} vector */
export function norm(vector) {
  return Math.sqrt(dot(vector, vector));
}

/** @param {ArrayLike<number>} one @param {ArrayLike<number>} other */
export function dot(one, other) {
  let sum = 0;
  for (let i = 0; i < one.length; i++) sum += one[i] * other[i];
  return sum;
}

/** Row after row of a matrix. @param {import("heedful/data/safetensors.js").Tensor} tensor @param {number} row */
export function rowOf({ shape: [, width], data }, row) {
  return data.subarray(row * width, (row + 1) * width);
}
