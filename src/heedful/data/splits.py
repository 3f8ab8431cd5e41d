"""The validation split, by hash: no sentence of either side is in both parts.

A source sentence is held out if its hash is among the smallest. So the split needs no shuffle, does not
depend on the order of the files, and takes 16 bytes of memory per pair.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, compress
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from heedful.data.cleaning import CleaningReport, Pair, clean_pairs, read_cleaned_pairs, sentence_hash
from heedful.data.config import CleaningConfig
from heedful.data.corpus import (
    PREPROCESSED_FILE,
    Corpus,
    CorpusInputs,
    CorpusSource,
    Direction,
    DirectionPairs,
    PairFactory,
    interleave,
    iter_lines,
)
from heedful.errors import HeedfulError
from heedful.progress import format_count
from heedful.tokenization.special_tokens import strip_tags

_VALIDATION_FRACTION = 0.05
_DEFAULT_MAX_VALIDATION_SIZE = 2000
MAX_TOTAL_VALIDATION_SIZE = 2000
"""Default sentences of all directions together, but at least the next number for each direction."""

MIN_DIRECTION_VALIDATION_SIZE = 100
MAX_ORIGINAL_VALIDATION = 2000  # original-domain validation pairs at most


def split_hash(sentence: str) -> int:
    """Hash of a sentence without its tags, case and extra spaces.

    >>> split_hash("Guten  Morgen ") == split_hash("guten morgen")
    True
    """
    return sentence_hash(" ".join(strip_tags(sentence).casefold().split()))


@dataclass(frozen=True, slots=True)
class SplitFilter:
    """Whether a pair is for training: plain data, so that all processes that encode agree."""

    source_hashes: frozenset[int] = frozenset()  # hashes of held-out sources
    sentence_hashes: frozenset[int] = frozenset()  # hashes of sentences that are held out on either side
    excluded_pairs: frozenset[Pair] = frozenset()  # held-out pairs, without their tags

    def __call__(self, pair: Pair) -> bool:
        if self.excluded_pairs and strip_pair_tags(pair) in self.excluded_pairs:
            return False
        if not (self.source_hashes or self.sentence_hashes):
            return True
        source = split_hash(pair.source)
        if source in self.source_hashes or source in self.sentence_hashes:
            return False
        return not self.sentence_hashes or split_hash(pair.target) not in self.sentence_hashes

    def to_json(self) -> dict[str, Any]:
        """Plain data, always in the same order."""
        return {
            "source_hashes": sorted(self.source_hashes),
            "sentence_hashes": sorted(self.sentence_hashes),
            "excluded_pairs": sorted(map(list, self.excluded_pairs)),
        }

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> Self:
        """The filter that ``to_json`` described."""
        pairs = frozenset(Pair(*sentences) for sentences in state["excluded_pairs"])
        return cls(frozenset(state["source_hashes"]), frozenset(state["sentence_hashes"]), pairs)


def strip_pair_tags(pair: Pair) -> Pair:
    """The pair as the user wrote it."""
    return pair._replace(source=strip_tags(pair.source))


@dataclass(frozen=True, slots=True)
class CorpusSplit:
    """Which pairs are for training, which for validation, and notes for the report."""

    split_filter: SplitFilter
    validation: list[Pair]
    notes: list[str]
    validation_directions: tuple[Direction, ...] = ()  # the direction of each validation pair, if there are several
    original_validation: list[Pair] = field(default_factory=list)  # original-domain validation pairs, when fine-tuning


def split_corpus(inputs: CorpusInputs, corpus: Corpus, cleaning: CleaningConfig, validation_size: int) -> CorpusSplit:
    """Use the validation files, or hold out ``validation_size`` sentences (0: by the size of the corpus)."""
    if inputs.validation_sources:
        return _use_validation_files(inputs, corpus, cleaning)
    if inputs.directions:
        return split_directions(corpus.group_by_direction(), corpus.iter_pairs, validation_size)
    if len(corpus.shard_sizes) > 1:
        split = split_by_shard_hashes(corpus, validation_size or None)
    else:
        split = split_pairs(
            lambda: corpus.iter_pairs(use_for_validation=True),
            validation_size or None,
            lambda: corpus.iter_pairs(use_for_validation=False),
        )
    if not split.validation:
        raise HeedfulError(
            f"cannot hold out any {inputs.unit} of {_join_names(corpus.sources)}: "
            "training has all their translations too",
            hint="give pairs to validate on: --validation FILES",
        )
    notes = [
        f"held out {format_count(len(split.validation), inputs.unit)} for validation, chosen by a hash of the source"
    ]
    if split.leaks:
        notes.append(f"left out {format_count(split.leaks, inputs.unit)}: held out, but training has their translation")
    return CorpusSplit(SplitFilter(split.excluded_source_hashes), split.validation, notes)


def add_original_validation(
    split: CorpusSplit, inputs: CorpusInputs, corpus: Corpus, cleaning: CleaningConfig
) -> CorpusSplit:
    """Add pairs of the original domain, to measure forgetting: from files, else held out of mixed sources."""
    validation, excluded, notes = list[Pair](), frozenset[int](), list(split.notes)
    mixed_sources = [source for source in corpus.sources if not source.use_for_validation]
    if inputs.original_validation:
        names, validation = _join_names(inputs.original_validation), _read_original_pairs(inputs, cleaning)
        excluded = frozenset(split_hash(pair.source) for pair in validation)
        is_leak = Counter(
            split_hash(pair.source) in excluded for pair in filter(split.split_filter, corpus.iter_pairs())
        )
        if not is_leak[False]:
            raise HeedfulError(
                f"no training pairs are left: the original-domain pairs of {names} contain all of them",
                hint="give original-domain pairs that are not in the training files",
            )
        notes.append(f"original-domain validation: {len(validation):,} pairs of {names}")
        if is_leak[True]:
            leaks = format_count(is_leak[True], f"training {inputs.unit}")
            notes.append(f"left out {leaks} that they contain too")
    elif mixed_sources:
        held_out = split_pairs(
            lambda: filter(split.split_filter, corpus.iter_pairs(use_for_validation=False)),
            None,
            lambda: filter(split.split_filter, corpus.iter_pairs(use_for_validation=True)),
        )
        validation, excluded = held_out.validation, held_out.excluded_source_hashes
        names = _join_names(mixed_sources)
        notes.append(f"original-domain validation: {len(validation):,} pairs held out of {names}")
    else:
        notes.append(
            "no original-domain validation pairs: forgetting cannot be measured "
            "(--original-validation FILES, or --mix FILE)"
        )
    split_filter = replace(split.split_filter, source_hashes=split.split_filter.source_hashes | excluded)
    return replace(split, split_filter=split_filter, original_validation=validation, notes=notes)


def _read_original_pairs(inputs: CorpusInputs, cleaning: CleaningConfig) -> list[Pair]:
    pairs, report = list[Pair](), CleaningReport()
    for source in inputs.original_validation:
        cleaned_before = all((path.parent / PREPROCESSED_FILE).is_file() for path in source.paths)
        if cleaned_before:
            pairs += (pair for path in source.paths for pair in read_cleaned_pairs(path))
        else:
            records = inputs.read_records(source)
            pairs += clean_pairs(records, cleaning, report, trees=inputs.trees, tags=source.tags)
    if not pairs:
        names = _join_names(inputs.original_validation)
        raise HeedfulError(f"{names}: no usable original-domain pairs to validate on")
    return pairs[:MAX_ORIGINAL_VALIDATION]


def _use_validation_files(inputs: CorpusInputs, corpus: Corpus, cleaning: CleaningConfig) -> CorpusSplit:
    """Validate on the user's files; pairs that training has too are left out of training."""
    report, groups = CleaningReport(unit=inputs.unit), list[list[Pair]]()
    for source in inputs.validation_sources:
        records = inputs.read_records(source)
        groups.append(list(clean_pairs(records, cleaning, report, trees=inputs.trees, tags=source.tags)))
    names, validation = _join_names(inputs.validation_sources), list(chain(*groups))
    if not validation:
        raise HeedfulError(f"{names}: no usable {inputs.unit} to validate on")
    validation_pairs = {strip_pair_tags(pair) for pair in validation}
    if inputs.directions:
        validation_pairs |= {Pair(pair.target, pair.source) for pair in validation_pairs}
    leaks = sum(strip_pair_tags(pair) in validation_pairs for pair in corpus.iter_pairs())
    notes = [
        f"validating on {format_count(len(validation), inputs.unit)} of {names}",
        *(f"of the validation {inputs.unit}s {line}" for line in report.summary_lines()[1:]),
    ]
    if leaks:
        leak_count = format_count(leaks, f"training {inputs.unit}")
        notes.append(f"left out {leak_count} that the validation set has too")
    split_filter = SplitFilter(excluded_pairs=frozenset(validation_pairs))
    if not inputs.directions:
        return CorpusSplit(split_filter, validation, notes)
    directions = [source.direction or inputs.directions[0] for source in inputs.validation_sources]
    validation, validation_directions = _interleave_directions(directions, groups)
    return CorpusSplit(split_filter, validation, notes, validation_directions)


