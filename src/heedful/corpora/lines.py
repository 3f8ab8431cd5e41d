"""Lines of text out of files: plain or gzipped, UTF-8, a stream in constant memory.

Only a line feed (with an optional carriage return before it) ends a line: U+2028, form feeds and
the like belong to sentences. Each line is decoded alone, so one bad line spoils no other.
"""

import io
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, cast

from heedful.errors import HeedfulError
from heedful.files import readable, unpacked

STANDARD_INPUT = Path("-")
LONGEST_LINE = 1 << 22
"""Bytes; what is longer is no sentence, and is passed over without being held in memory."""
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


class Line(NamedTuple):
    """One line without its ending; with a fault set, the text is empty."""

    number: int
    text: str
    fault: str = ""


def title(path: Path) -> str:
    """How messages call a file.

    >>> title(Path("corpus/train.tsv")), title(Path("-"))
    ('train.tsv', 'standard input')
    """
    return "standard input" if path == STANDARD_INPUT else path.name


def read_lines(path: Path) -> Iterator[Line]:
    """Every line of the file, numbered from one, the byte-order mark dropped."""
    with opened(path) as stream:
        yield from lines_in(stream, str(path))


def lines_in(stream: io.BufferedIOBase, name: str, before: int = 0) -> Iterator[Line]:
    """The same of an open file, which errors call by its name; ``before`` lines are behind it already."""
    for number, raw in enumerate(_raw_lines(stream), start=before + 1):
        if number == 1 and raw is not None:
            _refuse_utf16(raw, name)
            raw = raw.removeprefix(_UTF8_MARK)
        yield _decoded(number, raw)


def count_lines(path: Path) -> int:
    """Lines in the file; a last one without an ending counts."""
    count, last = 0, b"\n"
    with opened(path) as stream:
        while block := stream.read(1 << 20):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedIOBase]:
    """The bytes of the file, unpacked if it starts as gzip does, whatever its name."""
    with readable(path), ExitStack() as stack:
        yield stack.enter_context(unpacked(_plain(path, stack)))


def _plain(path: Path, stack: ExitStack) -> io.BufferedReader:
    if path != STANDARD_INPUT:
        return stack.enter_context(path.open("rb"))
    if sys.stdin is None:
        raise HeedfulError("standard input is closed", hint="name a file instead of -")
    if isinstance(sys.stdin.buffer, io.BufferedReader):
        return sys.stdin.buffer
    stream: io.BufferedReader = io.BufferedReader(
        cast(io.RawIOBase, sys.stdin.buffer)
    )  # a stand-in, in tests
    stack.callback(stream.detach)  # or it would close standard input with itself
    return stream


def _raw_lines(stream: io.BufferedIOBase) -> Iterator[bytes | None]:
    """Lines without their endings; None stands for one beyond LONGEST_LINE."""
    while piece := stream.readline(LONGEST_LINE):
        if piece.endswith(b"\n"):
            yield piece[:-1].removesuffix(b"\r")
        elif len(piece) < LONGEST_LINE:  # the file ends without a line feed
            yield piece
        else:
            _skip_line(stream)
            yield None


def _skip_line(stream: io.BufferedIOBase) -> None:
    while piece := stream.readline(LONGEST_LINE):
        if piece.endswith(b"\n"):
            return


def _decoded(number: int, raw: bytes | None) -> Line:
    if raw is None:
        return Line(number, "", fault=f"line over {LONGEST_LINE:,} bytes")
    try:
        return Line(number, raw.decode("utf-8"))
    except UnicodeDecodeError:
        return Line(number, "", fault="invalid UTF-8")


def _refuse_utf16(first: bytes, name: str) -> None:
    """Spreadsheets save "Unicode text" as UTF-16, in which every single line would be a fault."""
    if first.startswith(_UTF16_MARKS) and b"\0" in first:
        raise HeedfulError(
            f"{name} is UTF-16, not UTF-8",
            hint=f"save it as UTF-8 text, or: iconv -f UTF-16 -t UTF-8 {name} > {name}.utf8.tsv",
        )
