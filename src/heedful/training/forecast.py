"""What a training will come to: its scores so far, drawn on to the end.

Scores of a Transformer in training climb about evenly with the logarithm of time, until they level out. So a
straight line through the last examinations, against log(share), is drawn on to share 1: the most that can be
expected. A quarter of that climb is the least (docs/log.md has real curves). Both are widened by what such
forecasts were wrong by: a few sentences are examined, and the learning rate falls only towards the end.
"""

import math

FIRST_SHARE = 0.15
"""Before that, scores say little about the end."""
FEWEST, LAST = 3, 4
"""Examinations that the line goes through, at least and at most."""
LEVELLING = 0.25
"""Part of the straight climb that comes in any case."""
POINTS, PART = 1.0, 0.1
"""By so much, or by this part of itself, either end may be wrong at share 1; the points are more before."""
HIGHEST = 100.0
"""Of any score."""


def forecast(history: list[tuple[float, float]]) -> tuple[float, float] | None:
    """The least and the most to expect at the end, from (share of the training, score) pairs.

    None while it is too early.

    >>> low, high = forecast([(0.2, 10.0), (0.4, 20.0), (0.6, 25.8)])
    >>> round(low, 1), round(high, 1)
    (24.9, 36.5)
    >>> forecast([(0.2, 30.0), (0.3, 70.0), (0.4, 98.0)])
    (100.0, 100.0)
    """
    usable = [(math.log(share), score) for share, score in history if share >= FIRST_SHARE][-LAST:]
    if len(usable) < FEWEST:
        return None
    places = [place for place, _ in usable]
    middle, mean = sum(places) / len(places), sum(score for _, score in usable) / len(usable)
    spread = sum((place - middle) ** 2 for place in places)
    if not spread:
        return None
    slope = sum((place - middle) * (score - mean) for place, score in usable) / spread
    last = usable[-1]
    climb = max(0.0, -slope * last[0])
    low, high = last[1] + LEVELLING * climb, last[1] + climb
    points = POINTS * (1 - last[0])
    high = min(HIGHEST, high + max(points, PART * high))
    return min(high, max(0.0, low - max(points, PART * low))), high
