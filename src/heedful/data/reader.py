"""Reads sentence pairs from files of any format, plain or gzipped, and from standard input (``-``).

A pair that cannot be read becomes a record with an error and its line number, and reading continues where
possible. docs/architecture.md says how to add a format.
"""

import gzip
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from pydantic import TypeAdapter

from heedful.data.config import ReadingConfig
from heedful.data.formats.archives import read_zip, zip_languages
from heedful.data.formats.base import (
    FORMAT_BY_EXTENSION,
    InputFile,
    PairRecord,
    ReadOptions,
    decode_head,
    detect_format,
    file_extension,
    read_head,
    strip_gz,
)
from heedful.data.formats.csv import csv_languages, is_csv_header, read_csv
from heedful.data.formats.gettext import mo_languages, po_languages, read_mo, read_po
from heedful.data.formats.lines import (
    BLOCK_BYTES,
    STANDARD_INPUT,
    LineOffset,
    count_lines,
    display_name,
    find_line_offsets,
    iter_lines,
    open_binary,
    read_jsonl,
    read_line_pairs,
    read_tsv,
)
from heedful.data.formats.tmx import read_tmx, tmx_languages
from heedful.data.formats.xliff import read_xliff, xliff_languages
from heedful.errors import HeedfulError
from heedful.files import atomic_write, is_gzip, wrap_read_errors
from heedful.tokenization.languages import LanguagePair, base_language, languages_from_names, languages_match


class PairFormat(NamedTuple):
    """How to read a format, and which languages its files declare."""

    read: Callable[[InputFile, ReadOptions], Iterator[PairRecord]]
    languages: Callable[[InputFile, ReadOptions], LanguagePair | None] = lambda input_file, options: None


def read_pairs(paths: Sequence[Path], options: ReadOptions = ReadOptions()) -> Iterator[PairRecord]:  # noqa: B008 - frozen
    """Every pair of every file, in the order given."""
    for group in group_parallel_files(paths):
        with _open_input(group[0]) as input_file:
            if len(group) == 1:
                yield from _read_input(input_file, options)
            else:
                with _open_input(group[1]) as target_file:
                    yield from read_parallel(input_file, target_file)


def read_tsv_file(path: Path) -> Iterator[PairRecord]:
    """The pairs of a file that is TSV whatever its name."""
    with _open_input(path) as input_file:
        yield from read_tsv(input_file, ReadOptions())


def read_plain_text(paths: Sequence[Path]) -> Iterator[PairRecord]:
    """Every line of plain text, as a pair of itself with itself."""
    for path in paths:
        with _open_input(path) as input_file:
            yield from _read_text_lines(input_file)


def _read_text_lines(input_file: InputFile) -> Iterator[PairRecord]:
    for line in iter_lines(input_file.stream, input_file.name, input_file.first_line):
        text = None if line.error else line.text
        yield PairRecord(input_file.display_name, line.number, text, text, line.error)


def read_parallel(source: InputFile, target: InputFile) -> Iterator[PairRecord]:
    """Line n of one file with line n of the other; both must have the same number of lines."""
    source_count = target_count = 0
    source_lines, target_lines = (
        iter_lines(input_file.stream, input_file.name, input_file.first_line) for input_file in (source, target)
    )
    for source_line, target_line in zip_longest(source_lines, target_lines):
        source_count += source_line is not None
        target_count += target_line is not None
        if source_line is None or target_line is None:  # count the rest, for the message
            continue
        if source_line.error:
            yield source.error_record(source_line.number, source_line.error)
        elif target_line.error:
            yield target.error_record(target_line.number, target_line.error)
        else:
            yield source.pair_record(source_line.number, source_line.text, target_line.text)
    _check_line_counts(source.name, target.name, source_count, target_count)


def _check_line_counts(source: str, target: str, source_count: int, target_count: int) -> None:
    if source_count == target_count:
        return
    names = Path(source).name, Path(target).name
    if names[0] == names[1]:
        names = source, target
    raise HeedfulError(
        f"{names[0]} has {source_count:,} lines, {names[1]} has {target_count:,}",
        hint="line n of one file must be the translation of line n of the other",
    )


@contextmanager
def _open_input(path: Path) -> Iterator[InputFile]:
    with open_binary(path) as stream:
        yield InputFile(str(path), display_name(path), stream, file_extension(path.name))


