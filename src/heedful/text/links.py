"""Which words belong together, from weights between them or their pieces."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Link = tuple[int, int]
"""(source word, target word), both from 0."""

RESERVE = 0.05
"""Added to what each source word receives: a word that hardly anyone looks at must not win by that."""
LEAST = 0.02
"""Weight below which there is no link: such a word looks elsewhere, at the end of the sentence."""


def largest_shares(weights: NDArray[np.floating]) -> list[Link]:
    """For every target word (row) the source word (column) of whose weight it has the largest share.

    Shares of all that a source word receives, not plain weights: some words (a full stop, a frequent
    article) are looked at by everybody, which says nothing.

    >>> largest_shares(np.array([[0.6, 0.4], [0.55, 0.45]]))
    [(0, 0), (1, 1)]
    """
    if not weights.size:
        return []
    shares = weights / (weights.sum(0, keepdims=True) + RESERVE)
    places = shares.argmax(-1)
    return [(int(place), target) for target, place in enumerate(places) if weights[target, place] >= LEAST]


def word_links(
    weights: NDArray[np.floating], source_words: Sequence[int], target_words: Sequence[int]
) -> list[Link]:
    """``largest_shares`` between words, from weights (target pieces, source pieces) and each piece's word.

    Pieces of no word (-1) are left out; a word without a piece gets no link.

    >>> word_links(np.array([[0.9, 0.1, 0.0], [0.0, 0.2, 0.8]]), [0, 0, 1], [0, 1])
    [(0, 0), (1, 1)]
    """
    rows, columns = sorted(set(target_words) - {-1}), sorted(set(source_words) - {-1})
    if not rows or not columns:
        return []
    belongs = np.array(rows)[:, None] == np.array(target_words)  # (target words, target pieces)
    holds = np.array(columns)[:, None] == np.array(source_words)  # (source words, source pieces)
    summed = (belongs / belongs.sum(1, keepdims=True)) @ weights @ holds.T
    return [(columns[source], rows[target]) for source, target in largest_shares(summed)]


def pharaoh(links: Iterable[Link]) -> str:
    """A line of the format that alignment tools share: "0-0 1-2", source first, from 0.

    >>> pharaoh([(1, 2), (0, 0)])
    '0-0 1-2'
    """
    return " ".join(f"{source}-{target}" for source, target in sorted(links))
