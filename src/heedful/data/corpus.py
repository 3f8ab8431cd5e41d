"""A corpus: its sources (the user's files), how much of each an epoch sees, and its cleaned text on disk.

The rule to remember: which pairs an epoch sees depends only on the seed and the epoch, so a resumed run sees
the same pairs.

data/cleaned.tsv            cleaned pairs of all sources, one source after another, with their tags; or
data/cleaned/00000.tsv ...  shards, each a random sample of all pairs
data/cleaning.json          written last: sizes, report and checksums
"""

import itertools
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from heedful.data.cleaning import Pair, read_cleaned_pairs
from heedful.data.config import ReadingConfig
from heedful.data.formats.base import PairRecord, ReadOptions
from heedful.data.reader import FileChunk
from heedful.errors import HeedfulError
from heedful.files import atomic_write, checksum, read_json, sync_folder, write_json
from heedful.tokenization.special_tokens import strip_tags

T = TypeVar("T")

Direction = tuple[str, str]  # source and target language

MAX_TOTAL_FRACTION = 0.99  # maximum sum of the fractions, if other sources have none


@dataclass(frozen=True, slots=True)
class CorpusSource:
    """Files of pairs that share languages, tags and weight."""

    paths: tuple[Path, ...]
    languages: tuple[str, str] | None = None  # source and target language, if known
    tags: tuple[str, ...] = ()  # tags put before each source sentence, after cleaning (tokenization/special_tokens.py)
    fraction: float = 0.0  # fraction of an epoch; 0: each pair once
    use_for_validation: bool = True  # whether pairs may be held out for validation
    reverse: bool = False  # whether the files have the target first: source and target are swapped

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise HeedfulError(
                f"{self.name}: {self.fraction:g} is not a valid fraction of an epoch",
                hint="use a number between 0 and 1, such as 0.3",
            )

    @property
    def direction(self) -> Direction | None:
        """Its languages, if a tag selects the target language: one of several directions."""
        return self.languages if self.languages and self.languages[1] in self.tags else None

    @property
    def name(self) -> str:
        """Files and tags, for messages."""
        files = " and ".join(map(str, self.paths))
        return f"{files} ({', '.join(self.tags)})" if self.tags else files

    def to_json(self) -> dict[str, Any]:
        return _SOURCE_ADAPTER.dump_python(self, mode="json")  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "CorpusSource":
        return _SOURCE_ADAPTER.validate_python(state)


_SOURCE_ADAPTER = TypeAdapter(CorpusSource)


def check_fractions(sources: Sequence[CorpusSource]) -> None:
    """Raise if the fractions leave no room for the sources without one."""
    total = sum(source.fraction for source in sources)
    if total > MAX_TOTAL_FRACTION and any(not source.fraction for source in sources):
        raise HeedfulError(
            f"the fractions of an epoch add up to {total:g}, which leaves nothing for the other pairs",
            hint="make them add up to less than 1",
        )


