"""Units of XML files one by one, in constant memory; nothing is fetched, no entity is expanded.

A document type is accepted if it defines no entities (TMX files name theirs), and is never looked up. With
``reading.malformed=skip`` each unit is parsed by itself, so that a broken one spoils no other.
"""

import codecs
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, cast

from heedful.corpora.reading import Input, Reading, head_of
from heedful.errors import HeedfulError

if TYPE_CHECKING:
    from lxml.etree import XMLPullParser
    from lxml.etree import _Element as Element

LONGEST_UNIT = 1 << 24
"""Characters; what is longer is no unit."""
_PIECE, _FED = 1 << 18, 1 << 15
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
    b"<\0?\0": "utf-16-le",
    b"<\0t\0": "utf-16-le",
    b"\0<\0?": "utf-16-be",
}


class Unit(NamedTuple):
    """An element that may hold pairs, gone when the next one is asked for; or what is wrong with it."""

    line: int
    element: "Element | None"
    fault: str = ""


def xml_units(given: Input, names: tuple[str, ...], reading: Reading) -> Iterator[Unit]:
    """Every element of one of these names, whatever its namespace, as it ends."""
    head, given = head_of(given)
    _refuse_entities(decoded_head(head), given)
    return _pieces(given, head, names) if reading.skips else _whole(given, names)


def decoded_head(head: bytes) -> str:
    """The beginning of a text as far as its own declaration tells how to read it."""
    return head.decode(_encoding(head), errors="replace").removeprefix("\ufeff")


def root_of(head: str) -> str:
    """The name of the first element, without its namespace; empty if this is no XML.

    >>> root_of('<?xml version="1.0"?><!DOCTYPE tmx SYSTEM "tmx14.dtd"> <!-- <a> --> <t:tmx version="1.4">')
    'tmx'
    """
    found = re.match(rf"\s*(?:<\?.*?\?>|<!--.*?-->|{_DOCTYPE}|\s)*<(?:[\w.-]+:)?([\w.-]+)", head, re.DOTALL)
    return found[1] if found else ""


_DOCTYPE = r"<!DOCTYPE(?:[^\[>\"']|\"[^\"]*\"|'[^']*')*(?:\[[^\]]*\]\s*)?>"


def _encoding(head: bytes) -> str:
    for mark, name in _MARKS.items():
        if head.startswith(mark):
            return name
    found = re.match(rb"<\?xml[^>]*encoding\s*=\s*[\"']([A-Za-z0-9._-]+)", head)
    try:
        name = codecs.lookup(found[1].decode()).name if found else "utf-8"
    except LookupError:
        return "utf-8"
    return "utf-8" if name.startswith(("utf-16", "utf-32")) else name  # or we could not have read that


def _refuse_entities(head: str, given: Input) -> None:
    """Before anything is parsed: entities are how small files become huge, or read other files."""
    found = re.search(r"<!ENTITY\b", head)
    before = (
        re.sub(r"<!--.*?-->|<!\[CDATA\[.*?\]\]>", "", head[: found.start()], flags=re.DOTALL) if found else ""
    )
    if found and "<!--" not in before and "<![CDATA[" not in before:
        raise _entities(given, head.count("\n", 0, found.start()) + 1)


def _entities(given: Input, line: int = 0) -> HeedfulError:
    place = f"{given.name}, line {line:,}" if line else given.name
    return HeedfulError(
        f"{place}: the file defines entities of its own, which are not read",
        hint="take the <!ENTITY ...> lines out of it, and write what they stand for",
    )


def _whole(given: Input, names: tuple[str, ...]) -> Iterator[Unit]:
    from lxml import etree

    parser = etree.XMLPullParser(
        events=("end",),
        tag=tuple(f"{{*}}{name}" for name in names),
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        huge_tree=False,
    )
    checked = False
    for _ in _fed(parser, given):
        for _, ended in parser.read_events():
            element = cast("Element", ended)  # the event "end" has nothing else
            if not checked:
                _check_document(element, given)
                checked = True
            yield Unit(cast(int, element.sourceline) or 0, element)
            _forget(element)


