"""Text to numbers before there were embeddings: one-hot rows, bags of words, counts, TF-IDF.

Documents are lists of tokens, cut by ``word_tokens``, by ``tokens`` or by hand. The rule to remember: a
column is a term, in the order of ``Terms``; a token that is no term is an error unless told to drop it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import models, pre_tokenizers

from heedful.errors import HeedfulError
from heedful.text.spelling import SPACE, escaped, spaced, unescaped
from heedful.text.tokenizer import Tokenizer
from heedful.text.vocabulary import prepared

Numbers = NDArray[np.float64]


def word_tokens(text: str) -> list[str]:
    """The words and symbols of a text, as the tokenizer of kind "word" cuts it; blanks and ▁ are left out.

    >>> word_tokens("AI changes the world.")
    ['AI', 'changes', 'the', 'world', '.']
    """
    return _shown(word for word, _ in _word_splitter().pre_tokenize_str(_spelled(text)))


def tokens(text: str, tokenizer: Tokenizer) -> list[str]:
    """The pieces of a text in the vocabulary of a tokenizer, without the ▁ that stands for a space."""
    return _shown(tokenizer.pieces(tokenizer.encode(text.replace(SPACE, " "))))


@cache
def _word_splitter() -> pre_tokenizers.PreTokenizer:
    splitter: pre_tokenizers.PreTokenizer | None = prepared(models.BPE(), "word").pre_tokenizer
    assert splitter is not None
    return splitter


def _spelled(text: str) -> str:
    return spaced(escaped(text.replace(SPACE, " ")))


def _shown(pieces: Iterable[str]) -> list[str]:
    """Pieces as a reader writes them; those of white space alone are no words."""
    stripped = (unescaped(piece.strip(SPACE)) for piece in pieces)
    return [piece for piece in stripped if piece and not piece.isspace()]


@dataclass(frozen=True)
class Terms:
    """The terms that have a column, in order, each once.

    >>> terms = Terms.of([["AI", "changes", "world"], ["AI", "world"]])
    >>> terms.words, terms.index["world"]
    (('AI', 'changes', 'world'), 2)
    """

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", tuple(self.words))
        if len(self.index) < len(self.words):
            twice = next(word for place, word in enumerate(self.words) if self.index[word] != place)
            raise HeedfulError(f"the term {twice!r} is there twice", hint="every term has one column")

    @classmethod
    def of(cls, documents: Iterable[Sequence[str]]) -> Self:
        """The terms of these documents in the order in which they are first seen."""
        return cls(tuple(dict.fromkeys(token for document in documents for token in document)))

    @cached_property
    def index(self) -> dict[str, int]:
        """The column of every term."""
        return {word: column for column, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def columns(self, document: Sequence[str], *, drop_unknown: bool = False) -> list[int]:
        """The column of every token of a document."""
        return list(self._columns(document, drop_unknown))

    def _columns(self, document: Sequence[str], drop_unknown: bool) -> Iterator[int]:
        if isinstance(document, str):
            raise HeedfulError(
                "a document is a list of tokens, not text", hint="cut it with word_tokens(text)"
            )
        for token in document:
            column = self.index.get(token)
            if column is not None:
                yield column
            elif not drop_unknown:
                raise HeedfulError(
                    f"{token!r} is not among the {len(self):,} terms",
                    hint="add it, or pass drop_unknown=True",
                )


def one_hot(document: Sequence[str], terms: Terms, *, drop_unknown: bool = False) -> Numbers:
    """One row a token with a single 1, in the column of its term: (tokens, terms).

    >>> one_hot(["AI", "world"], Terms(("AI", "changes", "world")))
    array([[1., 0., 0.],
           [0., 0., 1.]])
    """
    columns = terms.columns(document, drop_unknown=drop_unknown)
    rows = np.zeros((len(columns), len(terms)))
    rows[np.arange(len(columns)), columns] = 1
    return rows


def bag_of_words(document: Sequence[str], terms: Terms, *, drop_unknown: bool = False) -> Numbers:
    """Which terms a document has, 1 or 0, without their order (multi-hot): (terms,).

    >>> bag_of_words(["world", "AI", "AI"], Terms(("AI", "changes", "world")))
    array([1., 0., 1.])
    """
    present = np.zeros(len(terms))
    present[terms.columns(document, drop_unknown=drop_unknown)] = 1
    return present


def counts(documents: Sequence[Sequence[str]], terms: Terms, *, drop_unknown: bool = False) -> Numbers:
    """How often each document has each term, the document-term matrix [tf]: (documents, terms).

    >>> counts([["world", "AI", "AI"], []], Terms(("AI", "changes", "world")))
    array([[2., 0., 1.],
           [0., 0., 0.]])
    """
    matrix = np.zeros((len(documents), len(terms)))
    for row, document in zip(matrix, documents, strict=True):
        np.add.at(row, terms.columns(document, drop_unknown=drop_unknown), 1)
    return matrix


def inverse_document_frequency(frequencies: Numbers, *, smooth: bool = True) -> Numbers:
    """How rare each column of ``counts`` is among its N rows, df of which have it: (terms,).

    Plain is ln(N / df), and 0 for a term that no document has; smooth, as in scikit-learn, is
    ln((1 + N) / (1 + df)) + 1, as if one more document had every term.
    """
    documents = len(frequencies)
    having = np.count_nonzero(frequencies, axis=0).astype(np.float64)
    if smooth:
        return np.asarray(np.log((1 + documents) / (1 + having)) + 1)
    return np.asarray(np.log(np.divide(documents, having, out=np.ones_like(having), where=having > 0)))


def tf_idf(
    documents: Sequence[Sequence[str]], terms: Terms, *, smooth: bool = True, drop_unknown: bool = False
) -> Numbers:
    """Counts weighted by how rare a term is: what a document has that others have not: (documents, terms).

    Smooth, each row is scaled to length 1 as in scikit-learn; plain, it is tf * ln(N / df) as in textbooks.

    >>> tf_idf([["AI", "world"], ["world"]], Terms(("AI", "world")), smooth=False).round(3)
    array([[0.693, 0.   ],
           [0.   , 0.   ]])
    """
    frequencies = counts(documents, terms, drop_unknown=drop_unknown)
    weighted = frequencies * inverse_document_frequency(frequencies, smooth=smooth)
    return _unit_rows(weighted) if smooth else weighted


def _unit_rows(matrix: Numbers) -> Numbers:
    """Rows of length 1; an empty document stays zero."""
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    return np.asarray(matrix / np.where(lengths > 0, lengths, 1))
