"""Distributed training: every rank runs the same ``Trainer.fit`` on its part of each batch (SPMD).

torchrun starts, restarts and resizes the group of processes; for --processes, launcher.py runs torchrun's launcher.
DDP or FSDP2 communicates. What only rank 0 knows (time limit, signals, validation) it shares in one
small broadcast per update.
"""

import json
import os
import re
import socket
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from heedful.data.collate import Batch, collate
from heedful.devices import is_under_torchrun
from heedful.errors import HeedfulError, ResumableError
from heedful.model_folder import load_parameters, named_parameters
from heedful.models.base import Model
from heedful.models.factory import new_model
from heedful.tokenization.special_tokens import PAD
from heedful.training.checkpoint import MOMENTS, named_moments
from heedful.training.step import (
    BatchSchedule,
    LossSums,
    UpdateResult,
    accumulate_gradient,
    is_out_of_memory,
    new_optimizer,
    optimizer_step,
)

MESSAGE_BYTES = 1024
"""Size of a message of rank 0; all have the same, so that one broadcast is enough."""

MAX_WAIT = timedelta(days=2)
"""How long other ranks wait for a message, while rank 0 preprocesses or validates; its death ends the wait."""

LOOPBACK_ADDRESS = "127.0.0.1"


class LostProcessError(ResumableError):
    """A process of the group has exited or cannot be reached."""

    @classmethod
    def from_exception(cls, error: Exception) -> "LostProcessError":
        """Shorten the message of gloo or NCCL."""
        line = (str(error).splitlines() or [type(error).__name__])[0]
        reason = re.sub(r"^\[[^]]*\] *", "", line).split(". ")[0]  # gloo starts with a source location
        return cls(
            f"lost a process of the group: {reason}",
            hint="repeat the command to resume from the last checkpoint; torchrun --max-restarts does so by itself",
        )


