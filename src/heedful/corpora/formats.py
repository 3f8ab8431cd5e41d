"""Sentence pairs out of files, one by one, whatever their format; gzip of each; ``-``.

What cannot be read becomes a record with a fault and its line number, and reading goes on where that can be.
A new format is one module and one entry in FORMATS.
"""

import gzip
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from heedful.corpora.archives import read_zip, zip_languages
from heedful.corpora.gettext_catalogs import mo_languages, po_languages, read_mo, read_po
from heedful.corpora.language_codes import base, languages_in_names, matches
from heedful.corpora.line_formats import read_jsonl, read_sniffed
from heedful.corpora.line_formats import read_tsv as read_tsv_lines
from heedful.corpora.lines import (
    STANDARD_INPUT,
    Line,
    count_lines,
    lines_in,
    opened,
    read_lines,
    title,
)
from heedful.corpora.reading import Input, Languages, Reading, ReadingConfig, Record, head_of
from heedful.corpora.recognition import ENDINGS, bare_name, ending, recognized
from heedful.corpora.tables import csv_languages, read_csv
from heedful.corpora.tmx import read_tmx, tmx_languages
from heedful.corpora.xliff import read_xliff, xliff_languages
from heedful.errors import HeedfulError
from heedful.files import whole_file


class Format(NamedTuple):
    """How a format is read, and how its files tell their languages, if they do."""

    read: Callable[[Input, Reading], Iterator[Record]]
    languages: Callable[[Input, Reading], Languages | None]


def read_pairs(paths: Sequence[Path], reading: Reading = Reading()) -> Iterator[Record]:  # noqa: B008 - frozen
    """Every pair of every input, in the order given."""
    for group in grouped(paths):
        if len(group) == 2:
            yield from read_parallel(group[0], group[1])
        else:
            with _input(group[0]) as given:
                yield from _read(given, reading)


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
    """Files of pairs alone, all others two by two.

    >>> [len(group) for group in grouped([Path("a.tsv"), Path("b.en"), Path("b.de"), Path("-")])]
    [1, 2, 1]
    """
    single = {path for path in paths if _holds_pairs(path)}
    others = [path for path in paths if path not in single]
    if len(others) > 1 and len(others) % 2:
        raise HeedfulError(
            f"{len(others)} files cannot be taken two by two: {', '.join(map(str, others))}",
            hint=f"parallel files come in twos; files of pairs end in {', '.join(ENDINGS)}",
        )
    groups: list[tuple[Path, ...]] = []
    waiting: list[Path] = []
    for path in paths:
        if path in single:
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
        raise HeedfulError(
            "no input files", hint="give a file of pairs (.tsv, .tmx, .po ...), or two parallel files"
        )
    if list(paths).count(STANDARD_INPUT) > 1:
        raise HeedfulError("standard input can be read only once", hint="give '-' once")
    for path in paths:
        check_readable(path)
    for group in grouped(paths):
        if not all(path.is_file() for path in group):
            continue
        if len(group) == 2:
            source, target = map(str, group)
            _check_counts(source, target, count_lines(group[0]), count_lines(group[1]))
        elif not _holds_pairs(group[0]):
            with _input(group[0]) as given:
                next(_read(given, Reading()), None)


def check_room_for_heads(paths: Sequence[Path]) -> None:
    """Raise if some of the files could not hold the heads of words."""
    for group in grouped(paths):
        if len(group) == 2 or (kind_of(group[0]) or "tsv") not in ("tsv", "jsonl"):
            verb = "hold" if len(group) == 2 else "holds"
            raise HeedfulError(
                f"{' and '.join(path.name for path in group)} {verb} no trees, which this model reads",
                hint='give a .tsv file, source TAB target TAB heads, or a .jsonl file with a field "heads"',
            )


def languages_of(
    paths: Sequence[Path],
    config: ReadingConfig = ReadingConfig(),  # noqa: B008 - frozen
) -> Languages | None:
    """Source and target language as far as files and their names tell, all of one opinion.

    >>> languages_of([Path("train.en.gz"), Path("train.de.gz")])
    ('en', 'de')
    >>> languages_of([Path("news.en-de.tsv")])
    ('en', 'de')
    """
    told = [_group_languages(group, config) for group in grouped(paths)]
    found = {each for each in told if each}
    if len(found) > 1:  # en-GB here, en-US there
        found = {(base(source), base(target)) for source, target in found}
    return found.pop() if len(found) == 1 else None


def has_lines(paths: Sequence[Path]) -> bool:
    """Whether every line of the (first of two) files is a pair, so that lines can be counted."""
    return all(len(group) == 2 or kind_of(group[0]) in ("tsv", "jsonl", "") for group in grouped(paths))


