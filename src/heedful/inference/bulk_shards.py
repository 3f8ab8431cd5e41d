"""Shards of a large input, and the worker that translates one of them.

A shard is a whole number of batches, so every line is translated in the same batch as without shards and the
output is byte-identical. A shard's translation appears complete, with its record, or not at all:

000003-big.txt         the translation
000003-big.txt.json    its record: checksum and statistics
incomplete/            attempts in progress, or left by killed workers
"""

import io
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any
from uuid import uuid4

from heedful.data.formats.lines import LineOffset, TextLine, count_lines, find_line_offsets, iter_lines, open_binary
from heedful.errors import HeedfulError
from heedful.files import (
    checksum,
    is_gzip,
    new_digest,
    read_json,
    sync_folder,
    wrap_read_errors,
    wrap_write_errors,
    write_json,
)
from heedful.inference.bulk import (
    BATCH_LINES,
    LineOptions,
    LineStatistics,
    TranslateOptions,
    check_trees,
    file_fingerprint,
    load_translator,
    write_translations,
)
from heedful.inference.translator import Translator

MANIFEST_FILE = "manifest.json"

INCOMPLETE_FOLDER = "incomplete"

FORMAT_SUFFIXES = {"text": "", "tsv": ".tsv", "jsonl": ".jsonl"}
"""What a shard's file name adds to the name of its input."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Consecutive lines of one input."""

    number: int
    """Index among the shards of all inputs."""
    input_path: Path
    start_byte: int
    """Offset in the input; 0 in a gzip file, which is one shard."""
    lines_before: int
    """Lines of the input before the shard."""
    line_count: int


@dataclass(frozen=True, slots=True)
class BulkTask:
    """What all shards of one bulk translation have in common."""

    folder: Path
    options: TranslateOptions
    manifest: Mapping[str, Any]
    """Model files, engine, settings, inputs and lines per shard; equal for every shard of the folder."""

    @property
    def fingerprint(self) -> str:
        """Identifies the manifest; every finished shard carries it."""
        return new_digest(json.dumps(self.manifest, sort_keys=True).encode()).hexdigest()

    def output_path(self, shard: Shard) -> Path:
        """The file of a shard's translation."""
        name = shard.input_path.name.removesuffix(".gz") + FORMAT_SUFFIXES[self.options.output_format]
        return self.folder / f"{shard.number:06}-{name}"


def build_manifest(
    options: TranslateOptions, translator: Translator, line_options: LineOptions, inputs: Sequence[Path]
) -> dict[str, Any]:
    """The content of manifest.json."""
    manifest = {
        **line_options.fingerprint(options.models, translator.name),
        "inputs": [file_fingerprint(path) for path in inputs],
        "shard_lines": options.shard_lines,
    }
    return json.loads(json.dumps(manifest))  # type: ignore[no-any-return]  # equal to what is read back