def _read_input(input_file: InputFile, options: ReadOptions) -> Iterator[PairRecord]:
    """An open file in the format that its content or name shows."""
    head, input_file = read_head(input_file)
    if format_name := detect_format(head, input_file.extension):
        return FORMATS[format_name].read(input_file, options)
    if is_csv_header(decode_head(head).partition("\n")[0]):
        return read_csv(input_file, options)
    return read_line_pairs(input_file, options, strict=input_file.name != str(STANDARD_INPUT))


def _input_languages(input_file: InputFile, options: ReadOptions) -> LanguagePair | None:
    head, input_file = read_head(input_file)
    format_name = detect_format(head, input_file.extension)
    return FORMATS[format_name].languages(input_file, options) if format_name else None


FORMATS: dict[str, PairFormat] = {
    "tsv": PairFormat(read_tsv),
    "jsonl": PairFormat(read_jsonl),
    "csv": PairFormat(read_csv, csv_languages),
    "tmx": PairFormat(read_tmx, tmx_languages),
    "po": PairFormat(read_po, po_languages),
    "mo": PairFormat(read_mo, mo_languages),
    "xliff": PairFormat(read_xliff, xliff_languages),
    "zip": PairFormat(
        lambda input_file, options: read_zip(input_file, options, _read_input, read_parallel),
        lambda input_file, options: zip_languages(input_file, options, _input_languages),
    ),
}
"""Readers by format."""

_LINE_FORMATS = ("tsv", "jsonl")  # formats of one pair per line


def group_parallel_files(paths: Sequence[Path]) -> list[tuple[Path, ...]]:
    """Files of pairs by themselves, all others in twos.

    >>> [len(group) for group in group_parallel_files([Path("a.tsv"), Path("b.en"), Path("b.de"), Path("-")])]
    [1, 2, 1]
    """
    pair_files = {path for path in paths if _holds_pairs(path)}
    parallel_files = [path for path in paths if path not in pair_files]
    if len(parallel_files) > 1 and len(parallel_files) % 2:
        raise HeedfulError(
            f"{len(parallel_files)} parallel files are an odd number: {', '.join(map(str, parallel_files))}",
            hint=f"pass parallel files two by two; files of pairs end in {', '.join(FORMAT_BY_EXTENSION)}",
        )
    groups, unmatched = list[tuple[Path, ...]](), list[Path]()
    for path in paths:
        if path in pair_files:
            groups.append((path,))
        elif unmatched:
            groups.append((unmatched.pop(), path))
        else:
            unmatched.append(path)
    return groups + [(path,) for path in unmatched]


def _holds_pairs(path: Path) -> bool:
    return path == STANDARD_INPUT or bool(detect_file_format(path))


def detect_file_format(path: Path) -> str:
    """The format of a file by content and name; pipes by name only, since they can be read only once."""
    if path == STANDARD_INPUT or not path.is_file():
        return FORMAT_BY_EXTENSION.get(file_extension(path.name), "")
    with _open_input(path) as input_file:
        return detect_format(read_head(input_file)[0], input_file.extension)


def has_pair_per_line(paths: Sequence[Path]) -> bool:
    """Whether every line of the files (of the first of two parallel ones) is a pair."""
    return all(
        len(group) == 2 or detect_file_format(group[0]) in (*_LINE_FORMATS, "") for group in group_parallel_files(paths)
    )


def check_inputs(paths: Sequence[Path]) -> None:
    """Raise early what would stop a run late: missing files, unequal line counts.

    Pipes and standard input are not opened, since they can be read only once.
    """
    if not paths:
        raise HeedfulError("no input files", hint="name a file of pairs (.tsv, .tmx, .po ...) or two parallel files")
    if list(paths).count(STANDARD_INPUT) > 1:
        raise HeedfulError("standard input can be read only once", hint="pass '-' once")
    for path in paths:
        check_readable(path)
    for source, *target in group_parallel_files(paths):
        if not all(path.is_file() for path in (source, *target)):
            continue
        if target:
            _check_line_counts(str(source), str(target[0]), count_lines(source), count_lines(target[0]))
        elif not _holds_pairs(source):
            with _open_input(source) as input_file:
                next(_read_input(input_file, ReadOptions()), None)


