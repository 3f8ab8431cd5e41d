"""XML documents of translation units (TMX, XLIFF), edited in place: all other bytes are copied.

expat reads the file as a stream, and some thousand units are translated at a time, so memory does not grow with the
file. Positions are byte offsets.
"""

import mmap
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple
from xml.parsers import expat

from heedful.data.formats.base import detect_encoding, new_expat_parser
from heedful.data.formats.xml import MAX_DEPTH
from heedful.documents.base import CachingTranslator, FillOptions, UnitCounts
from heedful.documents.messages import make_format_rules
from heedful.documents.xml_segments import escape_xml, has_inline_elements, translate_content
from heedful.errors import HeedfulError
from heedful.files import wrap_read_errors

BATCH_UNITS = 10_000
"""Units translated together."""

_READ_BYTES = 1 << 16

_XML_NAMESPACE = "http://www.w3.org/XML/1998/namespace"
SPACE_ATTRIBUTE = f"{_XML_NAMESPACE} space"
LANGUAGE_ATTRIBUTE = f"{_XML_NAMESPACE} lang"


@dataclass(eq=False, slots=True)
class XmlElement:
    """An element and its offsets; the content of an empty one, <x/>, starts and ends at its end."""

    namespace: str
    name: str
    attributes: Mapping[str, str]
    """Names in another namespace are "namespace name"."""
    parent: "XmlElement | None"
    start: int
    content_start: int = -1
    content_end: int = -1
    end: int = -1
    children: list["XmlElement"] = field(default_factory=list)
    """Only within units."""

    def find_child(self, name: str) -> "XmlElement | None":
        """The first child with a name, in the same namespace."""
        return next((child for child in self.children if (child.name, child.namespace) == (name, self.namespace)), None)

    def lookup_attribute(self, name: str, default: str = "") -> str:
        """The attribute of the element or of its nearest ancestor that has it."""
        element: XmlElement | None = self
        while element is not None:
            if name in element.attributes:
                return element.attributes[name]
            element = element.parent
        return default


