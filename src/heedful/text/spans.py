"""What must not be translated: placeholders, addresses, kept terms, and terms with a given translation.

Placeholders are what programs certainly mean as such: printf (%s, %1$s, %(name)s, %%), %{name}, {name},
{{name}}, ICU's {count, plural, ...} as a whole, ${name}, $NAME$. A bare $name is text, for "US$name" and "$5"
are; so are @mentions, and the per cent signs of "100%ige" and "5 % des Preises".
The rule to remember: spans do not overlap, and stand in the order of the text.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from heedful.errors import HeedfulError
from heedful.text.translated import Range

_SPACELESS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WITHOUT_SPACES = re.compile(f"[{_SPACELESS}\U00020000-\U0003ffff]")

_CONVERSION = r"[-+0#]*+(?:\d++|\*)?(?:\.(?:\d++|\*))?(?:hh?|ll?|[Lzjtq])?[sdiufFeEgGxXoOcpvr@]"
_KEPT = re.compile(
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
_MESSAGE = re.compile(r"\{\s*+\w++\s*+,\s*+(?:plural|select|selectordinal|number|date|time|choice)\b")
_BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"))
_AFTER_ADDRESS = ".,;:!?…'\"*_~»”’"


class Span(NamedTuple):
    """A part of a text, and what has to stand in the translation for it."""

    start: int
    end: int
    target: str
    kept: bool = True
    """Whether the target is the source itself, as opposed to a glossary's term."""


@dataclass(frozen=True)
class Rules:
    """What a user wants kept, and how a user wants terms translated.

    >>> rules = Rules(keep=("Acme",), glossary={"cat": "chat"})
    >>> [span.target for span in rules.spans("Acme Cats: a Cat for %s, not an Acmeist")]
    ['Acme', 'chat', '%s']
    """

    keep: tuple[str, ...] = ()
    """Words and phrases that stay as they are: whole words, capitals count."""
    glossary: Mapping[str, str] = field(default_factory=dict)
    """Terms of the source and their translations: whole words; one in small letters with any capitals."""
    placeholders: bool = True
    """Whether placeholders and addresses stay as they are."""

    def __post_init__(self) -> None:
        if not all(term.strip() for term in self.keep):
            raise HeedfulError("a term to keep is empty", hint="leave it out")
        for source, target in self.glossary.items():
            if not source.strip() or not target.strip():
                raise HeedfulError(
                    f"the glossary has no {'translation' if source.strip() else 'term'} for "
                    f"{source if source.strip() else target!r}",
                    hint="give each term a translation; to keep a term as it is, list it as kept",
                )

    @cached_property
    def _kept_terms(self) -> "_Terms":
        return _Terms({term.strip(): term.strip() for term in self.keep})

    @cached_property
    def _glossary_terms(self) -> "_Terms":
        terms = {source.strip(): target.strip() for source, target in self.glossary.items()}
        return _Terms(terms, {source: target for source, target in terms.items() if source == source.lower()})

    def spans(self, text: str, also: Iterable[Range] = ()) -> list[Span]:
        """The spans of a text; ranges to keep ``also`` may be given, and what overlaps is kept as one."""
        kept = united([*self.kept_ranges(text), *also])
        spans = [Span(start, end, text[start:end]) for start, end in kept]
        taken = bytearray(len(text))
        for start, end in kept:
            taken[start:end] = b"\1" * (end - start)
        found = self._glossary_terms.find(text)
        terms = [Span(start, end, target, False) for start, end, target in found if not any(taken[start:end])]
        return sorted(spans + terms)

    def kept_ranges(self, text: str) -> list[Range]:
        """Where placeholders, addresses and kept terms stand."""
        ranges = [(start, end) for start, end, _ in self._kept_terms.find(text)]
        return united([*ranges, *self.placeholder_ranges(text)])

    def placeholder_ranges(self, text: str) -> list[Range]:
        """Where placeholders and addresses stand, if they are to stay."""
        return placeholder_ranges(text) if self.placeholders else []

    def accepts_order(self, source: Sequence[str], target: Sequence[str]) -> bool:
        """Whether what is kept, as it follows one another in the source, may do so in the translation."""
        return True

    def is_invention(self, answer: str) -> bool:
        """Whether the translation of a text in which nothing is kept has something that it must not have."""
        return False

    def is_kept(self, text: str) -> bool:
        """Whether a text is, as a whole, one thing to keep."""
        return self.kept_ranges(text) == [(0, len(text))]


