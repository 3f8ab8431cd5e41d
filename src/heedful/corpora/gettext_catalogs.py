"""PO and MO, the catalogues of gettext: what a program says, and how it says it in another language.

A plural entry is two pairs: the singular with the form for one, the plural with the last form there is.
"""

import gettext
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from heedful.corpora.language_codes import canonical, swapped
from heedful.corpora.reading import Input, Languages, Reading, Record
from heedful.errors import HeedfulError

if TYPE_CHECKING:
    from polib import MOEntry, MOFile, POEntry, POFile

MAGIC = (b"\xde\x12\x04\x95", b"\x95\x04\x12\xde")
LARGEST = 1 << 28
"""Bytes; catalogues are read as a whole."""
_LINE = re.compile(
    r'\s*(?:#.*|(?:(?:msgctxt|msgid|msgid_plural|msgstr(?:\[\d+\])?)\s*)?"(?:[^"\\]|\\.)*"\s*)?', re.DOTALL
)


def read_po(given: Input, reading: Reading) -> Iterator[Record]:
    """The translated entries of a catalogue; fuzzy, obsolete and empty ones are told apart."""
    text = _text(given, reading)
    fault = _broken_line(text)
    if not fault and not (reading.skips and "\ufffd" in text):
        try:
            yield from _po_records(given, _parsed(text), reading, 0)
            return
        except OSError as error:  # polib's syntax error
            fault = _place(error)
    if fault and not reading.skips:
        raise given.malformed(*fault)
    yield from _entry_by_entry(given, text, reading)


def po_languages(given: Input, reading: Reading) -> Languages | None:
    """From the header; what is translated is English unless somebody says otherwise."""
    fields = re.findall(r'^"(Language|X-Source-Language):\s*([\w@.-]+)', _text(given, reading), re.MULTILINE)
    return _told(dict(reversed(fields)))


def read_mo(given: Input, reading: Reading) -> Iterator[Record]:
    """The same of a compiled catalogue; entries are numbered, since there are no lines."""
    try:
        catalogue = parsed_mo(given.stream.read(LARGEST))
    except ValueError as error:
        if not reading.skips:
            raise given.malformed(0, str(error)) from None
        yield given.dropped(1, f"the file is lost: {error}")
        return
    turned = _turned(given, catalogue.metadata, reading)
    forms = plural_forms(catalogue.metadata)
    for number, entry in enumerate(catalogue, start=1):
        for source, target in entry_pairs(entry, forms):
            yield _record(given, number, source, target, turned)


def mo_languages(given: Input, reading: Reading) -> Languages | None:
    """From the header, as in PO."""
    try:
        return _told(parsed_mo(given.stream.read(LARGEST)).metadata)
    except ValueError as error:
        raise given.malformed(0, str(error)) from None


def parsed_mo(data: bytes) -> "MOFile":
    """A compiled catalogue; ValueError if it is damaged."""
    import polib

    _check_sizes(data)
    found = re.search(rb"charset=([\w.-]+)", data)
    try:
        encoding = found[1].decode() if found else "utf-8"
        return polib.mofile(cast(str, data), encoding=encoding)  # bytes are understood too
    except (OSError, struct.error, UnicodeDecodeError, LookupError, IndexError) as error:
        raise ValueError(f"this is no whole MO file: {error}") from None


def plural_forms(metadata: Mapping[str, str]) -> Callable[[int], int]:
    """Which form goes with a number, by the formula in the header.

    >>> plural_forms({"Plural-Forms": "nplurals=6; plural=n==0 ? 0 : n==1 ? 1 : 2;"})(1)
    1
    """
    found = re.search(r"plural\s*=\s*([^;]+)", metadata.get("Plural-Forms", "").partition(";")[2])
    try:
        return gettext.c2py(found[1]) if found else lambda number: 0
    except (ValueError, OverflowError, RecursionError, SyntaxError):  # the last: "n >!1"
        return lambda number: 0


def entry_pairs(entry: "POEntry | MOEntry", forms: Callable[[int], int]) -> list[tuple[str, str]]:
    """One pair, or two of a plural entry; a target is empty where nothing is translated."""
    if not entry.msgid_plural:
        return [(entry.msgid, entry.msgstr)] if entry.msgid else []
    translated = {int(number): text for number, text in entry.msgstr_plural.items()}
    last = max(translated, default=0)
    try:
        one = forms(1)
        many = last if last != one else forms(5)  # in some languages the last form is the singular
    except (ValueError, ZeroDivisionError):
        one, many = 0, last
    return [
        (entry.msgid, translated.get(one, translated.get(0, ""))),
        (entry.msgid_plural, translated.get(many, translated.get(last, ""))),
    ]


