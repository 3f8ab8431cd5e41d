"""Processes that train one model together, by torch.distributed: one leads, the others do as they are told.

The leader (rank 0) decides everything: when to validate, save and stop. It sends an order, and every process,
itself included, carries it out; in between, a thread of the leader says that it is still there. Who
hears nothing for ``training.silence`` seconds takes the others for lost, wherever they are.
"""

import os
import re
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from enum import IntEnum
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from heedful.errors import HeedfulError, UnfinishedError
from heedful.training.meeting import fresh_store

INTERFACE = "GLOO_SOCKET_IFNAME"
PRECISIONS = ("float32", "bfloat16", "auto")
_ASK_FOR_ADDRESS = 0x8915  # SIOCGIFADDR of Linux


class LostError(UnfinishedError):
    """A process of the group has gone, or cannot be reached."""

    @classmethod
    def because(cls, error: Exception) -> "LostError":
        """In our words."""
        line = (str(error).splitlines() or [type(error).__name__])[0]
        reason = re.sub(r"^\[[^]]*\] *", "", line).split(". ")[0]  # gloo begins with a place in its source
        return cls(
            f"a process that trains with this one is lost: {reason}",
            hint="torchrun starts all anew, as often as its --max-restarts says"
            if under_torchrun()
            else "go on with --resume; with less memory in use: --processes 1",
        )


class Kind(IntEnum):
    """What is to be done."""

    WAIT = 0
    LOAD = 1
    """Read the prepared corpus and build the model."""
    TAKE = 2
    """Take the leader's weights and moments."""
    GRADIENT = 3
    """Compute the gradient of an update, and leave it at that."""
    UPDATE = 4
    """Compute it, and take the step."""
    GATHER = 5
    """Let the leader have all weights and moments."""
    END = 6


class Order(NamedTuple):
    """What the leader sends; everybody carries it out."""

    kind: Kind
    update: int = 0
    precision: str = "float32"
    rate: float = 0.0
    batches: int = 0
    """Of the update, that count; 0 for all."""

    def numbers(self) -> Tensor:
        """As it travels."""
        known = (self.kind, self.update, PRECISIONS.index(self.precision), self.rate, self.batches)
        return torch.tensor(known, dtype=torch.float64)

    @classmethod
    def of(cls, numbers: Tensor) -> "Order":
        """What ``numbers`` wrote."""
        kind, update, precision, rate, batches = numbers.tolist()
        return cls(Kind(int(kind)), int(update), PRECISIONS[int(precision)], rate, int(batches))


class Group:
    """Of one process, unless told otherwise: then orders and sums have nowhere to go."""

    given = False
    """Whether torchrun has started it: then this process starts no others."""

    def __init__(self, rank: int = 0, size: int = 1, neighbours: int = 1, silence: float = 300.0) -> None:
        self.rank, self.size, self.silence = rank, size, silence
        self.neighbours = neighbours
        """Processes of the group on this machine, which share its cores."""
        self.busy = threading.Lock()
        """Held while an order is carried out: nobody speaks in between."""
        self.in_order = True
        """Whether everybody has carried out what was told so far, and so would hear more."""
        self._closed = threading.Event()
        if size > 1 and rank == 0:
            threading.Thread(target=self._say_that_we_are_here, daemon=True).start()

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Nobody else speaks; who leaves this by an error leaves the others in the middle of something."""
        with self.busy:
            self.in_order = False
            yield
            self.in_order = True

    def send(self, order: Order) -> None:
        """Tell the others; they begin at once."""
        self.broadcast(order.numbers())

    def receive(self) -> Order:
        """The leader's next order."""
        numbers = torch.zeros(len(Order._fields), dtype=torch.float64)
        self.broadcast(numbers)
        return Order.of(numbers)

    def broadcast(self, tensor: Tensor) -> None:
        """The leader's numbers, into everybody's tensor."""
        if self.size > 1:
            with told_when_lost():
                dist.broadcast(tensor, 0)

    def sum(self, tensor: Tensor) -> None:
        """Everybody's numbers added up, into everybody's tensor."""
        if self.size > 1:
            with told_when_lost():
                dist.all_reduce(tensor)

    def close(self) -> None:
        """Leave the others; whether they are still there does not matter."""
        self._closed.set()
        heard = self.busy.acquire(timeout=min(self.silence, 5.0))  # else it speaks to somebody who is gone
        try:
            if self.size > 1 and dist.is_initialized():
                with suppress(RuntimeError):
                    dist.destroy_process_group()
        finally:
            if heard:
                self.busy.release()

    def _say_that_we_are_here(self) -> None:
        while not self._closed.wait(min(self.silence / 4, 15.0)):
            if self.busy.acquire(blocking=False):
                try:
                    if not self._closed.is_set():
                        self.send(Order(Kind.WAIT))
                except (LostError, ValueError):  # the second: there is no group any more
                    return  # the next order will say so
                finally:
                    self.busy.release()


