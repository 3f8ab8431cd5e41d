"""Pairs with terms inside their sources (Dinu et al. 2019): a model that learns from them obeys a glossary.

Terms are those of the user's glossary, or are found in the pairs themselves, by a dictionary of words. Part
of those found get another translation on both sides, even a made-up word: only reading tells it, so the model
learns to copy what is inline and not only what it knows.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

from heedful.config import Settings
from heedful.corpora.filters import Pair
from heedful.corpora.terms import read_glossary
from heedful.progress import counted
from heedful.text.dictionary import Chances, dictionary
from heedful.text.glossary import Glossary, Term, missing_terms, with_inline_terms
from heedful.text.spans import in_one_word, in_word
from heedful.text.tags import CLOSE
from heedful.text.translated import Range
from heedful.training.config import TermsConfig
from heedful.training.corpus import Numbered

SAMPLE = 5_000
"""Pairs that the dictionary is made of."""
LIKELY = 0.2
"""What a word must become another with, at least, for the two to be taken for translations."""
COMMON = 0.05
"""Share of the sentences from which on a word is no term, nor its beginning or end: the, of, is."""
FEW = 50
"""Sentences that make no word common."""
SECOND = 0.3
"""How often a second term is looked for in a pair."""


def check_glossary(settings: Settings) -> None:
    """An error now, not after the corpus was read."""
    if path := settings.get("terms", {}).get("glossary"):
        read_glossary(Path(path))


def term_notes(config: TermsConfig, listed: int, found: int) -> list[str]:
    """What was done, for the report: pairs with terms of the glossary, and with others."""
    if not config.share:
        return []
    of_glossary = f", {listed:,} of them with those of the glossary" if config.glossary else ""
    return [f"{counted(listed + found, 'pair')} once more with terms inline{of_glossary}"]


@dataclass(frozen=True, slots=True)
class Match:
    """A part of the source and the part of the target that it becomes."""

    source: Range
    target: Range


class TermWriter:
    """Writes the pairs to learn from, some of them once more with terms inline."""

    def __init__(
        self,
        config: TermsConfig,
        pairs: Callable[[], Iterator[Numbered]],
        sample: Callable[[], Iterator[Numbered]] | None = None,
    ) -> None:
        """``sample`` begins with the pairs that the dictionary is made of, if not with these."""
        self.config, self._pairs, self._sample = config, pairs, sample or pairs
        self._glossary = read_glossary(Path(config.glossary)) if config.glossary else Glossary(())
        self._finder: Finder | None = None
        self.listed = self.found = 0

    def pairs(self) -> Iterator[Numbered]:
        """All pairs in their order; one with terms follows the pair that it was made of."""
        if not self.config.share:
            yield from self._pairs()
            return
        self._finder = Finder([pair for _, pair in islice(self._sample(), SAMPLE)], self.config.longest)
        for number, pair in self._pairs():
            yield number, pair
            if (more := self.with_terms(pair)) is not None:
                yield number, more

    def with_terms(self, pair: Pair) -> Pair | None:
        """The pair with terms inline; None if it has none, or is not among the share."""
        assert self._finder is not None
        random = Random("\0".join(pair))  # the same for the same pair, whatever else there is
        tags, body = _without_leading_tags(pair.source)
        terms = self._glossary.terms(body)
        if terms and not missing_terms(pair.target, terms):
            self.listed += 1
            return pair._replace(source=tags + with_inline_terms(body, terms))
        if random.random() >= self.config.share:
            return None
        matches = _chosen(self._finder.matches(body, pair.target), random)
        if not matches:
            return None
        self.found += 1
        return self._rewritten(pair, matches, random)

    def _rewritten(self, pair: Pair, matches: Sequence[Match], random: Random) -> Pair:
        """The matches inline, some with another translation, there and in the target."""
        tags, body = _without_leading_tags(pair.source)
        terms: list[Term] = []
        target, end = "", 0
        for match in sorted(matches, key=lambda each: each.target):
            new = pair.target[match.target[0] : match.target[1]]
            if random.random() < self.config.swapped and self._finder is not None:
                new = self._finder.other_word(new, random)
            target += pair.target[end : match.target[0]] + new
            end = match.target[1]
            terms.append(Term(*match.source, new, (new,)))
        source = tags + with_inline_terms(body, sorted(terms))
        return pair._replace(source=source, target=target + pair.target[end:])


class Finder:
    """Finds parts of pairs that are translations of each other."""

    def __init__(self, sample: Sequence[Pair], longest: int) -> None:
        sides = [(_without_leading_tags(pair.source)[1], pair.target) for pair in sample]
        words = [(_folded(source), _folded(target)) for source, target in sides]
        self._chances: Chances = dictionary(words, rounds=4)
        self._words = sorted({target[a:b] for _, target in sides for a, b in word_places(target)})
        seen = Counter(word for source, _ in words for word in set(source))
        self._common = {word for word, count in seen.items() if count > max(FEW, COMMON * len(words))}
        self._longest = longest

    def matches(self, source: str, target: str) -> list[Match]:
        """Runs of words whose links stay among themselves."""
        here, there = list(word_places(source)), list(word_places(target))
        words = _folded(source)
        links = self._links(words, _folded(target))
        edges = {place for place in links if words[place] not in self._common}
        found: list[Match] = []
        for first in edges:
            for last in range(first, min(first + self._longest, len(here))):
                if last not in edges:
                    continue
                inside = [links[place] for place in range(first, last + 1) if place in links]
                low, high = min(inside), max(inside)
                others = {there for place, there in links.items() if not first <= place <= last}
                if not others & set(range(low, high + 1)) and high - low < self._longest + 1:
                    found.append(Match((here[first][0], here[last][1]), (there[low][0], there[high][1])))
        return found

    def _links(self, source: Sequence[str], target: Sequence[str]) -> dict[int, int]:
        """Each source word to the target word that is likeliest of it, if it is in turn likeliest of that."""
        table = [[self._likely(one, other) for other in target] for one in source]
        links: dict[int, int] = {}
        for place, row in enumerate(table):
            best = max(range(len(target)), key=row.__getitem__, default=-1)
            if best >= 0 and row[best] >= LIKELY:
                rivals = [table[other][best] for other in range(len(source)) if other != place]
                if all(row[best] > rival for rival in rivals):
                    links[place] = best
        return links

    def _likely(self, source: str, target: str) -> float:
        """A word that stays as it is, such as a name or a number, needs no dictionary."""
        return 1.0 if source == target else self._chances.get((source, target), 0.0)

    def other_word(self, word: str, random: Random) -> str:
        """A word of the corpus, or one made up of two of them, with the capital of the word it replaces."""
        one, other = random.choice(self._words), random.choice(self._words)
        new = one if random.random() < 0.5 else one[: len(one) // 2 + 1] + other[len(other) // 2 :]
        new = new.lower()
        return new[:1].upper() + new[1:] if word[:1].isupper() else new


def _chosen(matches: Sequence[Match], random: Random) -> list[Match]:
    """One match, now and then a second that does not touch it."""
    if not matches:
        return []
    first = random.choice(matches)
    apart = [
        each for each in matches if _apart(each.source, first.source) and _apart(each.target, first.target)
    ]
    return [first, random.choice(apart)] if apart and random.random() < SECOND else [first]


def _apart(one: Range, other: Range) -> bool:
    return one[1] <= other[0] or other[1] <= one[0]


def word_places(text: str) -> Iterator[Range]:
    """Where the words of a text stand; in scripts without spaces every character.

    >>> [("a cat's 猫猫")[start:end] for start, end in word_places("a cat's 猫猫")]
    ['a', 'cat', 's', '猫', '猫']
    """
    start = -1
    for place, character in enumerate(text):
        if start >= 0 and not in_one_word(text[place - 1], character):
            yield start, place
            start = -1
        if start < 0 and in_word(character):
            start = place
    if start >= 0:
        yield start, len(text)


def _folded(text: str) -> list[str]:
    return [text[start:end].casefold() for start, end in word_places(text)]


def _without_leading_tags(source: str) -> tuple[str, str]:
    """The tags of the pair's part, and the sentence."""
    place = source.rfind(CLOSE) + 1
    return source[:place], source[place:]
