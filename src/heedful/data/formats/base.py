"""What every reader takes and yields: an open file with options in, pair records out. Detects encoding and format.

A pair that cannot be read is a record with an ``error``, which cleaning counts; a file that cannot be read
raises HeedfulError.
"""

import codecs
import io
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

from heedful.data.config import ReadingConfig
from heedful.errors import HeedfulError
from heedful.tokenization.languages import LanguagePair


class PairRecord(NamedTuple):
    """One pair as it stands in a file; if ``error`` is set, both sentences are None."""

    origin: str
    line: int
    source: str | None
    target: str | None
    error: str = ""
    heads: str = ""  # unparsed dependency heads (third TSV column, JSON field "heads"), for models that read trees
    note: str = ""  # how this pair was chosen among several, if users should know; the cleaning report counts notes


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Languages to read, if known, and the settings."""

    languages: LanguagePair | None = None
    config: ReadingConfig = ReadingConfig()  # noqa: RUF009 - frozen

    @property
    def skip_malformed(self) -> bool:
        """Whether malformed units are skipped instead of raising an error."""
        return self.config.malformed == "skip"


@dataclass(frozen=True, slots=True)
class InputFile:
    """An open file or archive member, decompressed."""

    name: str  # name in error messages
    display_name: str  # name in records
    stream: io.BufferedIOBase
    extension: str = ""  # file extension before any ``.gz``, such as ".tsv"
    first_line: int = 1  # number of the first line; more than 1 in later chunks of a file

    def pair_record(self, line: int, source: str, target: str, *, reverse: bool = False, note: str = "") -> PairRecord:
        """A pair at this line, its sides swapped if ``reverse``."""
        if reverse:
            source, target = target, source
        return PairRecord(self.display_name, line, source, target, note=note)

    def error_record(self, line: int, error: str) -> PairRecord:
        """A line or unit that holds no valid pair."""
        return PairRecord(self.display_name, line, None, None, error)

    def location(self, line: int = 0) -> str:
        """File name and line, for error messages."""
        return f"{self.name}, line {line:,}" if line else self.name

    def format_error(self, line: int, error: str) -> HeedfulError:
        """The error to raise for malformed content."""
        return HeedfulError(
            f"{self.location(line)}: {error}",
            hint="fix the file, or skip malformed parts with --set reading.malformed=skip",
        )


def read_head(input_file: InputFile, size: int = 1 << 16) -> tuple[bytes, InputFile]:
    """The first bytes, and an input that still starts with them, even if the stream cannot seek."""
    stream = input_file.stream
    if stream.seekable():
        start = stream.tell()
        head = stream.read(size)
        stream.seek(start)
        return head, input_file
    head = b""
    while len(head) < size and (block := stream.read(size - len(head))):
        head += block
    full_stream: io.BufferedReader = io.BufferedReader(_PrefixedStream(head, stream))
    return head, InputFile(input_file.name, input_file.display_name, full_stream, input_file.extension)


class _PrefixedStream(io.RawIOBase):
    """A stream that yields the bytes already read, then the rest."""

    def __init__(self, head: bytes, rest: io.BufferedIOBase) -> None:
        self._head, self._rest = head, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        block = self._head[: len(buffer)] or self._rest.read(len(buffer))
        self._head = self._head[len(block) :]
        buffer[: len(block)] = block
        return len(block)


_ENCODING_BY_PREFIX = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
    b"<\0": "utf-16-le",  # XML without a byte-order mark
    b"\0<": "utf-16-be",
}

_DECLARED_ENCODING = re.compile(rb"""<\?xml[^>]*encoding\s*=\s*["']([A-Za-z0-9._-]+)""")


def detect_encoding(head: bytes) -> str:
    """Encoding by byte-order mark, UTF-16 pattern or XML declaration; empty if there is none of these.

    >>> detect_encoding(b"\\xff\\xfea\\0"), detect_encoding(b'<?xml version="1.0" encoding="Latin-1"?>')
    ('utf-16-le', 'iso8859-1')
    """
    for prefix, name in _ENCODING_BY_PREFIX.items():
        if head.startswith(prefix):
            return name
    match = _DECLARED_ENCODING.match(head)
    try:
        name = codecs.lookup(match[1].decode()).name if match else ""
        b"<".decode(name or "utf-8", "replace")  # fails for base64, idna and the like
    except (LookupError, ValueError):
        return ""
    return "" if name.startswith(("utf-16", "utf-32")) else name  # else the declaration would be unreadable


def decode_head(head: bytes) -> str:
    """The first bytes of a file as text, decoded as far as possible."""
    return head.decode(detect_encoding(head) or "utf-8", errors="replace").removeprefix("\ufeff")


