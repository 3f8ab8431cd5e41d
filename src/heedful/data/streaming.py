"""Streaming: pairs are read from the files while training, for corpora larger than the disk.

A shuffle buffer is the next records of every file, in proportion to its weight; they are cleaned, encoded,
shuffled by (seed, buffer index) and cut into batches. So every update depends only on the files and the
settings; the journal of positions only saves reading what came before.

data/cleaned.tsv              a cleaned sample: the start of every file, in proportion to its size
data/streaming.json           the inputs, their weights, and the split filter
data/stream_positions.jsonl   where each shuffle buffer starts, in its files and among the batches of the run
"""

import io
import json
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from heedful.data.cleaning import CleaningReport, HashSet, Pair, clean_pairs
from heedful.data.config import BatchConfig, CleaningConfig, PreprocessingConfig, PreprocessOptions
from heedful.data.corpus import CLEANED_FILE, RETRAIN_HINT, Corpus, CorpusInputs, IndexedPair, Mixture, check_fractions
from heedful.data.dataset import TokenIds
from heedful.data.formats.base import PairRecord
from heedful.data.preprocess import encode_pairs, iter_batches
from heedful.data.reader import FileChunk, files_fingerprint, group_parallel_files, is_splittable, write_tsv
from heedful.data.sampler import Indices, plan_batches
from heedful.data.splits import SplitFilter
from heedful.errors import HeedfulError
from heedful.files import append_line, is_gzip, read_json, write_json
from heedful.progress import Reporter, format_count
from heedful.tokenization.pair_tokenizer import PairTokenizer

ReadChunk = Callable[[FileChunk], Iterator[PairRecord]]  # reads a chunk with the options of its source


class ReadPosition(NamedTuple):
    """Where to continue reading a file, or two parallel ones."""

    epoch: int = 0  # complete passes over the file
    records_read: int = 0  # records read in the current pass
    offsets: tuple[int, ...] = ()  # bytes read of each file, if pairs are lines; otherwise empty


class RepeatingReader:
    """Reads one file, or two parallel ones, from a position on; starts over at the end."""

    def __init__(self, paths: tuple[Path, ...], read: ReadChunk, position: ReadPosition, *, plain_text: bool) -> None:
        self.paths, self.position = paths, position
        self._read, self._plain_text = read, plain_text
        self._line_based = is_splittable(paths, plain_text=plain_text)
        self._byte_counters: list[list[int]] = []
        self._records: Iterator[PairRecord] | None = None

    def take(self, count: int, *, repeat: bool = True) -> list[PairRecord]:
        """The next ``count`` records; fewer at the end of the file without ``repeat``."""
        records: list[PairRecord] = []
        while len(records) < count:
            if self._records is None:
                self._records = self._open_records()
            next_records = list(islice(self._records, count - len(records)))
            records += next_records
            offsets = tuple(offset for [offset] in self._byte_counters)
            self.position = self.position._replace(
                records_read=self.position.records_read + len(next_records), offsets=offsets
            )
            if len(records) < count:
                if not repeat:
                    break
                if not self.position.records_read:
                    raise HeedfulError(f"{self.paths[0]} contains no pairs", hint="omit it")
                self.position, self._records = ReadPosition(self.position.epoch + 1), None
        return records

    def _open_records(self) -> Iterator[PairRecord]:
        if not self._line_based:
            records = self._read(FileChunk(self.paths, plain_text=self._plain_text))
            return islice(records, self.position.records_read, None)
        starts = self.position.offsets or (0,) * len(self.paths)
        byte_ranges = tuple((offset, path.stat().st_size) for offset, path in zip(starts, self.paths, strict=True))
        self._byte_counters = [[offset] for offset in starts]
        chunk = FileChunk(
            self.paths,
            byte_ranges,
            self.position.records_read + 1,
            self._plain_text,
            tuple(partial(_ByteCountingStream, counter) for counter in self._byte_counters),
        )
        return self._read(chunk)


