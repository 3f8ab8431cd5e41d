"""The seam between models and search: start, step, reorder. Search knows nothing else of a model."""

from collections.abc import Sequence
from typing import Protocol, Self, TypeVar

from torch import Tensor


class DecoderState(Protocol):
    """What a model remembers of the hypotheses it is writing: one row each, side by side by sentence."""

    def reorder(self, rows: Tensor) -> Self:
        """The state of the chosen rows, given as (sentences, hypotheses); sentences may be left out."""
        ...


State = TypeVar("State", bound=DecoderState)


class StepwiseDecoder(Protocol[State]):
    """A model that writes its output one token at a time."""

    def start(self, source: Tensor) -> State:
        """Read padded source ids (sentences, length); one empty hypothesis for each sentence."""
        ...

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Write one token a row; returns log-probabilities of the next (rows, vocabulary)."""
        ...


Prefixes = Sequence[Sequence[int]]
"""For each sentence the tokens its translation must start with; often none."""
