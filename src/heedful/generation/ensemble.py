"""Ensemble decoding: the predictions of several models are averaged at every step.

To search, an ensemble is another ``StepwiseDecoder``. Members may differ in architecture and size, but share
their vocabularies.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.generation.decoder_protocol import DecoderState
from heedful.models.base import AutoregressiveModel, Scorer

EnsembleMean = Literal["probabilities", "logs"]
"""What is averaged: probabilities (one confident member suffices), or their logarithms (every member has a
veto)."""


@dataclass(frozen=True, slots=True)
class EnsembleState:
    """The decoder state of each member."""

    members: tuple[DecoderState, ...]

    def reorder(self, rows: Tensor) -> "EnsembleState":
        """Select the same rows for every member."""
        return EnsembleState(tuple(member.reorder(rows) for member in self.members))


class Ensemble(Scorer):
    """Models with the same vocabularies, used as one."""

    def __init__(self, members: Sequence[AutoregressiveModel], mean: EnsembleMean = "probabilities") -> None:
        if mean not in get_args(EnsembleMean):
            raise HeedfulError(f"unknown ensemble mean {mean!r}", hint=f"use {' or '.join(get_args(EnsembleMean))}")
        self.members, self.mean = tuple(members), mean

    @property
    def max_length(self) -> int | None:
        """The smallest maximum length of the members."""
        limits = [member.max_length for member in self.members if member.max_length is not None]
        return min(limits, default=None)

    def start(self, source: Tensor) -> EnsembleState:
        """Encode the source with every member."""
        return EnsembleState(tuple(member.start(source) for member in self.members))

    def step(self, tokens: Tensor, state: EnsembleState) -> tuple[Tensor, EnsembleState]:
        """Append the same tokens for every member; averaged log-probabilities and the new state."""
        member_steps = [
            member.step(tokens, member_state) for member, member_state in zip(self.members, state.members, strict=True)
        ]
        log_probabilities = average_log_probabilities([scores for scores, _ in member_steps], self.mean)
        return log_probabilities, EnsembleState(tuple(member_state for _, member_state in member_steps))

    def log_probabilities(self, source: Tensor, decoder_input: Tensor) -> Tensor:
        return average_log_probabilities(
            [member.log_probabilities(source, decoder_input) for member in self.members], self.mean
        )


def average_log_probabilities(log_probabilities: Sequence[Tensor], mean: EnsembleMean) -> Tensor:
    """Logarithm of the mean of distributions; a mean of logarithms is renormalized.

    >>> members = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.9, 0.1]).log()
    >>> average_log_probabilities(members, "probabilities").exp()
    tensor([0.7000, 0.3000])
    >>> average_log_probabilities(members, "logs").exp()
    tensor([0.7500, 0.2500])
    """
    if len(log_probabilities) == 1:
        return log_probabilities[0]
    stacked = torch.stack(list(log_probabilities))
    return stacked.mean(0).log_softmax(-1) if mean == "logs" else stacked.logsumexp(0) - math.log(len(stacked))
