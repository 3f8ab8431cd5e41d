import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.corpora.filters import Pair
from heedful.corpora.split import HeldOutChooser, held_out_size, split, split_hash
from heedful.errors import HeedfulError

WORDS = st.sampled_from(["a", "A", " a", "b", "c", "d", "e", "f  g", "F g", "straße", "STRASSE"])


def even(text: str) -> str:
    return " ".join(text.casefold().split())


@given(pairs=st.lists(st.builds(Pair, WORDS, WORDS)), count=st.none() | st.integers(0, 9))
def test_no_sentence_is_in_both_parts(pairs: list[Pair], count: int | None) -> None:
    if count is not None and not 1 <= count <= len(pairs) / 2:
        with pytest.raises(HeedfulError, match="hold"):
            split(lambda: iter(pairs), count)
        return
    parts = split(lambda: iter(pairs), count)
    training, held_out = list(parts.training()), parts.held_out
    for side in (0, 1):
        assert not {even(pair[side]) for pair in training} & {even(pair[side]) for pair in held_out}
    assert len(training) == parts.training_pairs
    assert len(training) + len(held_out) + parts.leaks == len(pairs)
    assert training or not pairs


def test_the_wanted_number_is_held_out() -> None:
    pairs = [Pair(f"source {number}", f"target {number}") for number in range(1000)]
    parts = split(lambda: iter(pairs), 37)
    assert (len(parts.held_out), parts.leaks, parts.training_pairs) == (37, 0, 963)
    assert len(split(lambda: iter(pairs)).held_out) == held_out_size(1000) == 50


def test_order_changes_nothing() -> None:
    pairs = [Pair(f"s{number}", f"t{number}") for number in range(300)]
    shuffled = random.Random(5).sample(pairs, len(pairs))
    first, second = split(lambda: iter(pairs)), split(lambda: iter(shuffled))
    assert set(first.held_out) == set(second.held_out)


def test_shared_targets_are_dropped_and_counted() -> None:
    pairs = [Pair(f"s{number}", "the same") for number in range(20)]
    parts = split(lambda: iter(pairs), 3)
    assert (parts.held_out, parts.leaks, parts.training_pairs) == ([], 3, 17)


def test_the_corpus_is_streamed() -> None:
    passes = 0

    def pairs() -> Iterator[Pair]:
        nonlocal passes
        passes += 1
        return (Pair(f"s{number}", f"t{number}") for number in range(50))

    parts = split(pairs)
    assert passes == 3
    assert len(list(parts.training())) == 48
    assert len(list(parts.training())) == 48


def test_chooser_keeps_the_smallest_hashes() -> None:
    chooser = HeldOutChooser(limit=7)
    sources = [f"sentence {number % 60}" for number in range(100)]
    for source in sources:
        chooser.observe(source)
    smallest = sorted({split_hash(source) for source in sources})
    assert [chooser.threshold(count) for count in range(1, 8)] == smallest[:7]
    assert chooser.threshold(0) == -1
    assert chooser.threshold(99) == smallest[6]


@pytest.mark.parametrize("pairs", [[], [Pair("a", "b")]])
def test_too_few_to_split(pairs: list[Pair]) -> None:
    parts = split(lambda: iter(pairs))
    assert (parts.held_out, list(parts.training())) == ([], pairs)
