import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.data.cleaning import Pair
from heedful.data.splits import default_validation_size, split_pairs
from heedful.errors import HeedfulError

WORDS = st.sampled_from(["a", "A", " a", "b", "c", "d", "e", "f  g", "F g", "straße", "STRASSE"])


def normalize(text: str) -> str:
    return " ".join(text.casefold().split())


@given(pairs=st.lists(st.builds(Pair, WORDS, WORDS)), count=st.none() | st.integers(0, 9))
def test_split_has_no_sentence_in_training_and_validation(pairs: list[Pair], count: int | None) -> None:
    if count is not None and not 1 <= count <= len(pairs) / 2:
        with pytest.raises(HeedfulError, match="hold"):
            split_pairs(lambda: iter(pairs), count)
        return
    parts = split_pairs(lambda: iter(pairs), count)
    training, validation = list(filter(parts.is_training_pair, pairs)), parts.validation
    for side in (0, 1):
        assert not {normalize(pair[side]) for pair in training} & {normalize(pair[side]) for pair in validation}
    assert len(training) == parts.num_training_pairs
    assert len(training) + len(validation) + parts.leaks == len(pairs)
    assert training or not pairs


def test_split_has_requested_validation_size() -> None:
    pairs = [Pair(f"source {number}", f"target {number}") for number in range(1000)]
    parts = split_pairs(lambda: iter(pairs), 37)
    assert (len(parts.validation), parts.leaks, parts.num_training_pairs) == (37, 0, 963)
    assert len(split_pairs(lambda: iter(pairs)).validation) == default_validation_size(1000) == 50


def test_split_does_not_depend_on_order() -> None:
    pairs = [Pair(f"s{number}", f"t{number}") for number in range(300)]
    shuffled_pairs = random.Random(5).sample(pairs, len(pairs))
    first, second = split_pairs(lambda: iter(pairs)), split_pairs(lambda: iter(shuffled_pairs))
    assert set(first.validation) == set(second.validation)


def test_split_drops_and_counts_shared_targets() -> None:
    pairs = [Pair(f"s{number}", "the same") for number in range(20)]
    parts = split_pairs(lambda: iter(pairs), 3)
    assert (parts.validation, parts.leaks, parts.num_training_pairs) == ([], 3, 17)


def test_split_reads_corpus_as_stream() -> None:
    passes = 0

    def pairs() -> Iterator[Pair]:
        nonlocal passes
        passes += 1
        return (Pair(f"s{number}", f"t{number}") for number in range(50))

    parts = split_pairs(pairs)
    assert passes == 2
    assert len(list(filter(parts.is_training_pair, pairs()))) == 48


@pytest.mark.parametrize("pairs", [[], [Pair("a", "b")]])
def test_split_of_too_few_pairs_has_no_validation(pairs: list[Pair]) -> None:
    parts = split_pairs(lambda: iter(pairs))
    assert (parts.validation, list(filter(parts.is_training_pair, pairs))) == ([], pairs)
