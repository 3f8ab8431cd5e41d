"""The cleaned pairs of all parts, as text on the disk: in one file or, if they are many, in shards.

data/pairs.tsv            pairs of all parts, one behind another, with their tags; or
data/pairs/00000.tsv ...  as many of them as a shard has, drawn at random: each is a sample of all
data/cleaned.json         written last: what they are, and checksums
"""

import itertools
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from heedful.corpora.filters import Pair, cleaned_pairs
from heedful.corpora.parts import Direction, Mixture, Part
from heedful.files import checksum, read_json, sync_folder, whole_file, write_json
from heedful.training.directions import DirectionPairs

PAIRS = "pairs.tsv"
SHARDS = "pairs"
CLEANED = "cleaned.json"
LINES_AT_ONCE = 10_000
BUFFERED = 1 << 18
"""Bytes of a shard that wait to be written."""

Numbered = tuple[int, Pair]
"""A pair, and the number of its part."""
Lines = Iterable[tuple[int, Sequence[bytes]]]
"""Some lines of pairs, and the number of their part."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """The cleaned pairs of all parts; in each file one part behind another."""

    folder: Path
    parts: tuple[Part, ...]
    shards: tuple[tuple[int, ...], ...]
    """Pairs of each part in each shard."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The file of each shard."""
        return tuple(self.folder / name for name in shard_names(len(self.shards)))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Pairs of each part."""
        return tuple(map(sum, zip(*self.shards, strict=True)))

    @property
    def mixture(self) -> Mixture:
        """What an epoch takes of each part."""
        return Mixture(self.sizes, tuple(part.share for part in self.parts))

    def numbered(self) -> Iterator[Numbered]:
        """Each with the number of its part."""
        return itertools.chain.from_iterable(map(self.of_shard, range(len(self.shards))))

    def of_shard(self, shard: int) -> Iterator[Numbered]:
        """Those of one shard."""
        pairs = cleaned_pairs(self.paths[shard])
        for number, size in enumerate(self.shards[shard]):
            for pair in itertools.islice(pairs, size):
                yield number, pair

    def pairs(self, *, held_out: bool | None = None) -> Iterator[Pair]:
        """All, or those that may be held out, or the others."""
        wanted = [held_out is None or part.held_out == held_out for part in self.parts]
        return (pair for number, pair in self.numbered() if wanted[number])

    def of_parts(self, numbers: Sequence[int]) -> Iterator[Pair]:
        """Those of some parts."""
        return (pair for number, pair in self.numbered() if number in numbers)

    def directions(self) -> list[DirectionPairs]:
        """The pairs of each direction that may be held out; files of one direction are one."""
        numbers: dict[Direction, list[int]] = {}
        for number, part in enumerate(self.parts):
            if part.direction and part.held_out:
                numbers.setdefault(part.direction, []).append(number)
        return [
            DirectionPairs(
                name,
                partial(self.of_parts, own),
                sum(self.sizes[number] for number in own),
                self.parts[own[0]].reverse,
            )
            for name, own in numbers.items()
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain data; the folder is known to who reads it."""
        return {"parts": [part.to_json() for part in self.parts], "shards": self.shards}

    @classmethod
    def from_json(cls, folder: Path, state: dict[str, Any]) -> Self:
        """What ``to_json`` described."""
        shards = tuple(tuple(map(int, sizes)) for sizes in state["shards"])
        return cls(folder, tuple(map(Part.from_json, state["parts"])), shards)


def shard_names(count: int) -> list[str]:
    """Files of so many shards, below the folder."""
    return [PAIRS] if count == 1 else [f"{SHARDS}/{number:05}.tsv" for number in range(count)]


def first_shard(folder: Path) -> Path:
    """Where the pairs begin, of which any number is a sample."""
    whole, *_ = shard_names(1)
    return folder / whole if (folder / whole).is_file() else folder / shard_names(2)[0]


