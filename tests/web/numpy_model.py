"""The model reimplemented in NumPy, from the paper and the weights file, without code of Heedful."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

Array = Any
"""A float64 array."""


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
    """After W^O: (rows, d_model)."""
    result: Array
    """After the residual sum and, in a post-norm model, LayerNorm: (rows, d_model)."""


class NumpyModel:
    """A post-norm or pre-norm model with sinusoidal positions on one pair of sentences."""

    def __init__(self, folder: Path, heads: int, source: list[int], decoder_input: list[int]) -> None:
        self.tensors = {
            name: array.astype(np.float64) for name, array in load_file(folder / "weights.safetensors").items()
        }
        self.heads = heads
        self.is_pre_norm = "encoder.norm.weight" in self.tensors  # only a pre-norm stack ends with a norm
        self.attention: dict[tuple[str, int], Attention] = {}
        self.streams: dict[str, Array] = {}
        memory = self._stack("encoder", source, None)
        self.states = self._stack("decoder", decoder_input, memory)
        logits = self.states @ self.tensors["decoder.embedding.table.weight"].T  # tied to the embedding
        logits[:, 0] = -np.inf  # PAD is never predicted
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        self.probabilities = powers / powers.sum(axis=1, keepdims=True)

    def _stack(self, side: str, ids: list[int], memory: Array | None) -> Array:
        table = self.tensors[f"{side}.embedding.table.weight"]
        x = table[ids] * np.sqrt(table.shape[1]) + sinusoids(len(ids), table.shape[1])
        self.streams[f"{side}.embedding"] = x
        layer = 0
        while (name := f"{side}.layers.{layer}") + ".attention.input.weight" in self.tensors:
            attention_mask = None if side == "encoder" else np.tril(np.ones((len(ids), len(ids)), dtype=bool))
            self_attention = self._attend(
                f"{name}.attention", f"{name}.residual_attention.norm", x, None, attention_mask
            )
            self.attention[side, layer] = self_attention
            x = self.streams[f"{side}.{layer}.self"] = self_attention.result
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

    def _attend(
        self, name: str, norm: str, stream: Array, memory: Array | None, attention_mask: Array | None
    ) -> Attention:
        x = self._before(norm, stream)
        memory = x if memory is None else memory
        d_model = x.shape[1]
        weight, bias = self.tensors[f"{name}.input.weight"], self.tensors[f"{name}.input.bias"]
        projections = [
            (inputs @ weight[index * d_model :][:d_model].T + bias[index * d_model :][:d_model])
            .reshape(len(inputs), self.heads, -1)
            .transpose(1, 0, 2)
            for index, inputs in enumerate((x, memory, memory))
        ]
        q, k, v = projections
        scores = q @ k.transpose(0, 2, 1)
        scaled = scores / np.sqrt(q.shape[2])
        masked_scores = scaled if attention_mask is None else np.where(attention_mask, scaled, -np.inf)
        powers = np.exp(masked_scores - masked_scores.max(axis=2, keepdims=True))
        weights = powers / powers.sum(axis=2, keepdims=True)
        z = weights @ v
        output = self._linear(f"{name}.output", z.transpose(1, 0, 2).reshape(len(x), d_model))
        return Attention(q, k, v, scores, scaled, weights, z, output, self._after(norm, stream + output))

    def _before(self, name: str, x: Array) -> Array:
        return self._norm(name, x) if self.is_pre_norm else x

    def _after(self, name: str, x: Array) -> Array:
        return x if self.is_pre_norm else self._norm(name, x)

    def _linear(self, name: str, x: Array) -> Array:
        return x @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"]

    def _norm(self, name: str, x: Array) -> Array:
        centered = x - x.mean(axis=1, keepdims=True)
        normalized = centered / np.sqrt((centered**2).mean(axis=1, keepdims=True) + 1e-5)
        return normalized * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"]


def sinusoids(length: int, d_model: int) -> Array:
    """Section 3.5 of the paper: sines in even channels, cosines in odd ones."""
    position, channel = np.arange(length)[:, None], np.arange(d_model)[None]
    angle = position / 10000 ** (2 * (channel // 2) / d_model)
    return np.where(channel % 2 == 0, np.sin(angle), np.cos(angle))
