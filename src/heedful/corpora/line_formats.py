"""Formats of one pair a line: TSV and JSONL. A line that holds no pair is a fault, and reading goes on."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from heedful.corpora.lines import Line, lines_in
from heedful.corpora.reading import Input, Languages, Reading, Record, head_of
from heedful.corpora.safe_xml import root_of
from heedful.corpora.tables import looks_like_csv, read_csv
from heedful.errors import HeedfulError

Fields = Languages
"""The two keys of a JSON object: names of fields, or language codes."""
DEFAULT_FIELDS: Fields = ("source", "target")
HEADS = "heads"
"""The key of the heads of the source's words, a list of numbers."""
Parser = Callable[[str, Fields], tuple[str, str, str]]
"""Source, target and heads of a line."""


class _FaultError(ValueError):
    """Why one line holds no pair."""


def read_tsv(given: Input, reading: Reading) -> Iterator[Record]:
    """``source<TAB>target``, and heads if they are asked for; other columns (attribution) are ignored."""
    return (
        _parsed(line, given, _tsv_pair, reading) for line in lines_in(given.stream, given.name, given.first)
    )


def read_jsonl(given: Input, reading: Reading) -> Iterator[Record]:
    """One JSON object a line.

    Its keys may be the languages, also inside ``{"translation": {"en": ..., "de": ...}}``; plain source and
    target are understood anyway.
    """
    return (
        _parsed(line, given, _json_pair, reading) for line in lines_in(given.stream, given.name, given.first)
    )


def read_sniffed(given: Input, reading: Reading, *, strict: bool = True) -> Iterator[Record]:
    """TSV, JSONL or CSV, as the first line with something on it shows; ``strict``: or else an error."""
    parse: Parser | None = None
    head, given = head_of(given)
    if looks_like_csv(head.decode("utf-8-sig", errors="replace").partition("\n")[0]):
        yield from read_csv(given, reading)
        return
    for line in lines_in(given.stream, given.name):
        if parse is None and line.text.strip():
            parse = _json_pair if line.text.lstrip().startswith("{") else _tsv_pair
            if parse is _tsv_pair and "\t" not in line.text and strict:
                raise _no_pairs(given, line.text)
        yield _parsed(line, given, parse or _tsv_pair, reading)


def _no_pairs(given: Input, first: str) -> HeedfulError:
    if first.lstrip().startswith("<"):
        root = f" (<{name}>)" if (name := root_of(first)) else ""
        return HeedfulError(
            f"{given.name} holds no pairs: it is XML, but neither TMX nor XLIFF{root}",
            hint="export it as TMX or XLIFF",
        )
    return HeedfulError(
        f"{given.name} holds no pairs: its first line has no tab and is no JSON object",
        hint="give the file of the other language too",
    )


def _parsed(line: Line, given: Input, parse: Parser, reading: Reading) -> Record:
    if line.fault:
        return given.dropped(line.number, line.fault)
    try:
        # A blank line is a pair of empty sentences: cleaning drops it and counts it.
        fields = reading.languages or DEFAULT_FIELDS
        source, target, heads = parse(line.text, fields) if line.text.strip() else ("", "", "")
    except _FaultError as fault:
        return given.dropped(line.number, str(fault))
    return Record(given.title, line.number, source, target, heads=heads)


def _tsv_pair(text: str, fields: Fields) -> tuple[str, str, str]:
    source, tab, rest = text.partition("\t")
    if not tab:
        raise _FaultError("no tab")
    target, _, further = rest.partition("\t")
    return source, target, further.partition("\t")[0]


def _json_pair(text: str, fields: Fields) -> tuple[str, str, str]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):  # RecursionError: nested thousands deep
        raise _FaultError("not JSON") from None
    if not isinstance(record, dict):
        raise _FaultError("not a JSON object")
    for candidate, (source, target) in (
        (record, fields),
        (record.get("translation"), fields),
        (record, DEFAULT_FIELDS),
    ):
        if isinstance(candidate, dict) and source in candidate and target in candidate:
            heads = record.get(HEADS, [])
            # What is no list of numbers spells none: cleaning says so.
            listed = " ".join(map(str, heads)) if isinstance(heads, list) else str(heads)
            return _sentence(candidate, source), _sentence(candidate, target), listed
    within = record.get("translation", record)
    missing = next((name for name in fields if not isinstance(within, dict) or name not in within), fields[0])
    raise _FaultError(f"no field {missing!r}")


def _sentence(record: dict[str, Any], field: str) -> str:
    value = record[field]
    if not isinstance(value, str):
        raise _FaultError(f"field {field!r} is not text")
    try:
        value.encode()  # JSON can spell half a surrogate pair, which no UTF-8 file can hold
    except UnicodeEncodeError:
        raise _FaultError("invalid Unicode") from None
    return value
