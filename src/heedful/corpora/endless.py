"""Records of a file again and again, from any place on: what a stream of pairs is drawn from."""

import io
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from heedful.corpora.pieces import Piece, has_line_pairs
from heedful.corpora.reading import Record
from heedful.errors import HeedfulError

Reader = Callable[[Piece], Iterator[Record]]
"""Reads a piece as its part of the corpus is read."""


class Position(NamedTuple):
    """Where to go on reading a file, or two parallel ones."""

    turn: int = 0
    """Times that it was read to its end."""
    record: int = 0
    """Records of it that were read since."""
    offsets: tuple[int, ...] = ()
    """Bytes of each file that these take, where pairs are lines; else none."""


class Endless:
    """The records of one file, or of two parallel ones, from a position on; after the end comes the start."""

    def __init__(self, paths: tuple[Path, ...], read: Reader, position: Position, *, plain: bool) -> None:
        self.paths, self.position = paths, position
        self._read, self._plain = read, plain
        self._by_lines = has_line_pairs(paths, plain=plain)
        self._counted: list[list[int]] = []
        self._records: Iterator[Record] | None = None

    def take(self, count: int, *, again: bool = True) -> list[Record]:
        """The next records; not ``again`` from the start on, there may be fewer."""
        found: list[Record] = []
        while len(found) < count:
            if self._records is None:
                self._records = self._opened()
            some = list(islice(self._records, count - len(found)))
            found += some
            self.position = self._behind(len(some))
            if len(found) < count:
                if not again:
                    break
                if not self.position.record:
                    raise HeedfulError(f"{self.paths[0]} holds no pairs", hint="leave it out")
                self.position, self._records = Position(self.position.turn + 1), None
        return found

    def close(self) -> None:
        """Let go of the files."""
        self._records = None

    def _opened(self) -> Iterator[Record]:
        if not self._by_lines:
            records = self._read(Piece(self.paths, plain=self._plain))
            return islice(records, self.position.record, None)
        starts = self.position.offsets or (0,) * len(self.paths)
        spans = tuple((at, path.stat().st_size) for at, path in zip(starts, self.paths, strict=True))
        self._counted = [[at] for at in starts]
        piece = Piece(
            self.paths, spans, self.position.record + 1, self._plain, tuple(map(_count, self._counted))
        )
        return self._read(piece)

    def _behind(self, count: int) -> Position:
        offsets = tuple(at for [at] in self._counted) if self._by_lines else ()
        return Position(self.position.turn, self.position.record + count, offsets)


def _count(place: list[int]) -> Callable[[io.BufferedReader], io.BufferedReader]:
    """How a stream is opened whose lines add up in ``place``."""
    return lambda stream: _Counted(stream, place)  # type: ignore[return-value]


class _Counted:
    """A stream of lines that says how many bytes were taken of it."""

    def __init__(self, stream: io.BufferedReader, place: list[int]) -> None:
        self._stream, self._place = stream, place

    def readline(self, size: int = -1) -> bytes:
        line = self._stream.readline(size)
        self._place[0] += len(line)
        return line
