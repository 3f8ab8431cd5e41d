"""The process group of distributed training: rendezvous, commands, heartbeats.

torchrun keeps one store across restarts, with addresses of processes that are gone, so a group first agrees
on a new name and then meets under it.
"""

import os
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from enum import IntEnum
from typing import Any, NamedTuple
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]

from heedful.devices import is_under_torchrun
from heedful.errors import HeedfulError, ResumableError

POLL_SECONDS = 0.02
"""Between two polls."""


def create_store(timeout_seconds: float) -> tuple[Store, int, int]:
    """A store for this group only, the rank of this process, and the group size."""
    store, rank, size = next(iter(rendezvous("env://", timeout=timedelta(seconds=timeout_seconds))))
    deadline = time.monotonic() + timeout_seconds
    name = _announce_name(store, size, deadline) if rank == 0 else _request_name(store, rank, deadline)
    return PrefixStore(name, store), rank, size


def _announce_name(store: Store, size: int, deadline: float) -> str:
    """The leader names the group and answers requests until every rank knows the name."""
    name, other_ranks = uuid4().hex, range(1, size)
    while not all(store.check([f"{name}/{rank}"]) for rank in other_ranks):
        for rank in other_ranks:
            if store.check([f"asks/{rank}"]):  # possibly of a process that is gone, which is harmless
                store.set(f"answer/{store.get(f'asks/{rank}').decode()}", name)
        _wait_until(deadline)
    return name


def _request_name(store: Store, rank: int, deadline: float) -> str:
    """Other ranks request the name under a unique id, so that no old answer is mistaken for theirs."""
    request_id = uuid4().hex
    store.set(f"asks/{rank}", request_id)
    while not store.check([f"answer/{request_id}"]):
        _wait_until(deadline)
    name: str = store.get(f"answer/{request_id}").decode()
    store.set(f"{name}/{rank}", "heard")
    return name


