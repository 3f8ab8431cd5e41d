"""Splits long text into segments that fit the model: sentences, else clauses, words or characters.

sentencex finds the ends of sentences, by the rules of the language. Nothing is lost: the texts and separators
of all segments, joined, are the original text.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import sentencex  # type: ignore[import-untyped]
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from heedful.tokenization.dependency_trees import SentenceIds
from heedful.tokenization.languages import base_language

Fits = Callable[[str], bool]
"""Whether a text fits the model. It is slow, and if a text fits, so does any part of it."""

# Possessive: a million dots or blanks are scanned once.
_LINE_BREAK = re.compile("[\n\r\x0b\x0c\x85\u2028\u2029]\\s*+")
_SIMPLE_END = re.compile(r"[.!?…؟।॥۔]++\s++|[。！？]++\s*+")
_UNUSUAL_SPACE = re.compile(r"[^\S ]")
_MAX_CHARACTERS = 10_000  # read by sentencex at once: its time is quadratic in quotation marks
_ORDINARY_WORDS = {
    language: re.compile(rf"\b(?:{words})\.\s++(?=[\"'“‘«(]?[A-ZÀ-Þ])")
    for language, words in {"en": "art|fed|ill|May|me|[Nn]o|O[Kk]|ok|sec", "fr": "art|sec|vol", "de": "Bart"}.items()
}
"""Words that sentencex only knows as abbreviations, such as "me" of Maine, at the end of a sentence."""

_CLAUSE = re.compile(r"(?:[，；：、]|[,;:،؛](?=\s))\s*")
_BLANK = re.compile("[\\s\u200b]+")  # zero-width spaces separate words in Khmer and Thai
_GRAPHEMES = Split(Regex(r"\X"), "isolated")


class TextSegment(NamedTuple):
    """A part of a text and the whitespace after it; only the first can be empty."""

    text: str
    separator: str
    ids: SentenceIds = ()
    """Its source tokens, without END; empty until ``Translator.split_segments`` has checked that it fits."""


def split_text(text: str, fits: Fits, language: str = "") -> list[TextSegment]:
    """The full text if it fits, else its sentences, and parts of sentences that do not fit.

    >>> [segment.text for segment in split_text("One, two, three. Four.", lambda part: len(part) < 10)]
    ['One, two,', 'three.', 'Four.']
    """
    if fits(text):
        return [TextSegment(text, "")]
    segments: list[TextSegment] = []
    for sentence in split_sentences(text, language):
        if fits(sentence.text):
            segments.append(sentence)
        else:
            *parts, last = (_split_separator(part) for part in _split_long_text(sentence.text, fits))
            segments += [*parts, TextSegment(last.text, last.separator + sentence.separator)]
    return segments


def split_sentences(text: str, language: str = "") -> list[TextSegment]:
    """The sentences of every line; the rules are those of English for an unknown language.

    >>> [segment.text for segment in split_sentences("Dr. Fox is 3.14 tall. Really?\\nYes.", "en")]
    ['Dr. Fox is 3.14 tall.', 'Really?', 'Yes.']
    """
    start = line_start = len(text) - len(text.lstrip())
    segments = [TextSegment("", text[:start])] if start else []
    language = base_language(language)
    for line_end in [*(match.end() for match in _LINE_BREAK.finditer(text, start)), len(text)]:
        ends = _sentence_ends(text[line_start:line_end], language)
        for end in [*(line_start + end for end in ends), line_end]:
            segment = _split_separator(text[start:end])
            if segment.text:
                segments.append(segment)
            elif segments:
                segments[-1] = TextSegment(segments[-1].text, segments[-1].separator + segment.separator)
            start = end
        line_start = line_end
    return segments


def _split_separator(part: str) -> TextSegment:
    words = part.rstrip()
    return TextSegment(words, part[len(words) :])


def _sentence_ends(line: str, language: str) -> list[int]:
    """Positions after the sentences of a line."""
    line = _UNUSUAL_SPACE.sub(" ", line)  # sentencex panics at some
    pattern = _ORDINARY_WORDS.get(language)
    ends = {match.end() for match in pattern.finditer(line)} if pattern else set()
    start = 0
    while start < len(line):
        *sentences, last = _segment(line[start : start + _MAX_CHARACTERS], language)
        for sentence in sentences:
            start += len(sentence)
            ends.add(start)
        if not sentences or start + len(last) == len(line):  # else the last one is read again, with what follows
            start += len(last)
    return sorted(ends)


def _segment(line: str, language: str) -> list[str]:
    """The sentences of a line, with the whitespace after them."""
    try:
        return list(sentencex.segment(language, line))
    except BaseException as error:  # a panic of Rust is not an Exception; lone surrogates cannot be passed
        if not isinstance(error, UnicodeEncodeError) and type(error).__name__ != "PanicException":
            raise
    ends = [0, *(match.end() for match in _SIMPLE_END.finditer(line) if match.end() < len(line)), len(line)]
    return [line[start:end] for start, end in pairwise(ends)]


def _split_long_text(text: str, fits: Fits, level: int = 0) -> Iterator[str]:
    """Parts that fit, each as long as possible: split at clauses, else spaces, else characters."""
    boundaries = [0, *(boundary for boundary in _BOUNDARY_LEVELS[level](text) if 0 < boundary < len(text)), len(text)]
    first, run_length = 0, 1
    while first < len(boundaries) - 1:
        run_length = _max_fitting_run(text, boundaries, first, fits, guess=max(run_length, 1))
        end = boundaries[first + max(run_length, 1)]
        part = text[boundaries[first] : end]
        if run_length == 0 and level + 1 < len(_BOUNDARY_LEVELS):
            yield from _split_long_text(part, fits, level + 1)
        else:
            yield part
        first += max(run_length, 1)


def _max_fitting_run(text: str, boundaries: list[int], first: int, fits: Fits, guess: int) -> int:
    """How many parts from ``first`` on fit together: exponential then binary search keeps texts short."""
    max_run = len(boundaries) - 1 - first

    def run_fits(count: int) -> bool:
        return fits(text[boundaries[first] : boundaries[first + count]].rstrip())

    fitting, too_long = 0, min(guess, max_run)
    while run_fits(too_long):
        fitting, too_long = too_long, min(2 * too_long, max_run)
        if fitting == max_run:
            return max_run
    while too_long - fitting > 1:
        middle = (fitting + too_long) // 2
        fitting, too_long = (middle, too_long) if run_fits(middle) else (fitting, middle)
    return fitting


def _character_boundaries(text: str) -> Iterator[int]:
    """Boundaries of grapheme clusters: not before an accent or inside a joined emoji or flag."""
    for _, (_, end) in _GRAPHEMES.pre_tokenize_str(text.encode(errors="replace").decode()):  # no lone surrogates
        if unicodedata.combining(text[end - 1]) != 9:  # after a virama, the next consonant belongs to it
            yield end


_BOUNDARY_LEVELS: list[Callable[[str], Iterable[int]]] = [
    lambda text: (match.end() for match in _CLAUSE.finditer(text)),
    lambda text: (match.end() for match in _BLANK.finditer(text)),
    _character_boundaries,
    lambda text: range(1, len(text)),  # for a single grapheme of a thousand accents
]