def _fed(parser: "XMLPullParser", given: Input) -> Iterator[None]:
    """Give the parser the file, piece by piece; what is before a mistake has been read when it is told."""
    from lxml import etree

    while True:
        data = given.stream.read(_FED)
        broken = False
        try:
            if data:
                parser.feed(data)
            else:
                parser.close()
        except etree.XMLSyntaxError as error:
            broken = True
            complaint = error.lineno or 0, (error.msg or "this is no XML").partition(", line ")[0]
        for entry in parser.feed_error_log:  # some mistakes are only logged
            broken, complaint = True, (entry.line, entry.message.strip())
            break
        yield
        if broken:
            raise given.malformed(*complaint)
        if not data:
            return


def _check_document(element: "Element", given: Input) -> None:
    kind = element.getroottree().docinfo.internalDTD
    if kind is not None and kind.entities():  # type: ignore[attr-defined]
        raise _entities(given)


def _forget(element: "Element") -> None:
    """Free what has been read, and what stood before it."""
    element.clear()
    parent = element.getparent()
    if parent is not None:
        while element.getprevious() is not None:
            del parent[0]


class _Text:
    """Decoded text that is read as far as it is needed, and forgotten as it is used; it counts lines."""

    def __init__(self, given: Input, encoding: str) -> None:
        self._stream = given.stream
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        self.held, self.line, self.ended = "", 1, False

    def more(self) -> None:
        data = self._stream.read(_PIECE)
        self.ended = not data
        self.held += self._decoder.decode(data, final=self.ended)

    def take(self, length: int) -> str:
        taken, self.held = self.held[:length], self.held[length:]
        self.line += taken.count("\n")
        return taken


def _pieces(given: Input, head: bytes, names: tuple[str, ...]) -> Iterator[Unit]:
    """Each unit parsed by itself, inside the start tags of the root and of its file."""
    text = _Text(given, _encoding(head))
    around: dict[str, str] = {}
    start = re.compile(rf"<!--|<(?:[\w.-]+:)?({'|'.join((*names, 'tmx', 'xliff', 'file'))})(?=[\s/>])")
    while True:
        found = start.search(text.held)
        if found is None:
            if text.ended:
                return
            text.take(max(0, len(text.held) - 100))  # of which a start may be half read
            text.more()
            continue
        text.take(found.start())
        line, name = text.line, found[1]
        piece = _piece(text, name, name in names)
        if not piece:
            yield Unit(line, None, "the file is cut off here")
            return
        if name in names:
            yield _parsed_alone(piece, line, around)
        elif name:
            around[name] = piece


def _piece(text: _Text, name: str | None, whole: bool) -> str:
    """A comment, a start tag, or an element as a whole; empty if the file ends inside it.

    An element that does not end before the next one starts is taken up to there.
    """
    end = "-->" if name is None else ">"
    if whole:
        end = rf"</(?:[\w.-]+:)?{name}\s*>|(?=<(?:[\w.-]+:)?{name}[\s/>])"
    while True:
        first = re.match(r"<[^<>]*?/>", text.held) if whole else None
        found = first or re.compile(end, re.DOTALL).search(text.held, pos=1)
        if found:
            return text.take(found.end())
        if text.ended or len(text.held) > LONGEST_UNIT:
            return ""
        text.more()


def _parsed_alone(piece: str, line: int, around: dict[str, str]) -> Unit:
    from lxml import etree

    if "\ufffd" in piece:
        return Unit(line, None, "not in the file's encoding")
    opened = [tag for name in ("tmx", "xliff", "file") if (tag := around.get(name))]
    closed = [f"</{re.split(r'[ />]', ' '.join(tag[1:].split()))[0]}>" for tag in reversed(opened)]
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
    try:
        element = etree.fromstring("".join([*opened, piece, *closed]).encode(), parser)
    except etree.XMLSyntaxError:
        return Unit(line, None, "not well-formed")
    for _ in opened:
        element = element[0]
    return Unit(line, element)
