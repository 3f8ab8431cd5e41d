"""Spans that the model must not translate: placeholders, URLs, verbatim terms, glossary terms.

Placeholders are unambiguous ones: printf (%s, %1$s, %(name)s, %%), %{name}, {name}, {{name}}, complete ICU
messages {count, plural, ...}, ${name}, $NAME$. A bare $name is text, as in "US$name" and "$5"; so are
@mentions and the percent signs of "100%ige" and "5 % des Preises". Spans are sorted and do not overlap.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from heedful.errors import HeedfulError
from heedful.tokenization.normalization import is_spaceless, is_word_character

_CONVERSION = r"[-+0#]*+(?:\d++|\*)?(?:\.(?:\d++|\*))?(?:hh?|ll?|[Lzjtq])?[sdiufFeEgGxXoOcpvr@]"
_PLACEHOLDER = re.compile(
    "|".join(
        [
            r"(?P<url>(?:https?|ftps?|file)://[^\s<>\"，。！？；、（）【】《》「」『』“”]++|www\.[\w-]++\.[^\s<>\"，。！？；、（）]++)",
            r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.)+[A-Za-z]{2,63}",
            r"%%",
            r"%\{[^{}\n]*+\}",
            rf"%(?:\d++\$|\([^()\n]*+\)|<[^<>\s]*+>){_CONVERSION}",
            rf"(?<!\d)%{_CONVERSION}|%{_CONVERSION}(?![^\W_])",  # not "100%ige"
            r"\$\{[^{}\n]*+\}",
            r"\$[A-Za-z_][A-Za-z0-9_]*+\$",
            r"\{{2,3}[^{}\n]*+\}{2,3}",
            r"\{\s*+[\w.\[\]-]*+(?:![rsa])?(?::[^{}\s]*+)?\s*+\}",
        ]
    )
)

_ICU_MESSAGE = re.compile(r"\{\s*+\w++\s*+,\s*+(?:plural|select|selectordinal|number|date|time|choice)\b")
_BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"))
_URL_TRAILING = ".,;:!?…'\"*_~»”’"


class ProtectedSpan(NamedTuple):
    """A span of a text, and what the translation must have in its place."""

    start: int
    end: int
    target: str
    is_verbatim: bool = True
    """Whether the target is the source text itself, not a glossary translation."""


Range = tuple[int, int]
"""[start, end) in characters."""


@dataclass(frozen=True)
class ProtectionRules:
    """Which terms to keep verbatim and how to translate others.

    >>> rules = ProtectionRules(keep=("Acme",), glossary={"cat": "chat"})
    >>> [span.target for span in rules.find_spans("Acme Cats: a Cat for %s, not an Acmeist")]
    ['Acme', 'chat', '%s']
    """

    keep: tuple[str, ...] = ()
    """Terms to keep verbatim: full words, case-sensitive."""
    glossary: Mapping[str, str] = field(default_factory=dict)
    """Source terms and their translations: full words; lowercase terms match any case."""
    placeholders: bool = True
    """Whether to keep placeholders, URLs and email addresses verbatim."""

    def __post_init__(self) -> None:
        if not all(term.strip() for term in self.keep):
            raise HeedfulError("a verbatim term is empty", hint="remove it")
        for source, target in self.glossary.items():
            if not source.strip() or not target.strip():
                raise HeedfulError(
                    f"the glossary has no {'translation' if source.strip() else 'term'} for "
                    f"{source if source.strip() else target!r}",
                    hint="give each term a translation; to keep a term unchanged, list it as verbatim",
                )

    @cached_property
    def _verbatim_terms(self) -> "_TermIndex":
        return _TermIndex({term.strip(): term.strip() for term in self.keep})

    @cached_property
    def _glossary_terms(self) -> "_TermIndex":
        terms = {source.strip(): target.strip() for source, target in self.glossary.items()}
        return _TermIndex(terms, {source: target for source, target in terms.items() if source == source.lower()})

    def find_spans(self, text: str, extra_ranges: Iterable[Range] = ()) -> list[ProtectedSpan]:
        """The spans of a text and of ``extra_ranges`` to keep verbatim; overlapping ones are merged."""
        verbatim_ranges = merge_ranges([*self.find_verbatim_ranges(text), *extra_ranges])
        spans = [ProtectedSpan(start, end, text[start:end]) for start, end in verbatim_ranges]
        covered = bytearray(len(text))
        for start, end in verbatim_ranges:
            covered[start:end] = b"\1" * (end - start)
        matches = self._glossary_terms.find(text)
        terms = [
            ProtectedSpan(start, end, target, False) for start, end, target in matches if not any(covered[start:end])
        ]
        return sorted(spans + terms)

    def find_verbatim_ranges(self, text: str) -> list[Range]:
        """Ranges of placeholders, URLs, email addresses and verbatim terms."""
        ranges = [(start, end) for start, end, _ in self._verbatim_terms.find(text)]
        return merge_ranges([*ranges, *self.find_placeholders(text)])

    def find_placeholders(self, text: str) -> list[Range]:
        """Ranges of placeholders, URLs and email addresses, if these are protected."""
        return placeholder_ranges(text) if self.placeholders else []

    def accepts_reordering(self, source: Sequence[str], target: Sequence[str]) -> bool:
        """Whether the verbatim parts of the source may appear in this order in the translation."""
        return True

    def has_spurious_placeholder(self, translation: str) -> bool:
        """Whether the translation of a text without placeholders has one."""
        return False

    def is_verbatim(self, text: str) -> bool:
        """Whether the full text is one verbatim span."""
        return self.find_verbatim_ranges(text) == [(0, len(text))]


def placeholder_ranges(text: str) -> list[Range]:
    """Ranges of placeholders, URLs and email addresses.

    >>> [(start, end)] = placeholder_ranges("See (https://example.org/a_(b)), 100 % sure.")
    >>> "See (https://example.org/a_(b)), 100 % sure."[start:end]
    'https://example.org/a_(b)'
    """
    ranges = [
        (match.start(), _url_end(match["url"], match.start()) if match["url"] else match.end())
        for match in _PLACEHOLDER.finditer(text)
    ]
    return merge_ranges([*ranges, *_icu_message_ranges(text)])


def _url_end(url: str, start: int) -> int:
    """The end of a URL without the punctuation of the sentence around it."""
    unbalanced = {closing: url.count(closing) - url.count(opening) for opening, closing in _BRACKETS}
    end = len(url)
    while end:
        last = url[end - 1]
        if unbalanced.get(last, 0) > 0:
            unbalanced[last] -= 1
        elif last not in _URL_TRAILING:
            break
        end -= 1
    return start + end


def _icu_message_ranges(text: str) -> Iterator[Range]:
    """ICU messages, from their opening to their closing brace."""
    message_starts = {match.start() for match in _ICU_MESSAGE.finditer(text)}
    open_braces: list[int] = []
    for position, character in enumerate(text) if message_starts else ():
        if character == "{":
            open_braces.append(position)
        elif character == "}" and open_braces and (start := open_braces.pop()) in message_starts:
            yield start, position + 1


def merge_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Sorted ranges, overlapping ones merged."""
    merged: list[Range] = []
    for start, end in sorted(ranges):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


