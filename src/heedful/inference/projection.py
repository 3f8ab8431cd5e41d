"""Project spans of a source text onto its translation, by word alignment.

The rule to remember: functions that need translations are generators. They yield lists of plain texts, are
sent an ``Alternative`` for each, and return a result; so both threads and event loops can run them.
"""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from operator import itemgetter
from typing import NamedTuple, TypeAlias, TypeVar, cast

from heedful.data.word_alignment import WordLink
from heedful.inference.translation import Alternative
from heedful.tokenization.protected_spans import Range

_WORD_PATTERN = re.compile(r"\S+")

_PUNCTUATION = ".,;:!?…\"'“”‘’«»‹›„()[]{}<>¿¡、。，；：！？（）「」『』【】《》؟،؛۔।॥ \u00a0\u202f"

_LEADING_PUNCTUATION = _PUNCTUATION + "#@"  # of tags and mentions


ResultT = TypeVar("ResultT")

TranslationGenerator: TypeAlias = Generator[list[str], list[Alternative], ResultT]
"""A function that requests translations in rounds."""


def run_generator(
    generator: TranslationGenerator[ResultT], translate: Callable[[list[str]], Sequence[Alternative]]
) -> ResultT:
    """Translate every round of texts with ``translate`` and return the generator's result.

    >>> def greeting():
    ...     [hello] = yield ["hello"]
    ...     return f"{hello.text}!"
    >>> run_generator(greeting(), lambda texts: [Alternative(text.upper()) for text in texts])
    'HELLO!'
    """
    texts, result = advance_generator(generator, None)
    while texts is not None:
        texts, result = advance_generator(generator, list(translate(texts)))
    return cast(ResultT, result)


def combine_generators(generators: Sequence[TranslationGenerator[ResultT]]) -> TranslationGenerator[list[ResultT]]:
    """Run several generators together: each round has the texts of all of them."""
    steps = [advance_generator(generator, None) for generator in generators]
    while any(texts is not None for texts, _ in steps):
        translations = iter((yield [text for texts, _ in steps for text in texts or ()]))
        steps = [
            step if step[0] is None else advance_generator(generator, [*islice(translations, len(step[0]))])
            for generator, step in zip(generators, steps, strict=True)
        ]
    return [cast(ResultT, result) for _, result in steps]


def advance_generator(
    generator: TranslationGenerator[ResultT], translations: list[Alternative] | None
) -> tuple[list[str] | None, ResultT | None]:
    """The next texts to translate, or the result."""
    try:
        return (next(generator) if translations is None else generator.send(translations)), None
    except StopIteration as stop:
        result: ResultT = stop.value
        return None, result


def word_ranges(text: str) -> list[Range]:
    """The character ranges of the words of a text.

    >>> word_ranges("a cat ")
    [(0, 1), (2, 5)]
    """
    return [match.span() for match in _WORD_PATTERN.finditer(text)]


@dataclass(frozen=True)
class Alignment:
    """A text and its translation with word links; links to missing words are ignored."""

    source: str
    target: str
    links: tuple[WordLink, ...]

    @cached_property
    def source_words(self) -> list[Range]:
        return word_ranges(self.source)

    @cached_property
    def target_words(self) -> list[Range]:
        return word_ranges(self.target)

    @cached_property
    def linked_targets(self) -> list[set[int]]:
        """The target words of every source word."""
        linked_targets: list[set[int]] = [set() for _ in self.source_words]
        for source, target in self.links:
            if 0 <= source < len(linked_targets) and 0 <= target < len(self.target_words):
                linked_targets[source].add(target)
        return linked_targets

    @cached_property
    def _linked_sources(self) -> list[set[int]]:
        """The source words of every target word."""
        linked_sources: list[set[int]] = [set() for _ in self.target_words]
        for source, targets in enumerate(self.linked_targets):
            for target in targets:
                linked_sources[target].add(source)
        return linked_sources

    def project(self, start: int, end: int) -> Range | None:
        """The smallest range of the target with all words linked to a range of the source.

        >>> Alignment("the black cat!", "le chat noir !", ((1, 2), (2, 1))).project(4, 13)
        (3, 12)
        """
        targets = self._collect_targets(start, end)
        return self._trim_punctuation(min(targets), max(targets), self.source[start:end]) if targets else None

    def project_exclusive(self, start: int, end: int) -> Range | None:
        """As ``project``, if the target words are contiguous and linked to no other words."""
        source_indices, targets = words_in_range(self.source_words, start, end), self._collect_targets(start, end)
        contiguous = targets and max(targets) - min(targets) < len(targets)
        if not contiguous or any(self._linked_sources[word] - set(source_indices) for word in targets):
            return None
        # The range must have all letters of its words: "cat" in "cat," but not in "cat's".
        outside = self.source[self.source_words[source_indices[0]][0] : start]
        outside += self.source[end : self.source_words[source_indices[-1]][1]]
        return None if any(map(str.isalnum, outside)) else self.project(start, end)

    def project_point(self, position: int) -> int:
        """The position after the target words of the nearest linked word before ``position``, or 0."""
        for word in reversed(words_in_range(self.source_words, 0, position)):
            if self.linked_targets[word]:
                return self.target_words[max(self.linked_targets[word])][1]
        return 0

    def _collect_targets(self, start: int, end: int) -> set[int]:
        source_indices = words_in_range(self.source_words, start, end)
        return set().union(*(self.linked_targets[word] for word in source_indices))

    def _trim_punctuation(self, first: int, last: int, source: str) -> Range:
        """The range of target words, without surrounding punctuation that the source does not have."""
        start, end = self.target_words[first][0], self.target_words[last][1]
        source, target = source.strip(), self.target[start:end]
        if not target.strip(_LEADING_PUNCTUATION):
            return start, end
        if not source.startswith(tuple(_LEADING_PUNCTUATION)):
            start = end - len(target.lstrip(_LEADING_PUNCTUATION))
        if not source.endswith(tuple(_PUNCTUATION)):
            end -= len(target) - len(target.rstrip(_PUNCTUATION))
        return start, end


