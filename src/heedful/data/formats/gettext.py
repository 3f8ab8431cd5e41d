"""gettext catalogs (PO and MO): the messages of a program and their translations.

A plural entry yields two pairs: the singular with the form for one, the plural with the last form.
"""

import gettext
import os
import re
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from heedful.data.formats.base import (
    MO_MAGIC,
    InputFile,
    PairRecord,
    ReadOptions,
    detect_encoding,
    unknown_encoding_error,
)
from heedful.data.formats.lines import open_binary
from heedful.errors import HeedfulError
from heedful.tokenization.languages import LanguagePair, base_language, is_reverse_direction, normalize_language

if TYPE_CHECKING:
    from polib import MOEntry, MOFile, POEntry, POFile

MAX_CATALOG_BYTES = 1 << 28  # catalogs are read into memory, so larger ones are rejected

_PO_LINE = re.compile(
    r'\s*(?:#.*|(?:(?:msgctxt|msgid|msgid_plural|msgstr(?:\[\d+\])?)\s*)?"(?:[^"\\]|\\.)*"\s*)?', re.DOTALL
)


def read_po(input_file: InputFile, options: ReadOptions) -> Iterator[PairRecord]:
    """The translated entries of a catalog; fuzzy, obsolete and empty ones are error records."""
    text = _decode_catalog(input_file, options)
    problem = _find_broken_line(text)
    if not problem and not (options.skip_malformed and "\ufffd" in text):
        try:
            yield from _catalog_records(input_file, _parse_po(text), options)
            return
        except OSError as error:  # polib's syntax error quotes the full text before its line and message
            match = re.search(r"\(line (\d+)\)(?:: ([^\n]*))?\s*\Z", str(error))
            problem = (int(match[1]), match[2] or "unexpected line") if match else (0, "not a PO file")
    if problem and not options.skip_malformed:
        raise input_file.format_error(*problem)
    yield from _read_entries_separately(input_file, text, options)


def po_languages(input_file: InputFile, options: ReadOptions) -> LanguagePair | None:
    """The languages of the header; the source is English by default."""
    fields = re.findall(
        r'^"(Language|X-Source-Language):\s*([\w@.-]+)', _decode_catalog(input_file, options), re.MULTILINE
    )
    return _metadata_languages(dict(reversed(fields)))


def read_mo(input_file: InputFile, options: ReadOptions) -> Iterator[PairRecord]:
    """The entries of a compiled catalog, numbered in place of lines."""
    try:
        catalog = parse_mo(input_file.stream.read(MAX_CATALOG_BYTES))
    except ValueError as error:
        if not options.skip_malformed:
            raise input_file.format_error(0, str(error)) from None
        yield input_file.error_record(1, f"unreadable file: {error}")
        return
    yield from _catalog_records(input_file, catalog, options)


def mo_languages(input_file: InputFile, options: ReadOptions) -> LanguagePair | None:
    """The languages of the header, as in PO."""
    try:
        return _metadata_languages(parse_mo(input_file.stream.read(MAX_CATALOG_BYTES)).metadata)
    except ValueError as error:
        raise input_file.format_error(0, str(error)) from None


def parse_mo(data: bytes) -> "MOFile":
    """A compiled catalog; ValueError if it is corrupt."""
    import polib

    endianness = "<" if data[:4] == MO_MAGIC[0] else ">"
    try:
        count, *tables = struct.unpack_from(f"{endianness}III", data, 8)
        # Overlapping entries would expand a small file into a huge catalog.
        if 8 * count > len(data) or len(data) < sum(
            sum(struct.unpack_from(f"{endianness}{2 * count}I", data, table)[::2]) for table in tables
        ):
            raise ValueError("corrupt MO file: invalid table of entries")
    except struct.error:
        raise ValueError("corrupt MO file: truncated") from None
    match = re.search(rb"charset=([\w.-]+)", data)
    try:
        encoding = match[1].decode() if match else "utf-8"
        return polib.mofile(cast(str, data), encoding=encoding)  # accepts bytes too
    except (OSError, struct.error, UnicodeDecodeError, LookupError, IndexError) as error:
        raise ValueError(f"corrupt MO file: {error}") from None


def parse_plural_rule(metadata: Mapping[str, str]) -> Callable[[int], int]:
    """Maps a number to the index of its plural form, by the formula in the header.

    >>> parse_plural_rule({"Plural-Forms": "nplurals=6; plural=n==0 ? 0 : n==1 ? 1 : 2;"})(1)
    1
    """
    match = re.search(r"plural\s*=\s*([^;]+)", metadata.get("Plural-Forms", "").partition(";")[2])
    try:
        return gettext.c2py(match[1]) if match else lambda number: 0
    except (ValueError, OverflowError, RecursionError, SyntaxError):  # the last: "n >!1"
        return lambda number: 0