class XmlFile:
    """An open XML file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data = path, data
        self.encoding = detect_encoding(data[:_READ_BYTES]) or "utf-8"

    def iter_elements(self, unit_names: Set[str]) -> Iterator[XmlElement]:
        """Units with their children, and every other element as soon as its tag is read."""
        builder = _ElementBuilder(unit_names, self.path.name)
        try:
            for start in range(0, len(self.data) + 1, _READ_BYTES):
                chunk = self.data[start : start + _READ_BYTES]
                yield from builder.feed(chunk, last=len(chunk) < _READ_BYTES)
        except expat.ExpatError as error:
            raise _xml_syntax_error(self.path.name, error.lineno, expat.ErrorString(error.code)) from None
        except (LookupError, ValueError) as error:
            raise HeedfulError(f"{self.path.name}: {error}", hint="save it as UTF-8; nothing was written") from None

    def read_text(self, start: int, end: int) -> str:
        """The text between two offsets, as written."""
        return self.data[start:end].decode(self.encoding)

    def read_content(self, element: XmlElement | None) -> str:
        """The content of an element without surrounding whitespace."""
        return self.read_text(element.content_start, element.content_end).strip() if element else ""

    def read_prefix(self, element: XmlElement) -> str:
        """The namespace prefix of an element as written, with its colon."""
        name = re.match(r"<([^\s/>]+)", self.read_text(element.start, element.content_start))
        return name[1].rpartition(":")[0] + ":" if name and ":" in name[1] else ""

    def read_indentation(self, element: XmlElement) -> str:
        """The whitespace before an element."""
        assert element.parent is not None
        before = self.read_text(element.parent.content_start, element.start)
        return before[len(before.rstrip()) :]


@contextmanager
def open_xml(path: Path) -> Iterator[XmlFile]:
    """A memory-mapped file."""
    with wrap_read_errors(path):
        file = path.open("rb")
    with file:
        if path.stat().st_size == 0:
            raise HeedfulError(f"{path.name} is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield XmlFile(path, data)


class _ElementBuilder:
    """Builds elements from expat events; a tag ends where the next event starts."""

    def __init__(self, unit_names: Set[str], file_name: str) -> None:
        self.unit_names, self.file_name = unit_names, file_name
        self.current: XmlElement | None = None
        self.depth = 0
        self.unit: XmlElement | None = None
        self.pending: XmlElement | None = None
        """The element whose start tag or end tag was read last."""
        self.ready: list[XmlElement] = []
        self.parser = parser = new_expat_parser(file_name)
        parser.StartElementHandler, parser.EndElementHandler = self._start_element, self._end_element
        parser.DefaultHandler = lambda _: self._finish_tag()

    def feed(self, data: bytes, *, last: bool) -> list[XmlElement]:
        """The elements completed by these bytes."""
        self.parser.Parse(data, last)
        if last:
            self._finish_tag()
        ready, self.ready = self.ready, []
        return ready

    def _finish_tag(self) -> None:
        element, self.pending = self.pending, None
        if element is None:
            return
        offset = self.parser.CurrentByteIndex
        if element.content_start < 0:
            element.content_start = offset
            if self.unit is None:
                self.ready.append(element)
        else:
            element.end = offset
            if element is self.unit:
                self.ready.append(element)
                self.unit = None

    def _start_element(self, full_name: str, attributes: dict[str, str]) -> None:
        self._finish_tag()
        namespace, _, name = full_name.rpartition(" ")
        element = XmlElement(namespace, name, attributes, self.current, self.parser.CurrentByteIndex)
        if self.unit is not None and self.current is not None:
            self.current.children.append(element)
        elif name in self.unit_names:
            self.unit = element
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _xml_syntax_error(self.file_name, self.parser.CurrentLineNumber, "elements are nested too deep")
        self.current = self.pending = element

    def _end_element(self, _: str) -> None:
        self._finish_tag()
        assert self.current is not None
        self.current.content_end = self.parser.CurrentByteIndex
        self.pending, self.current = self.current, self.current.parent
        self.depth -= 1


def _xml_syntax_error(file_name: str, line: int, problem: str) -> HeedfulError:
    return HeedfulError(
        f"{file_name}, line {line:,}: not well-formed XML: {problem}", hint="fix the file; nothing was written"
    )


class XmlEdit(NamedTuple):
    """Text that replaces the bytes between two offsets."""

    start: int
    end: int
    text: str


class XmlSegment(NamedTuple):
    """One text to translate: its source element, its unit and the target it replaces."""

    source: XmlElement
    unit: XmlElement
    old_target: XmlElement | None


class XmlDocument(ABC):
    """A file of translation units; subclasses know where sources and targets are."""

    format_name = ""
    unit_names: frozenset[str] = frozenset()
    language_element = ""
    """The element outside of units that declares the languages, with these attributes."""
    source_attribute = target_attribute = ""
    needs_target = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.source_language = self.target_language = ""
        with open_xml(path) as file:
            for element in file.iter_elements(self.unit_names):  # to the end: all of it is well-formed
                if element.name == self.language_element:
                    self.source_language = self.source_language or element.attributes.get(self.source_attribute, "")
                    self.target_language = self.target_language or element.attributes.get(self.target_attribute, "")

    @abstractmethod
    def find_segments(
        self, file: XmlFile, unit: XmlElement, options: FillOptions, counts: UnitCounts
    ) -> Iterator[XmlSegment]:
        """The segments of a unit to translate; the others are counted as unchanged or skipped."""

    @abstractmethod
    def segment_edits(
        self, file: XmlFile, segment: XmlSegment, content: str, options: FillOptions
    ) -> Iterator[XmlEdit]:
        """The edits that insert a translation, in the order of the file."""

    def count_units(self, options: FillOptions) -> int:
        """How many segments will be translated."""
        with open_xml(self.path) as file:
            units = (unit for unit in file.iter_elements(self.unit_names) if unit.name in self.unit_names)
            return sum(1 for unit in units for _ in self.find_segments(file, unit, options, UnitCounts()))

    def write_translation(self, options: FillOptions, translator: CachingTranslator, file: BinaryIO) -> UnitCounts:
        """Write the file with its units translated."""
        counts, position = UnitCounts(), 0
        with open_xml(self.path) as source:
            elements = source.iter_elements(self.unit_names)
            while batch := list(islice(elements, BATCH_UNITS)):
                for edit in self._translate_batch(source, batch, options, translator, counts):
                    file.write(memoryview(source.data)[position : edit.start])
                    file.write(edit.text.encode(source.encoding, "xmlcharrefreplace"))
                    position = edit.end
            file.write(memoryview(source.data)[position:])
        return counts

    def _translate_batch(
        self,
        file: XmlFile,
        batch: list[XmlElement],
        options: FillOptions,
        translator: CachingTranslator,
        counts: UnitCounts,
    ) -> list[XmlEdit]:
        """The edits of some elements, in the order of the file."""
        segments: list[XmlSegment] = []
        for element in batch:
            if element.name in self.unit_names:
                segments += self.find_segments(file, element, options, counts)
        edits = [
            edit_attributes(file, element, {self.target_attribute: options.target})
            for element in batch
            if element.name == self.language_element and self.target_attribute and options.target
            if not element.attributes.get(self.target_attribute)
        ]
        rules = make_format_rules(options.rules)
        sources = [segment.source for segment in segments]
        raw_contents = [file.read_text(source.content_start, source.content_end) for source in sources]
        generators = [
            translate_content(content, rules, preserve=source.lookup_attribute(SPACE_ATTRIBUTE) == "preserve")
            for content, source in zip(raw_contents, sources, strict=True)
        ]
        with_alignment = bool(options.rules.glossary) or any(map(has_inline_elements, raw_contents))
        translations = translator.translate(generators, with_alignment=with_alignment)
        for segment, translation in zip(segments, translations, strict=True):
            if translation:
                counts.translated += 1
                edits += self.segment_edits(file, segment, translation, options)
            else:
                counts.skipped += 1
        return sorted(edits)


def edit_attributes(file: XmlFile, element: XmlElement, attributes: Mapping[str, str]) -> XmlEdit:
    """The edit that sets attributes of an element."""
    tag = file.read_text(element.start, element.content_start)
    return XmlEdit(element.start, element.content_start, set_attributes(tag, attributes))


def set_attributes(tag: str, attributes: Mapping[str, str]) -> str:
    """A tag with attributes added or changed; all others stay as written.

    >>> set_attributes('<target state="new" x:y="z">', {"state": "translated", "xml:lang": "de"})
    '<target x:y="z" state="translated" xml:lang="de">'
    """
    for name in attributes:
        tag = re.sub(rf"""\s+{re.escape(name)}\s*=\s*("[^"]*"|'[^']*')""", "", tag)
    added = "".join(f' {name}="{escape_attribute(value)}"' for name, value in attributes.items())
    end = re.search(r"\s*/?>$", tag)
    assert end is not None
    return tag[: end.start()] + added + tag[end.start() :]


def escape_attribute(value: str) -> str:
    """A value as written between double quotes."""
    return escape_xml(value).replace('"', "&quot;")
