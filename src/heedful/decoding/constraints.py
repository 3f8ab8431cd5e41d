"""What a translation must contain: terms as sequences of tokens, and how far what is written has met them.

A term may be spelled in several ways (with or without the space before it); one of them is enough. Each
occurrence counts for one constraint only, stands uninterrupted, and is no part of a longer word. The rule to
remember: how far a hypothesis has come is a function of its tokens alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

Constraint = tuple[tuple[int, ...], ...]
"""Spellings of a term in tokens, none of them empty."""
Joined = Callable[[int, int], bool]
"""Whether two neighbouring tokens are in one word."""
MOST_READINGS = 64
"""Ways to read what is written that are followed at a time; more come only of terms made of one another."""


def never_joined(before: int, after: int) -> bool:
    """For tokens that are words."""
    return False


@dataclass(frozen=True, slots=True)
class Constraints:
    """What the translations of some sentences must contain."""

    sentences: Sequence[Sequence[Constraint]]
    joined: Joined = never_joined


class Reading(NamedTuple):
    """One way to read what is written: constraints met, and one that is being written, if any."""

    met: int
    """A bit for each."""
    begun: int = -1
    """Its number."""
    spelling: tuple[int, ...] = ()
    written: int = 0
    """Tokens of the spelling; all of them, until the next token shows whether the word ends there."""


Progress = frozenset[Reading]
"""All ways to read what is written, but for those that others are at least as good as."""
NOTHING: Progress = frozenset({Reading(0)})


class Tracker:
    """Follows the constraints of one sentence."""

    def __init__(self, constraints: Sequence[Constraint], joined: Joined = never_joined) -> None:
        self.constraints, self.joined = constraints, joined
        self._needs = [min(map(len, spellings)) for spellings in constraints]
        self._distances: dict[int, int] = {}
        self._left: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        self._twins = [
            sum(1 << j for j in range(i) if constraints[j] == constraints[i]) for i in range(len(constraints))
        ]

    @cached_property
    def tokens(self) -> int:
        """Tokens of all constraints, each spelled in the shortest way: the furthest that one can come."""
        return sum(self._needs)

    def advanced(self, progress: Progress, last: int, token: int) -> Progress:
        """How far one has come with another token, after ``last``."""
        readings: set[Reading] = set()
        for reading in progress:
            if self._is_open(reading):
                if reading.spelling[reading.written] == token:
                    readings.add(reading._replace(written=reading.written + 1))
            elif reading.begun < 0 or not self.joined(last, token):
                met = self._met(reading)
                readings.add(Reading(met))
                readings.update(
                    Reading(met, number, spelling, 1)
                    for number, spelling in self._beginnings(met, last)
                    if spelling[0] == token
                )
        return self._undominated(readings)

    def helpful(self, progress: Progress, last: int) -> set[int]:
        """The next tokens that bring one further."""
        found: set[int] = set()
        for reading in progress:
            if self._is_open(reading):
                found.add(reading.spelling[reading.written])
            else:
                found.update(spelling[0] for _, spelling in self._beginnings(self._met(reading), last))
        return found

    def distance(self, progress: Progress) -> int:
        """Tokens of constraints written, from 0 to ``tokens``."""
        return max(map(self._distance, progress))

    def missing(self, progress: Progress) -> int:
        """Constraints that are not met, if nothing more is written."""
        return len(self.constraints) - max(self._met(reading).bit_count() for reading in progress)

    def _met(self, reading: Reading) -> int:
        """The constraints met if the word ends here."""
        finished = reading.begun >= 0 and not self._is_open(reading)
        return reading.met | (1 << reading.begun) if finished else reading.met

    def _is_open(self, reading: Reading) -> bool:
        return reading.written < len(reading.spelling)

    def _distance(self, reading: Reading) -> int:
        if reading.met not in self._distances:
            self._distances[reading.met] = sum(
                need for number, need in enumerate(self._needs) if reading.met >> number & 1
            )
        met = self._distances[reading.met]
        return met + (min(reading.written, self._needs[reading.begun]) if reading.begun >= 0 else 0)

    def _beginnings(self, met: int, last: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Constraints that can begin after a token."""
        if met not in self._left:
            self._left[met] = list(self._unmet(met))
        return (each for each in self._left[met] if not self.joined(last, each[1][0]))

    def _unmet(self, met: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Numbers and spellings of what is left; of constraints that are the same, only the first."""
        for number, spellings in enumerate(self.constraints):
            if not met >> number & 1 and self._twins[number] & ~met == 0:
                yield from ((number, spelling) for spelling in spellings)

    def _undominated(self, readings: set[Reading]) -> Progress:
        idle = {reading.met for reading in readings if reading.begun < 0}
        kept = [
            reading
            for reading in readings
            if not any(
                reading.met | met == met
                and (met != reading.met or reading.begun >= 0)
                and (reading.begun < 0 or met >> reading.begun & 1)
                for met in idle
            )
        ]
        if len(kept) > MOST_READINGS:
            kept = sorted(kept, key=lambda reading: (-self._distance(reading), reading))[:MOST_READINGS]
        return frozenset(kept)
