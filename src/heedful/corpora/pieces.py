"""Files cut into pieces that can be read apart: between lines where a line is a pair, else file by file.

The rule to remember: the pieces of a file, one behind another, give the records of the whole file.
"""

import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from heedful.corpora.formats import FORMATS, grouped, kind_of, read_pairs, read_parallel_inputs, read_texts
from heedful.corpora.lines import lines_in, title
from heedful.corpora.reading import Input, Reading, Record
from heedful.corpora.recognition import ending
from heedful.files import readable

BLOCK = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
Span = tuple[int, int]
"""Bytes of a file, from and to."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A file or two parallel ones, or some of their lines."""

    paths: tuple[Path, ...]
    spans: tuple[Span, ...] = ()
    """Of each file; none: all of it."""
    first: int = 1
    """Number of the first line."""
    plain: bool = False
    """Whether lines are text, and no pairs."""
    watched: tuple[Callable[[io.BufferedReader], io.BufferedReader], ...] = ()
    """What looks on, of each file, while lines are read; if anybody does."""

    def records(self, reading: Reading) -> Iterator[Record]:
        """What stands in it."""
        if not self.spans:
            return read_texts(self.paths) if self.plain else read_pairs(self.paths, reading)
        return self._lines(reading)

    def _lines(self, reading: Reading) -> Iterator[Record]:
        with self._opened(0) as given:
            if self.plain:
                yield from _texts(given)
            elif len(self.paths) == 1:
                yield from FORMATS[kind_of(self.paths[0])].read(given, reading)
            else:
                with self._opened(1) as other:
                    yield from read_parallel_inputs(given, other)

    @contextmanager
    def _opened(self, number: int) -> Iterator[Input]:
        path, (start, end) = self.paths[number], self.spans[number]
        with readable(path), path.open("rb", buffering=0) as file:
            file.seek(start)
            stream: io.BufferedReader = io.BufferedReader(_Part(file, end - start), BLOCK)
            stream = self.watched[number](stream) if self.watched else stream
            yield Input(str(path), title(path), stream, ending(path.name), self.first)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "paths": list(map(str, self.paths)),
            "spans": [list(span) for span in self.spans],
            "first": self.first,
            "plain": self.plain,
        }

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Self:
        """What ``to_json`` described."""
        spans = tuple((start, end) for start, end in state["spans"])
        return cls(tuple(map(Path, state["paths"])), spans, state["first"], state["plain"])


def pieces_of(paths: Sequence[Path], size: int, *, plain: bool = False) -> list[Piece]:
    """Pieces of about ``size`` bytes of the first of each group of files, in the order of the files."""
    groups = [(path,) for path in paths] if plain else grouped(paths)
    return [piece for group in groups for piece in _pieces(group, size, plain=plain)]


def identity(paths: Iterable[Path]) -> list[list[Any]]:
    """What tells that files are still the same: name, size and time of each; pipes have none."""
    found = [(path, path.stat()) for path in paths if path.is_file()]
    return [[str(path), state.st_size, state.st_mtime_ns] for path, state in found]


def has_line_pairs(group: Sequence[Path], *, plain: bool = False) -> bool:
    """Whether the files can be cut between lines: they are not packed, and each line is a pair."""
    if any(is_packed(path) for path in group):
        return False
    return plain or len(group) == 2 or kind_of(group[0]) in ("tsv", "jsonl")


def _pieces(group: tuple[Path, ...], size: int, *, plain: bool) -> list[Piece]:
    if not has_line_pairs(group, plain=plain):
        return [Piece(group, plain=plain)]
    with readable(group[0]):
        cuts, lines = _cuts(group[0], size)
    offsets = [cuts, *(_offsets(path, lines) for path in group[1:])]
    spans = [list(itertools.pairwise(each)) for each in offsets]
    together = zip(zip(*spans, strict=True), lines[:-1], strict=True)
    return [Piece(group, span, before + 1, plain) for span, before in together]


def _cuts(path: Path, size: int) -> tuple[list[int], list[int]]:
    """Where pieces begin and end, in bytes and in lines before."""
    cuts, lines = [0], [0]
    place = counted = 0
    with path.open("rb") as file:
        while block := file.read(min(BLOCK, size)):
            end = block.rfind(b"\n") + 1
            if end and place + end - cuts[-1] >= size:
                cuts.append(place + end)
                lines.append(counted + block.count(b"\n", 0, end))
            place += len(block)
            counted += block.count(b"\n")
    if cuts[-1] < place or len(cuts) == 1:
        cuts.append(place)
        lines.append(counted + 1)
    return cuts, lines


def _offsets(path: Path, lines: Sequence[int]) -> list[int]:
    """Bytes before so many lines; of the last number, the size of the file."""
    offsets = [0]
    place = counted = 0
    with readable(path), path.open("rb") as file:
        while block := file.read(BLOCK):
            inside = block.count(b"\n")
            at, passed = 0, counted
            while len(offsets) < len(lines) - 1 and lines[len(offsets)] <= counted + inside:
                for _ in range(lines[len(offsets)] - passed):
                    at = block.index(b"\n", at) + 1
                passed = lines[len(offsets)]
                offsets.append(place + at)
            place += len(block)
            counted += inside
    missing = len(lines) - 1 - len(offsets)  # a file that is too short: reading will say so
    return [*offsets, *[place] * missing, place]


def is_packed(path: Path) -> bool:
    """Whether a file is gzipped, whatever its name."""
    with readable(path), path.open("rb") as file:
        return file.read(2) == _GZIP_MAGIC


def _texts(given: Input) -> Iterator[Record]:
    for line in lines_in(given.stream, given.name, given.first):
        text = None if line.fault else line.text
        yield Record(given.title, line.number, text, text, line.fault)


class _Part(io.RawIOBase):
    """So many bytes of a file from where it stands."""

    def __init__(self, file: io.RawIOBase, size: int) -> None:
        self._file, self._left = file, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        count = self._file.readinto(memoryview(buffer)[: self._left]) or 0
        self._left -= count
        return count