@dataclass(frozen=True, slots=True)
class Mixture:
    """Sizes of consecutive sources, and how much of each an epoch sees."""

    sizes: tuple[int, ...]  # pairs of each source
    fractions: tuple[float, ...]  # fraction of an epoch; 0: each pair once

    @property
    def is_unweighted(self) -> bool:
        """Whether an epoch is every pair once."""
        return not any(self.fractions)

    @property
    def counts(self) -> tuple[int, ...]:
        """Pairs of each source in an epoch; if all have fractions, an epoch has as many pairs as the corpus.

        >>> Mixture((600, 9000), (0.0, 0.4)).counts
        (600, 400)
        >>> Mixture((900, 100), (0.5, 0.5)).counts
        (500, 500)
        """
        sum_of_fractions = math.fsum(self.fractions)
        unweighted = sum(size for size, fraction in zip(self.sizes, self.fractions, strict=True) if not fraction)
        total = unweighted / (1 - sum_of_fractions) if unweighted else sum(self.sizes) / max(sum_of_fractions, 1e-9)
        return tuple(
            (max(1, round(fraction * total)) if fraction else size) if size else 0
            for size, fraction in zip(self.sizes, self.fractions, strict=True)
        )

    @property
    def upsampling_factors(self) -> tuple[float, ...]:
        """How often an epoch sees a pair of each source, on average."""
        return tuple(count / max(size, 1) for count, size in zip(self.counts, self.sizes, strict=True))

    def indices(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """The pairs of an epoch; no pair of a source repeats before all of its pairs were seen."""
        starts = accumulate(self.sizes, initial=0)
        index_arrays = [
            start + (_cycle_permutations(size, count, [seed, number], epoch * count) if fraction else np.arange(size))
            for number, (start, size, count, fraction) in enumerate(
                zip(starts, self.sizes, self.counts, self.fractions, strict=False)
            )
        ]
        return np.concatenate(index_arrays).astype(np.int64)


def _cycle_permutations(size: int, count: int, seed: list[int], first: int) -> NDArray[np.int64]:
    """``count`` items from index ``first`` of an endless sequence of permutations."""
    if not size:
        return np.empty(0, np.int64)
    cycles = range(first // size, (first + count - 1) // size + 1)
    sequence = np.concatenate([np.random.default_rng([*seed, cycle]).permutation(size) for cycle in cycles])
    return sequence[first - cycles[0] * size :][:count]


def upsample(items: Iterator[T], factor: float) -> Iterator[T]:
    """Repeat every item ``factor`` times on average, evenly spaced.

    >>> "".join(upsample(iter("abcd"), 1.5)), "".join(upsample(iter("abcd"), 0.5))
    ('abbcdd', 'bd')
    """
    for number, item in enumerate(items):
        for _ in range(math.floor((number + 1) * factor) - math.floor(number * factor)):
            yield item


@dataclass(frozen=True, slots=True)
class CorpusInputs:
    """The user's files: what to train on, what to validate on, and how to read it."""

    sources: tuple[CorpusSource, ...]
    validation_sources: tuple[CorpusSource, ...] = ()
    """Validation files; their fractions are ignored. None: pairs are held out."""
    original_validation: tuple[CorpusSource, ...] = ()  # original-domain validation pairs, when fine-tuning
    languages: tuple[str, str] | None = None  # default languages of sources that name none
    plain_text: bool = False  # whether the files are plain text instead of pairs
    trees: bool = False  # whether sources come with the dependency heads of their words
    reading: ReadingConfig = ReadingConfig()  # noqa: RUF009 - frozen
    """How TMX, PO, XLIFF and CSV files are read."""

    def __post_init__(self) -> None:
        if self.tags and (self.trees or self.plain_text):
            raise HeedfulError(
                f"{'dependency trees' if self.trees else 'plain texts'} cannot be tagged", hint="omit the tags"
            )

    @property
    def paths(self) -> tuple[Path, ...]:
        sources = (*self.sources, *self.validation_sources, *self.original_validation)
        return tuple(path for source in sources for path in source.paths)

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags of all sources, in order of appearance."""
        sources = (*self.sources, *self.validation_sources)
        return tuple(dict.fromkeys(tag for source in sources for tag in source.tags))

    @property
    def unit(self) -> str:
        return "line" if self.plain_text else "pair"

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions, if tags select the target language."""
        return tuple(dict.fromkeys(source.direction for source in self.sources if source.direction))

    def read_records(self, source: CorpusSource, chunk: FileChunk | None = None) -> Iterator[PairRecord]:
        """Read the files of a source, or a chunk of them."""
        chunk = chunk or FileChunk(source.paths, plain_text=self.plain_text)
        languages = source.languages or self.languages
        if not source.reverse:
            return chunk.read_records(ReadOptions(languages, self.reading))
        assert languages  # a direction names them
        records = chunk.read_records(ReadOptions((languages[1], languages[0]), self.reading))
        return (record._replace(source=record.target, target=record.source) for record in records)

    def to_json(self) -> dict[str, Any]:
        """Plain data of the training sources; validation is not part of it."""
        excluded = {"validation_sources", "original_validation"}
        return _INPUTS_ADAPTER.dump_python(self, mode="json", exclude=excluded)  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "CorpusInputs":
        return _INPUTS_ADAPTER.validate_python(state)


_INPUTS_ADAPTER = TypeAdapter(CorpusInputs)


def make_sources(paths: Sequence[Path], languages: tuple[str, str] | None = None) -> tuple[CorpusSource, ...]:
    """The files of one source; none without files."""
    return (CorpusSource(tuple(paths), languages),) if paths else ()


CLEANED_FILE = "cleaned.tsv"
CLEANED_FOLDER = "cleaned"
CLEANING_RECORD = "cleaning.json"
PREPROCESSED_FILE = "preprocessed.json"  # written last of all: what preprocessing did, and the settings of the run
RETRAIN_HINT = "delete the model folder and train again"
LINES_PER_READ = 10_000
SHARD_BUFFER_BYTES = 1 << 18  # buffered bytes per shard

IndexedPair = tuple[int, Pair]  # the index of a source, and one of its pairs

IndexedLines = Iterable[tuple[int, Sequence[bytes]]]  # the index of a source, and lines of its pairs

PairFactory = Callable[[], Iterator[Pair]]  # each call returns the same pairs from the start


class DirectionPairs(NamedTuple):
    """The pairs of one direction."""

    direction: Direction
    pairs: PairFactory
    size: int
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class Corpus:
    """The cleaned pairs of all sources; each file has one source after another."""

    folder: Path
    sources: tuple[CorpusSource, ...]
    shard_sizes: tuple[tuple[int, ...], ...]  # pairs of each source in each shard
    pairs: tuple[Pair, ...] | None = field(default=None, repr=False, compare=False)
    """All pairs, if they are few enough to stay in memory; the text on disk is the same."""

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(self.folder / name for name in list_shard_names(len(self.shard_sizes)))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Pairs of each source."""
        return tuple(map(sum, zip(*self.shard_sizes, strict=True)))

    @property
    def mixture(self) -> Mixture:
        """How much of each source an epoch sees."""
        return Mixture(self.sizes, tuple(source.fraction for source in self.sources))

    def iter_with_index(self) -> Iterator[IndexedPair]:
        """All pairs, each with the index of its source."""
        return itertools.chain.from_iterable(map(self.iter_shard, range(len(self.shard_sizes))))

    def iter_shard(self, shard_index: int) -> Iterator[IndexedPair]:
        """The pairs of one shard."""
        pairs = read_cleaned_pairs(self.paths[shard_index]) if self.pairs is None else iter(self.pairs)
        for corpus_index, size in enumerate(self.shard_sizes[shard_index]):
            for pair in itertools.islice(pairs, size):
                yield corpus_index, pair

    def iter_pairs(
        self, *, use_for_validation: bool | None = None, direction: Direction | None = None
    ) -> Iterator[Pair]:
        """All pairs, or those that may be held out, or the others; or those of one direction."""
        included = [
            use_for_validation in (None, source.use_for_validation) and direction in (None, source.direction)
            for source in self.sources
        ]
        return (pair for corpus_index, pair in self.iter_with_index() if included[corpus_index])

    def group_by_direction(self) -> list[DirectionPairs]:
        """The pairs of each direction that may be held out."""
        sizes, reverse = Counter[Direction](), dict[Direction, bool]()
        for source, size in zip(self.sources, self.sizes, strict=True):
            if source.direction and source.use_for_validation:
                sizes[source.direction] += size
                reverse.setdefault(source.direction, source.reverse)
        return [
            DirectionPairs(
                direction,
                partial(self.iter_pairs, use_for_validation=True, direction=direction),
                size,
                reverse[direction],
            )
            for direction, size in sizes.items()
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain data, without the folder."""
        return {"sources": [source.to_json() for source in self.sources], "shards": self.shard_sizes}

    @classmethod
    def from_json(cls, folder: Path, state: dict[str, Any]) -> Self:
        shard_sizes = tuple(tuple(map(int, sizes)) for sizes in state["shards"])
        return cls(folder, tuple(map(CorpusSource.from_json, state["sources"])), shard_sizes)


@dataclass(frozen=True, slots=True)
class CorpusStatistics:
    """Characters and alphabet of a corpus or a shard."""

    characters: tuple[int, ...]  # characters of both sides, for each source
    alphabet: frozenset[str]

    @classmethod
    def from_pairs(cls, pairs: Iterable[IndexedPair], num_sources: int) -> "CorpusStatistics":
        """Count the characters of these pairs."""
        characters, alphabet = [0] * num_sources, set[str]()
        for corpus_index, pair in pairs:
            source = strip_tags(pair.source)
            characters[corpus_index] += len(source) + len(pair.target)
            alphabet.update(source, pair.target)
        return cls(tuple(characters), frozenset(alphabet))


def list_shard_names(count: int) -> list[str]:
    """File names of ``count`` shards, relative to the data folder."""
    return [CLEANED_FILE] if count == 1 else [f"{CLEANED_FOLDER}/{number:05}.tsv" for number in range(count)]


def find_first_shard(folder: Path) -> Path:
    """The first file of cleaned pairs; any prefix of it is a sample of the corpus."""
    single_file = folder / CLEANED_FILE
    return single_file if single_file.is_file() else folder / list_shard_names(2)[0]


def assign_shards(start: int, count: int, num_shards: int) -> NDArray[np.int64]:
    """The shards of ``count`` pairs from index ``start``: pseudo-random, always the same (splitmix64)."""
    value = np.arange(start, start + count, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((value ^ (value >> np.uint64(31))) % np.uint64(num_shards)).astype(np.int64)


def write_corpus(
    lines: IndexedLines, folder: Path, sources: Sequence[CorpusSource], pair_count: int, max_pairs: int
) -> Corpus:
    """Write all lines to one file, or distribute them to shards of about ``max_pairs`` pairs."""
    num_shards = max(1, -(-pair_count // max_pairs))
    sizes = [[0] * len(sources) for _ in range(num_shards)]
    if num_shards == 1:
        with atomic_write(folder / CLEANED_FILE) as file:
            for corpus_index, line_batch in lines:
                sizes[0][corpus_index] += len(line_batch)
                file.write(b"".join(line_batch))
    else:
        _distribute_lines(lines, folder, sizes)
    return Corpus(folder, tuple(sources), tuple(map(tuple, sizes)))


def _distribute_lines(lines: IndexedLines, folder: Path, sizes: list[list[int]]) -> None:
    partial_folder, num_shards = folder / f"{CLEANED_FOLDER}.partial", len(sizes)
    shutil.rmtree(partial_folder, ignore_errors=True)
    shutil.rmtree(folder / CLEANED_FOLDER, ignore_errors=True)
    partial_folder.mkdir()
    paths = [partial_folder / Path(name).name for name in list_shard_names(num_shards)]
    buffers = [bytearray() for _ in paths]
    start = 0
    for corpus_index, line_batch in lines:
        assignments = assign_shards(start, len(line_batch), num_shards)
        start += len(line_batch)
        for shard, count in enumerate(np.bincount(assignments, minlength=num_shards).tolist()):
            sizes[shard][corpus_index] += count
        for line, shard in zip(line_batch, assignments.tolist(), strict=True):
            buffers[shard] += line
        _append_buffers(paths, buffers, min_bytes=SHARD_BUFFER_BYTES)
    _append_buffers(paths, buffers)
    partial_folder.rename(folder / CLEANED_FOLDER)
    sync_folder(folder)


def _append_buffers(paths: Sequence[Path], buffers: Sequence[bytearray], min_bytes: int = 0) -> None:
    """Files are open only briefly: there may be more shards than files that can be open."""
    for path, buffer in zip(paths, buffers, strict=True):
        if len(buffer) >= min_bytes:
            with path.open("ab") as file:
                file.write(buffer)
            buffer.clear()


def iter_lines(path: Path, sizes: Sequence[int]) -> IndexedLines:
    """Read the lines of a file of pairs in batches."""
    with path.open("rb") as file:
        for corpus_index, size in enumerate(sizes):
            remaining = size
            while line_batch := list(itertools.islice(file, min(remaining, LINES_PER_READ))):
                remaining -= len(line_batch)
                yield corpus_index, line_batch


def save_cleaning_record(corpus: Corpus, summary: Sequence[str], files: Sequence[Any]) -> None:
    """Record that cleaning is complete: sizes, report, checksums, and the input files."""
    paths = dict(zip(list_shard_names(len(corpus.shard_sizes)), corpus.paths, strict=True))
    state = {
        "shards": corpus.shard_sizes,
        "summary": list(summary),
        "bytes": {name: path.stat().st_size for name, path in paths.items()},
        "blake2b": {name: checksum(path) for name, path in paths.items()},
        "files": list(files),
    }
    write_json(corpus.folder / CLEANING_RECORD, state)


def load_cleaned_corpus(
    folder: Path, sources: Sequence[CorpusSource], files: Sequence[Any]
) -> tuple[Corpus, list[str]] | None:
    """The corpus that an earlier call cleaned, if it finished and no input file has changed since."""
    path = folder / CLEANING_RECORD
    if not path.is_file():
        return None
    state = read_json(path, f"delete it to clean the corpus again: {path}")
    sizes = {name: path.stat().st_size for name in state["bytes"] if (path := folder / name).is_file()}
    changed = any(file not in state["files"] for file in files)  # a deleted file has not changed
    if changed or sizes != state["bytes"] or any(len(sizes) != len(sources) for sizes in state["shards"]):
        return None
    return Corpus(folder, tuple(sources), tuple(map(tuple, state["shards"]))), state["summary"]


def apply_temperature(
    sources: Sequence[CorpusSource], sizes: Sequence[int], temperature: float
) -> tuple[CorpusSource, ...]:
    """Set fractions by temperature: each source is seen in proportion to size ^ (1 / temperature).

    Sources of one direction count as one. Fractions that are set stay; the others share the rest.
    """
    if temperature == 1:
        return tuple(sources)
    group_keys = [source.direction or index for index, source in enumerate(sources)]
    group_sizes = Counter[Direction | int]()
    for group_key, source, size in zip(group_keys, sources, sizes, strict=True):
        if not source.fraction:
            group_sizes[group_key] += size
    if len(group_sizes) < 2:
        raise HeedfulError(
            "training.sampling_temperature needs at least two corpora or directions",
            hint="add some: --mix more.tsv, or --direction en-fr=FILE --direction en-de=FILE",
        )
    weights = {group_key: size ** (1 / temperature) for group_key, size in group_sizes.items()}
    total = sum(weights.values()) / (1 - sum(source.fraction for source in sources))
    return tuple(
        source
        if source.fraction
        else replace(source, fraction=weights[group_key] / total * size / group_sizes[group_key])
        for group_key, source, size in zip(group_keys, sources, sizes, strict=True)
    )


def interleave(groups: Iterable[Iterable[T]]) -> list[T]:
    """The first item of each group, then the second of each, and so on."""
    missing: Any = object()
    return [item for row in zip_longest(*groups, fillvalue=missing) for item in row if item is not missing]
