"""Files of word vectors: three forms, each plain or gzipped, read as a stream.

glove       a word and its numbers on a line
word2vec    the same after a first line of two numbers: how many words, how many numbers a word
binary      word2vec's .bin: such a first line, then for each word itself, a space, 4 bytes a number

Only what is kept takes memory. A file is opened twice, first to see its form.
"""

import io
import re
import sys
from array import array
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from heedful.errors import HeedfulError
from heedful.files import readable, unpacked, whole_file

Form = Literal["glove", "word2vec", "binary"]
Matrix = NDArray[np.float32]

_MOST_NUMBERS = 65_536  # a word; what promises more is another kind of file
_LONGEST_LINE = 1 << 22
_LONGEST_WORD = 1 << 16
_BLOCK = 1 << 20
_UTF8_MARK = b"\xef\xbb\xbf"
_HEADER = re.compile(rb"\s*(\d{1,15})\s+(\d{1,15})\s*")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")
_DAMAGED = "it may be cut short or damaged: fetch it again"
_WHAT = "word vectors are GloVe text, word2vec text or word2vec binary"


@dataclass(frozen=True, slots=True)
class Layout:
    """What the beginning of a file says about the rest."""

    form: Form
    dimension: int
    """Numbers a word."""
    promised: int | None = None
    """Words, as the first line has it."""


def read_layout(path: Path) -> Layout:
    """The form and the dimension of a file, from its beginning alone."""
    if path.exists() and not path.is_file():
        raise HeedfulError(f"{path} is no ordinary file", hint="word vectors are read twice: name a file")
    with _opened(path) as stream:
        first = next(_lines(stream, path), b"")
        _refuse_others(first, path)
        header = _HEADER.fullmatch(first)
        if header is None:
            return Layout("glove", _glove_dimension(first, path))
        promised, dimension = int(header[1]), int(header[2])
        if not 1 <= dimension <= _MOST_NUMBERS:
            raise HeedfulError(f"{path.name} promises {dimension:,} numbers a word", hint=_WHAT)
        sample = stream.read(32 * dimension + _LONGEST_WORD)
    form: Form = "binary" if _is_binary(sample, dimension) else "word2vec"
    return Layout(form, dimension, promised)


def read_rows(path: Path, only: Container[str] | None, limit: int | None) -> tuple[tuple[str, ...], Matrix]:
    """The words that are kept, and a row of numbers for each; of a word that is there twice, the first."""
    layout = read_layout(path)
    kept = _Kept(only, limit)
    with _opened(path) as stream:
        read = _read_binary if layout.form == "binary" else _read_text
        if not kept.full:
            read(stream, layout, kept, path)
    matrix = np.frombuffer(kept.numbers, dtype=np.float32).reshape(-1, layout.dimension)
    unit = "word" if layout.form == "binary" else "line"
    for block in range(0, len(matrix), _LONGEST_WORD):
        bad = np.flatnonzero(~np.isfinite(matrix[block : block + _LONGEST_WORD]).all(axis=1))
        if bad.size:
            place = f"{path.name}, {unit} {kept.places[block + int(bad[0])]}"
            raise HeedfulError(f"{place}: a number is not finite", hint=_DAMAGED)
    return tuple(kept.words), matrix


def write_rows(path: Path, words: Sequence[str], matrix: Matrix, form: Form) -> None:
    """A file in one of the forms, whole or not at all."""
    for word in words:
        _check_writable(word, form)
    with whole_file(path) as file:
        if form != "glove":
            file.write(b"%d %d\n" % matrix.shape)
        for word, row in zip(words, matrix, strict=True):
            numbers = row.astype("<f4").tobytes() if form == "binary" else " ".join(row.astype(str)).encode()
            file.write(word.encode("utf-8", "replace") + b" " + numbers + b"\n")


class _Kept:
    """Words, numbers and places in the file, of what is wanted."""

    def __init__(self, only: Container[str] | None, limit: int | None) -> None:
        self.only, self.limit = only, limit
        self.words: dict[str, None] = {}
        self.numbers = array("f")
        self.places = array("q")

    @property
    def full(self) -> bool:
        return self.limit is not None and len(self.words) >= self.limit

    def takes(self, raw: bytes, place: int) -> bool:
        """Whether the numbers of this word are to be added; then the word is."""
        word = raw.decode("utf-8", "replace")
        if word in self.words or (self.only is not None and word not in self.only):
            return False
        self.words[word] = None
        self.places.append(place)
        return True


