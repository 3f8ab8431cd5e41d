"""A corpus of several parts, and how much of each an epoch sees.

The rule to remember: which pairs an epoch sees depends on the seed and the epoch alone, so a resumed run
sees the same.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from heedful.errors import HeedfulError

Item = TypeVar("Item")
MOST = 0.99
"""Of an epoch that parts with shares may make up, if there are others."""


@dataclass(frozen=True, slots=True)
class Part:
    """Files of pairs of one kind."""

    paths: tuple[Path, ...]
    languages: tuple[str, str] | None = None
    """Of their source and target, where known."""
    tags: tuple[str, ...] = ()
    """What stands before each source, behind cleaning (text/tags.py)."""
    share: float = 0.0
    """Of the pairs that an epoch sees; 0: all of its pairs once."""
    held_out: bool = True
    """Whether some of its pairs may be set aside for validation."""

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise HeedfulError(
                f"{self.name}: {self.share:g} is no share of the pairs",
                hint="a share is between 0 and 1, such as 0.3",
            )

    @property
    def name(self) -> str:
        """For people: the files, and the tags if there are any."""
        files = " and ".join(map(str, self.paths))
        return f"{files} ({', '.join(self.tags)})" if self.tags else files

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"paths": list(map(str, self.paths))}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Self:
        """What ``to_json`` described."""
        languages = (state["languages"][0], state["languages"][1]) if state["languages"] else None
        return cls(
            tuple(map(Path, state["paths"])),
            languages,
            tuple(state["tags"]),
            float(state["share"]),
            bool(state["held_out"]),
        )


def check_shares(parts: Sequence[Part]) -> None:
    """Shares must leave room for the parts that are seen whole."""
    total, whole = sum(part.share for part in parts), any(not part.share for part in parts)
    if total > MOST and whole:
        raise HeedfulError(
            f"the shares of an epoch add up to {total:g}, which leaves nothing for the other pairs",
            hint="let them add up to less than 1",
        )


@dataclass(frozen=True, slots=True)
class Mixture:
    """Parts that lie one behind another, and what an epoch takes of each."""

    sizes: tuple[int, ...]
    """Pairs that each part has."""
    shares: tuple[float, ...]
    """Of the pairs of an epoch; 0: the part once."""

    @property
    def whole(self) -> bool:
        """Whether an epoch is simply every pair once."""
        return not any(self.shares)

    @property
    def counts(self) -> tuple[int, ...]:
        """Pairs of each part in an epoch; if all parts have shares, it is as long as all of them together.

        >>> Mixture((600, 9000), (0.0, 0.4)).counts
        (600, 400)
        >>> Mixture((900, 100), (0.5, 0.5)).counts
        (500, 500)
        """
        shared = math.fsum(self.shares)
        once = sum(size for size, share in zip(self.sizes, self.shares, strict=True) if not share)
        total = once / (1 - shared) if once else sum(self.sizes) / max(shared, 1e-9)
        return tuple(
            (max(1, round(share * total)) if share else size) if size else 0
            for size, share in zip(self.sizes, self.shares, strict=True)
        )

    @property
    def weights(self) -> tuple[float, ...]:
        """How often an epoch sees a pair of each part, on average."""
        return tuple(count / max(size, 1) for count, size in zip(self.counts, self.sizes, strict=True))

    def indices(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """The pairs of an epoch; a part is gone through to its end before any of its pairs comes again."""
        starts = accumulate(self.sizes, initial=0)
        chosen = [
            start + _next(size, count, [seed, number], epoch * count) if share else start + np.arange(size)
            for number, (start, size, count, share) in enumerate(
                zip(starts, self.sizes, self.counts, self.shares, strict=False)
            )
        ]
        return np.concatenate(chosen).astype(np.int64)


def _next(size: int, count: int, seed: list[int], first: int) -> NDArray[np.int64]:
    """``count`` items from the ``first`` on of an endless row: all of them shuffled, again and again."""
    if not size:
        return np.empty(0, np.int64)
    rounds = range(first // size, (first + count - 1) // size + 1)
    row = np.concatenate([np.random.default_rng([*seed, number]).permutation(size) for number in rounds])
    start = first - rounds[0] * size
    found: NDArray[np.int64] = row[start : start + count]
    return found


def repeated(items: Iterator[Item], weight: float) -> Iterator[Item]:
    """Every item ``weight`` times, on average, at even distances.

    >>> "".join(repeated(iter("abcd"), 1.5)), "".join(repeated(iter("abcd"), 0.5))
    ('abbcdd', 'bd')
    """
    for number, item in enumerate(items):
        for _ in range(math.floor((number + 1) * weight) - math.floor(number * weight)):
            yield item
