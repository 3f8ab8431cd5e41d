"""Duplicates among more hashes than fit in memory: the first of those alike, in the order given, is kept.

Hashes are looked at in parts by their highest bits, so that memory stays the same however many there are;
only a byte a pair, whether it stays, is kept of all.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

AT_ONCE = 1 << 22
"""Hashes that are sorted at a time; each takes about 32 bytes then."""


def first_ones(hashes: Sequence[NDArray[np.uint64]], at_once: int = AT_ONCE) -> list[NDArray[np.bool_]]:
    """For each hash of each array whether it is the first of its kind.

    >>> [kept.tolist() for kept in first_ones([np.array([7, 8, 7], "u8"), np.array([9, 8], "u8")])]
    [[True, True, False], [True, False]]
    """
    kept = [np.ones(len(each), dtype=np.bool_) for each in hashes]
    starts = np.cumsum([0, *map(len, hashes)])
    parts = max(1, -(-int(starts[-1]) // at_once))
    for number in range(parts):
        found = [_members(each, number, parts) for each in hashes]
        values = np.concatenate([each[own] for each, own in zip(hashes, found, strict=True)] or [_NONE])
        places = np.concatenate([own + start for own, start in zip(found, starts, strict=False)] or [_NONE])
        order = np.argsort(values, kind="stable")  # stable: of those alike the first stays first
        again = order[1:][values[order[1:]] == values[order[:-1]]]
        later = places[again]
        owners = np.searchsorted(starts, later, side="right") - 1
        for owner in np.unique(owners).tolist():
            kept[owner][later[owners == owner] - starts[owner]] = False
    return kept


_NONE: NDArray[Any] = np.empty(0, dtype=np.int64)


def _members(hashes: NDArray[np.uint64], number: int, parts: int) -> NDArray[np.int64]:
    """Which of the hashes belong to a part, by their higher half."""
    if parts == 1:
        return np.arange(len(hashes))
    part = (hashes >> np.uint64(32)) * np.uint64(parts) >> np.uint64(32)
    return np.flatnonzero(part == number)
