"""CSV with a header, as spreadsheets write it: commas, semicolons, tabs or bars, quotes, any line ends."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from heedful.corpora.language_codes import best_matches, canonical
from heedful.corpora.lines import LONGEST_LINE
from heedful.corpora.reading import Input, Languages, Reading, Record, head_of
from heedful.errors import HeedfulError
from heedful.text.languages import language_name

if TYPE_CHECKING:
    from _csv import Reader as Rows

DELIMITERS = ",;\t|"
NAMES = (("source", "target"), ("src", "tgt"), ("src", "trg"))
"""Headers that need no telling."""
LONGEST_FIELD = 1 << 17


class _Columns(NamedTuple):
    source: int
    target: int
    note: str = ""


def read_csv(given: Input, reading: Reading) -> Iterator[Record]:
    """The two columns that the header names, row by row."""
    delimiter, lines = _delimiter(_lines(given, reading), reading)
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    header = _row(given, rows, reading)
    if not isinstance(header, list):
        return
    columns = _columns(given, header, reading.languages)
    note = columns.note
    while (row := _row(given, rows, reading)) is not None:
        if isinstance(row, Record):
            yield row
        elif len(row) > max(columns.source, columns.target):
            yield Record(given.title, rows.line_num, row[columns.source], row[columns.target], note=note)
            note = ""
        elif any(row):
            yield given.dropped(rows.line_num, "too few columns")


def csv_languages(given: Input, reading: Reading) -> Languages | None:
    """Those of a header whose two columns have the codes of languages for names."""
    delimiter, lines = _delimiter(_lines(given, reading), reading)
    header = _row(given, csv.reader(lines, delimiter=delimiter), reading)
    if not isinstance(header, list) or len(header) != 2 or not _are_languages(header):
        return None
    return canonical(header[0]), canonical(header[1])


def looks_like_csv(first_line: str) -> bool:
    """Whether a line is a header that names source and target.

    >>> looks_like_csv("id;source;target;note"), looks_like_csv("a sentence, of words")
    (True, False)
    """
    return any(_named(_cells(first_line, each), None) for each in DELIMITERS)


def _lines(given: Input, reading: Reading) -> Iterator[str]:
    """Decoded line by line, so that a wrong one can be named; with their line ends, as csv wants them."""
    head, given = head_of(given, 4)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        text = io.TextIOWrapper(given.stream, "utf-16", errors="replace", newline="")  # type: ignore[type-var]
        yield from text
        text.detach()
        return
    encoding = reading.config.encoding or "utf-8"
    number = 0
    while raw := given.stream.readline(LONGEST_LINE):
        number += 1
        try:
            line = raw.decode(encoding, "replace" if reading.skips else "strict")
            yield line.removeprefix("\ufeff") if number == 1 else line
        except UnicodeDecodeError:
            raise HeedfulError(
                f"{given.name}, line {number:,}: this is not {encoding}",
                hint="save it as UTF-8, or say what it is: --set reading.encoding=cp1252",
            ) from None
        except (LookupError, UnicodeError):  # what is no character set (base64, idna) has errors of its own
            raise HeedfulError(
                f"there is no encoding {encoding!r}", hint="it may be utf-8, cp1252, utf-16 and the like"
            ) from None


def _delimiter(lines: Iterator[str], reading: Reading) -> tuple[str, Iterator[str]]:
    """What separates the columns, by the header, and all lines from the header on."""
    first = next(lines, "")
    if found := re.fullmatch(r"sep=(.)\s*", first):  # a line of Excel's
        return found[1], lines

    def fit(delimiter: str) -> tuple[bool, int]:
        header = _cells(first, delimiter)
        return _named(header, reading.languages) is not None, len(header)

    return max(DELIMITERS, key=fit), chain([first], lines)


def _cells(line: str, delimiter: str) -> list[str]:
    """The columns of a line, if it is one: whoever reads the file says what is wrong with it."""
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def _columns(given: Input, header: Sequence[str], languages: Languages | None) -> _Columns:
    found = _named(header, languages)
    if found is not None:
        return found
    if len(header) == 2 and _are_languages(header):
        return _Columns(0, 1)
    if len(header) == 2:
        return _Columns(0, 1, f"the first line is taken for a header: {' and '.join(map(repr, header))}")
    names = ", ".join(repr(name) for name in header[:20]) or "none"
    raise HeedfulError(
        f"{given.name}: which columns are source and target? The first line has {names}",
        hint="the first line must be a header that names them source and target, or by their languages "
        "with --languages en-de",
    )


def _are_languages(header: Sequence[str]) -> bool:
    codes = [canonical(name) for name in header]
    return all(language_name(code) != code for code in codes)


def _named(header: Sequence[str], languages: Languages | None) -> _Columns | None:
    """The columns by their names: the languages, if they are known, or source and target."""
    names = [name.strip() for name in header]
    if languages is not None:
        sides = [_language_column(each, names) for each in languages]
        if None not in sides and sides[0] != sides[1]:
            return _Columns(sides[0] or 0, sides[1] or 0)
    small = [name.lower() for name in names]
    for source, target in NAMES:
        if source in small and target in small:
            return _Columns(small.index(source), small.index(target))
    return None


def _language_column(code: str, names: Sequence[str]) -> int | None:
    places = best_matches(code, names)
    spelled = [number for number, name in enumerate(names) if name.lower() == language_name(code).lower()]
    return next(iter(places + spelled), None)


def _row(given: Input, rows: "Rows", reading: Reading) -> list[str] | Record | None:
    """The next row, or what is wrong with it; None at the end."""
    try:
        row = next(rows, None)
    except csv.Error as error:
        if not reading.skips:
            raise given.malformed(rows.line_num, _explained(error)) from None
        return given.dropped(rows.line_num, "malformed row")
    if reading.skips and row is not None and any("\ufffd" in field for field in row):
        return given.dropped(rows.line_num, "not in the file's encoding")
    return row


def _explained(error: csv.Error) -> str:
    if "field limit" in str(error):
        return f"a field is longer than {LONGEST_FIELD:,} characters: is a quote not closed?"
    return str(error)