def entry_pairs(entry: "POEntry | MOEntry", plural_rule: Callable[[int], int]) -> list[tuple[str, str]]:
    """One pair, or two of a plural entry; the target is empty if it is not translated."""
    if not entry.msgid_plural:
        return [(entry.msgid, entry.msgstr)] if entry.msgid else []
    translations = {int(number): text for number, text in entry.msgstr_plural.items()}
    last_form = max(translations, default=0)
    try:
        singular_form = plural_rule(1)
        # In some languages the last form is the singular.
        plural_form = last_form if last_form != singular_form else plural_rule(5)
    except (ValueError, ZeroDivisionError):
        singular_form, plural_form = 0, last_form
    return [
        (entry.msgid, translations.get(singular_form, translations.get(0, ""))),
        (entry.msgid_plural, translations.get(plural_form, translations.get(last_form, ""))),
    ]


def _decode_catalog(input_file: InputFile, options: ReadOptions) -> str:
    """The text of a catalog, decoded by its byte-order mark, header or ``reading.encoding``."""
    data = input_file.stream.read(MAX_CATALOG_BYTES + 1)
    if len(data) > MAX_CATALOG_BYTES:
        raise HeedfulError(
            f"{input_file.name} is larger than {MAX_CATALOG_BYTES >> 20} MB", hint="split it into smaller files"
        )
    if (utf16 := detect_encoding(data[:4])).startswith("utf-16"):
        return data.decode(utf16, errors="replace").removeprefix("\ufeff")
    match = re.search(rb"charset=([\w.-]+)", data)
    encoding = match[1].decode() if match and match[1] != b"CHARSET" else options.config.encoding or "utf-8"
    try:
        return data.decode(encoding, "replace" if options.skip_malformed else "strict").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise input_file.format_error(line, f"invalid {encoding}") from None
    except (LookupError, UnicodeError):  # unknown, or not a text codec (base64, idna)
        raise unknown_encoding_error(encoding, input_file.name) from None


class _LineFeedText(str):
    """Text that polib splits at line feeds only: U+2028 and the like are part of sentences."""

    __slots__ = ()

    def splitlines(self, keepends: bool = False) -> list[str]:
        return self.split("\n")


def _parse_po(text: str) -> "POFile":
    import polib

    return polib.pofile(_LineFeedText(text + "\n"), encoding="utf-8")


def _find_broken_line(text: str) -> tuple[int, str] | None:
    """The first line that is neither comment nor quoted text: polib would truncate it silently."""
    for number, line in enumerate(text.split("\n"), start=1):
        if not _PO_LINE.fullmatch(line):
            return number, "unbalanced quotes" if '"' in line else "not a valid PO line"
    return None


def _read_entries_separately(input_file: InputFile, text: str, options: ReadOptions) -> Iterator[PairRecord]:
    lines, starts, in_translation = text.split("\n"), [0], False
    for number, line in enumerate(lines):
        content = line.removeprefix("#~").strip()
        # An entry starts at a blank line, a comment or a source text after a translation.
        if in_translation and (not content or re.match(r"#|msgctxt\b|msgid\b", content)):
            starts.append(number)
            in_translation = False
        in_translation = in_translation or content.startswith("msgstr")
    for start, end in pairwise([*starts, len(lines)]):
        entry_text = "\n".join(lines[start:end])
        if "\ufffd" in entry_text:
            yield input_file.error_record(start + 1, "invalid in the file's encoding")
        elif _find_broken_line(entry_text):
            yield input_file.error_record(start + 1, "malformed entry")
        elif entry_text.strip():
            try:
                yield from _catalog_records(input_file, _parse_po(entry_text), options, start)
            except OSError:
                yield input_file.error_record(start + 1, "malformed entry")


def _catalog_records(
    input_file: InputFile, catalog: "POFile | MOFile", options: ReadOptions, line_offset: int = 0
) -> Iterator[PairRecord]:
    source_language, target_language = (
        catalog.metadata.get(name, "").strip() for name in ("X-Source-Language", "Language")
    )
    reverse = is_reverse_direction(options.languages, source_language, target_language, input_file.name)
    plural_rule = parse_plural_rule(catalog.metadata)
    for number, entry in enumerate(cast("list[POEntry]", catalog), start=1):  # MO entries have no line numbers
        line = line_offset + (getattr(entry, "linenum", number) or 1)
        if entry.obsolete:
            yield input_file.error_record(line, "obsolete")
        elif "fuzzy" in entry.flags and not options.config.include_fuzzy:
            yield input_file.error_record(line, "fuzzy")
        else:
            for source, target in entry_pairs(entry, plural_rule):
                if target.strip():
                    yield input_file.pair_record(line, source, target, reverse=reverse)
                else:
                    yield input_file.error_record(line, "not translated")


