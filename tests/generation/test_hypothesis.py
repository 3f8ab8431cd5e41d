"""Scores of hypotheses, computed by hand."""

import math

import pytest

from heedful.generation.config import length_penalty
from heedful.generation.decoder_protocol import new_hypothesis


@pytest.mark.parametrize(
    ("length", "alpha", "expected"),
    [
        (1, 0.6, 1.0),
        (7, 1.0, 2.0),
        (7, 0.6, 1.515717),  # 2 ^ 0.6
        (19, 0.5, 2.0),  # sqrt(24 / 6)
        (13, 0.0, 1.0),
        (1, 0.0, 1.0),
    ],
)
def test_length_penalty_by_hand(length: int, alpha: float, expected: float) -> None:
    assert length_penalty(length, alpha) == pytest.approx(expected, abs=5e-7)


def test_length_penalty_grows_with_length() -> None:
    penalties = [length_penalty(length, 0.6) for length in range(1, 50)]
    assert penalties == sorted(set(penalties))


def test_score_by_hand() -> None:
    # Six tokens and END: seven log-probabilities, and (12 / 6) ^ 1 = 2.
    history = [math.log(p) for p in (0.5, 0.25, 0.5, 1.0, 0.5, 0.5, 0.25)]
    hypothesis = new_hypothesis(
        [3, 4, 5, 6, 7, 8], history, penalty=lambda length: length_penalty(length, 1.0), complete=True
    )
    assert hypothesis.log_probability == pytest.approx(-8 * math.log(2))
    assert hypothesis.score == pytest.approx(-4 * math.log(2))
    assert hypothesis.tokens == (3, 4, 5, 6, 7, 8)
    assert hypothesis.log_probabilities == tuple(history)


def test_empty_hypothesis_scores_zero() -> None:
    assert new_hypothesis([], [], penalty=lambda length: length_penalty(length, 0.6), complete=True).score == 0
