"""Cleaning and statistics of a large corpus, chunk by chunk in several processes.

The result is the same as that of cleaning pair by pair. Duplicates are removed when all chunks are complete:
the first occurrence, in the order of the files, stays.

data/chunks/task.json      what to clean, and how
data/chunks/00000/ ...     a complete chunk: pairs, hashes, positions and counts; it survives a crash
data/cleaned/00000.hashes  hashes of source and target for the validation split, 16 bytes per pair
data/cleaned/00000.json    written last: characters of each source, and the alphabet
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from heedful.data.cleaning import CleaningReport, filter_pair, mark_first_occurrences, pair_hash
from heedful.data.config import CleaningConfig, PreprocessingConfig
from heedful.data.corpus import (
    CLEANING_RECORD,
    LINES_PER_READ,
    RETRAIN_HINT,
    Corpus,
    CorpusInputs,
    CorpusStatistics,
    IndexedPair,
    iter_lines,
    write_corpus,
)
from heedful.data.formats.base import PairRecord
from heedful.data.process_pool import Advance, replace_folder, run_tasks
from heedful.data.reader import FileChunk, files_fingerprint, split_files
from heedful.data.splits import split_hash
from heedful.files import atomic_write, checksum, read_json, write_json
from heedful.progress import Reporter

CHUNKS_FOLDER = "chunks"

TASK_FILE = "task.json"

CHUNK_REPORT = "report.json"

DUPLICATE = "duplicate"

PROGRESS_INTERVAL = 5_000

RecordPosition = tuple[int, int]
"""Chunk and record."""


@dataclass
class ChunkReport:
    """The result of cleaning a chunk, before duplicates are removed."""

    counts: CleaningReport = field(default_factory=CleaningReport)
    first_dropped: dict[str, int] = field(default_factory=dict)
    """The first record that was dropped for each reason."""
    origin_starts: list[tuple[int, str]] = field(default_factory=list)
    """The first pair of each file: an archive has several."""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"counts": vars(self.counts), "first_dropped": self.first_dropped, "origin_starts": self.origin_starts}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "ChunkReport":
        """The report that ``to_json`` described."""
        origin_starts = [(number, origin) for number, origin in state["origin_starts"]]
        return cls(CleaningReport(**state["counts"]), state["first_dropped"], origin_starts)


def clean_in_parallel(
    inputs: CorpusInputs, folder: Path, cleaning: CleaningConfig, config: PreprocessingConfig, report: Reporter
) -> tuple[Corpus, list[CleaningReport]]:
    """Clean all sources; returns the corpus and a report for each source."""
    chunks_folder = folder / CHUNKS_FOLDER
    chunks = [
        (index, chunk)
        for index, source in enumerate(inputs.sources)
        for chunk in split_files(source.paths, config.chunk_bytes, plain_text=inputs.plain_text)
    ]
    _prepare_chunks_folder(chunks_folder, inputs, chunks, cleaning)
    missing = [index for index, (_, chunk) in enumerate(chunks) if not _is_chunk_complete(chunks_folder, index, chunk)]
    with report.task("reading", unit=f"{inputs.unit}s") as task:
        run_tasks(clean_chunk, folder, missing, config.processes, task)
    reports = [ChunkReport.from_json(_read_chunk_report(chunks_folder, index)) for index in range(len(chunks))]
    keep_masks = _find_unique_pairs(chunks_folder, reports, deduplicate=cleaning.deduplicate)
    corpus_indices = [source for source, _ in chunks]
    counts = _merge_reports(chunks_folder, reports, keep_masks, corpus_indices, inputs)
    lines = _iter_unique_lines(chunks_folder, corpus_indices, keep_masks)
    pair_count = sum(count.accepted for count in counts)
    corpus = write_corpus(lines, folder, inputs.sources, pair_count, config.shard_pairs)
    return corpus, counts


def delete_chunks(folder: Path) -> None:
    """Delete the chunks, once the cleaned corpus is complete."""
    shutil.rmtree(folder / CHUNKS_FOLDER, ignore_errors=True)


def _prepare_chunks_folder(
    folder: Path, inputs: CorpusInputs, chunks: Sequence[tuple[int, FileChunk]], cleaning: CleaningConfig
) -> None:
    """Write the task file; chunks of another task are deleted."""
    task_config = {
        "inputs": inputs.to_json(),
        "cleaning": cleaning.model_dump(),
        "chunks": [{"source": corpus_index, **chunk.to_json()} for corpus_index, chunk in chunks],
    }
    path = folder / TASK_FILE
    if path.is_file() and read_json(path, RETRAIN_HINT) != json.loads(json.dumps(task_config)):  # no tuples
        shutil.rmtree(folder)
    folder.mkdir(exist_ok=True)
    write_json(path, task_config)


def clean_chunk(folder: Path, chunk_index: int, advance: Advance) -> None:
    """Clean one chunk of the task in a folder: called in a worker."""
    chunks_folder = folder / CHUNKS_FOLDER
    task_config = read_json(chunks_folder / TASK_FILE, RETRAIN_HINT)
    chunk_state = task_config["chunks"][chunk_index]
    chunk, inputs = FileChunk.from_json(chunk_state), CorpusInputs.from_json(task_config["inputs"])
    source, cleaning = (inputs.sources[chunk_state["source"]], CleaningConfig.from_settings(task_config["cleaning"]))
    input_fingerprint = files_fingerprint(chunk.paths)
    records = inputs.read_records(source, chunk)
    with replace_folder(chunks_folder / f"{chunk_index:05}") as partial_folder:
        report = _write_chunk(records, partial_folder, cleaning, source.tags, trees=inputs.trees, advance=advance)
        checksums = {name: checksum(partial_folder / name) for name in ("cleaned.tsv", "hashes", "positions")}
        write_json(
            partial_folder / CHUNK_REPORT, report.to_json() | {"fingerprint": input_fingerprint, "blake2b": checksums}
        )


def _write_chunk(
    records: Iterator[PairRecord],
    folder: Path,
    cleaning: CleaningConfig,
    tags: Sequence[str],
    *,
    trees: bool,
    advance: Advance,
) -> ChunkReport:
    report = ChunkReport()
    counts, hashes, positions = report.counts, list[int](), list[RecordPosition]()
    with (
        (folder / "cleaned.tsv").open("wb", buffering=1 << 18) as text_file,
        (folder / "hashes").open("wb") as hash_file,
        (folder / "positions").open("wb") as position_file,
    ):

        def flush() -> None:
            hash_file.write(np.array(hashes, dtype="<u8").tobytes())
            position_file.write(np.array(positions, dtype="<i8").tobytes())
            hashes.clear()
            positions.clear()

        for record_index, record in enumerate(records):
            counts.count_record(record)
            pair, reason = filter_pair(record, cleaning, trees=trees, tags=tags)
            if reason:
                report.first_dropped.setdefault(reason, record_index)
                counts.drop(reason, record)
            else:
                if not report.origin_starts or report.origin_starts[-1][1] != record.origin:
                    report.origin_starts.append((counts.accepted, record.origin))
                counts.accepted += 1
                hashes.append(pair_hash(pair) or 1)
                positions.append((record_index, record.line))
                text_file.write(("\t".join(filter(None, pair)) + "\n").encode())
            if counts.read % PROGRESS_INTERVAL == 0:
                flush()
                advance(PROGRESS_INTERVAL)
        flush()
        advance(counts.read % PROGRESS_INTERVAL)
        for file in (text_file, hash_file, position_file):
            file.flush()
            os.fsync(file.fileno())
    return report


def _read_chunk_report(folder: Path, chunk_index: int) -> dict[str, Any]:
    return read_json(folder / f"{chunk_index:05}" / CHUNK_REPORT, RETRAIN_HINT)


def _is_chunk_complete(folder: Path, chunk_index: int, chunk: FileChunk) -> bool:
    """Whether a chunk is complete, intact, and of files that have not changed."""
    chunk_folder = folder / f"{chunk_index:05}"
    if not chunk_folder.is_dir():
        return False
    state = _read_chunk_report(folder, chunk_index)
    is_intact = all(checksum(chunk_folder / name) == value for name, value in state["blake2b"].items())
    if is_intact and state["fingerprint"] == files_fingerprint(chunk.paths):
        return True
    shutil.rmtree(chunk_folder)
    return False


def _find_unique_pairs(folder: Path, reports: Sequence[ChunkReport], *, deduplicate: bool) -> list[NDArray[np.bool_]]:
    """Mark the pairs of each chunk that are not duplicates."""
    if not deduplicate:
        return [np.ones(report.counts.accepted, dtype=np.bool_) for report in reports]
    return mark_first_occurrences(
        [_map_array(folder / f"{chunk_index:05}" / "hashes", "<u8") for chunk_index in range(len(reports))]
    )


def _map_array(path: Path, dtype: str) -> NDArray[Any]:
    if not path.stat().st_size:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r").view(np.ndarray)


def _merge_reports(
    folder: Path,
    reports: Sequence[ChunkReport],
    keep_masks: Sequence[NDArray[np.bool_]],
    corpus_indices: Sequence[int],
    inputs: CorpusInputs,
) -> list[CleaningReport]:
    """One report per source, as if its records had been cleaned one by one."""
    counts = [CleaningReport(unit=inputs.unit) for _ in inputs.sources]
    first_positions: list[dict[str, RecordPosition]] = [{} for _ in inputs.sources]
    for chunk_index, (corpus_index, report, mask) in enumerate(zip(corpus_indices, reports, keep_masks, strict=True)):
        chunk_counts = report.counts
        duplicates = np.flatnonzero(~mask)
        if len(duplicates):
            positions = _map_array(folder / f"{chunk_index:05}" / "positions", "<i8").reshape(-1, 2)
            chunk_counts.dropped[DUPLICATE] = len(duplicates)
            chunk_counts.accepted -= len(duplicates)
            report.first_dropped[DUPLICATE] = int(positions[duplicates[0], 0])
            chunk_counts.examples[DUPLICATE] = [
                f"{_find_origin(report, index)}:{positions[index, 1]}" for index in duplicates[:3].tolist()
            ]
        counts[corpus_index].add(chunk_counts)
        for reason, record_index in report.first_dropped.items():
            first_positions[corpus_index].setdefault(reason, (chunk_index, record_index))
    for count, reason_positions in zip(counts, first_positions, strict=True):
        count.dropped = Counter(
            {reason: count.dropped[reason] for reason in sorted(reason_positions, key=reason_positions.__getitem__)}
        )
    return counts


def _find_origin(report: ChunkReport, index: int) -> str:
    return [origin for start, origin in report.origin_starts if start <= index][-1]


def _iter_unique_lines(
    folder: Path, corpus_indices: Sequence[int], keep_masks: Sequence[NDArray[np.bool_]]
) -> Iterator[tuple[int, Sequence[bytes]]]:
    """The lines of all chunks, without duplicates."""
    for chunk_index, (corpus_index, mask) in enumerate(zip(corpus_indices, keep_masks, strict=True)):
        start = 0
        for _, lines in iter_lines(folder / f"{chunk_index:05}" / "cleaned.tsv", [len(mask)]):
            keep_flags = mask[start : start + len(lines)]
            start += len(lines)
            if not keep_flags.all():
                lines = [line for line, is_unique in zip(lines, keep_flags.tolist(), strict=True) if is_unique]
            yield corpus_index, lines


def compute_statistics(corpus: Corpus, processes: int, report: Reporter, unit: str) -> CorpusStatistics:
    """Statistics of a corpus in shards; also writes the hashes for the validation split."""
    paths = [path.with_suffix(".json") for path in corpus.paths]
    missing = [index for index, path in enumerate(paths) if not path.is_file()]
    with report.task("computing statistics", total=sum(corpus.sizes), unit=f"{unit}s") as task:
        run_tasks(compute_shard_statistics, corpus.folder, missing, processes, task)
    shard_statistics = [read_json(path, RETRAIN_HINT) for path in paths]
    characters = zip(*(statistics["characters"] for statistics in shard_statistics), strict=True)
    alphabet = frozenset[str]().union(*(statistics["alphabet"] for statistics in shard_statistics))
    return CorpusStatistics(tuple(map(sum, characters)), alphabet)


def compute_shard_statistics(folder: Path, shard_index: int, advance: Advance) -> None:
    """Statistics and hashes of one shard: called in a worker."""
    state = read_json(folder / CLEANING_RECORD, RETRAIN_HINT)
    corpus = Corpus(folder, (), tuple(map(tuple, state["shards"])))
    path = corpus.paths[shard_index]

    def write_hashes(file: BinaryIO) -> Iterator[IndexedPair]:
        for count, (corpus_index, pair) in enumerate(corpus.iter_shard(shard_index), start=1):
            file.write(split_hash(pair.source).to_bytes(8, "little"))
            file.write(split_hash(pair.target).to_bytes(8, "little"))
            yield corpus_index, pair
            if count % LINES_PER_READ == 0:
                advance(LINES_PER_READ)

    with atomic_write(path.with_suffix(".hashes")) as file:
        statistics = CorpusStatistics.from_pairs(write_hashes(file), len(corpus.shard_sizes[shard_index]))
    advance(sum(corpus.shard_sizes[shard_index]) % LINES_PER_READ)
    write_json(
        path.with_suffix(".json"),
        {"characters": statistics.characters, "alphabet": "".join(sorted(statistics.alphabet))},
    )
