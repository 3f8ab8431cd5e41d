"""Which source word each target word comes from, read off cross-attention.

An aligner is a head of a decoder layer, or the mean of its heads, read in one of two rows: the row that
writes a word, or the row after it, which reads the word back (Chen et al. 2020 found the second sharper).
``best_aligner`` finds it without any gold alignment.
"""

import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from heedful.errors import HeedfulError
from heedful.inspection.trace import Trace, by_words

Link = tuple[int, int]
"""(source word, target word), both from 0."""
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

    def weights(self, seen: Trace) -> Tensor:
        """(target words, source words), without the ends: rows may sum to less than 1."""
        layer = seen.weights("cross", self.layer)
        chosen = layer.mean(0) if self.head is None else layer[self.head]
        rows = seen.read if self.reads else seen.written  # the start is a word of its own, as is the end
        words = by_words(chosen, rows, seen.source)
        return words[1:, :-1] if self.reads else words[:-1, :-1]

    def links(self, seen: Trace) -> list[Link]:
        """For every target word the source word it looks at most; none if the end of the source gets more."""
        words = self.weights(seen)
        if not words.numel():
            return []
        best, place = words.max(-1)
        ends = 1 - words.sum(-1)
        return [(int(place[target]), target) for target in range(len(words)) if best[target] >= ends[target]]


def aligners(seen: Trace) -> list[Aligner]:
    """Every aligner that the model offers."""
    heads: list[int | None] = [None, *range(seen.heads)]
    return [
        Aligner(layer, head, reads)
        for layer in range(seen.layers["cross"])
        for head in heads
        for reads in (False, True)
    ]


def best_aligner(traces: Sequence[Trace]) -> tuple[Aligner, dict[Aligner, float]]:
    """The aligner whose links tell most about the translation, and what each tells (bits a target word).

    If links are right, the source word at one end predicts the target word at the other. So each aligner's
    links on one half of the sentences make a little dictionary, and the dictionary must predict the other
    half. No gold alignment is needed.
    """
    told = {aligner: _told(aligner, traces) for aligner in aligners(traces[0])}
    return max(told, key=lambda aligner: told[aligner]), told


def _told(aligner: Aligner, traces: Sequence[Trace]) -> float:
    linked = [_linked_words(aligner, seen) for seen in traces]
    order = random.Random(0).sample(range(len(linked)), len(linked))
    halves = [[pair for i in order[side::2] for pair in linked[i]] for side in (0, 1)]
    return (_predicted(halves[0], halves[1]) + _predicted(halves[1], halves[0])) / 2


def _linked_words(aligner: Aligner, seen: Trace) -> list[tuple[str, str]]:
    """(source word, target word) for every target word; the source's end where there is no link."""
    partner = {target: source for source, target in aligner.links(seen)}
    words = seen.written.words[:-1]
    return [(seen.source.words[partner.get(target, -1)], word) for target, word in enumerate(words)]


def _predicted(known: Sequence[tuple[str, str]], unseen: Sequence[tuple[str, str]]) -> float:
    """Bits by which the dictionary of ``known`` predicts the target words of ``unseen`` better than counting.

    Both are smoothed by their own evidence (Witten-Bell), so that a rare word proves little.
    """
    if not known or not unseen:
        return 0.0
    pairs, sources = Counter(known), Counter(source for source, _ in known)
    targets, kinds = Counter(target for _, target in known), Counter(source for source, _ in pairs)
    total, size = len(known), len(targets) + 1
    bits = 0.0
    for source, target in unseen:
        plain = (targets[target] + 1) / (total + size)
        seen, different = sources[source], kinds[source]
        informed = (pairs[source, target] + different * plain) / (seen + different) if seen else plain
        bits += math.log2(informed / plain)
    return bits / len(unseen)


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


def pharaoh(links: Iterable[Link]) -> str:
    """A line of the format that alignment tools share: "0-0 1-2", source first, from 0.

    >>> pharaoh([(1, 2), (0, 0)])
    '0-0 1-2'
    """
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


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