def _join_names(sources: Sequence[CorpusSource]) -> str:
    return " and ".join(source.name for source in sources)


def split_directions(directions: Sequence[DirectionPairs], all_pairs: PairFactory, count: int = 0) -> CorpusSplit:
    """Hold out pairs of every direction, ``count`` sentences in all (0: by the size of the corpus).

    A sentence that is held out in one direction is not trained on in any other.
    """
    selections = [_split_direction(direction, count, len(directions)) for direction in directions]
    split_filter = SplitFilter(sentence_hashes=frozenset[int]().union(*(hashes for _, hashes in selections)))
    targets = {split_hash(pair.target) for pairs, _ in selections for pair in pairs}
    train_targets = {
        target_hash for pair in filter(split_filter, all_pairs()) if (target_hash := split_hash(pair.target)) in targets
    }
    groups = [[pair for pair in pairs if split_hash(pair.target) not in train_targets] for pairs, _ in selections]
    names = ["-".join(direction.direction) for direction in directions]
    for name, pairs in zip(names, groups, strict=True):
        if not pairs:
            raise HeedfulError(
                f"cannot hold out any pair of {name}: training has all their translations too",
                hint=f"give pairs to validate on: --validation {name}=FILE, and likewise for the others",
            )
    counts = ", ".join(f"{len(pairs):,} of {name}" for name, pairs in zip(names, groups, strict=True))
    notes = [f"held out for validation, chosen by a hash of the source: {counts}"]
    excluded = sum(not split_filter(pair) for pair in all_pairs()) - sum(map(len, groups))
    if excluded:
        notes.append(f"left out {format_count(excluded, 'pair')}: another direction holds out their sentence")
    validation, validation_directions = _interleave_directions(
        [direction.direction for direction in directions], groups
    )
    return CorpusSplit(split_filter, validation, notes, validation_directions)


