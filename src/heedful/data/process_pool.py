"""Runs functions in worker processes: ``python -m heedful.data.process_pool`` reads calls as lines of JSON.

A worker that dies in the middle of a call is replaced and the call repeated, up to ``ATTEMPTS`` times.
Workers end when the process that started them ends.
"""

import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from heedful.devices import available_cores
from heedful.errors import DiskError, HeedfulError, ResumableError
from heedful.files import disk_error
from heedful.progress import ProgressTask

WORKER_MODULE = "heedful.data.process_pool"

POLL_SECONDS = 0.02
"""Seconds between checks for results."""

ATTEMPTS = 3
"""Maximum starts of one call: a worker may be killed, for instance because memory ran out."""

Advance = Callable[[int], None]
"""Reports progress."""

Task = Callable[[Path, int, Advance], None]
"""A module-level function of a folder and an index; it writes its result to the folder."""

WorkItem = dict[str, Any]
"""A call, as JSON."""


def run_tasks(task: Task, folder: Path, indices: Sequence[int], processes: int, progress: ProgressTask) -> None:
    """Call ``task(folder, index, advance)`` for every index, in ``processes`` processes (0: one per core)."""
    processes = processes or available_cores()
    if processes == 1 or len(indices) <= 1:
        for index in indices:
            _call(task, folder, index, progress.advance)
        return
    name = f"{task.__module__}:{task.__qualname__}"
    pool_run = _PoolRun(folder, [{"task": name, "index": index} for index in indices], progress)
    with _serve(pool_run, min(processes, len(indices))):
        pool_run.wait()


def _call(task: Task, folder: Path, index: int, advance: Advance) -> None:
    try:
        task(folder, index, advance)
    except OSError as error:
        raise disk_error(error.filename or folder, error) from None


class _PoolRun:
    """The calls that are waiting, and the workers."""

    def __init__(self, folder: Path, items: Sequence[WorkItem], progress: ProgressTask) -> None:
        self.folder, self.progress = folder, progress
        self.waiting = deque(items)
        self.left = len(items)
        self.fault: Exception | None = None
        self.processes: list[subprocess.Popen[bytes]] = []
        self.lock = threading.Lock()

    def wait(self) -> None:
        while self.left and self.fault is None:
            time.sleep(POLL_SECONDS)  # without a lock: Ctrl-C could leave it locked
        if self.fault is not None:
            raise self.fault

    def serve(self) -> None:
        """Give calls to one worker, and to those that replace it: run by a thread."""
        try:
            process = self._start_worker()
            while (next_item := self._next_item()) is not None:
                for _ in range(ATTEMPTS):
                    if self._run_item(process, next_item):
                        break
                    status = process.wait()
                    process = self._start_worker()
                else:
                    raise _worker_ended_error(status)
        except Exception as error:
            self.fault = self.fault or error

    def _next_item(self) -> WorkItem | None:
        with self.lock:
            return self.waiting.popleft() if self.waiting and self.fault is None else None

    def _run_item(self, process: "subprocess.Popen[bytes]", item: WorkItem) -> bool:
        """Let a worker make the call; returns whether it survived."""
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(item).encode() + b"\n")
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
                self.left -= 1
            return True
        return False

    def _start_worker(self) -> "subprocess.Popen[bytes]":
        with self.lock:
            if self.fault is not None:
                raise self.fault
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", WORKER_MODULE, str(self.folder.absolute())],
                stdin=subprocess.PIPE,  # closing it tells a worker that its parent is gone
                stdout=subprocess.PIPE,
                env=_environment(),
                start_new_session=True,  # Ctrl-C is for the parent
            )
            self.processes.append(process)
            return process

    def end(self, threads: Sequence[threading.Thread]) -> None:
        """Start nothing more, and end all workers."""
        self.fault = self.fault or HeedfulError("preprocessing was stopped")
        while any(thread.is_alive() for thread in threads):
            for process in list(self.processes):  # one may have just started
                process.kill()
            time.sleep(POLL_SECONDS)
        for process in self.processes:
            process.kill()
            process.communicate()


@contextmanager
def _serve(pool_run: _PoolRun, count: int) -> Iterator[None]:
    threads = [threading.Thread(target=pool_run.serve, daemon=True) for _ in range(count)]
    try:
        for thread in threads:
            thread.start()
        yield
    finally:
        pool_run.end(threads)


def _environment() -> dict[str, str]:
    paths = os.pathsep.join(path for path in sys.path if path)
    return os.environ | {"PYTHONPATH": paths, "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def _worker_ended_error(status: int) -> ResumableError:
    return ResumableError(
        f"a preprocessing worker ended {ATTEMPTS} times, the last time with status {status}",
        hint="memory may be too small; use fewer processes: --set preprocessing.processes=1",
    )


def main() -> None:
    """Make calls, one per line of standard input."""
    # The parent decides when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    items: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_listen, args=[items], daemon=True).start()
    folder = Path(sys.argv[1])
    while True:
        item = json.loads(items.get())
        try:
            module, _, name = item["task"].partition(":")
            task = getattr(importlib.import_module(module), name)
            _call(task, folder, item["index"], lambda count: _answer({"advance": count}))
            _answer({"done": True})
        except HeedfulError as error:
            disk = isinstance(error, DiskError)
            _answer({"problem": error.problem, "hint": error.hint, "disk": disk})


def _listen(items: "queue.Queue[bytes]") -> None:
    """Standard input is a pipe from the parent: when the parent ends, this process ends."""
    for line in sys.stdin.buffer:
        items.put(line)
    os._exit(1)


def _answer(value: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(value).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
