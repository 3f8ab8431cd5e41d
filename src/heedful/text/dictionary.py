"""A dictionary out of sentence pairs: how likely each word becomes each other, by model 1 of IBM."""

from collections import defaultdict
from collections.abc import Sequence

NOTHING = ""
"""The source word of target words that come from none."""
Chances = defaultdict[tuple[str, str], float]
"""(source word, target word) -> how likely the first becomes the second."""


def dictionary(pairs: Sequence[tuple[Sequence[str], Sequence[str]]], rounds: int = 5) -> Chances:
    """How likely each source word becomes each target word: model 1 of Brown et al. 1993.

    Expectation maximisation: share every target word among the source words of its sentence (and NOTHING),
    by what is believed so far; count the shares; believe the counts; again.
    """
    chances: Chances = defaultdict(lambda: 1.0)
    for _ in range(rounds):
        counts: Chances = defaultdict(float)
        totals: defaultdict[str, float] = defaultdict(float)
        for source, target in pairs:
            for word in target:
                for other, share in shares_of(word, source, chances).items():
                    counts[other, word] += share
                    totals[other] += share
        chances = defaultdict(float, {pair: count / totals[pair[0]] for pair, count in counts.items()})
    return chances


def shares_of(word: str, source: Sequence[str], chances: Chances) -> dict[str, float]:
    """Which source words a target word comes from, as shares that sum to 1; words that recur share one."""
    candidates = {other: chances[other, word] for other in (NOTHING, *source)}
    total = sum(candidates.values())
    return {other: chance / total for other, chance in candidates.items()} if total else {}
