import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.config import Config
from heedful.corpora.filters import CleaningConfig, CleaningReport, Pair, clean, clean_sentence
from heedful.corpora.reading import Record
from heedful.errors import HeedfulError


def cleaned(*pairs: tuple[str, str], **settings: object) -> tuple[list[Pair], CleaningReport]:
    report = CleaningReport()
    records = [Record("train.tsv", number, *pair[:2]) for number, pair in enumerate(pairs, start=1)]
    return list(clean(records, CleaningConfig.checked(settings), report)), report


def test_each_reason_is_counted_with_its_places() -> None:
    report = CleaningReport()
    records = [
        Record("a.tsv", 1, "one", "eins"),
        Record("a.tsv", 2, None, None, "invalid UTF-8"),
        Record("a.tsv", 3, " \t", "zwei"),
        Record("a.tsv", 4, "x" * 1001, "y" * 1001),
        Record("a.tsv", 5, "a" * 19, "b" * 121),
        Record("a.tsv", 6, "one ", "eins"),
        *(Record("b.tsv", line, "", "") for line in range(1, 6)),
    ]
    assert list(clean(records, CleaningConfig(), report)) == [Pair("one", "eins")]
    assert (report.read, report.kept) == (11, 1)
    assert report.lines() == [
        "read 11 pairs, kept 1",
        "dropped 6: empty side (first: a.tsv:3, b.tsv:1, b.tsv:2)",
        "dropped 1: invalid UTF-8 (first: a.tsv:2)",
        "dropped 1: too long (first: a.tsv:4)",
        "dropped 1: length ratio (first: a.tsv:5)",
        "dropped 1: duplicate (first: a.tsv:6)",
    ]


def test_limits_are_exact() -> None:
    pairs = [("語" * 7, "x" * 42), ("語" * 7, "x" * 43), ("x" * 50, "y" * 51), ("x" * 51, "y" * 51)]
    kept, report = cleaned(*pairs, max_characters=50, max_ratio=6)
    assert kept == [Pair(*pairs[0])]
    assert report.dropped == {"length ratio": 1, "too long": 2}


def test_short_sentences_have_no_ratio() -> None:
    assert len(cleaned(("I", "x" * 19))[0]) == 1
    assert len(cleaned(("I", "x" * 20))[0]) == 0


def test_zero_switches_limits_off() -> None:
    assert len(cleaned(("I", "x" * 100_000), max_characters=0, max_ratio=0)[0]) == 1


def test_duplicates_only_when_both_sides_agree() -> None:
    pairs = [Pair("a", "b"), Pair("a", "c"), Pair("a", "b"), Pair("ab", "c"), Pair("a", "bc")]
    assert cleaned(*pairs)[0] == [Pair("a", "b"), Pair("a", "c"), Pair("ab", "c"), Pair("a", "bc")]
    assert cleaned(*pairs, deduplicate=False)[0] == pairs


def test_normalization_joins_accents() -> None:
    assert cleaned(("cafe\u0301", "x"))[0] == [Pair("caf\u00e9", "x")]
    assert cleaned(("cafe\u0301", "x"), normalize="none")[0] == [Pair("cafe\u0301", "x")]


@pytest.mark.parametrize(
    "text",
    ["👩‍👩‍👧", "می‌خواهم", "e\u0323\u0308\u0335", "\u200fשלום\u200e", "क्‍ष", "你好\u3000世界", "a\u00a0b"],
)
def test_joiners_and_marks_stay(text: str) -> None:
    assert clean_sentence(text, "none") == text


def test_breaks_become_one_space() -> None:
    assert clean_sentence("\ufeff a\r\nb\u2028c\x0bd\0e\x85 ") == "a b c de"


@given(st.text())
def test_cleaned_text_fits_on_a_line(text: str) -> None:
    once = clean_sentence(text)
    assert len(once.splitlines()) <= 1
    assert not set("\n\r\t\0") & set(once)
    assert clean_sentence(once) == once == once.strip()


def test_settings_are_checked_and_described() -> None:
    assert issubclass(CleaningConfig, Config)
    assert all(field.description for field in CleaningConfig.model_fields.values())
    with pytest.raises(HeedfulError, match="max_ratio"):
        CleaningConfig.checked({"max_ratio": -1})
