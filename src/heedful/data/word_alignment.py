"""Word alignments: from attention weights, by IBM model 1, their text format, and their error rate."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from heedful.errors import HeedfulError

WordLink = tuple[int, int]  # (source word, target word), both counted from 0

SMOOTHING = 0.05  # added to the total weight of each source word, so that a word with hardly any attention cannot win
MIN_WEIGHT = 0.02  # minimum weight of a link: below it, the word attends elsewhere, such as to the end of the sentence


def align_by_attention(weights: NDArray[np.floating]) -> list[WordLink]:
    """For every target word (row) the source word (column) of whose total weight it has the largest share.

    Shares instead of plain weights, because every word attends to some source words (a full stop, a frequent
    article).

    >>> align_by_attention(np.array([[0.6, 0.4], [0.55, 0.45]]))
    [(0, 0), (1, 1)]
    """
    if not weights.size:
        return []
    normalized = weights / (weights.sum(0, keepdims=True) + SMOOTHING)
    best_sources = normalized.argmax(-1)
    return [
        (int(source), target) for target, source in enumerate(best_sources) if weights[target, source] >= MIN_WEIGHT
    ]


def align_words(
    weights: NDArray[np.floating], source_words: Sequence[int], target_words: Sequence[int]
) -> list[WordLink]:
    """``align_by_attention`` for words, from weights (target tokens, source tokens) and each token's word.

    Tokens of no word (-1) are ignored; a word without tokens gets no link.

    >>> align_words(np.array([[0.9, 0.1, 0.0], [0.0, 0.2, 0.8]]), [0, 0, 1], [0, 1])
    [(0, 0), (1, 1)]
    """
    rows, columns = sorted(set(target_words) - {-1}), sorted(set(source_words) - {-1})
    if not rows or not columns:
        return []
    target_membership = np.array(rows)[:, None] == np.array(target_words)  # (target words, target tokens)
    source_membership = np.array(columns)[:, None] == np.array(source_words)  # (source words, source tokens)
    word_weights = (target_membership / target_membership.sum(1, keepdims=True)) @ weights @ source_membership.T
    return [(columns[source], rows[target]) for source, target in align_by_attention(word_weights)]


def format_pharaoh(links: Iterable[WordLink]) -> str:
    """Links in Pharaoh format, the one of alignment tools: "0-0 1-2", source first, from 0.

    >>> format_pharaoh([(1, 2), (0, 0)])
    '0-0 1-2'
    """
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


NULL_WORD = ""  # the source of target words that translate no source word

TranslationProbabilities = defaultdict[tuple[str, str], float]  # (source word, target word) -> translation probability


def train_ibm_model1(
    pairs: Sequence[tuple[Sequence[str], Sequence[str]]], iterations: int = 5
) -> TranslationProbabilities:
    """Translation probabilities of words: IBM model 1 (Brown et al. 1993), by expectation maximization.

    Each iteration distributes every target word over the source words of its sentence (and NULL_WORD) by the
    current probabilities, then estimates the probabilities from these counts.
    """
    probabilities: TranslationProbabilities = defaultdict(lambda: 1.0)
    for _ in range(iterations):
        counts: TranslationProbabilities = defaultdict(float)
        totals: defaultdict[str, float] = defaultdict(float)
        for source, target in pairs:
            for target_word in target:
                for source_word, posterior in alignment_posteriors(target_word, source, probabilities).items():
                    counts[source_word, target_word] += posterior
                    totals[source_word] += posterior
        probabilities = defaultdict(float, {pair: count / totals[pair[0]] for pair, count in counts.items()})
    return probabilities


def alignment_posteriors(
    target_word: str, source: Sequence[str], probabilities: TranslationProbabilities
) -> dict[str, float]:
    """Probabilities that a target word translates each source word; repeated source words count once."""
    candidates = {source_word: probabilities[source_word, target_word] for source_word in (NULL_WORD, *source)}
    total = sum(candidates.values())
    return {source_word: probability / total for source_word, probability in candidates.items()} if total else {}


def alignment_error_rate(
    predicted: Iterable[Iterable[WordLink]], sure: Iterable[Iterable[WordLink]], possible: Iterable[Iterable[WordLink]]
) -> float:
    """1 - (|A and S| + |A and P|) / (|A| + |S|) over all sentences (Och and Ney 2003); P includes S.

    >>> alignment_error_rate([[(0, 0), (1, 1)]], [[(0, 0)]], [[(0, 0), (1, 1)]])
    0.0
    """
    hits = size = 0
    for sentence_links, sure_links, possible_links in zip(predicted, sure, possible, strict=True):
        predicted_links, sure_set = set(sentence_links), set(sure_links)
        hits += len(predicted_links & sure_set) + len(predicted_links & (set(possible_links) | sure_set))
        size += len(predicted_links) + len(sure_set)
    return 1 - hits / size if size else 0.0


LINK_PATTERN = re.compile(r"(\d+)([-p])(\d+)")


def parse_gold_links(line: str, first_index: int = 0) -> tuple[list[WordLink], list[WordLink]]:
    """Sure and possible links of a gold line, "1-1 2p3", words counted from ``first_index``.

    >>> parse_gold_links("1-1 2p3", first_index=1)
    ([(0, 0)], [(1, 2)])
    """
    links: dict[str, list[WordLink]] = {"-": [], "p": []}
    for text in line.split():
        match = LINK_PATTERN.fullmatch(text)
        if not match or min(int(match[1]), int(match[3])) < first_index:
            raise HeedfulError(f"invalid link {text!r}", hint="write sure links as 1-2, possible ones as 1p2")
        links[match[2]].append((int(match[1]) - first_index, int(match[3]) - first_index))
    return links["-"], links["p"]
