"""Sentence pairs out of files, one by one: TSV, JSONL, two parallel files; gzip of each; ``-``.

What cannot be read becomes a record with a fault and its line number, and reading goes on.
A new format is one reader and one entry in READERS.
"""

import gzip
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from heedful.corpora.lines import STANDARD_INPUT, Line, count_lines, opened, read_lines, title
from heedful.errors import HeedfulError
from heedful.files import whole_file

Fields = tuple[str, str]
"""The two keys of a JSON object: names of fields, or language codes."""
DEFAULT_FIELDS: Fields = ("source", "target")
HEADS = "heads"
"""The key of the heads of the source's words, a list of numbers."""


class Record(NamedTuple):
    """One pair as found; with a fault, neither sentence is there."""

    origin: str
    line: int
    source: str | None
    target: str | None
    fault: str = ""
    heads: str = ""
    """The third column, or the field "heads", as it stands: for models that read trees, and for no others."""


Reader = Callable[[Path, Fields], Iterator[Record]]
Parser = Callable[[str, Fields], tuple[str, str, str]]
"""Source, target and heads of a line."""


class _FaultError(ValueError):
    """Why one line holds no pair."""


def read_pairs(paths: Sequence[Path], *, fields: Fields = DEFAULT_FIELDS) -> Iterator[Record]:
    """Every pair of every input, in the order given.

    ``fields`` are the keys of JSON objects; language codes also find
    ``{"translation": {"en": ..., "de": ...}}``, and plain source and target are understood anyway.
    """
    for group in grouped(paths):
        if len(group) == 2:
            yield from read_parallel(group[0], group[1])
        else:
            reader = READERS.get(_suffix(group[0]), read_sniffed)
            yield from reader(group[0], fields)


def read_texts(paths: Sequence[Path]) -> Iterator[Record]:
    """Every line of plain text, as a pair of itself and itself."""
    for path in paths:
        for line in read_lines(path):
            text = None if line.fault else line.text
            yield Record(title(path), line.number, text, text, line.fault)


def check_texts(paths: Sequence[Path]) -> None:
    """Raise what would otherwise stop a run late: missing files."""
    if not paths:
        raise HeedfulError("no input files", hint="give files of plain text, a sentence or paragraph a line")
    for path in paths:
        check_readable(path)


def grouped(paths: Sequence[Path]) -> list[tuple[Path, ...]]:
    """Pair files alone, all others two by two.

    >>> [len(group) for group in grouped([Path("a.tsv"), Path("b.en"), Path("b.de"), Path("-")])]
    [1, 2, 1]
    """
    others = [path for path in paths if not _holds_pairs(path)]
    if len(others) > 1 and len(others) % 2:
        raise HeedfulError(
            f"{len(others)} files cannot be taken two by two: {', '.join(map(str, others))}",
            hint=f"parallel files come in twos; files of pairs end in {', '.join(READERS)}",
        )
    groups: list[tuple[Path, ...]] = []
    waiting: list[Path] = []
    for path in paths:
        if _holds_pairs(path):
            groups.append((path,))
        elif waiting:
            groups.append((waiting.pop(), path))
        else:
            waiting.append(path)
    return groups + [(path,) for path in waiting]


def check_inputs(paths: Sequence[Path]) -> None:
    """Raise what would otherwise stop a run late: missing files, unequal line counts.

    Pipes and standard input are left untouched, since they can be read only once.
    """
    if not paths:
        raise HeedfulError("no input files", hint="give a .tsv or .jsonl file, or two parallel files")
    if list(paths).count(STANDARD_INPUT) > 1:
        raise HeedfulError("standard input can be read only once", hint="give '-' once")
    for path in paths:
        check_readable(path)
    for group in grouped(paths):
        if not all(path.is_file() for path in group):
            continue
        if len(group) == 2:
            _check_counts(group[0], group[1], count_lines(group[0]), count_lines(group[1]))
        elif not _holds_pairs(group[0]):
            next(read_sniffed(group[0], DEFAULT_FIELDS), None)


def check_room_for_heads(paths: Sequence[Path]) -> None:
    """Raise if some of the files could not hold the heads of words."""
    for group in grouped(paths):
        if len(group) == 2:
            raise HeedfulError(
                f"{group[0].name} and {group[1].name} hold no trees, which this model reads",
                hint='give a .tsv file, source TAB target TAB heads, or a .jsonl file with a field "heads"',
            )


def languages_of(paths: Sequence[Path]) -> tuple[str, str] | None:
    """Source and target language as far as the file names tell, all of one opinion.

    >>> languages_of([Path("train.en.gz"), Path("train.de.gz")])
    ('en', 'de')
    >>> languages_of([Path("news.en-de.tsv")])
    ('en', 'de')
    """
    guesses = {_languages_in_names([_bare_name(path) for path in group]) for group in grouped(paths)}
    guesses.discard(None)
    return guesses.pop() if len(guesses) == 1 else None


def write_tsv(pairs: Iterable[Sequence[str]], path: Path) -> int:
    """Write one pair a line and return how many; the file appears whole or not at all.

    Heads, if a pair has any, are a third column. Tabs and line endings inside a sentence become spaces; a
    name in ``.gz`` is packed.
    """
    with whole_file(path) as file:
        if path.suffix.lower() != ".gz":
            return _write_lines(pairs, file)
        # No name and no time inside: same pairs, same bytes.
        with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0) as packed:
            return _write_lines(pairs, cast(BinaryIO, packed))


