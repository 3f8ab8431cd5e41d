"""One update: from some batches of ids to a step of Adam."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

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


def add_gradient(
    model: Predictor,
    batches: Sequence[Batch],
    smoothing: float,
    precision: str,
    teacher: Teacher | None = None,
) -> tuple[float, int]:
    """Add the gradient of the loss, summed over all target tokens, to the parameters.

    Returns the negative log-likelihood and the number of these tokens.
    """
    device = model.output.weight.device
    total = torch.zeros((), dtype=torch.float64, device=device)
    for batch in batches:
        with mixed_precision(device, precision):
            smoothed, likelihood = batch_loss(model, batch, smoothing, teacher)
        smoothed.backward()  # type: ignore[no-untyped-call]
        total += likelihood
    return float(total), sum(batch.tokens for batch in batches)


def step(
    model: Predictor,
    optimizer: torch.optim.Optimizer,
    sums: tuple[float, int],
    config: TrainingConfig,
    rate: float,
) -> float:
    """One step of Adam on the gradient at hand; returns the loss a token.

    ``sums`` are what ``add_gradient`` returned. The sum over all tokens is divided once by their number, so
    how they were split into batches, or over processes, does not matter. A loss that is no number stops
    here, before it reaches the weights.
    """
    total, tokens = sums
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    length = torch.nn.utils.get_total_norm(gradients) / tokens
    if not (np.isfinite(total) and bool(length.isfinite())):
        raise HeedfulError(
            f"training broke down: the loss is {total / tokens} and the gradient {float(length)}",
            hint="the last checkpoint is good; train anew with a lower training.rate or more training.warmup",
        )
    shortened = min(1.0, config.clip / (float(length) + 1e-6)) if config.clip else 1.0
    torch._foreach_mul_(gradients, shortened / tokens)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    return total / tokens


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
    sums = add_gradient(model, batches, config.label_smoothing, config.precision, teacher)
    return step(model, optimizer, sums, config, rate)


def new_optimizer(model: Predictor, config: TrainingConfig) -> torch.optim.Optimizer:
    """Adam as in section 5.3; the rate is set at each update."""
    fused = model.output.weight.device.type in ("cpu", "cuda")
    return torch.optim.Adam(
        model.parameters(), lr=0.0, betas=(config.beta1, config.beta2), eps=config.epsilon, fused=fused
    )
