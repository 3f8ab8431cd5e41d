"""Section 5.3: the learning rate of each update, and how much of the training is done.

All schedules warm up linearly; steps count from 1. Progress counts updates or, with a time limit, seconds:
then the rate reaches zero when the time is up, on a machine of any speed.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence

from heedful.training.checkpoint import Clock
from heedful.training.config import TrainingConfig


def noam(step: int, *, d_model: int, warmup: int) -> float:
    """Learning rate of section 5.3: linear warm-up for ``warmup`` steps, then 1 / sqrt(step) decay.

    >>> noam(4000, d_model=512, warmup=4000)  # the peak
    0.000698...
    """
    return float(d_model**-0.5 * min(step**-0.5, step * warmup**-1.5))


DECAY_SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda remaining: remaining,
    "cosine": lambda remaining: 0.5 * (1 - math.cos(math.pi * remaining)),
    "constant": lambda remaining: 1.0,
}
"""Fraction of the peak rate, from the remaining fraction of the training after the warm-up (1 to 0)."""

MAX_WARMUP_FRACTION = 0.1
"""Of a run with a time limit, whose number of updates is not known in advance."""


def compute_learning_rate(step: int, progress: float, config: TrainingConfig, d_model: int, max_updates: int) -> float:
    """The rate of update ``step``; ``progress`` is the fraction of the training done before it.

    ``max_updates`` is used only without a time limit.
    """
    peak = config.learning_rate or noam(config.warmup_updates, d_model=d_model, warmup=config.warmup_updates)
    cooldown = min(1.0, (1 - progress) / config.cooldown_fraction) if config.cooldown_fraction else 1.0
    warmup_progress, warmup_fraction = step / config.warmup_updates, config.warmup_updates / max_updates
    if config.max_minutes:
        warmup_progress, warmup_fraction = max(warmup_progress, progress / MAX_WARMUP_FRACTION), 0.0
    if warmup_progress <= 1:
        factor = warmup_progress
    elif config.lr_schedule == "noam":
        factor = math.sqrt(min(1.0, config.warmup_updates / step))  # the warm-up of a timed run can end early
    else:
        remaining = (1 - progress) / max(1 - warmup_fraction, 1e-9)
        factor = DECAY_SHAPES[config.lr_schedule](min(1.0, max(0.0, remaining)))
    return peak * factor * cooldown


TIMED_VALIDATIONS = 10
"""Validations of a run with a time limit, evenly spaced."""

RESERVED_VALIDATIONS = 4.0
"""The end of a run takes about as long as this many validations: three, and writing the model."""

MIN_TRAINING_PER_VALIDATION = 8.0
"""Train at least this many times as long as the last validation took before the next one."""


class TrainingBudget:
    """Progress of a run in updates or, with a time limit, in seconds since it started reading the corpus.

    Time of earlier sessions counts up to their last checkpoint (``clock``). What follows the last update is
    reserved in advance, judging by how long validations take.
    """

    def __init__(self, max_updates: int, config: TrainingConfig, clock: Clock, start_time: float) -> None:
        self.max_updates, self.validate_every = max_updates, config.validate_every
        self.max_seconds = 60 * config.max_minutes
        self.clock = clock
        clock.reserved_seconds = max(0.01 * self.max_seconds, clock.reserved_seconds)
        self._earlier_seconds = clock.total_seconds
        self.start_time = start_time
        """When this session began, or the clock was last saved in a checkpoint."""
        self._next_validation = 0.0

    @property
    def total_seconds(self) -> float:
        """Seconds spent on this run, preparation and validations included."""
        return self._earlier_seconds + time.monotonic() - self.start_time

    @property
    def prepared_fraction(self) -> float:
        """Fraction of the time limit already used, 0 without a limit."""
        return self.total_seconds / self.max_seconds if self.max_seconds else 0.0

    def save_clock(self) -> None:
        """Record the time for a checkpoint."""
        now = time.monotonic()
        self._earlier_seconds += now - self.start_time
        self.start_time, self.clock.total_seconds = now, self._earlier_seconds

    def start_training(self) -> None:
        """Preparation ends now; progress counts from here."""
        self.clock.preparation_seconds = self.total_seconds

    def progress(self, update: int) -> float:
        """Fraction of the training, 0 to 1, that is done after this update."""
        update_progress = update / self.max_updates
        if not self.max_seconds:
            return update_progress
        preparation_seconds = self.clock.preparation_seconds
        training_seconds = max(self.max_seconds - self.clock.reserved_seconds - preparation_seconds, 1.0)
        return min(1.0, max(update_progress, (self.total_seconds - preparation_seconds) / training_seconds))

    def record_validation(self, seconds: float) -> None:
        """Adapt the reserved time and the time of the next validation to how long one takes."""
        self.clock.reserved_seconds = max(0.01 * self.max_seconds, RESERVED_VALIDATIONS * seconds)
        self._next_validation = self.total_seconds + MIN_TRAINING_PER_VALIDATION * seconds

    def should_validate(self, update: int, previous_progress: float, progress: float, updates_per_epoch: int) -> bool:
        """Whether to validate after this update, which advanced progress from ``previous_progress``."""
        if progress >= 1:
            return True
        if self.max_seconds and not self.validate_every:
            return (
                int(progress * TIMED_VALIDATIONS) > int(previous_progress * TIMED_VALIDATIONS)
                and self.total_seconds >= self._next_validation
            )
        return update % (self.validate_every or updates_per_epoch) == 0


# The forecast extrapolates scores: they rise about linearly in log(progress) until they level off. A line
# through the last validations gives the upper end; a quarter of its gain the lower (docs/log.md has real
# curves). Both get a margin, since few sentences are scored and the rate falls only towards the end.

MIN_PROGRESS = 0.15
"""Earlier scores say little about the end."""

MIN_VALIDATIONS, MAX_VALIDATIONS = 3, 4
"""Validations that the line is fitted to."""

MIN_GAIN_FRACTION = 0.25
"""Fraction of the extrapolated gain that is expected in any case."""

ABSOLUTE_MARGIN, RELATIVE_MARGIN = 1.0, 0.1
"""Margin of both ends, whichever is larger; the absolute one grows with the distance to the end."""

MAX_SCORE = 100.0


def forecast(history: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Lowest and highest expected final score from (progress, score) pairs; None while it is too early.

    >>> low, high = forecast([(0.2, 10.0), (0.4, 20.0), (0.6, 25.8)])
    >>> round(low, 1), round(high, 1)
    (24.9, 36.5)
    >>> forecast([(0.2, 30.0), (0.3, 70.0), (0.4, 98.0)])
    (100.0, 100.0)
    """
    samples = [(math.log(progress), score) for progress, score in history if progress >= MIN_PROGRESS]
    samples = samples[-MAX_VALIDATIONS:]
    if len(samples) < MIN_VALIDATIONS or len({x for x, _ in samples}) == 1:
        return None
    slope, _ = statistics.linear_regression(*zip(*samples, strict=True))
    last = samples[-1]
    gain = max(0.0, -slope * last[0])
    low, high = last[1] + MIN_GAIN_FRACTION * gain, last[1] + gain
    margin = ABSOLUTE_MARGIN * (1 - last[0])
    high = min(MAX_SCORE, high + max(margin, RELATIVE_MARGIN * high))
    return min(high, max(0.0, low - max(margin, RELATIVE_MARGIN * low))), high
