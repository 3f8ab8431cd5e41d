"""Batches of token ids, padded: for translation, causal and masked language modeling.

Plain text is stored as pairs whose two sides are the same; the collator of the architecture decides their use.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.models.base import TokenRows, pad_rows, pad_with_end
from heedful.models.config import ArchitectureConfig
from heedful.tokenization.special_tokens import END, MASK, PAD


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded ids: the source with END, the target as decoder input (starting with PAD) and as labels (with END)."""

    source: Tensor  # (sentences, source length), or (sentences, source length, 3) in dependency trees
    decoder_input: Tensor  # (sentences, target length)
    target: Tensor  # (sentences, target length)
    guided_links: Tensor | None = None
    """(links, 3): sentence, query and key that the guided attention head should follow."""

    @property
    def tokens(self) -> int:
        """Target tokens, padding not counted."""
        return int((self.target != PAD).sum())

    def split_in_half(self) -> "tuple[Batch, Batch]":
        """Its sentences in two batches."""
        middle = len(self.source) // 2
        return self._slice_rows(slice(middle)), self._slice_rows(slice(middle, None))

    def _slice_rows(self, rows: slice) -> "Batch":
        guided_links = self.guided_links
        if guided_links is not None:
            start, end, _ = rows.indices(len(self.source))
            guided_links = guided_links[(start <= guided_links[:, 0]) & (guided_links[:, 0] < end)] - torch.tensor(
                [start, 0, 0]
            )
        return Batch(self.source[rows], self.decoder_input[rows], self.target[rows], guided_links)


def collate(sources: TokenRows, targets: TokenRows) -> Batch:
    """Add END and the start token, and pad.

    >>> batch = collate([[7, 8]], [[5, 6, 9]])
    >>> batch.source.tolist(), batch.decoder_input.tolist(), batch.target.tolist()
    ([[7, 8, 1]], [[0, 5, 6, 9]], [[5, 6, 9, 1]])
    """
    target = pad_with_end(targets)
    return Batch(pad_with_end(sources), F.pad(target[:, :-1], (1, 0), value=PAD), target)


MLM_PROBABILITY = 0.15  # fraction of the tokens to predict in masked language modeling (Devlin et al. 2019).
MASK_FRACTION, RANDOM_FRACTION = 0.8, 0.1  # fractions of these that become MASK or a random token; the rest stay
FIRST_TEXT_ID = 3  # ids below are special tokens

Collator = Callable[[TokenRows, TokenRows, Sequence[int]], Batch]
"""Sources, targets and a seed to a batch; random choices depend on the seed only."""


def create_collator(config: ArchitectureConfig, vocab_size: int) -> Collator:
    """The collator of an architecture; random tokens are below ``vocab_size``."""
    if config.architecture == "causal_lm":
        return lambda sources, targets, seed: collate([[] for _ in sources], targets)
    if config.architecture == "masked_lm":
        return lambda sources, targets, seed: collate_masked(sources, np.random.default_rng(list(seed)), vocab_size)
    return lambda sources, targets, seed: collate(sources, targets)


def collate_masked(rows: TokenRows, random: np.random.Generator, vocab_size: int) -> Batch:
    """Mask some tokens of each sentence; the target has their ids, and PAD elsewhere."""
    masked_rows, label_rows = [], []
    for row in rows:
        ids = np.append(np.asarray(row, dtype=np.int64), END)
        selected = random.random(len(ids)) < MLM_PROBABILITY
        selected[-1] = False  # END
        if len(row) and not selected.any():
            selected[random.integers(len(row))] = True
        draws = random.random(len(ids))
        random_ids = random.integers(FIRST_TEXT_ID, vocab_size, len(ids))
        masked_ids = np.where(selected & (draws < MASK_FRACTION), MASK, ids)
        masked_ids = np.where(
            selected & (draws >= MASK_FRACTION) & (draws < MASK_FRACTION + RANDOM_FRACTION), random_ids, masked_ids
        )
        masked_rows.append(masked_ids)
        label_rows.append(np.where(selected, ids, PAD))
    source, target = torch.from_numpy(pad_rows(masked_rows, PAD)), torch.from_numpy(pad_rows(label_rows, PAD))
    return Batch(source, target, target)
