"""Work that asks for translations in rounds (heedful.text.translated), driven in an event loop."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

from heedful.text.translated import Rounds, Translated

Outcome = TypeVar("Outcome")


async def driven(
    rounds: Rounds[Outcome], translate: Callable[[list[str]], Awaitable[list[Translated]]]
) -> Outcome:
    """Give every round of texts to ``translate`` until the outcome is there; parsing happens in a thread."""
    texts, outcome = await asyncio.to_thread(_step, rounds, None)
    while texts is not None:
        texts, outcome = await asyncio.to_thread(_step, rounds, await translate(texts))
    assert outcome is not None
    return outcome


def together(works: Sequence[Rounds[Outcome]]) -> Rounds[list[Outcome]]:
    """Several works side by side: each round asks for what all of them need."""
    steps = [_step(work, None) for work in works]
    while any(texts is not None for texts, _ in steps):
        answers = iter((yield [text for texts, _ in steps for text in texts or ()]))
        steps = [
            step if step[0] is None else _step(work, _next(answers, len(step[0])))
            for work, step in zip(works, steps, strict=True)
        ]
    return [outcome for _, outcome in steps if outcome is not None]


def _step(
    rounds: Rounds[Outcome], answers: list[Translated] | None
) -> tuple[list[str] | None, Outcome | None]:
    """The texts that are needed next, or the outcome."""
    try:
        return (next(rounds) if answers is None else rounds.send(answers)), None
    except StopIteration as stop:
        outcome: Outcome = stop.value
        return None, outcome


def _next(answers: Iterator[Translated], count: int) -> list[Translated]:
    return [next(answers) for _ in range(count)]
