import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.config import Config
from heedful.data.cleaning import CleaningReport, HashSet, Pair, clean_pairs, mark_first_occurrences, sentence_hash
from heedful.data.config import CleaningConfig
from heedful.data.formats.base import PairRecord
from heedful.errors import HeedfulError
from heedful.tokenization.normalization import clean_sentence


def clean(*pairs: tuple[str, str], **settings: object) -> tuple[list[Pair], CleaningReport]:
    report = CleaningReport()
    records = [PairRecord("train.tsv", number, *pair[:2]) for number, pair in enumerate(pairs, start=1)]
    return list(clean_pairs(records, CleaningConfig.from_settings(settings), report)), report


def test_clean_pairs_report_counts_reasons_with_examples() -> None:
    report = CleaningReport()
    records = [
        PairRecord("a.tsv", 1, "one", "eins"),
        PairRecord("a.tsv", 2, None, None, "invalid UTF-8"),
        PairRecord("a.tsv", 3, " \t", "zwei"),
        PairRecord("a.tsv", 4, "x" * 1001, "y" * 1001),
        PairRecord("a.tsv", 5, "a" * 19, "b" * 121),
        PairRecord("a.tsv", 6, "one ", "eins"),
        *(PairRecord("b.tsv", line, "", "") for line in range(1, 6)),
    ]
    assert list(clean_pairs(records, CleaningConfig(), report)) == [Pair("one", "eins")]
    assert (report.read, report.accepted) == (11, 1)
    assert report.summary_lines() == [
        "read 11 pairs, kept 1",
        "dropped 6: empty side (first: a.tsv:3, b.tsv:1, b.tsv:2)",
        "dropped 1: invalid UTF-8 (first: a.tsv:2)",
        "dropped 1: too long (first: a.tsv:4)",
        "dropped 1: length ratio (first: a.tsv:5)",
        "dropped 1: duplicate (first: a.tsv:6)",
    ]


def test_clean_pairs_limits_are_exact() -> None:
    pairs = [("語" * 7, "x" * 42), ("語" * 7, "x" * 43), ("x" * 50, "y" * 51), ("x" * 51, "y" * 51)]
    accepted, report = clean(*pairs, max_characters=50, max_length_ratio=6)
    assert accepted == [Pair(*pairs[0])]
    assert report.dropped == {"length ratio": 1, "too long": 2}


def test_clean_pairs_short_sentences_skip_ratio() -> None:
    assert len(clean(("I", "x" * 19))[0]) == 1
    assert len(clean(("I", "x" * 20))[0]) == 0


def test_clean_pairs_zero_disables_limits() -> None:
    assert len(clean(("I", "x" * 100_000), max_characters=0, max_length_ratio=0)[0]) == 1


def test_clean_pairs_duplicates_need_both_sides() -> None:
    pairs = [Pair("a", "b"), Pair("a", "c"), Pair("a", "b"), Pair("ab", "c"), Pair("a", "bc")]
    assert clean(*pairs)[0] == [Pair("a", "b"), Pair("a", "c"), Pair("ab", "c"), Pair("a", "bc")]
    assert clean(*pairs, deduplicate=False)[0] == pairs


def test_clean_pairs_nfc_composes_accents() -> None:
    assert clean(("cafe\u0301", "x"))[0] == [Pair("caf\u00e9", "x")]
    assert clean(("cafe\u0301", "x"), unicode_normalization="none")[0] == [Pair("cafe\u0301", "x")]


@pytest.mark.parametrize(
    "text", ["👩‍👩‍👧", "می‌خواهم", "e\u0323\u0308\u0335", "\u200fשלום\u200e", "क्‍ष", "你好\u3000世界", "a\u00a0b"]
)
def test_clean_sentence_keeps_joiners_and_marks(text: str) -> None:
    assert clean_sentence(text, "none") == text


def test_clean_sentence_breaks_become_one_space() -> None:
    assert clean_sentence("\ufeff a\r\nb\u2028c\x0bd\0e\x85 ") == "a b c de"


@given(st.text())
def test_clean_sentence_any_text_becomes_one_line(text: str) -> None:
    cleaned_text = clean_sentence(text)
    assert len(cleaned_text.splitlines()) <= 1
    assert not set("\n\r\t\0") & set(cleaned_text)
    assert clean_sentence(cleaned_text) == cleaned_text == cleaned_text.strip()


def test_cleaning_config_is_validated_and_documented() -> None:
    assert issubclass(CleaningConfig, Config)
    assert all(field.description for field in CleaningConfig.model_fields.values())
    with pytest.raises(HeedfulError, match="max_length_ratio"):
        CleaningConfig.from_settings({"max_length_ratio": -1})


@given(st.lists(st.integers(0, 40) | st.integers(0, 2**64 - 1)))
def test_hash_set_matches_python_set(values: list[int]) -> None:
    hash_set, reference = HashSet(capacity=2), set()
    for value in values:
        value = value or 1  # zero and one share a slot
        assert hash_set.add(value) == (value not in reference)
        reference.add(value)
    assert len(hash_set) == len(reference)


def test_hash_set_growth_keeps_all_hashes() -> None:
    values = [(number << 20) | 0xFFFFF for number in range(700)]  # all hash to the last slot
    values += random.Random(3).sample(range(2**62), 5000)
    hash_set = HashSet(capacity=4)
    assert all(hash_set.add(value) for value in values)
    assert not any(hash_set.add(value) for value in values)
    assert len(hash_set) == 5700


def test_hash_set_zero_is_a_valid_hash() -> None:
    hash_set = HashSet()
    assert hash_set.add(0)
    assert not hash_set.add(0)


def test_sentence_hash_is_stable() -> None:
    assert sentence_hash("Übermut 🙂") == 16748481477438764475
    assert 0 <= sentence_hash("") < 2**64


@pytest.mark.parametrize("hashes_per_pass", [1, 50, 1 << 22])
def test_mark_first_occurrences_matches_python_set(hashes_per_pass: int) -> None:
    rng = np.random.default_rng(5)
    hashes = [(rng.integers(1, 90, size).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) for size in (40, 0, 130, 7)]
    previous_hashes: set[int] = set()
    expected = [
        [not (value in previous_hashes or previous_hashes.add(value)) for value in shard.tolist()] for shard in hashes
    ]  # type: ignore[func-returns-value]
    assert [is_first.tolist() for is_first in mark_first_occurrences(hashes, hashes_per_pass)] == expected
    assert mark_first_occurrences([]) == []
