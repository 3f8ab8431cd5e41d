"""Splitting is lossless, respects abbreviations, and calls ``fits`` on little text."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.tokenization.sentence_splitter import TextSegment, split_sentences, split_text

TEXTS = st.text(st.one_of(st.sampled_from("ab .,!?。\n\r\"'́\u200d3 ，"), st.characters()), max_size=80)

ENGLAND = "\U0001f3f4" + "".join(chr(0xE0000 + ord(letter)) for letter in "gbeng\x7f")


def join_segments(segments: list[TextSegment]) -> str:
    return "".join(segment.text + segment.separator for segment in segments)


def sentences(text: str) -> list[str]:
    return [segment.text for segment in split_sentences(text)]


@given(TEXTS, st.integers(0, 30))
def test_split_text_joined_segments_are_the_text(text: str, limit: int) -> None:
    assert join_segments(split_text(text, lambda part: len(part) <= limit)) == text
    assert join_segments(split_sentences(text)) == text


@given(TEXTS, st.integers(1, 30))
def test_split_text_every_segment_fits(text: str, limit: int) -> None:
    assert all(len(segment.text) <= limit for segment in split_text(text, lambda part: len(part) <= limit))


def test_split_text_fitting_text_is_one_segment() -> None:
    assert split_text(" One. Two.\n", lambda part: True) == [TextSegment(" One. Two.\n", "")]
    assert split_text("", lambda part: True) == [TextSegment("", "")]
    assert split_sentences("") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mr. Fox met Dr. No. They spoke.", ["Mr. Fox met Dr. No.", "They spoke."]),
        ("He said no. Then he left.", ["He said no.", "Then he left."]),
        ("See No. 5 first. Go.", ["See No. 5 first.", "Go."]),
        ("Pi is 3.14 or so. Yes!", ["Pi is 3.14 or so.", "Yes!"]),
        ("Many, e.g. Paris. Das ist z.B. Berlin.", ["Many, e.g. Paris.", "Das ist z.B. Berlin."]),
        ("M. Dupont est là. J. S. Bach aussi.", ["M. Dupont est là.", "J. S. Bach aussi."]),
        ('"Why?" he asked. "So."', ['"Why?" he asked.', '"So."']),
        ("He left. (Why?) So be it…", ["He left.", "(Why?)", "So be it…"]),
        ("你好。他说：“走！”我们走了？", ["你好。", "他说：“走！”", "我们走了？"]),
        ("كيف حالك؟ أنا بخير.", ["كيف حالك؟", "أنا بخير."]),
        ("यह घर है। वह पेड़ है।", ["यह घर है।", "वह पेड़ है।"]),
        ("Title\n\nText of it", ["Title", "Text of it"]),
        ("Am 3. Mai kam er. Dann nicht.", ["Am 3. Mai kam er.", "Dann nicht."]),
    ],
)
def test_split_sentences_finds_sentence_ends(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


def test_split_text_long_sentence_splits_at_clauses_then_spaces_then_characters() -> None:
    parts = split_text("one, two, three four, abcdefghijk", lambda part: len(part) <= 9)
    assert parts == [
        TextSegment("one, two,", " "),
        TextSegment("three", " "),
        TextSegment("four,", " "),
        TextSegment("abcdefghi", ""),
        TextSegment("jk", ""),
    ]


@pytest.mark.parametrize("cluster", ["e\u0301", "👩‍👧", "❤️", "🇫🇷", "👍🏽", "क्ष", "กำ", ENGLAND, "1️⃣", "🏳️‍🌈"])
def test_split_text_never_splits_graphemes(cluster: str) -> None:
    segments = split_text(cluster * 11, lambda part: len(part) <= 8)
    assert all(segment.text == cluster * (len(segment.text) // len(cluster)) for segment in segments)
    assert not any(unicodedata.category(segment.text[0]).startswith("M") for segment in segments)


@pytest.mark.parametrize("unit", ["a", "word ", "Ein Satz. ", "字", "a, ", ".", " ", "\n", ".\n", "!' ", "\u0301"])
def test_split_text_of_long_text_needs_few_checks(unit: str) -> None:
    checked_characters = 0

    def fits(part: str) -> bool:
        nonlocal checked_characters
        checked_characters += len(part)
        return len(part) <= 400

    text = "x" + unit * (200_000 // len(unit)) + "x"
    assert join_segments(split_text(text, fits)) == text
    assert checked_characters < 25 * len(text)