def round_to_batches(lines: int) -> int:
    """Round up to full batches: only they keep every line in the same batch as without shards.

    >>> round_to_batches(1), round_to_batches(2048), round_to_batches(5000)
    (2048, 2048, 6144)
    """
    return -(-lines // BATCH_LINES) * BATCH_LINES


def split_into_shards(inputs: Sequence[Path], shard_lines: int) -> Iterator[Shard]:
    """The shards of all inputs, in order."""
    numbers = count()
    for path in inputs:
        if is_gzip(path):  # one shard: no worker can start in its middle
            if lines := count_lines(path):
                yield Shard(next(numbers), path, 0, 0, lines)
            continue
        start = LineOffset(0, 0)
        with open_binary(path) as stream:
            for end in find_line_offsets(stream, count(shard_lines, shard_lines)):
                if end.byte > start.byte:
                    yield Shard(next(numbers), path, start.byte, start.lines, end.lines - start.lines)
                start = end


def read_shard(shard: Shard, manifest: Mapping[str, Any]) -> Iterator[TextLine]:
    """The lines of a shard, numbered as in the input; raises if the input has changed."""

    def check_input(lines_are_complete: bool) -> None:
        with wrap_read_errors(shard.input_path):
            if not lines_are_complete or file_fingerprint(shard.input_path) not in manifest["inputs"]:
                raise HeedfulError(
                    f"{shard.input_path} has changed since translation started",
                    hint="start over in another folder; do not change files while they are translated",
                )

    check_input(True)
    lines_read = 0
    with open_binary(shard.input_path) as stream:
        if shard.start_byte:
            stream.seek(shard.start_byte)
        for line in islice(iter_lines(stream, str(shard.input_path), shard.lines_before + 1), shard.line_count):
            lines_read += 1
            yield line
    check_input(lines_read == shard.line_count)


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """What is known about a finished shard."""

    fingerprint: str
    """The fingerprint of the manifest."""
    shard_number: int
    checksum: str
    statistics: LineStatistics


def record_path(output: Path) -> Path:
    """The record file of a shard."""
    return output.with_name(output.name + ".json")


def read_shard_record(task: BulkTask, shard: Shard) -> ShardRecord | None:
    """The record of a finished shard; None if it is missing, corrupt or of another translation."""
    output = task.output_path(shard)
    try:
        data = read_json(record_path(output), "")
        record = ShardRecord(**{**data, "statistics": LineStatistics(**data["statistics"])})
        expected = ShardRecord(task.fingerprint, shard.number, checksum(output), record.statistics)
    except (HeedfulError, TypeError, KeyError, OSError):
        return None
    return record if record == expected else None


class ShardWorker:
    """A process with one translator, loaded for its first shard."""

    def __init__(self, task: BulkTask) -> None:
        self.task = task
        self.translator: Translator | None = None

    def translate_shard(self, shard: Shard) -> ShardRecord:
        """Translate a shard, rename its file into place and write its record."""
        task, output = self.task, self.task.output_path(shard)
        # Every attempt has its own name: after a lost host two may be in progress.
        temporary_path = output.parent / INCOMPLETE_FOLDER / f"{output.name}.{uuid4().hex}"
        with wrap_write_errors(output):
            try:
                temporary_path.parent.mkdir(exist_ok=True)
                temporary_path.touch()  # a killed worker leaves it: so it is counted
                record = self._write_shard(shard, temporary_path)
                if read_json(task.folder / MANIFEST_FILE, "") != task.manifest:
                    raise HeedfulError(f"{task.folder} now belongs to another translation")
                temporary_path.replace(output)
                sync_folder(task.folder)
                write_json(record_path(output), asdict(record))
                return record
            finally:
                temporary_path.unlink(missing_ok=True)

    def _write_shard(self, shard: Shard, temporary_path: Path) -> ShardRecord:
        self.translator = self.translator or self._load_translator()
        translator, statistics = self.translator, LineStatistics()

        def read_texts() -> Iterator[str]:  # unreadable lines are empty, and counted
            for line in read_shard(shard, self.task.manifest):
                if line.error:
                    statistics.unreadable += 1
                    problem = f"{shard.input_path.name}, line {line.number:,}: {line.error}"
                    statistics.first_unreadable = statistics.first_unreadable or problem
                yield line.text

        lines = check_trees(read_texts(), translator.model_folder, statistics, shard.lines_before)
        translations = self.line_options.translate(translator, lines, interactive=False, skip_failures=True)
        with (
            temporary_path.open("wb") as file,
            io.TextIOWrapper(file, encoding="utf-8", newline="\n", write_through=True) as text_file,
        ):
            write_translations(translations, text_file, self.line_options, statistics, shard.lines_before)
            text_file.flush()
            os.fsync(file.fileno())
        return ShardRecord(self.task.fingerprint, shard.number, checksum(temporary_path), statistics)

    def _load_translator(self) -> Translator:
        """The translator, if it is the one that the command has loaded: another could translate differently."""
        translator, self.line_options = load_translator(self.task.options, workers=1)
        manifest = build_manifest(self.task.options, translator, self.line_options, [])
        for name in manifest.keys() - {"inputs"}:
            if manifest[name] != self.task.manifest[name]:
                raise HeedfulError(
                    f"on {platform.node()}, {name} is {manifest[name]}, expected {self.task.manifest[name]}",
                    hint="use the same files and packages on all hosts, and do not change them meanwhile",
                )
        return translator
