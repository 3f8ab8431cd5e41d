"""A token store in shards, each a random sample of all pairs: shuffled without being loaded.

training/00000/ ...      token stores (store.py), each with a shard.json
training/manifest.json   written last: what the shards hold, and checksums of all their files

A corpus of one shard is a token store as ever, with a manifest beside it; an older Heedful wrote none.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from heedful.config import Config
from heedful.corpora.batches import BatchConfig, Batches, Indices
from heedful.corpora.parts import Mixture
from heedful.corpora.store import FILE_NAMES, Ids, TokenStore
from heedful.errors import HeedfulError
from heedful.files import checksum, read_json, write_json

MANIFEST = "manifest.json"
SHARD = "shard.json"
FORMAT_VERSION = 1
OPEN_AT_ONCE = 8
"""Stores: each takes four open files."""
PLANNED_AT_ONCE = 2
"""Shards whose batches are in memory: an update may reach from one into the next."""
_AGAIN = "delete the model folder and train anew"

Item = TypeVar("Item")


class ShardSummary(Config):
    """What one shard holds."""

    parts: tuple[int, ...]
    """Pairs of each part of the corpus, which lie one behind another."""
    batches: int = 0
    """Batches of an epoch; 0 if it is the only shard, which is planned as a whole."""
    too_long: int = 0
    """Pairs that were left out."""
    listed: int = 0
    """Pairs once more with terms of a glossary inline."""
    found: int = 0
    """Pairs once more with other terms inline."""
    blake2b: dict[str, str]
    """Checksum of every file."""

    @property
    def pairs(self) -> int:
        """Of all parts."""
        return sum(self.parts)


class Manifest(Config):
    """What manifest.json says."""

    version: int = FORMAT_VERSION
    shards: tuple[ShardSummary, ...]


def shard_folder(folder: Path, number: int, count: int) -> Path:
    """Where a shard is, out of so many."""
    return folder / f"{number:05}" if count > 1 else folder


def checksums(folder: Path) -> dict[str, str]:
    """Of the files of a token store."""
    return {name: checksum(folder / name) for name in (*FILE_NAMES, "store.json")}


def write_manifest(folder: Path, count: int) -> Manifest:
    """Say that all shards are there; each has said itself what it holds."""
    manifest = Manifest(shards=tuple(read_shard(shard_folder(folder, n, count)) for n in range(count)))
    write_json(folder / MANIFEST, manifest.model_dump())
    return manifest


def read_shard(folder: Path) -> ShardSummary:
    """What a finished shard holds."""
    return ShardSummary.checked(read_json(folder / SHARD, _AGAIN))


def read_manifest(folder: Path) -> Manifest | None:
    """What is there; None for a store of an older Heedful."""
    if not (folder / MANIFEST).is_file():
        return None
    state = read_json(folder / MANIFEST, _AGAIN)
    if state.get("version") != FORMAT_VERSION:
        raise HeedfulError(f"{folder / MANIFEST} has format {state.get('version')}", hint=_AGAIN)
    return Manifest.checked(state)


def damaged_shards(folder: Path) -> list[int]:
    """Shards whose files are not what they were when they were written."""
    manifest = read_manifest(folder)
    shards = manifest.shards if manifest else ()
    return [
        number
        for number, shard in enumerate(shards)
        if not is_whole(shard_folder(folder, number, len(shards)), shard)
    ]


def is_whole(folder: Path, shard: ShardSummary) -> bool:
    """Whether all files of a shard are as they were written."""
    return all(
        (folder / name).is_file() and checksum(folder / name) == told for name, told in shard.blake2b.items()
    )


def open_store(folder: Path) -> "TokenStore | Shards":
    """The token ids of a corpus, in however many shards."""
    manifest = read_manifest(folder)
    if manifest is None or len(manifest.shards) == 1:
        return TokenStore.open(folder)
    return Shards(folder, manifest)


class Shards:
    """Stores one behind another, opened when they are needed."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self.starts = [0, *accumulate(shard.pairs for shard in manifest.shards)]
        self._stores: _Newest[TokenStore] = _Newest(OPEN_AT_ONCE, self._opened)
        self.longest_source = max(self.store(number).longest_source for number in range(len(manifest.shards)))

    def __len__(self) -> int:
        return self.starts[-1]

    def store(self, number: int) -> TokenStore:
        """One of the stores."""
        return self._stores[number]

    def source(self, index: int) -> Ids:
        """Token ids of one source sentence."""
        number = self._number(index)
        return self.store(number).source(index - self.starts[number])

    def target(self, index: int) -> Ids:
        """Token ids of one target sentence."""
        number = self._number(index)
        return self.store(number).target(index - self.starts[number])

    def _number(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"pair {index} of {len(self)}")
        return bisect_right(self.starts, index) - 1

    def _opened(self, number: int) -> TokenStore:
        return TokenStore.open(shard_folder(self.folder, number, len(self.manifest.shards)))


class ShardedBatches:
    """The updates of a run over shards: an epoch goes through them in random order, and each is shuffled.

    Only the lengths and batches of the shards at hand are in memory.
    """

    def __init__(
        self, shards: Shards, config: BatchConfig, seed: int, accumulate: int, shares: Sequence[float]
    ) -> None:
        self._shards, self._config, self._seed = shards, config, seed
        self._accumulate, self._shares = accumulate, tuple(shares)
        self._counts = np.array([shard.batches for shard in shards.manifest.shards])
        self._plans: _Newest[Batches] = _Newest(PLANNED_AT_ONCE, self._planned)

    @cached_property
    def _batches(self) -> int:
        return int(self._counts.sum())

    def updates_per_epoch(self, epoch: int) -> int:
        """Updates in this epoch: the same in every one."""
        return -(-self._batches // self._accumulate)

    def update(self, epoch: int, index: int) -> list[Indices]:
        """The batches of one update, as indices of pairs in all shards."""
        if not 0 <= index < self.updates_per_epoch(epoch):
            raise IndexError(f"update {index} of {self.updates_per_epoch(epoch)} in epoch {epoch}")
        order = np.random.default_rng([self._seed, epoch, len(self._counts)]).permutation(len(self._counts))
        ends = np.cumsum(self._counts[order])
        first = index * self._accumulate
        return [
            self._batch(epoch, order, ends, place)
            for place in range(first, min(first + self._accumulate, self._batches))
        ]

    def _batch(self, epoch: int, order: NDArray[np.int64], ends: NDArray[np.int64], place: int) -> Indices:
        turn = int(np.searchsorted(ends, place, side="right"))
        shard = int(order[turn])
        within = place - int(ends[turn] - self._counts[shard])
        return self._plans[shard].of_epoch(epoch)[within] + self._shards.starts[shard]

    def _planned(self, number: int) -> Batches:
        parts = self._shards.manifest.shards[number].parts
        return shard_batches(
            self._shards.store(number), number, self._config, self._seed, Mixture(parts, self._shares)
        )


def shard_batches(
    store: TokenStore, number: int, config: BatchConfig, seed: int, mixture: Mixture
) -> Batches:
    """The batches of one of several shards: each is shuffled otherwise."""
    return Batches(store, config, seed + (number + 1 << 40), mixture=mixture)


class _Newest(OrderedDict[int, Item]):
    """The things that were asked for last, made when they are missing."""

    def __init__(self, most: int, make: Callable[[int], Item]) -> None:
        super().__init__()
        self._most, self._make = most, make

    def __missing__(self, number: int) -> Item:
        self[number] = made = self._make(number)
        if len(self) > self._most:
            self.popitem(last=False)
        return made