@contextmanager
def convert_lost_errors() -> Iterator[None]:
    """Convert errors of gloo and NCCL about lost processes; gloo raises plain RuntimeErrors."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).lower()
        if not isinstance(error, dist.DistError) and not any(word in text for word in ("gloo", "nccl", "socket")):
            raise
        raise LostProcessError.from_exception(error) from None


class ProcessGroup:
    """The ranks that train together; by default this process alone."""

    def __init__(
        self, rank: int = 0, size: int = 1, local_size: int = 1, control: dist.ProcessGroup | None = None
    ) -> None:
        self.rank, self.size = rank, size
        self.local_size = local_size
        """Ranks on this machine, which share its cores."""
        self.others_wait = True
        """Whether the other ranks wait for a message, as they do outside collective computations."""
        self._control = control

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Around what all ranks compute together."""
        self.others_wait, others_wait = False, self.others_wait
        with convert_lost_errors():
            yield
        self.others_wait = others_wait

    def share(self, message: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The message of rank 0, on every rank. Without one rank 0 has failed, and the other ranks exit."""
        if self.size == 1:
            return dict(message or {})
        buffer = torch.zeros(MESSAGE_BYTES, dtype=torch.uint8)
        if self.rank == 0:
            data = json.dumps(message or {}).encode()
            buffer[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        with convert_lost_errors():
            dist.broadcast(buffer, 0, group=self._control)
        received: dict[str, Any] = json.loads(bytes(buffer.tolist()).rstrip(b"\0"))
        if not received and self.rank:
            raise SystemExit(1)  # rank 0 reports the reason
        return received

    def sum(self, values: Sequence[float]) -> list[float]:
        """All-reduce: the sums over all ranks."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        with convert_lost_errors():
            dist.all_reduce(tensor)
        return cast(list[float], tensor.tolist())


@contextmanager
def join_group(device: torch.device, timeout_seconds: float) -> Iterator[ProcessGroup]:
    """The group that torchrun started; without torchrun this process alone."""
    if not is_under_torchrun() or int(os.environ["WORLD_SIZE"]) == 1:
        yield ProcessGroup()
        return
    _check_store()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if interface := _find_interface(os.environ["MASTER_ADDR"]):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    with convert_lost_errors():
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
        control = dist.new_group(backend="gloo", timeout=MAX_WAIT)
    group = ProcessGroup(dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"]), control)
    try:
        yield group
    except BaseException:
        if group.rank == 0 and group.others_wait:  # else they would report that rank 0 is lost
            with suppress(LostProcessError):
                group.share()
        raise
    finally:
        with suppress(RuntimeError):
            dist.destroy_process_group()


def _check_store() -> None:
    """torchrun's own store keeps the addresses of lost processes, so that a restarted group would hang."""
    if os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "True" and int(os.environ["TORCHELASTIC_MAX_RESTARTS"]):
        raise HeedfulError(
            "torchrun cannot restart ranks that share its store",
            hint="set an environment variable: TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun ...",
        )


def _find_interface(host: str) -> str:
    """The network interface that reaches a host; empty if unknown.

    By default gloo uses the address of the machine's own name, which is often a loopback address.
    """
    if sys.platform == "darwin" and host == LOOPBACK_ADDRESS:
        return "lo0"
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

    siocgifaddr = 0x8915  # of Linux
    request = struct.pack("256s", interface.encode()[:15])
    return socket.inet_ntoa(fcntl.ioctl(udp_socket.fileno(), siocgifaddr, request)[20:24])


# ---- Model and optimizer of a rank


class Replica:
    """Model and optimizer of one rank, which computes its part of every update."""

    def __init__(self, batch_schedule: BatchSchedule, model: Model, optimizer: torch.optim.Optimizer) -> None:
        self.batch_schedule, self.model, self.optimizer = batch_schedule, model, optimizer
        self.group = ProcessGroup()
        self.loss = batch_schedule.create_loss(model)
        model.train()

    def update(self, update: int, precision: str, learning_rate: float) -> UpdateResult:
        """Gradient and Adam step of an update; all ranks take the same step, or none."""
        settings = self.batch_schedule.settings
        with self.group.collective():
            sums = self.compute_gradient(update, precision)
            loss = optimizer_step(self.model, self.optimizer, sums, settings, learning_rate, self.group.size)
        return UpdateResult(sums, loss)

    def compute_gradient(self, update: int, precision: str, batches: int = 0) -> LossSums:
        """Gradient of the first ``batches`` of an update (0: all)."""
        self.model.zero_grad(set_to_none=True)
        rank_batches = self.batch_schedule.start_update(update, self.group.rank, self.group.size, batches)
        return accumulate_gradient(self.loss, rank_batches, precision)

    def gather_weights(self) -> dict[str, Tensor]:
        """All weights by name, on rank 0."""
        return named_parameters(self.model)

    def gather_model(self) -> Model | None:
        """The model with all weights, on rank 0."""
        return None if self.group.rank else self.model

    def gather_moments(self) -> dict[str, Tensor]:
        """All of Adam's moments by name, on rank 0."""
        return named_moments(self.model, self.optimizer)

    def reduce_sums(self, sums: LossSums) -> LossSums:
        """The sums over all ranks."""
        nll_sum, tokens, splits = self.group.sum(sums)
        return LossSums(nll_sum, int(tokens), int(splits))


class DDPReplica(Replica):
    """Every rank has all weights; DDP averages the gradients over ranks, once per update.

    A rank accumulates the gradient of its own batches first, so it can split one that does not fit in memory.
    """

    def __init__(
        self, batch_schedule: BatchSchedule, model: Model, optimizer: torch.optim.Optimizer, group: ProcessGroup
    ) -> None:
        super().__init__(batch_schedule, model, optimizer)
        self.group = group
        with group.collective():
            # Sends the weights of rank 0 to all ranks.
            self.reduction = DistributedDataParallel(_GradientReduction(model), gradient_as_bucket_view=True)
            # DDP rearranges its buckets at the second call, and rounds differently then; updates must all be alike.
            for _ in range(2):
                self.reduction().backward()
            if group.share({"moments": bool(optimizer.state)})["moments"]:
                for parameter in model.parameters():
                    state = optimizer.state[parameter]
                    for kind in MOMENTS:
                        shape = () if kind == "step" else parameter.shape
                        state.setdefault(kind, torch.zeros(shape, device=parameter.device))
                        dist.broadcast(state[kind], 0)

    def compute_gradient(self, update: int, precision: str, batches: int = 0) -> LossSums:
        with self.group.collective():
            sums = super().compute_gradient(update, precision, batches)
            self.reduction().backward()
            return self.reduce_sums(sums)


class _GradientReduction(nn.Module):
    """A loss of zero: DDP reduces the gradients that are there when its backward pass has added zeros to them."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.weights = nn.ParameterList(model.parameters())  # without buffers, which DDP would send at every call

    def forward(self) -> Tensor:
        return cast(Tensor, _ZeroLoss.apply(*self.weights))  # type: ignore[no-untyped-call]


class _ZeroLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *parameters: Tensor) -> Tensor:
        ctx.shapes = [parameter.shape for parameter in parameters]
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        zero = gradients[0].new_zeros(())
        return tuple(zero.expand(shape) for shape in ctx.shapes)


class FSDPReplica(Replica):
    """FSDP2: weights, gradients and moments are sharded over ranks; a layer is whole only while it computes."""

    def __init__(
        self, batch_schedule: BatchSchedule, model: Model, optimizer: torch.optim.Optimizer, group: ProcessGroup
    ) -> None:
        super().__init__(batch_schedule, model, optimizer)
        self.group = group
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        moments = named_moments(model, optimizer)
        optimizer.state.clear()
        self.device = device = model.output.weight.device
        with group.collective():
            mesh = init_device_mesh(device.type, (group.size,))
            for layer in _find_layers(model):
                fully_shard(layer, mesh=mesh)
            fully_shard(self.loss, mesh=mesh)
            has_moments = group.share({"moments": bool(moments)})["moments"]
            self.optimizer = new_optimizer(model, batch_schedule.settings)
            # Not set_optimizer_state_dict: it counts shared weights twice.
            for name, parameter in model.named_parameters():
                shard = parameter.detach()
                shard.copy_(_shard_like(shard, weights.pop(name)))
                for kind in MOMENTS if has_moments else ():
                    shape = () if kind == "step" else shard.shape
                    moment = moments.pop(f"{kind}/{name}", torch.zeros(shape, device=device))
                    if kind == "step":
                        dist.broadcast(moment, 0)
                    self.optimizer.state[parameter][kind] = moment if kind == "step" else _shard_like(shard, moment)

    def compute_gradient(self, update: int, precision: str, batches: int = 0) -> LossSums:
        self.model.zero_grad(set_to_none=True)
        rank_batches = self.batch_schedule.start_update(update, self.group.rank, self.group.size, batches)
        # All ranks compute together, so each needs as many batches as the others.
        missing_count = self.batch_schedule.count_batches(update, batches) - len(rank_batches)
        rank_batches += [_empty_batch()] * missing_count
        total = 0.0
        with self.group.collective():
            for number, batch in enumerate(rank_batches, start=1):
                cast(FSDPModule, self.loss).set_requires_gradient_sync(number == len(rank_batches))
                try:
                    smoothed_loss, nll_sum = self.loss(batch, precision)
                    smoothed_loss.backward()
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error):
                        raise
                    raise HeedfulError(
                        "a batch does not fit in memory",
                        hint="lower batching.max_tokens and raise training.gradient_accumulation; "
                        "or set training.parallel=ddp, which splits such batches",
                    ) from None
                total += float(nll_sum)
            return self.reduce_sums(LossSums(total, sum(batch.tokens for batch in rank_batches)))

    def gather_weights(self) -> dict[str, Tensor]:
        self.model.zero_grad(set_to_none=True)  # gradients are not needed any more, but memory is
        with self.group.collective():
            weights = get_model_state_dict(self.model, options=FULL_STATE)
        names = [name for name, _ in self.model.named_parameters()]  # shared weights once
        return {} if self.group.rank else {name: cast(Tensor, weights[name]) for name in names}

    def gather_model(self) -> Model | None:
        weights = self.gather_weights()
        if self.group.rank:
            return None
        model = new_model(self.model.config).to(self.device)
        load_parameters(model, weights, Path())
        return model

    def gather_moments(self) -> dict[str, Tensor]:
        if not self.optimizer.state:  # get_optimizer_state_dict would take a step
            return {}
        with self.group.collective():
            state_dict = get_optimizer_state_dict(self.model, self.optimizer, options=FULL_STATE)
        state = cast(dict[str, dict[str, Tensor]], state_dict.get("state", {}))
        return {f"{kind}/{name}": moment for name, moments in state.items() for kind, moment in moments.items()}


FULL_STATE = StateDictOptions(full_state_dict=True, cpu_offload=True)
"""Whole tensors, in the memory of rank 0."""


def new_replica(
    batch_schedule: BatchSchedule, model: Model, optimizer: torch.optim.Optimizer, group: ProcessGroup
) -> Replica:
    """By training.parallel; all ranks get the weights and moments of rank 0."""
    if group.size == 1:
        return Replica(batch_schedule, model, optimizer)
    replica_class = {"ddp": DDPReplica, "fsdp": FSDPReplica}[batch_schedule.settings.parallel]
    return replica_class(batch_schedule, model, optimizer, group)


def _shard_like(shard: Tensor, full_tensor: Tensor) -> Tensor:
    """Distribute rank 0's tensor as another one is."""
    assert isinstance(shard, DTensor)
    return distribute_tensor(full_tensor, shard.device_mesh, shard.placements)


def _find_layers(model: Model) -> list[nn.Module]:
    """The layers, which FSDP gathers one at a time."""
    stacks = [getattr(getattr(model, side, None), "layers", ()) for side in ("encoder", "decoder")]
    return [layer for stack in stacks if isinstance(stack, nn.ModuleList) for layer in stack]


def _empty_batch() -> Batch:
    """One pair without target tokens."""
    empty = collate([[]], [[]])
    return Batch(empty.source, empty.decoder_input, torch.full_like(empty.target, PAD))
