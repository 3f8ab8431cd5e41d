"""A glossary: terms of the source and what each must become.

Terms are found as ``Rules`` finds them: whole words, the longest first, those in small letters with any
capitals. Inline terms are written into the source for models that have learned to read them (Dinu et al.
2019): before the term, between it and its translation, and after both stands a tag.
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

from heedful.errors import HeedfulError
from heedful.text.spans import Rules, is_whole
from heedful.text.tags import tag
from heedful.text.translated import Range

TERM, BECOMES, TERM_END = "TERM", "BECOMES", "TERM-END"
TERM_TAGS = (TERM, BECOMES, TERM_END)
"""Of inline terms; in capitals, which no code of a language is."""


class Term(NamedTuple):
    """A term in a text."""

    start: int
    end: int
    target: str
    """What it must become."""
    forms: tuple[str, ...]
    """Ways to write the target that are accepted: of a term found in capitals also with a capital."""


@dataclass(frozen=True)
class Glossary:
    """Terms and their translations, no term twice.

    >>> glossary = Glossary.of({"cat": "chat", "big cat": "lion"})
    >>> [term.target for term in glossary.terms("The big cat and the Cat.")]
    ['lion', 'chat']
    """

    entries: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        if len(dict(self.entries)) < len(self.entries):
            raise HeedfulError("the glossary has a term twice", hint="give each term one translation")
        Rules(glossary=dict(self.entries))  # says what is empty

    @classmethod
    def of(cls, terms: "Mapping[str, str] | Glossary") -> Self:
        """The glossary of a mapping; in Unicode's composed form, without space around terms."""
        if isinstance(terms, cls):
            return terms
        assert not isinstance(terms, Glossary)
        return cls(tuple((_tidy(source), _tidy(target)) for source, target in terms.items()))

    @cached_property
    def rules(self) -> Rules:
        """The same as rules of protection; addresses and placeholders have no terms."""
        return Rules(glossary=dict(self.entries))

    @cached_property
    def _sources(self) -> set[str]:
        return {source for source, _ in self.entries}

    def terms(self, text: str) -> list[Term]:
        """The terms of a text, from left to right; they do not overlap."""
        return [
            Term(span.start, span.end, span.target, self._forms(text[span.start : span.end], span.target))
            for span in self.rules.spans(text)
            if not span.kept
        ]

    def _forms(self, found: str, target: str) -> tuple[str, ...]:
        """A term that begins with a capital here, though not in the glossary, may keep it."""
        capital = target[:1].upper() + target[1:]
        keeps = found not in self._sources and found[:1].isupper() and len(capital) == len(target)
        return tuple(dict.fromkeys((target, capital))) if keeps else (target,)


def _tidy(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def missing_terms(text: str, terms: Sequence[Term]) -> list[Term]:
    """Terms that a translation lacks: each needs a place of its own, as whole words.

    >>> terms = Glossary.of({"cat": "chat", "black cat": "chat noir"}).terms("A cat sees a black cat.")
    >>> [term.target for term in missing_terms("Un chien voit un chat noir.", terms)]
    ['chat']
    """
    taken = bytearray(len(text))
    missing: list[Term] = []
    for term in sorted(terms, key=lambda each: -len(each.target)):
        place = next((found for form in term.forms for found in _places(text, form, taken)), None)
        if place is None:
            missing.append(term)
        else:
            taken[place[0] : place[1]] = b"\1" * (place[1] - place[0])
    return missing


def _places(text: str, wanted: str, taken: bytearray) -> Iterable[Range]:
    start = text.find(wanted)
    while start >= 0:
        end = start + len(wanted)
        if not any(taken[start:end]) and is_whole(text, start, end):
            yield start, end
        start = text.find(wanted, start + 1)


def with_inline_terms(text: str, terms: Sequence[Term]) -> str:
    """A cleaned text with its terms and their translations between tags.

    >>> found = with_inline_terms("A cat.", Glossary.of({"cat": "chat"}).terms("A cat."))
    >>> found == f"A {tag(TERM)} cat {tag(BECOMES)} chat {tag(TERM_END)}."
    True
    """
    written, end = "", 0
    for term in terms:
        source = text[term.start : term.end]
        written += (
            f"{text[end : term.start]}{tag(TERM)} {source} {tag(BECOMES)} {term.target} {tag(TERM_END)}"
        )
        end = term.end
    return written + text[end:]
