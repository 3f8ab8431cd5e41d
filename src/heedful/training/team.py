"""The leader's side of a group: it sends orders, carries them out with the others, and sees who is lost.

A group is started by torchrun, on one machine or many, or here: processes of this machine, which the leader
starts, ends and replaces. On one machine, processes with one thread each often do more than one process with
many threads, which wait for each other in every product.
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

from heedful.errors import HeedfulError
from heedful.progress import Reporter
from heedful.training.group import (
    Group,
    Kind,
    LostError,
    Order,
    init_process_group,
    loopback,
    talking_over,
)
from heedful.training.worker import Learner, Outcome, Worker, new_worker

LOOPBACK = "127.0.0.1"
JOINING = 120.0
"""Seconds in which a helper must have started: it imports torch."""
HELPER = "heedful.training.helper"
REPLACED = 3
"""Helpers that are lost in a row before it is given up: something ends them."""


class Team:
    """This process alone, or the leader of several."""

    def __init__(self, learner: Learner, group: Group, helpers: "Helpers | None" = None) -> None:
        self.learner, self.group, self.helpers = learner, group, helpers
        self.worker = self._begin()
        self._gathered = -1

    @property
    def keeps_all(self) -> bool:
        """Whether this process alone could save the run."""
        return self.worker.keeps_all

    def update(self, update: int, precision: str, rate: float) -> Outcome:
        """The whole gradient of an update, and the step; nothing is lost if a helper is."""
        return self._together(Order(Kind.UPDATE, update, precision, rate))

    def gradient(self, update: int, precision: str, batches: int = 0) -> Outcome:
        """The gradient alone, of the first batches of an update (0: all)."""
        return self._together(Order(Kind.GRADIENT, update, precision, batches=batches))

    def gather(self, update: int) -> None:
        """All weights and moments as they are after this update, into this process's model and optimizer."""
        if not self.keeps_all and self._gathered != update:
            self._together(Order(Kind.GATHER))
            self._gathered = update

    def _begin(self) -> Worker:
        """Everybody builds the model, and has the leader's weights."""
        with self.group.speaking():
            self.group.send(Order(Kind.LOAD))
            worker = new_worker(self.learner, self.group)
            self.group.send(Order(Kind.TAKE))
            worker.take()
        return worker

    def _together(self, order: Order) -> Outcome:
        for lost in range(REPLACED + 1):
            try:
                if lost:
                    self._replace(order)
                with self.group.speaking():
                    self.group.send(order)
                    return self.worker.obey(order)
            except LostError:
                if self.helpers is None or self.helpers.noted or not self.keeps_all or lost == REPLACED:
                    raise
        raise AssertionError("the last loss is raised")

    def _replace(self, order: Order) -> None:
        """New helpers, which get what this process has: the update that failed is tried again."""
        assert self.helpers is not None
        self.helpers.report.warn(f"update {order.update:,}: a helping process is lost; starting others")
        self.helpers.end()
        self.group = self.helpers.start()
        self.worker = self._begin()


class Helpers:
    """Processes of this machine that the leader has started: not asked to end but ended.

    They keep nothing that the leader has not, so whatever went wrong, nobody waits for anybody.
    """

    def __init__(
        self, folder: Path, size: int, threads: int, silence: float, report: Reporter, noted: Sequence[int]
    ) -> None:
        self.folder, self.size, self.threads = folder, size, threads
        self.silence, self.report = silence, report
        self.noted = noted
        """Signals that have come: nobody else is waited for then."""
        self._running: list[subprocess.Popen[bytes]] = []
        self._group: Group | None = None

    def start(self) -> Group:
        """Start them all, wait until each is ready, and form the group."""
        if dist.is_initialized():
            raise HeedfulError(
                "this process belongs to a group of torch.distributed already",
                hint="train in one process: training.processes=1",
            )
        with socket.create_server((LOOPBACK, 0)) as listening:
            port = listening.getsockname()[1]
            store = TCPStore(
                LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
            )
        for rank in range(1, self.size):
            words = map(str, (self.folder.absolute(), rank, self.size, self.threads, port, self.silence))
            self._running.append(
                subprocess.Popen(
                    [sys.executable, "-P", "-m", HELPER, *words],  # -P: no module of the current folder
                    stdin=subprocess.PIPE,  # its end tells a helper that the leader is gone
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                    start_new_session=True,  # Ctrl-C is for the leader
                )
            )
        self._wait_until_ready(store)
        self._group = join(store, 0, self.size, self.silence)
        return self._group

    def end(self) -> None:
        """End them, and the group."""
        # All stand still before the first is gone: else the others would tell that they miss it.
        for helper in self._running:
            helper.send_signal(getattr(signal, "SIGSTOP", signal.SIGTERM))
        for helper in self._running:
            helper.kill()
        for helper in self._running:
            helper.communicate()
        self._running.clear()
        if self._group is not None:
            self._group.close()
            self._group = None

    def _wait_until_ready(self, store: TCPStore) -> None:
        until = time.monotonic() + JOINING
        while not all(store.check([_ready(rank)]) for rank in range(1, self.size)):
            if self.noted:
                raise LostError("told to stop before all had started")
            ended = [helper for helper in self._running if helper.poll() is not None]
            if ended or time.monotonic() > until:
                raise LostError(
                    "a process that should help training "
                    + (f"has ended with status {ended[0].returncode}" if ended else "does not start"),
                    hint="train in one process: --processes 1",
                )
            time.sleep(0.02)


def join(store: TCPStore, rank: int, size: int, silence: float) -> Group:
    """The group of one machine's processes."""
    with talking_over(loopback()):
        init_process_group(torch.device("cpu"), silence, store=store, rank=rank, world_size=size)
    return Group(rank, size, size, silence)


def join_leader(rank: int, size: int, port: int, silence: float) -> Group:
    """A helper's way into the group."""
    store = TCPStore(LOOPBACK, port, is_master=False, timeout=timedelta(seconds=JOINING))
    store.set(_ready(rank), "yes")
    return join(store, rank, size, silence)


def _ready(rank: int) -> str:
    return f"helper {rank} is ready"


@contextmanager
def team(
    learner: Learner, group: Group, size: int, threads: int, report: Reporter, noted: Sequence[int] = ()
) -> Iterator[Team]:
    """The group's team or, if this process is alone, that of ``size`` processes; ``threads`` for each.

    ``noted`` are the signals that have come so far: a list that grows.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        if group.size > 1 or size == 1:
            yield Team(learner, group)
            return
        with _helped(
            Helpers(learner.folder, size, threads, learner.plan.settings.silence, report, noted)
        ) as helpers:
            yield Team(learner, helpers.start(), helpers)
    finally:
        torch.set_num_threads(before)


@contextmanager
def _helped(helpers: Helpers) -> Iterator[Helpers]:
    try:
        yield helpers
    finally:
        helpers.end()
