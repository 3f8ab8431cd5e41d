"""Token ids on disk, memory-mapped: a corpus larger than memory is read as if it were an array.

A folder: ``source.ids`` end to end, ``source.offsets`` saying where each sentence starts, the same
for the target, and ``store.json``, written last: a folder without it is unfinished.
"""

import json
import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from heedful.config import Config
from heedful.errors import HeedfulError
from heedful.files import disk_error, sync_folder, write_text

Ids = NDArray[np.unsignedinteger[Any]]
IdType = Literal["uint16", "uint32", "uint64"]

FORMAT_VERSION = 1
SUMMARY_NAME = "store.json"
_BUFFERED = 1 << 16
_OFFSET_TYPE = np.dtype("<i8")
_ID_TYPES: dict[str, np.dtype[Any]] = {
    "uint16": np.dtype("<u2"),
    "uint32": np.dtype("<u4"),
    "uint64": np.dtype("<u8"),
}
FILE_NAMES = ("source.ids", "source.offsets", "target.ids", "target.offsets")
_AGAIN = "delete the folder and prepare the corpus again"
_ARRAY_CODES: dict[IdType, Literal["H", "I", "Q"]] = {"uint16": "H", "uint32": "I", "uint64": "Q"}


class SideSummary(Config):
    """One language of a store."""

    tokens: int
    """Token ids of all sentences together."""
    longest: int
    """Token ids of the longest sentence."""


class StoreSummary(Config):
    """What store.json says."""

    version: int
    """Of the format; another version cannot be read."""
    pairs: int
    """Sentence pairs."""
    dtype: IdType
    """Type of a token id, little-endian."""
    source: SideSummary
    """Totals of the source side."""
    target: SideSummary
    """Totals of the target side."""
    bytes: dict[str, int]
    """Size of every file, to notice a damaged one."""


class Sentences(Protocol):
    """Token ids of pairs by their number, wherever they are kept."""

    @property
    def longest_source(self) -> int:
        """Token ids of the longest source sentence."""
        ...

    def __len__(self) -> int: ...

    def source(self, index: int) -> Ids:
        """Token ids of one source sentence."""
        ...

    def target(self, index: int) -> Ids:
        """Token ids of one target sentence."""
        ...


