"""What a translator gives back, and how places in a text are found again in its translation.

The rule to remember: functions that need translations are generators. They yield lists of plain texts, are
sent a ``Translated`` for each, and return their result; so one driver serves threads, another event loops.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import NamedTuple, TypeAlias, TypeVar, cast

from heedful.text.links import Link

Range = tuple[int, int]
"""Characters of a text from a first one up to, and without, a last one."""

_WORD = re.compile(r"\S+")
_PUNCTUATION = ".,;:!?…\"'“”‘’«»‹›„()[]{}<>¿¡、。，；：！？（）「」『』【】《》؟،؛۔।॥ \u00a0\u202f"
_OPENING = _PUNCTUATION + "#@"  # of tags and mentions


class Translated(NamedTuple):
    """A translation, and which of its words come from which; no links if the engine gives none.

    Words are what white space separates, in the source and in the translation.
    """

    text: str
    links: tuple[Link, ...] = ()
    complete: bool = True
    """False if the engine had to cut it."""


Result = TypeVar("Result")
Rounds: TypeAlias = Generator[list[str], list[Translated], Result]
"""Work that asks for translations in rounds."""


def drive(rounds: Rounds[Result], translate: Callable[[list[str]], Sequence[Translated]]) -> Result:
    """Give every round of texts to ``translate`` until the result is there.

    >>> def greeting():
    ...     [hello] = yield ["hello"]
    ...     return f"{hello.text}!"
    >>> drive(greeting(), lambda texts: [Translated(text.upper()) for text in texts])
    'HELLO!'
    """
    texts, result = step_of(rounds, None)
    while texts is not None:
        texts, result = step_of(rounds, list(translate(texts)))
    return cast(Result, result)


def together(works: Sequence[Rounds[Result]]) -> Rounds[list[Result]]:
    """Several works side by side: each round asks for what all of them need."""
    steps = [step_of(work, None) for work in works]
    while any(texts is not None for texts, _ in steps):
        answers = iter((yield [text for texts, _ in steps for text in texts or ()]))
        steps = [
            step if step[0] is None else step_of(work, [*islice(answers, len(step[0]))])
            for work, step in zip(works, steps, strict=True)
        ]
    return [cast(Result, result) for _, result in steps]


def step_of(
    rounds: Rounds[Result], answers: list[Translated] | None
) -> tuple[list[str] | None, Result | None]:
    """The texts that are needed next, or the result."""
    try:
        return (next(rounds) if answers is None else rounds.send(answers)), None
    except StopIteration as stop:
        result: Result = stop.value
        return None, result


def word_ranges(text: str) -> list[Range]:
    """Where the words of a text stand.

    >>> word_ranges("a cat ")
    [(0, 1), (2, 5)]
    """
    return [match.span() for match in _WORD.finditer(text)]


@dataclass(frozen=True)
class Alignment:
    """A text and its translation, word by word; links to words that are not there are left out."""

    source: str
    target: str
    links: tuple[Link, ...]

    @cached_property
    def source_words(self) -> list[Range]:
        return word_ranges(self.source)

    @cached_property
    def target_words(self) -> list[Range]:
        return word_ranges(self.target)

    @cached_property
    def linked(self) -> list[set[int]]:
        """The target words of every source word."""
        linked: list[set[int]] = [set() for _ in self.source_words]
        for source, target in self.links:
            if 0 <= source < len(linked) and 0 <= target < len(self.target_words):
                linked[source].add(target)
        return linked

    @cached_property
    def _sources(self) -> list[set[int]]:
        """The source words of every target word."""
        sources: list[set[int]] = [set() for _ in self.target_words]
        for source, targets in enumerate(self.linked):
            for target in targets:
                sources[target].add(source)
        return sources

    def carried(self, start: int, end: int) -> Range | None:
        """The smallest range of the target with all words linked to a range of the source.

        >>> Alignment("the black cat!", "le chat noir !", ((1, 2), (2, 1))).carried(4, 13)
        (3, 12)
        """
        targets = self._targets(start, end)
        return self._trimmed(min(targets), max(targets), self.source[start:end]) if targets else None

    def carried_alone(self, start: int, end: int) -> Range | None:
        """As ``carried``, if those words stand together and nothing else is linked to them."""
        touched, targets = words_within(self.source_words, start, end), self._targets(start, end)
        contiguous = targets and max(targets) - min(targets) < len(targets)
        if not contiguous or any(self._sources[word] - set(touched) for word in targets):
            return None
        return self.carried(start, end) if self._is_whole(touched, start, end) else None

    def before(self, place: int) -> int:
        """The place after the words linked to the nearest linked word before a place; 0 if there is none."""
        for word in reversed(words_within(self.source_words, 0, place)):
            if self.linked[word]:
                return self.target_words[max(self.linked[word])][1]
        return 0

    def _targets(self, start: int, end: int) -> set[int]:
        touched = words_within(self.source_words, start, end)
        return set().union(*(self.linked[word] for word in touched))

    def _is_whole(self, touched: range, start: int, end: int) -> bool:
        """Whether a range has all letters of its words: "cat" in "cat," but not in "cat's"."""
        outside = self.source[self.source_words[touched[0]][0] : start]
        outside += self.source[end : self.source_words[touched[-1]][1]]
        return not any(map(str.isalnum, outside))

    def _trimmed(self, first: int, last: int, source: str) -> Range:
        """Target words without the punctuation around them, if the source is without it."""
        start, end = self.target_words[first][0], self.target_words[last][1]
        source, target = source.strip(), self.target[start:end]
        if not target.strip(_OPENING):
            return start, end
        if not source.startswith(tuple(_OPENING)):
            start = end - len(target.lstrip(_OPENING))
        if not source.endswith(tuple(_PUNCTUATION)):
            end -= len(target) - len(target.rstrip(_PUNCTUATION))
        return start, end


def words_within(words: Sequence[Range], start: int, end: int) -> range:
    """The words that a range of characters touches.

    >>> words_within([(0, 1), (2, 5)], 1, 3)
    range(1, 2)
    """
    first = bisect_right(words, start, key=lambda word: word[1])
    return range(first, max(first, bisect_left(words, end, key=lambda word: word[0])))


class Piece(NamedTuple):
    """A part of a text and what it becomes; ``links`` is None if they are not known."""

    source: str
    target: str
    links: tuple[Link, ...] | None
    span: int = -1
    """The number of the span that this piece is, if it is one."""
    complete: bool = True

    @classmethod
    def same(cls, text: str, span: int = -1) -> "Piece":
        """A piece that stays as it is."""
        return cls(text, text, tuple((word, word) for word in range(len(word_ranges(text)))), span)

    @classmethod
    def replaced(cls, source: str, target: str, span: int = -1) -> "Piece":
        """A piece all of whose words become all words of the target."""
        if source == target:
            return cls.same(source, span)
        targets = range(len(word_ranges(target)))
        links = tuple((i, j) for i in range(len(word_ranges(source))) for j in targets)
        return cls(source, target, links, span)


class Placed(NamedTuple):
    """A translation that says where each span of the source now stands."""

    text: str
    links: tuple[Link, ...]
    places: tuple[Range, ...]
    complete: bool = True


def joined(pieces: Iterable[Piece]) -> Placed:
    """One translation from pieces in the order of the target; words may reach across pieces.

    >>> joined([Piece.same("("), Piece("cat", "chat", ((0, 0),), span=0), Piece.same(")")])
    Placed(text='(chat)', links=((0, 0),), places=((1, 5),), complete=True)
    """
    pieces = list(pieces)
    source, target = "".join(piece.source for piece in pieces), "".join(piece.target for piece in pieces)
    source_words, target_words = word_ranges(source), word_ranges(target)
    links: set[Link] = set()
    places: dict[int, Range] = {}
    left = right = 0
    for piece in pieces:
        if piece.span >= 0:
            places[piece.span] = (right, right + len(piece.target))
        own_source, own_target = word_ranges(piece.source), word_ranges(piece.target)
        for i, j in piece.links or ():
            if 0 <= i < len(own_source) and 0 <= j < len(own_target):
                links.add(
                    (
                        _word_at(source_words, left + own_source[i][0]),
                        _word_at(target_words, right + own_target[j][0]),
                    )
                )
        left, right = left + len(piece.source), right + len(piece.target)
    known = all(piece.links is not None for piece in pieces)
    return Placed(
        target,
        tuple(sorted(links)) if known else (),
        tuple(places[span] for span in sorted(places)),
        all(piece.complete for piece in pieces),
    )


def _word_at(words: Sequence[Range], place: int) -> int:
    return bisect_right(words, place, key=lambda word: word[0]) - 1


def chained(first: Iterable[Link], second: Iterable[Link]) -> tuple[Link, ...]:
    """Links from a text to a third over the second.

    >>> chained([(0, 1)], [(1, 5), (1, 6)])
    ((0, 5), (0, 6))
    """
    onward: dict[int, list[int]] = {}
    for middle, last in second:
        onward.setdefault(middle, []).append(last)
    return tuple(sorted({(start, last) for start, middle in first for last in onward.get(middle, ())}))
