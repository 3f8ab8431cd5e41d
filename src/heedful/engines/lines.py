"""Translation of a stream of lines: order and number kept, whatever arrives handled at once.

A thread reads ahead, so that a slow writer (a person, a pipe) gets each line back as soon as it is done,
and a quick one (a file) gets large batches.
"""

import queue
import threading
from collections.abc import Iterable, Iterator

from heedful.decoding.config import SearchConfig
from heedful.engines.base import Engine, Translation

WINDOW = 1024
"""Lines sorted by length and translated together at most."""


def translate_lines(
    engine: Engine, lines: Iterable[str], search: SearchConfig | None = None, prefix: str = ""
) -> Iterator[Translation]:
    """The translation of each line, in order; ``prefix`` is what each must start with."""
    for window in _windows(lines):
        yield from engine.translate(window, search, [prefix] * len(window))


def _windows(lines: Iterable[str]) -> Iterator[list[str]]:
    """Lines in lists: of all that have arrived, up to WINDOW."""
    arrived: queue.Queue[str | BaseException | None] = queue.Queue(maxsize=2 * WINDOW)

    def read() -> None:
        try:
            for line in lines:
                arrived.put(line)
            arrived.put(None)
        except BaseException as error:  # to be raised where the translations are awaited
            arrived.put(error)

    threading.Thread(target=read, daemon=True).start()
    while True:
        window = [item := arrived.get()]
        while isinstance(item, str) and len(window) < WINDOW and not arrived.empty():
            window.append(item := arrived.get())
        texts = [line for line in window if isinstance(line, str)]
        if texts:
            yield texts
        if isinstance(item, BaseException):
            raise item
        if item is None:
            return