def _split_direction(direction: DirectionPairs, count: int, directions: int) -> tuple[list[Pair], frozenset[int]]:
    """Held-out pairs and the hashes of their sources; reversed pairs are held out like the originals."""
    max_size = max(MIN_DIRECTION_VALIDATION_SIZE, MAX_TOTAL_VALIDATION_SIZE // directions)
    validation_size = count // directions if count else min(default_validation_size(direction.size), max_size)

    def orient(pair: Pair) -> Pair:
        return Pair(pair.target, pair.source) if direction.reverse else pair

    split = split_pairs(lambda: map(orient, direction.pairs()), max(1, validation_size))
    return list(map(orient, split.validation)), split.excluded_source_hashes


def _interleave_directions(
    directions: Sequence[Direction], groups: Sequence[Sequence[Pair]]
) -> tuple[list[Pair], tuple[Direction, ...]]:
    """Pairs of all directions in turn, so that any first pairs are of each direction."""
    labeled_pairs = interleave(
        [(pair, direction) for pair in pairs] for direction, pairs in zip(directions, groups, strict=True)
    )
    return [pair for pair, _ in labeled_pairs], tuple(direction for _, direction in labeled_pairs)


@dataclass(frozen=True, slots=True)
class HeldOutPairs:
    """Pairs that are held out, and which sources training must not see."""

    validation: list[Pair]
    excluded_source_hashes: frozenset[int]
    leaks: int  # pairs in neither part: their source is held out, but training has their target
    num_training_pairs: int

    def is_training_pair(self, pair: Pair) -> bool:
        """Whether a pair is for training."""
        return split_hash(pair.source) not in self.excluded_source_hashes


def split_pairs(pairs: PairFactory, count: int | None = None, others: PairFactory | None = None) -> HeldOutPairs:
    """Hold out ``count`` source sentences (default: ``default_validation_size``) with all their translations.

    At least one source sentence stays for training. ``others`` are training pairs that are never held out.
    Reads the pairs twice.
    """
    check_validation_size(count)
    shards = [HashedPairs.from_pairs(pairs(), eligible=True)]
    if others is not None:
        shards.append(HashedPairs.from_pairs(others(), eligible=False))
    return split_by_hashes(shards, lambda masks: list(compress(pairs(), masks[0])), count)


def split_by_shard_hashes(corpus: Corpus, count: int | None) -> HeldOutPairs:
    """Like ``split_pairs``, by the hashes that ``compute_statistics`` wrote beside the shards."""
    eligible = [source.use_for_validation for source in corpus.sources]
    shards = []
    for path, sizes in zip(corpus.paths, corpus.shard_sizes, strict=True):
        hashes = np.memmap(path.with_suffix(".hashes"), dtype="<u8", mode="r").view(np.ndarray)
        shards.append(HashedPairs(hashes.reshape(-1, 2), np.repeat(eligible, sizes)))
    return split_by_hashes(shards, lambda masks: _read_masked_pairs(corpus, masks), count)


def _read_masked_pairs(corpus: Corpus, masks: "PairMasks") -> list[Pair]:
    """Read the selected pairs; other lines are not parsed."""
    pairs = []
    for path, sizes, mask in zip(corpus.paths, corpus.shard_sizes, masks, strict=True):
        start = 0
        for _, lines in iter_lines(path, [sum(sizes)]):
            for index in np.flatnonzero(mask[start : start + len(lines)]).tolist():
                pairs.append(Pair(*lines[index].decode().rstrip("\n").split("\t")))
            start += len(lines)
    return pairs


PairMasks = Sequence[NDArray[np.bool_]]  # for each shard, which of its pairs are selected


class HashedPairs(NamedTuple):
    """Hashes of the pairs of a shard."""

    hashes: NDArray[np.uint64]  # (pairs, 2): source and target
    eligible: NDArray[np.bool_]  # whether a pair may be held out

    @classmethod
    def from_pairs(cls, pairs: Iterable[Pair], *, eligible: bool) -> Self:
        """Hash pairs in memory."""
        values = array("Q", (split_hash(sentence) for pair in pairs for sentence in (pair.source, pair.target)))
        hashes = np.array(values, dtype=np.uint64).reshape(-1, 2)
        return cls(hashes, np.full(len(hashes), eligible))


def split_by_hashes(
    shards: Sequence[HashedPairs], read_pairs: Callable[[PairMasks], list[Pair]], count: int | None = None
) -> HeldOutPairs:
    """Hold out the ``count`` sources with the smallest hashes; ``read_pairs`` reads selected pairs."""
    total = sum(int(shard.eligible.sum()) for shard in shards)
    check_validation_size(count, total)
    validation_size = default_validation_size(total) if count is None else count
    limit = (_DEFAULT_MAX_VALIDATION_SIZE if count is None else count) + 1  # one must stay for training
    smallest_hashes = [np.unique(shard.hashes[shard.eligible, 0])[:limit] for shard in shards]
    candidates = np.unique(np.concatenate(smallest_hashes))[:limit]
    sources = candidates[: max(0, min(validation_size, len(candidates) - 1))]
    source_masks = [np.isin(shard.hashes[:, 0], sources) for shard in shards]
    pairs = read_pairs([mask & shard.eligible for mask, shard in zip(source_masks, shards, strict=True)])
    targets = np.array(sorted({split_hash(pair.target) for pair in pairs}), dtype=np.uint64)
    train_targets = set[int]()
    for shard, mask in zip(shards, source_masks, strict=True):
        other_targets = shard.hashes[~mask, 1]
        train_targets.update(other_targets[np.isin(other_targets, targets)].tolist())
    validation = [pair for pair in pairs if split_hash(pair.target) not in train_targets]
    return HeldOutPairs(validation, frozenset(sources.tolist()), len(pairs) - len(validation), total - len(pairs))


def default_validation_size(pairs: int) -> int:
    """Source sentences to hold out: 5 % of the corpus, at least 1, at most 2,000.

    >>> [default_validation_size(pairs) for pairs in (0, 1, 2, 1000, 10_000_000)]
    [0, 0, 1, 50, 2000]
    """
    return min(max(round(_VALIDATION_FRACTION * pairs), 1), _DEFAULT_MAX_VALIDATION_SIZE) if pairs >= 2 else 0


def check_validation_size(count: int | None, total: int | None = None) -> None:
    """Raise if ``count`` sentences cannot be held out (of ``total`` pairs, if known)."""
    if count is not None and count < 1:
        raise HeedfulError(f"cannot hold out {count} sentences", hint="hold out 1 or more")
    if count is not None and total is not None and count > total / 2:
        raise HeedfulError(
            f"holding out {count:,} of {total:,} pairs leaves too few to train on",
            hint=f"hold out at most {total // 2:,}",
        )
