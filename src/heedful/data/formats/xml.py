"""The hardened XML reader: parsers, limits and errors, and the units of TMX and XLIFF files in constant memory.

Nothing is fetched and no entity is expanded: a document type may name a DTD (TMX files do) but must not define
entities. lxml reads units; ``documents/xml_document`` needs byte offsets and uses the expat parser from here. With
``reading.malformed=skip`` each unit is parsed separately, so that a malformed one does not affect the others.
"""

import codecs
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from heedful.data.formats.base import (
    InputFile,
    ReadOptions,
    detect_encoding,
    entity_error,
    parse_prolog,
    read_head,
)

if TYPE_CHECKING:
    from lxml.etree import XMLPullParser
    from lxml.etree import _Element as Element

MAX_DEPTH = 1000
"""Nested elements; deeper nesting is rejected."""

MAX_UNIT_CHARACTERS = 1 << 24
"""A longer element is not a unit."""

_PARSER_OPTIONS: Any = {"resolve_entities": False, "no_network": True, "load_dtd": False, "huge_tree": False}
"""Of lxml: expand nothing, fetch nothing, and keep libxml2's limits of depth and size."""

_BLOCK_BYTES, _FEED_BYTES = 1 << 18, 1 << 15


class XMLUnit(NamedTuple):
    """An element that may hold pairs, freed when the next one is read; or the error in its place."""

    line: int
    element: "Element | None"
    error: str = ""


def read_xml_units(input_file: InputFile, names: tuple[str, ...], options: ReadOptions) -> Iterator[XMLUnit]:
    """Every element with one of these names, in any namespace."""
    head, input_file = read_head(input_file)
    parse_prolog(head, input_file.name)
    if options.skip_malformed:
        return _parse_units_separately(input_file, detect_encoding(head) or "utf-8", names)
    return _parse_document(input_file, names)


def _parse_document(input_file: InputFile, names: tuple[str, ...]) -> Iterator[XMLUnit]:
    from lxml import etree

    parser = etree.XMLPullParser(
        events=("end",),
        tag=tuple(f"{{*}}{name}" for name in names),
        **_PARSER_OPTIONS,
    )
    doctype_checked = False
    for _ in _feed_parser(parser, input_file):
        for _, event_element in parser.read_events():
            element = cast("Element", event_element)  # "end" events carry elements only
            if not doctype_checked:
                doctype_checked = True
                doctype = element.getroottree().docinfo.internalDTD
                if doctype is not None and doctype.entities():  # type: ignore[attr-defined]
                    raise entity_error(input_file.location())
            yield XMLUnit(cast(int, element.sourceline) or 0, element)
            element.clear()  # free it, and its earlier siblings
            while element.getprevious() is not None:
                del cast("Element", element.getparent())[0]


def _feed_parser(parser: "XMLPullParser", input_file: InputFile) -> Iterator[None]:
    """Feed the parser block by block, and raise a syntax error only after the units before it were read."""
    from lxml import etree

    while True:
        data = input_file.stream.read(_FEED_BYTES)
        syntax_error: tuple[int, str] | None = None
        try:
            if data:
                parser.feed(data)
            else:
                parser.close()
        except etree.XMLSyntaxError as error:
            syntax_error = error.lineno or 0, (error.msg or "not XML").partition(", line ")[0]
        for entry in parser.feed_error_log:  # some errors are only logged
            syntax_error = entry.line, entry.message.strip()
            break
        yield
        if syntax_error:
            raise input_file.format_error(*syntax_error)
        if not data:
            return


class _TextBuffer:
    """Text decoded on demand and discarded as it is consumed, with a line count."""

    def __init__(self, input_file: InputFile, encoding: str) -> None:
        self._stream = input_file.stream
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        self.content, self.line, self.at_end = "", 1, False

    def fill(self) -> None:
        data = self._stream.read(_BLOCK_BYTES)
        self.at_end = not data
        self.content += self._decoder.decode(data, final=self.at_end)

    def consume(self, length: int) -> str:
        consumed, self.content = self.content[:length], self.content[length:]
        self.line += consumed.count("\n")
        return consumed


