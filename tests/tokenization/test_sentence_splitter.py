"""Splitting is lossless, respects abbreviations of the language, and calls ``fits`` on little text."""

import unicodedata
from typing import NoReturn

import pytest
import sentencex
from hypothesis import given
from hypothesis import strategies as st

from heedful.tokenization.sentence_splitter import TextSegment, _segment, split_sentences, split_text

TEXTS = st.text(
    st.one_of(st.sampled_from("aB .,!?。\xa0\u2028\u3000«”\n\r\"'́\u200d3 ，"), st.characters()), max_size=80
)

ENGLAND = "\U0001f3f4" + "".join(chr(0xE0000 + ord(letter)) for letter in "gbeng\x7f")


def join_segments(segments: list[TextSegment]) -> str:
    return "".join(segment.text + segment.separator for segment in segments)


def sentences(text: str, language: str = "") -> list[str]:
    return [segment.text for segment in split_sentences(text, language)]


@given(TEXTS, st.integers(0, 30), st.sampled_from(["", "en", "de", "fr-CA", "zh-Hans", "hi"]))
def test_split_text_joined_segments_are_the_text(text: str, limit: int, language: str) -> None:
    assert join_segments(split_text(text, lambda part: len(part) <= limit, language)) == text
    segments = split_sentences(text, language)
    assert join_segments(segments) == text
    assert all(segment.text.strip() for segment in segments[1:])


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
        ("Mr. Fox met Dr. Lee. They spoke.", ["Mr. Fox met Dr. Lee.", "They spoke."]),
        ("He said no. Then he left.", ["He said no.", "Then he left."]),
        ("See No. 5 first. Go.", ["See No. 5 first.", "Go."]),
        ("Pi is 3.14 or so. Yes!", ["Pi is 3.14 or so.", "Yes!"]),
        ("Many, e.g. Paris. Das ist z.B. Berlin.", ["Many, e.g. Paris.", "Das ist z.B. Berlin."]),
        ("M. Dupont est là. J. S. Bach aussi.", ["M. Dupont est là.", "J. S. Bach aussi."]),
        ('"Why?" he asked. "So."', ['"Why?" he asked.', '"So."']),
        ("He left. He came at 10 a.m. The end…", ["He left.", "He came at 10 a.m.", "The end…"]),
        ("你好。他说：“走！”我们走了？", ["你好。", "他说：“走！”", "我们走了？"]),
        ("كيف حالك؟ أنا بخير.", ["كيف حالك؟", "أنا بخير."]),
        ("यह घर है। वह पेड़ है।", ["यह घर है।", "वह पेड़ है।"]),
        ("Title\n\nText of it", ["Title", "Text of it"]),
    ],
)
def test_split_sentences_finds_sentence_ends(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("de", "Am 3. Mai kam Hr. Müller. Dann nicht.", ["Am 3. Mai kam Hr. Müller.", "Dann nicht."]),
        ("de_AT", "Sie nahmen u.a. Brot mit. Er mag es.", ["Sie nahmen u.a. Brot mit.", "Er mag es."]),
        ("es", "El Sr. López vino. ¿Y usted?", ["El Sr. López vino.", "¿Y usted?"]),
        ("en", "Tom saw me. I left. I feel ill. Tom too.", ["Tom saw me.", "I left.", "I feel ill.", "Tom too."]),
        ("en", "No. I see No. 5, Portland, Me. here.", ["No.", "I see No. 5, Portland, Me. here."]),
        ("fr", "Il a pris son vol. Tom dort. Voir vol. 3.", ["Il a pris son vol.", "Tom dort.", "Voir vol. 3."]),
    ],
)
def test_split_sentences_uses_rules_of_language(language: str, text: str, expected: list[str]) -> None:
    assert sentences(text, language) == expected


def test_split_sentences_line_longer_than_window_keeps_sentences_whole() -> None:
    numbered = [f"Dr. Fox has {number} dogs, which is too much for him." for number in range(1000)]
    assert sentences(" ".join(numbered), "en") == numbered
    long_sentence = "word " * 5000 + "end."
    assert sentences(f"One. {long_sentence} Two.", "en") == ["One.", long_sentence, "Two."]


PANIC = "M\u2028. Dupont left. He sleeps."


def test_segment_panic_falls_back_to_simple_splitter(capfd: pytest.CaptureFixture[str]) -> None:
    """sentencex 1.0 panics at unusual spaces between an initial and its dot."""
    with pytest.raises(BaseException, match="char boundary") as panic:
        sentencex.segment("en", PANIC)
    assert (type(panic.value).__name__, isinstance(panic.value, Exception)) == ("PanicException", False)
    assert _segment(PANIC, "en") == ["M\u2028. ", "Dupont left. ", "He sleeps."]
    capfd.readouterr()
    for space in "\u2028\xa0\u3000\u202f":  # split_sentences avoids the panic, which would print a traceback
        text = PANIC.replace("\u2028", space)
        assert join_segments(split_sentences(text, "en")) == text
    assert capfd.readouterr().err == ""


class PanicException(BaseException):
    """Like the exception of a panic in Rust."""


@pytest.mark.parametrize("error", [PanicException, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError])
def test_split_sentences_error_of_sentencex_only_panic_is_caught(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(language: str, text: str) -> NoReturn:
        raise error

    monkeypatch.setattr(sentencex, "segment", fail)
    if error is PanicException:
        assert sentences("你好。Dr. Fox! What? Yes\nNo") == ["你好。", "Dr.", "Fox!", "What?", "Yes", "No"]
    else:
        with pytest.raises(error):
            split_sentences("One. Two.")


def test_split_sentences_lone_surrogate_is_kept() -> None:
    assert sentences("One \ud800. Two.", "en") == ["One \ud800.", "Two."]
    assert join_segments(split_text("é\ud800" * 9, lambda part: len(part) <= 8)) == "é\ud800" * 9


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


@pytest.mark.parametrize("unit", ["a", "word ", "Ein Satz. ", "字", "a, ", ".", " ", "\n", ".\n", "!' ", "\u0301", "“"])
def test_split_text_of_long_text_needs_few_checks(unit: str) -> None:
    checked_characters = 0

    def fits(part: str) -> bool:
        nonlocal checked_characters
        checked_characters += len(part)
        return len(part) <= 400

    text = "x" + unit * (200_000 // len(unit)) + "x"
    assert join_segments(split_text(text, fits)) == text
    assert checked_characters < 25 * len(text)