def shard_count(pairs: int, most: int) -> int:
    """Shards that so many pairs need, if each should have at most so many."""
    return max(1, -(-pairs // most))


def shard_of(first: int, count: int, shards: int) -> NDArray[np.int64]:
    """The shards of ``count`` pairs from the ``first`` on: random, and always the same (splitmix64)."""
    value = np.arange(first, first + count, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((value ^ (value >> np.uint64(31))) % np.uint64(shards)).astype(np.int64)


def write_corpus(lines: Lines, folder: Path, parts: Sequence[Part], pairs: int, most: int) -> Corpus:
    """All lines into one file, or shared out to shards of about ``most`` pairs."""
    shards = shard_count(pairs, most)
    sizes = [[0] * len(parts) for _ in range(shards)]
    if shards == 1:
        with whole_file(folder / PAIRS) as file:
            for number, some in lines:
                sizes[0][number] += len(some)
                file.write(b"".join(some))
    else:
        _share_out(lines, folder, sizes)
    return Corpus(folder, tuple(parts), tuple(map(tuple, sizes)))


def _share_out(lines: Lines, folder: Path, sizes: list[list[int]]) -> None:
    aside, shards = folder / f"{SHARDS}.partial", len(sizes)
    shutil.rmtree(aside, ignore_errors=True)
    shutil.rmtree(folder / SHARDS, ignore_errors=True)
    aside.mkdir()
    paths = [aside / Path(name).name for name in shard_names(shards)]
    buffers = [bytearray() for _ in paths]
    first = 0
    for number, some in lines:
        chosen = shard_of(first, len(some), shards)
        first += len(some)
        for shard, count in enumerate(np.bincount(chosen, minlength=shards).tolist()):
            sizes[shard][number] += count
        for line, shard in zip(some, chosen.tolist(), strict=True):
            buffers[shard] += line
        for path, buffer in zip(paths, buffers, strict=True):
            if len(buffer) > BUFFERED:
                _append(path, buffer)
    for path, buffer in zip(paths, buffers, strict=True):
        _append(path, buffer)
    aside.rename(folder / SHARDS)
    sync_folder(folder)


def _append(path: Path, buffer: bytearray) -> None:
    """Open no longer than that: there may be more shards than files that can be open."""
    with path.open("ab") as file:
        file.write(buffer)
    buffer.clear()


def lines_of(path: Path, sizes: Sequence[int]) -> Lines:
    """The lines of a file of pairs, some at a time."""
    with path.open("rb") as file:
        for number, size in enumerate(sizes):
            left = size
            while some := list(itertools.islice(file, min(left, LINES_AT_ONCE))):
                left -= len(some)
                yield number, some


def keep_cleaned(corpus: Corpus, summary: Sequence[str], files: Sequence[Any]) -> None:
    """Write down that the corpus is clean, what it is, and which files it was made of."""
    names = shard_names(len(corpus.shards))
    sums = {name: checksum(path) for name, path in zip(names, corpus.paths, strict=True)}
    bytes_of = {name: path.stat().st_size for name, path in zip(names, corpus.paths, strict=True)}
    state = {"shards": corpus.shards, "summary": list(summary), "bytes": bytes_of, "blake2b": sums}
    state["files"] = list(files)
    write_json(corpus.folder / CLEANED, state)


def kept_cleaned(
    folder: Path, parts: Sequence[Part], files: Sequence[Any]
) -> tuple[Corpus, list[str]] | None:
    """What an earlier call has cleaned, if it came to its end and the files have not changed since."""
    if not (folder / CLEANED).is_file():
        return None
    state = read_json(folder / CLEANED, f"delete it, and the corpus is cleaned anew: {folder / CLEANED}")
    sizes = {name: path.stat().st_size for name in state["bytes"] if (path := folder / name).is_file()}
    changed = any(file not in state["files"] for file in files)  # one that is gone has not changed
    if changed or sizes != state["bytes"] or any(len(sizes) != len(parts) for sizes in state["shards"]):
        return None
    return Corpus(folder, tuple(parts), tuple(map(tuple, state["shards"]))), state["summary"]
