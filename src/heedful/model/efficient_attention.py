"""Self-attention whose cost grows with the length and not with its square: BigBird and Linformer.

BigBird (Zaheer et al. 2020): blocks of words see the first blocks, their neighbours and a few others by
chance. Linformer (Wang et al. 2020): all words see a fixed number of sums of all words. Neither ever makes
the whole matrix of weights; ``weights`` does, for people to see, with zeros where nothing is seen.
"""

import functools
import random
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.errors import HeedfulError
from heedful.model.attention import MultiHeadAttention
from heedful.model.kernels import quick_attention


@dataclass(frozen=True, slots=True)
class Blocks:
    """Which blocks see which."""

    size: int
    window: int
    first: int
    """Blocks at the beginning that all see."""
    chance: int = 0

    @property
    def seen(self) -> int:
        """How many blocks a block sees, if there are as many."""
        return self.first + self.window + self.chance

    def of(self, length: int) -> int:
        """Blocks of a text of so many words; the last may be incomplete."""
        return -(-length // self.size)


@functools.lru_cache(maxsize=64)
@torch.inference_mode(False)  # what is kept serves training too, whoever asks first
def blocks_seen(blocks: Blocks, number: int, seed: int) -> Tensor:
    """The blocks that each of ``number`` blocks sees: (number, seen), no block twice in a row.

    The first ones, those around it, and others by chance: more of these at the ends, where a window is cut
    off, so that all rows are as long.
    """
    draw = random.Random(f"{seed} {number}")
    count = min(number, blocks.seen)
    rows = []
    for block in range(number):
        start = max(block - blocks.window // 2, 0)
        near = range(start, min(block + blocks.window // 2 + 1, number))
        sure = {*range(min(blocks.first, number)), *near}
        others = [other for other in range(number) if other not in sure]
        rows.append(sorted([*sure, *draw.sample(others, count - len(sure))]))
    return torch.tensor(rows)


@functools.lru_cache(maxsize=64)
@torch.inference_mode(False)
def blocks_before(blocks: Blocks, number: int) -> tuple[Tensor, Tensor]:
    """The same without the future: the blocks, and which of these are there: both (number, seen)."""
    rows = []
    for block in range(number):
        start = max(block - blocks.window + 1, 0)
        row = sorted({*range(min(blocks.first, block + 1)), *range(start, block + 1)})
        rows.append(row + [-1] * (blocks.first + blocks.window - len(row)))
    table = torch.tensor(rows)
    return table.clamp(min=0), table >= 0


@functools.lru_cache(maxsize=256)
@torch.inference_mode(False)
def padded_table(blocks: Blocks, number: int, whole: int, seed: int) -> Tensor:
    """``blocks_seen`` of a text in a batch of longer ones, -1 where there is nothing: (whole, seen)."""
    table = blocks_seen(blocks, number, seed)
    return F.pad(table, (0, blocks.seen - table.size(1), 0, whole - number), value=-1)


class BlockAttention(MultiHeadAttention):
    """BigBird in both directions; the first blocks also see everything."""

    def __init__(self, width: int, heads: int, *, blocks: Blocks, seed: int, **options: Any) -> None:
        super().__init__(width, heads, **options)
        self.blocks, self.seed = blocks, seed

    def look(
        self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, *, causal: bool
    ) -> Tensor:
        length, number = query.size(-2), self.blocks.of(query.size(-2))
        if number <= self.blocks.seen:  # everything is seen
            return super().look(query, key, value, visible, causal=causal)
        first = self.blocks.first * self.blocks.size
        rest = self._rest(query, key, value, visible)[..., : length - first, :]
        if not first:
            return rest
        return torch.cat([super().look(query[..., :first, :], key, value, visible, causal=False), rest], -2)

    def _rest(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None) -> Tensor:
        """All blocks but the first ones: each is a small attention over the blocks it sees."""
        batch, heads, length, channels = query.shape
        size, first, number = self.blocks.size, self.blocks.first, self.blocks.of(length)
        tables = self._tables(visible, length)[:, first:]  # (batch or 1, rows, seen)
        rows, seen = tables.shape[1:]
        q = in_blocks(query, size)[:, :, first:].flatten(0, 1)
        k, v = (
            _chosen(in_blocks(x, size), tables).reshape(batch * heads, rows, seen * size, channels)
            for x in (key, value)
        )
        shown = query.new_ones(1, length, dtype=torch.bool) if visible is None else visible[:, 0, 0]
        shown = F.pad(shown, (0, number * size - length)).view(len(shown), 1, number, size)
        shown = _chosen(shown, tables)[:, 0] & (tables >= 0)[..., None]
        mask = _not_empty(shown.flatten(-2)[:, None, :, None])  # (batch or 1, 1, rows, 1, keys)
        mask = mask.expand(batch, heads, -1, -1, -1).flatten(0, 1)
        found = quick_attention(q, k, v, mask, dropout=self.dropped, scale=self.scale)
        return found.reshape(batch, heads, rows * size, channels)

    def _tables(self, visible: Tensor | None, length: int) -> Tensor:
        """The blocks that each block sees, -1 for none: one table for all sentences if they are as long.

        A sentence's table depends on its own length: longer ones in its batch make no difference.
        """
        whole = self.blocks.of(length)
        if visible is None:
            return padded_table(self.blocks, whole, whole, self.seed)[None]
        place = torch.arange(1, length + 1, device=visible.device)
        numbers = [self.blocks.of(int(last)) for last in (visible[:, 0, 0] * place).amax(-1).tolist()]
        tables = [padded_table(self.blocks, number, whole, self.seed) for number in numbers]
        return (torch.stack(tables) if len(set(numbers)) > 1 else tables[0][None]).to(visible.device)

    def weights(self, query: Tensor, key: Tensor, visible: Tensor | None) -> Tensor:
        shown = self.seen_words(key.size(-2), visible).to(key.device)
        return super().weights(query, key, _not_empty(shown if visible is None else shown & visible))

    def pattern(self, length: int) -> Tensor:
        return self.seen_words(length, None)[0, 0]

    def seen_words(self, length: int, visible: Tensor | None) -> Tensor:
        """Which words see which, padding aside: (batch or 1, 1, length, length)."""
        tables, first = self._tables(visible, length), self.blocks.first
        number = tables.size(1)
        seen = torch.zeros(len(tables), number, number + 1, dtype=torch.bool)
        seen.scatter_(2, tables.cpu() % (number + 1), value=True)  # none is the last, which is cut off
        seen[:, :first] = True
        return _by_word(seen[..., :-1], self.blocks.size, length)[:, None]


class CausalBlockAttention(MultiHeadAttention):
    """BigBird from left to right: the first blocks, and the last ones up to the word itself."""

    def __init__(self, width: int, heads: int, *, blocks: Blocks, **options: Any) -> None:
        super().__init__(width, heads, **options)
        self.blocks = blocks

    def look(
        self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, *, causal: bool
    ) -> Tensor:
        queries, keys = query.size(-2), key.size(-2)
        assert visible is None
        if self.blocks.of(keys) <= self.blocks.first + self.blocks.window:  # everything is seen
            return super().look(query, key, value, visible, causal=causal)
        if queries == 1:
            near = (self.blocks.of(keys) - self.blocks.window) * self.blocks.size
            first = self.blocks.first * self.blocks.size
            key, value = (torch.cat([x[..., :first, :], x[..., near:, :]], dim=-2) for x in (key, value))
            return super().look(query, key, value, None, causal=False)
        assert causal
        assert queries == keys
        return self._whole(query, key, value)

    def _whole(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        batch, heads, length, channels = query.shape
        size, number = self.blocks.size, self.blocks.of(length)
        table, there = (x.to(query.device) for x in blocks_before(self.blocks, number))
        place = torch.arange(number * size, device=query.device).view(number, size)
        shown = (place[table][:, :, None] <= place[:, None, :, None]) & there[:, :, None, None]
        mask = shown.transpose(1, 2).reshape(number, size, -1)  # (blocks, queries, keys)
        q = in_blocks(query, size).flatten(0, 1)
        k, v = (
            in_blocks(x, size)[:, :, table].reshape(batch * heads, number, -1, channels) for x in (key, value)
        )
        found = quick_attention(q, k, v, mask, dropout=self.dropped, scale=self.scale)
        return found.reshape(batch, heads, number * size, channels)[..., :length, :]

    def weights(self, query: Tensor, key: Tensor, visible: Tensor | None) -> Tensor:
        pattern = self.pattern(key.size(-2)).to(key.device)[-query.size(-2) :]
        return super().weights(query, key, pattern if visible is None else pattern & visible)

    def pattern(self, length: int) -> Tensor:
        number = self.blocks.of(length)
        table, there = blocks_before(self.blocks, number)
        seen = torch.zeros(number, number, dtype=torch.bool)
        row, place = there.nonzero(as_tuple=True)
        seen[row, table[row, place]] = True
        return _by_word(seen, self.blocks.size, length)


class ProjectedAttention(MultiHeadAttention):
    """Linformer: keys and values become a fixed number of sums, with learned weights for every place.

    softmax(q (E k)^T * scale) (F v); the heads of a layer share E and F.
    """

    def __init__(self, width: int, heads: int, *, longest: int, sums: int, **options: Any) -> None:
        super().__init__(width, heads, **options)
        self.key_sums = nn.Parameter(torch.empty(sums, longest))
        self.value_sums = nn.Parameter(torch.empty(sums, longest))
        for table in (self.key_sums, self.value_sums):
            nn.init.normal_(table, std=sums**-0.5)

    def look(
        self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, *, causal: bool
    ) -> Tensor:
        assert not causal, "sums of the whole text would show the future"
        keys, values = self.summed(key, self.key_sums, visible), self.summed(value, self.value_sums, visible)
        return super().look(query, keys, values, None, causal=False)

    def weights(self, query: Tensor, key: Tensor, visible: Tensor | None) -> Tensor:
        """How much each word looks at each sum: (..., queries, sums)."""
        return super().weights(query, self.summed(key, self.key_sums, visible), None)

    def summed(self, x: Tensor, table: Tensor, visible: Tensor | None) -> Tensor:
        """The sums of keys or values, without those of padding: (batch, heads, sums, channels)."""
        length, longest = x.size(-2), table.size(1)
        if length > longest:
            raise HeedfulError(
                f"{length} tokens are too many: this model's Linformer attention ends at {longest}",
                hint="give shorter sentences, or train with a larger model.longest",
            )
        if visible is not None:
            x = x * visible.transpose(-2, -1)
        return table[:, :length].to(x.dtype) @ x


def in_blocks(x: Tensor, size: int) -> Tensor:
    """(batch, heads, length, channels) -> (batch, heads, blocks, size, channels), zeros at the end."""
    batch, heads, length, channels = x.shape
    number = -(-length // size)
    return F.pad(x, (0, 0, 0, number * size - length)).view(batch, heads, number, size, channels)


def _by_word(seen: Tensor, size: int, length: int) -> Tensor:
    return seen.repeat_interleave(size, -2).repeat_interleave(size, -1)[..., :length, :length]


def _chosen(blocks: Tensor, tables: Tensor) -> Tensor:
    """The blocks of each row of the tables: (batch, heads, rows, seen, size, ...)."""
    tables = tables.clamp(min=0).to(blocks.device)
    if len(tables) == 1:
        return blocks[:, :, tables[0]]
    return torch.stack([own[:, table] for own, table in zip(blocks, tables, strict=True)])


def _not_empty(shown: Tensor) -> Tensor:
    """Where only padding is seen nothing is looked for; but an empty softmax would be no number."""
    return shown | ~shown.any(-1, keepdim=True)
