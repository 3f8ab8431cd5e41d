"""Shards of a large input, and the worker that translates one of them.

A shard is a whole number of batches, so every line is translated in the same batch as without shards and the
output is byte-identical. A shard's translation appears complete, with its record, or not at all:

000003-big.txt         the translation
000003-big.txt.json    its record: checksum and statistics
incomplete/            attempts in progress, or left by killed workers
"""

import errno
import hashlib
import io
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from glob import escape
from itertools import count, islice
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from heedful.data.formats.lines import LineOffset, TextLine, count_lines, find_line_offsets, iter_lines, open_binary
from heedful.errors import HeedfulError
from heedful.files import checksum, is_gzip, read_json, sync_folder, wrap_read_errors, write_json
from heedful.inference.bulk import (
    BATCH_LINES,
    LineOptions,
    LineStatistics,
    check_trees,
    file_fingerprint,
    write_translations,
)
from heedful.inference.loading import EngineName, load
from heedful.inference.translator import Translator
from heedful.progress import format_count

MANIFEST_FILE = "manifest.json"

INCOMPLETE_FOLDER = "incomplete"

FORMAT_SUFFIXES = {"text": "", "tsv": ".tsv", "jsonl": ".jsonl"}
"""What a shard's file name adds to the name of its input."""

MAX_ATTEMPTS = 8
"""Workers that may die at one shard before the translation stops."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Consecutive lines of one input."""

    number: int
    """Index among the shards of all inputs."""
    input_index: int
    start_byte: int
    """Offset in the input; 0 in a gzip file, which is one shard."""
    lines_before: int
    """Lines of the input before the shard."""
    line_count: int


