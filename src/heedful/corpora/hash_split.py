"""The held-out split of split.py for many pairs, by hashes that are there already; the result is the same."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heedful.corpora.filters import Pair
from heedful.corpora.split import Split, check_held_out, held_out_size, most_held_out, split_hash

Masks = Sequence[NDArray[np.bool_]]
"""For each shard, and each of its pairs, whether it is meant."""


class HashedPairs(NamedTuple):
    """What is known of the pairs of a shard."""

    hashes: NDArray[np.uint64]
    """(pairs, 2): of source and target."""
    eligible: NDArray[np.bool_]
    """Whether a pair may be held out."""


def split_by_hashes(
    shards: Sequence[HashedPairs], fetch: Callable[[Masks], list[Pair]], count: int | None = None
) -> Split:
    """Hold out ``count`` source sentences, as ``split`` does; ``fetch`` gives the pairs that are marked."""
    total = sum(int(shard.eligible.sum()) for shard in shards)
    wanted = held_out_size(total) if count is None else count
    check_held_out(count, total)
    most = most_held_out(count) + 1  # one more, to know whether any would be left
    smallest = [np.unique(shard.hashes[shard.eligible, 0])[:most] for shard in shards]
    candidates = np.unique(np.concatenate(smallest))[:most]
    chosen_sources = candidates[: max(0, min(wanted, len(candidates) - 1))]
    inside = [np.isin(shard.hashes[:, 0], chosen_sources) for shard in shards]
    chosen = [own & shard.eligible for own, shard in zip(inside, shards, strict=True)]
    pairs = fetch(chosen)
    targets = np.array(sorted({split_hash(pair.target) for pair in pairs}), dtype=np.uint64)
    learned = set[int]()
    for shard, own in zip(shards, inside, strict=True):
        others = shard.hashes[~own, 1]
        learned.update(others[np.isin(others, targets)].tolist())
    held_out = [pair for pair in pairs if split_hash(pair.target) not in learned]
    sources = frozenset(chosen_sources.tolist())
    return Split(lambda: iter(()), sources, held_out, len(pairs) - len(held_out), total - len(pairs))
