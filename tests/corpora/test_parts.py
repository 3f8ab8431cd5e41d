"""Parts of a corpus: how much of each an epoch sees, and always the same."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from heedful.corpora.batches import BatchConfig, Batches
from heedful.corpora.parts import Mixture, Part, check_shares
from heedful.corpora.store import StoreWriter, TokenStore
from heedful.errors import HeedfulError


def test_an_epoch_has_the_shares() -> None:
    mixture = Mixture((30, 7, 1000), (0.0, 0.2, 0.5))
    indices = mixture.indices(seed=3, epoch=5)
    assert mixture.counts == (30, 20, 50)
    assert Counter(np.digitize(indices, [30, 37]).tolist()) == {0: 30, 1: 20, 2: 50}
    assert set(range(37)) <= set(indices.tolist())  # a part that is repeated is there as a whole


def test_all_pairs_of_a_large_part_come_before_any_comes_again() -> None:
    mixture = Mixture((11, 55), (0.0, 0.5))
    seen = [i for epoch in range(5) for i in mixture.indices(1, epoch).tolist() if i >= 11]
    assert sorted(seen) == list(range(11, 66))
    assert seen != sorted(seen)
    assert seen[:11] == [i for i in mixture.indices(1, 0).tolist() if i >= 11]
    assert seen[:11] != [i for i in mixture.indices(2, 0).tolist() if i >= 11]


def test_a_part_without_pairs() -> None:
    assert Mixture((5, 0), (0.0, 0.5)).indices(1, 0).tolist() == [0, 1, 2, 3, 4]


def test_batches_of_a_mixture(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, 100, 100) as writer:
        for number in range(200):
            writer.add([5] * (1 + number % 13), [6] * (1 + number % 7))
    store = TokenStore.open(tmp_path)
    mixture = Mixture((40, 160), (0.0, 0.5))
    batches = Batches(store, BatchConfig(tokens=64), 1, mixture=mixture)
    length = batches.updates_per_epoch(0)
    first = [[batch.tolist() for batch in batches.update(3, i)] for i in range(length)]
    assert batches.updates_per_epoch(3) == length
    anew = Batches(store, BatchConfig(tokens=64), 1, mixture=mixture)  # as after an interruption
    assert [[batch.tolist() for batch in anew.update(3, i)] for i in range(length)] == first
    seen = [i for update in first for batch in update for i in batch]
    assert sum(i >= 40 for i in seen) / len(seen) == pytest.approx(0.5, abs=0.1)


def test_parts_survive_being_written_down() -> None:
    part = Part((Path("a.en"), Path("a.de")), ("en", "de"), ("de", "bt"), 0.25, held_out=False)
    assert Part.from_json(part.to_json()) == part


def test_shares_that_leave_no_room() -> None:
    with pytest.raises(HeedfulError, match="no share"):
        Part((Path("a.tsv"),), share=1.5)
    with pytest.raises(HeedfulError, match="leaves nothing"):
        check_shares([Part((Path("a.tsv"),)), Part((Path("b.tsv"),), share=0.6)] * 2)
