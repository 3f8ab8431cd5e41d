"""Progress of long work: a bar with rate and time left on a terminal, plain lines elsewhere.

All of it goes to standard error: standard output belongs to results.
"""

import errno
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

Item = TypeVar("Item")
SECONDS_BETWEEN_LINES = 10.0
SECONDS = "seconds"
"""The unit of work that is measured by the clock: how much is left needs no estimate."""


def counted(number: int, one: str) -> str:
    """A number of things.

    >>> counted(1, "pair"), counted(1200, "pair"), counted(0, "line")
    ('1 pair', '1,200 pairs', '0 lines')
    """
    return f"{number:,} {one}{'s' * (number != 1)}"


def _print(text: str) -> None:
    with _without_terminal():
        print(text, file=sys.stderr, flush=True)


@contextmanager
def _without_terminal() -> Iterator[None]:
    """Work does not fail for nobody looking any more: a closed terminal cannot be written to."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise


class Task(Protocol):
    """Some work whose end may be known."""

    def advance(self, amount: int = 1, note: str = "") -> None:
        """Say that so much more is done."""
        ...


class Reporter:
    """Where a command tells how far it is."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet

    def say(self, text: str) -> None:
        """One line, now."""
        if not self.quiet:
            _print(text)

    def warn(self, text: str) -> None:
        """One line that a quiet user must see too."""
        _print(f"warning: {text}")

    def task(
        self, label: str, total: int | None = None, done: int = 0, unit: str = ""
    ) -> AbstractContextManager[Task]:
        """A piece of work of ``total`` units, ``done`` of which were done before."""
        if not self.quiet and sys.stderr.isatty():
            return _bar(label, total, done, unit)
        return _lines(self, label, total, done, unit)

    def track(
        self, items: Iterable[Item], label: str, total: int | None = None, unit: str = ""
    ) -> Iterator[Item]:
        """The same items, with progress."""
        with self.task(label, total, unit=unit) as task:
            for item in items:
                yield item
                task.advance()


class _Lines:
    def __init__(self, reporter: Reporter, label: str, total: int | None, done: int, unit: str) -> None:
        self.reporter, self.label, self.total, self.unit = reporter, label, total, unit
        self.done = self.before = done
        self.started = self.said = time.monotonic()

    def advance(self, amount: int = 1, note: str = "") -> None:
        self.done += amount
        now = time.monotonic()
        if now - self.said >= SECONDS_BETWEEN_LINES:
            self.said = now
            self.reporter.say(f"{self.label}: {self._amount(now)}{'  ' + note if note else ''}")

    def _amount(self, now: float) -> str:
        if self.unit == SECONDS and self.total is not None:  # work that is to end by the clock
            left = _clock(max(0, self.total - self.done))
            return f"{_clock(self.done)} of {_clock(self.total)}, {left} left"
        rate = (self.done - self.before) / (now - self.started)
        unit = f" {self.unit}" if self.unit else ""
        if self.total is None:
            return f"{self.done:,}{unit} ({rate:,.0f}/s)"
        left = _clock((self.total - self.done) / rate) if rate else "?"
        return f"{self.done:,} of {self.total:,}{unit}, {left} left"


@contextmanager
def _lines(reporter: Reporter, label: str, total: int | None, done: int, unit: str) -> Iterator[Task]:
    yield _Lines(reporter, label, total, done, unit)


class _Bar:
    def __init__(self, progress: Any, number: Any) -> None:
        self.progress, self.number = progress, number

    def advance(self, amount: int = 1, note: str = "") -> None:
        self.progress.advance(self.number, amount)
        if note:
            self.progress.update(self.number, note=note)


@contextmanager
def _bar(label: str, total: int | None, done: int, unit: str) -> Iterator[Task]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class _TimeLeft(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(f"{_clock(max(0, task.total - task.completed))} left")

    by_the_clock = unit == SECONDS and total is not None
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        *([] if by_the_clock else [MofNCompleteColumn(), TextColumn(unit)]),
        TextColumn("{task.fields[note]}"),
        _TimeLeft() if by_the_clock else TimeRemainingColumn(),
    )
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    number = progress.add_task(label, total=total, completed=done, note="")
    with _without_terminal():
        progress.start()
    try:
        yield _Bar(progress, number)
    finally:
        with _without_terminal():
            progress.stop()


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
