"""Corpus sources and their mixture: fractions per epoch, and reproducibility."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from heedful.data.config import BatchConfig
from heedful.data.corpus import CorpusSource, Mixture, check_fractions
from heedful.data.dataset import TokenDataset, TokenDatasetWriter
from heedful.data.sampler import TokenBatchSampler
from heedful.errors import HeedfulError


def test_mixture_epoch_has_fractions() -> None:
    mixture = Mixture((30, 7, 1000), (0.0, 0.2, 0.5))
    indices = mixture.indices(seed=3, epoch=5)
    assert mixture.counts == (30, 20, 50)
    assert Counter(np.digitize(indices, [30, 37]).tolist()) == {0: 30, 1: 20, 2: 50}
    assert set(range(37)) <= set(indices.tolist())  # every pair of a repeated source occurs


def test_mixture_uses_all_pairs_before_repeating_one() -> None:
    mixture = Mixture((11, 55), (0.0, 0.5))
    indices = [i for epoch in range(5) for i in mixture.indices(1, epoch).tolist() if i >= 11]
    assert sorted(indices) == list(range(11, 66))
    assert indices != sorted(indices)
    assert indices[:11] == [i for i in mixture.indices(1, 0).tolist() if i >= 11]
    assert indices[:11] != [i for i in mixture.indices(2, 0).tolist() if i >= 11]


def test_mixture_with_empty_source_skips_it() -> None:
    assert Mixture((5, 0), (0.0, 0.5)).indices(1, 0).tolist() == [0, 1, 2, 3, 4]


def test_sampler_of_mixture_keeps_fractions_and_is_reproducible(tmp_path: Path) -> None:
    with TokenDatasetWriter(tmp_path, 100, 100) as writer:
        for number in range(200):
            writer.add([5] * (1 + number % 13), [6] * (1 + number % 7))
    dataset = TokenDataset.open(tmp_path)
    mixture = Mixture((40, 160), (0.0, 0.5))
    batches = TokenBatchSampler(dataset, BatchConfig(max_tokens=64), 1, mixture=mixture)
    length = batches.updates_per_epoch(0)
    first = [[batch.tolist() for batch in batches.update(3, i)] for i in range(length)]
    assert batches.updates_per_epoch(3) == length
    resumed_batches = TokenBatchSampler(dataset, BatchConfig(max_tokens=64), 1, mixture=mixture)  # as after a restart
    assert [[batch.tolist() for batch in resumed_batches.update(3, i)] for i in range(length)] == first
    indices = [i for update in first for batch in update for i in batch]
    assert sum(i >= 40 for i in indices) / len(indices) == pytest.approx(0.5, abs=0.1)


def test_corpus_sources_round_trip_as_json() -> None:
    source = CorpusSource((Path("a.en"), Path("a.de")), ("en", "de"), ("de", "bt"), 0.25, use_for_validation=False)
    assert CorpusSource.from_json(source.to_json()) == source


def test_fractions_that_are_invalid_or_too_large_raise() -> None:
    with pytest.raises(HeedfulError, match="not a valid fraction"):
        CorpusSource((Path("a.tsv"),), fraction=1.5)
    with pytest.raises(HeedfulError, match="leaves nothing"):
        check_fractions([CorpusSource((Path("a.tsv"),)), CorpusSource((Path("b.tsv"),), fraction=0.6)] * 2)
