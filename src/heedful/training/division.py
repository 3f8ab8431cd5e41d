"""All parts of a corpus cleaned into one file, and divided: pairs to learn from, pairs to be examined on."""

import itertools
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from heedful.corpora.filters import CleaningConfig, CleaningReport, Pair, clean, cleaned_pairs
from heedful.corpora.formats import write_tsv
from heedful.corpora.hashes import SeenHashes
from heedful.corpora.parts import Part, check_shares
from heedful.corpora.pieces import identity
from heedful.corpora.split import Split, split, split_hash
from heedful.errors import HeedfulError
from heedful.progress import Reporter, counted
from heedful.training.config import RunConfig
from heedful.training.corpus import CLEANED, PAIRS, Corpus, keep_cleaned, kept_cleaned, lines_of, write_corpus
from heedful.training.directions import Division, held_out_of_each, interleaved
from heedful.training.gathering import forget_pieces, gathered, is_large
from heedful.training.inputs import Inputs
from heedful.training.learns import Learns, untagged
from heedful.training.preparation_config import PreparationConfig
from heedful.training.survey import split_shards

MOST_REMEMBERED = 2000
"""Old pairs that are examined at most."""


def cleaned_corpus(
    inputs: Inputs, folder: Path, cleaning: CleaningConfig, scale: PreparationConfig, report: Reporter
) -> tuple[Corpus, list[str]]:
    """The pairs that are fit to learn from, and a report of those that are not."""
    check_shares(inputs.corpus)
    files = identity(inputs.paths)
    if (kept := kept_cleaned(folder, inputs.corpus, files)) is not None:
        return kept
    _forget(folder)
    way = gathered if is_large(inputs, scale) else _one_by_one
    corpus, counts = way(inputs, folder, cleaning, scale, report)
    parts, lines = inputs.corpus, []
    for part, count in zip(parts, counts, strict=True):
        name = f"{part.name}: " if len(parts) > 1 else ""
        lines += [f"{name}{line}" for line in count.lines()]
    for line in lines:
        report.say(line)
    for part, count in zip(parts, counts, strict=True):
        if count.kept < (2 if len(parts) == 1 else 1):
            raise HeedfulError(
                f"{part.name}: {count.kept} of {counted(count.read, inputs.unit)} are fit to learn from",
                hint=_cure(inputs, count),
            )
    keep_cleaned(corpus, lines, files)
    forget_pieces(folder)
    return corpus, lines


