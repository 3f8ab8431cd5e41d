from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.data.config import BatchConfig
from heedful.data.dataset import TokenDataset, TokenDatasetWriter
from heedful.data.sampler import TokenBatchSampler, plan_batches
from heedful.models.base import pad_rows


def realistic_lengths(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Log-normal, about 25 tokens, similar on both sides, as in WMT."""
    random = np.random.default_rng(13)
    source = np.clip(random.lognormal(3.0, 0.6, count), 1, 300)
    target = np.clip(source * random.lognormal(0.05, 0.25, count), 1, 300)
    return source.astype(np.int32) + 1, target.astype(np.int32) + 1


def padded_sizes(batch: np.ndarray, *sides: np.ndarray) -> list[int]:
    return [len(batch) * int(side[batch].max()) for side in sides]


LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), max_size=60)


@given(LENGTHS, st.integers(1, 90), st.integers(0, 5))
def test_epoch_has_every_pair_once_within_token_budget(
    lengths: list[tuple[int, int]], tokens: int, sentences: int
) -> None:
    source, target = np.array(lengths, dtype=np.int32).reshape(-1, 2).T
    config = BatchConfig(max_tokens=tokens, max_sentences=sentences)
    plan = plan_batches(source, target, config, seed=3, epoch=2)
    assert sorted(np.concatenate([[], *plan]).tolist()) == list(range(len(lengths)))
    for batch in plan:
        assert len(batch) == 1 or max(padded_sizes(batch, source, target)) <= tokens
        assert len(batch) <= (sentences or len(batch))


def test_batches_use_most_of_the_token_budget() -> None:
    source, target = realistic_lengths(50_000)
    plan = plan_batches(source, target, BatchConfig(), seed=1, epoch=0)
    sizes = np.array([padded_sizes(batch, source, target) for batch in plan])
    useful_source, useful_target = source.sum() / sizes[:, 0].sum(), target.sum() / sizes[:, 1].sum()
    assert useful_target >= 0.98
    assert useful_source >= 0.7
    assert sizes.max(axis=1).mean() >= 0.9 * 4096


def test_batches_depend_on_seed_and_epoch_only() -> None:
    source, target = realistic_lengths(2000)

    def plan(seed: int, epoch: int) -> list[list[int]]:
        return [batch.tolist() for batch in plan_batches(source, target, BatchConfig(), seed=seed, epoch=epoch)]

    assert plan(7, 1) == plan(7, 1)
    assert plan(7, 1) != plan(7, 2)
    assert plan(7, 1) != plan(8, 1)
    # Not only the order of the batches changes, but also which pairs share a batch.
    assert {frozenset(batch) for batch in plan(7, 1)} != {frozenset(batch) for batch in plan(7, 2)}


def test_batch_order_is_shuffled() -> None:
    source, target = realistic_lengths(20_000)
    plan = plan_batches(source, target, BatchConfig(max_tokens=512), seed=0, epoch=0)
    means = np.array([target[batch].mean() for batch in plan])
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.1


@pytest.fixture
def dataset(tmp_path: Path) -> TokenDataset:
    source, target = realistic_lengths(300)
    with TokenDatasetWriter(tmp_path, 50, 50) as writer:
        for source_length, target_length in zip(source, target, strict=True):
            writer.add([4] * (source_length - 1), [5] * (target_length - 1))
    return TokenDataset.open(tmp_path)


def test_sampler_starts_at_any_update(dataset: TokenDataset) -> None:
    config = BatchConfig(max_tokens=300)
    batches = TokenBatchSampler(dataset, config, seed=5, gradient_accumulation=3)
    for epoch in (1, 0):
        updates = [batches.update(epoch, index) for index in range(batches.updates_per_epoch(epoch))]
        assert all(len(update) == 3 for update in updates[:-1])
        assert 1 <= len(updates[-1]) <= 3
        indices = np.concatenate([batch for update in updates for batch in update])
        assert sorted(indices.tolist()) == list(range(len(dataset)))
        update = TokenBatchSampler(dataset, config, seed=5, gradient_accumulation=3).update(epoch, 4)
        assert [batch.tolist() for batch in update] == [batch.tolist() for batch in updates[4]]
    with pytest.raises(IndexError):
        batches.update(0, batches.updates_per_epoch(0))


def test_batch_tokens_include_end_of_sentence(tmp_path: Path) -> None:
    with TokenDatasetWriter(tmp_path, 50, 50) as writer:
        for _ in range(4):
            writer.add([1, 2], [1, 2, 3])
    batches = TokenBatchSampler(TokenDataset.open(tmp_path), BatchConfig(max_tokens=12), seed=0)
    assert [len(batches.update(0, index)[0]) for index in range(2)] in ([3, 1], [1, 3])


def test_empty_dataset_has_no_updates(tmp_path: Path) -> None:
    with TokenDatasetWriter(tmp_path, 50, 50):
        pass
    assert TokenBatchSampler(TokenDataset.open(tmp_path), BatchConfig(), seed=0).updates_per_epoch(0) == 0


def test_pad_rows_pads_to_longest() -> None:
    rows = [np.array([3, 4], dtype=np.uint16), np.array([], dtype=np.uint16), np.array([5], dtype=np.uint16)]
    matrix = pad_rows(rows, pad_id=9)
    assert matrix.dtype == np.int64
    assert matrix.tolist() == [[3, 4], [9, 9], [5, 9]]
    assert pad_rows([]).shape == (0, 0)
