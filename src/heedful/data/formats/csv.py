"""CSV with a header, as spreadsheets write it: any delimiter of ``,;|`` or tab, quotes, any line endings."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from heedful.data.formats.base import (
    InputFile,
    PairRecord,
    ReadOptions,
    detect_encoding,
    read_head,
    unknown_encoding_error,
)
from heedful.data.formats.lines import MAX_LINE_BYTES
from heedful.errors import HeedfulError
from heedful.tokenization.languages import LanguagePair, find_matching_languages, language_name, normalize_language

if TYPE_CHECKING:
    from _csv import Reader as Rows

DELIMITERS = ",;\t|"
COLUMN_NAMES = (("source", "target"), ("src", "tgt"), ("src", "trg"))
"""Column names that are recognized without language codes."""

MAX_FIELD_CHARACTERS = 1 << 17


class _Columns(NamedTuple):
    source: int
    target: int
    note: str = ""


def read_csv(input_file: InputFile, options: ReadOptions) -> Iterator[PairRecord]:
    """The two columns that the header names, row by row."""
    rows = _open_rows(input_file, options, strict=True)
    header = _read_row(input_file, rows, options)
    if not isinstance(header, list):
        return
    columns = _find_columns(input_file, header, options.languages)
    note = columns.note
    while (row := _read_row(input_file, rows, options)) is not None:
        if isinstance(row, PairRecord):
            yield row
        elif len(row) > max(columns.source, columns.target):
            yield input_file.pair_record(rows.line_num, row[columns.source], row[columns.target], note=note)
            note = ""
        elif any(row):
            yield input_file.error_record(rows.line_num, "too few columns")


def csv_languages(input_file: InputFile, options: ReadOptions) -> LanguagePair | None:
    """The languages of a two-column header of language codes or names."""
    header = _read_row(input_file, _open_rows(input_file, options), options)
    if not isinstance(header, list) or len(header) != 2 or not _are_languages(header):
        return None
    return normalize_language(header[0]), normalize_language(header[1])


def is_csv_header(first_line: str) -> bool:
    """Whether a line is a header that names source and target.

    >>> is_csv_header("id;source;target;note"), is_csv_header("a sentence, of words")
    (True, False)
    """
    return any(_columns_by_name(_split_cells(first_line, delimiter), None) for delimiter in DELIMITERS)


def _decode_lines(input_file: InputFile, options: ReadOptions) -> Iterator[str]:
    """Lines with their line endings, decoded one by one so that an error can name its line."""
    head, input_file = read_head(input_file, 4)
    if (utf16 := detect_encoding(head)).startswith("utf-16"):
        text = io.TextIOWrapper(input_file.stream, utf16, errors="replace", newline="")  # type: ignore[type-var]
        yield next(text, "").removeprefix("\ufeff")
        yield from text
        text.detach()
        return
    encoding = options.config.encoding or "utf-8"
    for number, raw in enumerate(iter(lambda: input_file.stream.readline(MAX_LINE_BYTES), b""), start=1):
        try:
            line = raw.decode(encoding, "replace" if options.skip_malformed else "strict")
            yield line.removeprefix("\ufeff") if number == 1 else line
        except UnicodeDecodeError:
            raise HeedfulError(
                f"{input_file.location(number)}: invalid {encoding}",
                hint="save it as UTF-8, or set its encoding, such as --set reading.encoding=cp1252",
            ) from None
        except (LookupError, UnicodeError):  # unknown, or not a text codec (base64, idna)
            raise unknown_encoding_error(encoding, input_file.name) from None


def _open_rows(input_file: InputFile, options: ReadOptions, *, strict: bool = False) -> "Rows":
    """The rows from the header on, which shows the delimiter."""
    lines = _decode_lines(input_file, options)
    first_line = next(lines, "")
    if match := re.fullmatch(r"sep=(.)\s*", first_line):  # written by Excel
        return csv.reader(lines, delimiter=match[1], strict=strict)

    def score(delimiter: str) -> tuple[bool, int]:
        header = _split_cells(first_line, delimiter)
        return _columns_by_name(header, options.languages) is not None, len(header)

    return csv.reader(chain([first_line], lines), delimiter=max(DELIMITERS, key=score), strict=strict)


def _split_cells(line: str, delimiter: str) -> list[str]:
    """The cells of a line; none if it is malformed, which the reader will report."""
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def _find_columns(input_file: InputFile, header: Sequence[str], languages: LanguagePair | None) -> _Columns:
    columns = _columns_by_name(header, languages)
    if columns is not None:
        return columns
    if len(header) == 2 and _are_languages(header):
        return _Columns(0, 1)
    if len(header) == 2:
        return _Columns(0, 1, f"the first line is read as a header: {' and '.join(map(repr, header))}")
    names = ", ".join(repr(name) for name in header[:20]) or "none"
    raise HeedfulError(
        f"{input_file.name}: cannot tell which columns are source and target; the first line has {names}",
        hint="name the columns source and target in a header line, or use their languages: --languages en-de",
    )


def _are_languages(header: Sequence[str]) -> bool:
    return all(language_name(code) != code for code in map(normalize_language, header))


def _columns_by_name(header: Sequence[str], languages: LanguagePair | None) -> _Columns | None:
    """The columns named by the languages, if known, or source and target."""
    names = [name.strip() for name in header]
    lowercase_names = [name.lower() for name in names]
    indices = []
    for code in languages or ():
        indices_by_name = [index for index, name in enumerate(lowercase_names) if name == language_name(code).lower()]
        indices += (find_matching_languages(code, names) + indices_by_name)[:1]
    if len(set(indices)) == 2:
        return _Columns(indices[0], indices[1])
    for source, target in COLUMN_NAMES:
        if source in lowercase_names and target in lowercase_names:
            return _Columns(lowercase_names.index(source), lowercase_names.index(target))
    return None


def _read_row(input_file: InputFile, rows: "Rows", options: ReadOptions) -> list[str] | PairRecord | None:
    """The next row, or its error; None at the end."""
    try:
        row = next(rows, None)
    except csv.Error as error:
        if options.skip_malformed:
            return input_file.error_record(rows.line_num, "malformed row")
        problem = str(error)
        if "field limit" in problem:
            problem = f"a field has over {MAX_FIELD_CHARACTERS:,} characters: is a quote not closed?"
        raise input_file.format_error(rows.line_num, problem) from None
    if options.skip_malformed and row is not None and any("\ufffd" in field for field in row):
        return input_file.error_record(rows.line_num, "invalid in the file's encoding")
    return row
