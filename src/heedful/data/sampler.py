"""Batches by token budget (section 5.1: "batched together by approximate sequence length").

Any position of any epoch can be reached directly, so a run resumes exactly where it stopped.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from heedful.data.config import BatchConfig
from heedful.data.corpus import Mixture
from heedful.data.dataset import MAX_PLANNED_SHARDS, ShardedTokenDataset, TokenDataset

Indices = NDArray[np.int64]

Lengths = NDArray[np.integer[Any]]


def plan_batches(
    source_lengths: Lengths, target_lengths: Lengths, config: BatchConfig, *, seed: int, epoch: int
) -> list[Indices]:
    """Every pair of the corpus exactly once, in batches of similar lengths and random order.

    Lengths include END. A pair that alone exceeds the budget is a batch of its own. The plan depends on seed and
    epoch only.
    """
    rng = np.random.default_rng([seed, epoch])
    permutation = rng.permutation(len(target_lengths))  # shuffle first: the stable sort keeps ties shuffled
    sort_keys = target_lengths.astype(np.int64) << 32 | source_lengths.astype(np.int64)
    permutation = permutation[np.argsort(sort_keys[permutation], kind="stable")]
    boundaries = _batch_boundaries(source_lengths[permutation], target_lengths[permutation], config)
    batches = [permutation[start:end] for start, end in pairwise(boundaries)]
    return [batches[index] for index in rng.permutation(len(batches))]


def _batch_boundaries(source_lengths: Lengths, target_lengths: Lengths, config: BatchConfig) -> list[int]:
    """Where batches start and end: each takes as many pairs as the budget allows."""
    boundaries = [0]
    while boundaries[-1] < len(target_lengths):
        start = boundaries[-1]
        max_pairs = max(config.max_tokens // max(int(target_lengths[start]), 1), 1)  # lengths are sorted
        max_pairs = min(max_pairs, config.max_sentences) if config.max_sentences else max_pairs
        candidates = slice(start, start + max_pairs)
        max_lengths = np.maximum(np.maximum.accumulate(source_lengths[candidates]), target_lengths[candidates])
        padded_tokens = max_lengths.astype(np.int64) * np.arange(1, len(max_lengths) + 1)
        num_fitting = int(np.searchsorted(padded_tokens, config.max_tokens, side="right"))  # increasing
        boundaries.append(start + max(num_fitting, 1))
    return boundaries


class BatchSampler(Protocol):
    """Which pairs each update of a run sees; any update can be reached directly."""

    def updates_per_epoch(self, epoch: int) -> int:
        """Updates in this epoch: the same in every one."""
        ...

    def update(self, epoch: int, index: int) -> list[Indices]:
        """The batches of one update, as indices of pairs."""
        ...


class TokenBatchSampler:
    """The updates of a run: each is ``gradient_accumulation`` batches, the last of an epoch may be fewer.

    The mixture defines which pairs an epoch sees; None: every pair once.
    """

    def __init__(
        self,
        dataset: TokenDataset,
        config: BatchConfig,
        seed: int,
        gradient_accumulation: int = 1,
        mixture: Mixture | None = None,
    ) -> None:
        self._source_lengths = dataset.source_lengths + 1  # END, which the dataset does not store
        self._target_lengths = dataset.target_lengths + 1
        self._config, self._seed, self._gradient_accumulation = config, seed, gradient_accumulation
        self._mixture = None if mixture is None or mixture.is_unweighted else mixture
        self._batches_per_epoch = 0  # of a mixture: as many as in the first epoch
        self._cached_epoch, self._cached_batches = -1, list[Indices]()

    def updates_per_epoch(self, epoch: int) -> int:
        """Updates in this epoch: the same in every one."""
        return -(-len(self.epoch_batches(epoch)) // self._gradient_accumulation)

    def update(self, epoch: int, index: int) -> list[Indices]:
        """The batches of one update, as indices of pairs."""
        if not 0 <= index < self.updates_per_epoch(epoch):
            raise IndexError(f"update {index} of {self.updates_per_epoch(epoch)} in epoch {epoch}")
        start = index * self._gradient_accumulation
        return self.epoch_batches(epoch)[start : start + self._gradient_accumulation]

    def epoch_batches(self, epoch: int) -> list[Indices]:
        """All batches of an epoch, in order."""
        if epoch != self._cached_epoch:
            mixture = self._mixture
            batches = self._plan_epoch(epoch) if mixture is None else self._plan_mixed_epoch(epoch, mixture)
            self._cached_epoch, self._cached_batches = epoch, batches
        return self._cached_batches

    def _plan_epoch(self, epoch: int, indices: Indices | slice = slice(None)) -> list[Indices]:
        source_lengths, target_lengths = self._source_lengths[indices], self._target_lengths[indices]
        return plan_batches(source_lengths, target_lengths, self._config, seed=self._seed, epoch=epoch)

    def _plan_mixed_epoch(self, epoch: int, mixture: Mixture) -> list[Indices]:
        """Epochs of other pairs have a few batches more or fewer: drop the surplus, or repeat some."""
        indices = mixture.indices(self._seed, epoch)
        batches = [indices[batch] for batch in self._plan_epoch(epoch, indices)]
        if not self._batches_per_epoch:
            self._batches_per_epoch = len(batches) if not epoch else len(self._plan_mixed_epoch(0, mixture))
        return [batches[number % len(batches)] for number in range(self._batches_per_epoch)]


def group_by_length(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices in groups of similar length, each within the token budget, the longest first; for inference.

    Empty sentences are in no group; one that alone exceeds the budget is a group of its own.

    >>> group_by_length([3, 0, 9, 4], max_tokens=10)
    [[2], [3, 0]]
    """
    groups: list[list[int]] = []
    max_length = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if not lengths[index]:
            break
        if groups and (len(groups[-1]) + 1) * max_length <= max_tokens:
            groups[-1].append(index)
        else:
            groups.append([index])
            max_length = lengths[index]
    return groups