def words_in_range(words: Sequence[Range], start: int, end: int) -> range:
    """The words that overlap a range of characters.

    >>> words_in_range([(0, 1), (2, 5)], 1, 3)
    range(1, 2)
    """
    first = bisect_right(words, start, key=itemgetter(1))
    return range(first, max(first, bisect_left(words, end, key=itemgetter(0))))


class TextChunk(NamedTuple):
    """A part of a text and its translation; ``links`` is None if they are unknown."""

    source: str
    target: str
    links: tuple[WordLink, ...] | None
    span_index: int = -1
    """The index of the span, if this chunk is one."""
    complete: bool = True

    @classmethod
    def verbatim(cls, text: str, span_index: int = -1) -> "TextChunk":
        """A chunk that is copied."""
        return cls(text, text, tuple((word, word) for word in range(len(word_ranges(text)))), span_index)

    @classmethod
    def substitute(cls, source: str, target: str, span_index: int = -1) -> "TextChunk":
        """A chunk in which all source words are linked to all target words."""
        if source == target:
            return cls.verbatim(source, span_index)
        targets = range(len(word_ranges(target)))
        links = tuple((i, j) for i in range(len(word_ranges(source))) for j in targets)
        return cls(source, target, links, span_index)


class ProjectedTranslation(NamedTuple):
    """A translation with the range of each span of the source."""

    text: str
    links: tuple[WordLink, ...]
    span_ranges: tuple[Range, ...]
    complete: bool = True


def join_chunks(chunks: Iterable[TextChunk]) -> ProjectedTranslation:
    """Join chunks in the order of the target; words may extend across chunks.

    >>> cat = TextChunk("cat", "chat", ((0, 0),), span_index=0)
    >>> join_chunks([TextChunk.verbatim("("), cat, TextChunk.verbatim(")")])
    ProjectedTranslation(text='(chat)', links=((0, 0),), span_ranges=((1, 5),), complete=True)
    """
    chunks = list(chunks)
    source, target = "".join(chunk.source for chunk in chunks), "".join(chunk.target for chunk in chunks)
    source_words, target_words = word_ranges(source), word_ranges(target)
    links: set[WordLink] = set()
    span_ranges: dict[int, Range] = {}
    source_offset = target_offset = 0
    for chunk in chunks:
        if chunk.span_index >= 0:
            span_ranges[chunk.span_index] = (target_offset, target_offset + len(chunk.target))
        chunk_source_words, chunk_target_words = word_ranges(chunk.source), word_ranges(chunk.target)
        for i, j in chunk.links or ():
            if 0 <= i < len(chunk_source_words) and 0 <= j < len(chunk_target_words):
                source_start, target_start = chunk_source_words[i][0], chunk_target_words[j][0]
                source_word = bisect_right(source_words, source_offset + source_start, key=itemgetter(0)) - 1
                target_word = bisect_right(target_words, target_offset + target_start, key=itemgetter(0)) - 1
                links.add((source_word, target_word))
        source_offset, target_offset = source_offset + len(chunk.source), target_offset + len(chunk.target)
    has_links = all(chunk.links is not None for chunk in chunks)
    return ProjectedTranslation(
        target,
        tuple(sorted(links)) if has_links else (),
        tuple(span_ranges[span] for span in sorted(span_ranges)),
        all(chunk.complete for chunk in chunks),
    )


def chain_links(first: Iterable[WordLink], second: Iterable[WordLink]) -> tuple[WordLink, ...]:
    """Links from a first text to a third one through the second.

    >>> chain_links([(0, 1)], [(1, 5), (1, 6)])
    ((0, 5), (0, 6))
    """
    targets_by_middle = defaultdict(list)
    for middle, last in second:
        targets_by_middle[middle].append(last)
    return tuple(sorted({(start, last) for start, middle in first for last in targets_by_middle.get(middle, ())}))
