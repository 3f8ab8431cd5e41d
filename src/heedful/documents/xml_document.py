"""What TMX and XLIFF share: the file is copied byte by byte, but for the places where something is filled in.

Units are read and written as a stream, some thousands at a time, so memory does not grow with the file.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from heedful.documents.filling import Tally, Texts, Wishes
from heedful.documents.format_strings import FormatRules, format_rules
from heedful.documents.safe_xml import XML, Element, XmlFile, opened_xml
from heedful.documents.xml_content import has_inline, translate_content, written
from heedful.text.translated import Rounds

AT_ONCE = 10_000
"""Units translated together."""
SPACE = f"{XML} space"
LANGUAGE = f"{XML} lang"
_COPIED = 1 << 20


class Edit(NamedTuple):
    """What stands instead of the bytes between two places."""

    start: int
    end: int
    text: str


class Segment(NamedTuple):
    """Something to translate: the element with the source, and what the translation needs to be written."""

    source: Element
    unit: Element
    old: Element | None
    """What the translation replaces."""


class XmlDocument(ABC):
    """A file of units."""

    kind = ""
    unit_names: frozenset[str] = frozenset()
    needs_target = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.source_language = self.target_language = ""
        with opened_xml(path) as file:
            for element in file.elements(self.is_unit):  # to the end: all of it is well-formed
                if not self.is_unit(element.name):
                    self.look(element)

    def is_unit(self, name: str) -> bool:
        """Whether elements of this name are units."""
        return name in self.unit_names

    @abstractmethod
    def look(self, element: Element) -> None:
        """Note what an element outside of units says of languages."""

    @abstractmethod
    def prepare(self, file: XmlFile, element: Element, wishes: Wishes) -> Iterator[Edit]:
        """Changes of an element outside of units."""

    @abstractmethod
    def segments(self, file: XmlFile, unit: Element, wishes: Wishes) -> Iterator[Segment | bool]:
        """What of a unit is to be translated; True for what is kept, False for what is skipped."""

    @abstractmethod
    def edits(self, file: XmlFile, segment: Segment, content: str, wishes: Wishes) -> Iterator[Edit]:
        """The changes that put a translated content in its place."""

    def wanted(self, wishes: Wishes) -> int:
        """How many segments will be translated."""
        with opened_xml(self.path) as file:
            return sum(isinstance(found, Segment) for found in self._found(file, wishes))

    def fill(self, wishes: Wishes, texts: Texts, file: BinaryIO) -> Tally:
        """Write the file with its units filled."""
        tally, place = Tally(), 0
        with opened_xml(self.path) as source:
            found = self._found(source, wishes)
            while portion := list(islice(found, AT_ONCE)):
                for edit in self._filled(source, portion, wishes, texts, tally):
                    _copy(source, place, edit.start, file)
                    file.write(source.encoded(edit.text))
                    place = edit.end
            _copy(source, place, len(source.data), file)
        return tally

    def _found(self, file: XmlFile, wishes: Wishes) -> Iterator[Segment | Edit | bool]:
        """Segments, changes outside of units, and what is kept or skipped, in the order of the file."""
        for element in file.elements(self.is_unit):
            if self.is_unit(element.name):
                yield from self.segments(file, element, wishes)
            else:
                yield from self.prepare(file, element, wishes)

    def _filled(
        self,
        file: XmlFile,
        portion: Iterable[Segment | Edit | bool],
        wishes: Wishes,
        texts: Texts,
        tally: Tally,
    ) -> Iterator[Edit]:
        rules = format_rules(wishes.rules)
        segments = [each for each in portion if isinstance(each, Segment)]
        raw = [file.text(each.source.content, each.source.content_end) for each in segments]
        links = bool(wishes.rules.glossary) or any(map(has_inline, raw))
        works = [_content(text, rules, segment.source) for text, segment in zip(raw, segments, strict=True)]
        contents = iter(texts.translate(works, links=links))
        for each in portion:
            if isinstance(each, Edit):
                yield each
            elif isinstance(each, bool):
                tally.kept += each
                tally.skipped += not each
            elif content := next(contents):
                tally.translated += 1
                yield from self.edits(file, each, content, wishes)
            else:
                tally.skipped += 1


def _content(text: str, rules: FormatRules, source: Element) -> Rounds[str | None]:
    return translate_content(text, rules, preserve=source.inherited(SPACE) == "preserve")


def _copy(source: XmlFile, start: int, end: int, file: BinaryIO) -> None:
    for place in range(start, end, _COPIED):
        file.write(source.data[place : min(place + _COPIED, end)])


def visible(file: XmlFile, element: Element | None) -> str:
    """What stands in an element, without white space around it."""
    return file.text(element.content, element.content_end).strip() if element else ""


def prefix_of(file: XmlFile, element: Element) -> str:
    """The prefix of an element's name as it is written, with its colon."""
    name = re.match(r"<([^\s/>]+)", file.text(element.start, element.content))
    return name[1].rpartition(":")[0] + ":" if name and ":" in name[1] else ""


def blank_before(file: XmlFile, element: Element) -> str:
    """The white space before an element: a new one beside it is given the same."""
    assert element.parent is not None
    before = file.text(element.parent.content, element.start)
    return before[len(before.rstrip()) :]


def with_attributes(tag: str, attributes: Mapping[str, str | None]) -> str:
    """A tag with attributes added, changed, or, if None, taken out; all others stay as they are written.

    >>> with_attributes('<target state="new" x:y="z">', {"state": "translated", "xml:lang": "de"})
    '<target x:y="z" state="translated" xml:lang="de">'
    """
    for name in attributes:
        tag = re.sub(rf"""\s+{re.escape(name)}\s*=\s*("[^"]*"|'[^']*')""", "", tag)
    new = "".join(f' {name}="{attribute(value)}"' for name, value in attributes.items() if value is not None)
    end = re.search(r"\s*/?>$", tag)
    assert end is not None
    return tag[: end.start()] + new + tag[end.start() :]


def attribute(value: str) -> str:
    """A value as it is written in quotes."""
    return written(value).replace('"', "&quot;")
