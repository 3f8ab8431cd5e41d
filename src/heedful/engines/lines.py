"""Translation of a stream of lines: order and number kept, whatever arrives handled at once.

A thread reads ahead, so that a slow writer (a person, a pipe) gets each line back as soon as it is done,
and a quick one (a file) gets large windows. Lines that are the same in a window are translated once.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Protocol

from heedful.decoding.config import SearchConfig
from heedful.engines.base import Translation
from heedful.text.glossary import Glossary

WINDOW = 2048
"""Lines sorted by length and translated together at most."""


class LineEngine(Protocol):
    """What is needed of an engine here."""

    @property
    def name(self) -> str: ...
    @property
    def windows_at_once(self) -> int: ...
    def translate(
        self,
        texts: Sequence[str],
        search: SearchConfig | None = None,
        prefixes: Sequence[str] | None = None,
        *,
        details: bool = False,
        glossary: Glossary | None = None,
    ) -> list[Translation]: ...


def translate_lines(
    engine: LineEngine,
    lines: Iterable[str],
    search: SearchConfig | None = None,
    prefix: str = "",
    *,
    details: bool = False,
    waiting: bool = True,
    glossary: Glossary | None = None,
) -> Iterator[Translation]:
    """The translation of each line, in order; ``prefix`` is what each must start with.

    ``waiting``: the lines may come slowly, and each is translated as soon as it is there. Otherwise windows
    are always full, so that the same lines are translated in the same company every time.
    """
    windows = _arrived(lines) if waiting else _filled(lines)

    def translate(window: list[str]) -> list[Translation]:
        distinct = list(dict.fromkeys(window))
        prefixes = [prefix] * len(distinct)
        found = engine.translate(distinct, search, prefixes, details=details, glossary=glossary)
        known = dict(zip(distinct, found, strict=True))
        return [replace(known[line], source=line) for line in window]

    if waiting or engine.windows_at_once == 1:  # a person waits for this line, not for the next
        for window in windows:
            yield from translate(window)
    else:
        yield from _prepared_ahead(translate, windows, engine.windows_at_once)


def _prepared_ahead(
    translate: Callable[[list[str]], list[Translation]], windows: Iterable[list[str]], at_once: int
) -> Iterator[Translation]:
    """Some windows at once: while one is translated, the next is split and encoded."""
    pool = ThreadPoolExecutor(max_workers=at_once)
    begun: deque[Future[list[Translation]]] = deque()
    try:
        for window in windows:
            begun.append(pool.submit(translate, window))
            if len(begun) >= at_once:
                yield from begun.popleft().result()
        while begun:
            yield from begun.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C does not wait for what nobody wants


def _filled(lines: Iterable[str]) -> Iterator[list[str]]:
    """Lines in lists of WINDOW, whatever the time it takes."""
    iterator = iter(lines)
    while window := list(islice(iterator, WINDOW)):
        yield window


def _arrived(lines: Iterable[str]) -> Iterator[list[str]]:
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
            with suppress(queue.Empty):
                window.append(item := arrived.get_nowait())
        texts = [line for line in window if isinstance(line, str)]
        if texts:
            yield texts
        if isinstance(item, BaseException):
            raise item
        if item is None:
            return
