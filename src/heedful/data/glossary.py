"""Glossaries: terms of the source language with required translations, and inline terms in training pairs.

Terms are matched like ``ProtectionRules``: whole words, longest first, lower-case terms in any case. Inline
terms (Dinu et al. 2019) are written into the source, with a tag before the term, between it and its
translation, and after both; a model trained on such pairs follows a glossary.
"""

import csv
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple, Self

from heedful.data.config import TermsConfig
from heedful.data.formats.lines import read_lines
from heedful.data.word_alignment import TranslationProbabilities, train_ibm_model1
from heedful.errors import HeedfulError
from heedful.progress import format_count
from heedful.tokenization.normalization import is_word_character
from heedful.tokenization.protected_spans import ProtectionRules, Range, has_word_boundaries, is_within_word
from heedful.tokenization.special_tokens import TAG_CLOSE, format_tag

if TYPE_CHECKING:
    from heedful.data.cleaning import Pair
    from heedful.data.corpus import IndexedPair

TERM, TERM_TARGET, TERM_END = "TERM", "BECOMES", "TERM-END"
TERM_TAGS = (TERM, TERM_TARGET, TERM_END)  # tags of inline terms; in capitals, unlike language codes


class Term(NamedTuple):
    """A term in a text."""

    start: int
    end: int
    target: str  # its required translation
    accepted_forms: tuple[str, ...]
    """Accepted spellings of the target: capitalized too if the term is capitalized in the text."""


@dataclass(frozen=True)
class Glossary:
    """Terms and their translations; terms are unique.

    >>> glossary = Glossary.from_mapping({"cat": "chat", "big cat": "lion"})
    >>> [term.target for term in glossary.find_terms("The big cat and the Cat.")]
    ['lion', 'chat']
    """

    entries: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        if len(dict(self.entries)) < len(self.entries):
            raise HeedfulError("the glossary contains a term twice", hint="give each term one translation")
        ProtectionRules(glossary=dict(self.entries))  # raises for empty entries

    @classmethod
    def from_mapping(cls, terms: "Mapping[str, str] | Glossary") -> Self:
        """Build a glossary from a mapping, NFC-normalized and stripped."""
        if isinstance(terms, cls):
            return terms
        assert not isinstance(terms, Glossary)
        return cls(tuple((_normalize_entry(source), _normalize_entry(target)) for source, target in terms.items()))

    @cached_property
    def rules(self) -> ProtectionRules:
        """The glossary as protection rules; URLs and placeholders contain no terms."""
        return ProtectionRules(glossary=dict(self.entries))

    @cached_property
    def _sources(self) -> set[str]:
        return {source for source, _ in self.entries}

    def find_terms(self, text: str) -> list[Term]:
        """Find the terms of a text, left to right, without overlaps."""
        terms = []
        for span in self.rules.find_spans(text):
            if span.is_verbatim:
                continue
            # A term that is capitalized here, but not in the glossary, may stay capitalized.
            matched_text, target = text[span.start : span.end], span.target
            forms, capitalized = [target], target[:1].upper() + target[1:]
            if matched_text[:1].isupper() and matched_text not in self._sources and len(capitalized) == len(target):
                forms.append(capitalized)
            terms.append(Term(span.start, span.end, target, tuple(dict.fromkeys(forms))))
        return terms


