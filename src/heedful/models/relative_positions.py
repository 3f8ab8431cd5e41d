"""Positions inside self-attention: rotary, relative (Shaw et al. 2018), ALiBi, and dependency trees.

Each is ``MultiHeadAttention`` with one step changed. With fewer queries than keys (incremental decoding), the
queries are the last positions, so a distance never depends on later tokens.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.models.attention import MultiHeadAttention, attention_scores, mask_scores
from heedful.models.base import select_token_ids
from heedful.models.config import ArchitectureConfig
from heedful.models.embeddings import Embedding, exact_sinusoids, sinusoids

CACHED_POSITIONS = 256
"""Positions whose rotation is cached; later ones are computed on demand."""


def new_full_attention(config: ArchitectureConfig) -> MultiHeadAttention:
    """Build the self-attention over all positions that a config describes."""
    sizes, options = (config.d_model, config.heads), config.attention_options
    if config.positions in ("relative", "relative-dependency"):
        return RelativeAttention(*sizes, max_distance=config.max_relative_distance, **options)
    attention_classes: dict[str, type[MultiHeadAttention]] = {"rotary": RotaryAttention, "alibi": AlibiAttention}
    return attention_classes.get(config.positions, MultiHeadAttention)(*sizes, **options)


def relative_distances(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """Position of each key relative to each query: (queries, keys), negative to the left.

    >>> relative_distances(2, 3)
    tensor([[-1,  0,  1],
            [-2, -1,  0]])
    """
    key_positions = torch.arange(keys, device=device)
    return key_positions - key_positions[keys - queries :, None]


class RotaryAttention(MultiHeadAttention):
    """Rotates each pair of query and key channels by an angle proportional to the position (Su et al. 2021).

    The product of a query and a key then depends only on their distance. The angles are those of section 3.5:
    pos / 10000^(2i/d_k).
    """

    def encode_positions(self, x: Tensor, offset: int = 0) -> Tensor:
        return rotate(x, offset)


def rotate(x: Tensor, offset: int = 0) -> Tensor:
    """Rotate channels (2i, 2i + 1) at position p by the angle p / 10000^(2i/d_k)."""
    length, channels = x.shape[-2:]
    cached_table = _cached_rotation_table(channels)
    table = (
        cached_table[offset : offset + length]
        if offset + length <= CACHED_POSITIONS
        else rotation_table(length, channels, offset)
    )
    return rotate_by(x, table)


def rotate_by(x: Tensor, table: Tensor) -> Tensor:
    """Rotate by the sines and cosines of a table: (length, channel pairs, 2)."""
    sine, cosine = table.to(x).unbind(-1)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], dim=-1).flatten(-2)


def rotation_table(length: int, channels: int, offset: int) -> Tensor:
    """Sine and cosine per channel pair, from position ``offset`` on: (length, channel pairs, 2)."""
    return exact_sinusoids(length, channels, offset).view(length, channels // 2, 2)


@functools.cache
@torch.inference_mode(False)  # the cached tensor must be usable in training too
def _cached_rotation_table(channels: int) -> Tensor:
    return rotation_table(CACHED_POSITIONS, channels, 0)


@dataclass(frozen=True, slots=True)
class RelativeVectors:
    """Learned vectors per relation of two positions, and the relation of each pair."""

    keys: Tensor  # (rows, channels)
    values: Tensor  # (rows, channels)
    indices: Tensor  # (..., queries, keys): row of keys and values for each pair

    def scores(self, query: Tensor) -> Tensor:
        """query . a^K for every pair: (..., queries, keys)."""
        products = query @ self.keys.to(query.dtype).T  # one product per row
        return products.gather(-1, self.indices.expand(*products.shape[:-1], -1))

    def sum_values(self, weights: Tensor) -> Tensor:
        """The sum of weight * a^V: (..., queries, channels)."""
        # Sum the weights of each row first: one product with the vectors instead of one per pair.
        shape = (*weights.shape[:-1], len(self.values))
        weight_per_row = weights.new_zeros(shape).scatter_add(-1, self.indices.expand_as(weights), weights)
        return weight_per_row @ self.values.to(weights.dtype)


class RelativeAttention(MultiHeadAttention):
    """Adds a learned vector per distance to keys and values (Shaw, Uszkoreit and Vaswani 2018).

    score = q . (k + a^K) * scale, output = sum of weight * (v + a^V). The heads of a layer share the vectors;
    distances are clipped to ``max_distance``.
    """

    def __init__(self, d_model: int, heads: int, *, max_distance: int, **options: Any) -> None:
        super().__init__(d_model, heads, **options)
        self.max_distance = max_distance
        self.distance_keys = nn.Parameter(torch.empty(2 * max_distance + 1, d_model // heads))
        self.distance_values = nn.Parameter(torch.empty(2 * max_distance + 1, d_model // heads))
        nn.init.xavier_uniform_(self.distance_keys)
        nn.init.xavier_uniform_(self.distance_values)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *, causal: bool
    ) -> Tensor:
        if causal:
            attention_mask = relative_distances(query.size(-2), key.size(-2), query.device) <= 0
        weights = F.dropout(self.weights(query, key, attention_mask), self.active_dropout).to(value.dtype)
        output = weights @ value
        for vectors in self.relative_vectors(query, key, attention_mask):
            output = output + vectors.sum_values(weights)
        return output

    def weights(self, query: Tensor, key: Tensor, attention_mask: Tensor | None) -> Tensor:
        scores = attention_scores(query, key)
        for vectors in self.relative_vectors(query, key, attention_mask):
            scores = scores + vectors.scores(query)
        return mask_scores(scores * self.scale, self.boolean_mask(attention_mask)).softmax(dim=-1)

    def relative_vectors(self, query: Tensor, key: Tensor, attention_mask: Tensor | None) -> list[RelativeVectors]:
        """The relations of all pairs: here their distance in the sentence."""
        distances_between = relative_distances(query.size(-2), key.size(-2), query.device)
        indices = distances_between.clamp(-self.max_distance, self.max_distance) + self.max_distance
        return [RelativeVectors(self.distance_keys, self.distance_values, indices)]

    def boolean_mask(self, attention_mask: Tensor | None) -> Tensor | None:
        """The boolean mask; subclasses may carry more than a mask in ``attention_mask``."""
        return attention_mask


class AlibiAttention(MultiHeadAttention):
    """Subtracts slope * distance from the scores, with a fixed slope per head (Press et al. 2022).

    ALiBi was defined for causal attention; in the encoder, both directions use the absolute distance.
    """

    slopes: Tensor

    def __init__(self, d_model: int, heads: int, **options: Any) -> None:
        super().__init__(d_model, heads, **options)
        self.register_buffer("slopes", torch.tensor(alibi_slopes(heads)), persistent=False)

    def score_bias(self, query: Tensor, key: Tensor) -> Tensor:
        """-slope x distance."""
        distance = relative_distances(query.size(-2), key.size(-2), query.device).abs()
        return (-self.slopes[:, None, None] * distance).to(query.dtype)


def alibi_slopes(heads: int) -> list[float]:
    """2^(-8/h), 2^(-16/h), ...; for other h: those of the lower power of two and every other of the higher.

    >>> alibi_slopes(4)
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    power_of_two = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8 * (head + 1) / power_of_two) for head in range(power_of_two)]
    return slopes + [2.0 ** (-4 * (2 * head + 1) / power_of_two) for head in range(heads - power_of_two)]


