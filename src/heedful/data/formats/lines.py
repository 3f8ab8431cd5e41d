"""Lines of text files (plain or gzipped UTF-8, in constant memory), and the formats of one pair per line.

Only a line feed (with an optional carriage return before it) ends a line: U+2028, form feeds and the like are
part of sentences. Each line is decoded separately, so one invalid line does not affect the others.
"""

import codecs
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

from heedful.data.formats.base import InputFile, PairRecord, ReadOptions, detect_encoding, read_root_element
from heedful.errors import HeedfulError
from heedful.files import decompress_gzip, wrap_read_errors
from heedful.tokenization.languages import LanguagePair

STANDARD_INPUT = Path("-")

MAX_LINE_BYTES = 1 << 22  # a longer line is reported as an error and never held in memory
BLOCK_BYTES = 1 << 20


class TextLine(NamedTuple):
    """One line without its line ending; if ``error`` is set, the text is empty."""

    number: int
    text: str
    error: str = ""


def display_name(path: Path) -> str:
    """A file's name in messages.

    >>> display_name(Path("corpus/train.tsv")), display_name(Path("-"))
    ('train.tsv', 'standard input')
    """
    return "standard input" if path == STANDARD_INPUT else path.name


def read_lines(path: Path) -> Iterator[TextLine]:
    """Every line of a file, numbered from 1, without the byte-order mark."""
    with open_binary(path) as stream:
        yield from iter_lines(stream, str(path))


@contextmanager
def open_binary(path: Path) -> Iterator[io.BufferedIOBase]:
    """The bytes of a file or of standard input, decompressed if they start with gzip's magic number."""
    with wrap_read_errors(path), ExitStack() as stack:
        if path != STANDARD_INPUT:
            file = stack.enter_context(path.open("rb"))
        elif sys.stdin is None:
            raise HeedfulError("standard input is closed", hint="name a file instead of -")
        elif isinstance(sys.stdin.buffer, io.BufferedReader):
            file = sys.stdin.buffer
        else:  # a fake, in tests
            file = io.BufferedReader(cast(io.RawIOBase, sys.stdin.buffer))
            stack.callback(file.detach)  # closing the reader would close standard input
        yield stack.enter_context(decompress_gzip(file))


