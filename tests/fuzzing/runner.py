"""Run a reader on many inputs: raise the first crash with a minimal input, or count all crashes."""

import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzzing.outcomes import ForbiddenEffectError, HangError, Outcome, Reader, read_outcome

CRASHES = (Exception, HangError, ForbiddenEffectError)


@dataclass
class Tally:
    """Outcomes of the inputs of a reader."""

    name: str
    accepted: int = 0
    rejected: int = 0
    crashed: int = 0
    crashes: dict[str, bytes] = field(default_factory=dict)
    """The smallest input per crash signature."""

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        return self.accepted + self.rejected + self.crashed

    def add(self, result: Outcome) -> None:
        """Count an outcome that is not a crash."""
        self.accepted += result == "accepted"
        self.rejected += result == "rejected"

    def crash(self, error: BaseException, data: bytes) -> None:
        """Keep the smallest input of every kind of crash."""
        self.crashed += 1
        crash_signature = signature(error)
        if crash_signature not in self.crashes or len(data) < len(self.crashes[crash_signature]):
            self.crashes[crash_signature] = data


def signature(error: BaseException) -> str:
    """Identifies a crash: the exception and the last line of our code in its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    our_frames = [frame for frame in frames if "heedful" in frame.filename] or frames
    location = f"{Path(our_frames[-1].filename).name}:{our_frames[-1].lineno}" if our_frames else "?"
    return f"{type(error).__name__} at {location}: {str(error)[:160]}"


def prepare_seeds(reader: Reader, folder: Path) -> list[bytes]:
    """Prepare the folder; returns the valid files to mutate, each of which must be accepted."""
    folder.mkdir(parents=True, exist_ok=True)
    reader.prepare(folder)
    seeds = [(folder / reader.file).read_bytes(), *reader.more]
    for seed in seeds:
        assert read_outcome(reader, folder, seed) == "accepted", f"{reader.name}: a valid file is rejected"
    return seeds


class _TimeOverError(Exception):
    """The time limit of `try_all` is over."""


def try_all(reader: Reader, folder: Path, examples: int, seconds: float = 3600) -> Tally:
    """Many inputs within a time limit; all crashes are counted."""
    seeds, tally = prepare_seeds(reader, folder), Tally(reader.name)
    deadline = time.monotonic() + seconds

    def attempt(data: bytes) -> None:
        if time.monotonic() > deadline:
            raise _TimeOverError
        try:
            tally.add(read_outcome(reader, folder, data))
        except CRASHES as error:
            tally.crash(error, data)

    with suppress(_TimeOverError):
        run(attempt, reader, seeds, examples, derandomize=False)
    return tally


def try_some(reader: Reader, folder: Path, examples: int) -> Tally:
    """A few inputs, the same in every call; a crash is raised with a minimal input."""
    seeds, tally = prepare_seeds(reader, folder), Tally(reader.name)
    run(lambda data: tally.add(read_outcome(reader, folder, data)), reader, seeds, examples, derandomize=True)
    return tally


def run(
    attempt: Callable[[bytes], None], reader: Reader, seeds: list[bytes], examples: int, *, derandomize: bool
) -> None:
    """Call a function with generated inputs."""
    phases = [Phase.generate, *([Phase.shrink] if derandomize else [])]
    run_settings = settings(
        max_examples=examples,
        derandomize=derandomize,
        database=None,
        deadline=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    run_settings(given(reader.inputs(seeds))(attempt))()