def _parse_units_separately(input_file: InputFile, encoding: str, names: tuple[str, ...]) -> Iterator[XMLUnit]:
    """Each unit parsed separately, inside the start tags of its root and file elements."""
    buffer = _TextBuffer(input_file, encoding)
    enclosing_tags: dict[str, str] = {}
    start_pattern = re.compile(rf"<!--|<(?:[\w.-]+:)?({'|'.join((*names, 'tmx', 'xliff', 'file'))})(?=[\s/>])")
    while True:
        match = start_pattern.search(buffer.content)
        if match is None:
            if buffer.at_end:
                return
            buffer.consume(max(0, len(buffer.content) - 100))  # a start tag may be half read
            buffer.fill()
            continue
        buffer.consume(match.start())
        line, name = buffer.line, match[1]
        unit_text = _read_unit_text(buffer, name, name in names)
        if not unit_text:
            yield XMLUnit(line, None, "the file ends inside this unit")
            return
        if name in names:
            yield _parse_unit(unit_text, line, enclosing_tags)
        elif name:
            enclosing_tags[name] = unit_text


def _read_unit_text(buffer: _TextBuffer, name: str | None, full_element: bool) -> str:
    """A comment, a start tag or a full element; empty if the file ends inside it.

    An element that is not closed before the next one starts ends there.
    """
    end_pattern = "-->" if name is None else ">"
    if full_element:
        end_pattern = rf"</(?:[\w.-]+:)?{name}\s*>|(?=<(?:[\w.-]+:)?{name}[\s/>])"
    while True:
        empty_element = re.match(r"<[^<>]*?/>", buffer.content) if full_element else None
        match = empty_element or re.compile(end_pattern, re.DOTALL).search(buffer.content, pos=1)
        if match:
            return buffer.consume(match.end())
        if buffer.at_end or len(buffer.content) > MAX_UNIT_CHARACTERS:
            return ""
        buffer.fill()


def _parse_unit(unit_text: str, line: int, enclosing_tags: dict[str, str]) -> XMLUnit:
    from lxml import etree

    if "\ufffd" in unit_text:
        return XMLUnit(line, None, "invalid in the file's encoding")
    start_tags = [tag for name in ("tmx", "xliff", "file") if (tag := enclosing_tags.get(name))]
    end_tags = [f"</{re.split(r'[ />]', ' '.join(tag[1:].split()))[0]}>" for tag in reversed(start_tags)]
    parser = etree.XMLParser(**_PARSER_OPTIONS)
    try:
        element = etree.fromstring("".join([*start_tags, unit_text, *end_tags]).encode(), parser)
    except etree.XMLSyntaxError:
        return XMLUnit(line, None, "not well-formed")
    for _ in start_tags:
        element = element[0]
    return XMLUnit(line, element)


CODE_ELEMENTS = {"bpt", "ept", "ph", "it", "ut", "sub", "x", "bx", "ex", "sc", "ec", "sm", "em"}
"""Inline elements that hold markup of another format: their content is not part of the sentence.

The content of all others (hi, g, mrk, pc) is.
"""


class UndefinedEntityError(ValueError):
    """A sentence references an entity that is not defined."""


def element_text(element: "Element", tags: Literal["strip", "keep"]) -> str:
    """The text of an element, without its inline tags or with them as they are written."""
    if not len(element):
        return element.text or ""
    return (element.text or "") + "".join(_child_text(child, tags) + (child.tail or "") for child in element)


def _child_text(child: "Element", tags: Literal["strip", "keep"]) -> str:
    if not isinstance(child.tag, str):  # a comment, a processing instruction or an undefined entity
        if (child.text or "").startswith("&"):
            raise UndefinedEntityError(f"entity {child.text} is not defined")
        return ""
    name = child.tag.rpartition("}")[2]
    if name == "cp":  # XLIFF 2: a character that XML cannot represent
        with suppress(ValueError):
            code = int(child.get("hex", ""), 16)
            return chr(code) if code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF else ""
        return ""
    inner_text = element_text(child, tags)
    if tags == "strip":
        return "" if name in CODE_ELEMENTS else inner_text
    attributes = "".join(f' {str(key).rpartition("}")[2]}="{value!s}"' for key, value in child.attrib.items())
    return f"<{name}{attributes}>{inner_text}</{name}>" if inner_text else f"<{name}{attributes}/>"
