"""The content of a TMX or XLIFF segment: text and inline elements.

Elements around text (g, pc, hi, mrk) go around its translation, and so do pairs of markers (bpt and ept, bx and ex,
sc and ec); standalone elements (x, ph, it) follow the word that they followed in the source. Elements are copied as
written, with prefixes and attributes, and none is lost.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape, unescape
from typing import Literal
from xml.parsers import expat

from heedful.documents.inline_tags import InlineItem, MarkupToken, collapse_whitespace, find_element_ends, pair_tags
from heedful.documents.messages import (
    FormatRules,
    parse_message_items,
    strip_accelerator,
    translate_items,
    translate_message,
)
from heedful.inference.projection import TranslationGenerator
from heedful.tokenization.normalization import has_letters

_TOKEN_PATTERN = re.compile(
    r"""<!--.*?-->|<\?.*?\?>|<!\[CDATA\[(?P<cdata>.*?)\]\]>
    |<(?P<close>/)?(?P<name>[^\s/>]+)(?P<attributes>(?:[^>"']|"[^"]*"|'[^']*')*?)(?P<self_closing>/)?>
    |(?P<text>[^<]+)""",
    re.DOTALL | re.VERBOSE,
)

_ATTRIBUTE_PATTERN = re.compile(r"""(?P<name>[^\s=]+)\s*=\s*(?:"(?P<one>[^"]*)"|'(?P<two>[^']*)')""")

_WRAPPING_ELEMENTS = {"g", "pc", "hi", "mrk"}

_CLOSING_MARKERS = {"bpt": "ept", "bx": "ex", "sc": "ec", "sm": "em"}
"""The closing marker of each opening one."""

_MARKER_REFERENCES = {
    **dict.fromkeys(("bpt", "ept"), ("rid", "i", "id")),
    **dict.fromkeys(("bx", "ex"), ("rid", "id")),
    **dict.fromkeys(("sc", "sm"), ("id",)),
    "ec": ("startRef", "id"),
    "em": ("startRef",),
}
"""Attributes that connect an opening and a closing marker, in order of preference."""

_LINE_BREAK_TYPES = {"lb", "pb", "x-br", "x-html-br"}
_INDENTED_LINE = re.compile(r"\n[ \t]+\S")


def tokenize_xml(raw: str) -> list[MarkupToken]:
    """The tokens of well-formed content."""
    tokens: list[MarkupToken] = []
    for match in _TOKEN_PATTERN.finditer(raw):
        if match["text"] is not None or match["cdata"] is not None:
            text = unescape(match[0]) if match["cdata"] is None else match["cdata"]
            tokens.append(MarkupToken("text", match[0], text=text))
        elif match["name"] is None:
            tokens.append(MarkupToken("other", match[0]))
        else:
            kind: Literal["open", "close", "self_closing"]
            kind = "close" if match["close"] else "self_closing" if match["self_closing"] else "open"
            tokens.append(MarkupToken(kind, match[0], match["name"].rpartition(":")[2]))
    return tokens


def _parse_attributes(tag: MarkupToken) -> dict[str, str]:
    """The attributes of a tag, without prefixes."""
    matches = _ATTRIBUTE_PATTERN.finditer(tag.raw.partition(" ")[2] or tag.raw)
    return {match["name"].rpartition(":")[2]: unescape(match["one"] or match["two"] or "") for match in matches}


def escape_xml(text: str) -> str:
    """Text as XML; a carriage return would be read as a line feed."""
    return escape(text, quote=False).replace("\r", "&#13;")


def has_inline_elements(raw: str) -> bool:
    """Whether content has elements, or tags in its text."""
    return "<" in unescape(raw)


def translate_content(raw: str, rules: FormatRules, *, preserve: bool = False) -> TranslationGenerator[str | None]:
    """Translate the content of a segment; None if there is no valid translation.

    Without ``preserve``, indented lines belong to the layout of the file, not to the text.

    >>> from heedful.inference.projection import run_generator
    >>> from heedful.inference.translation import Alternative
    >>> def french(texts: list[str]) -> list[Alternative]:
    ...     return [Alternative("le chat noir", alignment=((0, 0), (1, 2), (2, 1))) for _ in texts]
    >>> run_generator(translate_content('the <g id="1">black</g> cat<x id="2"/>', FormatRules()), french)
    'le chat <g id="1">noir</g><x id="2"/>'
    """
    tokens = tokenize_xml(raw)
    if not any(has_letters(token.text) for token in tokens):
        return raw
    if len(tokens) == 1 and strip_accelerator(tokens[0].text)[1]:
        message = yield from translate_message(tokens[0].text, rules)
        return None if message is None else escape_xml(message)
    collapse = not preserve and _INDENTED_LINE.search(raw) is not None
    translation = ""
    for sentence in _split_marked_sentences(tokens):
        result = yield from translate_items(_make_items(sentence, rules, collapse), rules, escape_xml)
        if result is None:
            return None
        translation += result
    new_tokens = tokenize_xml(translation)
    tags, new_tags = (Counter(token.raw for token in side if token.kind != "text") for side in (tokens, new_tokens))
    texts = ("".join(token.text for token in side) for side in (tokens, new_tokens))
    if tags != new_tags or not rules.preserves_placeholders(*texts):
        return None
    try:
        expat.ParserCreate("utf-8").Parse(f"<content>{translation}</content>".encode(), True)
    except expat.ExpatError:
        return None
    return translation


def _split_marked_sentences(tokens: Sequence[MarkupToken]) -> Iterator[Sequence[MarkupToken]]:
    """Sentences that a segmenter has marked (mrk mtype="seg") are translated separately."""
    element_ends = find_element_ends(tokens)
    start = index = 0
    while index < len(tokens):
        if tokens[index].kind == "open" and _parse_attributes(tokens[index]).get("mtype") == "seg":
            end = element_ends[index]
            yield from (tokens[start:index], [tokens[index]], tokens[index + 1 : end], [tokens[end]])
            start, index = end + 1, end
        index += 1
    yield tokens[start:]


def _make_items(tokens: Sequence[MarkupToken], rules: FormatRules, collapse: bool) -> Iterator[InlineItem]:
    """Text and tags of a sentence; an element that is not translated is one item."""
    element_ends = find_element_ends(tokens)
    parts: list[MarkupToken] = []
    markers: list[MarkupToken] = []
    separators: set[int] = set()
    index = 0
    while index < len(tokens):
        part, end = tokens[index], index + 1
        attributes = _parse_attributes(part) if part.name else {}
        is_protected = attributes.get("translate") == "no" or attributes.get("mtype") == "protected"
        if part.kind == "open" and (is_protected or part.name not in _WRAPPING_ELEMENTS):
            end = element_ends[index] + 1
            raw = "".join(token.raw for token in tokens[index:end])
            text = "".join(token.text for token in tokens[index:end])
            part = MarkupToken("self_closing", raw, part.name, text)
        reference = next((attributes[name] for name in _MARKER_REFERENCES.get(part.name, ()) if name in attributes), "")
        if part.kind == "close" or part.name not in _MARKER_REFERENCES:
            markers.append(MarkupToken("other", part.raw))
        elif part.name in _CLOSING_MARKERS:
            markers.append(MarkupToken("open", part.raw, f"{_CLOSING_MARKERS[part.name]} {reference}"))
        else:
            markers.append(MarkupToken("close", part.raw, f"{part.name} {reference}"))
        if attributes.get("ctype") in _LINE_BREAK_TYPES:
            separators.add(len(parts))
        parts.append(part)
        index = end
    keys = pair_tags(parts, find_element_ends(parts))
    for end, start in pair_tags(markers, find_element_ends(markers)).items():
        # Unlike elements, markers may cross other tags; then they are standalone.
        tag_counts = Counter(keys[index] for index in range(start, end) if index in keys)
        if start < end and all(count == 2 for count in tag_counts.values()):
            keys[start] = keys[end] = start
    next_key = len(parts)
    for index, part in enumerate(parts):
        if part.kind == "text":
            text = collapse_whitespace(part.text) if collapse else part.text
            items = parse_message_items(text, escape_xml, next_key)
            next_key += len(items)
            yield from items
        elif index in keys:
            yield InlineItem("open" if keys[index] == index else "close", part.raw, key=keys[index])
        elif part.text.strip() and (rules.is_verbatim(part.text.strip()) or part.name == "mrk"):
            yield InlineItem("verbatim", part.raw, part.text.strip())
        else:
            yield InlineItem("standalone", part.raw, separates=index in separators)