def write_tsv(pairs: Iterable[Sequence[str]], path: Path) -> int:
    """Write one pair a line and return how many; the file appears whole or not at all.

    Heads, if a pair has any, are a third column. Tabs and line endings inside a sentence become spaces; a
    name in ``.gz`` is packed.
    """
    with packed_file(path) as file:
        return _write_lines(pairs, file)


@contextmanager
def packed_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, whole or not at all, packed if its name ends in ``.gz``."""
    with whole_file(path) as file:
        if path.suffix.lower() != ".gz":
            yield file
            return
        # No name and no time inside: same pairs, same bytes.
        with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0) as packed:
            yield cast(BinaryIO, packed)


def read_tsv(path: Path) -> Iterator[Record]:
    """The pairs of a file that is TSV whatever its name."""
    with _input(path) as given:
        yield from read_tsv_lines(given, Reading())


def read_parallel(source: Path, target: Path) -> Iterator[Record]:
    """Line by line from two files, which must have equally many lines."""
    with _input(source) as left, _input(target) as right:
        yield from read_parallel_inputs(left, right)


def kind_of(path: Path) -> str:
    """The format of a file, as far as name and first bytes tell; pipes are not looked into."""
    if path == STANDARD_INPUT or not path.is_file():
        return ENDINGS.get(ending(path.name), "")
    with _input(path) as given:
        return recognized(head_of(given)[0], given.ending)


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


@contextmanager
def _input(path: Path) -> Iterator[Input]:
    with opened(path) as stream:
        yield Input(str(path), title(path), stream, ending(path.name))


def _read(given: Input, reading: Reading) -> Iterator[Record]:
    """An open file, by what its first bytes or its name show."""
    head, given = head_of(given)
    kind = recognized(head, given.ending)
    if kind:
        return FORMATS[kind].read(given, reading)
    return read_sniffed(given, reading, strict=given.name != str(STANDARD_INPUT))


def _languages(given: Input, reading: Reading) -> Languages | None:
    head, given = head_of(given)
    kind = recognized(head, given.ending)
    return FORMATS[kind].languages(given, reading) if kind else None


def _group_languages(group: tuple[Path, ...], config: ReadingConfig) -> Languages | None:
    """What a file says itself, and if that is not clear, its name; the name also tells which way."""
    named = languages_in_names([bare_name(path.name) for path in group])
    if len(group) == 2 or not group[0].is_file():
        return named
    try:
        with _input(group[0]) as given:
            found = _languages(given, Reading(config=config))
    except HeedfulError:
        if named is None:
            raise
        return named
    if named and found and all(any(matches(name, each) for each in found) for name in named):
        return named
    return found or named


def _holds_pairs(path: Path) -> bool:
    return path == STANDARD_INPUT or bool(kind_of(path))


def read_parallel_inputs(source: Input, target: Input) -> Iterator[Record]:
    """The same of two open files."""
    counts = [0, 0]
    sides = (lines_in(given.stream, given.name, given.first) for given in (source, target))
    for left, right in zip_longest(*sides):
        counts[0] += left is not None
        counts[1] += right is not None
        if left is not None and right is not None:  # else count on to the end, for the message
            yield _parallel_record(source, target, left, right)
    _check_counts(source.name, target.name, *counts)


def _parallel_record(source: Input, target: Input, left: Line, right: Line) -> Record:
    if left.fault or right.fault:
        return (source if left.fault else target).dropped(left.number, left.fault or right.fault)
    return Record(source.title, left.number, left.text, right.text)


def _check_counts(source: str, target: str, source_count: int, target_count: int) -> None:
    if source_count == target_count:
        return
    names = Path(source).name, Path(target).name
    if names[0] == names[1]:
        names = source, target
    raise HeedfulError(
        f"{names[0]} has {source_count:,} lines, {names[1]} has {target_count:,}",
        hint="line n of one file must translate line n of the other",
    )


def _untold(given: Input, reading: Reading) -> Languages | None:
    """Of formats that do not tell."""
    return None


def _write_lines(pairs: Iterable[Sequence[str]], file: BinaryIO) -> int:
    count = 0
    for source, target, *heads in pairs:
        columns = [source, target, *filter(None, heads)]
        file.write(("\t".join(re.sub(r"[\t\r\n]", " ", column) for column in columns) + "\n").encode())
        count += 1
    return count


FORMATS: dict[str, Format] = {
    "tsv": Format(read_tsv_lines, _untold),
    "jsonl": Format(read_jsonl, _untold),
    "csv": Format(read_csv, csv_languages),
    "tmx": Format(read_tmx, tmx_languages),
    "po": Format(read_po, po_languages),
    "mo": Format(read_mo, mo_languages),
    "xliff": Format(read_xliff, xliff_languages),
    "zip": Format(
        lambda given, reading: read_zip(given, reading, _read, read_parallel_inputs),
        lambda given, reading: zip_languages(given, reading, _languages),
    ),
}
"""What reads a file of pairs, by its format."""