def iter_lines(stream: io.BufferedIOBase, name: str, first_line: int = 1) -> Iterator[TextLine]:
    """Every line of an open file; ``first_line`` is the number of the first one."""
    for number, line in enumerate(iter(lambda: stream.readline(MAX_LINE_BYTES), b""), start=first_line):
        if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            while (rest := stream.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            yield TextLine(number, "", error=f"line over {MAX_LINE_BYTES:,} bytes")
            continue
        if number == 1:
            if detect_encoding(line).startswith("utf-16") and b"\0" in line:  # "Unicode text" of spreadsheets
                raise HeedfulError(
                    f"{name} is UTF-16, not UTF-8",
                    hint=f"save it as UTF-8 text, or run: iconv -f UTF-16 -t UTF-8 {name} > {name}.utf8.tsv",
                )
            line = line.removeprefix(codecs.BOM_UTF8)
        try:
            yield TextLine(number, (line[:-1].removesuffix(b"\r") if line.endswith(b"\n") else line).decode())
        except UnicodeDecodeError:
            yield TextLine(number, "", error="invalid UTF-8")


class LineOffset(NamedTuple):
    """A position between two lines: bytes and lines before it."""

    byte: int
    lines: int


def find_line_offsets(stream: io.BufferedIOBase, line_counts: Iterable[int]) -> Iterator[LineOffset]:
    """The positions after these (increasing) numbers of lines, as far as they exist, then the end.

    >>> list(find_line_offsets(io.BytesIO(b"a\\nbc\\nd"), [2, 5]))
    [LineOffset(byte=5, lines=2), LineOffset(byte=6, lines=3)]
    """
    remaining_counts = iter(line_counts)
    next_count = next(remaining_counts, None)
    position = lines = 0
    last_byte = b"\n"
    while block := stream.read(BLOCK_BYTES):
        last_byte, newlines = block[-1:], block.count(b"\n")
        while next_count is not None and next_count <= lines + newlines:
            rest = block.split(b"\n", next_count - lines)[-1]
            newlines -= next_count - lines
            position, lines = position + len(block) - len(rest), next_count
            yield LineOffset(position, lines)
            block, next_count = rest, next(remaining_counts, None)
        position, lines = position + len(block), lines + newlines
    yield LineOffset(position, lines + (last_byte != b"\n"))


def count_lines(path: Path) -> int:
    """Lines in a file; a last line without a line feed counts."""
    with open_binary(path) as stream:
        [end] = find_line_offsets(stream, ())
    return end.lines


DEFAULT_FIELDS: LanguagePair = ("source", "target")
HEADS_FIELD = "heads"  # JSON key of the dependency heads of the source words, a list of numbers

_LineParser = Callable[[str, LanguagePair], tuple[str, str, str]]
"""Parses a line into source, target and heads; JSON keys are field names or language codes."""


class _LineError(ValueError):
    """Why a line holds no pair."""


def read_tsv(input_file: InputFile, options: ReadOptions) -> Iterator[PairRecord]:
    """``source<TAB>target<TAB>heads``; further columns (such as attribution) are ignored."""
    return read_line_pairs(input_file, options, _parse_tsv_line)


def read_jsonl(input_file: InputFile, options: ReadOptions) -> Iterator[PairRecord]:
    """One JSON object per line.

    Its keys are "source" and "target" or the languages, also in ``{"translation": {"en": ..., "de": ...}}``.
    """
    return read_line_pairs(input_file, options, _parse_json_line)


def read_line_pairs(
    input_file: InputFile, options: ReadOptions, parse: _LineParser | None = None, *, strict: bool = True
) -> Iterator[PairRecord]:
    """One pair per line; without ``parse`` TSV or JSONL, as the first nonempty line shows.

    ``strict`` raises an error if it is neither.
    """
    fields = options.languages or DEFAULT_FIELDS
    for line in iter_lines(input_file.stream, input_file.name, input_file.first_line):
        if parse is None and line.text.strip():
            parse = _parse_json_line if line.text.lstrip().startswith("{") else _parse_tsv_line
            if parse is _parse_tsv_line and "\t" not in line.text and strict:
                raise _no_pairs_error(input_file, line.text)
        try:
            if line.error:
                raise _LineError(line.error)
            # A blank line is a pair of empty sentences, which cleaning drops and counts.
            source, target, heads = parse(line.text, fields) if parse and line.text.strip() else ("", "", "")
        except _LineError as error:
            yield input_file.error_record(line.number, str(error))
        else:
            yield PairRecord(input_file.display_name, line.number, source, target, heads=heads)


def _no_pairs_error(input_file: InputFile, first_line: str) -> HeedfulError:
    if first_line.lstrip().startswith("<"):
        root = f" (<{name}>)" if (name := read_root_element(first_line.encode()).name) else ""
        return HeedfulError(
            f"{input_file.name} holds no pairs: it is XML, but neither TMX nor XLIFF{root}",
            hint="export it as TMX or XLIFF",
        )
    return HeedfulError(
        f"{input_file.name} holds no pairs: its first line has no tab and is not a JSON object",
        hint="for parallel files, name the file of the other language too",
    )


def _parse_tsv_line(text: str, fields: LanguagePair) -> tuple[str, str, str]:
    """Source, target and heads of a TSV line; ``fields`` does not matter."""
    source, tab, rest = text.partition("\t")
    if not tab:
        raise _LineError("no tab")
    target, _, extra_columns = rest.partition("\t")
    return source, target, extra_columns.partition("\t")[0]


def _parse_json_line(text: str, fields: LanguagePair) -> tuple[str, str, str]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):  # RecursionError: nested thousands deep
        raise _LineError("not JSON") from None
    if not isinstance(record, dict):
        raise _LineError("not a JSON object")
    for candidate, (source, target) in (
        (record, fields),
        (record.get("translation"), fields),
        (record, DEFAULT_FIELDS),
    ):
        if isinstance(candidate, dict) and source in candidate and target in candidate:
            heads = record.get(HEADS_FIELD, [])
            # Cleaning reports what is not a list of numbers.
            heads_text = " ".join(map(str, heads)) if isinstance(heads, list) else str(heads)
            return _get_sentence(candidate, source), _get_sentence(candidate, target), heads_text
    translation = record.get("translation", record)
    missing = next((name for name in fields if not isinstance(translation, dict) or name not in translation), fields[0])
    raise _LineError(f"no field {missing!r}")


def _get_sentence(record: dict[str, Any], field: str) -> str:
    value = record[field]
    if not isinstance(value, str):
        raise _LineError(f"field {field!r} is not text")
    try:
        value.encode()  # JSON can encode half a surrogate pair, which UTF-8 cannot
    except UnicodeEncodeError:
        raise _LineError("invalid Unicode") from None
    return value
