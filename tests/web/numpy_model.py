"""The whole model anew in NumPy, from the paper and the file of weights; without Heedful's code."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

Array = Any
"""Of float64."""


@dataclass(frozen=True)
class Attention:
    """One attention: q, k and v are (heads, length, channels), the others (heads, rows, columns)."""

    q: Array
    k: Array
    v: Array
    scores: Array
    scaled: Array
    weights: Array
    z: Array
    output: Array
    """After W^O: (rows, width)."""
    result: Array
    """After the residual sum and, in a post-norm model, LayerNorm: (rows, width)."""


class Recomputed:
    """A post-norm or pre-norm model with sinusoidal positions on one pair of sentences."""

    def __init__(self, folder: Path, heads: int, source: list[int], read: list[int]) -> None:
        self.tensors = {
            name: array.astype(np.float64) for name, array in load_file(folder / "weights.safetensors").items()
        }
        self.heads = heads
        self.pre = "encoder.norm.weight" in self.tensors  # only a pre-norm stack ends with a norm of its own
        self.attention: dict[tuple[str, int], Attention] = {}
        self.streams: dict[str, Array] = {}
        memory = self._stack("encoder", source, None)
        self.states = self._stack("decoder", read, memory)
        logits = self.states @ self.tensors["decoder.embedding.table.weight"].T  # tied to the embedding
        logits[:, 0] = -np.inf  # padding is never written
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        self.probabilities = powers / powers.sum(axis=1, keepdims=True)

    def _stack(self, side: str, ids: list[int], memory: Array | None) -> Array:
        table = self.tensors[f"{side}.embedding.table.weight"]
        x = table[ids] * np.sqrt(table.shape[1]) + sinusoids(len(ids), table.shape[1])
        self.streams[f"{side}.embedding"] = x
        layer = 0
        while (name := f"{side}.layers.{layer}") + ".attention.input.weight" in self.tensors:
            visible = None if side == "encoder" else np.tril(np.ones((len(ids), len(ids)), dtype=bool))
            own = self._attend(f"{name}.attention", f"{name}.residual_attention.norm", x, None, visible)
            self.attention[side, layer] = own
            x = self.streams[f"{side}.{layer}.self"] = own.result
            if memory is not None:
                cross = self._attend(f"{name}.cross_attention", f"{name}.residual_cross.norm", x, memory, None)
                self.attention["cross", layer] = cross
                x = self.streams[f"{side}.{layer}.cross"] = cross.result
            norm = f"{name}.residual_feed_forward.norm"
            inner = np.maximum(0, self._linear(f"{name}.feed_forward.inner", self._before(norm, x)))
            x = self._after(norm, x + self._linear(f"{name}.feed_forward.outer", inner))
            self.streams[f"{side}.{layer}.feed_forward"] = x
            layer += 1
        return self._before(f"{side}.norm", x)

    def _attend(self, name: str, norm: str, stream: Array, memory: Array | None, visible: Array | None) -> Attention:
        x = self._before(norm, stream)
        memory = x if memory is None else memory
        width = x.shape[1]
        weight, bias = self.tensors[f"{name}.input.weight"], self.tensors[f"{name}.input.bias"]
        made = [
            (seen @ weight[part * width :][:width].T + bias[part * width :][:width])
            .reshape(len(seen), self.heads, -1)
            .transpose(1, 0, 2)
            for part, seen in enumerate((x, memory, memory))
        ]
        q, k, v = made
        scores = q @ k.transpose(0, 2, 1)
        scaled = scores / np.sqrt(q.shape[2])
        hidden = scaled if visible is None else np.where(visible, scaled, -np.inf)
        powers = np.exp(hidden - hidden.max(axis=2, keepdims=True))
        weights = powers / powers.sum(axis=2, keepdims=True)
        z = weights @ v
        output = self._linear(f"{name}.output", z.transpose(1, 0, 2).reshape(len(x), width))
        return Attention(q, k, v, scores, scaled, weights, z, output, self._after(norm, stream + output))

    def _before(self, name: str, x: Array) -> Array:
        return self._norm(name, x) if self.pre else x

    def _after(self, name: str, x: Array) -> Array:
        return x if self.pre else self._norm(name, x)

    def _linear(self, name: str, x: Array) -> Array:
        return x @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"]

    def _norm(self, name: str, x: Array) -> Array:
        centred = x - x.mean(axis=1, keepdims=True)
        normal = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
        return normal * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"]


def sinusoids(length: int, width: int) -> Array:
    """Section 3.5 of the paper: sines in even channels, cosines in odd ones."""
    position, channel = np.arange(length)[:, None], np.arange(width)[None]
    angle = position / 10000 ** (2 * (channel // 2) / width)
    return np.where(channel % 2 == 0, np.sin(angle), np.cos(angle))
