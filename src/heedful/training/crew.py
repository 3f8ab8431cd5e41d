"""Processes that prepare a corpus side by side: each is given one task after another, as lines of JSON.

Nobody waits for the dead. A worker that ends in the middle of a task is replaced and the task done again,
and if that happens too often it is an error; workers end when their leader does, whatever ended it.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from heedful.errors import DiskError, HeedfulError, UnfinishedError
from heedful.progress import Task
from heedful.training.devices import available_cores

PREPARER = "heedful.training.preparer"
LOOKING = 0.02
"""Seconds between looks at how far the others are."""
ATTEMPTS = 3
"""Times that a task is begun, at most: a worker may be ended by others, or by the system for its memory."""

Order = dict[str, Any]
"""What to do, as JSON."""


class Crew:
    """So many processes, 0 for one for each core, started when there is something to do for two of them."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count or available_cores()

    def run(self, orders: Sequence[Order], progress: Task) -> list[Any]:
        """The results of all orders, in their order."""
        if self.count == 1 or len(orders) <= 1:
            from heedful.training.preparer import carry_out

            return [carry_out(self.folder, order, progress.advance) for order in orders]
        shift = _Shift(self.folder, orders, progress)
        with _served(shift, min(self.count, len(orders))):
            return shift.results()


class _Shift:
    """The orders of a run that are still to be given out, and the results so far."""

    def __init__(self, folder: Path, orders: Sequence[Order], progress: Task) -> None:
        self.folder, self.progress = folder, progress
        self.waiting = deque(enumerate(orders))
        self.left = len(orders)
        self.done: dict[int, Any] = {}
        self.fault: Exception | None = None
        self.processes: list[subprocess.Popen[bytes]] = []
        self.lock = threading.Lock()

    def results(self) -> list[Any]:
        while self.left and self.fault is None:
            time.sleep(LOOKING)  # and no lock: Ctrl-C could leave it closed behind itself
        if self.fault is not None:
            raise self.fault
        return [self.done[number] for number in sorted(self.done)]

    def serve(self) -> None:
        """What a thread does for one worker, and those who replace it."""
        try:
            process = self._started()
            while (taken := self._taken()) is not None:
                for _ in range(ATTEMPTS):
                    if self._given(process, *taken):
                        break
                    status = process.wait()
                    process = self._started()
                else:
                    raise _ended(status)
        except Exception as error:
            self.fault = self.fault or error

    def _taken(self) -> tuple[int, Order] | None:
        with self.lock:
            return self.waiting.popleft() if self.waiting and self.fault is None else None

    def _given(self, process: "subprocess.Popen[bytes]", number: int, order: Order) -> bool:
        """Let a worker do it; whether it lived to the end."""
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
        for line in process.stdout:
            if not line.endswith(b"\n"):
                return False
            answer = json.loads(line)
            if "problem" in answer:
                kind = DiskError if answer["disk"] else HeedfulError
                raise kind(answer["problem"], hint=answer["hint"])
            with self.lock:
                if "advance" in answer:
                    self.progress.advance(answer["advance"])
                    continue
                self.done[number] = answer["result"]
                self.left -= 1
            return True
        return False

    def _started(self) -> "subprocess.Popen[bytes]":
        with self.lock:
            if self.fault is not None:
                raise self.fault
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", PREPARER, str(self.folder.absolute())],
                stdin=subprocess.PIPE,  # its end tells a worker that the leader is gone
                stdout=subprocess.PIPE,
                env=_environment(),
                start_new_session=True,  # Ctrl-C is for the leader
            )
            self.processes.append(process)
            return process

    def end(self, threads: Sequence[threading.Thread]) -> None:
        """Let nobody begin anything more, and end all who are at it."""
        self.fault = self.fault or HeedfulError("the preparation was stopped")
        while any(thread.is_alive() for thread in threads):
            for process in list(self.processes):  # one may just have been started
                process.kill()
            time.sleep(LOOKING)
        for process in self.processes:
            process.kill()
            process.communicate()


@contextmanager
def _served(shift: _Shift, count: int) -> Iterator[None]:
    threads = [threading.Thread(target=shift.serve, daemon=True) for _ in range(count)]
    try:
        for thread in threads:
            thread.start()
        yield
    finally:
        shift.end(threads)


def _environment() -> dict[str, str]:
    paths = os.pathsep.join(path for path in sys.path if path)
    return os.environ | {"PYTHONPATH": paths, "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def _ended(status: int) -> UnfinishedError:
    return UnfinishedError(
        f"a process that prepares the corpus has ended {ATTEMPTS} times, the last time with status {status}",
        hint="is there enough memory? with fewer processes: --set preparation.processes=1",
    )
