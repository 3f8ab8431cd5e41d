"""The lecture's words as numbers: one-hot and TF-IDF vectors, and its notebook with GloVe vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.inspection.arithmetic import HeadStep, head_step
from heedful.inspection.tables import Explanation, Section, Table, counted, grid
from heedful.text.vectors import (
    Terms,
    bag_of_words,
    counts,
    inverse_document_frequency,
    one_hot,
    tf_idf,
    word_tokens,
)
from heedful.text.word_vectors import WordVectors, read_word_vectors

# --- Text to numbers

SENTENCE, PHRASE = "AI changes the world.", "AI world"
VOCABULARY = ("AI", "changes", "world")
DOCUMENTS = ("AI changes world", "AI world", "world")


def text() -> Explanation:
    """Tokens, one-hot rows, a bag of words, counts and TF-IDF."""
    terms = Terms(VOCABULARY)
    phrase = word_tokens(PHRASE)
    documents = [word_tokens(document) for document in DOCUMENTS]
    rows, bag = one_hot(phrase, terms), bag_of_words(phrase, terms)
    frequencies = counts(documents, terms)
    rare, plain = (
        inverse_document_frequency(frequencies, smooth=False),
        tf_idf(documents, terms, smooth=False),
    )
    smooth = tf_idf(documents, terms)
    smooth_rare = inverse_document_frequency(frequencies)
    return Explanation(
        "Text to numbers, before there were embeddings",
        (
            _token_section(),
            _hot_section(phrase, rows.tolist(), bag.tolist()),
            _idf_section(frequencies.tolist(), rare.tolist(), plain.tolist()),
            _smooth_section(smooth_rare.tolist(), smooth.tolist()),
        ),
        {
            "tokens": word_tokens(SENTENCE),
            "vocabulary": VOCABULARY,
            "one_hot": rows.tolist(),
            "bag_of_words": bag.tolist(),
            "counts": frequencies.tolist(),
            "idf": rare.tolist(),
            "tf_idf": plain.tolist(),
            "smooth_idf": smooth_rare.tolist(),
            "smooth_tf_idf": smooth.tolist(),
        },
    )


def _token_section() -> Section:
    tokens = word_tokens(SENTENCE)
    return Section(
        "Tokens", f'"{SENTENCE}"', (Table("", ("token",), counted(len(tokens)), (tuple(tokens),)),)
    )


def _hot_section(phrase: Sequence[str], rows: list[list[float]], bag: list[float]) -> Section:
    return Section(
        "One-hot and bag of words",
        f'the vocabulary is {", ".join(VOCABULARY)}; the text is "{PHRASE}"',
        (
            grid("One-hot: a row for each token", phrase, VOCABULARY, rows, whole=True),
            grid("Bag of words: a row for the text", (PHRASE,), VOCABULARY, [bag], whole=True, beside=True),
        ),
        (
            'The document gives [1, 0, 1] for "AI world". That is a bag of words (multi-hot). One-hot has a '
            "row for each token, with a single 1 in it.",
        ),
    )


def _idf_section(frequencies: list[list[float]], rare: list[float], plain: list[list[float]]) -> Section:
    having = [sum(row[place] > 0 for row in frequencies) for place in range(len(VOCABULARY))]
    facts = Table("", ("df", "ln(3 / df)"), VOCABULARY, (tuple(having), tuple(rare)))
    return Section(
        "Counts and TF-IDF",
        "tf-idf = tf × ln(N / df): N = 3 texts, df of which have the word",
        (
            grid("Counts (tf)", DOCUMENTS, VOCABULARY, frequencies, whole=True),
            facts,
            grid("TF-IDF", DOCUMENTS, VOCABULARY, plain, beside=True),
        ),
        (
            "A word that every text has says nothing about any: ln(3 / 3) = 0.",
            "The document names TF-IDF without numbers; these texts are ours.",
        ),
    )


def _smooth_section(rare: list[float], smooth: list[list[float]]) -> Section:
    return Section(
        "TF-IDF as scikit-learn computes it",
        "idf = ln((1 + N) / (1 + df)) + 1, and each row divided by its length",
        (grid("", ("idf",), VOCABULARY, [rare]), grid("", DOCUMENTS, VOCABULARY, smooth, beside=True)),
        (
            "Check the second row: 1.2877 and 1 have the length sqrt(1.2877^2 + 1^2) = 1.6304; "
            "1.2877 / 1.6304 = 0.7898.",
        ),
    )


# --- The GloVe notebook

WORDS = ("the", "cat", "sat", "on", "table")
ANALOGY = ("king", "man", "woman")
SEED, HEADS, DISCARDED = 42, 10, 7500
PRINTED_SINGLE = (-4.31502585, -3.90981072, -2.11083877, -1.51211468, -1.90636801)
PRINTED_MULTI = (-4.37999318, -1.99506183, -2.05712457, -0.08937276, -1.72769596)


@dataclass(frozen=True, slots=True)
class Notebook:
    """The notebook's attention, from the vectors of its five words."""

    x: Tensor
    """(words, numbers), float32 as the notebook had them."""

    def head(self, draws: np.random.RandomState, channels: int) -> HeadStep:
        """A head with W^Q, W^K and W^V drawn in this order: from 0 to 1, float64."""
        query, key, value = (torch.from_numpy(draws.rand(self.x.size(1), channels)) for _ in range(3))
        return head_step(self.x.double(), query, key, value)  # as NumPy: float32 @ float64 is float64

    def single(self, discarded: int = 0) -> HeadStep:
        """One head over all channels, after throwing away so many draws."""
        draws = np.random.RandomState(SEED)  # the same numbers as np.random.seed
        draws.rand(discarded)
        return self.head(draws, self.x.size(1))

    def multi(self) -> list[HeadStep]:
        """Ten heads, their weights drawn one head after the other."""
        draws = np.random.RandomState(SEED)
        return [self.head(draws, self.x.size(1) // HEADS) for _ in range(HEADS)]


def glove(vectors_path: Path) -> Explanation:
    """The notebook with GloVe vectors: its ten heads and its one, and why the one is hard to get again."""
    vectors = read_word_vectors(vectors_path)
    if vectors.dimension % HEADS:
        raise HeedfulError(
            f"{vectors_path}: {vectors.dimension} numbers a word do not split into {HEADS} heads",
            hint="the notebook has glove.6B.50d.txt: 50 numbers a word",
        )
    notebook = Notebook(torch.from_numpy(np.stack([vectors[word] for word in WORDS])))
    heads, again, fresh = notebook.multi(), notebook.single(DISCARDED), notebook.single()
    joined = torch.cat([head.attention.output for head in heads], dim=-1)
    known = all(word in vectors for word in ANALOGY)
    nearest = vectors.analogy([ANALOGY[0], ANALOGY[2]], [ANALOGY[1]], 5) if known else []
    sections = (
        _words_section(notebook.x),
        _multi_section(heads, joined),
        _single_section(again, fresh),
        _saturated_section(heads, again),
        *([_analogy_section(vectors, nearest)] if known else []),  # a small file may lack them
    )
    values = {
        "words": WORDS,
        "X": notebook.x.tolist(),
        "ten_heads": {
            "output": joined.tolist(),
            "weights": [head.attention.weights.tolist() for head in heads],
        },
        "single_head": {
            "output": again.attention.output.tolist(),
            "weights": again.attention.weights.tolist(),
            "fresh_seed_output": fresh.attention.output.tolist(),
            "fresh_seed_weights": fresh.attention.weights.tolist(),
        },
        "king_man_woman": [{"word": word, "similarity": likeness} for word, likeness in nearest],
    }
    return Explanation("The notebook: attention over GloVe vectors", sections, values)


def _words_section(x: Tensor) -> Section:
    return Section(
        "The vectors of five words",
        f"X: {len(WORDS)} words, {x.size(1)} numbers each",
        (grid("The first five numbers", WORDS, counted(5), x[:, :5].tolist(), digits=5),),
    )


def _compared(title: str, rows: Sequence[tuple[str, Sequence[float]]]) -> Table:
    names, numbers = [name for name, _ in rows], [list(cells) for _, cells in rows]
    return grid(title, names, counted(len(PRINTED_MULTI)), numbers, digits=8)


def _agrees(output: Tensor, printed: Sequence[float]) -> bool:
    return [round(number, 8) for number in output[: len(printed)].tolist()] == list(printed)


def _multi_section(heads: Sequence[HeadStep], joined: Tensor) -> Section:
    attention = heads[0].attention
    same = _agrees(joined[0], PRINTED_MULTI)
    return Section(
        f"{HEADS} heads",
        f"per head W^Q, W^K, W^V = rand({joined.size(1)}, {attention.query.size(1)}) after seed({SEED})",
        (
            grid(
                "Weights of head 1; rows look at columns", WORDS, WORDS, attention.weights.tolist()
            ).with_sum_column(),
            _compared(
                'Output of "the", first five of all heads joined',
                (("computed", joined[0, :5].tolist()), ("notebook", PRINTED_MULTI)),
            ),
        ),
        (
            "All 8 printed decimals agree." if same else "They differ: these are not the notebook's vectors.",
            f"The notebook's comment says that head_dim is 10. It is 50 / 10 = {attention.query.size(1)}.",
            "The notebook only puts the heads side by side. The paper then mixes them: times W^O.",
        ),
    )


def _single_section(again: HeadStep, fresh: HeadStep) -> Section:
    computed, first = again.attention.output[0], fresh.attention.output[0]
    same = _agrees(computed, PRINTED_SINGLE)
    return Section(
        "One head, and a story about reproducibility",
        f"W^Q, W^K, W^V = rand({len(computed)}, {len(computed)}) after seed({SEED})",
        (
            _compared(
                'Output of "the", first five',
                (
                    ("fresh seed", first[:5].tolist()),
                    (f"after {DISCARDED}", computed[:5].tolist()),
                    ("notebook", PRINTED_SINGLE),
                ),
            ),
        ),
        (
            "With a fresh seed the notebook's numbers do not come out.",
            f"They do after {DISCARDED:,} draws are thrown away: 3 × 50 × 50, the three matrices once over. "
            "The cell that draws them had been run twice, and the seed set once."
            if same
            else "Nor do they after 7,500 draws: these are not the notebook's vectors.",
            "The lesson: set the seed in the cell that draws, or run all cells from the top.",
        ),
    )


def _saturated_section(heads: Sequence[HeadStep], single: HeadStep) -> Section:
    cells = tuple(
        (*head.attention.weights.max(dim=-1).values.tolist(), head.attention.scaled.abs().max().item())
        for head in (single, *heads)
    )
    rows = ("the one head", *counted(len(heads), "head "))
    table = Table(
        "The largest weight in each row, and the largest score", rows, (*WORDS, "score / sqrt(d_k)"), cells
    )
    return Section(
        "The softmax is saturated",
        "rand draws from 0 to 1: no weight is negative",
        (table,),
        (
            "Positive weights all add up: queries and keys point the same way, scores are large, and most "
            "rows put nearly all weight on one word. Training starts from weights around 0 and avoids this.",
            "The notebook's heat map shows chance, not what the words mean: no weight here was learned.",
        ),
    )


def _analogy_section(vectors: WordVectors, nearest: Sequence[tuple[str, float]]) -> Section:
    king, man, woman = ANALOGY
    first = ", ".join(f"{number:.4f}" for number in (vectors[king] - vectors[man] + vectors[woman])[:3])
    table = Table(
        "The nearest words", tuple(word for word, _ in nearest), ("cosine",), tuple((v,) for _, v in nearest)
    )
    return Section(
        f"{king} - {man} + {woman}",
        "each vector divided by its length, then the cosine with every other word",
        (table,),
        (
            f"Among the {len(vectors):,} words of {vectors.name}, the three themselves left out.",
            f"The plain sum begins {first}.",
        ),
    )
