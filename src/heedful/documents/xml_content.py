"""The content of a segment: text and inline elements, translated with every element still there.

Elements around text (g, pc, hi, mrk) go around its translation, pairs of markers (bpt and ept, bx and ex, sc
and ec) as well; points (x, ph, it) go after the word that they stood after. The rule to remember: elements
are copied as they are written, with their prefixes and attributes, and none is lost.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape, unescape
from xml.parsers import expat

from heedful.documents.accelerators import without_accelerator
from heedful.documents.format_strings import FormatRules
from heedful.documents.messages import text_items, translate_items, translate_message
from heedful.text.inline_tags import Item, collapsed
from heedful.text.spans import has_letters
from heedful.text.translated import Rounds

_TOKEN = re.compile(
    r"""<!--.*?-->|<\?.*?\?>|<!\[CDATA\[(?P<cdata>.*?)\]\]>
    |<(?P<close>/)?(?P<name>[^\s/>]+)(?P<attributes>(?:[^>"']|"[^"]*"|'[^']*')*?)(?P<alone>/)?>
    |(?P<text>[^<]+)""",
    re.DOTALL | re.VERBOSE,
)
_ATTRIBUTE = re.compile(r"""(?P<name>[^\s=]+)\s*=\s*(?:"(?P<one>[^"]*)"|'(?P<two>[^']*)')""")
_AROUND = {"g", "pc", "hi", "mrk"}
_OPENING = {"bpt": "ept", "bx": "ex", "sc": "ec", "sm": "em"}
_REFERENCES = {"ept": ("rid", "i", "id"), "ex": ("rid", "id"), "ec": ("startRef", "id"), "em": ("startRef",)}
_OWN = {"bpt": ("rid", "i", "id"), "bx": ("rid", "id"), "sc": ("id",), "sm": ("id",)}
_LINE_ENDS = {"lb", "pb", "x-br", "x-html-br"}
_INDENTED = re.compile(r"\n[ \t]+\S")


@dataclass(frozen=True, slots=True)
class Token:
    """A tag, a comment, or text, as it is written."""

    raw: str
    name: str = ""
    """Of a tag, without its prefix."""
    kind: str = "text"
    """open, close, alone, text or other."""
    text: str = ""

    @property
    def attributes(self) -> dict[str, str]:
        """Those of a tag, without prefixes."""
        found = _ATTRIBUTE.finditer(self.raw.partition(" ")[2] or self.raw)
        return {
            match["name"].rpartition(":")[2]: unescape(match["one"] or match["two"] or "") for match in found
        }


def tokens(raw: str) -> list[Token]:
    """The parts of a content that is known to be well-formed."""
    return [_token(match) for match in _TOKEN.finditer(raw)]


def _token(match: re.Match[str]) -> Token:
    raw = match.group()
    if match["text"] is not None:
        return Token(raw, text=unescape(raw))
    if match["cdata"] is not None:
        return Token(raw, text=match["cdata"])
    if match["name"] is None:
        return Token(raw, kind="other")
    kind = "close" if match["close"] else "alone" if match["alone"] else "open"
    return Token(raw, match["name"].rpartition(":")[2], kind)


def written(text: str) -> str:
    """Text as XML; a carriage return would be read as a line feed."""
    return escape(text, quote=False).replace("\r", "&#13;")


def has_inline(raw: str) -> bool:
    """Whether a content has elements, or tags in its text."""
    return "<" in unescape(raw)


def translate_content(raw: str, rules: FormatRules, *, preserve: bool = False) -> Rounds[str | None]:
    """The content of a segment in translation, as it is written; None if nothing fit came out.

    Without ``preserve`` lines that are indented are lines of the file, not of the text.

    >>> from heedful.text.translated import Translated, drive
    >>> def french(texts: list[str]) -> list[Translated]:
    ...     return [Translated("le chat noir", ((0, 0), (1, 2), (2, 1))) for _ in texts]
    >>> drive(translate_content('the <g id="1">black</g> cat<x id="2"/>', FormatRules()), french)
    'le chat <g id="1">noir</g><x id="2"/>'
    """
    parts = tokens(raw)
    if not any(has_letters(part.text) for part in parts):
        return raw
    if len(parts) == 1 and without_accelerator(parts[0].text)[1]:
        message = yield from translate_message(parts[0].text, rules)
        return None if message is None else written(message)
    collapse = not preserve and _INDENTED.search(raw) is not None
    results: list[str] = []
    for piece in _pieces(parts):
        if isinstance(piece, str):
            results.append(piece)
            continue
        result = yield from translate_items(list(_items(piece, rules, collapse)), rules, written)
        if result is None:
            return None
        results.append(result)
    whole = "".join(results)
    return whole if _is_whole(raw, whole, rules) else None


def _is_whole(source: str, target: str, rules: FormatRules) -> bool:
    """Whether every element and everything that must be kept is in the translation."""
    both = [tokens(source), tokens(target)]
    tags = [Counter(each.raw for each in side if each.kind != "text") for side in both]
    texts = ["".join(each.text for each in side if each.kind == "text") for side in both]
    return tags[0] == tags[1] and rules.is_faithful(*texts) and _is_well_formed(target)


def _is_well_formed(content: str) -> bool:
    try:
        expat.ParserCreate("utf-8").Parse(f"<content>{content}</content>".encode(), True)
    except expat.ExpatError:
        return False
    return True


def _pieces(parts: list[Token]) -> Iterator[str | list[Token]]:
    """Sentences that a segmenter has marked (mrk mtype="seg") are translated one by one."""
    piece: list[Token] = []
    depth = 0
    for part in parts:
        begins = not depth and part.kind == "open" and part.attributes.get("mtype") == "seg"
        if part.name == "mrk":
            depth += {"open": bool(depth) or begins, "close": -1 if depth else 0}.get(part.kind, 0)
        ends = part.name == "mrk" and part.kind == "close" and not depth
        if begins or ends:
            yield from (piece, part.raw)
            piece = []
        else:
            piece.append(part)
    yield piece


def _items(parts: list[Token], rules: FormatRules, collapse: bool) -> Iterator[Item]:
    """Tokens as pieces of a run."""
    keys = _keys(parts)
    number = 0
    while number < len(parts):
        part, end = parts[number], _end(parts, number)
        raw = "".join(each.raw for each in parts[number:end])
        visible = "".join(each.text for each in parts[number:end])
        if part.kind == "text":
            text = collapsed(part.text) if collapse else part.text
            yield from text_items(text, written, first_key=len(parts) * (number + 1))
        elif number in keys:
            yield Item("close" if _closes(part) else "open", raw, key=keys[number])
        elif visible.strip() and (rules.is_kept(visible.strip()) or part.name == "mrk"):
            yield Item("kept", raw, visible.strip())
        else:
            yield Item("point", raw, separates=part.attributes.get("ctype") in _LINE_ENDS)
        number = end


def _closes(part: Token) -> bool:
    return part.kind == "close" or part.name in _REFERENCES


def _end(parts: list[Token], start: int) -> int:
    """After the token, or after the element if all of it stays as it is."""
    part = parts[start]
    if part.kind != "open" or (part.name in _AROUND and not _is_protected(part)):
        return start + 1
    depth = 0
    for number in range(start, len(parts)):
        depth += {"open": 1, "close": -1}.get(parts[number].kind, 0)
        if depth == 0:
            return number + 1
    return len(parts)


def _is_protected(part: Token) -> bool:
    told = part.attributes
    return told.get("translate") == "no" or told.get("mtype") == "protected"


def _keys(parts: list[Token]) -> dict[int, int]:
    """Keys for the tokens that open and close something without crossing another."""
    open_tags: list[tuple[str, int]] = []
    pairs: list[tuple[int, int]] = []
    number = 0
    while number < len(parts):
        part, end = parts[number], _end(parts, number)
        if part.kind == "open" and end == number + 1:
            open_tags.append((part.name, number))
        elif part.kind == "close":
            pairs += _closed(open_tags, part.name, number)
        elif part.name in _OPENING:
            open_tags.append((f"{_OPENING[part.name]} {_reference(part, _OWN)}", number))
        elif part.name in _REFERENCES:
            pairs += _closed(open_tags, f"{part.name} {_reference(part, _REFERENCES)}", number)
        number = end
    return {place: first for first, last in _orderly(parts, pairs) for place in (first, last)}


def _closed(open_tags: list[tuple[str, int]], name: str, number: int) -> Iterator[tuple[int, int]]:
    for place in range(len(open_tags) - 1, -1, -1):
        if open_tags[place][0] == name:
            yield open_tags.pop(place)[1], number
            return


def _reference(part: Token, names: dict[str, tuple[str, ...]]) -> str:
    told = part.attributes
    return next((told[name] for name in names[part.name] if name in told), "")


def _orderly(parts: list[Token], pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pairs without those that cross another; elements never do, but markers may."""
    good: list[tuple[int, int]] = []
    for first, last in sorted(pairs, key=lambda pair: (parts[pair[1]].kind != "close", pair[1] - pair[0])):
        if not any(one < first < other < last or first < one < last < other for one, other in good):
            good.append((first, last))
    return good
