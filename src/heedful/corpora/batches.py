"""Batches by token budget (section 5.1: "batched together by approximate sequence length").

Any position of any epoch can be reached directly, so a run resumes exactly where it stopped.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from heedful.config import Config
from heedful.corpora.parts import Mixture
from heedful.corpora.store import TokenStore

Indices = NDArray[np.int64]
Lengths = NDArray[np.integer[Any]]


class BatchConfig(Config):
    """How many sentences go through the model at once."""

    tokens: int = Field(default=4096, ge=1)
    """Padded target tokens, and padded source tokens, of one batch at most."""
    sentences: int = Field(default=0, ge=0)
    """Sentence pairs of one batch at most; 0 for no cap."""


def plan_batches(
    source_lengths: Lengths, target_lengths: Lengths, config: BatchConfig, *, seed: int, epoch: int
) -> list[Indices]:
    """Every pair of the corpus exactly once, in batches of similar lengths and random order.

    Lengths include the end symbol. A pair that alone exceeds the budget is a batch of its own.
    The same seed and epoch give the same plan; another epoch, another.
    """
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(target_lengths))  # shuffled first: a stable sort leaves ties so
    keys = target_lengths.astype(np.int64) << 32 | source_lengths.astype(np.int64)
    order = order[np.argsort(keys[order], kind="stable")]
    cuts = _cuts(source_lengths[order], target_lengths[order], config)
    batches = [order[start:end] for start, end in pairwise(cuts)]
    return [batches[place] for place in random.permutation(len(batches))]


def _cuts(source_lengths: Lengths, target_lengths: Lengths, config: BatchConfig) -> list[int]:
    """Where batches begin and end: each takes as many pairs as the budget allows."""
    cuts = [0]
    while cuts[-1] < len(target_lengths):
        start = cuts[-1]
        most = max(config.tokens // max(int(target_lengths[start]), 1), 1)  # targets only get longer
        most = min(most, config.sentences) if config.sentences else most
        window = slice(start, start + most)
        longest = np.maximum(np.maximum.accumulate(source_lengths[window]), target_lengths[window])
        padded_tokens = longest.astype(np.int64) * np.arange(1, len(longest) + 1)
        fitting = int(np.searchsorted(padded_tokens, config.tokens, side="right"))  # they only grow
        cuts.append(start + max(fitting, 1))
    return cuts


class Updates(Protocol):
    """Which pairs each update of a run sees; any update can be reached directly."""

    def updates_per_epoch(self, epoch: int) -> int:
        """Updates in this epoch: the same in every one."""
        ...

    def update(self, epoch: int, index: int) -> list[Indices]:
        """The batches of one update, as indices of pairs."""
        ...


class Batches:
    """The updates of a run: each is ``accumulate`` batches, whose gradients are summed.

    The last update of an epoch has fewer batches when they do not come out even. A mixture says which pairs
    an epoch sees, if not every pair once.
    """

    def __init__(
        self,
        store: TokenStore,
        config: BatchConfig,
        seed: int,
        accumulate: int = 1,
        mixture: Mixture | None = None,
    ) -> None:
        self._source_lengths = store.source_lengths + 1  # the end symbol, which the store leaves out
        self._target_lengths = store.target_lengths + 1
        self._config = config
        self._seed = seed
        self._accumulate = accumulate
        self._mixture = None if mixture is None or mixture.whole else mixture
        self._length = 0  # batches of an epoch, as the first one of a mixture has
        self._planned_epoch = -1
        self._plan: list[Indices] = []

    def updates_per_epoch(self, epoch: int) -> int:
        """Updates in this epoch: the same in every one, as the sorted lengths are, or are taken to be."""
        return -(-len(self.of_epoch(epoch)) // self._accumulate)

    def update(self, epoch: int, index: int) -> list[Indices]:
        """The batches of one update, as indices of pairs in the store."""
        if not 0 <= index < self.updates_per_epoch(epoch):
            raise IndexError(f"update {index} of {self.updates_per_epoch(epoch)} in epoch {epoch}")
        start = index * self._accumulate
        return self.of_epoch(epoch)[start : start + self._accumulate]

    def of_epoch(self, epoch: int) -> list[Indices]:
        """All batches of an epoch, in their order."""
        if epoch != self._planned_epoch:
            self._plan = self._planned(epoch) if self._mixture is None else self._mixed(epoch, self._mixture)
            self._planned_epoch = epoch
        return self._plan

    def _planned(self, epoch: int, chosen: Indices | slice = slice(None)) -> list[Indices]:
        sources, targets = self._source_lengths[chosen], self._target_lengths[chosen]
        return plan_batches(sources, targets, self._config, seed=self._seed, epoch=epoch)

    def _mixed(self, epoch: int, mixture: Mixture) -> list[Indices]:
        """Other pairs make a few batches more or fewer: these are left out, or come twice."""
        chosen = mixture.indices(self._seed, epoch)
        batches = [chosen[batch] for batch in self._planned(epoch, chosen)]
        if not self._length:
            self._length = len(batches) if not epoch else len(self._mixed(0, mixture))
        return [batches[number % len(batches)] for number in range(self._length)]


def length_groups(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Indices in groups of similar length, each within the token budget, the longest first; for reading only.

    Empty sentences are in no group; one that alone exceeds the budget is a group of its own.

    >>> length_groups([3, 0, 9, 4], tokens=10)
    [[2], [3, 0]]
    """
    groups: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if not lengths[index]:
            break
        if groups and (len(groups[-1]) + 1) * longest <= tokens:
            groups[-1].append(index)
        else:
            groups.append([index])
            longest = lengths[index]
    return groups


def padded(rows: Sequence[NDArray[Any]], pad: int = 0) -> NDArray[np.int64]:
    """The rows as one matrix, shorter ones filled up at the end.

    >>> padded([np.array([5, 6, 7]), np.array([8])])
    array([[5, 6, 7],
           [8, 0, 0]])
    """
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    filled = np.arange(lengths.max(initial=0)) < lengths[:, None]  # (rows, longest)
    matrix = np.full(filled.shape, pad, dtype=np.int64)
    if len(rows):
        matrix[filled] = np.concatenate(rows)
    return matrix
