"""Several processes that compute each gradient together, by torch.distributed.

One leads: it has the optimizer, validates and saves. The others help: for every update they are given the
weights, compute the gradient of their share of its batches, and send it back. Helpers keep nothing, so that
a run goes on from its checkpoints as if they had never been. On one machine, processes with one thread each
often do more than one process with many threads, which wait for each other in every product.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from heedful.errors import HeedfulError

LOOPBACK = "127.0.0.1"
JOINING = 120.0
"""Seconds in which a helper must have started: it imports torch and reads where the corpus is."""
WAITING = timedelta(days=7)
"""For work: the leader may validate for long. A leader that ends is noticed at once."""
HELPER = "heedful.training.helper"
INTERFACE = "GLOO_SOCKET_IFNAME"


class Gradient(Protocol):
    """Adds the gradient of an update to the parameters: the share of one rank out of ``size``.

    Returns the negative log-likelihood and the target tokens of that share. ``batches`` is how many of the
    update's batches to take, 0 for all.
    """

    def __call__(
        self, update: int, precision: str, rank: int = 0, size: int = 1, batches: int = 0
    ) -> tuple[float, int]: ...


class Team:
    """This process alone, or the leader of several."""

    def __init__(self, model: nn.Module, gradient: Gradient, size: int = 1) -> None:
        self.model, self.gradient, self.size = model, gradient, size

    def work(self, update: int, precision: str, batches: int = 0) -> tuple[float, int]:
        """The whole gradient of an update, summed over its tokens; returns likelihood and tokens."""
        self.model.zero_grad(set_to_none=True)
        if self.size == 1:
            return self.gradient(update, precision, batches=batches)
        with _told_when_helpers_are_gone():
            dist.broadcast(torch.tensor([update, int(precision == "bfloat16"), batches]), 0)
            dist.broadcast(nn.utils.parameters_to_vector(self.model.parameters()).detach(), 0)
        own = self.gradient(update, precision, 0, self.size, batches)
        with _told_when_helpers_are_gone():
            return _summed(self.model, own)


@contextmanager
def _told_when_helpers_are_gone() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise HeedfulError(
            f"a process that helped training has ended: {_first_line(error)}",
            hint="go on with --resume; with less memory in use: --set training.processes=1",
        ) from None


def help_out(model: nn.Module, gradient: Gradient, rank: int, size: int) -> None:
    """What a helper does until it is ended."""
    order = torch.zeros(3, dtype=torch.int64)
    weights = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    while True:
        dist.broadcast(order, 0)
        dist.broadcast(weights, 0)
        nn.utils.vector_to_parameters(weights, model.parameters())
        model.zero_grad(set_to_none=True)
        update, half, batches = order.tolist()
        _summed(model, gradient(update, "bfloat16" if half else "float32", rank, size, batches))


def _summed(model: nn.Module, own: tuple[float, int]) -> tuple[float, int]:
    """Every process's gradient added up, in the leader's parameters; likewise likelihood and tokens."""
    parameters = list(model.parameters())
    flat = torch.cat([_gradient(parameter).reshape(-1) for parameter in parameters])
    dist.reduce(flat, 0)
    sums = torch.tensor(own, dtype=torch.float64)
    dist.reduce(sums, 0)
    start = 0
    for parameter in parameters:
        parameter.grad = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    return float(sums[0]), int(sums[1])


def _gradient(parameter: nn.Parameter) -> Tensor:
    """Zero where this process's share had nothing to say."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


@contextmanager
def team(model: nn.Module, gradient: Gradient, folder: Path, size: int, threads: int) -> Iterator[Team]:
    """A team of ``size`` processes with ``threads`` each, for the prepared run in ``folder``.

    Helpers keep nothing, so they are not asked to end but ended: whatever went wrong, nobody waits for
    anybody.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    helpers: list[subprocess.Popen[bytes]] = []
    try:
        if size > 1:
            _start(helpers, folder, size, threads)
        yield Team(model, gradient, size)
    finally:
        torch.set_num_threads(before)
        for helper in helpers:
            helper.kill()
            helper.communicate()
        if helpers and dist.is_initialized():
            dist.destroy_process_group()


def _start(helpers: list[subprocess.Popen[bytes]], folder: Path, size: int, threads: int) -> None:
    """Start the helpers, and wait until each is ready to join."""
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
    for rank in range(1, size):
        words = map(str, (folder.absolute(), rank, size, threads, port))
        helpers.append(
            subprocess.Popen(
                [sys.executable, "-P", "-m", HELPER, *words],  # -P: no module of the current folder
                stdin=subprocess.PIPE,  # its end tells a helper that the leader is gone
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                start_new_session=True,  # Ctrl-C is for the leader
            )
        )
    _wait_until_ready(store, helpers)
    with _loopback_only():
        dist.init_process_group("gloo", store=store, rank=0, world_size=size, timeout=WAITING)


def _wait_until_ready(store: TCPStore, helpers: list[subprocess.Popen[bytes]]) -> None:
    until = time.monotonic() + JOINING
    while not all(store.check([_ready(rank)]) for rank in range(1, len(helpers) + 1)):
        ended = [helper for helper in helpers if helper.poll() is not None]
        if ended or time.monotonic() > until:
            raise HeedfulError(
                "a process that should help training "
                + (f"has ended with status {ended[0].returncode}" if ended else "does not start"),
                hint="train in one process: --set training.processes=1",
            )
        time.sleep(0.02)


def join(rank: int, size: int, port: int) -> None:
    """A helper's way into the team."""
    store = TCPStore(LOOPBACK, port, is_master=False, timeout=timedelta(seconds=JOINING))
    store.set(_ready(rank), "yes")
    with _loopback_only():
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=WAITING)


def _ready(rank: int) -> str:
    return f"helper {rank} is ready"


@contextmanager
def _loopback_only() -> Iterator[None]:
    """Processes of one machine talk over the loopback interface, unless the user has named another."""
    before = os.environ.get(INTERFACE)
    if before is None and not sys.platform.startswith("win"):
        os.environ[INTERFACE] = "lo0" if sys.platform == "darwin" else "lo"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(INTERFACE, None)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
