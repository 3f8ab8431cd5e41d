import random

from hypothesis import given
from hypothesis import strategies as st

from heedful.corpora.hashes import SeenHashes, sentence_hash


@given(st.lists(st.integers(0, 40) | st.integers(0, 2**64 - 1)))
def test_agrees_with_a_set(values: list[int]) -> None:
    seen, reference = SeenHashes(capacity=2), set()
    for value in values:
        value = value or 1  # zero and one share a slot
        assert seen.add(value) == (value not in reference)
        reference.add(value)
    assert len(seen) == len(reference)


def test_growth_forgets_nothing_even_around_the_end() -> None:
    values = [(number << 20) | 0xFFFFF for number in range(700)]  # all want the very last slot
    values += random.Random(3).sample(range(2**62), 5000)
    seen = SeenHashes(capacity=4)
    assert all(seen.add(value) for value in values)
    assert not any(seen.add(value) for value in values)
    assert len(seen) == 5700


def test_zero_is_a_hash_like_any_other() -> None:
    seen = SeenHashes()
    assert seen.add(0)
    assert not seen.add(0)


def test_hash_is_the_same_everywhere() -> None:
    assert sentence_hash("Übermut 🙂") == 16748481477438764475
    assert 0 <= sentence_hash("") < 2**64
