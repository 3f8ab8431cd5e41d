"""Text as vectors before embeddings: one-hot rows, bags of words, counts, TF-IDF; and GloVe vectors.

Documents are lists of tokens, such as those of ``word_tokens`` or ``subword_tokens``. Columns are the terms of a
``TermVocabulary``, in order; a token that is not a term is an error unless it may be dropped.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heedful.data.word_vectors import read_word_vectors
from heedful.errors import HeedfulError
from heedful.interpret.arithmetic import AttentionStep, build_head_step
from heedful.interpret.tables import Explanation, Section, Table, matrix_table, number_labels
from heedful.tokenization.normalization import METASPACE, escape, mark_spaces, unescape
from heedful.tokenization.tokenizer import Tokenizer
from heedful.tokenization.vocabulary import build_pre_tokenizer

FloatArray = NDArray[np.float64]


def word_tokens(text: str) -> list[str]:
    """The words and symbols of a text, as a word-level tokenizer splits it, without spaces and ▁.

    >>> word_tokens("AI changes the world.")
    ['AI', 'changes', 'the', 'world', '.']
    """
    words = build_pre_tokenizer("word").pre_tokenize_str(mark_spaces(escape(text.replace(METASPACE, " "))))
    return _strip_metaspace(word for word, _ in words)


def subword_tokens(text: str, tokenizer: Tokenizer) -> list[str]:
    """The subwords of a text, without the ▁ that stands for a space."""
    return _strip_metaspace(tokenizer.ids_to_tokens(tokenizer.encode(text.replace(METASPACE, " "))))


def _strip_metaspace(subwords: Iterable[str]) -> list[str]:
    stripped = (unescape(subword.strip(METASPACE)) for subword in subwords)
    return [subword for subword in stripped if subword and not subword.isspace()]


@dataclass(frozen=True)
class TermVocabulary:
    """The terms that have a column, in order, without duplicates.

    >>> terms = TermVocabulary.from_documents([["AI", "changes", "world"], ["AI", "world"]])
    >>> terms.words, terms.index["world"]
    (('AI', 'changes', 'world'), 2)
    """

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", tuple(self.words))
        if len(self.index) < len(self.words):
            duplicate = next(word for position, word in enumerate(self.words) if self.index[word] != position)
            raise HeedfulError(f"the term {duplicate!r} is duplicated", hint="every term has one column")

    @classmethod
    def from_documents(cls, documents: Iterable[Sequence[str]]) -> Self:
        """The terms of these documents in order of first occurrence."""
        return cls(tuple(dict.fromkeys(token for document in documents for token in document)))

    @cached_property
    def index(self) -> dict[str, int]:
        """The column of every term."""
        return {word: column for column, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def columns(self, document: Sequence[str], *, drop_unknown: bool = False) -> list[int]:
        """The column of every token of a document."""
        if isinstance(document, str):
            raise HeedfulError("a document is a list of tokens, not text", hint="split it with word_tokens(text)")
        for token in document:
            if token not in self.index and not drop_unknown:
                raise HeedfulError(
                    f"{token!r} is not among the {len(self):,} terms", hint="add it, or pass drop_unknown=True"
                )
        return [self.index[token] for token in document if token in self.index]


def one_hot(document: Sequence[str], terms: TermVocabulary, *, drop_unknown: bool = False) -> FloatArray:
    """One row per token with a single 1, in the column of its term: (tokens, terms).

    >>> one_hot(["AI", "world"], TermVocabulary(("AI", "changes", "world")))
    array([[1., 0., 0.],
           [0., 0., 1.]])
    """
    columns = terms.columns(document, drop_unknown=drop_unknown)
    rows = np.zeros((len(columns), len(terms)))
    rows[np.arange(len(columns)), columns] = 1
    return rows


def bag_of_words(document: Sequence[str], terms: TermVocabulary, *, drop_unknown: bool = False) -> FloatArray:
    """Which terms a document has, 1 or 0, without their order (multi-hot): (terms,).

    >>> bag_of_words(["world", "AI", "AI"], TermVocabulary(("AI", "changes", "world")))
    array([1., 0., 1.])
    """
    present = np.zeros(len(terms))
    present[terms.columns(document, drop_unknown=drop_unknown)] = 1
    return present


def term_counts(documents: Sequence[Sequence[str]], terms: TermVocabulary, *, drop_unknown: bool = False) -> FloatArray:
    """How often each document has each term, the document-term matrix [tf]: (documents, terms).

    >>> term_counts([["world", "AI", "AI"], []], TermVocabulary(("AI", "changes", "world")))
    array([[2., 0., 1.],
           [0., 0., 0.]])
    """
    matrix = np.zeros((len(documents), len(terms)))
    for row, document in zip(matrix, documents, strict=True):
        np.add.at(row, terms.columns(document, drop_unknown=drop_unknown), 1)
    return matrix


def inverse_document_frequency(frequencies: FloatArray, *, smooth: bool = True) -> FloatArray:
    """The inverse document frequency of each term, from ``term_counts`` of N documents: (terms,).

    Plain is ln(N / df), and 0 for a term that no document has; smooth, as in scikit-learn, is
    ln((1 + N) / (1 + df)) + 1, as if one more document had every term. df is the number of documents with the term.
    """
    document_frequency = np.count_nonzero(frequencies, axis=0)
    if smooth:
        return np.asarray(np.log((1 + len(frequencies)) / (1 + document_frequency)) + 1)
    return np.where(document_frequency > 0, np.log(max(len(frequencies), 1) / np.maximum(document_frequency, 1)), 0.0)


def tf_idf(
    documents: Sequence[Sequence[str]], terms: TermVocabulary, *, smooth: bool = True, drop_unknown: bool = False
) -> FloatArray:
    """Counts times inverse document frequency: (documents, terms).

    Smooth, each row is scaled to length 1 as in scikit-learn; plain, it is tf * ln(N / df) as in textbooks.

    >>> tf_idf([["AI", "world"], ["world"]], TermVocabulary(("AI", "world")), smooth=False).round(3)
    array([[0.693, 0.   ],
           [0.   , 0.   ]])
    """
    frequencies = term_counts(documents, terms, drop_unknown=drop_unknown)
    weighted = frequencies * inverse_document_frequency(frequencies, smooth=smooth)
    if not smooth:
        return weighted
    lengths = np.linalg.norm(weighted, axis=1, keepdims=True)
    return np.asarray(weighted / np.where(lengths > 0, lengths, 1))  # an empty document stays zero


# ---- The lecture's one-hot and TF-IDF vectors

SENTENCE, PHRASE = "AI changes the world.", "AI world"
VOCABULARY = ("AI", "changes", "world")
DOCUMENTS = ("AI changes world", "AI world", "world")


def explain_text() -> Explanation:
    """Tokens, one-hot rows, a bag of words, counts and TF-IDF."""
    terms, tokens, phrase = TermVocabulary(VOCABULARY), word_tokens(SENTENCE), word_tokens(PHRASE)
    documents = [word_tokens(document) for document in DOCUMENTS]
    one_hot_rows, bag = one_hot(phrase, terms), bag_of_words(phrase, terms)
    frequencies = term_counts(documents, terms)
    idf, tf_idf_rows = inverse_document_frequency(frequencies, smooth=False), tf_idf(documents, terms, smooth=False)
    smooth_idf, smooth_tf_idf = inverse_document_frequency(frequencies), tf_idf(documents, terms)
    document_frequencies = np.count_nonzero(frequencies, axis=0).tolist()
    sections = (
        Section("Tokens", f'"{SENTENCE}"', (Table("", ("token",), number_labels(len(tokens)), (tuple(tokens),)),)),
        Section(
            "One-hot and bag of words",
            f'the vocabulary is {", ".join(VOCABULARY)}; the text is "{PHRASE}"',
            (
                matrix_table("One-hot: a row for each token", phrase, VOCABULARY, one_hot_rows, digits=0),
                matrix_table(
                    "Bag of words: a row for the text", (PHRASE,), VOCABULARY, bag[None], digits=0, beside=True
                ),
            ),
            (
                'The document gives [1, 0, 1] for "AI world". That is a bag of words (multi-hot). One-hot has a '
                "row for each token, with a single 1 in it.",
            ),
        ),
        Section(
            "Counts and TF-IDF",
            "tf-idf = tf × ln(N / df): N = 3 texts, df of which have the word",
            (
                matrix_table("Counts (tf)", DOCUMENTS, VOCABULARY, frequencies, digits=0),
                matrix_table("", ("df", "ln(3 / df)"), VOCABULARY, (document_frequencies, idf.tolist())),
                matrix_table("TF-IDF", DOCUMENTS, VOCABULARY, tf_idf_rows, beside=True),
            ),
            (
                "A word that every text has says nothing about any: ln(3 / 3) = 0.",
                "The document names TF-IDF without numbers; these texts are ours.",
            ),
        ),
        Section(
            "TF-IDF as scikit-learn computes it",
            "idf = ln((1 + N) / (1 + df)) + 1, and each row divided by its length",
            (
                matrix_table("", ("idf",), VOCABULARY, smooth_idf[None]),
                matrix_table("", DOCUMENTS, VOCABULARY, smooth_tf_idf, beside=True),
            ),
            (
                "Check the second row: 1.2877 and 1 have the length sqrt(1.2877^2 + 1^2) = 1.6304; "
                "1.2877 / 1.6304 = 0.7898.",
            ),
        ),
    )
    values = {
        "tokens": tokens,
        "vocabulary": VOCABULARY,
        "one_hot": one_hot_rows.tolist(),
        "bag_of_words": bag.tolist(),
        "counts": frequencies.tolist(),
        "idf": idf.tolist(),
        "tf_idf": tf_idf_rows.tolist(),
        "smooth_idf": smooth_idf.tolist(),
        "smooth_tf_idf": smooth_tf_idf.tolist(),
    }
    return Explanation("Text to numbers, before embeddings", sections, values)


# ---- The lecture's notebook with GloVe vectors

WORDS = ("the", "cat", "sat", "on", "table")
ANALOGY = ("king", "man", "woman")
SEED, HEADS, DISCARDED_DRAWS = 42, 10, 7500
PRINTED_SINGLE = (-4.31502585, -3.90981072, -2.11083877, -1.51211468, -1.90636801)
PRINTED_MULTI = (-4.37999318, -1.99506183, -2.05712457, -0.08937276, -1.72769596)


def explain_glove(vectors_path: Path) -> Explanation:
    """The notebook with GloVe vectors: its ten heads, its single head, and how to reproduce the latter."""
    vectors = read_word_vectors(vectors_path)
    size = vectors.dimension
    if size % HEADS:
        raise HeedfulError(
            f"{vectors_path}: {size} numbers per word do not split into {HEADS} heads",
            hint="the notebook has glove.6B.50d.txt: 50 numbers per word",
        )
    x = torch.from_numpy(np.stack([vectors[word] for word in WORDS]))  # (words, numbers), float32
    generator = np.random.RandomState(SEED)  # the same numbers as np.random.seed
    heads = [_build_head(x, generator, size // HEADS) for _ in range(HEADS)]
    concatenated = torch.cat([head.output for head in heads], dim=-1)
    fresh_head = _build_head(x, np.random.RandomState(SEED), size)
    generator = np.random.RandomState(SEED)
    generator.rand(DISCARDED_DRAWS)
    replayed_head = _build_head(x, generator, size)
    sections = [
        Section(
            "The vectors of five words",
            f"X: {len(WORDS)} words, {size} numbers each",
            (matrix_table("The first five numbers", WORDS, "", x[:, :5], digits=5),),
        ),
        Section(
            f"{HEADS} heads",
            f"per head W^Q, W^K, W^V = rand({size}, {size // HEADS}), seed({SEED})",
            (
                matrix_table(
                    "Weights of head 1; rows attend to columns", WORDS, WORDS, heads[0].weights
                ).with_sum_column(),
                matrix_table(
                    'Output of "the", first five of all heads concatenated',
                    ("computed", "notebook"),
                    "",
                    (concatenated[0, :5].tolist(), PRINTED_MULTI),
                    digits=8,
                ),
            ),
            (
                "All 8 printed decimals agree."
                if _is_printed_output(concatenated[0], PRINTED_MULTI)
                else "They differ: these are not the notebook's vectors.",
                f"The notebook's comment says that head_dim is 10. It is 50 / 10 = {size // HEADS}.",
                "The notebook only concatenates the heads. The paper then multiplies them by W^O.",
            ),
        ),
        Section(
            "One head, and its reproducibility",
            f"W^Q, W^K, W^V = rand({size}, {size}) after seed({SEED})",
            (
                matrix_table(
                    'Output of "the", first five',
                    ("fresh seed", f"after {DISCARDED_DRAWS}", "notebook"),
                    "",
                    (fresh_head.output[0, :5].tolist(), replayed_head.output[0, :5].tolist(), PRINTED_SINGLE),
                    digits=8,
                ),
            ),
            (
                "A fresh seed does not reproduce the notebook's numbers.",
                f"They are reproduced after {DISCARDED_DRAWS:,} draws are discarded (3 × 50 × 50, the three matrices). "
                "The cell that draws them was run twice, and the seed set once."
                if _is_printed_output(replayed_head.output[0], PRINTED_SINGLE)
                else f"Nor are they reproduced after {DISCARDED_DRAWS:,} draws: these are not the notebook's vectors.",
                "Set the seed in the cell that draws, or run all cells from the top.",
            ),
        ),
        Section(
            "The softmax is saturated",
            "rand draws from 0 to 1: no weight is negative",
            (
                Table(
                    "The largest weight in each row, and the largest score",
                    ("single head", *number_labels(HEADS, "head ")),
                    (*WORDS, "score / sqrt(d_k)"),
                    tuple(
                        (*head.weights.max(dim=-1).values.tolist(), head.scaled_scores.abs().max().item())
                        for head in (replayed_head, *heads)
                    ),
                ),
            ),
            (
                "Positive weights all add up: queries and keys point in the same direction, scores are large, and "
                "most rows put nearly all weight on one word. Training starts from weights around 0 and avoids this.",
                "The notebook's heat map shows chance, not what the words mean: no weight here was learned.",
            ),
        ),
    ]
    nearest: list[tuple[str, float]] = []
    if all(word in vectors for word in ANALOGY):  # a small file may lack them
        king, man, woman = ANALOGY
        nearest = list(vectors.analogy([king, woman], [man], 5))
        first_numbers = ", ".join(f"{number:.4f}" for number in (vectors[king] - vectors[man] + vectors[woman])[:3])
        words, similarities = zip(*nearest, strict=True)
        sections.append(
            Section(
                f"{king} - {man} + {woman}",
                "each vector divided by its length, then the cosine with every other word",
                (Table("The nearest words", words, ("cosine",), tuple(zip(similarities, strict=True))),),
                (
                    f"Among the {len(vectors):,} words of {vectors.name}, excluding the three.",
                    f"The plain sum begins {first_numbers}.",
                ),
            )
        )
    values = {
        "words": WORDS,
        "X": x.tolist(),
        "ten_heads": {"output": concatenated.tolist(), "weights": [head.weights.tolist() for head in heads]},
        "single_head": {
            "output": replayed_head.output.tolist(),
            "weights": replayed_head.weights.tolist(),
            "fresh_seed_output": fresh_head.output.tolist(),
            "fresh_seed_weights": fresh_head.weights.tolist(),
        },
        "king_man_woman": [{"word": word, "similarity": similarity} for word, similarity in nearest],
    }
    return Explanation("The notebook: attention over GloVe vectors", tuple(sections), values)


def _build_head(x: Tensor, generator: np.random.RandomState, channels: int) -> AttentionStep:
    """A head with W^Q, W^K and W^V drawn in this order: from 0 to 1, float64."""
    query, key, value = (torch.from_numpy(generator.rand(x.size(1), channels)) for _ in range(3))
    return build_head_step(x.double(), query, key, value).attention  # as NumPy: float32 @ float64 is float64


def _is_printed_output(output: Tensor, printed: Sequence[float]) -> bool:
    return [round(number, 8) for number in output[: len(printed)].tolist()] == list(printed)
