"""Writes pairs in the formats that other programs read; reading a written file gives the same pairs."""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from heedful.data.reader import open_output, write_tsv
from heedful.tokenization.languages import LanguagePair

if TYPE_CHECKING:
    pass

Pairs = Iterable[tuple[str, str]]

_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_XLIFF_1 = "urn:oasis:names:tc:xliff:document:1.2"
_XLIFF_2 = "urn:oasis:names:tc:xliff:document:2.0"
FORMATS_WITH_LANGUAGES = ("tmx", "po", "xliff", "xliff2")  # formats that declare their languages


def write_pairs(pairs: Pairs, path: Path, format_name: str, languages: LanguagePair | None) -> int:
    """Write a file atomically, gzipped if its name ends in ``.gz``, and return the number of pairs."""
    if format_name == "tsv":
        return write_tsv(pairs, path)
    count = 0

    def counted_pairs() -> Iterator[tuple[str, str]]:
        nonlocal count
        for pair in pairs:
            count += 1
            yield pair

    with open_output(path) as file:
        WRITERS[format_name](counted_pairs(), file, languages or ("source", "target"))
    return count


def remove_unsupported_characters(text: str, format_name: str) -> str:
    r"""Text without the characters that a format cannot represent; whitespace among them becomes a space.

    >>> remove_unsupported_characters("a\x0cb\x01c", "tmx")
    'a bc'
    """
    if format_name in ("tmx", "xliff", "xliff2"):
        return _NOT_IN_XML.sub(lambda match: " " if match[0].isspace() else "", text)
    return text.replace("\0", "") if format_name in ("po", "csv") else text


def write_jsonl(pairs: Pairs, file: BinaryIO, languages: LanguagePair) -> None:
    """One object per line, with the keys source and target."""
    for source, target in pairs:
        line = json.dumps({"source": source, "target": target}, ensure_ascii=False)
        file.write(f"{line}\n".encode())


def write_csv(pairs: Pairs, file: BinaryIO, languages: LanguagePair) -> None:
    """CSV with a header of the two languages."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    try:
        csv.writer(text).writerows(chain([languages], pairs))
    finally:
        text.detach()  # closing the wrapper would close the file


def write_po(pairs: Pairs, file: BinaryIO, languages: LanguagePair) -> None:
    """A PO catalog; repeated messages get a context, since gettext requires unique messages."""
    import polib

    catalog = polib.POFile(wrapwidth=0)
    catalog.metadata = {
        "MIME-Version": "1.0",
        "Content-Type": "text/plain; charset=UTF-8",
        "Content-Transfer-Encoding": "8bit",
        "Language": languages[1].replace("-", "_"),
        "X-Source-Language": languages[0],
    }
    source_counts = Counter[str]()
    for source, target in pairs:
        source_counts[source] += 1
        context = None if source_counts[source] == 1 else f"number {source_counts[source]}"
        catalog.append(polib.POEntry(msgid=source, msgstr=match_edge_newlines(source, target), msgctxt=context))
    file.write(f"{catalog}\n".encode())


def match_edge_newlines(source: str, target: str) -> str:
    """The target with newlines at its edges where the source has them, as msgfmt requires.

    >>> match_edge_newlines("Done\\n", "\\nFertig"), match_edge_newlines("\\nDone", "\\n\\nFertig")
    ('Fertig\\n', '\\n\\nFertig')
    """
    if source.startswith("\n") != target.startswith("\n"):
        target = f"\n{target}" if source.startswith("\n") else target.lstrip("\n")
    if source.endswith("\n") != target.endswith("\n"):
        target = f"{target}\n" if source.endswith("\n") else target.rstrip("\n")
    return target


def write_tmx(pairs: Pairs, file: BinaryIO, languages: LanguagePair) -> None:
    """TMX 1.4, one unit per pair."""
    from lxml import etree

    from heedful.version import __version__

    header = {
        "creationtool": "heedful",
        "creationtoolversion": __version__,
        "segtype": "sentence",
        "o-tmf": "heedful",
        "adminlang": "en",
        "srclang": languages[0],
        "datatype": "plaintext",
    }
    lang = "{http://www.w3.org/XML/1998/namespace}lang"
    with etree.xmlfile(file, encoding="utf-8") as xml:
        xml.write_declaration()
        with xml.element("tmx", version="1.4"):
            xml.write(etree.Element("header", header))
            with xml.element("body"):
                for pair in pairs:
                    unit = etree.Element("tu")
                    for language, text in zip(languages, pair, strict=True):
                        variant = etree.SubElement(unit, "tuv", {lang: language})
                        etree.SubElement(variant, "seg").text = text
                    xml.write(unit)
                    xml.write("\n")


def write_xliff(pairs: Pairs, file: BinaryIO, languages: LanguagePair) -> None:
    """XLIFF 1.2, one unit per pair."""
    source, target = languages
    file_attributes = {
        "original": "pairs",
        "datatype": "plaintext",
        "source-language": source,
        "target-language": target,
    }
    elements = [("xliff", {"version": "1.2"}), ("file", file_attributes), ("body", {})]
    _write_xliff_units(pairs, file, _XLIFF_1, elements, ("trans-unit",))


def write_xliff2(pairs: Pairs, file: BinaryIO, languages: LanguagePair) -> None:
    """XLIFF 2.0, one unit with one segment per pair."""
    root_attributes = {"version": "2.0", "srcLang": languages[0], "trgLang": languages[1]}
    elements = [("xliff", root_attributes), ("file", {"id": "pairs"})]
    _write_xliff_units(pairs, file, _XLIFF_2, elements, ("unit", "segment"))


def _write_xliff_units(
    pairs: Pairs,
    file: BinaryIO,
    namespace: str,
    elements: Sequence[tuple[str, dict[str, str]]],
    unit_names: Sequence[str],
) -> None:
    """Units inside the enclosing ``elements``; the last of the nested ``unit_names`` holds the pair."""
    from lxml import etree

    with etree.xmlfile(file, encoding="utf-8") as xml, ExitStack() as stack:
        xml.write_declaration()
        for name, attributes in elements:
            element = xml.element(f"{{{namespace}}}{name}", attributes, nsmap={None: namespace})
            stack.enter_context(element)
        for number, pair in enumerate(pairs, start=1):
            parent = unit = etree.Element(f"{{{namespace}}}{unit_names[0]}", id=str(number))
            for name in unit_names[1:]:
                parent = etree.SubElement(parent, f"{{{namespace}}}{name}")
            for name, text in zip(("source", "target"), pair, strict=True):
                etree.SubElement(parent, f"{{{namespace}}}{name}").text = text
            xml.write(unit)
            xml.write("\n")


WRITERS: dict[str, Callable[[Pairs, BinaryIO, LanguagePair], None]] = {
    "jsonl": write_jsonl,
    "csv": write_csv,
    "po": write_po,
    "tmx": write_tmx,
    "xliff": write_xliff,
    "xliff2": write_xliff2,
}
"""Writers by format; ``write_tsv`` writes TSV."""
