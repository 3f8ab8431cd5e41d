"""Run a training command, record its progress and memory, and stop it after the measurement.

Every run ends by SIGTERM, so that validation or export at the end does not count.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LONGEST = 1800.0
"""Seconds after which a run that has not been measured is given up."""
POLL = 0.2
WATCHING = 0.01
"""Share of the time that counting memory may take: of several processes it is not cheap."""
LAST_WORDS = 60.0
"""Seconds that a program has to end by itself."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Where a run is: updates, target tokens and training seconds since its beginning."""

    update: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Contestant:
    """A program ready to run."""

    name: str
    command: list[str]
    environment: dict[str, str]
    folder: Path
    progress: Callable[[], list[Sample]]
    """What it has written of its progress so far."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run, without its warm-up."""

    name: str
    tokens: int
    seconds: float
    updates: int
    peak_megabytes: float | None

    @property
    def rate(self) -> float:
        """Target tokens a second."""
        return self.tokens / self.seconds


class RunError(Exception):
    """A run that gave no number; says why."""


def measure(contestant: Contestant, *, seconds: float, warmup: int) -> Measured:
    """Start it, let it warm up for so many updates and then train for so many seconds."""
    log = contestant.folder / "output.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            contestant.command,
            cwd=contestant.folder,
            env=os.environ | contestant.environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group of its own, so that its children can be stopped with it
        )
        try:
            peak = _monitor(process, contestant, seconds, warmup)
        finally:
            _stop(process)
    samples = _warm(contestant, warmup)
    if len(samples) < 2:
        raise RunError(_last_line(log))
    first, last = samples[0], samples[-1]
    return Measured(
        contestant.name,
        last.tokens - first.tokens,
        last.seconds - first.seconds,
        last.update - first.update,
        peak / 2**20 if peak else None,
    )


def _monitor(process: subprocess.Popen[bytes], contestant: Contestant, seconds: float, warmup: int) -> int:
    """Wait until it was measured long enough, or ended; returns the most memory in bytes."""
    began, peak = time.monotonic(), 0
    warm: float | None = None  # when its warm-up was over
    while process.poll() is None:
        looked = time.monotonic()
        peak = max(peak, tree_memory(process.pid))
        time.sleep(max(POLL, (time.monotonic() - looked) / WATCHING))
        now = time.monotonic()
        if now - began > LONGEST:
            raise RunError(f"not measured after {LONGEST:.0f} seconds")
        if warm is not None and now - warm < seconds:
            continue
        samples = _warm(contestant, warmup)
        if warm is None and samples:
            warm = now
        if warm is not None and now - warm >= seconds and len(samples) > 1:
            break
    return peak


def _warm(contestant: Contestant, warmup: int) -> list[Sample]:
    """Progress after the warm-up."""
    return [sample for sample in contestant.progress() if sample.update >= warmup]


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask politely (ours then writes its last line), and insist if need be; children go too."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(LAST_WORDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    try:
        os.killpg(process.pid, signal.SIGKILL)  # its own group: workers that outlived it
    except ProcessLookupError:
        return


def tree_memory(root: int) -> int:
    """Bytes of memory of a process and all its descendants; 0 where there is no /proc.

    Of several, each page counts once (PSS): workers share most of theirs. Of one, RSS is the same and cheap.
    """
    tree = _tree(root)
    try:
        if len(tree) == 1:
            return int(Path(f"/proc/{root}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return sum(_proportional(process) for process in tree)
    except (OSError, IndexError):
        return 0


def _tree(root: int) -> list[int]:
    found = [root]
    for process in found:  # grows while it is read
        for thread in Path(f"/proc/{process}/task").glob("*/children"):
            try:
                found += map(int, thread.read_text().split())
            except OSError:  # ended meanwhile
                continue
    return found


def _proportional(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:  # ended meanwhile
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def _last_line(log: Path) -> str:
    """What a program said last: its reason for failing, as far as one can tell."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    errors = [line for line in lines if "error" in line.lower()]
    told = errors or [line for line in lines if line]
    return told[-1][:200] if told else "it ended without a word"