def _wait_until(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise HeedfulError(
            "not all processes started by torchrun joined the group",
            hint="check that all hosts can reach each other; training.timeout_seconds is the time limit",
        )
    time.sleep(POLL_SECONDS)


# The leader (rank 0) decides when to validate, save and stop. It broadcasts commands that every process,
# itself included, executes; in between, a thread sends heartbeats. A process that receives nothing for
# ``training.timeout_seconds`` considers the others lost.

INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"

PRECISIONS = ("float32", "bfloat16", "auto")

_SIOCGIFADDR = 0x8915  # SIOCGIFADDR of Linux


class LostProcessError(ResumableError):
    """A process of the group has exited or cannot be reached."""

    @classmethod
    def from_exception(cls, error: Exception) -> "LostProcessError":
        """Shorten the message of gloo or NCCL."""
        line = (str(error).splitlines() or [type(error).__name__])[0]
        reason = re.sub(r"^\[[^]]*\] *", "", line).split(". ")[0]  # gloo starts with a source location
        return cls(
            f"lost a process of the group: {reason}",
            hint="torchrun restarts the group, up to --max-restarts times"
            if is_under_torchrun()
            else "resume with --resume; --processes 1 needs less memory",
        )


class CommandKind(IntEnum):
    """What every process does next."""

    WAIT = 0
    LOAD = 1
    """Read the prepared corpus and build the model."""
    SYNC = 2
    """Take the leader's weights and moments."""
    GRADIENT = 3
    """Compute the gradient of an update, without a step."""
    UPDATE = 4
    """Compute the gradient and take the step."""
    GATHER = 5
    """Send all weights and moments to the leader."""
    END = 6


class Command(NamedTuple):
    """Sent by the leader and executed by every process."""

    kind: CommandKind
    update: int = 0
    precision: str = "float32"
    learning_rate: float = 0.0
    batches: int = 0
    """Number of batches of the update; 0: all."""

    def to_tensor(self) -> Tensor:
        """Encode for broadcasting."""
        values = (self.kind, self.update, PRECISIONS.index(self.precision), self.learning_rate, self.batches)
        return torch.tensor(values, dtype=torch.float64)

    @classmethod
    def from_tensor(cls, tensor: Tensor) -> "Command":
        """Decode ``to_tensor``."""
        kind, update, precision, learning_rate, batches = tensor.tolist()
        return cls(CommandKind(int(kind)), int(update), PRECISIONS[int(precision)], learning_rate, int(batches))


class ProcessGroup:
    """The processes that train together; by default this one alone, where communication does nothing."""

    def __init__(self, rank: int = 0, size: int = 1, local_size: int = 1, timeout_seconds: float = 300.0) -> None:
        self.rank, self.size, self.timeout_seconds = rank, size, timeout_seconds
        self.local_size = local_size
        """Processes of the group on this machine, which share its cores."""
        self.busy = threading.Lock()
        """Held while a command is executed: no heartbeats in between."""
        self.in_sync = True
        """Whether all processes have executed all commands and listen for the next."""
        self._closed = threading.Event()
        if size > 1 and rank == 0:
            threading.Thread(target=self._send_heartbeats, daemon=True).start()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Block heartbeats; leaving by an exception marks the group as out of sync."""
        with self.busy:
            self.in_sync = False
            yield
            self.in_sync = True

    def send(self, command: Command) -> None:
        """Broadcast a command."""
        self.broadcast(command.to_tensor())

    def receive(self) -> Command:
        """The leader's next command."""
        tensor = torch.zeros(len(Command._fields), dtype=torch.float64)
        self.broadcast(tensor)
        return Command.from_tensor(tensor)

    def broadcast(self, tensor: Tensor) -> None:
        """Copy the leader's tensor to every process."""
        if self.size > 1:
            with convert_lost_errors():
                dist.broadcast(tensor, 0)

    def sum(self, tensor: Tensor) -> None:
        """All-reduce: the sum over all processes."""
        if self.size > 1:
            with convert_lost_errors():
                dist.all_reduce(tensor)

    def close(self) -> None:
        """Leave the group, whether or not the others still exist."""
        self._closed.set()
        acquired = self.busy.acquire(
            timeout=min(self.timeout_seconds, 5.0)
        )  # otherwise a heartbeat waits for a lost process
        try:
            if self.size > 1 and dist.is_initialized():
                with suppress(RuntimeError):
                    dist.destroy_process_group()
        finally:
            if acquired:
                self.busy.release()

    def _send_heartbeats(self) -> None:
        while not self._closed.wait(min(self.timeout_seconds / 4, 15.0)):
            if self.busy.acquire(blocking=False):
                try:
                    if not self._closed.is_set():
                        self.send(Command(CommandKind.WAIT))
                except (LostProcessError, ValueError):  # ValueError: the group is closed
                    return  # the next command will raise
                finally:
                    self.busy.release()


def is_process_loss(error: Exception) -> bool:
    """Whether an error of torch.distributed means a lost process; gloo raises plain RuntimeErrors."""
    text = str(error).lower()
    return isinstance(error, dist.DistError) or any(word in text for word in ("gloo", "nccl", "socket"))


@contextmanager
def convert_lost_errors() -> Iterator[None]:
    """Convert errors of gloo and NCCL about lost processes."""
    try:
        yield
    except RuntimeError as error:
        if not is_process_loss(error):
            raise
        raise LostProcessError.from_exception(error) from None


@contextmanager
def join_torchrun_group(device: torch.device, timeout_seconds: float) -> Iterator[ProcessGroup]:
    """The group started by torchrun."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ProcessGroup()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with use_interface(_find_interface(os.environ["MASTER_ADDR"])):
        with convert_lost_errors():
            store, rank, size = create_store(timeout_seconds)
        init_process_group(device, timeout_seconds, store=store, rank=rank, world_size=size)
    group = ProcessGroup(dist.get_rank(), size, int(os.environ["LOCAL_WORLD_SIZE"]), timeout_seconds)
    try:
        yield group
    finally:
        if group.rank == 0 and group.in_sync:  # also after an error: otherwise the others would report it as lost
            with group.busy, suppress(LostProcessError):
                group.send(Command(CommandKind.END))
        group.close()


def init_process_group(device: torch.device, timeout_seconds: float, **rendezvous: Any) -> None:
    """Join; commands use the CPU backend on any device."""
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    with convert_lost_errors():
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds), **rendezvous)


@contextmanager
def use_interface(interface: str) -> Iterator[None]:
    """Use this network interface unless the user set another; empty: gloo's choice."""
    if INTERFACE_VARIABLE in os.environ or not interface:
        yield
        return
    os.environ[INTERFACE_VARIABLE] = interface
    try:
        yield
    finally:
        os.environ.pop(INTERFACE_VARIABLE, None)


def loopback_interface() -> str:
    """The loopback network interface."""
    if sys.platform.startswith("win"):
        return ""
    return "lo0" if sys.platform == "darwin" else "lo"


def _find_interface(host: str) -> str:
    """The interface that reaches a host; empty if unknown.

    By default gloo uses the address of the machine's own name, which is often a loopback address.
    """
    if not sys.platform.startswith("linux"):
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp_socket, suppress(OSError):
        udp_socket.connect((host, 9))  # sends nothing: only looks up the route
        own_address = udp_socket.getsockname()[0]
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                if _interface_address(udp_socket, name) == own_address:
                    return name
    return ""


def _interface_address(udp_socket: socket.socket, interface: str) -> str:
    import fcntl

    request = struct.pack("256s", interface.encode()[:15])
    return socket.inet_ntoa(fcntl.ioctl(udp_socket.fileno(), _SIOCGIFADDR, request)[20:24])