def check_plain_text(paths: Sequence[Path]) -> None:
    """Raise early if a file of plain text is missing."""
    if not paths:
        raise HeedfulError("no input files", hint="name files of plain text, one sentence or paragraph per line")
    for path in paths:
        check_readable(path)


def check_readable(path: Path) -> None:
    """Raise if the file is missing, a folder or not readable."""
    if path == STANDARD_INPUT:
        return
    if path.is_dir():
        raise HeedfulError(f"{path} is a folder, not a file", hint="name the files inside it")
    if path.exists() and not path.is_file():
        return  # a pipe: opening it would consume its content
    with open_binary(path):
        pass


def check_supports_heads(paths: Sequence[Path]) -> None:
    """Raise if a file is in a format without dependency heads."""
    for group in group_parallel_files(paths):
        if len(group) == 2 or (detect_file_format(group[0]) or "tsv") not in _LINE_FORMATS:
            names = " and ".join(path.name for path in group)
            raise HeedfulError(
                f"the model needs dependency trees, which {names} cannot hold",
                hint='use a .tsv file (source TAB target TAB heads) or a .jsonl file with a field "heads"',
            )


def detect_languages(
    paths: Sequence[Path],
    config: ReadingConfig = ReadingConfig(),  # noqa: B008 - frozen
) -> LanguagePair | None:
    """Source and target language by file content and names; None if unknown or not the same in all files.

    >>> detect_languages([Path("train.en.gz"), Path("train.de.gz")])
    ('en', 'de')
    >>> detect_languages([Path("news.en-de.tsv")])
    ('en', 'de')
    """
    group_languages = [_group_languages(group, config) for group in group_parallel_files(paths)]
    languages = {pair_languages for pair_languages in group_languages if pair_languages}
    if len(languages) > 1:  # en-GB in one file, en-US in another
        languages = {(base_language(source), base_language(target)) for source, target in languages}
    return languages.pop() if len(languages) == 1 else None


def _group_languages(group: tuple[Path, ...], config: ReadingConfig) -> LanguagePair | None:
    """The languages that a file declares, else those of its name; the name decides the direction."""
    name_languages = languages_from_names([strip_gz(path.name) for path in group])
    if len(group) == 2 or not group[0].is_file():
        return name_languages
    try:
        with _open_input(group[0]) as input_file:
            file_languages = _input_languages(input_file, ReadOptions(config=config))
    except HeedfulError:
        if name_languages is None:
            raise
        return name_languages
    if file_languages is None or name_languages is None:
        return file_languages or name_languages
    names_match = all(any(languages_match(name, language) for language in file_languages) for name in name_languages)
    return name_languages if names_match else file_languages


def write_tsv(pairs: Iterable[Sequence[str]], path: Path) -> int:
    """Write one pair per line, atomically, gzipped if the name ends in ``.gz``, and return their number.

    Heads, if a pair has any, are the third column. Tabs and line endings inside a sentence become spaces.
    """
    count = 0
    with open_output(path) as file:
        for source, target, *heads in pairs:
            columns = [source, target, *filter(None, heads)]
            file.write(("\t".join(re.sub(r"[\t\r\n]", " ", column) for column in columns) + "\n").encode())
            count += 1
    return count


@contextmanager
def open_output(path: Path) -> Iterator[BinaryIO]:
    """A file to write atomically, gzipped if its name ends in ``.gz``."""
    with atomic_write(path) as file:
        if path.suffix.lower() != ".gz":
            yield file
            return
        # Without name and time inside, the same pairs give the same bytes.
        with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0) as compressed:
            yield cast(BinaryIO, compressed)


ByteRange = tuple[int, int]  # start and end offset in a file


