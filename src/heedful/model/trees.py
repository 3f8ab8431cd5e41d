"""Structural positions: where a word stands in the dependency tree of its sentence (Wang et al. 2019).

"Self-Attention with Structural Position Representations", EMNLP 2019. The absolute structural position of a
word is its depth: the main verb, the root, has 0. Pieces of a word share its position, and the end of the
sentence, which no tree has, gets the first number above all depths. The relative structural position of words
i and j is depth(i) - depth(j) if one of them is above the other, else depth(i) + depth(j), negative if i
stands before j. Only the encoder has a tree; what it knows of it comes inside the source ids (places.py).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.model.config import Architecture
from heedful.model.embedding import Embedding
from heedful.model.positions import sinusoids
from heedful.model.relative import Relation, RelativeAttention
from heedful.places import unpacked

HIDDEN = -1
"""Where other attentions have False: nothing may be seen there."""
UNKNOWN = -1
"""The depth of a word of which no tree is known."""


def depths(source: Tensor) -> Tensor:
    """Absolute structural positions, UNKNOWN in sentences without a tree: (batch, length)."""
    _, word, _ = unpacked(source)
    return _depths(word, _paths(source))


def structural_distances(source: Tensor) -> Tensor:
    """Relative structural positions of every pair: (batch, length, length).

    Of sentences without a tree they mean nothing.
    """
    _, word, _ = unpacked(source)
    paths = _paths(source)
    length, words = word.size(1), paths.size(1)
    depth = _depths(word, paths)
    above = paths.gather(1, word[:, :, None].expand(-1, -1, words))
    above = above.gather(2, word[:, None].expand(-1, length, -1))  # whether word j is i or above i
    place = torch.arange(length, device=source.device)
    order = (place[:, None] - place).sign()
    one, other = depth[:, :, None], depth[:, None]
    return torch.where(above | above.transpose(1, 2), one - other, order * (one + other))


def _paths(source: Tensor) -> Tensor:
    """Whether word w is v or stands above it, for every v and w: (batch, words + 1, words + 1).

    A head that is not there, such as a hidden word, counts as a root.
    """
    _, word, head = unpacked(source)
    count = int(torch.maximum(word, head).max()) + 1
    heads = source.new_zeros(len(source), count).scatter(1, word, head)
    paths = torch.zeros(len(source), count, count, dtype=torch.bool, device=source.device)
    current = torch.arange(count, device=source.device).expand(len(source), -1)
    for _ in range(count):  # no path is longer
        paths.scatter_(2, current[..., None], True)
        current = heads.gather(1, current)
        if not current.any():
            break
    paths[..., 0] = False  # what stands above the roots is no word
    return paths


def _depths(word: Tensor, paths: Tensor) -> Tensor:
    own = paths.sum(-1).gather(1, word) - 1  # -1 for what is in no word
    deepest = own.amax(1, keepdim=True)
    known = torch.where(word == 0, deepest + 1, own)
    return known.masked_fill(deepest < 0, UNKNOWN)


class PieceEmbedding(Embedding):
    """Reads ids that carry places; makes nothing of the places itself."""

    def vectors(self, tokens: Tensor) -> Tensor:
        return super().vectors(unpacked(tokens)[0])


class DepthEmbedding(PieceEmbedding):
    """Adds tanh(W [sequential; structural] + b): the sines of the position and of the depth, made one.

    The paper joins both encodings by a nonlinear function f_abs that is learned. Without a tree the
    structural half is zero.
    """

    def __init__(self, config: Architecture, table: nn.Embedding) -> None:
        super().__init__(config, table)
        self.joined = nn.Linear(2 * config.width, config.width)
        nn.init.xavier_uniform_(self.joined.weight)
        nn.init.zeros_(self.joined.bias)

    def places(self, tokens: Tensor, first: int = 0) -> Tensor:
        """(batch, length, width)."""
        depth = depths(tokens)
        sequential = super().places(tokens, first)
        table = sinusoids(int(depth.max()) + 1, sequential.size(-1)).to(sequential)
        structural = F.pad(table, (0, 0, 0, 1))[depth]  # UNKNOWN is the last row
        both = torch.cat([sequential.expand_as(structural), structural], dim=-1)
        return torch.tanh(self.joined(both))


class TreeAttention(RelativeAttention):
    """Relative positions (Shaw et al. 2018) in the sentence and, with vectors of their own, in the tree.

    score = q . (k + a^K + s^K) * scale, found = sum of weight * (v + a^V + s^V). ``visible`` tells more here
    than yes and no: for every pair the row of its structural distance (``structural_rows``), or HIDDEN.
    """

    def __init__(self, width: int, heads: int, *, distance: int, **options: object) -> None:
        super().__init__(width, heads, distance=distance, **options)
        self.tree_keys = nn.Parameter(torch.empty(2 * distance + 1, width // heads))
        self.tree_values = nn.Parameter(torch.empty(2 * distance + 1, width // heads))
        nn.init.xavier_uniform_(self.tree_keys)
        nn.init.xavier_uniform_(self.tree_values)

    def relations(self, query: Tensor, key: Tensor, visible: Tensor | None) -> list[Relation]:
        assert visible is not None
        # One more row, of zeros: no tree is known.
        keys, values = (F.pad(table, (0, 0, 0, 1)) for table in (self.tree_keys, self.tree_values))
        return [*super().relations(query, key, visible), Relation(keys, values, visible.clamp(min=0))]

    def seen(self, visible: Tensor | None) -> Tensor | None:
        assert visible is not None
        return visible != HIDDEN


def structural_rows(source: Tensor, visible: Tensor | None, distance: int) -> Tensor:
    """What ``TreeAttention`` takes: (batch, 1, length, length)."""
    rows = structural_distances(source).clamp(-distance, distance) + distance
    known = unpacked(source)[1].any(1)[:, None, None]
    rows = torch.where(known, rows, 2 * distance + 1)[:, None]
    return rows if visible is None else rows.masked_fill(~visible, HIDDEN)
