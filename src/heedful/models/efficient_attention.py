"""Self-attention with cost linear in the length: BigBird and Linformer.

BigBird (Zaheer et al. 2020): each block attends to the first blocks, its neighbors and a few random blocks.
Linformer (Wang et al. 2020): all positions attend to a fixed number of learned projections of the sequence.
Only ``weights``, for inspection, builds the full matrix.
"""

import functools
import random
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.errors import HeedfulError
from heedful.models.attention import MultiHeadAttention, fast_attention


@dataclass(frozen=True, slots=True)
class BlockPattern:
    """Number of blocks that a BigBird block attends to, per kind."""

    block_size: int
    window_blocks: int
    global_blocks: int
    """First blocks of the text, which all blocks attend to."""
    random_blocks: int = 0

    @property
    def attended_blocks(self) -> int:
        """Blocks that a block attends to in a long text."""
        return self.global_blocks + self.window_blocks + self.random_blocks

    def block_count(self, length: int) -> int:
        """Blocks in a text of this length; the last may be partial."""
        return -(-length // self.block_size)


@functools.lru_cache(maxsize=64)
@torch.inference_mode(False)  # the cached tensor must be usable in training too
def bigbird_blocks(blocks: BlockPattern, num_blocks: int, seed: int) -> Tensor:
    """Blocks that each block attends to: (num_blocks, attended), without duplicates in a row.

    Global blocks, window and random blocks; where the window is cut off at the ends, more random ones, so
    that all rows have the same length.
    """
    rng = random.Random(f"{seed} {num_blocks}")
    row_length = min(num_blocks, blocks.attended_blocks)
    rows = []
    for block in range(num_blocks):
        start = max(block - blocks.window_blocks // 2, 0)
        window = range(start, min(block + blocks.window_blocks // 2 + 1, num_blocks))
        fixed = {*range(min(blocks.global_blocks, num_blocks)), *window}
        others = [other for other in range(num_blocks) if other not in fixed]
        rows.append(sorted([*fixed, *rng.sample(others, row_length - len(fixed))]))
    return torch.tensor(rows)


@functools.lru_cache(maxsize=64)
@torch.inference_mode(False)
def causal_bigbird_blocks(blocks: BlockPattern, num_blocks: int) -> tuple[Tensor, Tensor]:
    """Blocks that each block attends to, none later, and which entries are valid: (num_blocks, attended)."""
    rows = []
    for block in range(num_blocks):
        start = max(block - blocks.window_blocks + 1, 0)
        row = sorted({*range(min(blocks.global_blocks, block + 1)), *range(start, block + 1)})
        rows.append(row + [-1] * (blocks.global_blocks + blocks.window_blocks - len(row)))
    table = torch.tensor(rows)
    return table.clamp(min=0), table >= 0


@functools.lru_cache(maxsize=256)
@torch.inference_mode(False)
def pad_bigbird_blocks(blocks: BlockPattern, num_blocks: int, total_blocks: int, seed: int) -> Tensor:
    """``bigbird_blocks`` of a text in a batch of longer ones, padded by -1: (total_blocks, attended)."""
    table = bigbird_blocks(blocks, num_blocks, seed)
    return F.pad(table, (0, blocks.attended_blocks - table.size(1), 0, total_blocks - num_blocks), value=-1)


class BigBirdAttention(MultiHeadAttention):
    """Bidirectional BigBird; the global blocks attend to everything."""

    def __init__(self, d_model: int, heads: int, *, blocks: BlockPattern, seed: int, **options: Any) -> None:
        super().__init__(d_model, heads, **options)
        self.blocks, self.seed = blocks, seed

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *, causal: bool
    ) -> Tensor:
        length, num_blocks = query.size(-2), self.blocks.block_count(query.size(-2))
        if num_blocks <= self.blocks.attended_blocks:  # full attention
            return super().attend(query, key, value, attention_mask, causal=causal)
        global_tokens = self.blocks.global_blocks * self.blocks.block_size
        local_output = self._attend_blocks(query, key, value, attention_mask)
        local_output = local_output[..., : length - global_tokens, :]
        if not global_tokens:
            return local_output
        global_query = query[..., :global_tokens, :]
        global_output = super().attend(global_query, key, value, attention_mask, causal=False)
        return torch.cat([global_output, local_output], -2)

    def _attend_blocks(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None) -> Tensor:
        """All blocks but the global ones: each is a small attention over the blocks it attends to."""
        batch, heads, length, channels = query.shape
        block_size, global_blocks = self.blocks.block_size, self.blocks.global_blocks
        num_blocks = self.blocks.block_count(length)
        tables = self._block_tables(attention_mask, length)[:, global_blocks:]  # (batch or 1, rows, attended)
        rows, attended = tables.shape[1:]
        q = split_blocks(query, block_size)[:, :, global_blocks:].flatten(0, 1)
        k, v = (
            _gather_blocks(split_blocks(x, block_size), tables).reshape(
                batch * heads, rows, attended * block_size, channels
            )
            for x in (key, value)
        )
        key_mask = query.new_ones(1, length, dtype=torch.bool) if attention_mask is None else attention_mask[:, 0, 0]
        key_mask = F.pad(key_mask, (0, num_blocks * block_size - length)).view(len(key_mask), 1, num_blocks, block_size)
        key_mask = _gather_blocks(key_mask, tables)[:, 0] & (tables >= 0)[..., None]
        mask = _unmask_empty_rows(key_mask.flatten(-2)[:, None, :, None])  # (batch or 1, 1, rows, 1, keys)
        mask = mask.expand(batch, heads, -1, -1, -1).flatten(0, 1)
        output = fast_attention(q, k, v, mask, dropout=self.active_dropout, scale=self.scale)
        return output.reshape(batch, heads, rows * block_size, channels)

    def _block_tables(self, attention_mask: Tensor | None, length: int) -> Tensor:
        """Blocks that each block attends to, padded by -1: (batch, blocks, attended).

        One table (batch 1) if all sentences have the same length. The table of a sentence depends only on its
        own length, so padding changes nothing.
        """
        total_blocks = self.blocks.block_count(length)
        if attention_mask is None:
            return pad_bigbird_blocks(self.blocks, total_blocks, total_blocks, self.seed)[None]
        positions = torch.arange(1, length + 1, device=attention_mask.device)
        block_counts = [
            self.blocks.block_count(int(last_position))
            for last_position in (attention_mask[:, 0, 0] * positions).amax(-1).tolist()
        ]
        tables = [pad_bigbird_blocks(self.blocks, num_blocks, total_blocks, self.seed) for num_blocks in block_counts]
        return (torch.stack(tables) if len(set(block_counts)) > 1 else tables[0][None]).to(attention_mask.device)

    def weights(self, query: Tensor, key: Tensor, attention_mask: Tensor | None) -> Tensor:
        allowed = self.token_pattern(key.size(-2), attention_mask).to(key.device)
        return super().weights(
            query, key, _unmask_empty_rows(allowed if attention_mask is None else allowed & attention_mask)
        )

    def pattern(self, length: int) -> Tensor:
        return self.token_pattern(length, None)[0, 0]

    def token_pattern(self, length: int, attention_mask: Tensor | None) -> Tensor:
        """Which positions may attend to which, padding aside: (batch or 1, 1, length, length)."""
        tables, global_blocks = self._block_tables(attention_mask, length), self.blocks.global_blocks
        num_blocks = tables.size(1)
        attends = torch.zeros(len(tables), num_blocks, num_blocks + 1, dtype=torch.bool)
        attends.scatter_(2, tables.cpu() % (num_blocks + 1), value=True)  # -1 becomes the last column, removed below
        attends[:, :global_blocks] = True
        return _expand_blocks(attends[..., :-1], self.blocks.block_size, length)[:, None]


class CausalBigBirdAttention(MultiHeadAttention):
    """Causal BigBird: the global blocks and the last blocks up to the position itself."""

    def __init__(self, d_model: int, heads: int, *, blocks: BlockPattern, **options: Any) -> None:
        super().__init__(d_model, heads, **options)
        self.blocks = blocks

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *, causal: bool
    ) -> Tensor:
        queries, keys = query.size(-2), key.size(-2)
        assert attention_mask is None
        num_blocks = self.blocks.block_count(keys)
        if num_blocks <= self.blocks.global_blocks + self.blocks.window_blocks:  # full attention
            return super().attend(query, key, value, attention_mask, causal=causal)
        if queries == 1:
            window_start = (num_blocks - self.blocks.window_blocks) * self.blocks.block_size
            global_tokens = self.blocks.global_blocks * self.blocks.block_size
            key, value = (
                torch.cat([x[..., :global_tokens, :], x[..., window_start:, :]], dim=-2) for x in (key, value)
            )
            return super().attend(query, key, value, None, causal=False)
        assert causal
        assert queries == keys
        return self._attend_blocks(query, key, value)

    def _attend_blocks(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        batch, heads, length, channels = query.shape
        block_size, num_blocks = self.blocks.block_size, self.blocks.block_count(length)
        table, is_present = (x.to(query.device) for x in causal_bigbird_blocks(self.blocks, num_blocks))
        positions = torch.arange(num_blocks * block_size, device=query.device).view(num_blocks, block_size)
        allowed = (positions[table][:, :, None] <= positions[:, None, :, None]) & is_present[:, :, None, None]
        mask = allowed.transpose(1, 2).reshape(num_blocks, block_size, -1)  # (blocks, queries, keys)
        q = split_blocks(query, block_size).flatten(0, 1)
        k, v = (
            split_blocks(x, block_size)[:, :, table].reshape(batch * heads, num_blocks, -1, channels)
            for x in (key, value)
        )
        output = fast_attention(q, k, v, mask, dropout=self.active_dropout, scale=self.scale)
        return output.reshape(batch, heads, num_blocks * block_size, channels)[..., :length, :]

    def weights(self, query: Tensor, key: Tensor, attention_mask: Tensor | None) -> Tensor:
        pattern = self.pattern(key.size(-2)).to(key.device)[-query.size(-2) :]
        return super().weights(query, key, pattern if attention_mask is None else pattern & attention_mask)

    def pattern(self, length: int) -> Tensor:
        num_blocks = self.blocks.block_count(length)
        table, is_present = causal_bigbird_blocks(self.blocks, num_blocks)
        attends = torch.zeros(num_blocks, num_blocks, dtype=torch.bool)
        row, column = is_present.nonzero(as_tuple=True)
        attends[row, table[row, column]] = True
        return _expand_blocks(attends, self.blocks.block_size, length)


class LinformerAttention(MultiHeadAttention):
    """softmax(q (E k)^T * scale) (F v): E and F project the length to ``projected_length``.

    The heads of a layer share E and F.
    """

    def __init__(self, d_model: int, heads: int, *, max_length: int, projected_length: int, **options: Any) -> None:
        super().__init__(d_model, heads, **options)
        self.key_sums = nn.Parameter(torch.empty(projected_length, max_length))
        self.value_sums = nn.Parameter(torch.empty(projected_length, max_length))
        for projection in (self.key_sums, self.value_sums):
            nn.init.normal_(projection, std=projected_length**-0.5)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *, causal: bool
    ) -> Tensor:
        assert not causal, "projections of the whole sequence would leak the future"
        key = self.project_sequence(key, self.key_sums, attention_mask)
        value = self.project_sequence(value, self.value_sums, attention_mask)
        return super().attend(query, key, value, None, causal=False)

    def weights(self, query: Tensor, key: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Weights over the projections: (..., queries, projected_length)."""
        return super().weights(query, self.project_sequence(key, self.key_sums, attention_mask), None)

    def project_sequence(self, x: Tensor, projection: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Project keys or values without padding: (batch, heads, projected_length, d_k)."""
        length, max_length = x.size(-2), projection.size(1)
        if length > max_length:
            raise HeedfulError(
                f"{length} tokens exceed the {max_length} positions of this model's Linformer attention",
                hint="use shorter sentences, or train with a larger model.max_length",
            )
        if attention_mask is not None:
            x = x * attention_mask.transpose(-2, -1)
        return projection[:, :length].to(x.dtype) @ x


def split_blocks(x: Tensor, block_size: int) -> Tensor:
    """(batch, heads, length, d_k) -> (batch, heads, blocks, block_size, d_k), padded by zeros."""
    batch, heads, length, channels = x.shape
    num_blocks = -(-length // block_size)
    return F.pad(x, (0, 0, 0, num_blocks * block_size - length)).view(batch, heads, num_blocks, block_size, channels)


def _expand_blocks(attends: Tensor, block_size: int, length: int) -> Tensor:
    return attends.repeat_interleave(block_size, -2).repeat_interleave(block_size, -1)[..., :length, :length]


def _gather_blocks(blocks: Tensor, tables: Tensor) -> Tensor:
    """Select the blocks of each row of the tables: (batch, heads, rows, attended, block_size, ...)."""
    tables = tables.clamp(min=0).to(blocks.device)
    if len(tables) == 1:
        return blocks[:, :, tables[0]]
    return torch.stack([sentence_blocks[:, table] for sentence_blocks, table in zip(blocks, tables, strict=True)])


def _unmask_empty_rows(allowed: Tensor) -> Tensor:
    """Let padding rows attend to everything: their output is unused, but an empty softmax is NaN."""
    return allowed | ~allowed.any(-1, keepdim=True)
