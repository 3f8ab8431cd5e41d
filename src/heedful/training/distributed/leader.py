"""The leader (rank 0) of a process group: sends commands, executes them with the others, detects lost ones.

A group is started by torchrun, on one machine or many, or here: local worker processes, which the leader
starts, ends and replaces. On one machine, several processes with one thread each are often faster than one
with many threads, which synchronize in every matrix product.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from heedful.devices import use_threads
from heedful.errors import HeedfulError
from heedful.progress import Reporter
from heedful.training.distributed.group import (
    Command,
    CommandKind,
    LostProcessError,
    ProcessGroup,
    init_process_group,
    loopback_interface,
    use_interface,
)
from heedful.training.distributed.worker import Worker, new_worker
from heedful.training.step import TrainState, UpdateResult

LOOPBACK_ADDRESS = "127.0.0.1"

JOIN_TIMEOUT_SECONDS = 120.0
"""Time for a worker to start: it imports torch."""

WORKER_MODULE = "heedful.training.distributed.worker_process"

MAX_RESTARTS = 3
"""Consecutive attempts with new workers before giving up."""


class WorkerGroup:
    """The leader of several processes; the methods are those of TrainState."""

    def __init__(
        self, train_state: TrainState, group: ProcessGroup, local_workers: "LocalWorkers | None" = None
    ) -> None:
        self.train_state, self.group, self.local_workers = train_state, group, local_workers
        self.worker = self._start_worker()
        self._gathered_update = -1

    @property
    def has_full_state(self) -> bool:
        """Whether this process alone could save the run."""
        return self.worker.has_full_state

    def update(self, update: int, precision: str, learning_rate: float) -> UpdateResult:
        """Gradient and optimizer step of an update; lost workers are replaced and the update is repeated."""
        return self._execute(Command(CommandKind.UPDATE, update, precision, learning_rate))

    def gradient(self, update: int, precision: str, batches: int = 0) -> UpdateResult:
        """Only the gradient, of the first ``batches`` of an update (0: all)."""
        return self._execute(Command(CommandKind.GRADIENT, update, precision, batches=batches))

    def gather(self, update: int) -> None:
        """Gather all weights and moments of this update into this process."""
        if not self.has_full_state and self._gathered_update != update:
            self._execute(Command(CommandKind.GATHER))
            self._gathered_update = update

    def _start_worker(self) -> Worker:
        """Every process builds the model and receives the leader's weights."""
        with self.group.exclusive():
            self.group.send(Command(CommandKind.LOAD))
            worker = new_worker(self.train_state, self.group)
            self.group.send(Command(CommandKind.SYNC))
            worker.sync_state()
        return worker

    def _execute(self, command: Command) -> UpdateResult:
        for attempt in range(MAX_RESTARTS + 1):
            try:
                if attempt:
                    self._restart_workers(command)
                with self.group.exclusive():
                    self.group.send(command)
                    return self.worker.execute(command)
            except LostProcessError:
                if (
                    self.local_workers is None
                    or self.local_workers.signals
                    or not self.has_full_state
                    or attempt == MAX_RESTARTS
                ):
                    raise
        raise AssertionError("the last attempt raises")

    def _restart_workers(self, command: Command) -> None:
        """Start new workers with this process's state; the failed update is repeated."""
        assert self.local_workers is not None
        self.local_workers.report.warning(f"update {command.update:,}: a worker process is lost; starting new ones")
        self.local_workers.end()
        self.group = self.local_workers.start()
        self.worker = self._start_worker()


class LocalWorkers:
    """Worker processes on this machine; they hold no state of their own, so they are simply killed."""

    def __init__(
        self, folder: Path, size: int, threads: int, timeout_seconds: float, report: Reporter, signals: Sequence[int]
    ) -> None:
        self.folder, self.size, self.threads = folder, size, threads
        self.timeout_seconds, self.report = timeout_seconds, report
        self.signals = signals
        """Signals received so far: then nothing is waited for."""
        self._processes: list[subprocess.Popen[bytes]] = []
        self._group: ProcessGroup | None = None

    def start(self) -> ProcessGroup:
        """Start the workers, wait until they are ready, and form the group."""
        if dist.is_initialized():
            raise HeedfulError(
                "this process already belongs to a torch.distributed group", hint="set training.processes=1"
            )
        with socket.create_server((LOOPBACK_ADDRESS, 0)) as server:
            port = server.getsockname()[1]
            store = TCPStore(
                LOOPBACK_ADDRESS, port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach()
            )
        for rank in range(1, self.size):
            arguments = map(str, (self.folder.absolute(), rank, self.size, self.threads, port, self.timeout_seconds))
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-P", "-m", WORKER_MODULE, *arguments],  # -P: no module of the current folder
                    stdin=subprocess.PIPE,  # closes when the leader exits
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                    start_new_session=True,  # Ctrl-C is for the leader
                )
            )
        self._wait_until_ready(store)
        self._group = join_group(store, 0, self.size, self.timeout_seconds)
        return self._group

    def end(self) -> None:
        """Kill the workers and leave the group."""
        # Stop all before killing the first: otherwise the others would report its loss.
        for process in self._processes:
            process.send_signal(getattr(signal, "SIGSTOP", signal.SIGTERM))
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.communicate()
        self._processes.clear()
        if self._group is not None:
            self._group.close()
            self._group = None

    def _wait_until_ready(self, store: TCPStore) -> None:
        deadline = time.monotonic() + JOIN_TIMEOUT_SECONDS
        while not all(store.check([_ready_key(rank)]) for rank in range(1, self.size)):
            if self.signals:
                raise LostProcessError("stopped before all workers had started")
            exited = [process for process in self._processes if process.poll() is not None]
            if exited or time.monotonic() > deadline:
                raise LostProcessError(
                    "a worker process " + (f"exited with status {exited[0].returncode}" if exited else "did not start"),
                    hint="train in one process: --processes 1",
                )
            time.sleep(0.02)


def join_group(store: TCPStore, rank: int, size: int, timeout_seconds: float) -> ProcessGroup:
    """Join the group of local processes."""
    with use_interface(loopback_interface()):
        init_process_group(torch.device("cpu"), timeout_seconds, store=store, rank=rank, world_size=size)
    return ProcessGroup(rank, size, size, timeout_seconds)


def join_leader(rank: int, size: int, port: int, timeout_seconds: float) -> ProcessGroup:
    """Join the leader's group as a worker."""
    store = TCPStore(LOOPBACK_ADDRESS, port, is_master=False, timeout=timedelta(seconds=JOIN_TIMEOUT_SECONDS))
    store.set(_ready_key(rank), "yes")
    return join_group(store, rank, size, timeout_seconds)


def _ready_key(rank: int) -> str:
    return f"worker {rank} is ready"


@contextmanager
def open_workers(
    train_state: TrainState,
    group: ProcessGroup | None,
    size: int,
    threads: int,
    report: Reporter,
    signals: Sequence[int] = (),
) -> Iterator[WorkerGroup]:
    """The group of torchrun or, if this process is alone, ``size`` local processes with ``threads`` each.

    ``signals`` is a list that grows as signals arrive.
    """
    with use_threads(threads):
        if size == 1 or (group and group.size > 1):
            yield WorkerGroup(train_state, group or ProcessGroup())
            return
        timeout_seconds = train_state.batch_schedule.settings.timeout_seconds
        local_workers = LocalWorkers(train_state.folder, size, threads, timeout_seconds, report, signals)
        try:
            yield WorkerGroup(train_state, local_workers.start(), local_workers)
        finally:
            local_workers.end()
