"""A translation as search sees it: tokens, their log-probabilities, and the score they make."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Penalty = Callable[[int], float]
"""What a score is divided by for its length: ``SearchConfig.penalty``."""


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6) ^ alpha, of Wu et al. 2016 (section 6.1 of the paper); END counts.

    >>> length_penalty(1, 0.6)
    1.0
    """
    return float(((5 + length) / 6) ** alpha)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One translation. ``complete`` is False when it ran into the longest length before it ended."""

    tokens: tuple[int, ...]  # without END
    log_probabilities: tuple[float, ...]  # one a token, and one for END if complete; or none
    score: float
    complete: bool
    total: float | None = None
    """Log-probability of the whole, where those of the tokens are not known."""
    attention: NDArray[np.float32] | None = None
    """(tokens, source tokens), where somebody asked for it."""

    @property
    def log_probability(self) -> float:
        """Of the whole translation."""
        return sum(self.log_probabilities) if self.total is None else self.total

    @property
    def steps(self) -> int:
        """Tokens written, END included: what the length penalty counts."""
        return len(self.tokens) + self.complete


def new_hypothesis(
    tokens: Sequence[int], log_probabilities: Sequence[float], *, penalty: Penalty, complete: bool
) -> Hypothesis:
    """A hypothesis with the score that its log-probabilities make."""
    score = sum(log_probabilities) / penalty(len(log_probabilities))
    return Hypothesis(tuple(tokens), tuple(log_probabilities), score, complete)
