"""Runs tasks in a pool of processes; each task writes its result to a folder that appears by a rename.

Tasks are idempotent: those that were not complete when a worker was killed are run once more, by fewer workers.
Workers are spawned without the caller's main module, so a script needs no ``if __name__ == "__main__"``, and they
end when the parent closes a pipe or ends, however it ends.
"""

import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from heedful.devices import available_cores
from heedful.errors import ResumableError
from heedful.files import disk_error, sync_folder
from heedful.progress import ProgressTask

SECONDS_PER_POLL = 0.1
"""Seconds between updates of the progress."""

WORKER_ENVIRONMENT = {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
"""One thread per worker; modules are not imported from the current folder."""

Advance = Callable[[int], None]
"""Reports progress."""

Task = Callable[[Path, int, Advance], None]
"""A module-level function of a folder and an index; it writes its result to the folder."""

_worker_progress: Any = None
"""In a worker: the counter that it shares with its parent."""


def run_tasks(task: Task, folder: Path, indices: Sequence[int], processes: int, progress: ProgressTask) -> None:
    """Call ``task(folder, index, advance)`` for every index, in ``processes`` processes (0: one per core)."""
    workers = min(processes or available_cores(), len(indices))
    if workers <= 1:
        for index in indices:
            _call(task, folder, index, progress.advance)
        return
    missing = _run_in_pool(task, folder, indices, workers, progress)
    if missing and _run_in_pool(task, folder, missing, max(1, workers // 2), progress):
        raise ResumableError(
            "preprocessing workers were killed, and again with fewer processes",
            hint="memory may be too small; use one process: --set preprocessing.processes=1",
        )


@contextmanager
def replace_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces ``path`` when complete; those of killed workers are deleted."""
    for leftover in path.parent.glob(f"{path.name}.*.partial"):
        shutil.rmtree(leftover)
    partial = Path(tempfile.mkdtemp(prefix=f"{path.name}.", suffix=".partial", dir=path.parent))
    yield partial
    sync_folder(partial)
    shutil.rmtree(path, ignore_errors=True)  # corrupt, or of another task
    partial.rename(path)


def _run_in_pool(
    task: Task, folder: Path, indices: Sequence[int], workers: int, progress: ProgressTask
) -> Sequence[int]:
    """Run tasks until all are complete or a worker is killed; returns the indices that are not complete."""
    context = get_context("spawn")  # a fork of a process with threads may hang
    counter, (reader, writer) = context.Value("q"), context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, context, _start_worker, (counter, reader))
    futures: dict[int, Future[None]] = {}
    try:
        with _worker_startup():
            for index in indices:
                futures[index] = pool.submit(_call_in_worker, task, folder.absolute(), index)
        pending, previous_count = set(futures.values()), 0
        while pending:
            complete, pending = wait(pending, SECONDS_PER_POLL, FIRST_COMPLETED)
            count = counter.get_obj().value  # without the lock: a killed worker may hold it
            progress.advance(count - previous_count)
            previous_count = count
            for future in complete:
                _check_result(future)
    except BrokenProcessPool:
        return [index for index in indices if not _is_complete(futures.get(index))]
    finally:
        writer.close()  # ends the workers at once
        pool.shutdown(cancel_futures=True)
        reader.close()
    return []


def _check_result(future: "Future[None]") -> None:
    future.result()


def _is_complete(future: "Future[None] | None") -> bool:
    return future is not None and future.done() and future.exception() is None


@contextmanager
def _worker_startup() -> Iterator[None]:
    """Start processes with the environment of workers, without the main module and without Ctrl-C."""
    main_module, environment = sys.modules["__main__"], os.environ.copy()
    has_mask = hasattr(signal, "pthread_sigmask")  # else only ``_start_worker`` ignores Ctrl-C
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]) if has_mask else set()
    try:
        os.environ.update(WORKER_ENVIRONMENT)
        sys.modules["__main__"] = ModuleType("__main__")
        yield
    finally:
        sys.modules["__main__"] = main_module
        for name in WORKER_ENVIRONMENT:
            del os.environ[name]
            if name in environment:
                os.environ[name] = environment[name]
        if has_mask:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _start_worker(counter: Any, reader: "Connection[Any, Any]") -> None:
    global _worker_progress
    _worker_progress = counter
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    threading.Thread(target=_exit_with_parent, args=[reader], daemon=True).start()


def _exit_with_parent(reader: "Connection[Any, Any]") -> None:
    with suppress(EOFError, OSError):
        reader.recv_bytes()  # nothing is sent: the pipe is closed, by the parent or by its end
    os._exit(1)


def _call_in_worker(task: Task, folder: Path, index: int) -> None:
    def advance(count: int) -> None:
        with _worker_progress.get_lock():
            _worker_progress.value += count

    _call(task, folder, index, advance)


def _call(task: Task, folder: Path, index: int, advance: Advance) -> None:
    try:
        task(folder, index, advance)
    except OSError as error:
        raise disk_error(error.filename or folder, error) from None
