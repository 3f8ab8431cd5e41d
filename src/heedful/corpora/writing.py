"""Pairs written in the formats that other programs read; what is written reads back to the same pairs."""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from heedful.corpora.formats import packed_file, write_tsv
from heedful.corpora.reading import Languages

if TYPE_CHECKING:
    from lxml.etree import _Element as Element
    from lxml.etree import _IncrementalFileWriter as Writer

Pairs = Iterable[tuple[str, str]]
_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_XLIFF_1 = "urn:oasis:names:tc:xliff:document:1.2"
_XLIFF_2 = "urn:oasis:names:tc:xliff:document:2.0"
LANGUAGES_NEEDED = ("tmx", "po", "xliff", "xliff2")
"""Formats that say what language a text is in."""


def write_pairs(pairs: Pairs, path: Path, form: str, languages: Languages | None) -> int:
    """Write a file, whole or not at all, packed if it is named ``.gz``; returns the number of pairs."""
    if form == "tsv":
        return write_tsv(pairs, path)
    with packed_file(path) as file:
        return WRITERS[form](pairs, file, languages or ("source", "target"))


def fitting(text: str, form: str) -> str:
    r"""A text without the characters that a format cannot hold; those that are a kind of space become one.

    >>> fitting("a\x0cb\x01c", "tmx")
    'a bc'
    """
    if form in ("tmx", "xliff", "xliff2"):
        return _NOT_IN_XML.sub(lambda found: " " if found[0].isspace() else "", text)
    return text.replace("\0", "") if form in ("po", "csv") else text


def write_jsonl(pairs: Pairs, file: BinaryIO, languages: Languages) -> int:
    """An object a line; its keys are source and target, which need no telling."""
    count = 0
    for source, target in pairs:
        count += 1
        line = json.dumps({"source": source, "target": target}, ensure_ascii=False)
        file.write(f"{line}\n".encode())
    return count


def write_csv(pairs: Pairs, file: BinaryIO, languages: Languages) -> int:
    """With a header of the two languages."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    count = 0
    try:
        rows = csv.writer(text)
        rows.writerow(languages)
        for pair in pairs:
            count += 1
            rows.writerow(pair)
    finally:
        text.detach()  # or it would close the file with itself
    return count


def write_po(pairs: Pairs, file: BinaryIO, languages: Languages) -> int:
    """A catalogue; what is said twice gets a context, since gettext wants every message once."""
    import polib

    catalogue = polib.POFile(wrapwidth=0)
    catalogue.metadata = {
        "MIME-Version": "1.0",
        "Content-Type": "text/plain; charset=UTF-8",
        "Content-Transfer-Encoding": "8bit",
        "Language": languages[1].replace("-", "_"),
        "X-Source-Language": languages[0],
    }
    seen = Counter[str]()
    for source, target in pairs:
        seen[source] += 1
        context = None if seen[source] == 1 else f"number {seen[source]}"
        ended = with_edges_of(source, target)
        catalogue.append(polib.POEntry(msgid=source, msgstr=ended, msgctxt=context))
    file.write(f"{catalogue}\n".encode())
    return len(catalogue)


def with_edges_of(source: str, target: str) -> str:
    """The target, which begins and ends with a new line where the source does, as msgfmt wants it.

    >>> with_edges_of("Done\\n", "\\nFertig"), with_edges_of("\\nDone", "\\n\\nFertig")
    ('Fertig\\n', '\\n\\nFertig')
    """
    if source.startswith("\n") != target.startswith("\n"):
        target = f"\n{target}" if source.startswith("\n") else target.lstrip("\n")
    if source.endswith("\n") != target.endswith("\n"):
        target = f"{target}\n" if source.endswith("\n") else target.rstrip("\n")
    return target


def write_tmx(pairs: Pairs, file: BinaryIO, languages: Languages) -> int:
    """TMX 1.4, a unit a pair."""
    from lxml import etree

    import heedful

    header = {
        "creationtool": "heedful",
        "creationtoolversion": heedful.__version__,
        "segtype": "sentence",
        "o-tmf": "heedful",
        "adminlang": "en",
        "srclang": languages[0],
        "datatype": "plaintext",
    }
    lang = "{http://www.w3.org/XML/1998/namespace}lang"
    count = 0
    with etree.xmlfile(file, encoding="utf-8") as xml:
        xml.write_declaration()
        with xml.element("tmx", version="1.4"):
            xml.write(etree.Element("header", header))
            with xml.element("body"):
                for pair in pairs:
                    count += 1
                    unit = etree.Element("tu")
                    for language, text in zip(languages, pair, strict=True):
                        variant = etree.SubElement(unit, "tuv", {lang: language})
                        etree.SubElement(variant, "seg").text = text
                    _write_line(xml, unit)
    return count


def write_xliff(pairs: Pairs, file: BinaryIO, languages: Languages) -> int:
    """XLIFF 1.2, a unit a pair."""
    from lxml import etree

    told = {
        "original": "pairs",
        "datatype": "plaintext",
        "source-language": languages[0],
        "target-language": languages[1],
    }
    count = 0
    with etree.xmlfile(file, encoding="utf-8") as xml:
        xml.write_declaration()
        with (
            xml.element(f"{{{_XLIFF_1}}}xliff", version="1.2", nsmap={None: _XLIFF_1}),
            xml.element(f"{{{_XLIFF_1}}}file", told),
            xml.element(f"{{{_XLIFF_1}}}body"),
        ):
            for count, pair in enumerate(pairs, start=1):
                unit = etree.Element(f"{{{_XLIFF_1}}}trans-unit", id=str(count))
                _add_sides(unit, pair)
                _write_line(xml, unit)
    return count


def write_xliff2(pairs: Pairs, file: BinaryIO, languages: Languages) -> int:
    """XLIFF 2.0, a unit of one segment a pair."""
    from lxml import etree

    told = {"version": "2.0", "srcLang": languages[0], "trgLang": languages[1]}
    count = 0
    with etree.xmlfile(file, encoding="utf-8") as xml:
        xml.write_declaration()
        with (
            xml.element(f"{{{_XLIFF_2}}}xliff", told, nsmap={None: _XLIFF_2}),
            xml.element(f"{{{_XLIFF_2}}}file", id="pairs"),
        ):
            for count, pair in enumerate(pairs, start=1):
                unit = etree.Element(f"{{{_XLIFF_2}}}unit", id=str(count))
                _add_sides(etree.SubElement(unit, f"{{{_XLIFF_2}}}segment"), pair)
                _write_line(xml, unit)
    return count


def _add_sides(parent: "Element", pair: tuple[str, str]) -> None:
    from lxml import etree

    space = parent.tag.partition("}")[0]  # the namespace, with its opening brace
    for name, text in zip(("source", "target"), pair, strict=True):
        etree.SubElement(parent, f"{space}}}{name}").text = text


def _write_line(xml: "Writer", unit: "Element") -> None:
    xml.write(unit)
    xml.write("\n")


WRITERS: dict[str, Callable[[Pairs, BinaryIO, Languages], int]] = {
    "jsonl": write_jsonl,
    "csv": write_csv,
    "po": write_po,
    "tmx": write_tmx,
    "xliff": write_xliff,
    "xliff2": write_xliff2,
}
"""What writes a format; TSV is written by ``write_tsv``."""
