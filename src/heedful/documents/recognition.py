"""Which format a file is in, by what stands in it, whatever its name."""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from xml.parsers import expat

from heedful.documents.filling import Document
from heedful.documents.po import PoDocument
from heedful.documents.tmx import TmxDocument
from heedful.documents.xliff import NAMESPACE, Xliff1Document, Xliff2Document
from heedful.errors import HeedfulError
from heedful.files import readable, unpacked

_READ = 1 << 16
_ENTRY = re.compile(
    rb'^(?:\xef\xbb\xbf)?msgid[ \t]+"[^\n]*\n'
    rb'(?:[ \t]*"[^\n]*\n|msgid_plural[^\n]*\n)*msgstr(?:\[0\])?[ \t]+"',
    re.MULTILINE,
)
_MARKUP = re.compile(rb"(?:\xef\xbb\xbf|\xff\xfe|\xfe\xff)?[\s\0]*<")

_DAMAGED = re.compile(rb"<\?xml [^>]*\?>\s*(?:<![^>]*>\s*)*<(?:\w+:)?(tmx|xliff)[\s>]")


def recognised(path: Path) -> Callable[[Path], Document] | None:
    """What reads the file as a document; None if it is plain text, or no file that can be read twice."""
    if not path.is_file():
        return None
    with readable(path), path.open("rb") as plain, unpacked(plain) as stream:
        head = stream.read(_READ)
        found = _of_head(head)
        if found and stream is not plain:
            raise HeedfulError(
                f"{path} is packed by gzip", hint="gunzip it: documents are written as they are read"
            )
    return found


def _of_head(head: bytes) -> Callable[[Path], Document] | None:
    if _ENTRY.search(head.replace(b"\r\n", b"\n")):
        return PoDocument
    if not _MARKUP.match(head):
        return None
    space, _, name = _root(head).rpartition(" ")
    if name == "tmx":
        return TmxDocument
    if name != "xliff":
        return None
    version = space.removeprefix(NAMESPACE)
    return Xliff2Document if version.startswith("2") else Xliff1Document


class _FoundError(Exception):
    pass


def _root(head: bytes) -> str:
    """The name of the first element, with its namespace; empty if this is no XML."""
    found: list[str] = []

    def start(name: str, _: dict[str, str]) -> None:
        found.append(name)
        raise _FoundError

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartElementHandler = start
    with suppress(_FoundError, expat.ExpatError, LookupError, ValueError):
        parser.Parse(head, False)
    if found:
        return found[0]
    damaged = _DAMAGED.match(head)  # such as an encoding that is not known: whoever reads it will say so
    return damaged[1].decode() if damaged else ""
