"""Work that asks for translations in rounds (heedful.text.translated), driven in an event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from heedful.text.translated import Rounds, Translated, step_of

Outcome = TypeVar("Outcome")


async def driven(
    rounds: Rounds[Outcome], translate: Callable[[list[str]], Awaitable[list[Translated]]]
) -> Outcome:
    """Give every round of texts to ``translate`` until the outcome is there; parsing happens in a thread."""
    texts, outcome = await asyncio.to_thread(step_of, rounds, None)
    while texts is not None:
        texts, outcome = await asyncio.to_thread(step_of, rounds, await translate(texts))
    assert outcome is not None
    return outcome
