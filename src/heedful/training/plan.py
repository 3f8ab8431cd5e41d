"""Which update sees which pairs, and the gradient of a share of it: the same in every process of a group.

Everything random in update n depends on (seed, n) and the process's rank alone, so a resumed run repeats the
uninterrupted one to the bit.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from heedful.model.predictor import Predictor
from heedful.progress import Reporter
from heedful.text.subword_dropout import SubwordDropout
from heedful.text.tokenizer import Tokenizer
from heedful.training.batch import Batch
from heedful.training.preparation import Prepared
from heedful.training.tasks import batch_maker
from heedful.training.taught import new_teacher
from heedful.training.update import BatchLoss, Respelling, Sums, add_gradient, read_batch

APART = 2_654_435_761
"""Between the seeds of two ranks: no number of updates, and within the 32 bits that CPUs take of a seed."""


class Plan:
    """Of a run: its updates, and what each of them reads."""

    def __init__(self, prepared: Prepared, folder: Path, report: Reporter) -> None:
        settings = prepared.config.training
        self.prepared, self.settings = prepared, settings
        self.batches = prepared.batches()
        self.per_epoch = self.batches.updates_per_epoch(0)  # of every epoch
        whole = self.per_epoch * settings.epochs
        self.total = min(whole, settings.updates) if settings.updates else whole
        self.respelling = _respelling(prepared)
        self.make = batch_maker(prepared.config.model, prepared.tokenizer.source.size)
        self.teacher = new_teacher(prepared, folder, report)

    def read(self, update: int, rank: int = 0, size: int = 1, batches: int = 0) -> list[Batch]:
        """The first batches of an update (0: all); of each, every ``size``-th pair from ``rank`` on."""
        epoch, index = divmod(update - 1, self.per_epoch)
        whole = self.batches.update(epoch, index)[: batches or None]
        shares = [indices[rank::size].tolist() for indices in whole]
        return [
            read_batch(
                self.prepared.training,
                share,
                self.respelling,
                [self.settings.seed, update, part] + [rank] * (size > 1),
                self.make,
                self.teacher,
            )
            for part, share in enumerate(shares)
            if share
        ]

    def batches_in(self, update: int, batches: int = 0) -> int:
        """How many batches an update has, of the first ``batches`` (0: all)."""
        epoch, index = divmod(update - 1, self.per_epoch)
        return len(self.batches.update(epoch, index)[: batches or None])

    def begin(self, update: int, rank: int = 0, size: int = 1, batches: int = 0) -> list[Batch]:
        """``read``, and what is random in this process from here on is that of the update and the rank."""
        torch.manual_seed(self.settings.seed * 1_000_003 + update + rank * APART)
        return self.read(update, rank, size, batches)

    def loss_of(self, model: Predictor) -> BatchLoss:
        """The loss that is learned by."""
        return BatchLoss(model, self.settings.label_smoothing, self.teacher)

    def add_gradient(
        self, model: Predictor, update: int, precision: str, rank: int = 0, size: int = 1, batches: int = 0
    ) -> Sums:
        """Add the gradient of a process's share of an update to the parameters of a model."""
        read = self.begin(update, rank, size, batches)
        return add_gradient(self.loss_of(model), read, precision)


def _respelling(prepared: Prepared) -> tuple[Respelling, Respelling] | None:
    rate = prepared.config.tokenizer.dropout
    if not rate:
        return None
    longest = prepared.config.model.longest

    def respelling(tokenizer: Tokenizer) -> Respelling:
        dropout = SubwordDropout(tokenizer, rate)

        def respell(ids: Sequence[int], random: np.random.Generator) -> list[int]:
            new = dropout(ids, random)
            return new if len(new) < longest else list(ids)  # smaller pieces must not outgrow the model

        return respell

    source = respelling(prepared.tokenizer.source)
    return source, source if prepared.tokenizer.joint else respelling(prepared.tokenizer.target)
