"""Token datasets: memory-mapped token ids, so that a corpus larger than memory reads like an array.

train/source.ids, source.offsets   ids of all sentences, and where each sentence starts; target likewise
                                   (in dependency trees, a source token is three numbers: id, word and head)
train/dataset.json                 written last: a folder without it is incomplete
train/00000/ ...                   shards, each a random sample of all pairs and a dataset with a shard.json
train/manifest.json                written last of all: what the shards hold, and checksums of their files
"""

import os
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from heedful.config import Config
from heedful.errors import HeedfulError
from heedful.files import checksum, disk_error, read_json, sync_folder, write_json, write_text
from heedful.tokenization.dependency_trees import SentenceIds

TokenIds = NDArray[np.unsignedinteger[Any]]

IdType = Literal["uint16", "uint32"]

DATASET_FORMAT_VERSION = 1
SUMMARY_NAME = "dataset.json"
_BUFFER_SIZE = 1 << 16

_OFFSET_TYPE = np.dtype("<i8")

_ID_TYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}

FILE_NAMES = ("source.ids", "source.offsets", "target.ids", "target.offsets")
_REBUILD_HINT = "delete the folder and preprocess the corpus again"

_ARRAY_CODES: dict[IdType, Literal["H", "I"]] = {"uint16": "H", "uint32": "I"}


class SideSummary(Config):
    """Totals of one side, in tokens."""

    tokens: int
    max_length: int
    columns: int = 1
    """Numbers per token: its id, and in a dependency tree also its word and that word's head."""


class DatasetSummary(Config):
    """The content of dataset.json."""

    version: int
    """Format version; other versions cannot be read."""
    pairs: int
    dtype: IdType
    """Type of a token id, little-endian."""
    source: SideSummary
    target: SideSummary
    file_bytes: dict[str, int]
    """Size of every file, to detect corruption."""


class PairDataset(Protocol):
    """Token ids of pairs by index."""

    @property
    def max_source_length(self) -> int:
        """Token ids of the longest source sentence."""
        ...

    def __len__(self) -> int: ...

    def source(self, index: int) -> TokenIds:
        """Token ids of one source sentence."""
        ...

    def target(self, index: int) -> TokenIds:
        """Token ids of one target sentence."""
        ...


class TokenDatasetWriter:
    """Writes a dataset pair by pair; leaving the ``with`` block without an error completes it."""

    def __init__(self, folder: Path, source_limit: int, target_limit: int, source_columns: int = 1) -> None:
        """All ids, and words and heads of dependency trees, are below the limits."""
        self._folder = folder
        self._dtype = _smallest_id_type(max(source_limit, target_limit))
        self._closed = False
        with _explain_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / SUMMARY_NAME).unlink(missing_ok=True)  # an earlier dataset here is no longer complete
            self._source = _SideWriter(folder, "source", self._dtype, source_columns)
            self._target = _SideWriter(folder, "target", self._dtype)

    def add(self, source: SentenceIds, target: Sequence[int]) -> None:
        """Append one pair, without END."""
        self._source.add(source)
        self._target.add(target)

    def close(self) -> None:
        """Complete the dataset: everything is on disk before dataset.json is."""
        if self._closed:
            return
        self._closed = True
        with _explain_write_errors(self._folder):
            self._source.close()
            self._target.close()
            summary = DatasetSummary(
                version=DATASET_FORMAT_VERSION,
                pairs=self._source.sentences,
                dtype=self._dtype,
                source=self._source.summary(),
                target=self._target.summary(),
                file_bytes={name: (self._folder / name).stat().st_size for name in FILE_NAMES},
            )
            write_text(self._folder / SUMMARY_NAME, summary.model_dump_json(indent=2) + "\n")
            sync_folder(self._folder)

    def abandon(self) -> None:
        """Close the files; the folder stays incomplete."""
        self._closed = True
        self._source.abandon()
        self._target.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *_: object) -> None:
        if exception_type is None:
            self.close()
        else:
            self.abandon()


def _smallest_id_type(limit: int) -> IdType:
    return "uint16" if limit < 1 << 16 else "uint32"


class _SideWriter:
    """Ids and offsets of one language, buffered."""

    def __init__(self, folder: Path, side: str, dtype: IdType, columns: int = 1) -> None:
        self.sentences = 0
        self._folder = folder
        self._columns = columns
        self._tokens = 0
        self._max_length = 0
        self._id_type = _ID_TYPES[dtype]
        self._ids = array(_ARRAY_CODES[dtype])
        self._offsets = array("q", [0])
        self._ids_file = (folder / f"{side}.ids").open("wb")
        self._offsets_file = (folder / f"{side}.offsets").open("wb")

    def add(self, tokens: SentenceIds) -> None:
        numbers: Any = tokens if self._columns == 1 else np.ravel(tokens)
        self._ids.extend(numbers)  # a number beyond the type is an OverflowError
        self.sentences += 1
        self._tokens += len(tokens)
        self._max_length = max(self._max_length, len(tokens))
        self._offsets.append(self._tokens)
        if len(self._ids) + len(self._offsets) >= _BUFFER_SIZE:
            self._flush()

    def summary(self) -> SideSummary:
        return SideSummary(tokens=self._tokens, max_length=self._max_length, columns=self._columns)

    def close(self) -> None:
        self._flush()
        for file in (self._ids_file, self._offsets_file):
            file.flush()
            os.fsync(file.fileno())
            file.close()

    def abandon(self) -> None:
        for file in (self._ids_file, self._offsets_file):
            with suppress(OSError):  # a full disk was reported already
                file.close()

    def _flush(self) -> None:
        with _explain_write_errors(self._folder):
            self._ids_file.write(np.asarray(self._ids, dtype=self._id_type).tobytes())
            self._offsets_file.write(np.asarray(self._offsets, dtype=_OFFSET_TYPE).tobytes())
        del self._ids[:], self._offsets[:]


