"""HTML cut into tags, text and the rest, as browsers cut it; joined, the tokens are the input again.

Trees and their writers repair, reorder and respell what they read. The rule to remember: here, what is not
translated is copied letter by letter, so malformed HTML comes out no worse than it came in.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple


def names(text: str) -> frozenset[str]:
    """Names of elements, written in a line."""
    return frozenset(text.split())


VOID = names("area base br col embed hr img input link meta param source track wbr")
"""Elements without an end tag."""
_RAW = names("script style textarea title xmp iframe noembed noframes plaintext")
"""Elements in which a < is a <."""
_CLOSED_BY_THE_NEXT = names("p li dt dd option optgroup tr td th thead tbody tfoot")

_ATTRIBUTE = r"""[^\s/>][^\s/>=]*+(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s>"'][^\s>]*+)?+)?+"""
_MARKUP = re.compile(
    r"<!--(?:-?>|.*?(?:--!?>|\Z))"
    r"|<!\[CDATA\[.*?(?:\]\]>|\Z)"
    r"|<[!?][^>]*+(?:>|\Z)"
    r"|</(?![A-Za-z])(?=.)[^>]*+(?:>|\Z)"  # a comment to browsers
    rf"|<(?P<slash>/?)(?P<name>[A-Za-z][^\s/>]*+)(?:\s++|/(?!>)|{_ATTRIBUTE})*+(?P<alone>/?)>",
    re.DOTALL,
)
_TAG_BEGINS = re.compile(r"</?[A-Za-z]")
_KEPT_WHOLE = re.compile(
    r"""\s(?:translate\s*=\s*["']?no\b|class\s*=\s*(?:"[^"]*?(?<![\w-])notranslate(?![\w-])"""
    r"""|'[^']*?(?<![\w-])notranslate(?![\w-])|notranslate[\s>]))""",
    re.IGNORECASE,
)


class Token(NamedTuple):
    """A piece of HTML. Comments, doctypes and the like are of kind "other"."""

    kind: Literal["text", "start", "end", "other"]
    raw: str
    name: str = ""
    """Of a tag, in small letters."""
    alone: bool = False
    """Whether a start tag has no end tag by its nature or its spelling."""

    @property
    def untranslated(self) -> bool:
        """Whether a start tag says that its content stays as it is: translate="no", class "notranslate"."""
        return self.kind == "start" and _KEPT_WHOLE.search(self.raw) is not None


def html_tokens(html: str) -> list[Token]:
    """The tokens of a document or a fragment.

    >>> [token.raw for token in html_tokens('1 < 2 <b title=">">&amp;</b><!-- <i> -->')]
    ['1 < 2 ', '<b title=">">', '&amp;', '</b>', '<!-- <i> -->']
    """
    return [token for token in _tokens(html) if token.raw]


def _tokens(html: str) -> Iterator[Token]:
    written, place = 0, html.find("<")
    while place >= 0:
        match = _MARKUP.match(html, place)
        if match is None and _TAG_BEGINS.match(html, place):
            break  # a tag that never ends: browsers drop the rest, we take it for text
        if match is not None:
            yield Token("text", html[written:place])
            tag = _tag(match)
            yield tag
            written = match.end()
            if tag.kind == "start" and tag.name in _RAW and not match["alone"]:
                end = _raw_end(html, tag.name, written)
                yield Token("text" if tag.name == "title" else "other", html[written:end])
                written = end
        place = html.find("<", max(place + 1, written))
    yield Token("text", html[written:])


def _tag(match: re.Match[str]) -> Token:
    if match["name"] is None:
        return Token("other", match[0])
    name = match["name"].lower()
    if match["slash"]:
        return Token("end", match[0], name)
    return Token("start", match[0], name, alone=name in VOID or bool(match["alone"]))


def _raw_end(html: str, name: str, start: int) -> int:
    found = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(html, start)
    return found.start() if found else len(html)


class Extent(NamedTuple):
    """How far an element reaches: the number of the token after it, and whether that follows its end tag."""

    end: int
    closed: bool


def extents(tokens: Sequence[Token]) -> dict[int, Extent]:
    """The extent of the element of every start tag; one that is never closed ends with what it stands in."""
    found: dict[int, Extent] = {}
    path: list[int] = []
    names: Counter[str] = Counter()

    def close(end: int, closed: bool = False) -> None:
        start = path.pop()
        names[tokens[start].name] -= 1
        found[start] = Extent(end, closed)

    for number, token in enumerate(tokens):
        if token.kind == "start" and token.alone:
            found[number] = Extent(number + 1, False)
        elif token.kind == "start":
            if path and tokens[path[-1]].name == token.name and token.name in _CLOSED_BY_THE_NEXT:
                close(number)
            path.append(number)
            names[token.name] += 1
        elif token.kind == "end" and names[token.name]:
            while tokens[path[-1]].name != token.name:
                close(number)
            close(number + 1, closed=True)
    while path:
        close(len(tokens))
    return found
