"""Whether a pair is to be learned from: plain data, so that all processes that encode give one answer."""

from dataclasses import dataclass, replace
from typing import Any, Self

from heedful.corpora.filters import Pair
from heedful.corpora.split import split_hash
from heedful.text.tags import without_tags


@dataclass(frozen=True, slots=True)
class Learns:
    """Of a pair: True, unless it is among those that are for examinations."""

    sources: frozenset[int] = frozenset()
    """Hashes of sources that are not learned from."""
    sides: frozenset[int] = frozenset()
    """Hashes of sentences that are not learned from on either side."""
    pairs: frozenset[Pair] = frozenset()
    """Pairs, without their tags, that are not learned from."""

    def __call__(self, pair: Pair) -> bool:
        """Whether to learn from it."""
        if self.pairs and untagged(pair) in self.pairs:
            return False
        if not (self.sources or self.sides):
            return True
        source = split_hash(pair.source)
        if source in self.sources or source in self.sides:
            return False
        return not self.sides or split_hash(pair.target) not in self.sides

    def without(self, sources: frozenset[int]) -> "Learns":
        """The same, but for more sources that are not learned from."""
        return replace(self, sources=self.sources | sources)

    def to_json(self) -> dict[str, Any]:
        """Plain data, always in the same order."""
        return {
            "sources": sorted(self.sources),
            "sides": sorted(self.sides),
            "pairs": sorted(map(list, self.pairs)),
        }

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Self:
        """What ``to_json`` described."""
        pairs = frozenset(Pair(*each) for each in state["pairs"])
        return cls(frozenset(state["sources"]), frozenset(state["sides"]), pairs)


def untagged(pair: Pair) -> Pair:
    """A pair as the user has written it."""
    return pair._replace(source=without_tags(pair.source))
