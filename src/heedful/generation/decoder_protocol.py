"""What search needs of a model (start, step, reorder), and the hypotheses it returns. Torch-free."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


class DecoderState(Protocol):
    """State of the hypotheses being generated: one row each, adjacent per sentence."""

    def reorder(self, rows: "Tensor") -> Self:
        """Select rows, given as (sentences, hypotheses); sentences may be dropped."""


State = TypeVar("State", bound=DecoderState)


class StepwiseDecoder(Protocol[State]):
    """A model that generates one token at a time."""

    def start(self, source: "Tensor") -> State:
        """Encode padded source ids (sentences, length); one empty hypothesis per sentence."""

    def step(self, tokens: "Tensor", state: State) -> "tuple[Tensor, State]":
        """Append one token per row; log-probabilities of the next (rows, vocabulary) and the new state."""


Prefixes = Sequence[Sequence[int]]
"""The tokens that the translation of each sentence must start with."""

Penalty = Callable[[int], float]
"""Divisor of the score by length: ``GenerationConfig.penalty``."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One translation; not ``complete`` if it reached the maximum length before END."""

    tokens: tuple[int, ...]  # without END
    log_probabilities: tuple[float, ...]  # per token, END included if complete; or empty
    score: float
    complete: bool
    log_probability: float
    """Of the full translation; the sum of ``log_probabilities`` unless these are unknown."""
    attention: NDArray[np.float32] | None = None
    """(tokens, source tokens), if requested."""

    @property
    def steps(self) -> int:
        """Generated tokens, END included: the length in the length penalty."""
        return len(self.tokens) + self.complete


def new_hypothesis(
    tokens: Sequence[int], log_probabilities: Sequence[float], *, penalty: Penalty, complete: bool
) -> Hypothesis:
    """Build a hypothesis; its score is the length-penalized sum of log-probabilities."""
    total = sum(log_probabilities)
    score = total / penalty(len(log_probabilities))
    return Hypothesis(tuple(tokens), tuple(log_probabilities), score, complete, total)
