"""Which source word each target word comes from, read off cross-attention.

An aligner is a head of a decoder layer, or the mean of its heads, read in one of two rows: the row that
writes a word, or the row after it, which reads the word back (Chen et al. 2020 found the second sharper).
``best_aligner`` finds it without any gold alignment, by a dictionary that IBM's model 1 makes of the pairs.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from heedful.errors import HeedfulError
from heedful.inspection.trace import Trace, by_words
from heedful.model.config import ModelConfig
from heedful.text.dictionary import NOTHING, Chances, dictionary, shares_of
from heedful.text.links import Link, largest_shares

LINK = re.compile(r"(\d+)([-p])(\d+)")


@dataclass(frozen=True, slots=True)
class Aligner:
    """Where to read the alignment."""

    layer: int
    head: int | None
    """None for the mean of all heads."""
    reads: bool
    """Whether a word's row is the one that reads it, not the one that writes it."""

    @property
    def name(self) -> str:
        """In words, for people: counted from 1."""
        head = "the mean of heads" if self.head is None else f"head {self.head + 1}"
        row = "reads" if self.reads else "writes"
        return f"decoder layer {self.layer + 1}, {head}, the row that {row} the word"

    @property
    def short_name(self) -> str:
        """For a table: 2.1 is head 1 of layer 2."""
        head = "mean" if self.head is None else str(self.head + 1)
        return f"decoder {self.layer + 1}.{head}, {'reading' if self.reads else 'writing'}"

    def weights(self, seen: Trace) -> Tensor:
        """(target words, source words), without tags and ends: rows may sum to less than 1."""
        layer = seen.weights("cross", self.layer)
        chosen = layer.mean(0) if self.head is None else layer[self.head]
        rows = seen.read if self.reads else seen.written  # the start is a word of its own, as is the end
        words = by_words(chosen, rows, seen.source)
        return words[1:, seen.tags : -1] if self.reads else words[:-1, seen.tags : -1]

    def links(self, seen: Trace) -> list[Link]:
        """For every target word the source word of whose attention it has the largest share."""
        return largest_shares(self.weights(seen).numpy())


def aligners(seen: Trace) -> list[Aligner]:
    """Every aligner that the model offers."""
    heads: list[int | None] = [None, *range(seen.heads)]
    return [
        Aligner(layer, head, reads)
        for layer in range(seen.layers["cross"])
        for head in heads
        for reads in (False, True)
    ]


def usual_aligner(config: ModelConfig) -> Aligner:
    """What to take unexamined: the mean of the heads of the layer that mostly aligns best."""
    return Aligner(config.alignment_layer, None, reads=False)


def best_aligner(traces: Sequence[Trace]) -> tuple[Aligner, dict[Aligner, float]]:
    """The aligner that the pairs' own dictionary agrees with most, and its agreement with each, 0 to 1.

    The dictionary knows nothing of heads, order or grammar, but what it finds likely is likelier right.
    """
    pairs = [_words(seen) for seen in traces]
    chances = dictionary(pairs)
    agreement = {aligner: _agreement(aligner, traces, pairs, chances) for aligner in aligners(traces[0])}
    return max(agreement, key=lambda aligner: agreement[aligner]), agreement


def _agreement(
    aligner: Aligner,
    traces: Sequence[Trace],
    pairs: Sequence[tuple[list[str], list[str]]],
    chances: Chances,
) -> float:
    """The mean share that the dictionary gives to the links."""
    found: list[float] = []
    for seen, (source, target) in zip(traces, pairs, strict=True):
        partner = {there: here for here, there in aligner.links(seen)}
        for place, word in enumerate(target):
            linked = source[partner[place]] if place in partner else NOTHING
            found.append(shares_of(word, source, chances).get(linked, 0.0))
    return sum(found) / max(len(found), 1)


def _words(seen: Trace) -> tuple[list[str], list[str]]:
    """Source and target words without tags and ends, in small letters."""
    sides = seen.source.words[seen.tags : -1], seen.written.words[:-1]
    return [word.casefold() for word in sides[0]], [word.casefold() for word in sides[1]]


def alignment_error_rate(
    found: Iterable[Iterable[Link]], sure: Iterable[Iterable[Link]], possible: Iterable[Iterable[Link]]
) -> float:
    """1 - (|A and S| + |A and P|) / (|A| + |S|), of Och and Ney 2003, over all sentences; P includes S.

    >>> alignment_error_rate([[(0, 0), (1, 1)]], [[(0, 0)]], [[(0, 0), (1, 1)]])
    0.0
    """
    hits = size = 0
    for links, must, may in zip(found, sure, possible, strict=True):
        ours, certain = set(links), set(must)
        hits += len(ours & certain) + len(ours & (set(may) | certain))
        size += len(ours) + len(certain)
    return 1 - hits / size if size else 0.0


def parsed_links(line: str, first: int = 0) -> tuple[list[Link], list[Link]]:
    """Sure and possible links of a gold line: "1-1 2p3", words counted from ``first``.

    >>> parsed_links("1-1 2p3", first=1)
    ([(0, 0)], [(1, 2)])
    """
    links: dict[str, list[Link]] = {"-": [], "p": []}
    for text in line.split():
        found = LINK.fullmatch(text)
        if not found or min(int(found[1]), int(found[3])) < first:
            raise HeedfulError(
                f"cannot read the link {text!r}", hint="a link is 1-2, or 1p2 if only possible"
            )
        links[found[2]].append((int(found[1]) - first, int(found[3]) - first))
    return links["-"], links["p"]