class TokenDataset:
    """A complete dataset, read-only: sentences are arrays of token ids without END, (length,).

    Source sentences in dependency trees are (length, 3): token ids, words and heads.
    """

    def __init__(self, folder: Path, summary: DatasetSummary) -> None:
        self.folder = folder
        self.summary = summary
        id_type = _ID_TYPES[summary.dtype]
        self._source_ids = _memory_map(folder / "source.ids", id_type)
        if summary.source.columns > 1:
            self._source_ids = self._source_ids.reshape(-1, summary.source.columns)
        self._target_ids = _memory_map(folder / "target.ids", id_type)
        self._source_offsets = _memory_map(folder / "source.offsets", _OFFSET_TYPE)
        self._target_offsets = _memory_map(folder / "target.offsets", _OFFSET_TYPE)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a dataset and check its file sizes."""
        summary = _read_summary(folder)
        _check_sizes(folder, summary)
        dataset = cls(folder, summary)
        ends = (dataset._source_offsets[-1], dataset._target_offsets[-1])
        if ends != (summary.source.tokens, summary.target.tokens):
            raise _corrupt_error(folder, f"sentences end at {ends[0]} and {ends[1]}")
        for offsets, side in ((dataset._source_offsets, summary.source), (dataset._target_offsets, summary.target)):
            lengths = np.diff(offsets)
            if offsets[0] or (lengths < 0).any() or lengths.max(initial=0) != side.max_length:
                raise _corrupt_error(folder, "sentences do not follow one another")
        return dataset

    def __len__(self) -> int:
        return self.summary.pairs

    @property
    def max_source_length(self) -> int:
        """Token ids of the longest source sentence."""
        return self.summary.source.max_length

    def source(self, index: int) -> TokenIds:
        """Token ids of one source sentence."""
        return _get_sentence(self._source_ids, self._source_offsets, index)

    def target(self, index: int) -> TokenIds:
        """Token ids of one target sentence."""
        return _get_sentence(self._target_ids, self._target_offsets, index)

    @cached_property
    def source_lengths(self) -> NDArray[np.int32]:
        """Token ids of each source sentence."""
        return np.diff(self._source_offsets).astype(np.int32)

    @cached_property
    def target_lengths(self) -> NDArray[np.int32]:
        """Token ids of each target sentence."""
        return np.diff(self._target_offsets).astype(np.int32)


def _get_sentence(ids: TokenIds, offsets: NDArray[np.int64], index: int) -> TokenIds:
    if not 0 <= index < len(offsets) - 1:
        raise IndexError(f"pair {index} of {len(offsets) - 1}")
    return ids[offsets[index] : offsets[index + 1]]


def _memory_map(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    if not path.stat().st_size:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    # A plain view: slices of np.memmap itself are several times slower to make.
    return np.memmap(path, dtype=dtype, mode="r").view(np.ndarray)


def _read_summary(folder: Path) -> DatasetSummary:
    if not (folder / SUMMARY_NAME).exists():
        raise HeedfulError(f"token dataset {folder} is missing or incomplete", hint=_REBUILD_HINT)
    try:
        content = read_json(folder / SUMMARY_NAME, _REBUILD_HINT)
        version = content.get("version")
        if version == DATASET_FORMAT_VERSION:
            return DatasetSummary.from_settings(content)
    except HeedfulError as error:
        raise _corrupt_error(folder, f"{SUMMARY_NAME}: {error.problem}") from None
    raise HeedfulError(f"token dataset {folder} has format {version}, not {DATASET_FORMAT_VERSION}", hint=_REBUILD_HINT)


def _check_sizes(folder: Path, summary: DatasetSummary) -> None:
    id_bytes, offset_bytes = _ID_TYPES[summary.dtype].itemsize, _OFFSET_TYPE.itemsize
    expected = {
        "source.ids": summary.source.tokens * summary.source.columns * id_bytes,
        "source.offsets": (summary.pairs + 1) * offset_bytes,
        "target.ids": summary.target.tokens * id_bytes,
        "target.offsets": (summary.pairs + 1) * offset_bytes,
    }
    if summary.file_bytes != expected:
        raise _corrupt_error(folder, f"{SUMMARY_NAME} contradicts itself")
    for name, size in expected.items():
        path = folder / name
        actual_size = path.stat().st_size if path.is_file() else 0
        if actual_size != size or not path.is_file():
            raise _corrupt_error(folder, f"{name} has {actual_size:,} bytes instead of {size:,}")


def _corrupt_error(folder: Path, problem: str) -> HeedfulError:
    return HeedfulError(f"token dataset {folder} is corrupt: {problem}", hint=_REBUILD_HINT)


@contextmanager
def _explain_write_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise disk_error(f"token dataset {folder}", error) from None


MANIFEST_NAME = "manifest.json"
SHARD_SUMMARY_NAME = "shard.json"
MANIFEST_FORMAT_VERSION = 1
MAX_OPEN_SHARDS = 8  # open shards; each takes four open files
MAX_PLANNED_SHARDS = 2  # shards whose batches are in memory: an update may span two
_RETRAIN_HINT = "delete the model folder and train again"


class ShardSummary(Config):
    """The content of one shard."""

    pairs_per_source: tuple[int, ...]
    """Pairs of each source of the corpus, in order."""
    batches: int = 0
    """Batches of an epoch; 0 if it is the only shard."""
    too_long: int = 0
    """Pairs that were dropped."""
    glossary_term_pairs: int = 0
    """Copies of pairs with glossary terms inline."""
    extracted_term_pairs: int = 0
    """Copies of pairs with extracted terms inline."""
    blake2b: dict[str, str]
    """Checksum of every file."""
    fingerprint: str = ""
    """The encoding task, if there are several shards."""

    @property
    def pairs(self) -> int:
        """Pairs of all sources."""
        return sum(self.pairs_per_source)


class ShardManifest(Config):
    """The content of manifest.json."""

    version: int = MANIFEST_FORMAT_VERSION
    shards: tuple[ShardSummary, ...]


def shard_folder(folder: Path, number: int, count: int) -> Path:
    """The folder of a shard; a single shard has none of its own."""
    return folder / f"{number:05}" if count > 1 else folder


def compute_checksums(folder: Path) -> dict[str, str]:
    """Checksums of the files of a token dataset."""
    return {name: checksum(folder / name) for name in (*FILE_NAMES, SUMMARY_NAME)}


def write_manifest(folder: Path, shards: Sequence[ShardSummary]) -> ShardManifest:
    """Record that all shards are complete."""
    manifest = ShardManifest(shards=tuple(shards))
    write_json(folder / MANIFEST_NAME, manifest.model_dump())
    return manifest


def read_shard(folder: Path) -> ShardSummary:
    """The summary of a complete shard."""
    return ShardSummary.from_settings(read_json(folder / SHARD_SUMMARY_NAME, _RETRAIN_HINT))


def read_manifest(folder: Path) -> ShardManifest:
    """The summaries of all shards."""
    state = read_json(folder / MANIFEST_NAME, _RETRAIN_HINT)
    if state.get("version") != MANIFEST_FORMAT_VERSION:
        raise HeedfulError(f"{folder / MANIFEST_NAME} has format {state.get('version')}", hint=_RETRAIN_HINT)
    return ShardManifest.from_settings(state)


def find_corrupt_shards(folder: Path) -> list[int]:
    """Shards whose files have changed since they were written."""
    shards = read_manifest(folder).shards
    return [
        index for index, shard in enumerate(shards) if not is_intact(shard_folder(folder, index, len(shards)), shard)
    ]


def is_intact(folder: Path, shard: ShardSummary) -> bool:
    """Whether the files of a shard match their checksums."""
    return all(
        (folder / name).is_file() and checksum(folder / name) == expected for name, expected in shard.blake2b.items()
    )


def open_token_dataset(folder: Path, manifest: ShardManifest | None = None) -> "TokenDataset | ShardedTokenDataset":
    """Open the token dataset of a corpus, in one shard or several; reads the manifest if it is not given."""
    manifest = manifest or read_manifest(folder)
    if len(manifest.shards) == 1:
        return TokenDataset.open(folder)
    return ShardedTokenDataset(folder, manifest)


class ShardedTokenDataset:
    """Consecutive shards, opened when needed."""

    def __init__(self, folder: Path, manifest: ShardManifest) -> None:
        self.folder, self.manifest = folder, manifest
        self.starts = [0, *accumulate(shard.pairs for shard in manifest.shards)]
        self._open_shard = lru_cache(maxsize=MAX_OPEN_SHARDS)(
            lambda number: TokenDataset.open(shard_folder(folder, number, len(manifest.shards)))
        )
        self.max_source_length = max(self.shard(number).max_source_length for number in range(len(manifest.shards)))

    def __len__(self) -> int:
        return self.starts[-1]

    def shard(self, number: int) -> TokenDataset:
        """One of the shards."""
        return self._open_shard(number)

    def source(self, index: int) -> TokenIds:
        """Token ids of one source sentence."""
        number = self._shard_number(index)
        return self.shard(number).source(index - self.starts[number])

    def target(self, index: int) -> TokenIds:
        """Token ids of one target sentence."""
        number = self._shard_number(index)
        return self.shard(number).target(index - self.starts[number])

    def _shard_number(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"pair {index} of {len(self)}")
        return bisect_right(self.starts, index) - 1
