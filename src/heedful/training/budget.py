"""How much of a training is behind it: counted in updates or, where minutes are given, by the clock.

With minutes, the learning rate falls with the time that is left, so that it reaches zero when the time is up
however quick the machine is; what comes after the last update (the last examination, writing the model) is
reserved beforehand, by what examinations took so far.
"""

import time

from heedful.training.checkpoint import TrainingState
from heedful.training.config import TrainingConfig

EXAMINATIONS = 10
"""In a training by the clock, at even distances."""
RESERVED_EXAMINATIONS = 4.0
"""The end takes about so many times what an examination on the way takes: three, and the writing."""
LEARNING = 8.0
"""So many times as long as an examination took must the next one be away: time is for learning."""


class Budget:
    """Of one run: all its sittings count, up to their last checkpoint, from the reading of the corpus on."""

    def __init__(self, total: int, config: TrainingConfig, state: TrainingState, started: float) -> None:
        self.total, self.every = total, config.validate_every
        self.seconds = 60 * config.minutes
        self.reserved = max(0.01 * self.seconds, state.reserved)
        self._begun = state.begun
        self._before, self._started = state.spent, started
        self._next = 0.0

    @property
    def spent(self) -> float:
        """Seconds of work on this run, preparation and examinations included."""
        return self._before + time.monotonic() - self._started

    @property
    def prepared(self) -> float:
        """Part of the time that is over already when learning begins."""
        return self.spent / self.seconds if self.seconds else 0.0

    def begin(self) -> float:
        """Learning begins now: of the time that is left from here, ``share`` tells how much is over."""
        self._begun = self.spent
        return self._begun

    def share(self, update: int) -> float:
        """Part of the learning, from 0 to 1, that is over after this update."""
        by_updates = update / self.total
        if not self.seconds:
            return by_updates
        whole = max(self.seconds - self.reserved - self._begun, 1.0)
        return min(1.0, max(by_updates, (self.spent - self._begun) / whole))

    def examined(self, seconds: float) -> None:
        """An examination took so long."""
        self.reserved = max(0.01 * self.seconds, RESERVED_EXAMINATIONS * seconds)
        self._next = self.spent + LEARNING * seconds

    def validates(self, update: int, before: float, share: float, per_epoch: int) -> bool:
        """Whether to examine the model after this update, which brought the share from ``before`` to this."""
        if share >= 1:
            return True
        if self.seconds and not self.every:
            return int(share * EXAMINATIONS) > int(before * EXAMINATIONS) and self.spent >= self._next
        return update % (self.every or per_epoch) == 0