# ---- Structural positions in dependency trees
#
# "Self-Attention with Structural Position Representations" (Wang et al., EMNLP 2019). The absolute structural
# position of a word is its depth (root: 0). Subwords share the position of their word; END, which is in no
# tree, gets the maximum depth + 1. The relative structural position of words i and j is depth(i) - depth(j)
# if one is an ancestor of the other, else depth(i) + depth(j), negative if i precedes j.
#
# Only the encoder reads trees. Its source has three columns: the token id, the number of the token's word and of
# that word's head, 0 for no word and no head (tokenization/dependency_trees.py).

MASKED = -1
"""Distance id of a masked pair."""

UNKNOWN_DEPTH = -1
"""Depth of words in sentences without a tree."""


def split_columns(source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Token id, word and head of each token: (batch, length) each; in token ids alone there are no words."""
    if source.dim() == 2:
        return source, torch.zeros_like(source), torch.zeros_like(source)
    token_id, word, head = source.unbind(-1)
    return token_id, word, head


def token_depths(word: Tensor, head: Tensor) -> Tensor:
    """Absolute structural positions; UNKNOWN_DEPTH in sentences without a tree: (batch, length)."""
    return _depths_from_ancestors(word, _ancestor_matrix(word, head))


def structural_distances(word: Tensor, head: Tensor) -> Tensor:
    """Relative structural positions: (batch, length, length); meaningless in sentences without a tree."""
    ancestors = _ancestor_matrix(word, head)
    length, words = word.size(1), ancestors.size(1)
    depth = _depths_from_ancestors(word, ancestors)
    is_ancestor = ancestors.gather(1, word[:, :, None].expand(-1, -1, words))
    # is_ancestor[i, j]: word j is word i or one of its ancestors
    is_ancestor = is_ancestor.gather(2, word[:, None].expand(-1, length, -1))
    positions = torch.arange(length, device=word.device)
    direction = (positions[:, None] - positions).sign()
    depth_i, depth_j = depth[:, :, None], depth[:, None]
    return torch.where(is_ancestor | is_ancestor.transpose(1, 2), depth_i - depth_j, direction * (depth_i + depth_j))


def _ancestor_matrix(word: Tensor, head: Tensor) -> Tensor:
    """[v, w]: word w is word v or one of its ancestors: (batch, words + 1, words + 1).

    A missing head, such as a masked word, counts as a root.
    """
    batch, count = len(word), int(torch.maximum(word, head).max()) + 1
    heads = word.new_zeros(batch, count).scatter(1, word, head)
    ancestors = torch.zeros(batch, count, count, dtype=torch.bool, device=word.device)
    current = torch.arange(count, device=word.device).expand(batch, -1)
    for _ in range(count):  # the longest possible path
        ancestors.scatter_(2, current[..., None], True)
        current = heads.gather(1, current)
        if not current.any():
            break
    ancestors[..., 0] = False  # index 0 is the parent of roots, not a word
    return ancestors


def _depths_from_ancestors(word: Tensor, ancestors: Tensor) -> Tensor:
    depth = ancestors.sum(-1).gather(1, word) - 1  # -1 outside words
    max_depth = depth.amax(1, keepdim=True)
    return torch.where(word == 0, max_depth + 1, depth).masked_fill(max_depth < 0, UNKNOWN_DEPTH)


class DepthEmbedding(Embedding):
    """Adds tanh(W [sequential; structural] + b), f_abs of the paper: sinusoids of position and depth.

    Without a tree, the structural half is zero.
    """

    def __init__(self, config: ArchitectureConfig, token_embedding: nn.Embedding) -> None:
        super().__init__(config, token_embedding)
        self.joined = nn.Linear(2 * config.d_model, config.d_model)
        nn.init.xavier_uniform_(self.joined.weight)
        nn.init.zeros_(self.joined.bias)

    def token_vectors(self, tokens: Tensor) -> Tensor:
        return super().token_vectors(select_token_ids(tokens))

    def position_vectors(self, tokens: Tensor, offset: int = 0) -> Tensor:
        """(batch, length, d_model)."""
        _, word, head = split_columns(tokens)
        depth = token_depths(word, head)
        sequential = super().position_vectors(tokens, offset)
        table = sinusoids(int(depth.max()) + 1, sequential.size(-1)).to(sequential)
        structural = F.pad(table, (0, 0, 0, 1))[depth]  # UNKNOWN_DEPTH selects the last row
        both = torch.cat([sequential.expand_as(structural), structural], dim=-1)
        return torch.tanh(self.joined(both))


class TreeAttention(RelativeAttention):
    """Relative positions (Shaw et al. 2018) both in the sentence and, with separate vectors, in the tree.

    score = q . (k + a^K + s^K) * scale, output = sum of weight * (v + a^V + s^V). Here ``attention_mask`` is
    not boolean: it holds the distance id of each pair (``structural_distance_ids``), or MASKED.
    """

    def __init__(self, d_model: int, heads: int, *, max_distance: int, **options: object) -> None:
        super().__init__(d_model, heads, max_distance=max_distance, **options)
        self.tree_keys = nn.Parameter(torch.empty(2 * max_distance + 1, d_model // heads))
        self.tree_values = nn.Parameter(torch.empty(2 * max_distance + 1, d_model // heads))
        nn.init.xavier_uniform_(self.tree_keys)
        nn.init.xavier_uniform_(self.tree_values)

    def relative_vectors(self, query: Tensor, key: Tensor, attention_mask: Tensor | None) -> list[RelativeVectors]:
        assert attention_mask is not None
        # One more row, of zeros, for sentences without a tree.
        keys, values = (F.pad(table, (0, 0, 0, 1)) for table in (self.tree_keys, self.tree_values))
        return [
            *super().relative_vectors(query, key, attention_mask),
            RelativeVectors(keys, values, attention_mask.clamp(min=0)),
        ]

    def boolean_mask(self, attention_mask: Tensor | None) -> Tensor | None:
        assert attention_mask is not None
        return attention_mask != MASKED


def structural_distance_ids(word: Tensor, head: Tensor, attention_mask: Tensor | None, max_distance: int) -> Tensor:
    """Distance ids for ``TreeAttention``: (batch, 1, length, length)."""
    distance_ids = structural_distances(word, head).clamp(-max_distance, max_distance) + max_distance
    has_tree = word.any(1)[:, None, None]
    distance_ids = torch.where(has_tree, distance_ids, 2 * max_distance + 1)[:, None]
    return distance_ids if attention_mask is None else distance_ids.masked_fill(~attention_mask, MASKED)
