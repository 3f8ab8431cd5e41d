"""Translation that keeps what must be kept: placeholders, addresses, listed terms; and obeys a glossary.

A text is translated as it is. Only if that loses, doubles or alters a span, it is translated again in the
parts between its spans. The rule to remember: at most two rounds, and every span is in the result, as often
as in the source.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from heedful.text.links import Link
from heedful.text.spans import Rules, Span, has_letters, in_word, is_whole, placeholder_ranges
from heedful.text.translated import (
    Alignment,
    Piece,
    Placed,
    Range,
    Rounds,
    Translated,
    chained,
    drive,
    joined,
    words_within,
)

__all__ = ["Rules", "Spanned", "Translated", "drive", "translate_protected", "translate_spans"]

_CLOSING = ".,;:!?…)]}»”’、。，；：！？）】》」』"


class Spanned(NamedTuple):
    """A text and its spans, which do not overlap and are in order."""

    text: str
    spans: Sequence[Span]


def translate_protected(texts: Sequence[str], rules: Rules) -> Rounds[list[Translated]]:
    """The translations of texts, with what the rules protect.

    >>> def forgetful(texts: list[str]) -> list[Translated]:
    ...     return [Translated(text.replace("%s", "").upper()) for text in texts]
    >>> drive(translate_protected(["Hello, %s! Welcome."], Rules()), forgetful)
    [Translated(text='HELLO, %s! WELCOME.', links=(), complete=True)]
    """
    placed = yield from translate_spans([Spanned(text, rules.spans(text)) for text in texts], rules)
    return [Translated(result.text, result.links, result.complete) for result in placed]


def translate_spans(sources: Sequence[Spanned], rules: Rules) -> Rounds[list[Placed]]:
    """As ``translate_protected``, for spans already found; says where each of them stands in the result."""
    results: list[Placed | None] = [_without_translating(source, rules) for source in sources]
    first = [number for number, result in enumerate(results) if result is None]
    if first:
        answers = yield [sources[number].text for number in first]
        for number, answer in zip(first, answers, strict=True):
            results[number] = _accepted(sources[number], answer, rules)
    second = [number for number in first if results[number] is None]
    if second:
        gaps = [gap for number in second for gap in _gaps(sources[number]) if has_letters(gap.core)]
        answers = yield [gap.core for gap in gaps]
        remaining = iter(zip(gaps, answers, strict=True))
        for number in second:
            results[number] = _assembled(sources[number], remaining, rules)
    return [result for result in results if result is not None]


class _Gap(NamedTuple):
    """What stands between two spans: only its core is translated."""

    lead: str
    core: str
    tail: str


def _gaps(source: Spanned) -> list[_Gap]:
    starts = [0, *(span.end for span in source.spans)]
    ends = [*(span.start for span in source.spans), len(source.text)]
    return [
        _gap(source.text[start:end], begins=not start, ends=end == len(source.text))
        for start, end in zip(starts, ends, strict=True)
    ]


def _gap(text: str, *, begins: bool, ends: bool) -> _Gap:
    """A gap without the white space around it and the brackets and quotes that are joined to spans."""
    start, end = 0, len(text)
    while not begins and start < end and not (text[start].isspace() or in_word(text[start])):
        start += 1
    while not ends and start < end and not (text[end - 1].isspace() or in_word(text[end - 1])):
        end -= 1
    body = text[start:end].rstrip()
    core = body.lstrip(f"{_CLOSING} \t\r\n\u00a0\u2028\u2029\u3000")
    start += len(body) - len(core)
    return _Gap(text[:start], core, text[start + len(core) :])


def _without_translating(source: Spanned, rules: Rules) -> Placed | None:
    """The result for a text with spans and nothing to translate around them."""
    if not source.spans or any(has_letters(gap.core) for gap in _gaps(source)):
        return None
    return _assembled(source, iter(()), rules)


def _assembled(source: Spanned, answers: Iterator[tuple[_Gap, Translated]], rules: Rules) -> Placed:
    """Spans and the translations of the parts between them, in the order of the source."""
    pieces: list[Piece] = []
    for number, gap in enumerate(_gaps(source)):
        core = _translated_core(*next(answers), rules) if has_letters(gap.core) else Piece.same(gap.core)
        pieces += [Piece.same(gap.lead), core, Piece.same(gap.tail)]
        if number < len(source.spans):
            span = source.spans[number]
            pieces.append(Piece.replaced(source.text[span.start : span.end], span.target, number))
    return joined(pieces)


def _translated_core(gap: _Gap, answer: Translated, rules: Rules) -> Piece:
    """A part that has no placeholder gets none by its translation: then it rather stays as it is."""
    if placeholder_ranges(answer.text) or rules.placeholder_ranges(answer.text):
        return Piece.same(gap.core)
    text = answer.text.strip()
    return Piece(gap.core, text, answer.links or None, complete=answer.complete)


def _accepted(source: Spanned, answer: Translated, rules: Rules) -> Placed | None:
    """The translation with the glossary's terms put in; None if it does not have what it must."""
    if not source.spans:
        if rules.is_invention(answer.text):
            return None
        return Placed(answer.text, answer.links, (), answer.complete)
    ranges = _Finder(source, answer).find(rules)
    return None if ranges is None else _written(source, answer, ranges)


