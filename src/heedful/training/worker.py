"""What each process of a group does with its model, its optimizer and its share of every update.

Three ways to share the work, one interface. ``Worker``: everybody has all weights, and gradients are added up
once, when all batches of an update are done. ``OverlappingWorker``: the same with PyTorch's DDP, which sends
gradients while others are still computed. ``ShardingWorker``: with PyTorch's FSDP2 everybody keeps
a part of weights, gradients and moments only, for models that do not fit otherwise.
"""

import copy
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from heedful.errors import HeedfulError
from heedful.model.config import PAD
from heedful.model.predictor import Predictor
from heedful.training.batch import Batch, new_batch
from heedful.training.group import Group, Kind, Order, told_when_lost
from heedful.training.plan import Plan
from heedful.training.update import Sums, is_out_of_memory, new_optimizer, step

NO_SUMS = Sums(0.0, 0)
MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What Adam remembers of each parameter."""


@dataclass(frozen=True, slots=True)
class Learner:
    """What is trained, and on what."""

    folder: Path
    plan: Plan
    model: Predictor
    optimizer: torch.optim.Optimizer


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of an order."""

    sums: Sums = NO_SUMS
    loss: float = float("nan")
    """A token's; no number if the step was not taken."""


class Worker:
    """One that has all weights, and adds its gradient to the others' at the end of an update."""

    keeps_all = True
    """Whether the leader alone could save the run or go on with it."""

    def __init__(self, learner: Learner, group: Group) -> None:
        self.learner, self.group = learner, group
        self.model, self.optimizer, self.plan = learner.model, learner.optimizer, learner.plan
        self.model.train()

    def obey(self, order: Order) -> Outcome:
        """Carry out an order, together with all others."""
        if order.kind == Kind.TAKE:
            self.take()
        elif order.kind == Kind.GATHER:
            self.gather()
        elif order.kind in (Kind.GRADIENT, Kind.UPDATE):
            sums = self.gradient(order)
            if order.kind == Kind.GRADIENT:
                return Outcome(sums)
            return Outcome(sums, self.step(sums, order.rate))
        return Outcome()

    def gradient(self, order: Order) -> Sums:
        """The whole gradient of an update, summed over its tokens, in everybody's parameters."""
        self.model.zero_grad(set_to_none=True)
        own = self.plan.add_gradient(
            self.model, order.update, order.precision, self.group.rank, self.group.size, order.batches
        )
        if self.group.size > 1:
            self._add_up()
        return self.summed(own)

    def share(self, order: Order) -> list[Batch]:
        """This process's part of each batch: of pairs that there are not, where it has none."""
        found = self.plan.begin(order.update, self.group.rank, self.group.size, order.batches)
        missing = self.plan.batches_in(order.update, order.batches) - len(found)
        return found + [_nothing()] * missing

    def summed(self, own: Sums) -> Sums:
        """Everybody's likelihood, tokens and splits together."""
        numbers = torch.tensor(own, dtype=torch.float64)
        self.group.sum(numbers)
        return Sums(float(numbers[0]), int(numbers[1]), int(numbers[2]))

    def step(self, sums: Sums, rate: float) -> float:
        """One step of Adam; everybody takes the same."""
        with told_when_lost():  # the length of a gradient that is cut up is everybody's
            return step(self.model, self.optimizer, sums, self.plan.settings, rate)

    def take(self) -> None:
        """The leader's weights and moments to everybody."""
        begun = torch.tensor([float(bool(self.optimizer.state))])
        self.group.broadcast(begun)
        for parameter in self.model.parameters():
            self.group.broadcast(parameter.detach())
            if not begun:
                self.optimizer.state.pop(parameter, None)
                continue
            state = self.optimizer.state[parameter]
            for name in MOMENTS:
                if name not in state:
                    state[name] = _new_moment(name, parameter.detach())
                self.group.broadcast(state[name])

    def gather(self) -> None:
        """All that was learned, into the leader's model and optimizer: it is there already."""

    def _add_up(self) -> None:
        parameters = list(self.model.parameters())
        flat = torch.cat([_gradient(parameter).reshape(-1) for parameter in parameters])
        self.group.sum(flat)
        start = 0
        for parameter in parameters:
            parameter.grad = flat[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()


class OverlappingWorker(Worker):
    """DDP: parts of the gradient travel while the rest of the last batch is computed."""

    def __init__(self, learner: Learner, group: Group) -> None:
        super().__init__(learner, group)
        with told_when_lost():
            self.loss = DistributedDataParallel(self.plan.loss_of(self.model))

    def gradient(self, order: Order) -> Sums:
        self.model.zero_grad(set_to_none=True)
        batches = self.share(order)
        total = 0.0
        for number, batch in enumerate(batches):
            last = number == len(batches) - 1
            with nullcontext() if last else self.loss.no_sync():
                total += _backward(self.loss, batch, order.precision)
        _multiply([parameter.grad for parameter in self.model.parameters()], self.group.size)  # of the mean
        return self.summed(Sums(total, sum(batch.tokens for batch in batches)))


class ShardingWorker(Worker):
    """FSDP2: a layer's weights are whole only while it computes.

    The leader has the whole model too, to validate and save: ``gather`` brings it up to date.
    """

    keeps_all = False

    def __init__(self, learner: Learner, group: Group) -> None:
        super().__init__(learner, group)
        self.whole, self.moments = learner.model, learner.optimizer
        if group.rank == 0:
            self.model = copy.deepcopy(learner.model)
        device = self.model.output.weight.device
        self.loss = self.plan.loss_of(self.model)
        with told_when_lost():
            mesh = init_device_mesh(device.type, (group.size,))
            for layer in _layers(self.model):
                fully_shard(layer, mesh=mesh)
            fully_shard(self.loss, mesh=mesh)
        self.optimizer = new_optimizer(self.model, self.plan.settings)

    def gradient(self, order: Order) -> Sums:
        self.model.zero_grad(set_to_none=True)
        batches = self.share(order)
        total = 0.0
        for number, batch in enumerate(batches):
            cast(FSDPModule, self.loss).set_requires_gradient_sync(number == len(batches) - 1)
            total += _backward(self.loss, batch, order.precision)
        _multiply([parameter.grad for parameter in self.model.parameters()], self.group.size)  # of the mean
        return self.summed(Sums(total, sum(batch.tokens for batch in batches)))

    def take(self) -> None:
        begun = torch.tensor([float(bool(self.moments.state))])
        self.group.broadcast(begun)
        for part, whole in self._pairs():
            _put(part, whole)
            if begun:
                state, known = self.optimizer.state[part], self.moments.state[whole]
                state["step"] = known.get("step", _new_moment("step", part)).to(part.device).clone()
                self.group.broadcast(state["step"])
                for name in MOMENTS[1:]:
                    state[name] = torch.zeros_like(part.detach())
                    _put(state[name], known.get(name, torch.zeros_like(whole)))

    def gather(self) -> None:
        for part, whole in self._pairs():
            found = _all_of(part)
            if self.group.rank == 0:
                whole.data.copy_(found)
            for name in MOMENTS if self.optimizer.state else ():
                moment = self.optimizer.state[part][name]
                found = _all_of(moment) if isinstance(moment, DTensor) else moment.clone()
                if self.group.rank == 0:
                    self.moments.state[whole][name] = found

    def _pairs(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        """Each parameter as this process keeps it, and whole: of followers, the same twice."""
        whole = self.whole if self.group.rank == 0 else self.model
        return list(zip(self.model.parameters(), whole.parameters(), strict=True))


WORKERS: dict[str, type[Worker]] = {"sum": Worker, "ddp": OverlappingWorker, "fsdp": ShardingWorker}
"""By training.parallel."""


def new_worker(learner: Learner, group: Group) -> Worker:
    """As the recipe says; ``auto`` overlaps where computing does not take the cores that sending needs."""
    if group.size == 1:
        return Worker(learner, group)
    way = learner.plan.settings.parallel
    if way == "auto":
        way = "ddp" if learner.model.output.weight.device.type == "cuda" else "sum"
    return WORKERS[way](learner, group)


def _gradient(parameter: nn.Parameter) -> Tensor:
    """Zero where this process's share had nothing to say."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _new_moment(name: str, parameter: Tensor) -> Tensor:
    return torch.zeros((), device=parameter.device) if name == "step" else torch.zeros_like(parameter)


def _nothing() -> Batch:
    """Who has no pair of a batch must take part all the same: with a pair that has no tokens to write."""
    empty = new_batch([[]], [[]])
    return Batch(empty.source, empty.before, torch.full_like(empty.target, PAD))


def _backward(loss: nn.Module, batch: Batch, precision: str) -> float:
    """Add the gradient of a batch; returns its likelihood."""
    try:
        with told_when_lost():
            smoothed, likelihood = loss(batch, precision)
            smoothed.backward()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise HeedfulError(
            "a batch does not fit in memory",
            hint="lower batches.tokens; or set training.parallel=sum, which splits such batches",
        ) from None
    return float(likelihood)


def _multiply(gradients: list[Tensor | None], factor: float) -> None:
    torch._foreach_mul_([gradient for gradient in gradients if gradient is not None], factor)


def _layers(model: Predictor) -> list[nn.Module]:
    """The parts that are called one after another: whole one at a time."""
    stacks = [getattr(getattr(model, side, None), "layers", ()) for side in ("encoder", "decoder")]
    return [layer for stack in stacks if isinstance(stack, nn.ModuleList) for layer in stack]


def _put(part: Tensor, whole: Tensor) -> None:
    """The leader's whole tensor, cut up among all."""
    assert isinstance(part, DTensor)
    source = whole.detach()
    source = torch.zeros(part.shape, device=part.device) if isinstance(source, DTensor) else source
    with told_when_lost():
        cut = distribute_tensor(source, part.device_mesh, part.placements)
    part.to_local().detach().copy_(cut.to_local())


def _all_of(part: Tensor) -> Tensor:
    assert isinstance(part, DTensor)
    with told_when_lost(), torch.no_grad():
        whole: Tensor = part.full_tensor()
    return whole.detach()