def _metadata_languages(metadata: Mapping[str, str]) -> LanguagePair | None:
    target = metadata.get("Language", "").strip()
    return (normalize_language(metadata.get("X-Source-Language", "en")), normalize_language(target)) if target else None


CatalogTexts = dict[tuple[str, str, str], str]
"""(context, message, plural message or "" for the singular) -> translation."""


@dataclass(frozen=True, slots=True)
class CatalogSelection:
    """Two languages, and the packages to include or exclude, by name or glob pattern."""

    source: str
    target: str
    packages: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()

    def includes(self, package: str) -> bool:
        is_selected = not self.packages or any(fnmatchcase(package, pattern) for pattern in self.packages)
        return is_selected and not any(fnmatchcase(package, pattern) for pattern in self.excluded)


class PackageCatalog(NamedTuple):
    """The pairs of one package, or the error."""

    package: str
    path: Path
    pairs: list[tuple[str, str]]
    error: str = ""


def system_locale_folders() -> list[Path]:
    """Existing folders of installed catalogs: FOLDER/LANGUAGE/LC_MESSAGES/PACKAGE.mo."""
    data_folders = os.environ.get("XDG_DATA_DIRS", "/usr/local/share:/usr/share:/opt/homebrew/share").split(":")
    folders = [
        Path(data_folder, "locale") for data_folder in ("/usr/local/share", "/usr/share", *data_folders) if data_folder
    ]
    folders += [Path("/usr/share/locale-langpack"), Path(sys.base_prefix, "share", "locale")]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


def read_package_catalogs(selection: CatalogSelection, folders: Sequence[Path]) -> Iterator[PackageCatalog]:
    """The pairs of every package that has both languages; the messages themselves are English."""
    for folder in folders:
        source_paths, target_paths = (
            _find_package_catalogs(folder, language) for language in (selection.source, selection.target)
        )
        is_english = [base_language(language) == "en" for language in (selection.source, selection.target)]
        packages = sorted(source_paths.keys() if is_english[1] else target_paths.keys())
        for package in packages:
            source, target = source_paths.get(package), target_paths.get(package)
            if selection.includes(package) and (is_english[0] or source) and (is_english[1] or target):
                yield _join_catalogs(package, None if is_english[0] else source, None if is_english[1] else target)


def _find_package_catalogs(folder: Path, language: str) -> dict[str, Path]:
    """The catalog of every package in a language, or in its nearest variant.

    German is found in de, de_DE, then de_AT and the like, but not in de@hebrew, which is another script.
    Brazilian Portuguese is found in pt_BR only.
    """
    catalog_paths: dict[str, Path] = {}
    expected = normalize_language(language)
    ranked_folders: list[tuple[int, str]] = []
    for name in (path.parent.name for path in folder.glob("*/LC_MESSAGES") if path.is_dir()):
        code = normalize_language(name)
        if code == expected:
            ranked_folders.append((0 if "." not in name else 1, name))
        elif "-" not in expected and base_language(code) == expected and "@" not in name:
            ranked_folders.append((2 if code == f"{expected}-{expected.upper()}" else 3, name))
    for _, name in sorted(ranked_folders):
        for path in sorted((folder / name / "LC_MESSAGES").glob("*.mo")):
            catalog_paths.setdefault(path.stem, path)
    return catalog_paths


def _join_catalogs(package: str, source: Path | None, target: Path | None) -> PackageCatalog:
    """Two catalogs joined by message; None stands for the messages themselves."""
    path = target or source
    assert path is not None
    try:
        source_texts, target_texts = (_read_catalog_texts(side) if side else None for side in (source, target))
    except ValueError as error:
        return PackageCatalog(package, path, [], str(error))
    messages = {key: key[2] or key[1] for key in source_texts or target_texts or {}}
    source_texts = messages if source_texts is None else source_texts
    target_texts = messages if target_texts is None else target_texts
    pairs = [(source_texts[key], text) for key, text in target_texts.items() if source_texts.get(key) and text]
    return PackageCatalog(package, path, pairs)


def _read_catalog_texts(path: Path) -> CatalogTexts:
    with open_binary(path) as stream:
        catalog = parse_mo(stream.read(MAX_CATALOG_BYTES))
    plural_rule = parse_plural_rule(catalog.metadata)
    texts: CatalogTexts = {}
    for entry in catalog:
        for number, (_, text) in enumerate(entry_pairs(entry, plural_rule)):
            texts[entry.msgctxt or "", entry.msgid, entry.msgid_plural if number else ""] = text
    return texts
