"""Progress on standard error: a bar on a terminal, plain lines elsewhere. Results go to standard output."""

import errno
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol, TypeVar

Item = TypeVar("Item")

SECONDS_BETWEEN_LINES = 10.0

SECONDS = "seconds"
"""Unit of work with a time budget: the remaining time is known."""


def format_count(count: int, singular: str) -> str:
    """A count with its noun in singular or plural.

    >>> format_count(1, "pair"), format_count(1200, "pair"), format_count(0, "line")
    ('1 pair', '1,200 pairs', '0 lines')
    """
    return f"{count:,} {singular}{'s' * (count != 1)}"


@contextmanager
def _ignore_closed_terminal() -> Iterator[None]:
    """Continue when the terminal was closed."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise


class ProgressTask(Protocol):
    """A running task."""

    def advance(self, amount: int = 1, note: str = "") -> None: ...


class Reporter:
    """Messages and progress of a command."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet

    def info(self, text: str) -> None:
        """Print a line unless quiet."""
        if not self.quiet:
            with _ignore_closed_terminal():
                print(text, file=sys.stderr, flush=True)

    def warning(self, text: str) -> None:
        """Print a warning, even if quiet."""
        with _ignore_closed_terminal():
            print(f"warning: {text}", file=sys.stderr, flush=True)

    def task(
        self, label: str, total: int | None = None, done: int = 0, unit: str = ""
    ) -> AbstractContextManager[ProgressTask]:
        """Start a task of ``total`` units, ``done`` of which are complete."""
        if not self.quiet and sys.stderr.isatty():
            return _bar_task(label, total, done, unit)
        return nullcontext(_LineProgress(self, label, total, done, unit))

    def track(
        self, items: Iterable[Item], label: str, total: int | None = None, unit: str = "", done: int = 0
    ) -> Iterator[Item]:
        """Iterate over items with progress."""
        with self.task(label, total, done, unit) as task:
            for item in items:
                yield item
                task.advance()


class _LineProgress:
    def __init__(self, reporter: Reporter, label: str, total: int | None, done: int, unit: str) -> None:
        self.reporter, self.label, self.total, self.unit = reporter, label, total, unit
        self.done = self.initially_done = done
        self.start_time = self.last_report_time = time.monotonic()

    def advance(self, amount: int = 1, note: str = "") -> None:
        self.done += amount
        now = time.monotonic()
        if now - self.last_report_time < SECONDS_BETWEEN_LINES:
            return
        self.last_report_time = now
        items_per_second = (self.done - self.initially_done) / (now - self.start_time)
        unit = f" {self.unit}" if self.unit else ""
        if self.total is None:
            text = f"{self.done:,}{unit} ({items_per_second:,.0f}/s)"
        elif self.unit == SECONDS:  # a time budget
            remaining = _format_seconds(max(0, self.total - self.done))
            text = f"{_format_seconds(self.done)} of {_format_seconds(self.total)}, {remaining} left"
        else:
            remaining = _format_seconds((self.total - self.done) / items_per_second) if items_per_second else "?"
            text = f"{self.done:,} of {self.total:,}{unit}, {remaining} left"
        self.reporter.info(f"{self.label}: {text}{'  ' + note if note else ''}")


class _BarProgress:
    def __init__(self, progress: Any, task_id: Any) -> None:
        self.progress, self.task_id = progress, task_id

    def advance(self, amount: int = 1, note: str = "") -> None:
        self.progress.advance(self.task_id, amount)
        if note:
            self.progress.update(self.task_id, note=note)


@contextmanager
def _bar_task(label: str, total: int | None, done: int, unit: str) -> Iterator[ProgressTask]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class _TimeRemaining(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(f"{_format_seconds(max(0, task.total - task.completed))} left")

    is_timed = unit == SECONDS and total is not None
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        *([] if is_timed else [MofNCompleteColumn(), TextColumn(unit)]),
        TextColumn("{task.fields[note]}"),
        _TimeRemaining() if is_timed else TimeRemainingColumn(),
    )
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    task_id = progress.add_task(label, total=total, completed=done, note="")
    with _ignore_closed_terminal():
        progress.start()
    try:
        yield _BarProgress(progress, task_id)
    finally:
        with _ignore_closed_terminal():
            progress.stop()


def _format_seconds(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
