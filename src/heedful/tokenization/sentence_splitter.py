"""Splits long text into segments that fit the model: sentences, else clauses, words or characters.

Nothing is lost: the texts and separators of all segments, joined, are the original text.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from heedful.tokenization.dependency_trees import SentenceIds

Fits = Callable[[str], bool]
"""Whether a text fits the model. It is slow, and if a text fits, so does any part of it."""

_CLOSING = "\"'”’»›)\\]}」』）】》"
_LINE_BREAK = "\n\r\x0b\x0c\x85\u2028\u2029"

# Possessive and without lookahead: a million dots or blanks are scanned once.
_BREAK = re.compile(
    f"(?P<line>[{_LINE_BREAK}]\\s*+)"
    f"|(?P<wide>[。！？]++[{_CLOSING}]*+\\s*+)"  # these scripts have no space between sentences
    f"|(?P<end>[.!?…؟।॥۔]++)(?P<closing>[{_CLOSING}]*+)(?P<space>\\s*+)"
)

_CLAUSE = re.compile(r"(?:[，；：、]|[,;:،؛](?=\s))\s*")
_BLANK = re.compile("[\\s\u200b]+")  # zero-width spaces separate words in Khmer and Thai
_DOTTED_ABBREVIATION = re.compile(r"(?:\w\.)*\w|\d\d?")  # an initial, z.B., U.S., the German 3. Mai
_OPENING = "\"'“‘„«‹([{¿¡-–—"
_TITLES = re.compile(
    r"al|approx|bzw|ca|cf|col|dept|dr|dra|gen|gov|hr|lt|mlle|mm|mme|mr|mrs|ms|mt|prof|rev|sen|sgt|sr|sra|st|vgl|vs"
)

# Only before a number: "No. 5".
_NUMBER_ABBREVIATION = re.compile(r"abb|art|bd|ch|fig|kap|no|nos|nr|núm|pp|sec|vol")
_MAX_ABBREVIATION_LENGTH = 24


class TextSegment(NamedTuple):
    """A part of a text and the whitespace after it; only the first can be empty."""

    text: str
    separator: str
    ids: SentenceIds = ()
    """Its source tokens, without END; empty until ``Translator.split_segments`` has checked that it fits."""


def split_text(text: str, fits: Fits) -> list[TextSegment]:
    """The full text if it fits, else its sentences, and parts of sentences that do not fit.

    >>> [segment.text for segment in split_text("One, two, three. Four.", lambda part: len(part) < 10)]
    ['One, two,', 'three.', 'Four.']
    """
    if fits(text):
        return [TextSegment(text, "")]
    segments: list[TextSegment] = []
    for sentence in split_sentences(text):
        if fits(sentence.text):
            segments.append(sentence)
        else:
            *parts, last = (_split_separator(part) for part in _split_long_text(sentence.text, fits))
            segments += [*parts, TextSegment(last.text, last.separator + sentence.separator)]
    return segments


def split_sentences(text: str) -> list[TextSegment]:
    """The sentences of every line.

    >>> [segment.text for segment in split_sentences("Dr. No is 3.14 tall. Really?\\nYes.")]
    ['Dr. No is 3.14 tall.', 'Really?', 'Yes.']
    """
    start = len(text) - len(text.lstrip())
    segments = [TextSegment("", text[:start])] if start else []
    ends = [match.end() for match in _BREAK.finditer(text) if match["end"] is None or _ends_sentence(text, match)]
    for end in [*ends, len(text)]:
        if end > start:
            segments.append(_split_separator(text[start:end]))
            start = end
    return segments


def _split_separator(part: str) -> TextSegment:
    words = part.rstrip()
    return TextSegment(words, part[len(words) :])


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    """Whether a full stop or similar mark ends a sentence."""
    space, following = match["space"], text[match.end() : match.end() + 1]
    if not space or any(character in _LINE_BREAK for character in space):
        return bool(space)
    is_soft_end = match["closing"] or match["end"][-1] in ".…"
    if is_soft_end and following.islower():
        return False  # "What?" he said; approx. five
    if match["end"] != "." or match["closing"]:
        return True
    dot = match.start()
    words = text[max(0, dot - _MAX_ABBREVIATION_LENGTH) : dot].split()
    word = words[-1].lstrip(_OPENING).casefold() if words and not text[dot - 1].isspace() else ""
    is_abbreviation = _TITLES.fullmatch(word) or _DOTTED_ABBREVIATION.fullmatch(word)
    return not (is_abbreviation or (following.isdigit() and _NUMBER_ABBREVIATION.fullmatch(word)))


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


def _character_boundaries(text: str) -> Iterable[int]:
    """Boundaries of grapheme clusters: not before an accent or inside a joined emoji or flag."""
    half_flag = False
    for position, (before, after) in enumerate(pairwise(text), start=1):
        half_flag = "\U0001f1e6" <= before <= "\U0001f1ff" and not half_flag
        if not (_is_same_grapheme(before, after) or (half_flag and "\U0001f1e6" <= after <= "\U0001f1ff")):
            yield position


def _is_same_grapheme(before: str, after: str) -> bool:
    if before.isascii() and after.isascii():
        return before == "\r" and after == "\n"
    if "\u200d" in (before, after) or after == "\u200c":
        return True
    if unicodedata.combining(before) == 9:  # a virama: the next consonant belongs to it
        return True
    return (
        unicodedata.category(after).startswith("M")  # variation selectors are marks too
        or "\U0001f3fb" <= after <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= after <= "\U000e007f"  # tags of flags such as England's
        or "\u1160" <= after <= "\u11ff"  # vowels and finals of Hangul syllables
        or "\udc00" <= after <= "\udfff"
        or after in "\u0e33\u0eb3"  # Thai and Lao am
    )


_BOUNDARY_LEVELS: list[Callable[[str], Iterable[int]]] = [
    lambda text: (match.end() for match in _CLAUSE.finditer(text)),
    lambda text: (match.end() for match in _BLANK.finditer(text)),
    _character_boundaries,
    lambda text: range(1, len(text)),  # for a single grapheme of a thousand accents
]