@dataclass(frozen=True, slots=True)
class BulkManifest:
    """The inputs, settings and shards of one bulk translation."""

    settings: dict[str, Any]
    """Model files, engine and generation settings."""
    inputs: tuple[dict[str, Any], ...]
    """Path, size and modification time of each."""
    shard_lines: int
    output_format: str
    shards: tuple[Shard, ...]

    @property
    def fingerprint(self) -> str:
        """Identifies inputs and settings; every finished shard carries it."""
        content = json.dumps([self.settings, self.inputs, self.shard_lines], sort_keys=True)
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    def input_path(self, shard: Shard) -> Path:
        """The input of a shard."""
        return Path(self.inputs[shard.input_index]["path"])

    def output_path(self, folder: Path, shard: Shard) -> Path:
        """The file of a shard's translation."""
        name = self.input_path(shard).name.removesuffix(".gz") + FORMAT_SUFFIXES[self.output_format]
        return folder / f"{shard.number:06}-{name}"

    def write(self, folder: Path) -> None:
        """Write manifest.json into the folder."""
        write_json(folder / MANIFEST_FILE, {"fingerprint": self.fingerprint, **asdict(self)})

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read manifest.json of the folder."""
        hint = "delete the folder to start over"
        data = read_json(folder / MANIFEST_FILE, hint)
        try:
            shards = tuple(Shard(**shard) for shard in data["shards"])
            inputs = tuple(data["inputs"])
            manifest = cls(data["settings"], inputs, data["shard_lines"], data["output_format"], shards)
        except (KeyError, TypeError) as error:
            raise HeedfulError(f"{folder / MANIFEST_FILE} is corrupt: {error}", hint=hint) from None
        if manifest.fingerprint != data.get("fingerprint"):
            raise HeedfulError(f"{folder / MANIFEST_FILE} is corrupt: wrong fingerprint", hint=hint)
        return manifest


def round_to_batches(lines: int) -> int:
    """Round up to full batches: only they keep every line in the same batch as without shards.

    >>> round_to_batches(1), round_to_batches(2048), round_to_batches(5000)
    (2048, 2048, 6144)
    """
    return -(-lines // BATCH_LINES) * BATCH_LINES


def split_into_shards(inputs: Sequence[Path], shard_lines: int) -> Iterator[Shard]:
    """The shards of all inputs, in order."""
    number = 0
    for input_index, path in enumerate(inputs):
        if is_gzip(path):  # one shard: no worker can start in its middle
            if lines := count_lines(path):
                yield Shard(number, input_index, 0, 0, lines)
                number += 1
            continue
        start = LineOffset(0, 0)
        with open_binary(path) as stream:
            for end in find_line_offsets(stream, count(shard_lines, shard_lines)):
                if end.byte > start.byte:
                    yield Shard(number, input_index, start.byte, start.lines, end.lines - start.lines)
                    number += 1
                start = end


def read_shard(manifest: BulkManifest, shard: Shard) -> Iterator[TextLine]:
    """The lines of a shard, numbered as in the input; raises if the input has changed."""
    path = manifest.input_path(shard)
    check_file_fingerprint(manifest.inputs[shard.input_index])
    lines_read = 0
    with open_binary(path) as stream:
        if shard.start_byte:
            stream.seek(shard.start_byte)
        for line in islice(iter_lines(stream, str(path), shard.lines_before + 1), shard.line_count):
            lines_read += 1
            yield line
    check_file_fingerprint(manifest.inputs[shard.input_index])
    if lines_read != shard.line_count:
        raise HeedfulError(
            f"{path} has {lines_read:,} lines in shard {shard.number}, expected {shard.line_count:,}",
            hint=_CHANGED_HINT,
        )


_CHANGED_HINT = "start over in another folder; do not change files while they are translated"


def check_file_fingerprint(fingerprint: dict[str, Any]) -> None:
    """Raise if a file has changed since the manifest was written."""
    path = Path(fingerprint["path"])
    with wrap_read_errors(path):
        if file_fingerprint(path) != fingerprint:
            raise HeedfulError(f"{path} has changed since translation started", hint=_CHANGED_HINT)


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """What is known about a finished shard."""

    fingerprint: str
    """The fingerprint of the manifest."""
    shard_number: int
    line_count: int
    checksum: str
    statistics: LineStatistics


def record_path(output: Path) -> Path:
    """The record file of a shard."""
    return output.with_name(output.name + ".json")


def incomplete_paths(output: Path) -> list[Path]:
    """Attempts at a shard that are in progress, or were killed."""
    return sorted((output.parent / INCOMPLETE_FOLDER).glob(f"{escape(output.name)}.*"))


def read_shard_record(folder: Path, manifest: BulkManifest, shard: Shard) -> ShardRecord | None:
    """The record of a finished shard; None if it is missing, corrupt or of another translation."""
    output = manifest.output_path(folder, shard)
    try:
        data = read_json(record_path(output), "")
        record = ShardRecord(**{**data, "statistics": LineStatistics(**data["statistics"])})
        expected = (manifest.fingerprint, shard.number, shard.line_count, checksum(output))
    except (HeedfulError, TypeError, KeyError, OSError):
        return None
    actual = (record.fingerprint, record.shard_number, record.line_count, record.checksum)
    return record if actual == expected else None


@dataclass(frozen=True, slots=True)
class ShardTask:
    """All that a worker needs besides the shard number."""

    folder: Path
    manifest: BulkManifest
    models: tuple[Path, ...]
    options: LineOptions
    device: str
    engine: EngineName
    engine_name: str
    """The engine chosen at the start; another could translate differently."""


class ShardWorker:
    """A process with one translator, loaded for its first shard."""

    def __init__(self, task: ShardTask) -> None:
        self.task = task
        self.translator: Translator | None = None

    def __call__(self, row: Mapping[str, int]) -> dict[str, object]:
        """Translate one shard; user errors are returned as problem and hint, bugs are raised."""
        shard = self.task.manifest.shards[row["shard"]]
        try:
            lines = self.translate_shard(shard).line_count
            return {"shard": shard.number, "lines": lines, "problem": "", "hint": ""}
        except HeedfulError as error:
            problem, hint = error.problem, error.hint
        except OSError as error:
            problem = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
            is_disk_full = error.errno == errno.ENOSPC
            hint = "free some disk space; finished shards are not lost" if is_disk_full else ""
        return {"shard": shard.number, "lines": 0, "problem": problem, "hint": hint}

    def translate_shard(self, shard: Shard) -> ShardRecord:
        """Translate a shard, rename its file into place and write its record."""
        output = self.task.manifest.output_path(self.task.folder, shard)
        if len(incomplete_paths(output)) >= MAX_ATTEMPTS:
            raise HeedfulError(
                f"{format_count(MAX_ATTEMPTS, 'worker')} died at the same shard, {output.name}",
                hint="if memory is short, use fewer --workers",
            )
        # Every attempt has its own name: after a lost host two may be in progress.
        temporary_path = output.parent / INCOMPLETE_FOLDER / f"{output.name}.{uuid4().hex}"
        try:
            temporary_path.parent.mkdir(exist_ok=True)
            temporary_path.touch()  # from here on, a killed attempt is counted
            self.translator = self.translator or self._load_translator()
            record = self._write_shard(shard, self.translator, temporary_path)
            manifest = read_json(self.task.folder / MANIFEST_FILE, "")
            if manifest["fingerprint"] != self.task.manifest.fingerprint:
                raise HeedfulError(f"{self.task.folder} now belongs to another translation")
            temporary_path.replace(output)
            sync_folder(self.task.folder)
            write_json(record_path(output), asdict(record))
            return record
        finally:
            temporary_path.unlink(missing_ok=True)

    def _load_translator(self) -> Translator:
        task = self.task
        for model_file in task.manifest.settings["model"]:
            check_file_fingerprint(model_file)
        translator = load(task.models, device=task.device, engine=task.engine, workers=1)
        if translator.name != task.engine_name:
            raise HeedfulError(
                f"the engine on {platform.node()} is {translator.name}, expected {task.engine_name}",
                hint="install the same packages on all hosts, or use --engine pytorch",
            )
        return translator

    def _write_shard(self, shard: Shard, translator: Translator, temporary_path: Path) -> ShardRecord:
        manifest, options, statistics = self.task.manifest, self.task.options, LineStatistics()

        def read_texts() -> Iterator[str]:  # unreadable lines are empty, and counted
            for line in read_shard(manifest, shard):
                if line.error:
                    statistics.unreadable += 1
                    problem = f"{manifest.input_path(shard).name}, line {line.number:,}: {line.error}"
                    statistics.first_unreadable = statistics.first_unreadable or problem
                yield line.text

        lines = check_trees(read_texts(), translator.model_folder, statistics, shard.lines_before)
        translations = options.translate(translator, lines, interactive=False, skip_failures=True)
        with (
            temporary_path.open("wb") as file,
            io.TextIOWrapper(file, encoding="utf-8", newline="\n", write_through=True) as text_file,
        ):
            write_translations(translations, text_file, options, statistics, shard.lines_before)
            text_file.flush()
            os.fsync(file.fileno())
        return ShardRecord(manifest.fingerprint, shard.number, shard.line_count, checksum(temporary_path), statistics)
