"""A set of 64-bit hashes at 8 bytes a slot, so that ten million pairs fit in 300 MB.

Open addressing with linear probing. Two different texts share a hash once in 10^19 comparisons:
among ten million pairs, the odds of one false duplicate are about 1 in 400,000.
"""

import hashlib
from array import array

import numpy as np

_FULLEST = 0.6
"""Share of slots in use at which the table doubles; probing slows down beyond."""


def sentence_hash(text: str) -> int:
    """64 bits of BLAKE2b: the same on every machine and in every run, unlike ``hash``.

    >>> sentence_hash("Guten Morgen") == sentence_hash("Guten Morgen") != sentence_hash("guten Morgen")
    True
    """
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class SeenHashes:
    """Remembers every hash it is shown.

    >>> seen = SeenHashes()
    >>> seen.add(7), seen.add(7), len(seen)
    (True, False, 1)
    """

    def __init__(self, capacity: int = 1024) -> None:
        self._slots = _empty_table(1 << (max(capacity, 2) - 1).bit_length())
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, value: int) -> bool:
        """Remember the hash; True if it is new."""
        if not self._insert(value or 1):  # zero marks an empty slot
            return False
        self._count += 1
        if self._count > _FULLEST * len(self._slots):
            self._double()
        return True

    def _insert(self, value: int) -> bool:
        slots, mask = self._slots, len(self._slots) - 1
        slot = value & mask
        while occupant := slots[slot]:
            if occupant == value:
                return False
            slot = (slot + 1) & mask
        slots[slot] = value
        return True

    def _double(self) -> None:
        """Move every hash to a table of twice the size, all at once instead of one by one."""
        old = np.frombuffer(self._slots, dtype=np.uint64)
        values = old[old != 0]
        size = 2 * len(self._slots)
        homes = (values & np.uint64(size - 1)).astype(np.int64)
        order = np.argsort(homes)
        ranks = np.arange(len(order))
        # In the order of homes, each takes its home or the slot after its predecessor's.
        places = np.maximum.accumulate(homes[order] - ranks) + ranks
        inside = places < size
        self._slots = _empty_table(size)
        np.frombuffer(self._slots, dtype=np.uint64)[places[inside]] = values[order[inside]]
        for value in values[order[~inside]].tolist():  # the few that wrap around the end
            self._insert(value)


def _empty_table(size: int) -> "array[int]":
    return array("Q", bytes(8 * size))
