"""What each process of a group does with its model, optimizer and part of every update.

Three strategies, one interface. ``Worker``: every process has all weights, and gradients are summed once per
update. ``DDPWorker``: PyTorch's DDP, which sends gradients while others are still computed. ``FSDPWorker``:
PyTorch's FSDP2, which shards weights, gradients and moments of models that do not fit otherwise.
"""

import copy
from contextlib import nullcontext
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from heedful.data.collate import Batch, collate
from heedful.devices import select_device
from heedful.errors import HeedfulError
from heedful.models.base import Model
from heedful.models.factory import new_model
from heedful.progress import Reporter
from heedful.tokenization.special_tokens import PAD
from heedful.training.distributed.group import Command, CommandKind, ProcessGroup, convert_lost_errors
from heedful.training.preparation import load_prepared
from heedful.training.step import (
    BatchSchedule,
    LossSums,
    TrainState,
    UpdateResult,
    is_out_of_memory,
    new_optimizer,
    optimizer_step,
)

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""Adam's state of each parameter."""


class Worker:
    """Has all weights; gradients are summed over processes at the end of an update."""

    has_full_state = True
    """Whether the leader alone could save or continue the run."""

    def __init__(self, train_state: TrainState, group: ProcessGroup) -> None:
        self.train_state, self.group = train_state, group
        self.model, self.optimizer, self.batch_schedule = (
            train_state.model,
            train_state.optimizer,
            train_state.batch_schedule,
        )
        self.model.train()

    def execute(self, command: Command) -> UpdateResult:
        """Execute a command, together with all other processes."""
        if command.kind == CommandKind.SYNC:
            self.sync_state()
        elif command.kind == CommandKind.GATHER:
            self.gather_state()
        elif command.kind in (CommandKind.GRADIENT, CommandKind.UPDATE):
            sums = self.compute_gradient(command)
            if command.kind == CommandKind.GRADIENT:
                return UpdateResult(sums)
            return UpdateResult(sums, self.step(sums, command.learning_rate))
        return UpdateResult()

    def compute_gradient(self, command: Command) -> LossSums:
        """Gradient of an update, summed over tokens and processes."""
        self.model.zero_grad(set_to_none=True)
        local_sums = self.batch_schedule.accumulate_gradient(
            self.model, command.update, command.precision, self.group.rank, self.group.size, command.batches
        )
        if self.group.size > 1:
            self._reduce_gradients()
        return self.reduce_sums(local_sums)

    def read_local_batches(self, command: Command) -> list[Batch]:
        """This process's part of each batch; an empty batch where it has none."""
        batches = self.batch_schedule.start_update(command.update, self.group.rank, self.group.size, command.batches)
        missing_count = self.batch_schedule.count_batches(command.update, command.batches) - len(batches)
        return batches + [_empty_batch()] * missing_count

    def reduce_sums(self, local_sums: LossSums) -> LossSums:
        """The sums over all processes."""
        numbers = torch.tensor(local_sums, dtype=torch.float64)
        self.group.sum(numbers)
        return LossSums(float(numbers[0]), int(numbers[1]), int(numbers[2]))

    def step(self, sums: LossSums, learning_rate: float) -> float:
        """One Adam step, the same in every process."""
        with convert_lost_errors():  # the norm of sharded gradients needs all processes
            return optimizer_step(self.model, self.optimizer, sums, self.batch_schedule.settings, learning_rate)

    def sync_state(self) -> None:
        """Send the leader's weights and moments to every process."""
        has_moments = torch.tensor([float(bool(self.optimizer.state))])
        self.group.broadcast(has_moments)
        for parameter in self.model.parameters():
            self.group.broadcast(parameter.detach())
            if not has_moments:
                self.optimizer.state.pop(parameter, None)
                continue
            state = self.optimizer.state[parameter]
            for name in MOMENTS:
                if name not in state:
                    state[name] = _new_moment(name, parameter.detach())
                self.group.broadcast(state[name])

    def gather_state(self) -> None:
        """All that was learned, into the leader's model and optimizer: it is there already."""

    def _reduce_gradients(self) -> None:
        parameters = list(self.model.parameters())
        flat = torch.cat([_gradient_or_zeros(parameter).reshape(-1) for parameter in parameters])
        self.group.sum(flat)
        start = 0
        for parameter in parameters:
            parameter.grad = flat[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()


class DDPWorker(Worker):
    """DDP: parts of the gradient travel while the rest of the last batch is computed."""

    def __init__(self, train_state: TrainState, group: ProcessGroup) -> None:
        super().__init__(train_state, group)
        with convert_lost_errors():
            self.loss = DistributedDataParallel(self.batch_schedule.create_loss(self.model))

    def compute_gradient(self, command: Command) -> LossSums:
        self.model.zero_grad(set_to_none=True)
        batches = self.read_local_batches(command)
        total = 0.0
        for number, batch in enumerate(batches):
            last = number == len(batches) - 1
            with nullcontext() if last else self.loss.no_sync():
                total += _backward(self.loss, batch, command.precision)
        _scale_gradients([parameter.grad for parameter in self.model.parameters()], self.group.size)  # of the mean
        return self.reduce_sums(LossSums(total, sum(batch.tokens for batch in batches)))


class FSDPWorker(Worker):
    """FSDP2: a layer's weights are whole only while it computes.

    The leader has the whole model too, to validate and save: ``gather`` brings it up to date.
    """

    has_full_state = False

    def __init__(self, train_state: TrainState, group: ProcessGroup) -> None:
        super().__init__(train_state, group)
        self.full_model, self.full_optimizer = train_state.model, train_state.optimizer
        if group.rank == 0:
            self.model = copy.deepcopy(train_state.model)
        device = self.model.output.weight.device
        self.loss = self.batch_schedule.create_loss(self.model)
        with convert_lost_errors():
            mesh = init_device_mesh(device.type, (group.size,))
            for layer in _find_layers(self.model):
                fully_shard(layer, mesh=mesh)
            fully_shard(self.loss, mesh=mesh)
        self.optimizer = new_optimizer(self.model, self.batch_schedule.settings)

    def compute_gradient(self, command: Command) -> LossSums:
        self.model.zero_grad(set_to_none=True)
        batches = self.read_local_batches(command)
        total = 0.0
        for number, batch in enumerate(batches):
            cast(FSDPModule, self.loss).set_requires_gradient_sync(number == len(batches) - 1)
            total += _backward(self.loss, batch, command.precision)
        _scale_gradients([parameter.grad for parameter in self.model.parameters()], self.group.size)  # of the mean
        return self.reduce_sums(LossSums(total, sum(batch.tokens for batch in batches)))

    def sync_state(self) -> None:
        has_moments = torch.tensor([float(bool(self.full_optimizer.state))])
        self.group.broadcast(has_moments)
        for shard, full_parameter in self._parameter_pairs():
            _scatter_tensor(shard, full_parameter)
            if has_moments:
                state, full_state = self.optimizer.state[shard], self.full_optimizer.state[full_parameter]
                state["step"] = full_state.get("step", _new_moment("step", shard)).to(shard.device).clone()
                self.group.broadcast(state["step"])
                for name in MOMENTS[1:]:
                    state[name] = torch.zeros_like(shard.detach())
                    _scatter_tensor(state[name], full_state.get(name, torch.zeros_like(full_parameter)))

    def gather_state(self) -> None:
        for shard, full_parameter in self._parameter_pairs():
            full_tensor = _gather_tensor(shard)
            if self.group.rank == 0:
                full_parameter.data.copy_(full_tensor)
            for name in MOMENTS if self.optimizer.state else ():
                moment = self.optimizer.state[shard][name]
                full_tensor = _gather_tensor(moment) if isinstance(moment, DTensor) else moment.clone()
                if self.group.rank == 0:
                    self.full_optimizer.state[full_parameter][name] = full_tensor

    def _parameter_pairs(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        """Each parameter as sharded and as a whole; on other ranks than 0 the same twice."""
        full_model = self.full_model if self.group.rank == 0 else self.model
        return list(zip(self.model.parameters(), full_model.parameters(), strict=True))


WORKERS: dict[str, type[Worker]] = {"sum": Worker, "ddp": DDPWorker, "fsdp": FSDPWorker}
"""By training.parallel."""


def new_worker(train_state: TrainState, group: ProcessGroup) -> Worker:
    """By training.parallel; auto overlaps communication (ddp) only on GPUs, as on CPUs it needs the cores."""
    if group.size == 1:
        return Worker(train_state, group)
    strategy = train_state.batch_schedule.settings.parallel
    if strategy == "auto":
        strategy = "ddp" if train_state.model.output.weight.device.type == "cuda" else "sum"
    return WORKERS[strategy](train_state, group)


def _gradient_or_zeros(parameter: nn.Parameter) -> Tensor:
    """Zeros where this process had no pairs."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _new_moment(name: str, parameter: Tensor) -> Tensor:
    return torch.zeros((), device=parameter.device) if name == "step" else torch.zeros_like(parameter)


def _empty_batch() -> Batch:
    """For a process without pairs, which must take part: one pair without target tokens."""
    empty = collate([[]], [[]])
    return Batch(empty.source, empty.decoder_input, torch.full_like(empty.target, PAD))


def _backward(loss: nn.Module, batch: Batch, precision: str) -> float:
    """Add the gradient of a batch; returns its negative log-likelihood."""
    try:
        with convert_lost_errors():
            smoothed_loss, nll_sum = loss(batch, precision)
            smoothed_loss.backward()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise HeedfulError(
            "a batch does not fit in memory",
            hint="lower batching.max_tokens; or set training.parallel=sum, which splits such batches",
        ) from None
    return float(nll_sum)


def _scale_gradients(gradients: list[Tensor | None], factor: float) -> None:
    torch._foreach_mul_([gradient for gradient in gradients if gradient is not None], factor)


def _find_layers(model: Model) -> list[nn.Module]:
    """The layers, which FSDP gathers one at a time."""
    stacks = [getattr(getattr(model, side, None), "layers", ()) for side in ("encoder", "decoder")]
    return [layer for stack in stacks if isinstance(stack, nn.ModuleList) for layer in stack]


def _scatter_tensor(shard: Tensor, full_tensor: Tensor) -> None:
    """Distribute the leader's full tensor as shards."""
    assert isinstance(shard, DTensor)
    source = full_tensor.detach()
    source = torch.zeros(shard.shape, device=shard.device) if isinstance(source, DTensor) else source
    with convert_lost_errors():
        distributed = distribute_tensor(source, shard.device_mesh, shard.placements)
    shard.to_local().detach().copy_(distributed.to_local())


def _gather_tensor(shard: Tensor) -> Tensor:
    assert isinstance(shard, DTensor)
    with convert_lost_errors(), torch.no_grad():
        full_tensor: Tensor = shard.full_tensor()
    return full_tensor.detach()


def execute_commands(group: ProcessGroup, folder: Path, device: str = "cpu") -> None:
    """Execute the leader's commands for the run in ``folder`` (training/ of a model folder) until END."""
    worker: Worker | None = None
    while (command := group.receive()).kind != CommandKind.END:
        if command.kind == CommandKind.LOAD:
            worker = new_worker(_load_train_state(folder, device), group)
        elif worker is not None:
            worker.execute(command)


def _load_train_state(folder: Path, device: str) -> TrainState:
    prepared = load_prepared(folder / "data")
    model = new_model(prepared.model_config).to(select_device(device))
    batch_schedule = BatchSchedule(prepared, folder, Reporter(quiet=True))
    return TrainState(folder, batch_schedule, model, new_optimizer(model, batch_schedule.settings))