class StoreWriter:
    """Writes a store pair by pair; leaving the ``with`` block without an error finishes it."""

    def __init__(self, folder: Path, source_limit: int, target_limit: int) -> None:
        """All ids are below the limits: the size of the vocabulary, or more if ids carry trees."""
        self._folder = folder
        self._dtype = _smallest_type(max(source_limit, target_limit))
        self._closed = False
        with _explained_write(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / SUMMARY_NAME).unlink(missing_ok=True)  # an older store here is no longer whole
            self._source = _SideWriter(folder, "source", self._dtype)
            self._target = _SideWriter(folder, "target", self._dtype)

    def add(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> None:
        """Append one pair; the ids are without an end symbol."""
        self._source.add(source_ids)
        self._target.add(target_ids)

    def close(self) -> None:
        """Finish the store: everything is on the disk before store.json says so."""
        if self._closed:
            return
        self._closed = True
        with _explained_write(self._folder):
            self._source.close()
            self._target.close()
            write_text(self._folder / SUMMARY_NAME, self._summary().model_dump_json(indent=2) + "\n")
            sync_folder(self._folder)

    def abandon(self) -> None:
        """Let go of the files; the folder stays unfinished."""
        self._closed = True
        self._source.abandon()
        self._target.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _summary(self) -> StoreSummary:
        return StoreSummary(
            version=FORMAT_VERSION,
            pairs=self._source.sentences,
            dtype=self._dtype,
            source=self._source.summary(),
            target=self._target.summary(),
            bytes={name: (self._folder / name).stat().st_size for name in FILE_NAMES},
        )


def _smallest_type(limit: int) -> IdType:
    if limit < 1 << 16:
        return "uint16"
    return "uint32" if limit < 1 << 32 else "uint64"


class _SideWriter:
    """Ids and offsets of one language, buffered."""

    def __init__(self, folder: Path, side: str, dtype: IdType) -> None:
        self.sentences = 0
        self._folder = folder
        self._tokens = 0
        self._longest = 0
        self._id_type = _ID_TYPES[dtype]
        self._ids = array(_ARRAY_CODES[dtype])
        self._offsets = array("q", [0])
        self._ids_file = (folder / f"{side}.ids").open("wb")
        self._offsets_file = (folder / f"{side}.offsets").open("wb")

    def add(self, ids: Sequence[int]) -> None:
        self._ids.extend(ids)  # an id beyond the type is an OverflowError
        self.sentences += 1
        self._tokens += len(ids)
        self._longest = max(self._longest, len(ids))
        self._offsets.append(self._tokens)
        if len(self._ids) + len(self._offsets) >= _BUFFERED:
            self._flush()

    def summary(self) -> SideSummary:
        return SideSummary(tokens=self._tokens, longest=self._longest)

    def close(self) -> None:
        self._flush()
        for file in (self._ids_file, self._offsets_file):
            file.flush()
            os.fsync(file.fileno())
            file.close()

    def abandon(self) -> None:
        for file in (self._ids_file, self._offsets_file):
            with suppress(OSError):  # a full disk is already being reported
                file.close()

    def _flush(self) -> None:
        with _explained_write(self._folder):
            self._ids_file.write(np.asarray(self._ids, dtype=self._id_type).tobytes())
            self._offsets_file.write(np.asarray(self._offsets, dtype=_OFFSET_TYPE).tobytes())
        del self._ids[:], self._offsets[:]


class TokenStore:
    """A finished store, read-only.

    Sentences come as arrays of token ids without an end symbol.
    """

    def __init__(self, folder: Path, summary: StoreSummary) -> None:
        self.folder = folder
        self.summary = summary
        id_type = _ID_TYPES[summary.dtype]
        self._source_ids = _mapped(folder / "source.ids", id_type)
        self._target_ids = _mapped(folder / "target.ids", id_type)
        self._source_offsets = _mapped(folder / "source.offsets", _OFFSET_TYPE)
        self._target_offsets = _mapped(folder / "target.offsets", _OFFSET_TYPE)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The store in a folder, its files checked for size."""
        summary = _read_summary(folder)
        _check_sizes(folder, summary)
        store = cls(folder, summary)
        ends = (store._source_offsets[-1], store._target_offsets[-1])
        if ends != (summary.source.tokens, summary.target.tokens):
            raise _damaged(folder, f"sentences end at {ends[0]} and {ends[1]}")
        for offsets, side in (
            (store._source_offsets, summary.source),
            (store._target_offsets, summary.target),
        ):
            lengths = np.diff(offsets)
            if offsets[0] or (lengths < 0).any() or lengths.max(initial=0) != side.longest:
                raise _damaged(folder, "sentences do not follow one another")
        return store

    def __len__(self) -> int:
        return self.summary.pairs

    @property
    def longest_source(self) -> int:
        """Token ids of the longest source sentence."""
        return self.summary.source.longest

    def source(self, index: int) -> Ids:
        """Token ids of one source sentence."""
        return _sentence(self._source_ids, self._source_offsets, index)

    def target(self, index: int) -> Ids:
        """Token ids of one target sentence."""
        return _sentence(self._target_ids, self._target_offsets, index)

    @cached_property
    def source_lengths(self) -> NDArray[np.int32]:
        """Token ids of each source sentence."""
        return np.diff(self._source_offsets).astype(np.int32)

    @cached_property
    def target_lengths(self) -> NDArray[np.int32]:
        """Token ids of each target sentence."""
        return np.diff(self._target_offsets).astype(np.int32)


def _sentence(ids: Ids, offsets: NDArray[np.int64], index: int) -> Ids:
    if not 0 <= index < len(offsets) - 1:
        raise IndexError(f"pair {index} of {len(offsets) - 1}")
    return ids[offsets[index] : offsets[index + 1]]


def _mapped(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    if not path.stat().st_size:  # the system refuses to map nothing
        return np.empty(0, dtype)
    # A plain view: slices of np.memmap itself are several times slower to make.
    return np.memmap(path, dtype=dtype, mode="r").view(np.ndarray)


def _read_summary(folder: Path) -> StoreSummary:
    try:
        text = (folder / SUMMARY_NAME).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise HeedfulError(f"token store {folder} is missing or unfinished", hint=_AGAIN) from None
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(folder, f"cannot read {SUMMARY_NAME}: {error}") from None
    try:
        settings = json.loads(text)
    except (ValueError, RecursionError):
        raise _damaged(folder, f"{SUMMARY_NAME} is not JSON") from None
    if not isinstance(settings, dict):
        raise _damaged(folder, f"{SUMMARY_NAME} is not a JSON object")
    if settings.get("version") != FORMAT_VERSION:
        raise HeedfulError(
            f"token store {folder} has format {settings.get('version')}, not {FORMAT_VERSION}", hint=_AGAIN
        )
    try:
        return StoreSummary.checked(settings)
    except HeedfulError as error:
        raise _damaged(folder, f"{SUMMARY_NAME}: {error.problem}") from None


def _check_sizes(folder: Path, summary: StoreSummary) -> None:
    id_bytes, offset_bytes = _ID_TYPES[summary.dtype].itemsize, _OFFSET_TYPE.itemsize
    expected = {
        "source.ids": summary.source.tokens * id_bytes,
        "source.offsets": (summary.pairs + 1) * offset_bytes,
        "target.ids": summary.target.tokens * id_bytes,
        "target.offsets": (summary.pairs + 1) * offset_bytes,
    }
    if summary.bytes != expected:
        raise _damaged(folder, f"{SUMMARY_NAME} contradicts itself")
    for name, size in expected.items():
        path = folder / name
        found = path.stat().st_size if path.is_file() else 0
        if found != size or not path.is_file():
            raise _damaged(folder, f"{name} has {found:,} bytes instead of {size:,}")


def _damaged(folder: Path, finding: str) -> HeedfulError:
    return HeedfulError(f"token store {folder} is damaged: {finding}", hint=_AGAIN)


@contextmanager
def _explained_write(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise disk_error(f"token store {folder}", error) from None