def _check_sizes(data: bytes) -> None:
    """A small file whose entries overlap could be read into a huge one."""
    order = "<" if data[:4] == MAGIC[0] else ">"
    try:
        count, sources, targets = struct.unpack_from(f"{order}III", data, 8)
        sizes = [
            sum(struct.unpack_from(f"{order}{2 * count}I", data, table)[::2])
            for table in (sources, targets)
            if 8 * count <= len(data)
        ]
    except struct.error:
        raise ValueError("this is no whole MO file: it is cut off") from None
    if len(sizes) < 2 or sum(sizes) > len(data):
        raise ValueError("this is no whole MO file: its table of entries is wrong")


def _text(given: Input, reading: Reading) -> str:
    """The whole file, in the character set that its header names."""
    data = given.stream.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise HeedfulError(f"{given.name} is larger than {LARGEST >> 20} MB", hint="cut it in parts")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace")
    found = re.search(rb"charset=([\w.-]+)", data)
    encoding = found[1].decode() if found and found[1] != b"CHARSET" else reading.config.encoding or "utf-8"
    try:
        return data.decode(encoding, "replace" if reading.skips else "strict").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise given.malformed(line, f"this is not {encoding}, as the file should be") from None
    except (LookupError, UnicodeError):  # what is no character set (base64, idna) has errors of its own
        raise HeedfulError(
            f"{given.name} says it is in {encoding}, which is not known", hint="correct its charset"
        ) from None


class _Lines(str):
    """A text that polib cuts at line feeds only: U+2028 and the like belong to sentences."""

    __slots__ = ()

    def splitlines(self, keepends: bool = False) -> list[str]:
        return self.split("\n")


def _parsed(text: str) -> "POFile":
    import polib

    return polib.pofile(_Lines(text + "\n"), encoding="utf-8")


def _broken_line(text: str) -> tuple[int, str] | None:
    """The first line that is neither comment nor quoted text: polib would cut it off silently."""
    for number, line in enumerate(text.split("\n"), start=1):
        if not _LINE.fullmatch(line):
            return number, "the quotes of this line do not match" if '"' in line else "this is no line of PO"
    return None


def _place(error: OSError) -> tuple[int, str]:
    """polib repeats the whole text before it comes to the point."""
    found = re.search(r"\(line (\d+)\)(?:: ([^\n]*))?\s*\Z", str(error))
    return (int(found[1]), found[2] or "this line is out of order") if found else (0, "this is no PO file")


def _entry_by_entry(given: Input, text: str, reading: Reading) -> Iterator[Record]:
    lines = text.split("\n")
    for start, end in pairwise([0, *_starts(lines), len(lines)]):
        piece = "\n".join(lines[start:end])
        if not piece.strip():
            continue
        if "\ufffd" in piece:
            yield given.dropped(start + 1, "not in the file's character set")
        elif _broken_line(piece):
            yield given.dropped(start + 1, "malformed entry")
        else:
            try:
                yield from _po_records(given, _parsed(piece), reading, start)
            except OSError:
                yield given.dropped(start + 1, "malformed entry")


def _starts(lines: list[str]) -> Iterator[int]:
    """Where entries begin: at a blank line, a comment or a source text after a translation."""
    translated = False
    for number, line in enumerate(lines):
        bare = line.removeprefix("#~").strip()
        if translated and (not bare or re.match(r"#|msgctxt\b|msgid\b", bare)):
            yield number
            translated = False
        translated = translated or bare.startswith("msgstr")


def _po_records(given: Input, catalogue: "POFile", reading: Reading, before: int) -> Iterator[Record]:
    turned = _turned(given, catalogue.metadata, reading)
    forms = plural_forms(catalogue.metadata)
    for entry in catalogue:
        line = before + (entry.linenum or 1)
        if entry.obsolete:
            yield given.dropped(line, "obsolete")
        elif "fuzzy" in entry.flags and not reading.config.fuzzy:
            yield given.dropped(line, "fuzzy")
        else:
            for source, target in entry_pairs(entry, forms):
                yield _record(given, line, source, target, turned)


def _told(metadata: Mapping[str, str]) -> Languages | None:
    target = metadata.get("Language", "").strip()
    return (canonical(metadata.get("X-Source-Language", "en")), canonical(target)) if target else None


def _turned(given: Input, metadata: Mapping[str, str], reading: Reading) -> bool:
    source, target = metadata.get("X-Source-Language", "").strip(), metadata.get("Language", "").strip()
    return swapped(reading.languages, source, target, given.name)


def _record(given: Input, line: int, source: str, target: str, turned: bool) -> Record:
    if not target.strip():
        return given.dropped(line, "not translated")
    return Record(given.title, line, *((target, source) if turned else (source, target)))
