"""Word vectors (GloVe, word2vec): nearest words, analogies such as king - man + woman = queen, and files.

Three file formats, each plain or gzipped, read as a stream; only selected words take memory:
glove       one word and its numbers per line
word2vec    the same after a first line of two numbers: words, and numbers per word
binary      word2vec's .bin: such a first line, then each word, a space, and 4 bytes per number
"""

import difflib
import io
import re
import sys
from array import array
from collections.abc import Collection, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heedful.errors import HeedfulError
from heedful.files import decompress_gzip, wrap_read_errors

VectorFormat = Literal["glove", "word2vec", "binary"]

Matrix = NDArray[np.float32]

Neighbors = list[tuple[str, float]]

_ROWS_PER_BLOCK = 1 << 14


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Words and a vector for each; similarity is the cosine of the angle between two vectors.

    >>> vectors = WordVectors(("man", "woman", "king", "queen"), [[1, 0, 0], [0, 1, 0], [1, 0, 1], [0, 1, 1]])
    >>> vectors.analogy(["king", "woman"], ["man"], count=1)
    [('queen', 0.9...)]
    """

    words: tuple[str, ...]
    matrix: Matrix  # (words, dimension), float32
    name: str = ""  # file name, for messages

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", tuple(self.words))
        object.__setattr__(self, "matrix", np.asarray(self.matrix, dtype=np.float32))
        if self.matrix.ndim != 2 or len(self.matrix) != len(self.words):
            raise HeedfulError(
                f"{len(self.words)} words do not match a matrix of shape {self.matrix.shape}",
                hint="pass one row per word",
            )
        if len(self.index) < len(self.words):
            raise HeedfulError("duplicate word", hint="pass one row per word")

    @cached_property
    def index(self) -> dict[str, int]:
        return {word: row for row, word in enumerate(self.words)}

    @property
    def dimension(self) -> int:
        return int(self.matrix.shape[1])

    def __len__(self) -> int:
        return len(self.words)

    def __iter__(self) -> Iterator[str]:
        return iter(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self.index

    def __getitem__(self, word: str) -> Matrix:
        row = self.index.get(word)
        if row is None:
            file = f" of {self.name}" if self.name else ""
            raise HeedfulError(f"{word!r} is not among the {len(self):,} words{file}", hint=self._suggest_words(word))
        return np.asarray(self.matrix[row])

    def nearest(self, query: str | ArrayLike, count: int = 10, exclude: Iterable[str] = ()) -> Neighbors:
        """The most similar words, best first, without the word itself."""
        excluded = {exclude} if isinstance(exclude, str) else set(exclude)
        return self._rank_words(query, count, excluded | {query} if isinstance(query, str) else excluded)

    def analogy(
        self, positive: str | Iterable[str] = (), negative: str | Iterable[str] = (), count: int = 10
    ) -> Neighbors:
        """The words most similar to ``positive`` minus ``negative``: king and woman minus man give queen.

        As in gensim's ``most_similar``, the query is the mean of vectors of length 1, and the words of the
        query are excluded.
        """
        signed_words = [
            (word, sign)
            for words, sign in ((positive, 1), (negative, -1))
            for word in ([words] if isinstance(words, str) else words)
        ]
        if not signed_words:
            raise HeedfulError("an analogy needs words", hint='pass words such as ["king", "woman"] and ["man"]')
        query = np.mean([sign * _normalize(self[word]) for word, sign in signed_words], axis=0)
        return self._rank_words(query, count, {word for word, _ in signed_words})

    def similarities(self, query: str | ArrayLike) -> NDArray[np.float64]:
        """The cosine of a word or vector with every word, 0 if either is zero: (words,)."""
        unit = _normalize(self[query] if isinstance(query, str) else query)
        if unit.shape != (self.dimension,):
            raise HeedfulError(f"the query has shape {unit.shape}, but the vectors have {self.dimension} numbers")
        if not np.isfinite(unit).all():
            raise HeedfulError("the query has non-finite numbers")
        result = np.empty(len(self))
        for start in range(0, len(self), _ROWS_PER_BLOCK):  # float64 for precision, in blocks to save memory
            rows = self.matrix[start : start + _ROWS_PER_BLOCK].astype(np.float64)
            lengths = np.linalg.norm(rows, axis=1)
            result[start : start + len(rows)] = rows @ unit / np.where(lengths > 0, lengths, 1)
        return result

    def _rank_words(self, query: str | ArrayLike, count: int, exclude: Collection[str]) -> Neighbors:
        similarities = self.similarities(query)
        excluded_rows = [row for word in exclude if (row := self.index.get(word)) is not None]
        similarities[excluded_rows] = -np.inf
        ranked_rows = np.argsort(-similarities, kind="stable")[: max(0, min(count, len(self) - len(excluded_rows)))]
        return [(self.words[row], float(similarities[row])) for row in ranked_rows]

    def _suggest_words(self, word: str) -> str:
        """The word in another case, or words of similar spelling."""
        suggestions = [form for form in (word.lower(), word.capitalize(), word.upper()) if form in self][:1]
        if not suggestions:  # comparing with a million words would take seconds
            first, size = word[:1].casefold(), len(word)
            candidates = [form for form in self if abs(len(form) - size) < 3 and form[:1].casefold() == first]
            suggestions = difflib.get_close_matches(word, candidates, n=3)
        return f"did you mean {' or '.join(map(repr, suggestions))}?" if suggestions else ""


def _normalize(vector: ArrayLike) -> NDArray[np.float64]:
    """The vector scaled to length 1; zero stays zero."""
    numbers = np.asarray(vector, dtype=np.float64)
    length = np.linalg.norm(numbers)
    return np.asarray(numbers / length if length > 0 else numbers)


_MAX_DIMENSION = 65_536  # a header with more is another kind of file
_MAX_LINE_BYTES = 1 << 22
_MAX_WORD_BYTES = 1 << 16
_BLOCK = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_HEADER = re.compile(rb"\s*(\d{1,15})\s+(\d{1,15})\s*")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")
_CORRUPT_HINT = "the file may be truncated or corrupt: download it again"
_FORMATS_HINT = "supported formats: GloVe text, word2vec text, word2vec binary"


def read_word_vectors(path: Path | str, *, only: Container[str] | None = None) -> WordVectors:
    """Read a file of GloVe text, word2vec text or word2vec binary, plain or gzipped.

    ``only`` selects these words; only selected words take memory. The first one of duplicates counts; bytes that
    are not UTF-8 become U+FFFD.
    """
    path = Path(path)
    header = _read_header(path)
    is_binary = header.file_format == "binary"
    word_count, words = 0, dict[str, None]()
    numbers, record_numbers = array("f"), array("q")

    def location(record_number: int) -> str:
        return f"{path.name}, {'word' if is_binary else 'line'} {record_number}"

    with _open_stream(path) as stream:
        iter_records = _iter_binary_records if is_binary else _iter_text_records
        for record_number, word_bytes, values in iter_records(stream, header, path):
            word_count += 1
            word = word_bytes.decode("utf-8", "replace")
            if word in words or (only is not None and word not in only):
                continue
            words[word] = None
            record_numbers.append(record_number)
            if isinstance(values, bytes):
                numbers.frombytes(values)
                continue
            try:
                numbers.extend(map(float, values))
            except ValueError:
                invalid = next(value for value in values if not _is_number(value)).decode("utf-8", "replace")
                problem = f"{location(record_number)}: {invalid[:40]!r} is not a number"
                raise HeedfulError(problem, hint=_FORMATS_HINT) from None
    if header.word_count not in (None, word_count):
        raise HeedfulError(
            f"{path.name} has {word_count:,} words, but its first line declares {header.word_count:,}",
            hint=_CORRUPT_HINT,
        )
    if is_binary and sys.byteorder == "big":
        numbers.byteswap()
    matrix = np.frombuffer(numbers, dtype=np.float32).reshape(-1, header.dimension)
    for start in range(0, len(matrix), _ROWS_PER_BLOCK):
        nonfinite_rows = np.flatnonzero(~np.isfinite(matrix[start : start + _ROWS_PER_BLOCK]).all(axis=1))
        if nonfinite_rows.size:
            record_number = record_numbers[start + int(nonfinite_rows[0])]
            raise HeedfulError(f"{location(record_number)}: non-finite number", hint=_CORRUPT_HINT)
    return WordVectors(tuple(words), matrix, path.name)


def read_dimension(path: Path | str) -> int:
    """Numbers per word of a file, from its first bytes."""
    return _read_header(Path(path)).dimension


@dataclass(frozen=True, slots=True)
class VectorFileHeader:
    """Format and size of a file."""

    file_format: VectorFormat
    dimension: int  # numbers per word
    word_count: int | None = None  # words, if the first line has their number


def _read_header(path: Path) -> VectorFileHeader:
    """Format and dimension of a file, from its first bytes."""
    if path.exists() and not path.is_file():
        raise HeedfulError(f"{path} is not a regular file", hint="word vectors are read twice: name a file")
    with _open_stream(path) as stream:
        first = next(_iter_lines(stream, path), b"")
        if not first:
            raise HeedfulError(f"{path.name} is empty", hint=_FORMATS_HINT)
        if first.startswith(b"PK\x03\x04"):
            raise HeedfulError(f"{path.name} is a zip archive", hint=f"unpack it first: unzip {path}")
        header = _HEADER.fullmatch(first)
        if header is None:
            return VectorFileHeader("glove", _glove_dimension(first, path))
        word_count, dimension = int(header[1]), int(header[2])
        if not 1 <= dimension <= _MAX_DIMENSION:
            raise HeedfulError(f"{path.name} declares {dimension:,} numbers per word", hint=_FORMATS_HINT)
        sample = stream.read(32 * dimension + _MAX_WORD_BYTES)
    file_format: VectorFormat = "binary" if _is_binary(sample, dimension) else "word2vec"
    return VectorFileHeader(file_format, dimension, word_count)


_VectorRecord = tuple[int, bytes, list[bytes] | bytes]
"""Number of the line or word, the word, and its values as text or float32 bytes."""


def _iter_text_records(stream: io.BufferedIOBase, header: VectorFileHeader, path: Path) -> Iterator[_VectorRecord]:
    for number, line in enumerate(_iter_lines(stream, path), start=1):
        if line.isspace() or (number == 1 and header.word_count is not None):
            continue
        word, *values = line.rsplit(None, header.dimension)  # from the right: GloVe 840B has words with spaces
        if len(values) < header.dimension or _ends_in_number(word):
            raise HeedfulError(
                f"{path.name}, line {number}: {len(line.split()) - 1} numbers, expected {header.dimension}",
                hint=_CORRUPT_HINT,
            )
        yield number, word, values


def _iter_binary_records(stream: io.BufferedIOBase, header: VectorFileHeader, path: Path) -> Iterator[_VectorRecord]:
    """Some programs write a line feed after each record."""
    stream.readline(_MAX_LINE_BYTES)
    buffer, start, word_count = b"", 0, 0
    while True:
        space = buffer.find(b" ", start)
        end = space + 1 + 4 * header.dimension
        if space >= 0 and end <= len(buffer):
            word_count += 1
            yield word_count, buffer[start:space].lstrip(b"\n"), buffer[space + 1 : end]
            start = end
            continue
        block = stream.read(_BLOCK)
        buffer, start = buffer[start:] + block, 0
        if not block or (space < 0 and len(buffer) > _MAX_WORD_BYTES + _BLOCK):
            break
    if buffer.strip(b"\n"):
        raise HeedfulError(f"{path.name} ends inside a record", hint=_CORRUPT_HINT)


def _iter_lines(stream: io.BufferedIOBase, path: Path) -> Iterator[bytes]:
    """Lines as bytes, without the byte-order mark."""
    for number, line in enumerate(iter(lambda: stream.readline(_MAX_LINE_BYTES), b""), start=1):
        if len(line) == _MAX_LINE_BYTES:
            raise HeedfulError(f"{path.name}, line {number} is too long", hint=_FORMATS_HINT)
        yield line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line


def _glove_dimension(first: bytes, path: Path) -> int:
    fields = first.split()[1:]
    if fields and _is_number(fields[0]):
        return len(fields)
    dimension = len(list(takewhile(_is_number, reversed(fields))))  # after a word with spaces
    if dimension == 0 or _CONTROL.search(first):
        raise HeedfulError(f"{path.name}, line 1: expected a word and its numbers", hint=_FORMATS_HINT)
    return dimension


def _is_binary(sample: bytes, dimension: int) -> bool:
    """Whether the content after the first line is not text."""
    fields = sample.partition(b"\n")[0].split()
    if len(fields) > dimension and all(map(_is_number, fields[-dimension:])):
        return False
    numbers = sample.partition(b" ")[2][: 4 * dimension]
    try:
        numbers.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return True
    return bool(_CONTROL.search(numbers))


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _ends_in_number(word: bytes) -> bool:
    """Whether a "word" with a space is a word and an extra number."""
    parts = word.split()
    return len(parts) > 1 and _is_number(parts[-1])


@contextmanager
def _open_stream(path: Path) -> Iterator[io.BufferedIOBase]:
    with wrap_read_errors(path), path.open("rb") as plain, decompress_gzip(plain) as stream:
        yield stream
