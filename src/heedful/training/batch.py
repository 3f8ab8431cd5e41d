"""Sentences side by side, as the model reads and writes them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from heedful.corpora.batches import padded
from heedful.model.config import PAD
from heedful.text.tokenizer import END


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded ids: the source ended, the target as read (from PAD on) and as to be written (to END)."""

    source: Tensor  # (sentences, source length)
    before: Tensor  # (sentences, target length)
    target: Tensor  # (sentences, target length)
    links: Tensor | None = None
    """(links, 3): sentence, query and key that a taught head should follow."""

    @property
    def tokens(self) -> int:
        """Target tokens, padding not counted."""
        return int((self.target != PAD).sum())

    def halves(self) -> "tuple[Batch, Batch]":
        """Its sentences in two batches."""
        middle = len(self.source) // 2
        return self._part(slice(middle)), self._part(slice(middle, None))

    def _part(self, rows: slice) -> "Batch":
        links = self.links
        if links is not None:
            first, end, _ = rows.indices(len(self.source))
            links = links[(first <= links[:, 0]) & (links[:, 0] < end)] - torch.tensor([first, 0, 0])
        return Batch(self.source[rows], self.before[rows], self.target[rows], links)


def new_batch(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> Batch:
    """Add END and the start, pad.

    >>> batch = new_batch([[7, 8]], [[5, 6, 9]])
    >>> batch.source.tolist(), batch.before.tolist(), batch.target.tolist()
    ([[7, 8, 1]], [[0, 5, 6, 9]], [[5, 6, 9, 1]])
    """
    source = padded([np.append(np.asarray(row, dtype=np.int64), END) for row in sources], PAD)
    target = padded([np.append(np.asarray(row, dtype=np.int64), END) for row in targets], PAD)
    before = np.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=PAD)
    return Batch(torch.from_numpy(source), torch.from_numpy(before), torch.from_numpy(target))
