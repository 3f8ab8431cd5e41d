"""Cleaning: normalizes pairs, drops those unfit for training and duplicates, and reports how many and why.

Cleaned sentences have no tabs or line breaks, so they can be stored one per line. Zero-width joiners,
combining marks and direction marks are part of the text and stay.

Duplicates are found by 64-bit hashes. Two texts collide with a probability of about 1 in 10^19: among ten
million pairs, that of one false duplicate is about 1 in 400,000.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from heedful.data.config import CleaningConfig
from heedful.data.formats.base import PairRecord
from heedful.data.reader import read_tsv_file
from heedful.errors import HeedfulError
from heedful.progress import format_count
from heedful.tokenization.dependency_trees import append_heads, find_heads_error
from heedful.tokenization.normalization import clean_sentence
from heedful.tokenization.special_tokens import add_tags

_MIN_RATIO_LENGTH = 20
"""Characters of the longer side from which the length ratio is meaningful; "Ja." may be "Of course."."""

_MAX_EXAMPLES = 3
_MAX_LOAD_FACTOR = 0.6  # fraction of used slots at which a HashSet doubles; above it, probing slows down


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str
    heads: str = ""  # dependency heads of the source words, for models that read trees

    @property
    def source_with_heads(self) -> str:
        """The source text to encode, with its heads if it has any."""
        return append_heads(self.source, self.heads)


@dataclass
class CleaningReport:
    """How many pairs were read, kept and dropped, by reason, with the first locations."""

    read: int = 0
    accepted: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    unit: str = "pair"  # name of what is counted: "pair", or "line" of plain text
    notes: Counter[str] = field(default_factory=Counter)  # choices that readers made, with counts

    def count_record(self, record: PairRecord) -> None:
        """Count a record as read."""
        self.read += 1
        if record.note:
            self.notes[record.note] += 1
            self._add_example(record.note, record)

    def drop(self, reason: str, record: PairRecord) -> None:
        """Count a record as dropped."""
        self.dropped[reason] += 1
        self._add_example(reason, record)

    def _add_example(self, reason: str, record: PairRecord) -> None:
        locations = self.examples.setdefault(reason, [])
        if len(locations) < _MAX_EXAMPLES:
            locations.append(f"{record.origin}:{record.line}")

    def add(self, other: Self) -> None:
        """Add the counts of a report on later records."""
        self.read += other.read
        self.accepted += other.accepted
        self.dropped.update(other.dropped)
        self.notes.update(other.notes)
        for reason, locations in other.examples.items():
            own_locations = self.examples.setdefault(reason, [])
            own_locations += locations[: _MAX_EXAMPLES - len(own_locations)]

    def summary_lines(self) -> list[str]:
        """The report as text, most frequent reason first."""
        return [f"read {format_count(self.read, self.unit)}, kept {self.accepted:,}"] + [
            f"{label} {count:,}: {reason} (first: {', '.join(self.examples[reason])})"
            for label, entries in (("dropped", self.dropped.most_common()), ("noted", self.notes.items()))
            for reason, count in entries
        ]


def clean_pairs(
    records: Iterable[PairRecord],
    config: CleaningConfig,
    report: CleaningReport,
    *,
    trees: bool = False,
    tags: Sequence[str] = (),
    seen_hashes: "HashSet | None" = None,
) -> Iterator[Pair]:
    """The pairs to keep, their sources tagged; ``report`` is updated while iterating.

    Heads are read only if ``trees``. ``seen_hashes`` holds the pairs of other files: those with the same tags
    are duplicates.
    """
    seen_hashes = HashSet() if seen_hashes is None else seen_hashes
    for record in records:
        report.count_record(record)
        pair, reason = filter_pair(record, config, trees=trees, tags=tags)
        if not reason and config.deduplicate and not seen_hashes.add(pair_hash(pair)):
            reason = "duplicate"
        if reason:
            report.drop(reason, record)
        else:
            report.accepted += 1
            yield pair


def filter_pair(
    record: PairRecord, config: CleaningConfig, *, trees: bool = False, tags: Sequence[str] = ()
) -> tuple[Pair, str]:
    """The cleaned pair, and why it is dropped (empty if it is not); duplicates are not checked."""
    if record.source is None or record.target is None:
        return Pair("", ""), record.error or "unreadable"
    pair = Pair(
        clean_sentence(record.source, config.unicode_normalization),
        clean_sentence(record.target, config.unicode_normalization),
        " ".join(record.heads.split()) if trees else "",
    )
    reason = rejection_reason(pair, config) or (find_heads_error(pair.source, pair.heads) if trees else "")
    return pair._replace(source=add_tags(pair.source, *tags)), reason


def pair_hash(pair: Pair) -> int:
    """A hash that identical pairs share."""
    return sentence_hash("\0".join(pair))


def read_cleaned_pairs(path: Path) -> Iterator[Pair]:
    """The pairs of a TSV file of cleaned pairs."""
    for record in read_tsv_file(path):
        if record.source is None or record.target is None:
            raise HeedfulError(
                f"{path}:{record.line} is corrupt: {record.error}", hint="delete the model folder and train again"
            )
        yield Pair(record.source, record.target, record.heads)


def rejection_reason(pair: Pair, config: CleaningConfig) -> str:
    """Why a cleaned pair is unfit for training; empty if it is fit."""
    shorter, longer = sorted((len(pair.source), len(pair.target)))
    if not shorter:
        return "empty side"
    if config.max_characters and longer > config.max_characters:
        return "too long"
    if config.max_length_ratio and longer >= _MIN_RATIO_LENGTH and longer > config.max_length_ratio * shorter:
        return "length ratio"
    return ""


def sentence_hash(text: str) -> int:
    """64-bit BLAKE2b: the same on every machine and in every run, unlike ``hash``.

    >>> sentence_hash("Guten Morgen") == sentence_hash("Guten Morgen") != sentence_hash("guten Morgen")
    True
    """
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class HashSet:
    """A set of 64-bit hashes at 8 bytes per slot (ten million in 300 MB): open addressing, linear probing.

    >>> seen = HashSet()
    >>> seen.add(7), seen.add(7), len(seen)
    (True, False, 1)
    """

    def __init__(self, capacity: int = 1024) -> None:
        self._slots = array("Q", bytes(8 << (max(capacity, 2) - 1).bit_length()))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, value: int) -> bool:
        """Add a hash; True if it is new."""
        if not self._insert(value or 1):  # zero marks an empty slot
            return False
        self._count += 1
        if self._count > _MAX_LOAD_FACTOR * len(self._slots):
            old_slots, self._slots = self._slots, array("Q", bytes(16 * len(self._slots)))
            for occupant in filter(None, old_slots):
                self._insert(occupant)
        return True

    def _insert(self, value: int) -> bool:
        slots, mask = self._slots, len(self._slots) - 1
        slot = value & mask
        while occupant := slots[slot]:
            if occupant == value:
                return False
            slot = (slot + 1) & mask
        slots[slot] = value
        return True


def mark_first_occurrences(
    hashes: Sequence[NDArray[np.uint64]], hashes_per_pass: int = 1 << 22
) -> list[NDArray[np.bool_]]:
    """For each hash of each (memory-mapped) array whether it is its first occurrence.

    Hashes are processed in buckets by their highest bits, so that memory stays bounded: apart from one
    bucket (about 32 bytes per hash), only one byte per hash is held.

    >>> is_first = mark_first_occurrences([np.array([7, 8, 7], "u8"), np.array([9, 8], "u8")])
    >>> [shard.tolist() for shard in is_first]
    [[True, True, False], [True, False]]
    """
    is_first = [np.ones(len(shard_hashes), dtype=np.bool_) for shard_hashes in hashes]
    starts = np.cumsum([0, *map(len, hashes)])
    num_buckets = -(-int(starts[-1]) // hashes_per_pass)
    for bucket_index in range(num_buckets):
        members = [
            np.flatnonzero((shard_hashes >> np.uint64(32)) * np.uint64(num_buckets) >> np.uint64(32) == bucket_index)
            for shard_hashes in hashes
        ]
        values = np.concatenate([shard_hashes[indices] for shard_hashes, indices in zip(hashes, members, strict=True)])
        positions = np.concatenate([indices + start for indices, start in zip(members, starts, strict=False)])
        permutation = np.argsort(values, kind="stable")  # stable: the first occurrence comes first
        duplicates = positions[permutation[1:][values[permutation[1:]] == values[permutation[:-1]]]]
        shard_indices = np.searchsorted(starts, duplicates, side="right") - 1
        for shard_index in np.unique(shard_indices).tolist():
            is_first[shard_index][duplicates[shard_indices == shard_index] - starts[shard_index]] = False
    return is_first