class _Finder:
    """Looks for the spans of a text in its translation and gives each a place of its own."""

    def __init__(self, source: Spanned, answer: Translated) -> None:
        self.source, self.answer = source, answer
        self.alignment = Alignment(source.text, answer.text, answer.links)
        self.taken = bytearray(len(answer.text))
        self.ranges: dict[int, Range] = {}

    def find(self, rules: Rules) -> list[Range] | None:
        """The place of every span, or None if one is lost, doubled or altered."""
        kept, terms = self._grouped(kept=True), self._grouped(kept=False)
        if not all(self._place(numbers, text) for (text, _), numbers in kept):
            return None
        if not all(all(self.taken[start:end]) for start, end in rules.kept_ranges(self.answer.text)):
            return None  # one that the source has not, or a longer one
        if not rules.accepts_order(*self._orders()):
            return None
        for (text, target), numbers in terms:
            if not (self._place(numbers, target) or self._place(numbers, text) or self._follow(numbers)):
                return None
        return [self.ranges[number] for number in range(len(self.source.spans))]

    def _orders(self) -> tuple[list[str], list[str]]:
        """What is kept, in the order of the source and in that of the translation."""
        texts = {
            number: span.target for number, span in enumerate(self.source.spans) if number in self.ranges
        }
        return [*texts.values()], [texts[number] for number in sorted(texts, key=self.ranges.__getitem__)]

    def _grouped(self, kept: bool) -> list[tuple[tuple[str, str], list[int]]]:
        """Numbers of the spans with the same source and target, the longest source first."""
        groups: dict[tuple[str, str], list[int]] = {}
        for number, span in enumerate(self.source.spans):
            if span.kept == kept:
                groups.setdefault((self.source.text[span.start : span.end], span.target), []).append(number)
        return sorted(groups.items(), key=lambda group: -len(group[0][0]))

    def _place(self, numbers: list[int], wanted: str) -> bool:
        """Give the spans the places where ``wanted`` stands, if there are as many."""
        spans = [self.source.spans[number] for number in numbers]
        whole = all(is_whole(self.source.text, span.start, span.end) for span in spans)
        found = [
            (start, end)
            for start, end in _occurrences(self.answer.text, wanted)
            if not any(self.taken[start:end]) and (not whole or is_whole(self.answer.text, start, end))
        ]
        return len(found) == len(numbers) and self._take(numbers, found)

    def _follow(self, numbers: list[int]) -> bool:
        """Give the spans the places to which the links lead, if these are free."""
        spans = [self.source.spans[number] for number in numbers]
        found = [self.alignment.carried_alone(span.start, span.end) for span in spans]
        free = [place for place in found if place and not any(self.taken[place[0] : place[1]])]
        return len(set(free)) == len(numbers) and self._take(numbers, free)

    def _take(self, numbers: list[int], found: Iterable[Range]) -> bool:
        for number, (start, end) in zip(numbers, found, strict=True):
            self.ranges[number] = (start, end)
            self.taken[start:end] = b"\1" * (end - start)
        return True


def _occurrences(text: str, wanted: str) -> Iterator[Range]:
    start = text.find(wanted)
    while start >= 0:
        yield start, start + len(wanted)
        start = text.find(wanted, start + len(wanted))


def _written(source: Spanned, answer: Translated, ranges: Sequence[Range]) -> Placed:
    """The translation with the target of each span at its place, and links that know it."""
    pieces, end = [], 0
    for number in sorted(range(len(ranges)), key=ranges.__getitem__):
        start = ranges[number][0]
        pieces.append(Piece.same(answer.text[end:start]))
        end = ranges[number][1]
        pieces.append(Piece.replaced(answer.text[start:end], source.spans[number].target, number))
    placed = joined([*pieces, Piece.same(answer.text[end:])])._replace(complete=answer.complete)
    if not answer.links:
        return placed._replace(links=())
    return placed._replace(links=_relinked(source, chained(answer.links, placed.links), placed))


def _relinked(source: Spanned, links: Iterable[Link], placed: Placed) -> tuple[Link, ...]:
    """Links in which the words of spans lead to where the spans are, whatever the engine says."""
    alignment = Alignment(source.text, placed.text, ())
    certain: dict[int, set[int]] = {}
    for span, place in zip(source.spans, placed.places, strict=True):
        for word in words_within(alignment.source_words, span.start, span.end):
            certain.setdefault(word, set()).update(words_within(alignment.target_words, *place))
    others = {link for link in links if link[0] not in certain}
    return tuple(sorted(others | {(word, target) for word, targets in certain.items() for target in targets}))
