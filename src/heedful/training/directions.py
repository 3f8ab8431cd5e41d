"""Several directions in one training: what is held out of each, how much of each is seen.

The rule to remember: a sentence that is held out in one direction is not learned from in any other.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from typing import NamedTuple, TypeVar

from heedful.corpora.filters import Pair
from heedful.corpora.parts import Direction, Part
from heedful.corpora.split import PairFactory, held_out_size, split, split_hash
from heedful.errors import HeedfulError
from heedful.progress import counted
from heedful.training.learns import Learns

MOST_HELD_OUT = 2000
"""Sentences of all directions together, unless told; but never fewer than the next of each that has them."""
LEAST_HELD_OUT = 100
Item = TypeVar("Item")


class Division(NamedTuple):
    """Which pairs to learn from, which to be examined on, and a word about how they came to be."""

    learns: Learns
    validation: list[Pair]
    notes: list[str]
    examined: tuple[Direction, ...] = ()
    """The direction of each validation pair, if there are several."""


class DirectionPairs(NamedTuple):
    """The pairs of one direction."""

    name: Direction
    pairs: PairFactory
    size: int
    reverse: bool = False


def tempered(parts: Sequence[Part], sizes: Sequence[int], temperature: float) -> tuple[Part, ...]:
    """Parts with shares by temperature: of an epoch, each is seen as its size ^ (1 / temperature).

    Parts of one direction are weighed as one; shares that are told stay, and the others have the rest.
    """
    if temperature == 1:
        return tuple(parts)
    names = [part.direction or number for number, part in enumerate(parts)]
    together: dict[Direction | int, int] = {}
    for name, part, size in zip(names, parts, sizes, strict=True):
        if not part.share:
            together[name] = together.get(name, 0) + size
    if len(together) < 2:
        raise HeedfulError(
            "training.temperature weighs corpora or directions against each other, and here is one alone",
            hint="name others: --mix more.tsv, or --direction en-fr=FILE --direction en-de=FILE",
        )
    weights = {name: size ** (1 / temperature) for name, size in together.items()}
    total = sum(weights.values()) / (1 - sum(part.share for part in parts))
    return tuple(
        part if part.share else replace(part, share=weights[name] / total * size / together[name])
        for name, part, size in zip(names, parts, sizes, strict=True)
    )


def held_out_of_each(
    directions: Sequence[DirectionPairs], everything: PairFactory, count: int = 0
) -> Division:
    """Hold out some pairs of every direction, ``count`` sentences in all or as many as suit."""
    chosen = [_held_out(each, count, len(directions)) for each in directions]
    learns = Learns(sides=frozenset[int]().union(*(found for _, found in chosen)))
    targets = {split_hash(pair.target) for pairs, _ in chosen for pair in pairs}
    learned = {
        value for pair in filter(learns, everything()) if (value := split_hash(pair.target)) in targets
    }
    kept = [[pair for pair in pairs if split_hash(pair.target) not in learned] for pairs, _ in chosen]
    for each, pairs in zip(directions, kept, strict=True):
        if not pairs:
            name = "-".join(each.name)
            raise HeedfulError(
                f"no pair of {name} can be held out: their translations all recur",
                hint=f"give pairs to validate on: --validation {name}=FILE, and so for the others",
            )
    held = ", ".join(
        f"{len(pairs):,} of {'-'.join(each.name)}" for each, pairs in zip(directions, kept, strict=True)
    )
    notes = [f"held out for validation, chosen by a hash of the source: {held}"]
    left_out = sum(not learns(pair) for pair in everything()) - sum(map(len, kept))
    if left_out:
        notes.append(f"left out {counted(left_out, 'pair')}: a sentence of theirs is held out elsewhere")
    return Division(learns, *interleaved([each.name for each in directions], kept, notes))


def interleaved(
    names: Sequence[Direction], groups: Sequence[Sequence[Pair]], notes: list[str]
) -> tuple[list[Pair], list[str], tuple[Direction, ...]]:
    """The rest of a division; pairs of all directions in turn, so that the first ones are of each."""
    named = [[(pair, name) for pair in pairs] for name, pairs in zip(names, groups, strict=True)]
    turns = in_turn(named)
    return [pair for pair, _ in turns], notes, tuple(name for _, name in turns)


def _held_out(direction: DirectionPairs, count: int, directions: int) -> tuple[list[Pair], frozenset[int]]:
    """Pairs and hashes of their sources; pairs that were turned round are held out as the others were."""
    most = max(LEAST_HELD_OUT, MOST_HELD_OUT // directions)
    wanted = count // directions if count else min(held_out_size(direction.size), most)
    turned = _turned if direction.reverse else lambda pair: pair
    found = split(lambda: map(turned, direction.pairs()), max(1, wanted))
    return [turned(pair) for pair in found.held_out], found.sources


def _turned(pair: Pair) -> Pair:
    return Pair(pair.target, pair.source)


def in_turn(groups: Iterable[Iterable[Item]]) -> list[Item]:
    """The first of each, the second of each, and so on."""
    absent = object()
    rows = zip_longest(*groups, fillvalue=absent)
    return [item for item in chain.from_iterable(rows) if item is not absent]  # type: ignore[misc]