def placeholder_ranges(text: str) -> list[Range]:
    """Where placeholders, URLs and e-mail addresses stand.

    >>> [(start, end)] = placeholder_ranges("See (https://example.org/a_(b)), 100 % sure.")
    >>> "See (https://example.org/a_(b)), 100 % sure."[start:end]
    'https://example.org/a_(b)'
    """
    ranges = [
        (match.start(), _address_end(match["url"], match.start()) if match["url"] else match.end())
        for match in _KEPT.finditer(text)
    ]
    return united([*ranges, *_messages(text)])


def _address_end(address: str, start: int) -> int:
    """The end of an address without the punctuation of the sentence that it stands in."""
    surplus = {closing: address.count(closing) - address.count(opening) for opening, closing in _BRACKETS}
    end = len(address)
    while end:
        last = address[end - 1]
        if surplus.get(last, 0) > 0:
            surplus[last] -= 1
        elif last not in _AFTER_ADDRESS:
            break
        end -= 1
    return start + end


def _messages(text: str) -> Iterator[Range]:
    """ICU messages from their first brace to the brace that closes it."""
    heads = {match.start() for match in _MESSAGE.finditer(text)}
    open_braces: list[int] = []
    for place, character in enumerate(text) if heads else ():
        if character == "{":
            open_braces.append(place)
        elif character == "}" and open_braces and (start := open_braces.pop()) in heads:
            yield start, place + 1


def united(ranges: Iterable[Range]) -> list[Range]:
    """Ranges in order; those that overlap are one."""
    united: list[Range] = []
    for start, end in sorted(ranges):
        if united and start < united[-1][1]:
            united[-1] = (united[-1][0], max(end, united[-1][1]))
        else:
            united.append((start, end))
    return united


class _Terms:
    """Terms to be looked up at every place of a text, the longest first."""

    def __init__(self, exact: Mapping[str, str], folded: Mapping[str, str] | None = None) -> None:
        self._exact = exact
        self._folded = {term.casefold(): target for term, target in (folded or {}).items()}
        self._lengths = sorted({len(term) for term in exact}, reverse=True)
        self._beginnings = {term[:1] for term in (*self._exact, *self._folded)}

    def find(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Start, end and target of each term, from left to right."""
        place = 0
        while place < len(text) and self._lengths:
            if found := self._at(text, place):
                yield found
            place = found[1] if found else place + 1

    def _at(self, text: str, start: int) -> tuple[int, int, str] | None:
        if not {text[start], text[start].casefold()[:1]} & self._beginnings:
            return None
        for length in self._lengths:
            found = text[start : start + length]
            target = self._exact.get(found, self._folded.get(found.casefold()))
            if target is not None and is_whole(text, start, start + length):
                return start, start + length, target
        return None


def is_whole(text: str, start: int, end: int) -> bool:
    """Whether a range is not part of a longer word; scripts without spaces do not say, so there it is not.

    >>> is_whole("cats", 0, 3), is_whole("cat's", 0, 3), is_whole("用cat吧", 1, 4)
    (False, True, True)
    """
    borders = pairwise(text[max(0, start - 1) : start + 1]), pairwise(text[end - 1 : end + 1])
    return not any(in_one_word(before, after) for border in borders for before, after in border)


def in_one_word(before: str, after: str) -> bool:
    """Whether two neighbouring characters are in one word."""
    if is_spaceless(before) or is_spaceless(after):
        return unicodedata.category(after).startswith("M")
    return in_word(before) and in_word(after)


def in_word(character: str) -> bool:
    """Whether a character belongs to words: letters, digits, and what is written over or under them."""
    return character.isalnum() or character in "_\u200c\u200d" or unicodedata.category(character)[0] == "M"


def is_spaceless(text: str) -> bool:
    """Whether a text has characters of scripts without spaces between words, where links say little."""
    return _WITHOUT_SPACES.search(text) is not None


def has_letters(text: str) -> bool:
    """Whether there is anything to translate."""
    return any(map(str.isalpha, text))
