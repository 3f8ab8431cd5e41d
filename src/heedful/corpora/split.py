"""The held-out split, by hash: no sentence of either side is in both parts.

A pair is held out if the hash of its source is among the smallest, which needs neither a shuffle
nor memory for the corpus, and which does not depend on the order of the files.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

from heedful.corpora.filters import Pair
from heedful.corpora.hashes import sentence_hash
from heedful.errors import HeedfulError
from heedful.text.tags import without_tags

PairFactory = Callable[[], Iterator[Pair]]
"""Gives the same pairs from the start whenever it is called."""
_SHARE = 0.05
_MOST_HELD_OUT = 2000


def held_out_size(pairs: int) -> int:
    """Source sentences to hold out: 5 % of the corpus, one at least, 2,000 at most.

    >>> [held_out_size(pairs) for pairs in (0, 1, 2, 1000, 10_000_000)]
    [0, 0, 1, 50, 2000]
    """
    return min(max(round(_SHARE * pairs), 1), _MOST_HELD_OUT) if pairs >= 2 else 0


def most_held_out(count: int | None) -> int:
    """Source sentences that are held out at most, whatever the corpus."""
    return _MOST_HELD_OUT if count is None else count


def check_held_out(count: int | None, total: int | None = None) -> None:
    """Raise if so many sentences cannot be held out, of so many pairs if that is known."""
    if count is not None and count < 1:
        raise HeedfulError(f"cannot hold out {count} sentences", hint="hold out 1 or more")
    if count is not None and total is not None and count > total / 2:
        raise HeedfulError(
            f"holding out {count:,} of {total:,} pairs leaves too few to learn from",
            hint=f"hold out at most {total // 2:,}",
        )


def split_hash(sentence: str) -> int:
    """Hash of the sentence with case and spacing evened out, without its tags.

    >>> split_hash("Guten  Morgen ") == split_hash("guten morgen")
    True
    """
    return sentence_hash(" ".join(without_tags(sentence).casefold().split()))


class HeldOutChooser:
    """Keeps the ``limit`` smallest distinct hashes of the source sentences it observes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: set[int] = set()
        self._largest_first: list[int] = []  # the same hashes negated: heapq only knows smallest first

    def __len__(self) -> int:
        return len(self._kept)

    def observe(self, source: str) -> None:
        """Take note of a source sentence."""
        value = split_hash(source)
        if value in self._kept or self._limit <= 0:
            return
        if len(self._kept) < self._limit:
            heapq.heappush(self._largest_first, -value)
            self._kept.add(value)
        elif value < -self._largest_first[0]:
            self._kept.remove(-heapq.heapreplace(self._largest_first, -value))
            self._kept.add(value)

    def threshold(self, count: int) -> int:
        """The hash that ``count`` distinct source sentences do not exceed; -1 for none."""
        count = min(count, len(self._kept))
        return sorted(self._kept)[count - 1] if count > 0 else -1


@dataclass(frozen=True)
class Split:
    """A corpus in two parts: one to learn from, one to be examined on."""

    pairs: PairFactory
    sources: frozenset[int]
    """Hashes of the sources that are not for training."""
    held_out: list[Pair]
    leaks: int
    """Pairs in neither part: their source is held out, but training has their target."""
    training_pairs: int

    def training(self) -> Iterator[Pair]:
        """The training part, read anew on every call."""
        return filter(self.learns, self.pairs())

    def learns(self, pair: Pair) -> bool:
        """Whether a pair, of these or of others, may be learned from."""
        return split_hash(pair.source) not in self.sources


def split(pairs: PairFactory, count: int | None = None, others: PairFactory | None = None) -> Split:
    """Hold out ``count`` source sentences (held_out_size, unless told) with all their translations.

    At least one source sentence stays for training. ``others`` are pairs to learn from too, of which none is
    held out. Reads the pairs three times.
    """
    check_held_out(count)
    chooser = HeldOutChooser(most_held_out(count) + 1)  # one more, to know whether any would be left
    total = 0
    for pair in pairs():
        chooser.observe(pair.source)
        total += 1
    wanted = held_out_size(total) if count is None else count
    check_held_out(count, total)
    threshold = chooser.threshold(min(wanted, len(chooser) - 1))
    chosen = [pair for pair in pairs() if split_hash(pair.source) <= threshold]
    sources = frozenset(split_hash(pair.source) for pair in chosen)
    everything = chain(pairs(), others() if others else ())
    learned = _learned_targets(
        chosen, (pair for pair in everything if split_hash(pair.source) not in sources)
    )
    held_out = [pair for pair in chosen if split_hash(pair.target) not in learned]
    return Split(pairs, sources, held_out, len(chosen) - len(held_out), total - len(chosen))


def _learned_targets(chosen: list[Pair], training: Iterator[Pair]) -> set[int]:
    """Hashes of the chosen targets that training has too."""
    targets = {split_hash(pair.target) for pair in chosen}
    if not targets:
        return set()
    return {value for pair in training if (value := split_hash(pair.target)) in targets}
