"""A large input cut into shards of lines: the same cut every time, each shard read without the others.

The rule to remember: a shard is a whole number of windows, so that every line is translated in the same
company as without shards, and the result is the same to the byte.
"""

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

from heedful.commands.resuming import of_file
from heedful.corpora.lines import Line, count_lines, lines_in, opened
from heedful.engines.lines import WINDOW
from heedful.errors import HeedfulError
from heedful.files import read_json, readable, unpacked, write_json

MANIFEST = "manifest.json"
ENDINGS = {"text": "", "tsv": ".tsv", "jsonl": ".jsonl"}
"""What the name of a shard's translation adds to the name of its input."""
_READ = 1 << 20


@dataclass(frozen=True, slots=True)
class Shard:
    """Some lines of one input."""

    number: int
    """Among the shards of all inputs, from 0."""
    source: int
    """Which input, from 0."""
    start: int
    """The byte at which it starts; 0 in a packed file, which is one shard."""
    before: int
    """Lines of the input before it."""
    lines: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is translated, how, and in which pieces."""

    work: dict[str, Any]
    """Model, engine, search: what tells this work from another on the same inputs."""
    inputs: tuple[dict[str, Any], ...]
    """Path, bytes and time of change of each."""
    shard_lines: int
    form: str
    shards: tuple[Shard, ...]

    @property
    def name(self) -> str:
        """A short name of this very work, which each finished shard bears."""
        told = json.dumps([self.work, self.inputs, self.shard_lines], sort_keys=True)
        return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()

    def path(self, shard: Shard) -> Path:
        """The input of a shard."""
        return Path(self.inputs[shard.source]["path"])

    def output(self, folder: Path, shard: Shard) -> Path:
        """Where the translation of a shard stands."""
        name = self.path(shard).name.removesuffix(".gz") + ENDINGS[self.form]
        return folder / f"{shard.number:06}-{name}"

    def write(self, folder: Path) -> None:
        """Write it into the folder."""
        write_json(folder / MANIFEST, {"name": self.name, **asdict(self)})

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The one in the folder."""
        hint = "remove the folder to begin anew"
        found = read_json(folder / MANIFEST, hint)
        try:
            shards = tuple(Shard(**each) for each in found["shards"])
            inputs = tuple(found["inputs"])
            manifest = cls(found["work"], inputs, found["shard_lines"], found["form"], shards)
        except (KeyError, TypeError) as error:
            raise HeedfulError(f"{folder / MANIFEST} is damaged: {error}", hint=hint) from None
        if manifest.name != found.get("name"):
            raise HeedfulError(f"{folder / MANIFEST} is damaged: its name does not fit", hint=hint)
        return manifest


def whole_windows(lines: int) -> int:
    """So many lines, or a few more: only whole windows keep every line in its company.

    >>> whole_windows(1), whole_windows(2048), whole_windows(5000)
    (2048, 2048, 6144)
    """
    return -(-lines // WINDOW) * WINDOW


def cut(inputs: Sequence[Path], shard_lines: int) -> Iterator[Shard]:
    """The shards of all inputs, in order."""
    number = 0
    for source, path in enumerate(inputs):
        before = 0
        for start, lines in _pieces(path, shard_lines):
            yield Shard(number, source, start, before, lines)
            number, before = number + 1, before + lines


def is_packed(path: Path) -> bool:
    """Whether it is a gzip file, in the middle of which nobody can begin to read."""
    with readable(path), path.open("rb") as plain, unpacked(plain) as stream:
        return stream is not plain


def _pieces(path: Path, shard_lines: int) -> Iterator[tuple[int, int]]:
    if not is_packed(path):
        with opened(path) as stream:
            yield from _cuts(stream, shard_lines)
    elif lines := count_lines(path):
        yield 0, lines


def _cuts(stream: io.BufferedIOBase, every: int) -> Iterator[tuple[int, int]]:
    """The byte at which each piece starts, and its lines; as in reading, only a line feed ends a line."""
    start = end = lines = 0
    last = b"\n"
    while block := stream.read(_READ):
        last = block[-1:]
        while (found := block.count(b"\n")) >= every - lines:
            rest = block.split(b"\n", every - lines)[-1]
            end += len(block) - len(rest)
            yield start, every
            start, lines, block = end, 0, rest
        lines, end = lines + found, end + len(block)
    if end > start:
        yield start, lines + (last != b"\n")


def read_shard(manifest: Manifest, shard: Shard) -> Iterator[Line]:
    """The lines of a shard, with their numbers in the input; an error if the input is another by now."""
    path = manifest.path(shard)
    check_same(manifest.inputs[shard.source])
    read = 0
    with opened(path) as stream:
        if shard.start:
            stream.seek(shard.start)
        for line in islice(lines_in(stream, str(path), shard.before + 1), shard.lines):
            read += 1
            yield line
    check_same(manifest.inputs[shard.source])
    if read != shard.lines:
        raise HeedfulError(f"{path} has {read:,} lines where there were {shard.lines:,}", hint=_CHANGED)


_CHANGED = "let files be while they are translated, and begin anew into another folder"


def check_same(identity: dict[str, Any]) -> None:
    """An error if a file is not what it was when the work began."""
    path = Path(identity["path"])
    with readable(path):
        if of_file(path) != identity:
            raise HeedfulError(f"{path} has changed since the work began", hint=_CHANGED)