class _TermIndex:
    """Terms to look up at every position of a text, longest first."""

    def __init__(self, exact: Mapping[str, str], folded: Mapping[str, str] | None = None) -> None:
        self._exact = exact
        self._folded = {term.casefold(): target for term, target in (folded or {}).items()}
        self._lengths = sorted({len(term) for term in exact}, reverse=True)
        self._first_characters = {term[:1] for term in (*self._exact, *self._folded)}

    def find(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Start, end and target of each term, from left to right."""
        end = 0
        for start, character in enumerate(text if self._lengths else ""):
            if start < end or not {character, character.casefold()[:1]} & self._first_characters:
                continue
            for length in self._lengths:
                candidate = text[start : start + length]
                target = self._exact.get(candidate, self._folded.get(candidate.casefold()))
                if target is not None and has_word_boundaries(text, start, start + length):
                    end = start + length
                    yield start, end, target
                    break


def has_word_boundaries(text: str, start: int, end: int) -> bool:
    """Whether a range starts and ends at word boundaries; spaceless scripts have them everywhere.

    >>> has_word_boundaries("cats", 0, 3), has_word_boundaries("cat's", 0, 3)
    (False, True)
    >>> has_word_boundaries("用cat吧", 1, 4)
    True
    """
    boundaries = pairwise(text[max(0, start - 1) : start + 1]), pairwise(text[end - 1 : end + 1])
    return not any(is_within_word(before, after) for boundary in boundaries for before, after in boundary)


def is_within_word(before: str, after: str) -> bool:
    """Whether two adjacent characters are part of the same word."""
    if is_spaceless(before) or is_spaceless(after):
        return unicodedata.category(after).startswith("M")
    return is_word_character(before) and is_word_character(after)