def _normalize_entry(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def find_missing_terms(text: str, terms: Sequence[Term]) -> list[Term]:
    """Terms that a translation lacks: each needs its own range of whole words.

    >>> glossary = Glossary.from_mapping({"cat": "chat", "black cat": "chat noir"})
    >>> terms = glossary.find_terms("A cat sees a black cat.")
    >>> [term.target for term in find_missing_terms("Un chien voit un chat noir.", terms)]
    ['chat']
    """
    claimed = bytearray(len(text))
    missing: list[Term] = []
    for term in sorted(terms, key=lambda candidate: -len(candidate.target)):
        free_ranges = (
            match.span(1)
            for form in term.accepted_forms
            for match in re.finditer(f"(?=({re.escape(form)}))", text)  # overlapping ones too
            if not any(claimed[slice(*match.span(1))]) and has_word_boundaries(text, *match.span(1))
        )
        if (free_range := next(free_ranges, None)) is None:
            missing.append(term)
        else:
            claimed[slice(*free_range)] = b"\1" * (free_range[1] - free_range[0])
    return missing


def insert_inline_terms(text: str, terms: Sequence[Term]) -> str:
    """Insert the translations of terms into a cleaned text, between tags.

    >>> terms = Glossary.from_mapping({"cat": "chat"}).find_terms("A cat.")
    >>> text = insert_inline_terms("A cat.", terms)
    >>> text == f"A {format_tag(TERM)} cat {format_tag(TERM_TARGET)} chat {format_tag(TERM_END)}."
    True
    """
    output, end = "", 0
    for term in terms:
        source = text[term.start : term.end]
        output += f"{text[end : term.start]}{format_tag(TERM)} {source} "
        output += f"{format_tag(TERM_TARGET)} {term.target} {format_tag(TERM_END)}"
        end = term.end
    return output + text[end:]


GLOSSARY_FORMAT_HINT = "write one entry per line: term TAB translation; in a .csv file: term,translation"
_HEADER_NAMES = {"source", "target", "term", "translation", "source term", "target term", "src", "tgt", "trg"}


def read_glossary(path: Path) -> Glossary:
    """Read a TSV or CSV file; comments (#), blank lines, a header and further columns are ignored."""
    from heedful.data.reader import check_readable  # imports every format reader

    check_readable(path)
    terms: dict[str, str] = {}
    line_numbers: dict[str, int] = {}
    for index, (number, cells) in enumerate(_read_rows(path)):
        if index == 0 and {cell.strip().casefold() for cell in cells[:2]} <= _HEADER_NAMES:
            continue
        source, target = [cell.strip() for cell in [*cells, "", ""][:2]]
        if not source or not target:
            problem = "no term" if not source else f"no translation of {source!r}"
            raise HeedfulError(f"{path}:{number}: {problem}", hint=GLOSSARY_FORMAT_HINT)
        [(source, target)] = Glossary.from_mapping({source: target}).entries
        if source in terms:
            raise HeedfulError(
                f"{path}:{number}: the term {source!r} is already in line {line_numbers[source]}",
                hint="give each term one translation",
            )
        terms[source], line_numbers[source] = target, number
    if not terms:
        raise HeedfulError(f"{path} contains no terms", hint=GLOSSARY_FORMAT_HINT)
    return Glossary.from_mapping(terms)


def _read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    lines = [line for line in read_lines(path) if line.error or (line.text.strip() and not line.text.startswith("#"))]
    for line in lines:
        if line.error:
            raise HeedfulError(f"{path}:{line.number}: {line.error}", hint="save it as UTF-8 text")
    if not path.name.casefold().removesuffix(".gz").endswith(".csv"):
        yield from ((line.number, line.text.split("\t")) for line in lines)
        return
    first = lines[0].text if lines else ""
    delimiter = ";" if first.count(";") > first.count(",") else ","
    for line in lines:
        try:
            yield line.number, next(csv.reader([line.text], delimiter=delimiter))
        except csv.Error as error:
            raise HeedfulError(f"{path}:{line.number}: {error}", hint=GLOSSARY_FORMAT_HINT) from None


DICTIONARY_PAIRS = 5_000  # pairs to train the word-alignment dictionary on
MAX_TERM_WORDS = 3  # maximum words of a term extracted from a pair
MIN_TRANSLATION_PROBABILITY = 0.2  # minimum probability for two words to count as translations
COMMON_WORD_FRACTION = 0.05
"""A word in more than this fraction of the sentences cannot start or end a term: the, of, is."""

MIN_COMMON_COUNT = 50  # up to this many sentences, no word is common
SECOND_TERM_PROBABILITY = 0.3  # probability of a second term in a pair


def format_term_notes(config: TermsConfig, glossary_term_pairs: int, extracted_term_pairs: int) -> list[str]:
    """How many pairs were repeated with inline terms, for the report."""
    if not config.fraction:
        return []
    pairs = format_count(glossary_term_pairs + extracted_term_pairs, "pair")
    note = f", {glossary_term_pairs:,} of them with glossary terms" if config.glossary else ""
    return [f"{pairs} repeated with inline terms{note}"]


class TermMatch(NamedTuple):
    """A source range and its translation in the target."""

    source: Range
    target: Range


class TermWriter:
    """Yields the training pairs, and repeats some of them with inline terms.

    Terms come from the glossary, or are extracted from the pairs by word alignment. Some extracted terms get
    another translation on both sides, even a made-up word, so that the model learns to copy what it reads.
    """

    def __init__(
        self,
        config: TermsConfig,
        pairs: "Callable[[], Iterator[IndexedPair]]",
        sample: "Callable[[], Iterator[IndexedPair]] | None" = None,
    ) -> None:
        """The dictionary is trained on the first pairs of ``sample`` (default: of ``pairs``)."""
        self.config, self._read_pairs, self._read_sample = config, pairs, sample or pairs
        self._glossary = read_glossary(Path(config.glossary)) if config.glossary else Glossary(())
        self._finder: TermFinder | None = None
        self.glossary_term_pairs = self.extracted_term_pairs = 0

    def iter_pairs(self) -> "Iterator[IndexedPair]":
        """All pairs in order, each followed by its copy with inline terms, if any."""
        if not self.config.fraction:
            yield from self._read_pairs()
            return
        sample = [pair for _, pair in islice(self._read_sample(), DICTIONARY_PAIRS)]
        self._finder = TermFinder(sample, MAX_TERM_WORDS)
        for corpus_index, pair in self._read_pairs():
            yield corpus_index, pair
            if (pair_with_terms := self.add_terms(pair)) is not None:
                yield corpus_index, pair_with_terms

    def add_terms(self, pair: "Pair") -> "Pair | None":
        """The pair with inline terms; None if it has no terms or is not selected."""
        assert self._finder is not None
        random = Random("\0".join(pair))  # depends on the pair only
        tags, body = _split_leading_tags(pair.source)
        terms = self._glossary.find_terms(body)
        if terms and not find_missing_terms(pair.target, terms):
            self.glossary_term_pairs += 1
            return pair._replace(source=tags + insert_inline_terms(body, terms))
        if random.random() >= self.config.fraction:
            return None
        matches = _choose_matches(self._finder.find_matches(body, pair.target), random)
        if not matches:
            return None
        self.extracted_term_pairs += 1
        terms = []
        target, end = "", 0
        for match in sorted(matches, key=lambda candidate: candidate.target):
            translation = pair.target[slice(*match.target)]
            if random.random() < self.config.swap_fraction:  # another translation, on both sides
                translation = self._finder.make_replacement(translation, random)
            target += pair.target[end : match.target[0]] + translation
            end = match.target[1]
            terms.append(Term(*match.source, translation, (translation,)))
        source = tags + insert_inline_terms(body, sorted(terms))
        return pair._replace(source=source, target=target + pair.target[end:])


class TermFinder:
    """Finds ranges of a pair that are translations of each other."""

    def __init__(self, sample: "Sequence[Pair]", max_words: int) -> None:
        sides = [(_split_leading_tags(pair.source)[1], pair.target) for pair in sample]
        words = [(_casefold_words(source), _casefold_words(target)) for source, target in sides]
        self._probabilities: TranslationProbabilities = train_ibm_model1(words, iterations=4)
        self._target_words = sorted({target[start:end] for _, target in sides for start, end in word_ranges(target)})
        sentence_counts = Counter(word for source, _ in words for word in set(source))
        self._common_words = {
            word
            for word, count in sentence_counts.items()
            if count > max(MIN_COMMON_COUNT, COMMON_WORD_FRACTION * len(words))
        }
        self._max_words = max_words

    def find_matches(self, source: str, target: str) -> list[TermMatch]:
        """Word sequences that are aligned only to each other."""
        source_ranges, target_ranges = list(word_ranges(source)), list(word_ranges(target))
        source_words = _casefold_words(source)
        links = self._link_words(source_words, _casefold_words(target))
        edge_indices = {index for index in links if source_words[index] not in self._common_words}
        matches: list[TermMatch] = []
        for first in edge_indices:
            for last in range(first, min(first + self._max_words, len(source_ranges))):
                if last not in edge_indices:
                    continue
                linked_targets = [links[index] for index in range(first, last + 1) if index in links]
                first_target, last_target = min(linked_targets), max(linked_targets)
                outside_targets = {target_index for index, target_index in links.items() if not first <= index <= last}
                is_short = last_target - first_target <= self._max_words
                if is_short and not outside_targets & set(range(first_target, last_target + 1)):
                    source_range = source_ranges[first][0], source_ranges[last][1]
                    target_range = target_ranges[first_target][0], target_ranges[last_target][1]
                    matches.append(TermMatch(source_range, target_range))
        return matches

    def _link_words(self, source: Sequence[str], target: Sequence[str]) -> dict[int, int]:
        """Align each source word with its most probable target word, if it is the best match of that too."""
        probabilities = [  # identical words, such as names and numbers, need no dictionary
            [1.0 if word == candidate else self._probabilities.get((word, candidate), 0.0) for candidate in target]
            for word in source
        ]
        links: dict[int, int] = {}
        for index, row in enumerate(probabilities):
            best_target = max(range(len(target)), key=row.__getitem__, default=-1)
            if best_target >= 0 and row[best_target] >= MIN_TRANSLATION_PROBABILITY:
                rivals = (rival[best_target] for other, rival in enumerate(probabilities) if other != index)
                if all(row[best_target] > rival for rival in rivals):
                    links[index] = best_target
        return links

    def make_replacement(self, word: str, random: Random) -> str:
        """A word of the corpus, or one made of two, capitalized like the word it replaces."""
        first_word, second_word = random.choice(self._target_words), random.choice(self._target_words)
        if random.random() >= 0.5:
            first_word = first_word[: len(first_word) // 2 + 1] + second_word[len(second_word) // 2 :]
        replacement = first_word.lower()
        return replacement[:1].upper() + replacement[1:] if word[:1].isupper() else replacement


def _choose_matches(matches: Sequence[TermMatch], random: Random) -> list[TermMatch]:
    """One match, sometimes with a second that does not overlap."""
    if not matches:
        return []
    first = random.choice(matches)
    disjoint = [
        match
        for match in matches
        if all(side[1] <= other[0] or other[1] <= side[0] for side, other in zip(match, first, strict=True))
    ]
    return [first, random.choice(disjoint)] if disjoint and random.random() < SECOND_TERM_PROBABILITY else [first]


def word_ranges(text: str) -> Iterator[Range]:
    """Ranges of the words of a text; in scripts without spaces, of every character.

    >>> [("a cat's 猫猫")[start:end] for start, end in word_ranges("a cat's 猫猫")]
    ['a', 'cat', 's', '猫', '猫']
    """
    start = -1
    for position, character in enumerate(text):
        if start >= 0 and not is_within_word(text[position - 1], character):
            yield start, position
            start = -1
        if start < 0 and is_word_character(character):
            start = position
    if start >= 0:
        yield start, len(text)


def _casefold_words(text: str) -> list[str]:
    return [text[start:end].casefold() for start, end in word_ranges(text)]


def _split_leading_tags(source: str) -> tuple[str, str]:
    """Leading tags and the sentence."""
    position = source.rfind(TAG_CLOSE) + 1
    return source[:position], source[position:]
