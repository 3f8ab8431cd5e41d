"""Several processes that compute each gradient together, by torch.distributed.

One leads: it has the optimizer, validates and saves. The others help: for every update they are given the
weights, compute the gradient of their share of its batches, and send it back. Helpers keep nothing, so that
a run goes on from its checkpoints as if they had never been. On one machine, processes with one thread each
often do more than one process with many threads, which wait for each other in every product.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from heedful.errors import HeedfulError

LOOPBACK = "127.0.0.1"
JOINING = timedelta(seconds=120)
WAITING = timedelta(days=7)
"""For work: the leader may validate for long. A leader that ends is noticed at once."""
HELPER = "heedful.training.helper"
END, GRADIENT = 0, 1

Gradient = Callable[[int, str, int, int], tuple[float, int]]
"""Adds the gradient of update n, in this precision, to the parameters: the share of a rank out of all ranks.

Returns the negative log-likelihood and the target tokens of that share."""


class Team:
    """This process alone, or the leader of several."""

    def __init__(self, model: nn.Module, gradient: Gradient, size: int = 1) -> None:
        self.model, self.gradient, self.size = model, gradient, size

    def work(self, update: int, precision: str) -> tuple[float, int]:
        """The whole gradient of an update, summed over its tokens; returns likelihood and tokens."""
        self.model.zero_grad(set_to_none=True)
        if self.size == 1:
            return self.gradient(update, precision, 0, 1)
        try:
            dist.broadcast(torch.tensor([GRADIENT, update, int(precision == "bfloat16")]), 0)
            dist.broadcast(nn.utils.parameters_to_vector(self.model.parameters()).detach(), 0)
            return _summed(self.model, self.gradient(update, precision, 0, self.size))
        except RuntimeError as error:
            raise HeedfulError(
                f"a process that helped training has ended: {str(error).splitlines()[0]}",
                hint="go on with --resume; with less memory in use: --set training.processes=1",
            ) from None


def help_out(model: nn.Module, gradient: Gradient, rank: int, size: int) -> None:
    """What a helper does until the leader says that it is over."""
    order = torch.zeros(3, dtype=torch.int64)
    weights = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    while True:
        dist.broadcast(order, 0)
        if order[0] == END:
            return
        dist.broadcast(weights, 0)
        nn.utils.vector_to_parameters(weights, model.parameters())
        model.zero_grad(set_to_none=True)
        precision = "bfloat16" if order[2] else "float32"
        _summed(model, gradient(int(order[1]), precision, rank, size))


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
    """A team of ``size`` processes with ``threads`` each, for the prepared run in ``folder``."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    helpers: list[subprocess.Popen[bytes]] = []
    try:
        if size > 1:
            helpers = _started(folder, size, threads)
        yield Team(model, gradient, size)
    finally:
        torch.set_num_threads(before)
        if helpers:
            _dismissed(helpers)


def _started(folder: Path, size: int, threads: int) -> list[subprocess.Popen[bytes]]:
    store = dist.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False, timeout=JOINING)  # type: ignore[attr-defined]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback_interface())
    helpers = [
        subprocess.Popen(
            [sys.executable, "-m", HELPER, *map(str, (folder, rank, size, threads, store.port))],
            stdin=subprocess.DEVNULL,
        )
        for rank in range(1, size)
    ]
    try:
        dist.init_process_group("gloo", store=store, rank=0, world_size=size, timeout=WAITING)
    except BaseException as error:
        _ended(helpers)
        if isinstance(error, RuntimeError):
            raise HeedfulError(
                f"{size} processes could not be started together: {str(error).splitlines()[0]}",
                hint="train in one: --set training.processes=1",
            ) from None
        raise
    return helpers


def join(rank: int, size: int, port: int) -> None:
    """A helper's way into the team."""
    store = dist.TCPStore(LOOPBACK, port, is_master=False, timeout=JOINING)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=WAITING)


def _dismissed(helpers: list[subprocess.Popen[bytes]]) -> None:
    """Told that it is over or, if they do not listen, ended."""
    with suppress(RuntimeError):
        dist.broadcast(torch.tensor([END, 0, 0]), 0)
    _ended(helpers, patience=5)
    dist.destroy_process_group()


def _ended(helpers: list[subprocess.Popen[bytes]], patience: float = 0) -> None:
    for helper in helpers:
        with suppress(subprocess.TimeoutExpired):
            helper.wait(patience)
        if helper.poll() is None:
            helper.kill()
            helper.wait()


def _loopback_interface() -> str:
    return "lo0" if sys.platform == "darwin" else "lo"
