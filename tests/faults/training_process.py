"""Tools to break a real process at a chosen moment and to look at what it left.

A test starts a command, waits for a moment, injects a fault, and checks the end state. Everything is bounded
in time: a command that does not get where it should is killed with all of its tree, and the test fails.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from heedful.training.checkpoint import check_checkpoint, list_checkpoints, read_state
from tests.conftest import Result
from tests.processes import descendants, is_running

PATIENCE = 120.0
"""Seconds in which every moment comes and every command ends."""
Moment = Callable[[], bool]


class Command:
    """``heedful WORDS`` in its own process; leaving the ``with`` block kills its process tree."""

    def __init__(
        self,
        *words: str | Path,
        environment: Mapping[str, str] | None = None,
        program: tuple[str, ...] = (sys.executable, "-m", "heedful"),
    ) -> None:
        self._out, self._err = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 - closed at the end
        self.process = subprocess.Popen(
            [*program, *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **(environment or {})},
        )
        self._seen = {self.pid}

    @property
    def pid(self) -> int:
        return self.process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left = {self.pid, *self.tree()} if self.process.poll() is None else self._seen - {self.pid}
        for pid in left:
            send(pid, signal.SIGKILL)
        self.process.wait()
        self._out.close()
        self._err.close()

    def tree(self) -> list[int]:
        """The process and all below it, itself first."""
        found = [self.pid, *descendants(self.pid)]
        self._seen |= set(found)
        return found

    def until(self, moment: Moment, seconds: float = PATIENCE) -> Self:
        """Wait for a moment, which must come before the command ends."""
        limit = time.monotonic() + seconds
        while not moment():
            assert self.process.poll() is None, f"it has ended with {self.process.returncode}: {self.said}"
            assert time.monotonic() < limit, f"the moment does not come: {self.said}"
            time.sleep(0.002)
        return self

    def send(self, number: int) -> Self:
        """A signal to the process itself; ``send(pid, number)`` is for others of its tree."""
        send(self.pid, number)
        return self

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop the process tree in this block, to inject a fault at exactly this moment."""
        pids = self.tree()
        for pid in pids:
            send(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                send(pid, signal.SIGCONT)

    @property
    def said(self) -> str:
        """Standard error so far."""
        return os.pread(self._err.fileno(), 1 << 24, 0).decode(errors="replace")

    def has_said(self, text: str) -> Moment:
        """The moment at which this text was printed."""
        return lambda: text in self.said

    def ended(self, seconds: float = PATIENCE) -> Result:
        """Wait for its end; no process of its tree is left, and no traceback was printed."""
        self.tree()
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end: {self.said}") from None
        out = os.pread(self._out.fileno(), 1 << 24, 0).decode()
        return Result(status, out, self.said)

    def killed(self) -> None:
        """kill -9 of the process alone: whatever it had started must end by itself."""
        started = self.tree()
        send(self.pid, signal.SIGKILL)
        self.process.wait()
        wait_until_gone(started)


def send(pid: int, number: int) -> None:
    """A signal; a process that is gone already needs none."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_until_gone(pids: list[int], seconds: float = 20.0) -> None:
    """An assertion that all of these processes end."""
    limit = time.monotonic() + seconds
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < limit, f"processes are left: {left}"
        time.sleep(0.01)


# ---- what is left of a training


def exists(path: Path) -> Moment:
    """The moment at which a file or folder is there."""
    return path.exists


def has_lines(path: Path, count: int) -> Moment:
    """The moment at which a file has so many lines."""
    return lambda: path.is_file() and path.read_bytes().count(b"\n") >= count


def saved(folder: Path, update: int) -> Moment:
    """The moment at which a training has a checkpoint of this update or a later one."""
    found = folder / "training" / "checkpoints"
    return lambda: any(int(path.name) >= update for path in list_checkpoints(found))


def updates(folder: Path) -> list[int]:
    """Which checkpoints a training has."""
    return [int(path.name) for path in list_checkpoints(folder / "training" / "checkpoints")]


def weights(folder: Path) -> bytes:
    """Of a finished model, to the bit."""
    return (folder / "weights.safetensors").read_bytes()


def check_checkpoints(folder: Path) -> None:
    """Every checkpoint is valid."""
    for path in list_checkpoints(folder / "training" / "checkpoints"):
        check_checkpoint(path)
        assert read_state(path).update == int(path.name)


def check_finished(folder: Path) -> None:
    """The model is written, its checkpoints are valid, and no partial files are left."""
    assert (folder / "config.json").is_file()
    check_checkpoints(folder)
    assert not list(folder.rglob("*.partial"))


# ---- damage to a file


def flip_bit(path: Path, place: float = 0.5) -> None:
    """Change one bit, this far into the file."""
    with path.open("r+b") as file:
        offset = min(int(place * path.stat().st_size), path.stat().st_size - 1)
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def cut_short(path: Path, place: float = 0.5) -> None:
    """Lose the rest of a file."""
    os.truncate(path, int(place * path.stat().st_size))