def read_tsv(path: Path, fields: Fields = DEFAULT_FIELDS) -> Iterator[Record]:
    """``source<TAB>target``, and heads if they are asked for; other columns (attribution) are ignored."""
    return (_parsed(line, path, _tsv_pair, fields) for line in read_lines(path))


def read_jsonl(path: Path, fields: Fields = DEFAULT_FIELDS) -> Iterator[Record]:
    """One JSON object a line."""
    return (_parsed(line, path, _json_pair, fields) for line in read_lines(path))


def read_sniffed(path: Path, fields: Fields = DEFAULT_FIELDS) -> Iterator[Record]:
    """TSV or JSONL, as the first line with something on it shows."""
    parse: Parser | None = None
    for line in read_lines(path):
        if parse is None and line.text.strip():
            parse = _json_pair if line.text.lstrip().startswith("{") else _tsv_pair
            if parse is _tsv_pair and "\t" not in line.text and path != STANDARD_INPUT:
                raise HeedfulError(
                    f"{path} holds no pairs: its first line has no tab and is no JSON object",
                    hint="give the file of the other language too",
                )
        yield _parsed(line, path, parse or _tsv_pair, fields)


def read_parallel(source: Path, target: Path) -> Iterator[Record]:
    """Line by line from two files, which must have equally many lines."""
    source_count = target_count = 0
    for left, right in zip_longest(read_lines(source), read_lines(target)):
        source_count += left is not None
        target_count += right is not None
        if left is None or right is None:
            continue  # count on to the end, for the message
        if left.fault or right.fault:
            origin = source if left.fault else target
            yield Record(title(origin), left.number, None, None, left.fault or right.fault)
        else:
            yield Record(title(source), left.number, left.text, right.text)
    _check_counts(source, target, source_count, target_count)


READERS: dict[str, Reader] = {
    ".tsv": read_tsv,
    ".tab": read_tsv,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
}
"""What reads a file of pairs, by its ending (before any ``.gz``)."""


def _bare_name(path: Path) -> str:
    name = path.name
    return name[:-3] if name.lower().endswith(".gz") else name


def _suffix(path: Path) -> str:
    return Path(_bare_name(path)).suffix.lower()


def _holds_pairs(path: Path) -> bool:
    return path == STANDARD_INPUT or _suffix(path) in READERS


def _parsed(line: Line, path: Path, parse: Parser, fields: Fields) -> Record:
    if line.fault:
        return Record(title(path), line.number, None, None, line.fault)
    try:
        # A blank line is a pair of empty sentences: cleaning drops it and counts it.
        source, target, heads = parse(line.text, fields) if line.text.strip() else ("", "", "")
    except _FaultError as fault:
        return Record(title(path), line.number, None, None, str(fault))
    return Record(title(path), line.number, source, target, heads=heads)


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


def check_readable(path: Path) -> None:
    """Raise if the file is missing, a folder or not ours to read."""
    if path == STANDARD_INPUT:
        return
    if path.is_dir():
        raise HeedfulError(f"{path} is a folder, not a file", hint="name the files inside it")
    if path.exists() and not path.is_file():
        return  # a pipe: opening it would take its contents
    with opened(path):
        pass


def _check_counts(source: Path, target: Path, source_count: int, target_count: int) -> None:
    if source_count == target_count:
        return
    names = (source.name, target.name) if source.name != target.name else (source, target)
    raise HeedfulError(
        f"{names[0]} has {source_count:,} lines, {names[1]} has {target_count:,}",
        hint="line n of one file must translate line n of the other",
    )


_LANGUAGE = r"[a-z]{2,3}(?:_[A-Za-z]{2,4})?"
_NO_LANGUAGES = {"src", "tgt", "trg", "txt", "ref", "hyp"}


def _languages_in_names(names: list[str]) -> tuple[str, str] | None:
    if len(names) == 1:
        # Three-letter codes only after a dot, lest my-own.tsv be Burmese.
        found = re.search(rf"(?:^([a-z]{{2}})-([a-z]{{2}})|\.({_LANGUAGE})-({_LANGUAGE}))\.", names[0])
        codes = [code for code in found.groups() if code] if found else []
    else:
        stems, codes = _stems_and_codes(names)
        codes = codes if len(set(stems)) == 1 else []
    if len(set(codes)) != 2 or _NO_LANGUAGES & set(codes):
        return None
    return codes[0], codes[1]


def _stems_and_codes(names: list[str]) -> tuple[list[str], list[str]]:
    found = [re.fullmatch(rf"(?:(.*)\.)?({_LANGUAGE})", name.removesuffix(".txt")) for name in names]
    return [str(match and match[1]) for match in found], [match[2] for match in found if match]


def _write_lines(pairs: Iterable[Sequence[str]], file: BinaryIO) -> int:
    count = 0
    for source, target, *heads in pairs:
        columns = [source, target, *filter(None, heads)]
        file.write(("\t".join(re.sub(r"[\t\r\n]", " ", column) for column in columns) + "\n").encode())
        count += 1
    return count
