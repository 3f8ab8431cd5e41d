"""Run a training command, record its progress and memory, and stop it after the measurement.

Every run is stopped by SIGTERM, so that validation or export at the end does not count.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MAX_SECONDS = 1800.0
"""Maximum seconds of a run."""
POLL = 0.2
MAX_MONITORING_FRACTION = 0.01
"""Maximum fraction of the time for measuring memory, which is slow for several processes."""
EXIT_SECONDS = 60.0
"""Seconds that a program has to exit after SIGTERM."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Progress of a run: updates, target tokens and training seconds since its start."""

    update: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TrainingCommand:
    """A training command of one toolkit."""

    name: str
    command: list[str]
    environment: dict[str, str]
    folder: Path
    progress: Callable[[], list[Sample]]
    """Reads its progress so far."""


@dataclass(frozen=True, slots=True)
class Measurement:
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
    """A run that could not be measured, with the reason."""


def measure(training_command: TrainingCommand, *, seconds: float, warmup: int) -> Measurement:
    """Start a run, and measure it for so many seconds after so many warm-up updates."""
    log = training_command.folder / "output.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            training_command.command,
            cwd=training_command.folder,
            env=os.environ | training_command.environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group of its own, so that its children can be stopped with it
        )
        try:
            peak = _monitor(process, training_command, seconds, warmup)
        finally:
            _stop(process)
    samples = read_warm_samples(training_command, warmup)
    if len(samples) < 2:
        raise RunError(_last_line(log))
    first, last = samples[0], samples[-1]
    return Measurement(
        training_command.name,
        last.tokens - first.tokens,
        last.seconds - first.seconds,
        last.update - first.update,
        peak / 2**20 if peak else None,
    )


def _monitor(process: subprocess.Popen[bytes], training_command: TrainingCommand, seconds: float, warmup: int) -> int:
    """Wait until the run was measured long enough or ended; returns its peak memory in bytes."""
    start_time, peak = time.monotonic(), 0
    warm_time: float | None = None  # when the warm-up ended
    while process.poll() is None:
        monitoring_start = time.monotonic()
        peak = max(peak, tree_memory(process.pid))
        time.sleep(max(POLL, (time.monotonic() - monitoring_start) / MAX_MONITORING_FRACTION))
        now = time.monotonic()
        if now - start_time > MAX_SECONDS:
            raise RunError(f"not measured after {MAX_SECONDS:.0f} seconds")
        if warm_time is not None and now - warm_time < seconds:
            continue
        samples = read_warm_samples(training_command, warmup)
        if warm_time is None and samples:
            warm_time = now
        if warm_time is not None and now - warm_time >= seconds and len(samples) > 1:
            break
    return peak


def read_warm_samples(training_command: TrainingCommand, warmup: int) -> list[Sample]:
    """Progress after the warm-up."""
    return [sample for sample in training_command.progress() if sample.update >= warmup]


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM (Heedful then writes its last line), then SIGKILL if necessary, to its children too."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    try:
        os.killpg(process.pid, signal.SIGKILL)  # its own group: workers that outlived it
    except ProcessLookupError:
        return


def tree_memory(root: int) -> int:
    """Memory of a process and all its descendants in bytes; 0 without /proc.

    With several processes, shared pages count once (PSS); with one, RSS is the same and fast.
    """
    tree = _tree(root)
    try:
        if len(tree) == 1:
            return int(Path(f"/proc/{root}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return sum(_proportional(process) for process in tree)
    except (OSError, IndexError):
        return 0


def _tree(root: int) -> list[int]:
    pids = [root]
    for pid in pids:  # grows during the loop
        for thread in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                pids += map(int, thread.read_text().split())
            except OSError:  # the process has exited
                continue
    return pids


def _proportional(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:  # the process has exited
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def _last_line(log: Path) -> str:
    """The last line of a log, or its last error."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    errors = [line for line in lines if "error" in line.lower()]
    candidates = errors or [line for line in lines if line]
    return candidates[-1][:200] if candidates else "no output"