class _ByteCountingStream:
    """A stream that counts the bytes of the lines read."""

    def __init__(self, byte_counter: list[int], stream: io.BufferedReader) -> None:
        self._byte_counter, self._stream = byte_counter, stream

    def readline(self, size: int = -1) -> bytes:
        line = self._stream.readline(size)
        self._byte_counter[0] += len(line)
        return line


STREAMING_FILE = "streaming.json"
POSITIONS_FILE = "stream_positions.jsonl"
MAX_EMPTY_BUFFERS = 100  # consecutive buffers without usable pairs before it is an error
_INDEX_STRIDE = 1 << 32  # distance between the indices of the first pairs of two buffers


class FileGroup(NamedTuple):
    """A file of pairs or two parallel ones, and the index of its source."""

    corpus_index: int
    paths: tuple[Path, ...]


class BufferPosition(NamedTuple):
    """Where a shuffle buffer starts."""

    buffer_index: int
    batch_index: int  # batches of the run before the buffer
    positions: tuple[ReadPosition, ...]  # position in each group of files


@dataclass(frozen=True, slots=True)
class ShuffleBuffer:
    """The pairs in memory, and their batches."""

    position: BufferPosition
    sources: list[TokenIds]
    targets: list[TokenIds]
    batches: list[Indices]  # indices of pairs of the stream

    def __contains__(self, batch_index: int) -> bool:
        return self.position.batch_index <= batch_index < self.position.batch_index + len(self.batches)


def group_files(inputs: CorpusInputs) -> list[FileGroup]:
    """All files of a corpus; parallel ones together."""
    return [
        FileGroup(corpus_index, tuple(paths))
        for corpus_index, source in enumerate(inputs.sources)
        for paths in ([(path,) for path in source.paths] if inputs.plain_text else group_parallel_files(source.paths))
    ]


def open_repeating_reader(inputs: CorpusInputs, group: FileGroup, position: ReadPosition) -> RepeatingReader:
    """Open a group of files with the options of its source."""
    read = partial(inputs.read_records, inputs.sources[group.corpus_index])
    return RepeatingReader(group.paths, read, position, plain_text=inputs.plain_text)