def _read_text(stream: io.BufferedIOBase, layout: Layout, kept: _Kept, path: Path) -> None:
    found = 0
    for number, line in enumerate(_lines(stream, path), start=1):
        if line.isspace() or (number == 1 and layout.promised is not None):
            continue
        found += 1
        word, *fields = line.rsplit(None, layout.dimension)  # from the right: 840B has words with spaces
        if len(fields) < layout.dimension or _ends_in_number(word):
            raise HeedfulError(
                f"{path.name}, line {number}: {len(line.split()) - 1} numbers, expected {layout.dimension}",
                hint=_DAMAGED,
            )
        if kept.takes(word, number):
            _add_numbers(kept.numbers, fields, f"{path.name}, line {number}")
            if kept.full:
                return
    _check_promise(found, layout, path)


def _add_numbers(numbers: "array[float]", fields: list[bytes], place: str) -> None:
    try:
        numbers.extend(map(float, fields))
    except ValueError:
        wrong = next(field for field in fields if not _is_number(field)).decode("utf-8", "replace")
        raise HeedfulError(f"{place}: {wrong[:40]!r} is no number", hint=_WHAT) from None


def _read_binary(stream: io.BufferedIOBase, layout: Layout, kept: _Kept, path: Path) -> None:
    stream.readline(_LONGEST_LINE)
    found = 0
    for found, (word, row) in enumerate(_records(stream, 4 * layout.dimension, path), start=1):
        if kept.takes(word, found):
            kept.numbers.frombytes(row)
            if kept.full:
                break
    else:
        _check_promise(found, layout, path)
    if sys.byteorder == "big":
        kept.numbers.byteswap()


def _records(stream: io.BufferedIOBase, size: int, path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Words and the bytes of their numbers; some writers end each with a line feed, some do not."""
    buffer, start = b"", 0
    while True:
        space = buffer.find(b" ", start)
        end = space + 1 + size
        if space >= 0 and end <= len(buffer):
            yield buffer[start:space].lstrip(b"\n"), buffer[space + 1 : end]
            start = end
            continue
        more = stream.read(_BLOCK)
        buffer, start = buffer[start:] + more, 0
        if not more or (space < 0 and len(buffer) > _LONGEST_WORD + _BLOCK):
            break
    if buffer.strip(b"\n"):
        raise HeedfulError(f"{path.name} ends in the middle of a word's numbers", hint=_DAMAGED)


def _check_promise(found: int, layout: Layout, path: Path) -> None:
    if layout.promised not in (None, found):
        raise HeedfulError(
            f"{path.name} has {found:,} words, but its first line promises {layout.promised:,}", hint=_DAMAGED
        )


def _lines(stream: io.BufferedIOBase, path: Path) -> Iterator[bytes]:
    """Lines as bytes, the byte-order mark dropped."""
    number = 0
    while line := stream.readline(_LONGEST_LINE):
        number += 1
        if len(line) == _LONGEST_LINE:
            raise HeedfulError(f"{path.name}, line {number} is endless", hint=_WHAT)
        yield line.removeprefix(_UTF8_MARK) if number == 1 else line


def _refuse_others(first: bytes, path: Path) -> None:
    if not first:
        raise HeedfulError(f"{path.name} is empty", hint=_WHAT)
    if first.startswith(b"PK\x03\x04"):
        raise HeedfulError(f"{path.name} is a zip archive", hint=f"unpack it first: unzip {path}")


def _glove_dimension(first: bytes, path: Path) -> int:
    fields = first.split()[1:]
    if fields and _is_number(fields[0]):
        return len(fields)
    dimension = len(list(takewhile(_is_number, reversed(fields))))  # after a word with spaces
    if dimension == 0 or _CONTROL.search(first):
        raise HeedfulError(f"{path.name}, line 1: expected a word and its numbers", hint=_WHAT)
    return dimension


def _is_binary(sample: bytes, dimension: int) -> bool:
    """Whether what follows the first line is not text."""
    fields = sample.partition(b"\n")[0].split()
    if len(fields) > dimension and all(map(_is_number, fields[-dimension:])):
        return False
    numbers = sample.partition(b" ")[2][: 4 * dimension]
    return bool(_CONTROL.search(numbers)) or not _is_utf8(numbers)


def _is_utf8(part: bytes) -> bool:
    """Whether it is UTF-8 but for a character cut at its end."""
    try:
        part.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return True


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _ends_in_number(word: bytes) -> bool:
    """Whether a "word" with a space is really a word and a number too many."""
    parts = word.split()
    return len(parts) > 1 and _is_number(parts[-1])


def _check_writable(word: str, form: Form) -> None:
    raw = word.encode("utf-8", "replace")
    blank = len(raw.split()) > 1 if form != "glove" else b"\n" in raw or _ends_in_number(raw)
    if blank or raw != raw.strip() or not raw:
        raise HeedfulError(
            f"the word {word!r} cannot be written in form {form!r}", hint="white space ends a word there"
        )


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedIOBase]:
    with readable(path), path.open("rb") as plain, unpacked(plain) as stream:
        yield stream