@dataclass(frozen=True, slots=True)
class FileChunk:
    """A file or two parallel files, or some of their lines.

    The records of a file's chunks, one after another, are the records of the file.
    """

    paths: tuple[Path, ...]
    byte_ranges: tuple[ByteRange, ...] = ()  # the part of each file; empty for full files
    first_line: int = 1  # number of the first line
    plain_text: bool = False  # whether lines are plain text instead of pairs
    stream_wrappers: tuple[Callable[[io.BufferedReader], Any], ...] = ()
    """Wrappers of each file's stream that observe reading, if any."""

    def read_records(self, options: ReadOptions) -> Iterator[PairRecord]:
        """The records of the chunk."""
        if not self.byte_ranges:
            yield from read_plain_text(self.paths) if self.plain_text else read_pairs(self.paths, options)
            return
        with self._open_file(0) as input_file:
            if self.plain_text:
                yield from _read_text_lines(input_file)
            elif len(self.paths) == 1:
                yield from FORMATS[detect_file_format(self.paths[0])].read(input_file, options)
            else:
                with self._open_file(1) as target_file:
                    yield from read_parallel(input_file, target_file)

    @contextmanager
    def _open_file(self, index: int) -> Iterator[InputFile]:
        path, (start, end) = self.paths[index], self.byte_ranges[index]
        with wrap_read_errors(path), path.open("rb", buffering=0) as file:
            file.seek(start)
            stream: io.BufferedReader = io.BufferedReader(_FileSlice(file, end - start), BLOCK_BYTES)
            stream = self.stream_wrappers[index](stream) if self.stream_wrappers else stream
            yield InputFile(str(path), display_name(path), stream, file_extension(path.name), self.first_line)

    def to_json(self) -> dict[str, Any]:
        return _CHUNK_ADAPTER.dump_python(self, mode="json", exclude={"stream_wrappers"})  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "FileChunk":
        return _CHUNK_ADAPTER.validate_python(state)


_CHUNK_ADAPTER = TypeAdapter(FileChunk)


class _FileSlice(io.RawIOBase):
    """The next ``size`` bytes of a file."""

    def __init__(self, file: io.RawIOBase, size: int) -> None:
        self._file, self._remaining = file, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        count = self._file.readinto(memoryview(buffer)[: self._remaining]) or 0
        self._remaining -= count
        return count


def is_splittable(group: Sequence[Path], *, plain_text: bool = False) -> bool:
    """Whether files can be split between lines: not compressed, and one pair per line."""
    if any(is_gzip(path) for path in group):
        return False
    return plain_text or len(group) == 2 or detect_file_format(group[0]) in _LINE_FORMATS


def split_files(paths: Sequence[Path], chunk_bytes: int, *, plain_text: bool = False) -> list[FileChunk]:
    """Chunks of about ``chunk_bytes`` bytes of the first file of each group, in order."""
    chunks: list[FileChunk] = []
    for group in [(path,) for path in paths] if plain_text else group_parallel_files(paths):
        if not is_splittable(group, plain_text=plain_text):
            chunks.append(FileChunk(group, plain_text=plain_text))
            continue
        boundaries = _chunk_boundaries(group[0], chunk_bytes)
        offsets = [[offset.byte for offset in boundaries]]
        offsets += (_find_offsets(path, [offset.lines for offset in boundaries]) for path in group[1:])
        byte_ranges = zip(*map(pairwise, offsets), strict=True)
        chunks += (
            FileChunk(group, ranges, start.lines + 1, plain_text)
            for ranges, start in zip(byte_ranges, boundaries[:-1], strict=True)
        )
    return chunks


def _chunk_boundaries(path: Path, chunk_bytes: int) -> list[LineOffset]:
    boundaries, position, lines_read = [LineOffset(0, 0)], 0, 0
    with wrap_read_errors(path), path.open("rb") as file:
        while block := file.read(min(BLOCK_BYTES, chunk_bytes)):
            end = block.rfind(b"\n") + 1
            if end and position + end - boundaries[-1].byte >= chunk_bytes:
                boundaries.append(LineOffset(position + end, lines_read + block.count(b"\n", 0, end)))
            position += len(block)
            lines_read += block.count(b"\n")
    if boundaries[-1].byte < position or len(boundaries) == 1:
        boundaries.append(LineOffset(position, lines_read + 1))
    return boundaries


def _find_offsets(path: Path, line_counts: Sequence[int]) -> list[int]:
    """Bytes before these numbers of lines; the last one stands for the end of the file."""
    with wrap_read_errors(path), path.open("rb") as file:
        *offsets, end = (offset.byte for offset in find_line_offsets(file, line_counts[1:-1]))
    padding = [end] * (len(line_counts) - 2 - len(offsets))  # a file that is too short: reading reports it
    return [0, *offsets, *padding, end]


def files_fingerprint(paths: Iterable[Path]) -> list[list[Any]]:
    """Name, size and modification time of each file, to detect changes; pipes have none."""
    stats = [(path, path.stat()) for path in paths if path.is_file()]
    return [[str(path), stat.st_size, stat.st_mtime_ns] for path, stat in stats]
