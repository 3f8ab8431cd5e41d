"""Several models that write one translation together: at every step their predictions are averaged.

Search sees one more ``StepwiseDecoder``; the members may be of different families and sizes, as long as
they read and write the same ids.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from heedful.decoding.stepwise import DecoderState
from heedful.errors import HeedfulError
from heedful.model.translator import Scorer, Translator

Mean = Literal["probabilities", "logs"]
"""What is averaged: probabilities (a word that one member is sure of stays likely), or their logarithms (a
word that one member excludes is excluded)."""


@dataclass(frozen=True, slots=True)
class EnsembleState:
    """What each member remembers."""

    members: tuple[DecoderState, ...]

    def reorder(self, rows: Tensor) -> "EnsembleState":
        """The same rows for every member."""
        return EnsembleState(tuple(member.reorder(rows) for member in self.members))


class Ensemble(Scorer):
    """Models with the same vocabularies as one."""

    def __init__(self, members: Sequence[Translator], mean: Mean = "probabilities") -> None:
        if mean not in get_args(Mean):
            raise HeedfulError(f"an ensemble has no mean of {mean!r}", hint=" or ".join(get_args(Mean)))
        self.members, self.mean = tuple(members), mean

    @property
    def longest(self) -> int | None:
        """The shortest of the members' limits."""
        limits = [member.longest for member in self.members if member.longest is not None]
        return min(limits, default=None)

    def start(self, source: Tensor) -> EnsembleState:
        """Every member reads the source."""
        return EnsembleState(tuple(member.start(source) for member in self.members))

    def step(self, tokens: Tensor, state: EnsembleState) -> tuple[Tensor, EnsembleState]:
        """Every member writes the same tokens; returns the logarithm of what they predict together."""
        found = [member.step(tokens, own) for member, own in zip(self.members, state.members, strict=True)]
        predicted = averaged([scores for scores, _ in found], self.mean)
        return predicted, EnsembleState(tuple(own for _, own in found))

    def log_probabilities(self, source: Tensor, before: Tensor) -> Tensor:
        return averaged([member.log_probabilities(source, before) for member in self.members], self.mean)


def averaged(log_probabilities: Sequence[Tensor], mean: Mean) -> Tensor:
    """The logarithm of the mean of several distributions; a mean of logarithms is made to sum to 1 again.

    >>> averaged([torch.tensor([0.5, 0.5]).log(), torch.tensor([0.9, 0.1]).log()], "probabilities").exp()
    tensor([0.7000, 0.3000])
    >>> averaged([torch.tensor([0.5, 0.5]).log(), torch.tensor([0.9, 0.1]).log()], "logs").exp()
    tensor([0.7500, 0.2500])
    """
    if len(log_probabilities) == 1:
        return log_probabilities[0]
    found = torch.stack(list(log_probabilities))
    return found.mean(0).log_softmax(-1) if mean == "logs" else found.logsumexp(0) - math.log(len(found))