def unknown_encoding_error(encoding: str, name: str) -> HeedfulError:
    """The error for a name that Python has no text codec for."""
    return HeedfulError(f"{name}: unknown encoding {encoding!r}", hint="use a name such as utf-8, utf-16 or cp1252")


_DOCTYPE = r"<!DOCTYPE(?:[^\[>\"']|\"[^\"]*\"|'[^']*')*(?:\[[^\]]*\]\s*)?>"
_ROOT = re.compile(rf"\s*(?:<\?.*?\?>|<!--.*?-->|{_DOCTYPE}|\s)*<(?:[\w.-]+:)?([\w.-]+)", re.DOTALL)


def entity_error(location: str) -> HeedfulError:
    """The error for a file that defines entities: they make small files huge, or include other files."""
    return HeedfulError(
        f"{location}: the file defines XML entities, which are not allowed",
        hint="replace the entities by their text and remove the <!ENTITY ...> declarations",
    )


class XMLName(NamedTuple):
    """Namespace and local name of an element."""

    namespace: str = ""
    name: str = ""


class _StopParsingError(Exception):
    pass


def new_expat_parser(file_name: str) -> expat.XMLParserType:
    """A parser that resolves namespaces ("namespace name") and raises an error for entity declarations."""
    parser = expat.ParserCreate(namespace_separator=" ")

    def reject_entity(*_: object) -> None:
        raise entity_error(f"{file_name}, line {parser.CurrentLineNumber:,}")

    parser.EntityDeclHandler = reject_entity
    return parser


def parse_prolog(head: bytes, file_name: str) -> XMLName:
    """The root element; raises an error if the document type before it defines entities."""
    parser = new_expat_parser(file_name)
    root = XMLName()

    def start_element(full_name: str, attributes: dict[str, str]) -> None:
        nonlocal root
        namespace, _, name = full_name.rpartition(" ")
        root = XMLName(namespace, name)
        raise _StopParsingError

    parser.StartElementHandler = start_element
    with suppress(_StopParsingError, expat.ExpatError, LookupError, ValueError):
        parser.Parse(head, False)
    return root


def read_root_element(head: bytes) -> XMLName:
    """The name of the root element, from the first bytes of a file; empty if they are not XML.

    >>> read_root_element(b'<!DOCTYPE tmx SYSTEM "tmx14.dtd"> <!-- <a> --> <t:tmx xmlns:t="urn:x">')
    XMLName(namespace='urn:x', name='tmx')
    """
    with suppress(HeedfulError):
        if (root := parse_prolog(head, "")).name:
            return root
    match = _ROOT.match(decode_head(head))  # malformed, or an encoding that expat does not know
    return XMLName(name=match[1]) if match else XMLName()


MO_MAGIC = (b"\xde\x12\x04\x95", b"\x95\x04\x12\xde")

FORMAT_BY_EXTENSION = {
    extension: format_name
    for format_name, extensions in {
        "tsv": (".tsv", ".tab"),
        "jsonl": (".jsonl", ".ndjson"),
        "csv": (".csv",),
        "tmx": (".tmx",),
        "po": (".po", ".pot"),
        "mo": (".mo", ".gmo"),
        "xliff": (".xlf", ".xliff", ".sdlxliff", ".mxliff", ".mqxliff"),
        "zip": (".zip",),
    }.items()
    for extension in extensions
}
"""Formats by file extension, before any ``.gz``."""

_LINE_FORMATS = ("tsv", "jsonl", "csv")  # formats whose first bytes can be anything


def strip_gz(name: str) -> str:
    """A file name without its ``.gz``."""
    return name[:-3] if name.lower().endswith(".gz") else name


def file_extension(name: str) -> str:
    """The extension of a file name, before any ``.gz``.

    >>> file_extension("corpus/Train.TSV.gz")
    '.tsv'
    """
    return Path(strip_gz(name)).suffix.lower()


def detect_format(head: bytes, extension: str = "") -> str:
    """The format, as named in FORMAT_BY_EXTENSION; empty if neither content nor extension shows it.

    >>> detect_format(b'<?xml version="1.0"?><tmx version="1.4">', ".xml")
    'tmx'
    """
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "zip"
    if head.startswith(MO_MAGIC):
        return "mo"
    format_by_name = FORMAT_BY_EXTENSION.get(extension, "")
    if format_by_name in _LINE_FORMATS:
        return format_by_name
    text = decode_head(head)
    if text.lstrip().startswith("<"):
        root = read_root_element(head).name
        return root if root in ("tmx", "xliff") else format_by_name
    is_po = re.match(r'#|msgid\s+"|msgctxt\s+"|domain\s+"', text.lstrip()) and re.search(
        r'^(?:#~ )?msgid\s+"', text, re.MULTILINE
    )
    return "po" if is_po else format_by_name