class StreamingDataset:
    """The pairs of a run, and the batches of each update: both a dataset and a batch sampler."""

    def __init__(
        self, folder: Path, state: dict[str, Any], options: PreprocessOptions, tokenizer: PairTokenizer
    ) -> None:
        self.max_source_length: int = state["max_source_length"]
        self._pairs, self._updates_per_epoch = int(state["pairs"]), int(state["updates_per_epoch"])
        self._inputs = CorpusInputs.from_json(state["inputs"])
        self._split_filter = SplitFilter.from_json(state["split_filter"])
        self._weights = np.array(state["weights"]) / sum(state["weights"])
        self._options, self._tokenizer = options, tokenizer
        self._groups = group_files(self._inputs)
        self._positions_path = folder / POSITIONS_FILE
        self._known_positions = _read_positions(self._positions_path)
        self._buffers: list[ShuffleBuffer] = []
        self._start = BufferPosition(0, 0, (ReadPosition(),) * len(self._groups))
        self._seek(self._start)

    @classmethod
    def open(cls, folder: Path, options: PreprocessOptions, tokenizer: PairTokenizer) -> Self:
        """Open the stream of a folder; raises if its files have changed."""
        state = read_json(folder / STREAMING_FILE, RETRAIN_HINT)
        inputs = CorpusInputs.from_json(state["inputs"])
        current_files = files_fingerprint(inputs.paths)
        changed = [stored_file[0] for stored_file in state["files"] if stored_file not in current_files]
        if changed:
            raise HeedfulError(
                f"{changed[0]} was changed or deleted since this run started", hint="restore it, or train again"
            )
        return cls(folder, state, options, tokenizer)

    def __len__(self) -> int:
        return self._pairs

    def source(self, index: int) -> TokenIds:
        """Token ids of one source sentence of the latest update."""
        return self._get_buffer(index // _INDEX_STRIDE).sources[index % _INDEX_STRIDE]

    def target(self, index: int) -> TokenIds:
        """Token ids of one target sentence of the latest update."""
        return self._get_buffer(index // _INDEX_STRIDE).targets[index % _INDEX_STRIDE]

    def updates_per_epoch(self, epoch: int) -> int:
        """About one pass over all files; a stream has no end."""
        return self._updates_per_epoch

    def update(self, epoch: int, index: int) -> list[Indices]:
        count = self._options.gradient_accumulation
        first = (epoch * self._updates_per_epoch + index) * count
        batch_indices = range(first, first + count)
        self._buffers = [buffer for buffer in self._buffers if any(index in buffer for index in batch_indices)]
        return list(map(self._get_batch, batch_indices))

    def _get_batch(self, batch_index: int) -> Indices:
        for buffer in self._buffers:
            if batch_index in buffer:
                return buffer.batches[batch_index - buffer.position.batch_index]
        earlier_positions = [position for position in self._known_positions if position.batch_index <= batch_index]
        nearest = max(earlier_positions, key=lambda position: position.buffer_index, default=self._start)
        if self._next_position.batch_index > batch_index or nearest.buffer_index > self._next_position.buffer_index:
            self._seek(nearest)
        for _ in range(MAX_EMPTY_BUFFERS + batch_index - self._next_position.batch_index):
            buffer = self._read_next_buffer()
            if batch_index in buffer:
                self._buffers.append(buffer)
                return buffer.batches[batch_index - buffer.position.batch_index]
        raise HeedfulError("the files contain no more usable pairs", hint="check whether they were changed")

    def _get_buffer(self, buffer_index: int) -> ShuffleBuffer:
        return next(buffer for buffer in self._buffers if buffer.position.buffer_index == buffer_index)

    def _seek(self, buffer_position: BufferPosition) -> None:
        self._next_position = buffer_position
        self._readers = [
            open_repeating_reader(self._inputs, group, position)
            for group, position in zip(self._groups, buffer_position.positions, strict=True)
        ]

    def _read_next_buffer(self) -> ShuffleBuffer:
        buffer_position = self._next_position
        buffer_index, batch_index, positions = buffer_position
        if all(known_position.buffer_index != buffer_index for known_position in self._known_positions):
            line = json.dumps({"buffer": buffer_index, "batch": batch_index, "positions": positions})

            def is_missing(last_line: str) -> bool:  # other ranks append lines too
                last_position = _parse_position(last_line)
                return last_position is None or last_position.buffer_index < buffer_index

            with suppress(OSError):  # the journal only saves time, and the folder may be read-only
                append_line(self._positions_path, line, is_missing)
            self._known_positions.append(buffer_position)
        sources, targets = self._encode_pairs(self._read_training_pairs(buffer_index))
        batches = _plan_batches(sources, targets, self._options.batching, self._options.seed, buffer_index)
        self._next_position = BufferPosition(
            buffer_index + 1, batch_index + len(batches), tuple(reader.position for reader in self._readers)
        )
        batches = [batch + buffer_index * _INDEX_STRIDE for batch in batches]
        return ShuffleBuffer(buffer_position, sources, targets, batches)

    def _read_training_pairs(self, buffer_index: int) -> Iterator[IndexedPair]:
        size, cleaning = self._options.preprocessing.shuffle_buffer_pairs, self._options.cleaning
        start_counts, end_counts = (
            np.floor(index * size * self._weights) for index in (buffer_index, buffer_index + 1)
        )
        for group, reader, count in zip(self._groups, self._readers, end_counts - start_counts, strict=True):
            tags, trees = self._inputs.sources[group.corpus_index].tags, self._inputs.trees
            records = reader.take(int(count))
            for pair in clean_pairs(records, cleaning, CleaningReport(), trees=trees, tags=tags):
                if self._split_filter(pair):
                    yield group.corpus_index, pair

    def _encode_pairs(self, pairs: Iterator[IndexedPair]) -> tuple[list[TokenIds], list[TokenIds]]:
        sides: tuple[list[TokenIds], list[TokenIds]] = ([], [])
        for batch in iter_batches(pairs):
            for token_ids in zip(*encode_pairs(batch, self._tokenizer), strict=True):
                if max(map(len, token_ids)) < self._options.max_length:  # leaves room for END
                    for side, ids in zip(sides, token_ids, strict=True):
                        side.append(np.array(ids, dtype=np.uint32))
        return sides


def _plan_batches(
    sources: Sequence[Sized], targets: Sequence[Sized], config: BatchConfig, seed: int, epoch: int
) -> list[Indices]:
    source_lengths, target_lengths = (  # with END
        np.array([len(ids) + 1 for ids in side], dtype=np.int32) for side in (sources, targets)
    )
    return plan_batches(source_lengths, target_lengths, config, seed=seed, epoch=epoch)


def _read_positions(path: Path) -> list[BufferPosition]:
    """Positions of earlier buffers; a line that a crash cut short is ignored."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    return [position for position in map(_parse_position, text.splitlines()) if position is not None]


def _parse_position(line: str) -> BufferPosition | None:
    try:
        state = json.loads(line)
        positions = tuple(ReadPosition(epoch, record, tuple(offsets)) for epoch, record, offsets in state["positions"])
        return BufferPosition(int(state["buffer"]), int(state["batch"]), positions)
    except (ValueError, TypeError, KeyError):
        return None


COMPRESSION_RATIO = 3  # assumed ratio of text to its gzip size
MIN_SAMPLE_RECORDS = 100  # minimum sampled records of each file
MAX_OPEN_FILES = 400  # files that can be open at once


class StreamSample(NamedTuple):
    """A cleaned sample of a stream, and estimates of its size."""

    corpus: Corpus
    groups: list[FileGroup]
    record_counts: list[float]  # estimated records of each group
    usable_fraction: float  # fraction of the records that are usable

    @property
    def sizes(self) -> tuple[int, ...]:
        """Estimated pairs of each source."""
        records = [0.0] * len(self.corpus.sources)
        for group, count in zip(self.groups, self.record_counts, strict=True):
            records[group.corpus_index] += count
        return tuple(round(self.usable_fraction * count) for count in records)


def sample_corpus(
    inputs: CorpusInputs, folder: Path, cleaning: CleaningConfig, config: PreprocessingConfig, report: Reporter
) -> tuple[StreamSample, list[str]]:
    """Clean a sample of all files; returns it with report lines."""
    check_fractions(inputs.sources)
    groups = group_files(inputs)
    if not all(path.is_file() for source in inputs.sources for path in source.paths):
        problem = "streaming reads files repeatedly, which standard input and pipes do not allow"
        raise HeedfulError(problem, hint="use files")
    if len(groups) > MAX_OPEN_FILES:
        problem = f"{len(groups)} files are too many for streaming"
        raise HeedfulError(problem, hint=f"merge them into {MAX_OPEN_FILES} or fewer")
    sizes = [sum(path.stat().st_size for path in group.paths) for group in groups]
    counts, record_counts = CleaningReport(unit=inputs.unit), list[float]()
    pair_counts = [0] * len(inputs.sources)

    def iter_pairs() -> Iterator[Pair]:
        for group, size in zip(groups, sizes, strict=True):
            sample_size = max(MIN_SAMPLE_RECORDS, round(config.sample_pairs * size / max(1, sum(sizes))))
            reader = open_repeating_reader(inputs, group, ReadPosition())
            records = reader.take(sample_size, repeat=False)
            record_counts.append(_estimate_records(records, size, sample_size, compressed=is_gzip(group.paths[0])))
            tags, previous_count = inputs.sources[group.corpus_index].tags, counts.accepted
            # As in the stream: a pair of another file is not a duplicate, but mixed in to be seen more often.
            yield from clean_pairs(records, cleaning, counts, trees=inputs.trees, tags=tags, seen_hashes=HashSet())
            pair_counts[group.corpus_index] += counts.accepted - previous_count

    pairs = list(report.track(iter_pairs(), "sampling", unit=f"{inputs.unit}s"))
    write_tsv(pairs, folder / CLEANED_FILE)
    for source, pair_count in zip(inputs.sources, pair_counts, strict=True):
        if not pair_count or counts.accepted < 2:
            raise HeedfulError(
                f"the start of {source.name} contains almost no usable pairs",
                hint=f"see why: heedful corpus stats {source.paths[0]}",
            )
    sample = StreamSample(
        Corpus(folder, inputs.sources, (tuple(pair_counts),), tuple(pairs)),
        groups,
        record_counts,
        counts.accepted / counts.read,
    )
    total = f"a stream of about {format_count(sum(sample.sizes), inputs.unit)}"
    lines = [f"{total}; of a sample: {line}" for line in counts.summary_lines()[:1]] + counts.summary_lines()[1:]
    for line in lines:
        report.info(line)
    return sample, lines


def _estimate_records(records: list[PairRecord], size: int, sample_size: int, *, compressed: bool) -> float:
    """Estimated records of a file: exact if all were sampled, otherwise by its size."""
    if len(records) < sample_size:
        return float(max(len(records), 1))
    length = sum(len(f"{record.source}{record.target}".encode()) + 2 for record in records) / len(records)
    return max(float(len(records)), size * (COMPRESSION_RATIO if compressed else 1) / length)


def write_streaming_file(
    sample: StreamSample,
    corpus: Corpus,
    split_filter: SplitFilter,
    options: PreprocessOptions,
    tokenizer: PairTokenizer,
    inputs: CorpusInputs,
) -> tuple[StreamingDataset, Mixture]:
    """Write streaming.json; returns the stream, and about how much of each source an epoch sees."""
    mixture = Mixture(sample.sizes, tuple(source.fraction for source in corpus.sources))
    weights = [
        record_count * mixture.upsampling_factors[group.corpus_index]
        for group, record_count in zip(sample.groups, sample.record_counts, strict=True)
    ]
    max_source_length, batch_count, pair_count = _measure_sample(corpus, split_filter, options, tokenizer)
    updates = batch_count / pair_count * sum(mixture.counts) / options.gradient_accumulation
    (corpus.folder / POSITIONS_FILE).unlink(missing_ok=True)
    state = {
        "inputs": inputs.to_json(),
        "files": files_fingerprint(path for source in inputs.sources for path in source.paths),
        "split_filter": split_filter.to_json(),
        "weights": weights,
        "pairs": sum(mixture.counts),
        "updates_per_epoch": max(1, round(updates)),
        "max_source_length": max_source_length,
    }
    write_json(corpus.folder / STREAMING_FILE, state)
    return StreamingDataset(corpus.folder, state, options, tokenizer), mixture


def _measure_sample(
    corpus: Corpus, split_filter: SplitFilter, options: PreprocessOptions, tokenizer: PairTokenizer
) -> tuple[int, int, int]:
    """The longest source, the batches of the sample, and its training pairs."""
    sources, targets = list[Sized](), list[Sized]()
    training_pairs = ((index, pair) for index, pair in corpus.iter_with_index() if split_filter(pair))
    for batch in iter_batches(training_pairs):
        for source, target in zip(*encode_pairs(batch, tokenizer), strict=True):
            if max(len(source), len(target)) < options.max_length:
                sources.append(source)
                targets.append(target)
    if not sources:
        raise HeedfulError(f"every pair of the sample has more than {options.max_length} tokens")
    batches = _plan_batches(sources, targets, options.batching, seed=1, epoch=0)
    return max(map(len, sources)), len(batches), len(sources)
