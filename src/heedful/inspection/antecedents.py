"""Which head knows what "it" means? Measured on sentences of the demo grammar, whose antecedent is known.

Three rows are asked: "it" and the adjective in the encoder, and il/elle in cross-attention; and, for
comparison, the gradient and the occlusion of il/elle.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor

from heedful.bundle import Bundle
from heedful.corpora.grammar import GrammarPair, words
from heedful.corpora.lexicon import NOUNS
from heedful.inspection.attribution import gradient_attribution, occlusion_attribution
from heedful.inspection.trace import Kind, Trace, by_words, in_words, trace, word_sums

METHODS: dict[str, Callable[[Bundle, Trace, int, int | None], Tensor]] = {
    "gradient": gradient_attribution,
    "occlusion": occlusion_attribution,
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where somebody looked for the antecedent."""

    method: str
    """attention, gradient or occlusion."""
    row: str
    """Whose row: it, adjective or pronoun."""
    kind: Kind | None = None
    layer: int | None = None
    head: int | None = None

    @property
    def name(self) -> str:
        """In words, for people: counted from 1."""
        who = {"it": 'the row of "it"', "adjective": "the row of the adjective", "pronoun": "il/elle"}[
            self.row
        ]
        if self.layer is None or self.head is None:
            return f"{self.method} of {who}"
        stack = "encoder" if self.kind == "encoder" else "decoder"
        where = f"{stack} layer {self.layer + 1} head {self.head + 1}"
        return f"{where}, {who}" if self.kind == "encoder" else f"{where}, cross-attention of {who}"

    @property
    def short_name(self) -> str:
        """For a table: 2.1 is head 1 of layer 2."""
        who = {"it": 'row of "it"', "adjective": "row of the adjective", "pronoun": "il/elle"}[self.row]
        if self.layer is None or self.head is None:
            return f"{self.method} of {who}"
        return f"{self.kind} {self.layer + 1}.{self.head + 1}, {who}"


@dataclass(frozen=True, slots=True)
class Rate:
    """How often a place points to the antecedent."""

    first: float
    """Among all words of the sentence it is the first."""
    preferred: float
    """It is preferred to the other noun; chance would be 0.5."""
    preferred_if_telling: float
    """The same, only where the nouns differ in gender, so that il/elle depends on the antecedent."""
    sentences: int


@dataclass(slots=True)
class _Count:
    first: int = 0
    preferred: int = 0
    telling: int = 0
    telling_preferred: int = 0
    sentences: int = 0

    def rate(self) -> Rate:
        n = self.sentences
        telling = self.telling_preferred / self.telling if self.telling else float("nan")
        return Rate(self.first / n, self.preferred / n, telling, n)


def antecedent_rates(bundle: Bundle, pairs: Iterable[GrammarPair]) -> dict[Place, Rate]:
    """The rate of every place, best first (by ``first``), over the pairs that have an antecedent."""
    counts: defaultdict[Place, _Count] = defaultdict(_Count)
    for pair in pairs:
        if pair.antecedent is None or pair.adjective is None or pair.pronoun is None:
            continue
        source = words(pair.source)
        right = pair.antecedent[1]
        other = next(place for noun in pair.nouns if (place := source.index(noun)) != right)
        seen = in_words(bundle, trace(bundle, pair.source, pair.target), source, words(pair.target))
        telling = _genders_differ(pair)
        for where, weights in _looks(bundle, seen, pair):
            count = counts[where]
            count.sentences += 1
            count.first += int(weights[: len(source)].argmax()) == right
            preferred = bool(weights[right] > weights[other])
            count.preferred += preferred
            count.telling += telling
            count.telling_preferred += telling and preferred
    rates = {place: count.rate() for place, count in counts.items()}
    return dict(sorted(rates.items(), key=lambda each: -each[1].first))


def _looks(bundle: Bundle, seen: Trace, pair: GrammarPair) -> Iterator[tuple[Place, Tensor]]:
    """Every place, with one number for each source word."""
    assert pair.antecedent is not None
    assert pair.adjective is not None
    assert pair.pronoun is not None
    for layer in range(seen.layers["encoder"]):
        weights = by_words(seen.weights("encoder", layer), *seen.sides("encoder"))
        for head in range(seen.heads):
            yield Place("attention", "it", "encoder", layer, head), weights[head, pair.antecedent[0]]
            yield Place("attention", "adjective", "encoder", layer, head), weights[head, pair.adjective]
    for layer in range(seen.layers["cross"]):
        weights = by_words(seen.weights("cross", layer), *seen.sides("cross"))
        for head in range(seen.heads):
            yield Place("attention", "pronoun", "cross", layer, head), weights[head, pair.pronoun]
    step = seen.written.of_word(pair.pronoun)[-1]
    rival = _other_pronoun(bundle, seen.written.words[pair.pronoun])
    for method, attribution in METHODS.items():
        pieces = attribution(bundle, seen, step, rival)
        yield Place(method, "pronoun"), word_sums(pieces, seen.source)


def _other_pronoun(bundle: Bundle, pronoun: str) -> int:
    """The id that would be wrong: elle for il, il for elle."""
    other = "elle" if pronoun == "il" else "il"
    return bundle.tokenizer.target.encode(f"qu'{other}")[-1]


def _genders_differ(pair: GrammarPair) -> bool:
    first, second = (NOUNS[noun].gender for noun in pair.nouns)
    return first != second