def _forget(folder: Path) -> None:
    """Remove what was made of other pairs, but for pieces, which know themselves what they are made of."""
    for name in ("training", "pairs"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (CLEANED, "recipe.json", "tokenizer.json", "encoding.json"):
        (folder / name).unlink(missing_ok=True)


def _one_by_one(
    inputs: Inputs, folder: Path, cleaning: CleaningConfig, scale: PreparationConfig, report: Reporter
) -> tuple[Corpus, list[CleaningReport]]:
    """All records in their order: what cleaning is, however it is done."""
    parts = inputs.corpus
    counts, seen = [CleaningReport(unit=inputs.unit) for _ in parts], SeenHashes()

    def pairs() -> Iterator[Pair]:
        for part, count in zip(parts, counts, strict=True):
            records = report.track(inputs.records(part), "reading", unit=f"{inputs.unit}s")
            yield from clean(records, cleaning, count, trees=inputs.trees, tags=part.tags, seen=seen)

    total = write_tsv(pairs(), folder / PAIRS)
    sizes = tuple(count.kept for count in counts)
    if total <= scale.shard_pairs:
        return Corpus(folder, parts, (sizes,)), counts
    corpus = write_corpus(lines_of(folder / PAIRS, sizes), folder, parts, total, scale.shard_pairs)
    (folder / PAIRS).unlink()
    return corpus, counts


def _cure(inputs: Inputs, counts: CleaningReport) -> str:
    """What to do when next to nothing is left."""
    if counts.dropped.get("too long", 0) > counts.read / 2:
        return "keep long lines: --set cleaning.max_characters=0 (0 for any length)"
    if inputs.plain:
        return "the report above says what fell out"
    shape = f"source TAB target{' TAB heads' * inputs.trees}"
    return f"a corpus is one pair a line, {shape}; the report above says what fell out"


def divided(inputs: Inputs, corpus: Corpus, config: RunConfig) -> Division:
    """Which pairs to learn from, the validation pairs, and a word about how they came to be."""
    if inputs.examination:
        return _given_validation(inputs, corpus, config.cleaning)
    if inputs.directions:
        return held_out_of_each(corpus.directions(), corpus.pairs, config.training.held_out)
    parts = _split(corpus, config.training.held_out or None)
    if not parts.held_out:
        raise HeedfulError(
            f"no {inputs.unit} of {_names(corpus.parts)} can be held out: their translations all recur",
            hint="give pairs to validate on: --validation FILES",
        )
    notes = [
        f"held out {counted(len(parts.held_out), inputs.unit)} for validation, chosen by a hash of the source"
    ]
    if parts.leaks:
        notes.append(
            f"left out {counted(parts.leaks, inputs.unit)}: held out, but training has their translation"
        )
    return Division(Learns(parts.sources), parts.held_out, notes)


def _split(corpus: Corpus, count: int | None) -> Split:
    """Of a corpus in shards by the hashes that are there."""
    if len(corpus.shards) > 1:
        return split_shards(corpus, count)
    return split(lambda: corpus.pairs(held_out=True), count, lambda: corpus.pairs(held_out=False))


def _given_validation(inputs: Inputs, corpus: Corpus, cleaning: CleaningConfig) -> Division:
    """The pairs of the user's files; a pair in both would be an examination with the answers known."""
    counts, groups = CleaningReport(unit=inputs.unit), list[list[Pair]]()
    for part in inputs.examination:
        records = inputs.records(part)
        groups.append(list(clean(records, cleaning, counts, trees=inputs.trees, tags=part.tags)))
    names, validation = _names(inputs.examination), list(itertools.chain(*groups))
    if not validation:
        raise HeedfulError(f"{names}: no usable {inputs.unit} to validate on")
    known = {untagged(pair) for pair in validation}
    if inputs.directions:
        known |= {Pair(pair.target, pair.source) for pair in known}
    leaked = sum(untagged(pair) in known for pair in corpus.pairs())
    left_out = counted(leaked, f"training {inputs.unit}")
    notes = [
        f"validating on {counted(len(validation), inputs.unit)} of {names}",
        *(f"of the validation {inputs.unit}s {line}" for line in counts.lines()[1:]),
        *[f"left out {left_out} that the validation set has too"] * (leaked > 0),
    ]
    if inputs.directions:
        told = [part.direction or inputs.directions[0] for part in inputs.examination]
        return Division(Learns(pairs=frozenset(known)), *interleaved(told, groups, notes))
    return Division(Learns(pairs=frozenset(known)), validation, notes)


def remembered_pairs(
    inputs: Inputs, corpus: Corpus, learns: Learns, cleaning: CleaningConfig
) -> tuple[Learns, list[Pair], list[str]]:
    """Which pairs to learn from, the old pairs, and a word about where these are from."""
    mixed = [part for part in corpus.parts if not part.held_out]
    if inputs.remembered:
        pairs = _old_pairs(inputs, cleaning)
        sources = frozenset(split_hash(pair.source) for pair in pairs)
        known = Counter(split_hash(pair.source) in sources for pair in corpus.pairs() if learns(pair))
        leaked = known[True]
        if not known[False]:
            raise HeedfulError(
                f"nothing is left to learn from: the old pairs, {_names(inputs.remembered)}, have it all",
                hint="give old pairs that are not among the new ones",
            )
        notes = [f"old pairs: {len(pairs):,} of {_names(inputs.remembered)}"]
        notes += [f"left out {counted(leaked, f'training {inputs.unit}')} that they have too"] * (leaked > 0)
        return learns.without(sources), pairs, notes
    if not mixed:
        note = "no old pairs: what the model forgets cannot be seen (--old-validation FILES, or --mix FILE)"
        return learns, [], [note]
    parts = split(
        lambda: filter(learns, corpus.pairs(held_out=False)),
        None,
        lambda: filter(learns, corpus.pairs(held_out=True)),
    )
    note = f"old pairs: {len(parts.held_out):,} held out of {_names(mixed)}"
    return learns.without(parts.sources), parts.held_out, [note]


def _old_pairs(inputs: Inputs, cleaning: CleaningConfig) -> list[Pair]:
    counts, pairs = CleaningReport(), list[Pair]()
    for part in inputs.remembered:
        if all((path.parent / "prepared.json").is_file() for path in part.paths):  # clean and tagged already
            pairs += (pair for path in part.paths for pair in cleaned_pairs(path))
        else:
            records = inputs.records(part)
            pairs += clean(records, cleaning, counts, trees=inputs.trees, tags=part.tags)
    if not pairs:
        raise HeedfulError(f"{_names(inputs.remembered)}: no usable old pairs to validate on")
    return pairs[:MOST_REMEMBERED]


def _names(parts: Sequence[Part]) -> str:
    return " and ".join(part.name for part in parts)
