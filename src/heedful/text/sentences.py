"""Cuts long text into segments that a model can take, at the best places there are.

The rule to remember: nothing is lost; every segment's text and separator, joined, are the text again.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

Fits = Callable[[str], bool]
"""Whether a model can take the text. It is costly, and true of any part of what it is true of."""

_CLOSING = "\"'”’»›)\\]}」』）】》"
_LINE_BREAK = "\n\r\x0b\x0c\x85\u2028\u2029"
# Possessive, and never asking for what follows: a million dots or blanks are read once.
_BREAK = re.compile(
    f"(?P<line>[{_LINE_BREAK}]\\s*+)"
    f"|(?P<wide>[。！？]++[{_CLOSING}]*+\\s*+)"  # these scripts put no space between sentences
    f"|(?P<end>[.!?…؟।॥۔]++)(?P<closing>[{_CLOSING}]*+)(?P<space>\\s*+)"
)
_CLAUSE = re.compile(r"(?:[，；：、]|[,;:،؛](?=\s))\s*")
_BLANK = re.compile("[\\s\u200b]+")  # zero-width spaces part the words of Khmer and Thai
_DOTTED = re.compile(r"(?:\w\.)*\w|\d\d?")  # an initial, z.B., U.S., the German 3. Mai
_OPENING = "\"'“‘„«‹([{¿¡-–—"
_TITLES = re.compile(
    r"al|approx|bzw|ca|cf|col|dept|dr|dra|gen|gov|hr|lt|mlle|mm|mme|mr|mrs|ms|mt|prof|rev|sen|sgt|sr|sra|st|vgl|vs"
)
_COUNTED = re.compile(r"abb|art|bd|ch|fig|kap|no|nos|nr|núm|pp|sec|vol")  # only before a number: "No. 5"
_LONGEST_ABBREVIATION = 24


class Segment(NamedTuple):
    """A part of a text and the white space after it. Only one that begins a text can be without words."""

    text: str
    separator: str


def split_text(text: str, fits: Fits) -> list[Segment]:
    """The whole text if it fits; or else its sentences, and of a sentence too long its parts.

    >>> split_text("One, two, three. Four.", lambda part: len(part) < 10)
    [Segment(text='One, two,', separator=' '), Segment(text='three.', separator=' '),
     Segment(text='Four.', separator='')]
    """
    if fits(text):
        return [Segment(text, "")]
    segments: list[Segment] = []
    for sentence in split_sentences(text):
        if fits(sentence.text):
            segments.append(sentence)
        else:
            *parts, last = (_segment(part) for part in _divided(sentence.text, fits))
            segments += [*parts, Segment(last.text, last.separator + sentence.separator)]
    return segments


def split_sentences(text: str) -> list[Segment]:
    """The sentences of every line.

    >>> split_sentences("Dr. No is 3.14 tall. Really?\\nYes.")
    [Segment(text='Dr. No is 3.14 tall.', separator=' '), Segment(text='Really?', separator='\\n'),
     Segment(text='Yes.', separator='')]
    """
    start = len(text) - len(text.lstrip())
    segments = [Segment("", text[:start])] if start else []
    for end in _sentence_ends(text):
        if end > start:
            segments.append(_segment(text[start:end]))
            start = end
    return segments


def _segment(part: str) -> Segment:
    words = part.rstrip()
    return Segment(words, part[len(words) :])


def _sentence_ends(text: str) -> Iterator[int]:
    for match in _BREAK.finditer(text):
        if match["end"] is None or _ends_sentence(text, match):
            yield match.end()
    yield len(text)


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    """Whether a full stop, or what looks like one, really ends a sentence."""
    space, following = match["space"], text[match.end() : match.end() + 1]
    if not space or any(character in _LINE_BREAK for character in space):
        return bool(space)
    soft = match["closing"] or match["end"][-1] in ".…"
    if soft and following.islower():
        return False  # "What?" he said; approx. five
    return match["end"] != "." or bool(match["closing"]) or not _abbreviated(text, match.start(), following)


def _abbreviated(text: str, dot: int, following: str) -> bool:
    words = text[max(0, dot - _LONGEST_ABBREVIATION) : dot].split()
    word = words[-1].lstrip(_OPENING).casefold() if words and not text[dot - 1].isspace() else ""
    known = _TITLES.fullmatch(word) or _DOTTED.fullmatch(word)
    return bool(known or (following.isdigit() and _COUNTED.fullmatch(word)))


def _divided(text: str, fits: Fits, level: int = 0) -> Iterator[str]:
    """Parts that fit, each as long as can be: cut at clauses, else at spaces, else between characters."""
    borders = [0, *(border for border in _LEVELS[level](text) if 0 < border < len(text)), len(text)]
    first, run = 0, 1
    while first < len(borders) - 1:
        run = _longest_run(text, borders, first, fits, guess=max(run, 1))
        end = borders[first + max(run, 1)]
        part = text[borders[first] : end]
        if run == 0 and level + 1 < len(_LEVELS):
            yield from _divided(part, fits, level + 1)
        else:
            yield part
        first += max(run, 1)


def _longest_run(text: str, borders: list[int], first: int, fits: Fits, guess: int) -> int:
    """How many atoms from the first fit together: doubling, then halving, to ask about short texts only."""
    most = len(borders) - 1 - first

    def together(count: int) -> bool:
        return fits(text[borders[first] : borders[first + count]].rstrip())

    good, bad = 0, min(guess, most)
    while together(bad):
        good, bad = bad, min(2 * bad, most)
        if good == most:
            return most
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if together(middle) else (good, middle)
    return good


def _clause_borders(text: str) -> Iterable[int]:
    return (match.end() for match in _CLAUSE.finditer(text))


def _word_borders(text: str) -> Iterable[int]:
    return (match.end() for match in _BLANK.finditer(text))


def _character_borders(text: str) -> Iterable[int]:
    """Between characters as a reader sees them: not before an accent, nor inside a joined emoji or a flag."""
    half_flag = False
    for place, (before, after) in enumerate(pairwise(text), start=1):
        half_flag = _is_flag_letter(before) and not half_flag
        if not (_joined(before, after) or (half_flag and _is_flag_letter(after))):
            yield place


def _code_point_borders(text: str) -> Iterable[int]:
    return range(1, len(text))


def _joined(before: str, after: str) -> bool:
    if before.isascii() and after.isascii():
        return before == "\r" and after == "\n"
    if "\u200d" in (before, after) or after == "\u200c":
        return True
    if unicodedata.combining(before) == 9:  # a virama: the next consonant belongs to it
        return True
    return (
        unicodedata.category(after).startswith("M")  # variation selectors are marks too
        or _is_between(after, "\U0001f3fb", "\U0001f3ff")  # skin tones
        or _is_between(after, "\u1160", "\u11ff")  # vowels and finals of Hangul syllables
        or _is_between(after, "\udc00", "\udfff")
        or after in "\u0e33\u0eb3"  # Thai and Lao am
    )


def _is_flag_letter(character: str) -> bool:
    return _is_between(character, "\U0001f1e6", "\U0001f1ff")


def _is_between(character: str, first: str, last: str) -> bool:
    return first <= character <= last


_LEVELS: list[Callable[[str], Iterable[int]]] = [
    _clause_borders,
    _word_borders,
    _character_borders,
    _code_point_borders,  # for what looks like one character and is a thousand accents
]
