"""XML read without danger, and without being changed: elements and the bytes that they stand on.

expat reads the file as a stream. Entities of the file's own are refused, so nothing grows; what a DOCTYPE
points to is not fetched. The rule to remember: a place is a number of bytes from the beginning.
"""

import mmap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from heedful.errors import HeedfulError
from heedful.files import readable

XML = "http://www.w3.org/XML/1998/namespace"
_PORTION = 1 << 16
_DEEPEST = 1000


@dataclass(eq=False, slots=True)
class Element:
    """An element and its place; of an empty one, <x/>, the content begins and ends where it ends."""

    space: str
    """Its namespace."""
    name: str
    attributes: Mapping[str, str]
    """Those of another namespace as "namespace name"."""
    parent: "Element | None"
    start: int
    content: int = -1
    content_end: int = -1
    end: int = -1
    children: list["Element"] = field(default_factory=list)
    """Of units alone: elements outside of units do not keep theirs."""

    def child(self, name: str) -> "Element | None":
        """The first child of a name, in the same namespace."""
        return next((each for each in self.children if (each.name, each.space) == (name, self.space)), None)

    def inherited(self, name: str, default: str = "") -> str:
        """The attribute of the nearest of the element and those around it that has it."""
        element: Element | None = self
        while element is not None:
            if name in element.attributes:
                return element.attributes[name]
            element = element.parent
        return default


class XmlFile:
    """An XML file that is open for reading."""

    def __init__(self, path: Path, data: mmap.mmap | bytes) -> None:
        self.path, self.data = path, data
        self.encoding = _unicode_form(data[:4]) or "utf-8"

    def elements(self, is_unit: Callable[[str], bool]) -> Iterator[Element]:
        """Units, complete with their children, and every other element as soon as its tag is read."""
        walker = _Walker(is_unit, self.path.name)
        try:
            for start in range(0, len(self.data) + 1, _PORTION):
                portion = self.data[start : start + _PORTION]
                found = walker.read(portion, last=len(portion) < _PORTION)
                if walker.encoding and self.encoding == "utf-8":
                    self.encoding = walker.encoding
                yield from found
        except expat.ExpatError as error:
            raise _broken(self.path.name, error.lineno, expat.ErrorString(error.code)) from None
        except (LookupError, ValueError) as error:
            raise HeedfulError(
                f"{self.path.name}: {error}", hint="save it as UTF-8; nothing was written"
            ) from None

    def text(self, start: int, end: int) -> str:
        """What stands between two places, as it is written."""
        return bytes(self.data[start:end]).decode(self.encoding)

    def encoded(self, text: str) -> bytes:
        """Text as it is written in this file; what its encoding does not have, as references."""
        return text.encode(self.encoding, "xmlcharrefreplace")


@contextmanager
def opened_xml(path: Path) -> Iterator[XmlFile]:
    """A file, mapped into memory rather than read."""
    with readable(path):
        file = path.open("rb")
    with file:
        if path.stat().st_size == 0:
            raise HeedfulError(f"{path.name} is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield XmlFile(path, data)


class _Walker:
    """Builds elements from what expat finds; what comes next says where a tag ends."""

    def __init__(self, is_unit: Callable[[str], bool], title: str) -> None:
        self.is_unit, self.title = is_unit, title
        self.encoding = ""
        self.current: Element | None = None
        self.depth = 0
        self.unit: Element | None = None
        self.opened: Element | None = None
        self.closed: Element | None = None
        self.ready: list[Element] = []
        self.parser = parser = expat.ParserCreate(namespace_separator=" ")
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.DefaultHandler = lambda _: self._settle()
        parser.XmlDeclHandler = self._declaration
        parser.EntityDeclHandler = self._refuse

    def read(self, data: bytes, *, last: bool = False) -> list[Element]:
        """The elements that are known with these bytes."""
        self.parser.Parse(data, last)
        if last:
            self._settle()
        ready, self.ready = self.ready, []
        return ready

    def _settle(self) -> None:
        """Whatever comes now begins where the tag before it ended."""
        if self.opened is None and self.closed is None:
            return
        place = self.parser.CurrentByteIndex
        opened, self.opened = self.opened, None
        if opened is not None:
            opened.content = place
            if self.unit is None:
                self.ready.append(opened)
        closed, self.closed = self.closed, None
        if closed is not None:
            closed.end = place
            if closed is self.unit:
                self.ready.append(closed)
                self.unit = None

    def _start(self, full_name: str, attributes: dict[str, str]) -> None:
        self._settle()
        space, _, name = full_name.rpartition(" ")
        element = Element(space, name, attributes, self.current, self.parser.CurrentByteIndex)
        if self.unit is not None and self.current is not None:
            self.current.children.append(element)
        elif self.is_unit(name):
            self.unit = element
        self.depth += 1
        if self.depth > _DEEPEST:
            raise _broken(self.title, self.parser.CurrentLineNumber, "elements stand too deep in each other")
        self.current = self.opened = element

    def _end(self, _: str) -> None:
        self._settle()
        assert self.current is not None
        self.current.content_end = self.parser.CurrentByteIndex
        self.closed, self.current = self.current, self.current.parent
        self.depth -= 1

    def _declaration(self, _version: str, encoding: str | None, _standalone: int) -> None:
        self._settle()
        self.encoding = (encoding or "").lower()

    def _refuse(self, name: str, *_: object) -> None:
        raise HeedfulError(
            f"{self.title}, line {self.parser.CurrentLineNumber:,}: the file defines an entity of its own, "
            f"{name!r}; that is not read, for it may be an attack",
            hint="write the text itself instead of the entity",
        )


def _unicode_form(first: bytes) -> str:
    """UTF-16, whose byte order the first bytes show, or nothing."""
    if first[:2] == b"\xff\xfe" or first[:2] == b"<\0":
        return "utf-16-le"
    return "utf-16-be" if first[:2] == b"\xfe\xff" or first[:2] == b"\0<" else ""


def _broken(title: str, line: int, problem: str) -> HeedfulError:
    return HeedfulError(
        f"{title}, line {line:,}: no well-formed XML: {problem}",
        hint="nothing was written; mend it there first",
    )
