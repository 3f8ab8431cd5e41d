"""Trying many inputs of a reader: the first crash is raised and made small, or all of them are counted."""

import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzzing.outcomes import HangError, Outcome, OutsideError, Reader, outcome

CRASHES = (Exception, HangError, OutsideError)


@dataclass
class Tally:
    """What became of the inputs of a reader."""

    name: str
    accepted: int = 0
    refused: int = 0
    crashed: int = 0
    crashes: dict[str, bytes] = field(default_factory=dict)
    """The smallest input of each, by what was raised where."""

    @property
    def inputs(self) -> int:
        """How many were tried."""
        return self.accepted + self.refused + self.crashed

    def add(self, found: Outcome) -> None:
        """Count what was no crash."""
        self.accepted += found == "accepted"
        self.refused += found == "refused"

    def crash(self, error: BaseException, data: bytes) -> None:
        """Keep the smallest input of every kind of crash."""
        self.crashed += 1
        place = signature(error)
        if place not in self.crashes or len(data) < len(self.crashes[place]):
            self.crashes[place] = data


def signature(error: BaseException) -> str:
    """Which crash it is: the exception, and the last place in our own code."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "heedful" in frame.filename] or frames
    place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "?"
    return f"{type(error).__name__} at {place}: {str(error)[:160]}"


def prepared(reader: Reader, folder: Path) -> list[bytes]:
    """The folder made ready; the valid files that inputs are made of, each of which must be accepted."""
    folder.mkdir(parents=True, exist_ok=True)
    reader.prepare(folder)
    seeds = [(folder / reader.file).read_bytes(), *reader.more]
    for seed in seeds:
        assert outcome(reader, folder, seed) == "accepted", f"{reader.name}: a valid file is refused"
    return seeds


class _OverError(Exception):
    """The time is over."""


def try_all(reader: Reader, folder: Path, examples: int, seconds: float = 3600) -> Tally:
    """Very many inputs, for so long at most; crashes are counted, and none ends it."""
    seeds, tally = prepared(reader, folder), Tally(reader.name)
    ends = time.monotonic() + seconds

    def attempt(data: bytes) -> None:
        if time.monotonic() > ends:
            raise _OverError
        try:
            tally.add(outcome(reader, folder, data))
        except CRASHES as error:
            tally.crash(error, data)

    with suppress(_OverError):
        run(attempt, reader, seeds, examples, derandomize=False)
    return tally


def try_some(reader: Reader, folder: Path, examples: int) -> Tally:
    """A few inputs, the same at every call; a crash is raised, with the smallest input that shows it."""
    seeds, tally = prepared(reader, folder), Tally(reader.name)
    run(lambda data: tally.add(outcome(reader, folder, data)), reader, seeds, examples, derandomize=True)
    return tally


def run(
    attempt: Callable[[bytes], None], reader: Reader, seeds: list[bytes], examples: int, *, derandomize: bool
) -> None:
    """Give hypothesis the work."""
    phases = [Phase.generate, *([Phase.shrink] if derandomize else [])]
    chosen = settings(
        max_examples=examples,
        derandomize=derandomize,
        database=None,
        deadline=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    chosen(given(reader.inputs(seeds))(attempt))()
