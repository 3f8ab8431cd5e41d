"""Training commands in separate processes, checks of the folders they leave, and damage to files.

A test starts a command that stops itself at a stop point, injects a fault, and checks the final state. All waits
have a timeout: if a command hangs, its process tree is killed and the test fails.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from heedful.training.checkpoint import check_checkpoint, list_checkpoints, read_state
from tests.conftest import Result
from tests.processes import descendants, is_running
from tests.stop_points import TIMEOUT, StopPoint, wait_until_stopped

Condition = Callable[[], bool]


class Command:
    """``heedful ARGS`` in a separate process; leaving the ``with`` block kills its process tree."""

    def __init__(
        self,
        *args: str | Path,
        environment: Mapping[str, str] | None = None,
        program: tuple[str, ...] = (sys.executable, "-m", "heedful"),
        stop_point: StopPoint | None = None,
    ) -> None:
        self._out, self._err = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 - closed at the end
        self.process = subprocess.Popen(
            [*(stop_point.program() if stop_point else program), *map(str, args)],
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **(environment or {})},
        )
        self._pids = {self.pid}

    @property
    def pid(self) -> int:
        return self.process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        running = {self.pid, *self.tree()} if self.process.poll() is None else self._pids - {self.pid}
        for pid in running:
            send(pid, signal.SIGKILL)
        self.process.wait()
        self._out.close()
        self._err.close()

    def tree(self) -> list[int]:
        """The process and its descendants, itself first."""
        pids = [self.pid, *descendants(self.pid)]
        self._pids |= set(pids)
        return pids

    def wait_for(self, condition: Condition) -> Self:
        """Wait until a condition holds, which must happen before the command exits."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            has_exited = self.process.poll() is not None  # before the condition: it may hold just before the exit
            if condition():
                return self
            assert not has_exited, f"the command exited with {self.process.returncode}: {self.stderr}"
            assert time.monotonic() < deadline, f"timeout: {self.stderr}"
            time.sleep(0.002)

    def wait_until_stopped(self) -> Self:
        """Wait until the command has reached its stop point."""
        wait_until_stopped(self.pid)
        return self

    def send(self, number: int) -> Self:
        """Send a signal to the process itself; ``send(pid, number)`` is for its descendants."""
        send(self.pid, number)
        return self

    def resume(self) -> Self:
        """Continue after a stop point."""
        return self.send(signal.SIGCONT)

    @property
    def stderr(self) -> str:
        """Standard error so far."""
        return os.pread(self._err.fileno(), 1 << 24, 0).decode(errors="replace")

    def wait(self) -> Result:
        """Wait for the exit; a traceback on stderr fails the test."""
        self.tree()
        try:
            status = self.process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the command did not exit: {self.stderr}") from None
        out = os.pread(self._out.fileno(), 1 << 24, 0).decode()
        return Result(status, out, self.stderr)

    def kill(self) -> None:
        """Kill only the process itself; its children must then exit on their own."""
        pids = self.tree()
        send(self.pid, signal.SIGKILL)
        self.process.wait()
        wait_for_exit(pids)


def send(pid: int, number: int) -> None:
    """Send a signal unless the process has already exited."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_for_exit(pids: list[int]) -> None:
    """Assert that all of these processes exit."""
    deadline = time.monotonic() + TIMEOUT
    while running := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, f"processes are still running: {running}"
        time.sleep(0.01)


# ---- the state of a training folder


def has_lines(path: Path, count: int) -> bool:
    """Whether a file has at least this many lines."""
    return path.is_file() and path.read_bytes().count(b"\n") >= count


def has_checkpoint(folder: Path, update: int) -> Condition:
    """Whether there is a checkpoint of this update or a later one."""
    return lambda: any(saved_update >= update for saved_update in updates(folder))


def updates(folder: Path) -> list[int]:
    """Updates of the checkpoints in a model folder."""
    return [int(path.name) for path in list_checkpoints(folder / "training" / "checkpoints")]


def weights(folder: Path) -> bytes:
    """The weights file of a finished model."""
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


def flip_bit(path: Path, position: float = 0.5) -> None:
    """Flip one bit at a position, as a fraction of the file size."""
    with path.open("r+b") as file:
        offset = min(int(position * path.stat().st_size), path.stat().st_size - 1)
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def truncate(path: Path, position: float = 0.5) -> None:
    """Cut off the rest of a file."""
    os.truncate(path, int(position * path.stat().st_size))
