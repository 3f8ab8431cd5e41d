"""An engine's stream, read in a worker thread and handed on in the event loop."""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Executor

from heedful.errors import HeedfulError
from heedful.server.refusal import RefusedError, malformed

LOG = logging.getLogger("heedful.server")


async def pumped(
    parts: Callable[[], Iterator[str]], pool: Executor, deadline: float | None, finished: Callable[[], None]
) -> AsyncGenerator[str, None]:
    """Each part as soon as it is there; TimeoutError after the deadline, a time of the event loop.

    The thread never waits for the listener. It stops at the next part when nobody listens any more, or the
    deadline has passed; then ``finished`` is called in the event loop.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[str | Exception | None] = asyncio.Queue()
    gone = threading.Event()

    def read() -> None:
        end: Exception | None = None
        try:
            for part in parts():
                if gone.is_set() or (deadline is not None and loop.time() >= deadline):
                    return
                loop.call_soon_threadsafe(arrived.put_nowait, part)
        except Exception as error:
            end = error
        loop.call_soon_threadsafe(arrived.put_nowait, end)

    reading = loop.run_in_executor(pool, read)
    reading.add_done_callback(lambda _: finished())
    try:
        while True:
            async with asyncio.timeout_at(deadline):
                part = await arrived.get()
            if part is None:
                break
            if isinstance(part, Exception):
                raise failure(part) from part
            yield part
    finally:
        gone.set()
        await asyncio.shield(reading)


def failure(error: Exception) -> RefusedError:
    """What a client hears of an engine's exception; ours are logged, not told."""
    if isinstance(error, HeedfulError):  # such as a prefix that the model cannot write
        return malformed(str(error))
    LOG.error("the engine failed", exc_info=error)
    return RefusedError(500, "the translation failed")
