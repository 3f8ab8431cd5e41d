// A reader for safetensors: eight bytes of length, a JSON header, then raw numbers.

/** @typedef {{shape: number[], data: Float32Array | Uint8Array | Int32Array}} Tensor */

/**
 * Every tensor of a safetensors body; float16 becomes float32, which JavaScript supports.
 * @param {ArrayBuffer} buffer
 * @returns {Map<string, Tensor>}
 */
export function readTensors(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  /** @type {Map<string, Tensor>} */
  const tensors = new Map();
  for (const [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const [start, end] = entry.data_offsets;
    const bytes = buffer.slice(8 + length + start, 8 + length + end); // a copy is aligned
    tensors.set(name, { shape: entry.shape, data: READERS[entry.dtype](bytes) });
  }
  return tensors;
}

/** @type {Record<string, (bytes: ArrayBuffer) => Float32Array | Uint8Array | Int32Array>} */
const READERS = {
  U8: (bytes) => new Uint8Array(bytes),
  I32: (bytes) => new Int32Array(bytes),
  F32: (bytes) => new Float32Array(bytes),
  F16: (bytes) => Float32Array.from(new Uint16Array(bytes), decodeHalf),
};

/**
 * The value of an IEEE 754 binary16 bit pattern.
 * @param {number} bits
 */
export function decodeHalf(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