class ShardedBatchSampler:
    """The updates of a run over shards: an epoch goes through them in random order, and each is shuffled.

    Only the lengths and batches of the current shards are in memory.
    """

    def __init__(
        self,
        dataset: ShardedTokenDataset,
        config: BatchConfig,
        seed: int,
        gradient_accumulation: int,
        fractions: Sequence[float],
    ) -> None:
        self._dataset, self._config, self._seed = dataset, config, seed
        self._gradient_accumulation, self._fractions = gradient_accumulation, tuple(fractions)
        self._batch_counts = np.array([shard.batches for shard in dataset.manifest.shards])
        self._total_batches = int(self._batch_counts.sum())
        self._get_sampler = lru_cache(maxsize=MAX_PLANNED_SHARDS)(self._create_sampler)

    def updates_per_epoch(self, epoch: int) -> int:
        """Updates in this epoch: the same in every one."""
        return -(-self._total_batches // self._gradient_accumulation)

    def update(self, epoch: int, index: int) -> list[Indices]:
        """The batches of one update, as indices of pairs in all shards."""
        if not 0 <= index < self.updates_per_epoch(epoch):
            raise IndexError(f"update {index} of {self.updates_per_epoch(epoch)} in epoch {epoch}")
        shard_count, first = len(self._batch_counts), index * self._gradient_accumulation
        permutation = np.random.default_rng([self._seed, epoch, shard_count]).permutation(shard_count)
        ends = np.cumsum(self._batch_counts[permutation])
        batches = []
        for batch_index in range(first, min(first + self._gradient_accumulation, self._total_batches)):
            position = int(np.searchsorted(ends, batch_index, side="right"))
            shard = int(permutation[position])
            offset = batch_index - int(ends[position] - self._batch_counts[shard])
            batches.append(self._get_sampler(shard).epoch_batches(epoch)[offset] + self._dataset.starts[shard])
        return batches

    def _create_sampler(self, number: int) -> TokenBatchSampler:
        pairs_per_source = self._dataset.manifest.shards[number].pairs_per_source
        return create_shard_sampler(
            self._dataset.shard(number), number, self._config, self._seed, Mixture(pairs_per_source, self._fractions)
        )


def create_shard_sampler(
    dataset: TokenDataset, number: int, config: BatchConfig, seed: int, mixture: Mixture
) -> TokenBatchSampler:
    """The batches of one of several shards; each shard has its own seed."""
    return TokenBatchSampler(dataset, config, seed + (number + 1 << 40), mixture=mixture)
