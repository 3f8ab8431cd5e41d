"""Section 5.3: the learning rate of each update. All climb for ``warmup`` steps; steps count from 1."""

import math
from collections.abc import Callable

from heedful.training.config import TrainingConfig


def noam(step: int, *, width: int, warmup: int) -> float:
    """Learning rate of section 5.3: climb for ``warmup`` steps, then fall as 1 / sqrt(step).

    >>> noam(4000, width=512, warmup=4000)  # the peak
    0.000698...
    """
    return float(width**-0.5 * min(step**-0.5, step * warmup**-1.5))


SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda rest: rest,
    "cosine": lambda rest: 0.5 * (1 - math.cos(math.pi * rest)),
    "constant": lambda rest: 1.0,
}
"""Share of the highest rate, from the part of the way after the warm-up that remains (1 to 0)."""


LONGEST_WARMUP = 0.1
"""Share of a training by the clock: how many updates that is, nobody knows beforehand."""


def learning_rate(step: int, share: float, config: TrainingConfig, width: int, total: int) -> float:
    """The rate of update ``step``, before which ``share`` of the training is over.

    ``total`` is the number of updates, where that is known: without a limit of time.
    """
    peak = config.rate or noam(config.warmup, width=width, warmup=config.warmup)
    return peak * _shape(step, share, config, total) * _cooldown(share, config.cooldown)


def _shape(step: int, share: float, config: TrainingConfig, total: int) -> float:
    climbed, climb = step / config.warmup, config.warmup / total
    if config.minutes:
        climbed, climb = max(climbed, share / LONGEST_WARMUP), 0.0
    if climbed <= 1:
        return climbed
    if config.schedule == "noam":
        return math.sqrt(config.warmup / step)
    rest = (1 - share) / max(1 - climb, 1e-9)
    return SHAPES[config.schedule](min(1.0, max(0.0, rest)))


def _cooldown(share: float, length: float) -> float:
    return min(1.0, (1 - share) / length) if length else 1.0