def is_loss(error: Exception) -> bool:
    """Whether torch.distributed means that a process is lost, and not something else."""
    text = str(error).lower()
    return isinstance(error, dist.DistError) or any(word in text for word in ("gloo", "nccl", "socket"))


@contextmanager
def told_when_lost() -> Iterator[None]:
    """What gloo and NCCL raise, in our words."""
    try:
        yield
    except RuntimeError as error:
        if not is_loss(error):
            raise
        raise LostError.because(error) from None


def under_torchrun() -> bool:
    """Whether torchrun has started this process as one of several, or might restart it."""
    return "TORCHELASTIC_RUN_ID" in os.environ and "RANK" in os.environ


def check_own_processes() -> None:
    """An error where it is torchrun that starts processes."""
    if under_torchrun():
        raise HeedfulError(
            "--processes is for a training without torchrun", hint="torchrun --nproc-per-node says how many"
        )


def rank_under_torchrun() -> int:
    """Of this process; 0 where there is no torchrun."""
    return int(os.environ["RANK"]) if under_torchrun() else 0


@contextmanager
def group_of_torchrun(device: torch.device, silence: float) -> Iterator[Group]:
    """The group that torchrun has started, or this process alone."""
    size = int(os.environ.get("WORLD_SIZE", "1")) if under_torchrun() else 1
    if size == 1:
        group = Group()
        group.given = under_torchrun()
        yield group
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with talking_over(_interface_to(os.environ["MASTER_ADDR"])):
        with told_when_lost():
            store, rank, size = fresh_store(silence)
        init_process_group(device, silence, store=store, rank=rank, world_size=size)
    group = Group(dist.get_rank(), size, int(os.environ["LOCAL_WORLD_SIZE"]), silence)
    group.given = True
    try:
        yield group
    finally:
        if group.rank == 0 and group.in_order:  # also after an error: else others would take it for lost
            with group.busy, suppress(LostError):
                group.send(Order(Kind.END))
        group.close()


def init_process_group(device: torch.device, silence: float, **place: Any) -> None:
    """Join; orders are on CPUs whatever computes."""
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    with told_when_lost():
        dist.init_process_group(backend, timeout=timedelta(seconds=silence), **place)


@contextmanager
def talking_over(interface: str) -> Iterator[None]:
    """Connections use this network interface, unless the user has named another; empty: gloo's choice."""
    if INTERFACE in os.environ or not interface:
        yield
        return
    os.environ[INTERFACE] = interface
    try:
        yield
    finally:
        os.environ.pop(INTERFACE, None)


def loopback() -> str:
    """The interface between processes of one machine."""
    if sys.platform.startswith("win"):
        return ""
    return "lo0" if sys.platform == "darwin" else "lo"


def _interface_to(host: str) -> str:
    """The interface by which a host is reached; empty where that cannot be told.

    Left alone, gloo takes the address of the machine's own name, which on many machines is a loopback one.
    """
    if not sys.platform.startswith("linux"):
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way, suppress(OSError):
        way.connect((host, 9))  # sends nothing: it only looks up the way
        own = way.getsockname()[0]
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                if _address(way, name) == own:
                    return name
    return ""


def _address(way: socket.socket, interface: str) -> str:
    import fcntl

    asked = struct.pack("256s", interface.encode()[:15])
    return socket.inet_ntoa(fcntl.ioctl(way.fileno(), _ASK_FOR_ADDRESS, asked)[20:24])
