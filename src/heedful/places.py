"""A source id that carries, besides its piece, the place of its word in a dependency tree.

Everything between the tokenizer and the encoder hands on plain integers, so a tree travels inside them: the
lowest bits are the piece, then the number of its word in the sentence, then the number of that word's head.
Words count from 1. Word 0 is none (the end, padding, text without a tree), and head 0 is that of a root.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

BITS = 21
LIMIT = 1 << 3 * BITS
"""Above every id; three fields leave the sign of 64 bits alone."""
_FIELD = (1 << BITS) - 1

Ids = TypeVar("Ids", bound=Any)
"""An integer, or an array or tensor of integers."""


def packed(piece: int, word: int, head: int) -> int:
    """One id of three numbers.

    >>> unpacked(packed(7, 3, 1))
    (7, 3, 1)
    """
    return piece | word << BITS | head << 2 * BITS


def unpacked(ids: Ids) -> tuple[Ids, Ids, Ids]:
    """Piece, word and head of one id or of many."""
    return ids & _FIELD, ids >> BITS & _FIELD, ids >> 2 * BITS


def pieces_of(ids: Sequence[int]) -> list[int]:
    """The ids as they stand in the vocabulary; those that carry no tree are just that."""
    return [unpacked(identity)[0] for identity in ids]
