"""Embeddings that start from word vectors (GloVe, word2vec) instead of random numbers.

An entry of the vocabulary is looked up if it spells a word: in a word vocabulary each does; of subwords,
those that begin with ▁ (``▁the``), though some begin longer words, and marks such as the full stop.
Section 3.4: with a joint vocabulary both sides start from one table, and with tie_output the output layer
is the target's table too; otherwise the output layer starts from random numbers.
"""

import unicodedata
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from heedful.config import Settings, merged
from heedful.errors import HeedfulError
from heedful.model.predictor import Predictor
from heedful.progress import Reporter
from heedful.text.spelling import SPACE, unescaped
from heedful.text.tokenizer import PairTokenizer
from heedful.text.vocabulary import Vocabulary
from heedful.text.word_vectors import WordVectors, read_dimension, read_word_vectors
from heedful.training.config import RunConfig, TrainingConfig
from heedful.training.preparation import Choice, CorpusSize

Words = dict[int, str]
"""The words that entries of a vocabulary spell."""

_SETTINGS = ("source_vectors", "target_vectors")


def with_lasting_vectors(settings: Settings) -> Settings:
    """The settings with whole paths of the vector files: a resumed run may stand in another folder."""
    training = settings.get("training")
    told = training if isinstance(training, Mapping) else {}
    paths = {
        name: str(_lasting(text)) for name in _SETTINGS if isinstance(text := told.get(name), str) and text
    }
    return merged(settings, {"training": paths}) if paths else settings


def _lasting(text: str) -> Path:
    """No shell replaces the ~ after ``--set name=``."""
    return (Path.home() / text[2:] if text.startswith("~/") else Path(text)).absolute()


def check_vectors(recipes: Sequence[RunConfig]) -> None:
    """Vectors that are not there, or fit none of the recipes that may come, are an error before the work."""
    widths = [recipe.model.width for recipe in recipes]
    for path in _files(recipes[0].training):
        dimension = read_dimension(path)
        if dimension not in widths:
            raise _wrong_dimension(path.name, dimension, widths[0])


def checking_vectors(choose: Choice) -> Choice:
    """The same choice, but one that the vectors do not fit is an error."""

    def choose_and_check(size: CorpusSize, *, measured: bool = False) -> tuple[RunConfig, str]:
        config, reason = choose(size, measured=measured)
        check_vectors([config])
        return config, reason

    return choose_and_check


def start_from_vectors(
    model: Predictor, tokenizer: PairTokenizer, config: TrainingConfig, report: Reporter
) -> None:
    """Put the vectors that the settings name into the embeddings of a fresh model."""
    source, target = model.tables
    filled: set[int] = set()
    if config.source_vectors:
        filled = _fill(source, tokenizer.source.vocabulary, config.source_vectors, "source", report)
    if config.target_vectors:
        taken = filled if target is source else set()
        _fill(target, tokenizer.target.vocabulary, config.target_vectors, "target", report, taken)


def words_of(vocabulary: Vocabulary) -> Words:
    """The entries that spell a word, and the word."""
    learned = enumerate(vocabulary.pieces[vocabulary.learned :], start=vocabulary.learned)
    spelled = ((identity, _word(piece, vocabulary)) for identity, piece in learned)
    return {identity: word for identity, word in spelled if word}


def _word(piece: str, vocabulary: Vocabulary) -> str:
    """The word that a piece spells, or nothing."""
    word = unescaped(piece.strip(SPACE))
    if piece.startswith(SPACE) or all(unicodedata.category(character)[0] in "PS" for character in word):
        return word
    letter = len(word) == 1 and word.lower() != word.upper()  # one that spells words not in the vocabulary
    return word if vocabulary.kind == "word" and not letter else ""


def _fill(
    table: nn.Embedding,
    vocabulary: Vocabulary,
    file: str,
    side: str,
    report: Reporter,
    taken: Collection[int] = (),
) -> set[int]:
    """Replace the rows whose words the file has, except those taken; returns which."""
    words = words_of(vocabulary)
    vectors = read_word_vectors(file, only={form for word in words.values() for form in (word, word.lower())})
    if vectors.dimension != table.embedding_dim:
        raise _wrong_dimension(vectors.name, vectors.dimension, table.embedding_dim)
    found = _found(words, vectors)
    if not found:
        raise HeedfulError(
            f"{vectors.name} has none of the {len(words):,} words of the {side} vocabulary",
            hint="are they of the same language? tokenizer.kind=word has whole words to look up",
        )
    rows = {identity: row for identity, row in found.items() if identity not in taken}
    _replace(table, rows, vectors)
    entries = len(vocabulary.pieces) - vocabulary.learned - len(taken)
    other = "other " if taken else ""
    report.say(
        f"{side} vectors: {len(rows):,} of {entries:,} {other}vocabulary entries found in {vectors.name}"
    )
    return set(rows)


def _found(words: Words, vectors: WordVectors) -> dict[int, int]:
    """For every entry found, as it is spelled or in lower case, its row; a vector of zeros says nothing."""
    telling = np.count_nonzero(vectors.matrix, axis=1) > 0
    rows = {
        identity: vectors.index.get(word, vectors.index.get(word.lower(), -1))
        for identity, word in words.items()
    }
    return {identity: row for identity, row in rows.items() if row >= 0 and telling[row]}


def _replace(table: nn.Embedding, rows: Mapping[int, int], vectors: WordVectors) -> None:
    """Write the vectors at the scale of the random rows that they replace.

    The model multiplies embeddings by sqrt(width) before it adds positions, and the tied output layer takes
    them as they are: both count on numbers of root mean square width ^ -0.5, and GloVe's are larger. One
    factor for the whole file keeps angles and relative lengths.
    """
    if not rows:
        return
    chosen = vectors.matrix[list(rows.values())].astype(np.float64)
    chosen *= table.embedding_dim**-0.5 / np.sqrt(np.mean(chosen**2))
    with torch.no_grad():
        table.weight[list(rows)] = torch.from_numpy(chosen).to(table.weight)


def _files(config: TrainingConfig) -> list[Path]:
    return [Path(name) for name in (config.source_vectors, config.target_vectors) if name]


def _wrong_dimension(name: str, dimension: int, width: int) -> HeedfulError:
    return HeedfulError(
        f"{name} has {dimension} numbers a word, model.width is {width}",
        hint=f"--set model.width={dimension} (heads must divide it), or other vectors",
    )
