"""What is known of a stream before it is trained on: a sample of its pairs, and how many there may be.

data/pairs.tsv    the sample, cleaned: the beginning of every file, as much as its size says
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from heedful.corpora.batches import plan_batches
from heedful.corpora.endless import Position
from heedful.corpora.filters import CleaningConfig, CleaningReport, Pair, clean
from heedful.corpora.formats import write_tsv
from heedful.corpora.hashes import SeenHashes
from heedful.corpora.parts import Mixture, check_shares
from heedful.corpora.pieces import identity, is_packed
from heedful.corpora.reading import Record
from heedful.errors import HeedfulError
from heedful.files import write_json
from heedful.progress import Reporter, counted
from heedful.text.tokenizer import PairTokenizer
from heedful.training.config import RunConfig
from heedful.training.corpus import PAIRS, Corpus
from heedful.training.encoding import chunks, encoded
from heedful.training.inputs import Inputs
from heedful.training.learns import Learns
from heedful.training.preparation_config import PreparationConfig
from heedful.training.stream import STREAM, WINDOWS, Group, endless, groups_of, lengths

PACKED = 3
"""Times as large as it is packed a file of text is, about."""
FEWEST = 100
"""Records of the sample of each file, at least."""
MOST_FILES = 400
"""That can be open at once."""


class Sample(NamedTuple):
    """Of a stream."""

    corpus: Corpus
    groups: list[Group]
    records: list[float]
    """Of each group, about."""
    kept: float
    """Share of the records that are fit to learn from."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Pairs of each part, about."""
        return tuple(
            round(
                self.kept
                * sum(n for group, n in zip(self.groups, self.records, strict=True) if group.part == number)
            )
            for number in range(len(self.corpus.parts))
        )


def sampled(
    inputs: Inputs, folder: Path, cleaning: CleaningConfig, config: PreparationConfig, report: Reporter
) -> tuple[Sample, list[str]]:
    """Clean a sample of all files; returns it, and what there is to say about it."""
    check_shares(inputs.corpus)
    groups = groups_of(inputs)
    _check(inputs, groups)
    sizes = [sum(path.stat().st_size for path in group.paths) for group in groups]
    counts, found = CleaningReport(unit=inputs.unit), list[float]()
    kept = [0] * len(inputs.corpus)

    def pairs() -> Iterator[Pair]:
        for group, size in zip(groups, sizes, strict=True):
            wanted = max(FEWEST, round(config.sample_pairs * size / max(1, sum(sizes))))
            file = endless(inputs, group, Position())
            records = file.take(wanted, again=False)
            found.append(_estimated(records, size, wanted, packed=is_packed(group.paths[0])))
            tags, before = inputs.corpus[group.part].tags, counts.kept
            # As in the stream: a pair of another file is no duplicate, but mixed in to be seen more often.
            yield from clean(records, cleaning, counts, trees=inputs.trees, tags=tags, seen=SeenHashes())
            kept[group.part] += counts.kept - before

    write_tsv(report.track(pairs(), "sampling", unit=f"{inputs.unit}s"), folder / PAIRS)
    for part, number in zip(inputs.corpus, kept, strict=True):
        if not number or counts.kept < 2:
            raise HeedfulError(
                f"the beginning of {part.name} holds next to no pairs to learn from",
                hint=f"heedful corpus stats {part.paths[0]} says why",
            )
    sample = Sample(Corpus(folder, inputs.corpus, (tuple(kept),)), groups, found, counts.kept / counts.read)
    total = f"a stream of about {counted(sum(sample.sizes), inputs.unit)}"
    lines = [f"{total}; of a sample: {line}" for line in counts.lines()[:1]] + counts.lines()[1:]
    for line in lines:
        report.say(line)
    return sample, lines


def _estimated(records: list[Record], size: int, wanted: int, *, packed: bool) -> float:
    """Records of a file: as many as were found if that was all, else by its size."""
    if len(records) < wanted:
        return float(max(len(records), 1))
    length = sum(len(f"{record.source}{record.target}".encode()) + 2 for record in records) / len(records)
    return max(float(len(records)), size * (PACKED if packed else 1) / length)


def _check(inputs: Inputs, groups: list[Group]) -> None:
    if not all(path.is_file() for part in inputs.corpus for path in part.paths):
        raise HeedfulError(
            "a stream is read again and again, which standard input and pipes cannot be", hint="name files"
        )
    if len(groups) > MOST_FILES:
        raise HeedfulError(
            f"{len(groups)} files are too many for a stream", hint=f"join them to {MOST_FILES}"
        )


def check_stream(config: RunConfig) -> None:
    """Raise if a recipe cannot be followed without a store."""
    if not (config.training.updates or config.training.minutes):
        raise HeedfulError(
            "a stream has no end, so say when to stop", hint="--time 2h, or --set training.updates=100000"
        )
    for name, told in {"terms.share": config.terms.share, "taught.links": config.taught.links}.items():
        if told:
            raise HeedfulError(f"{name} does not go with preparation.stream", hint="leave out one of the two")


def write_stream(
    sample: Sample,
    corpus: Corpus,
    learns: Learns,
    config: RunConfig,
    tokenizer: PairTokenizer,
    inputs: Inputs,
) -> Mixture:
    """Write down what is to be read; returns what an epoch takes of each part, about."""
    mixture = Mixture(sample.sizes, tuple(part.share for part in corpus.parts))
    weights = [
        records * mixture.weights[group.part]
        for group, records in zip(sample.groups, sample.records, strict=True)
    ]
    longest, batches, pairs = _measured(corpus, learns, config, tokenizer)
    updates = batches / pairs * sum(mixture.counts) / config.training.accumulate
    (corpus.folder / WINDOWS).unlink(missing_ok=True)
    write_json(
        corpus.folder / STREAM,
        {
            "inputs": inputs.to_json(),
            "files": identity(path for part in inputs.corpus for path in part.paths),
            "learns": learns.to_json(),
            "weights": weights,
            "pairs": sum(mixture.counts),
            "per_epoch": max(1, round(updates)),
            "longest_source": longest,
        },
    )
    return mixture


def _measured(
    corpus: Corpus, learns: Learns, config: RunConfig, tokenizer: PairTokenizer
) -> tuple[int, int, int]:
    """The longest source, and the batches that the sample would make, of how many pairs."""
    sources, targets = list[list[int]](), list[list[int]]()
    for some in chunks(((n, pair) for n, pair in corpus.numbered() if learns(pair)), 10_000):
        for source, target in zip(*encoded(some, tokenizer), strict=True):
            if max(len(source), len(target)) < config.model.longest:
                sources.append(list(source))
                targets.append(list(target))
    if not sources:
        raise HeedfulError(f"every pair of the sample has more than {config.model.longest} tokens")
    plan = plan_batches(lengths(sources), lengths(targets), config.batches, seed=1, epoch=0)
    return max(map(len, sources)), len(plan), len(sources)
