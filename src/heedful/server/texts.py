"""A text as the queue sees it: its sentences wait one by one, and their translations make it whole again."""

import asyncio
import math
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from heedful.decoding.config import SearchConfig
from heedful.engines.base import Alternative, Translation
from heedful.server.batching import Batcher
from heedful.server.waiting import Admission
from heedful.text.glossary import Glossary
from heedful.text.links import Link
from heedful.text.sentences import Segment

_BREAK = re.compile("([\n\r\x0b\x0c\x85\u2028\u2029]\\s*+)")
LONG = 5_000
"""Characters."""
Outcome = TypeVar("Outcome")
Prefixed = tuple[str, str]
"""A text, and what its translation must start with."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How the texts of one request are translated."""

    search: SearchConfig
    deadline: float | None = None
    details: bool = False
    portion: float = math.inf
    """Characters that wait in the queue at a time, so that a long text leaves room for others."""
    glossary: Glossary | None = None


async def translate_texts(
    batcher: Batcher,
    texts: Sequence[str],
    manner: Manner,
    prefixes: Sequence[str] | None = None,
    *,
    admission: Admission | None = None,
) -> list[Translation]:
    """What ``engine.translate`` would give, sentence by sentence through the queue."""
    split = await _segments(batcher, texts)
    wanted = [prefix or "" for prefix in prefixes or [""] * len(texts)]

    def portions() -> list[Sequence[Prefixed]]:
        pairs = zip(split, wanted, strict=True)
        return [
            *_portions([part for each, prefix in pairs for part in _prefixed(each, prefix)], manner.portion)
        ]

    admission = admission or Admission()
    results: list[Translation] = []
    for portion in await in_thread_if_long(portions, texts):
        results += await batcher.translate(
            [text for text, _ in portion],
            manner.search,
            [prefix for _, prefix in portion],
            details=manner.details,
            deadline=manner.deadline,
            admission=admission,
            glossary=manner.glossary,
        )
    found = iter(results)

    def joined() -> list[Translation]:
        return [
            _joined(text, segments, [next(found) if each.text else None for each in segments], manner.search)
            for text, segments in zip(texts, split, strict=True)
        ]

    return await in_thread_if_long(joined, texts)


async def stream_text(
    batcher: Batcher, text: str, search: SearchConfig, prefix: str = "", deadline: float | None = None
) -> AsyncGenerator[str, None]:
    """What ``engine.stream`` would give, sentence by sentence through the queue."""
    [segments] = await _segments(batcher, [text])
    parts = batcher.stream(segments, search, prefix, deadline)
    async with aclosing(parts):
        async for part in parts:
            yield part


async def _segments(batcher: Batcher, texts: Sequence[str]) -> list[list[Segment]]:
    return await in_thread_if_long(
        lambda: [split_lines(text, batcher.engine.segments) for text in texts], texts
    )


async def in_thread_if_long(work: Callable[[], Outcome], texts: Sequence[str]) -> Outcome:
    """Some work on texts, in a thread if there is much of it, so that other requests are not held up."""
    return await asyncio.to_thread(work) if sum(map(len, texts)) > LONG else work()


def split_lines(text: str, split: Callable[[str], list[Segment]]) -> list[Segment]:
    r"""The segments of every line: a line break never gets lost inside a segment.

    >>> split_lines("a b\n\n c", lambda line: [Segment(line, "")])
    [Segment(text='a b', separator='\n\n '), Segment(text='c', separator='')]
    """
    pieces = [*_BREAK.split(text), ""]  # line, break, line, break ...
    segments: list[Segment] = []
    for line, line_break in zip(pieces[::2], pieces[1::2], strict=True):
        *others, last = split(line)
        segments += [*others, Segment(last.text, last.separator + line_break)]
    return segments


def _prefixed(segments: Sequence[Segment], prefix: str) -> Iterator[Prefixed]:
    """The words of each segment; the prefix belongs to the first."""
    for segment in segments:
        if segment.text:
            yield segment.text, prefix
            prefix = ""


def _portions(parts: Sequence[Prefixed], characters: float) -> Iterator[Sequence[Prefixed]]:
    """Neighbouring parts, so many at a time as have so many characters."""
    first = size = 0
    for place, (text, _) in enumerate(parts):
        if size + len(text) > characters and place > first:
            yield parts[first:place]
            first, size = place, 0
        size += len(text)
    if parts:
        yield parts[first:]


def _joined(
    text: str, segments: Sequence[Segment], found: Sequence[Translation | None], search: SearchConfig
) -> Translation:
    """One translation from those of its segments: the i-th best of all make the i-th best."""
    count = max((len(each.alternatives) for each in found if each), default=1)
    alternatives = tuple(_alternative(segments, found, rank, search) for rank in range(count))
    complete = all(each.complete for each in found if each)
    return Translation(text, alternatives, max(1, len(segments)), complete)


def _alternative(
    segments: Sequence[Segment], found: Sequence[Translation | None], rank: int, search: SearchConfig
) -> Alternative:
    parts = [each.alternatives[min(rank, len(each.alternatives) - 1)] if each else _EMPTY for each in found]
    words = [part for part in parts if part is not _EMPTY]
    if len(words) == 1:
        score = words[0].score
    else:
        steps = sum(len(part.token_log_probabilities) or len(part.tokens) + 1 for part in words)
        score = sum(part.log_probability for part in words) / search.penalty(steps)
    return Alternative(
        "".join(part.text + segment.separator for part, segment in zip(parts, segments, strict=True)),
        score,
        sum(part.log_probability for part in words),
        tuple(token for part in words for token in part.tokens),
        tuple(value for part in words for value in part.token_log_probabilities),
        tuple(_alignment(segments, parts)),
    )


def _alignment(segments: Sequence[Segment], parts: Sequence[Alternative]) -> Iterator[Link]:
    """Links between the words (between spaces) of the whole text and of the whole translation."""
    if not any(part.alignment for part in parts):
        return
    source, target = _Words(), _Words()
    for segment, part in zip(segments, parts, strict=True):
        for one, other in part.alignment:
            yield one + source.place, other + target.place
        source.add(segment.text + segment.separator)
        target.add(part.text + segment.separator)


class _Words:
    """Counts the words of a text that comes in parts."""

    def __init__(self) -> None:
        self.count, self.inside = 0, False

    @property
    def place(self) -> int:
        """The number of the word that the next letter belongs to."""
        return self.count - self.inside

    def add(self, text: str) -> None:
        """The next part."""
        if text:
            self.count += len(text.split()) - (self.inside and not text[0].isspace())
            self.inside = not text[-1].isspace()


_EMPTY = Alternative("", 0.0, 0.0, (), ())
