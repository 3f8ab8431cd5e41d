"""One update: from some batches of ids to a step of Adam."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from heedful.corpora.batches import padded
from heedful.corpora.store import TokenStore
from heedful.errors import HeedfulError
from heedful.model.config import PAD
from heedful.model.transformer import Transformer
from heedful.text.tokenizer import END
from heedful.training.config import TrainingConfig
from heedful.training.devices import mixed_precision
from heedful.training.loss import output_loss
from heedful.training.taught import Teacher

Respelling = Callable[[Sequence[int], np.random.Generator], list[int]]
"""BPE-dropout of one sentence."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded ids: the source ended, the target as read (from PAD on) and as to be written (to END)."""

    source: Tensor  # (sentences, source length)
    before: Tensor  # (sentences, target length)
    target: Tensor  # (sentences, target length)
    links: Tensor | None = None
    """(links, 3): sentence, query and key that a taught head should follow."""

    @property
    def tokens(self) -> int:
        """Target tokens, padding not counted."""
        return int((self.target != PAD).sum())


def new_batch(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], teacher: Teacher | None = None
) -> Batch:
    """Add END and the start, pad.

    >>> batch = new_batch([[7, 8]], [[5, 6, 9]])
    >>> batch.source.tolist(), batch.before.tolist(), batch.target.tolist()
    ([[7, 8, 1]], [[0, 5, 6, 9]], [[5, 6, 9, 1]])
    """
    source = padded([np.append(np.asarray(row, dtype=np.int64), END) for row in sources], PAD)
    target = padded([np.append(np.asarray(row, dtype=np.int64), END) for row in targets], PAD)
    before = np.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=PAD)
    links = teacher.of(sources) if teacher else None
    return Batch(torch.from_numpy(source), torch.from_numpy(before), torch.from_numpy(target), links)


def read_batch(
    store: TokenStore,
    indices: Sequence[int],
    respell: tuple[Respelling, Respelling] | None,
    noise: list[int],
    teacher: Teacher | None = None,
) -> Batch:
    """The batch of these pairs; with BPE-dropout each sentence is spelled anew, by the seed ``noise``."""
    sources: list[Sequence[int]] = [store.source(i).tolist() for i in indices]
    targets: list[Sequence[int]] = [store.target(i).tolist() for i in indices]
    if respell is not None:
        random = np.random.default_rng(noise)
        sources = [respell[0](row, random) for row in sources]
        targets = [respell[1](row, random) for row in targets]
    return new_batch(sources, targets, teacher)


def batch_loss(
    model: Transformer, batch: Batch, smoothing: float, teacher: Teacher | None = None
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
    with torch.autocast(device.type, enabled=False):  # probabilities want all the digits there are
        weight = model.output.weight
        smoothed, likelihood = output_loss(
            states.to(weight.dtype), weight, batch.target.to(device), smoothing
        )
    return smoothed if lesson is None else smoothed + lesson, likelihood


def update(
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Batch],
    config: TrainingConfig,
    rate: float,
    teacher: Teacher | None = None,
) -> float:
    """One step of Adam on all batches together; returns the loss a token.

    The sum over all tokens is divided once by their number, so how they were split into batches does not
    matter. A loss that is no number stops here, before it reaches the weights.
    """
    tokens = sum(batch.tokens for batch in batches)
    device = model.output.weight.device
    total = 0.0
    optimizer.zero_grad(set_to_none=True)
    for batch in batches:
        with mixed_precision(device, config.precision):
            smoothed, likelihood = batch_loss(model, batch, config.label_smoothing, teacher)
        (smoothed / tokens).backward()  # type: ignore[no-untyped-call]
        total += float(likelihood)
    length = torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip or float("inf"))
    if not (np.isfinite(total) and bool(length.isfinite())):
        raise HeedfulError(
            f"training broke down: the loss is {total / tokens} and the gradient {float(length)}",
            hint="the last checkpoint is good; train anew with a lower training.rate or more training.warmup",
        )
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    return total / tokens


def new_optimizer(model: Transformer, config: TrainingConfig) -> torch.optim.Optimizer:
    """Adam as in section 5.3; the rate is set at each update."""
    fused = model.output.weight.device.type in ("cpu", "cuda")
    return torch.optim.Adam(
        model.parameters(), lr=0.0, betas=(config.beta1, config.beta2), eps=config.epsilon, fused=fused
    )
