"""One update: from some batches of ids to a step of Adam."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from heedful.corpora.store import Sentences
from heedful.errors import HeedfulError
from heedful.model.predictor import Predictor
from heedful.training.batch import Batch
from heedful.training.config import TrainingConfig
from heedful.training.devices import mixed_precision
from heedful.training.loss import output_loss
from heedful.training.tasks import BatchMaker
from heedful.training.taught import Teacher

Respelling = Callable[[Sequence[int], np.random.Generator], list[int]]
"""BPE-dropout of one sentence."""


class Sums(NamedTuple):
    """Of an update, or of a process's share of it."""

    likelihood: float
    """Negative log-likelihood, summed over the target tokens."""
    tokens: int
    splits: int = 0
    """How often a batch was halved because it did not fit in memory."""


def read_batch(
    store: Sentences,
    indices: Sequence[int],
    respell: tuple[Respelling, Respelling] | None,
    noise: list[int],
    make: BatchMaker,
    teacher: Teacher | None = None,
) -> Batch:
    """The batch of these pairs, as the task makes it.

    With BPE-dropout each sentence is spelled anew, by the seed ``noise``.
    """
    sources: list[Sequence[int]] = [store.source(i).tolist() for i in indices]
    targets: list[Sequence[int]] = [store.target(i).tolist() for i in indices]
    if respell is not None:
        random = np.random.default_rng(noise)
        sources = [respell[0](row, random) for row in sources]
        targets = [respell[1](row, random) for row in targets]
    batch = make(sources, targets, noise)
    return replace(batch, links=teacher.of(sources)) if teacher else batch


def batch_loss(
    model: Predictor, batch: Batch, smoothing: float, teacher: Teacher | None = None
) -> tuple[Tensor, Tensor]:
    """Smoothed loss and negative log-likelihood of a batch, each summed over its target tokens.

    What a taught head still has to learn is added to the first.
    """
    device = model.output.weight.device
    source, before = batch.source.to(device), batch.before.to(device)
    if teacher is None or batch.links is None:
        states, lesson = model(source, before), None
    else:
        memory, lesson = teacher.encode(model, source, batch.links)
        states = model.decode(before, memory, source)
    products = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
    with torch.autocast(device.type, enabled=False):  # probabilities want all the digits there are
        states, weight = model.output_product(states)
        smoothed, likelihood = output_loss(states, weight, batch.target.to(device), smoothing, products)
    return smoothed if lesson is None else smoothed + lesson, likelihood


class BatchLoss(nn.Module):
    """``batch_loss`` as a module: wrappers that work before and behind a module see all of it."""

    def __init__(self, model: Predictor, smoothing: float, teacher: Teacher | None = None) -> None:
        super().__init__()
        self.model, self.smoothing, self.teacher = model, smoothing, teacher

    def forward(self, batch: Batch, precision: str) -> tuple[Tensor, Tensor]:
        with mixed_precision(self.model.output.weight.device, precision):
            return batch_loss(self.model, batch, self.smoothing, self.teacher)


def add_gradient(loss: BatchLoss, batches: Sequence[Batch], precision: str) -> Sums:
    """Add the gradient of the loss, summed over all target tokens, to the parameters.

    A batch that does not fit in memory is halved, and all begins again: from no gradient at all.
    """
    model, waiting, splits = loss.model, list(batches), 0
    device = model.output.weight.device
    while True:
        total = torch.zeros((), dtype=torch.float64, device=device)
        for place, batch in enumerate(waiting):  # noqa: B007 - the place of the one that does not fit
            try:
                smoothed, likelihood = loss(batch, precision)
                smoothed.backward()
                total += likelihood
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                break
        else:
            return Sums(float(total), sum(batch.tokens for batch in batches), splits)
        smoothed = likelihood = None  # what they hold takes room too
        model.zero_grad(set_to_none=True)  # of the batches before, and of a part of this one
        waiting[place : place + 1] = _halved(waiting[place])
        splits += 1


def is_out_of_memory(error: Exception) -> bool:
    """Whether there was no room for a tensor."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)


def _halved(batch: Batch) -> tuple[Batch, Batch]:
    if len(batch.source) == 1:
        raise HeedfulError(
            f"a single pair of {batch.source.size(1):,} and {batch.target.size(1):,} tokens "
            "does not fit in memory",
            hint="the last checkpoint is good; train anew with a smaller model or a lower model.longest",
        )
    return batch.halves()


def step(
    model: Predictor,
    optimizer: torch.optim.Optimizer,
    sums: Sums,
    config: TrainingConfig,
    rate: float,
) -> float:
    """One step of Adam on the gradient at hand; returns the loss a token.

    ``sums`` are what ``add_gradient`` returned. The sum over all tokens is divided once by their number, so
    how they were split into batches, or over processes, does not matter. If the loss or the gradient is no
    number, no step is taken and none returned: it never reaches the weights.
    """
    tokens = max(sums.tokens, 1)
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    length = float(_whole(torch.nn.utils.get_total_norm(gradients)) / tokens)
    if not (np.isfinite(sums.likelihood) and np.isfinite(length)):
        return float("nan")
    shortened = min(1.0, config.clip / (length + 1e-6)) if config.clip else 1.0
    torch._foreach_mul_(gradients, shortened / tokens)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    return sums.likelihood / tokens


def _whole(norm: Tensor) -> Tensor:
    """Of gradients that are cut up among processes, everybody's together."""
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def update(
    model: Predictor,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Batch],
    config: TrainingConfig,
    rate: float,
    teacher: Teacher | None = None,
) -> float:
    """One step of Adam on all batches together, in this process; returns the loss a token."""
    optimizer.zero_grad(set_to_none=True)
    sums = add_gradient(BatchLoss(model, config.label_smoothing, teacher), batches, config.precision)
    return step(model, optimizer, sums, config, rate)


def new_optimizer(model: Predictor, config: TrainingConfig) -> torch.optim.Optimizer:
    """Adam as in section 5.3; the rate is set at each update."""
    fused = model.output.weight.device.type in ("cpu", "cuda")
    return torch.optim.Adam(
        model.parameters(), lr=0.0, betas=(config.beta1, config.beta2), eps=config.epsilon, fused=fused
    )
