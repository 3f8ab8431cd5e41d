"""What a training will come to: its scores so far, drawn on to the end.

Scores of a Transformer in training climb about evenly with the logarithm of time, from the end of the
warm-up until the rate falls; that fall gives back what the logarithm takes. So a straight line through
the last examinations, against log(share), is drawn on to share 1 (docs/log.md says how well that holds).
"""

import math

FIRST_SHARE = 0.15
"""Before that, scores say little about the end."""
LAST = 4
"""Examinations that the line goes through, at most."""


def forecast(history: list[tuple[float, float]]) -> float | None:
    """The score expected at the end, from (share of the training, score) pairs; None while it is too early.

    >>> round(forecast([(0.2, 10.0), (0.4, 20.0), (0.6, 25.8)]), 1)
    33.1
    """
    usable = [(math.log(share), score) for share, score in history if share >= FIRST_SHARE][-LAST:]
    if len(usable) < 2:
        return None
    places = [place for place, _ in usable]
    middle, mean = sum(places) / len(places), sum(score for _, score in usable) / len(usable)
    spread = sum((place - middle) ** 2 for place in places)
    if not spread:
        return None
    slope = sum((place - middle) * (score - mean) for place, score in usable) / spread
    last = usable[-1]
    return max(0.0, last[1] - slope * last[0]) if slope > 0 else last[1]
