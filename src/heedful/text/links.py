"""Which words belong together, from weights between them."""

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
