"""Self-attention that knows how far apart two words are: rotary, relative (Shaw et al. 2018), ALiBi.

Each is ``MultiHeadAttention`` with one step changed. When there are fewer queries than keys, as in decoding
step by step, the queries are the last: the distance of two words never depends on what comes after them.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.model.attention import MultiHeadAttention, attention_scores, masked
from heedful.model.kernels import quick_attention
from heedful.model.positions import exact_sinusoids

READY = 256
"""Positions whose turns are kept; later ones are computed when they are needed."""


def distances(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """Where each key stands seen from each query: (queries, keys), negative to the left.

    >>> distances(2, 3)
    tensor([[-1,  0,  1],
            [-2, -1,  0]])
    """
    key = torch.arange(keys, device=device)
    return key - key[keys - queries :, None]


class RotaryAttention(MultiHeadAttention):
    """Each pair of channels of queries and keys is turned by an angle that grows with the position.

    A product of a query and a key then depends on their distance alone (Su et al. 2021). The angles are those
    of the paper's sines: pos / 10000^(2i/d_k).
    """

    def project(self, x: Tensor, first: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().project(x)
        return turned(query, first), turned(key, first), value


def turned(x: Tensor, first: int = 0) -> Tensor:
    """Channels (2i, 2i + 1) of the word at position p, turned by p / 10000^(2i/d_k)."""
    length, channels = x.shape[-2:]
    ready = _turns(channels)
    table = ready[first : first + length] if first + length <= READY else turns(length, channels, first)
    return turned_by(x, table)


def turned_by(x: Tensor, table: Tensor) -> Tensor:
    """The words turned by the sines and cosines of a table: (length, pairs of channels, 2)."""
    sine, cosine = table.to(x).unbind(-1)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], dim=-1).flatten(-2)


def turns(length: int, channels: int, first: int) -> Tensor:
    """Sine and cosine of the angle of each pair of channels at positions ``first`` and on."""
    return exact_sinusoids(length, channels, first).view(length, channels // 2, 2)


@functools.cache
@torch.inference_mode(False)  # what is kept serves training too, whoever asks first
def _turns(channels: int) -> Tensor:
    return turns(READY, channels, 0)


@dataclass(frozen=True, slots=True)
class Relation:
    """A vector for every way in which two words can stand to each other, and how each pair does."""

    keys: Tensor  # (rows, channels)
    values: Tensor  # (rows, channels)
    rows: Tensor  # (..., queries, keys): the row of both tables for each pair

    def scores(self, query: Tensor) -> Tensor:
        """query . a^K for every pair: (..., queries, keys)."""
        products = query @ self.keys.to(query.dtype).T  # one for each row there is
        return products.gather(-1, self.rows.expand(*products.shape[:-1], -1))

    def found(self, weights: Tensor) -> Tensor:
        """The sum of weight * a^V: (..., queries, channels)."""
        # Weights of the same row are added up before they meet its vector.
        shape = (*weights.shape[:-1], len(self.values))
        by_row = weights.new_zeros(shape).scatter_add(-1, self.rows.expand_as(weights), weights)
        return by_row @ self.values.to(weights.dtype)


class RelativeAttention(MultiHeadAttention):
    """A learned vector for each distance, added to keys and to values (Shaw, Uszkoreit and Vaswani 2018).

    score = q . (k + a^K) * scale, found = sum of weight * (v + a^V); the heads of a layer share the vectors,
    and distances beyond the longest count as the longest.
    """

    def __init__(self, width: int, heads: int, *, distance: int, **options: Any) -> None:
        super().__init__(width, heads, **options)
        self.distance = distance
        self.distance_keys = nn.Parameter(torch.empty(2 * distance + 1, width // heads))
        self.distance_values = nn.Parameter(torch.empty(2 * distance + 1, width // heads))
        nn.init.xavier_uniform_(self.distance_keys)
        nn.init.xavier_uniform_(self.distance_values)

    def look(
        self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, *, causal: bool
    ) -> Tensor:
        if causal:
            visible = distances(query.size(-2), key.size(-2), query.device) <= 0
        weights = F.dropout(self.weights(query, key, visible), self.dropped).to(value.dtype)
        found = weights @ value
        for relation in self.relations(query, key, visible):
            found = found + relation.found(weights)
        return found

    def weights(self, query: Tensor, key: Tensor, visible: Tensor | None) -> Tensor:
        scores = attention_scores(query, key)
        for relation in self.relations(query, key, visible):
            scores = scores + relation.scores(query)
        return masked(scores * self.scale, self.seen(visible)).softmax(dim=-1)

    def relations(self, query: Tensor, key: Tensor, visible: Tensor | None) -> list[Relation]:
        """All that is known of how words stand to each other: here their distance in the sentence."""
        apart = distances(query.size(-2), key.size(-2), query.device)
        rows = apart.clamp(-self.distance, self.distance) + self.distance
        return [Relation(self.distance_keys, self.distance_values, rows)]

    def seen(self, visible: Tensor | None) -> Tensor | None:
        """The mask: here ``visible`` itself."""
        return visible


class AlibiAttention(MultiHeadAttention):
    """Scores fall with the distance, in each head by its own slope; nothing is learned (Press et al. 2022).

    The paper's are for text read from left to right; here words on both sides are as near as they are far.
    """

    slopes: Tensor

    def __init__(self, width: int, heads: int, **options: Any) -> None:
        super().__init__(width, heads, **options)
        self.register_buffer("slopes", torch.tensor(alibi_slopes(heads)), persistent=False)

    def look(
        self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, *, causal: bool
    ) -> Tensor:
        return quick_attention(
            query,
            key,
            value,
            visible,
            causal=causal,
            dropout=self.dropped,
            scale=self.scale,
            bias=self.bias(query, key),
        )

    def weights(self, query: Tensor, key: Tensor, visible: Tensor | None) -> Tensor:
        scores = attention_scores(query, key) * self.scale + self.bias(query, key)
        return masked(scores, visible).softmax(dim=-1)

    def bias(self, query: Tensor, key: Tensor) -> Tensor:
        """-slope x distance, added to the scaled scores: (heads, queries, keys)."""
        apart = distances(query.size(-2), key.size(-2), query.device).abs()
        return (-self.slopes[:, None, None] * apart).to(query.dtype)


def alibi_slopes(heads: int) -> list[float]:
    """2^(-8/h), 2^(-16/h), ...; between two powers of two, those of the lower and every other of the higher.

    >>> alibi_slopes(4)
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    lower = 2 ** math.floor(math.log2(heads))
    found = [2.0 ** (-8 * (head + 1) / lower) for head in range(lower)]
    return found + [2.0 ** (-4 * (2 * head + 1) / lower) for head in range(heads - lower)]
