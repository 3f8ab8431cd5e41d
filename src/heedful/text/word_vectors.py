"""Vectors of words that others have learned (GloVe, word2vec): neighbours, and king - man + woman = queen.

Likeness is the cosine of the angle between two vectors: 1 for the same direction, 0 for nothing in common.
"""

import difflib
from collections.abc import Collection, Container, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heedful.errors import HeedfulError
from heedful.text.word_vector_files import Form, Matrix, read_layout, read_rows, write_rows

__all__ = ["Form", "WordVectors", "read_dimension", "read_word_vectors", "write_word_vectors"]

Neighbours = list[tuple[str, float]]

_ROWS_AT_ONCE = 1 << 14


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Words and a row of numbers for each.

    >>> vectors = WordVectors(("man", "woman", "king", "queen"), [[1, 0, 0], [0, 1, 0], [1, 0, 1], [0, 1, 1]])
    >>> vectors.analogy(["king", "woman"], ["man"], count=1)
    [('queen', 0.9...)]
    """

    words: tuple[str, ...]
    matrix: Matrix
    """(words, numbers a word), float32."""
    name: str = ""
    """Of the file, for messages."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", tuple(self.words))
        object.__setattr__(self, "matrix", np.asarray(self.matrix, dtype=np.float32))
        if self.matrix.ndim != 2 or len(self.matrix) != len(self.words):
            raise HeedfulError(
                f"{len(self.words)} words do not fit numbers of shape {self.matrix.shape}",
                hint="one row of numbers a word",
            )
        if len(self.index) < len(self.words):
            raise HeedfulError("a word is there twice", hint="give each word one row")

    @cached_property
    def index(self) -> dict[str, int]:
        """The row of every word."""
        return {word: row for row, word in enumerate(self.words)}

    @property
    def dimension(self) -> int:
        """Numbers a word."""
        return int(self.matrix.shape[1])

    def __len__(self) -> int:
        return len(self.words)

    def __iter__(self) -> Iterator[str]:
        return iter(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self.index

    def __getitem__(self, word: str) -> Matrix:
        """The numbers of a word."""
        row = self.index.get(word)
        if row is None:
            file = f" of {self.name}" if self.name else ""
            raise HeedfulError(
                f"{word!r} is not among the {len(self):,} words{file}", hint=self._suggestion(word)
            )
        return np.asarray(self.matrix[row])

    def nearest(self, query: str | ArrayLike, count: int = 10, exclude: Iterable[str] = ()) -> Neighbours:
        """The words whose vectors point most nearly the same way, best first, itself left out."""
        if isinstance(query, str):
            return self._ranked(self[query], count, {query, *_listed(exclude)})
        return self._ranked(query, count, set(_listed(exclude)))

    def analogy(
        self, positive: str | Iterable[str] = (), negative: str | Iterable[str] = (), count: int = 10
    ) -> Neighbours:
        """What is to ``positive`` as ``negative`` is not: king and woman without man give queen.

        As gensim's ``most_similar``: each vector is first brought to length 1, so that no word outweighs
        another; the words nearest to the mean win, and those that were asked with are left out.
        """
        added, taken = _listed(positive), _listed(negative)
        if not added and not taken:
            raise HeedfulError("an analogy needs words", hint='such as ["king", "woman"] and ["man"]')
        units = [_unit(self[word]) for word in added] + [-_unit(self[word]) for word in taken]
        return self._ranked(np.mean(units, axis=0), count, {*added, *taken})

    def similarities(self, query: str | ArrayLike) -> NDArray[np.float64]:
        """The cosine between a word or vector and every word, 0 where one of them is zero: (words,)."""
        unit = _unit(self[query] if isinstance(query, str) else query)
        if unit.shape != (self.dimension,):
            raise HeedfulError(
                f"the vector asked about has shape {unit.shape}, the words have {self.dimension} numbers"
            )
        if not np.isfinite(unit).all():
            raise HeedfulError("the vector asked about has numbers that are not finite")
        result = np.empty(len(self))
        for start in range(0, len(self), _ROWS_AT_ONCE):  # float64 is exact, but twice the memory
            rows = self.matrix[start : start + _ROWS_AT_ONCE].astype(np.float64)
            lengths = np.linalg.norm(rows, axis=1)
            result[start : start + len(rows)] = rows @ unit / np.where(lengths > 0, lengths, 1)
        return result

    def _ranked(self, vector: ArrayLike, count: int, exclude: Collection[str]) -> Neighbours:
        similarities = self.similarities(vector)
        hidden = [row for word in exclude if (row := self.index.get(word)) is not None]
        similarities[hidden] = -np.inf
        order = np.argsort(-similarities, kind="stable")[: max(0, min(count, len(self) - len(hidden)))]
        return [(self.words[row], float(similarities[row])) for row in order]

    def _suggestion(self, word: str) -> str:
        """The word in another case, or words nearly spelled so."""
        cased = [form for form in (word.lower(), word.capitalize(), word.upper()) if form in self]
        alike = cased[:1] or difflib.get_close_matches(word, self._spelled_about_as(word), n=3)
        return f"did you mean {' or '.join(map(repr, alike))}?" if alike else ""

    def _spelled_about_as(self, word: str) -> list[str]:
        """To compare with each of a million words would take seconds."""
        first = word[:1].casefold()
        return [
            other for other in self.words if abs(len(other) - len(word)) < 3 and other[:1].casefold() == first
        ]


def read_word_vectors(
    path: Path | str, *, only: Container[str] | None = None, limit: int | None = None
) -> WordVectors:
    """The vectors in a file of GloVe text, word2vec text or word2vec binary, plain or gzipped.

    ``only`` keeps just these words, ``limit`` just so many: memory is taken for what is kept. Of a word that
    is there twice the first is kept; bytes that are no UTF-8 become U+FFFD.
    """
    path = Path(path)
    words, matrix = read_rows(path, only, limit)
    return WordVectors(words, matrix, path.name)


def read_dimension(path: Path | str) -> int:
    """How many numbers a word has in a file, from its beginning alone."""
    return read_layout(Path(path)).dimension


def write_word_vectors(path: Path | str, vectors: WordVectors, form: Form = "glove") -> None:
    """Write GloVe text, word2vec text or word2vec binary; reading it gives the same numbers to the bit."""
    write_rows(Path(path), vectors.words, vectors.matrix, form)


def _listed(words: str | Iterable[str]) -> list[str]:
    return [words] if isinstance(words, str) else list(words)


def _unit(vector: ArrayLike) -> NDArray[np.float64]:
    """The vector with length 1; zero stays zero."""
    numbers = np.asarray(vector, dtype=np.float64)
    length = np.linalg.norm(numbers)
    return np.asarray(numbers / length if length > 0 else numbers)
