"""What every reader is given and gives: an open file and how to read it, and records.

A record without sentences says why in ``fault``, and cleaning counts it. What stops all is a HeedfulError.
"""

import io
from dataclasses import dataclass
from typing import Literal, NamedTuple

from heedful.config import Config
from heedful.errors import HeedfulError

Languages = tuple[str, str]
"""Codes of source and target."""


class Record(NamedTuple):
    """One pair as found; with a fault, neither sentence is there."""

    origin: str
    line: int
    source: str | None
    target: str | None
    fault: str = ""
    heads: str = ""
    """The third column, or the field "heads", as it stands: for models that read trees, and for no others."""
    note: str = ""
    """What a user should know about how this pair was chosen; the report counts it."""


class ReadingConfig(Config):
    """How files are read that hold more than pairs: TMX, PO, XLIFF, CSV."""

    inline_tags: Literal["strip", "keep"] = "strip"
    """Tags inside sentences of TMX and XLIFF: strip takes the sentence without them, keep leaves them in."""
    malformed: Literal["stop", "skip"] = "stop"
    """A unit that cannot be read: stop with its line, or skip it, count it, and go on where possible."""
    fuzzy: bool = False
    """Whether unsure translations are taken too: fuzzy ones in PO, those that need work in XLIFF."""
    encoding: str = ""
    """Of CSV and PO files that neither are UTF-8 nor say what they are, such as cp1252; empty: UTF-8."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What readers are told: the languages wanted, if known, and the settings."""

    languages: Languages | None = None
    config: ReadingConfig = ReadingConfig()  # noqa: RUF009 - frozen

    @property
    def skips(self) -> bool:
        """Whether what is malformed is passed over."""
        return self.config.malformed == "skip"


@dataclass(frozen=True, slots=True)
class Input:
    """An open file, or a member of an archive: bytes, unpacked."""

    name: str
    """As errors call it."""
    title: str
    """As records call it."""
    stream: io.BufferedIOBase
    ending: str = ""
    """Of its name, before any ``.gz``: ".tsv"."""
    first: int = 1
    """The number of its first line: later ones are of pieces."""

    def dropped(self, line: int, fault: str) -> Record:
        """A place where there is no pair."""
        return Record(self.title, line, None, None, fault)

    def malformed(self, line: int, fault: str) -> HeedfulError:
        """The error of a place that cannot be read."""
        place = f"{self.name}, line {line:,}" if line else self.name
        return HeedfulError(
            f"{place}: {fault}",
            hint="correct it, or pass over what is broken: --set reading.malformed=skip",
        )


def head_of(given: Input, size: int = 1 << 16) -> tuple[bytes, Input]:
    """The first bytes, and the same input with nothing of it taken, whether or not it can go back."""
    stream = given.stream
    if stream.seekable():
        start = stream.tell()
        head = stream.read(size)
        stream.seek(start)
        return head, given
    head = b""
    while len(head) < size and (piece := stream.read(size - len(head))):
        head += piece
    rejoined: io.BufferedReader = io.BufferedReader(_Rejoined(head, stream))
    return head, Input(given.name, given.title, rejoined, given.ending)


class _Rejoined(io.RawIOBase):
    """A stream whose first bytes have been taken already."""

    def __init__(self, head: bytes, rest: io.BufferedIOBase) -> None:
        self._head, self._rest = head, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        piece = self._head[: len(buffer)] or self._rest.read(len(buffer))
        self._head = self._head[len(piece) :]
        buffer[: len(piece)] = piece
        return len(piece)
