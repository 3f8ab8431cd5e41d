"""From files of pairs to token ids: clean, split, train the tokenizer, encode.

data/pairs.tsv        cleaned pairs of all parts, with their tags
data/training/        token store of the training part
data/validation.tsv   held-out pairs
data/remembered.tsv   pairs of what a model knew before it was tuned
data/tokenizer.json
data/start/           the tokenizer of the model that is tuned, if pieces are added to it
data/prepared.json    written last: what was done, and the recipe that was chosen
"""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from heedful.bundle import BundleConfig
from heedful.corpora.batches import Batches, Updates
from heedful.corpora.filters import CleaningConfig, Pair, cleaned_pairs
from heedful.corpora.formats import write_tsv
from heedful.corpora.parts import Direction, Mixture, Part, repeated
from heedful.corpora.shards import Manifest, ShardedBatches, Shards, open_store
from heedful.corpora.store import TokenStore
from heedful.errors import HeedfulError
from heedful.files import read_json, write_json
from heedful.model.config import ModelConfig
from heedful.progress import Reporter, counted
from heedful.text.glossary import TERM_TAGS
from heedful.text.tokenizer import PairTokenizer
from heedful.training.config import RunConfig
from heedful.training.corpus import Corpus
from heedful.training.directions import Division, tempered
from heedful.training.division import cleaned_corpus, divided, remembered_pairs
from heedful.training.encoding import (
    TRAINING,
    encode,
    encoding_notes,
    longest_side,
    mend_stores,
    readable_pairs,
)
from heedful.training.inputs import Inputs
from heedful.training.learns import Learns
from heedful.training.preparation_config import PreparationConfig
from heedful.training.sampling import check_stream, sampled, write_stream
from heedful.training.starting_model import starting_model, tuned_shape
from heedful.training.stream import STREAM, Stream
from heedful.training.survey import Survey, surveyed
from heedful.training.terms import term_notes

__all__ = ["Choice", "CorpusSize", "Inputs", "Prepared", "load_prepared", "prepare", "trained_tokenizer"]

PREPARED = "prepared.json"
RECIPE = "recipe.json"
TOKENIZER_PAIRS = 2_000_000
"""That a tokenizer is trained on, at most: more pairs hardly change its pieces."""
REMEMBERED = "remembered.tsv"
START = "start"
"""Where the tokenizer of the model stands that was tuned, if the new one has more pieces."""
DAMAGED = "the training cannot go on: delete the model folder and train anew"


@dataclass(frozen=True, slots=True)
class CorpusSize:
    """What a recipe is chosen by."""

    pairs: int
    characters: int  # of both sides
    alphabet: int  # different characters
    unit: str = "pair"  # or line, of plain text


@dataclass(frozen=True, slots=True)
class Prepared:
    """A corpus ready to train on."""

    config: RunConfig
    tokenizer: PairTokenizer
    training: TokenStore | Shards | Stream
    validation: list[Pair]
    summary: list[str]
    mixture: Mixture | None = None
    """Which pairs of the store an epoch sees, if not every pair once."""
    directions: tuple[Direction, ...] = ()
    """What is learned, if it is several."""
    examined: tuple[Direction, ...] = ()
    """The direction of each validation pair, if they are of several."""
    start: BundleConfig | None = None
    """Of the model that training starts from, if it does."""
    remembered: list[Pair] = field(default_factory=list)
    """Of what that model knew before, to see what it forgets."""

    def batches(self) -> Updates:
        """Which pairs each update sees."""
        if isinstance(self.training, Stream):
            return self.training
        settings, config = self.config.training, self.config.batches
        if isinstance(self.training, Shards):
            shares = self.mixture.shares if self.mixture else ()
            return ShardedBatches(self.training, config, settings.seed, settings.accumulate, shares)
        return Batches(self.training, config, settings.seed, settings.accumulate, self.mixture)

    @property
    def model(self) -> ModelConfig:
        """The shape of the model."""
        if self.start is not None:
            return tuned_shape(self.start, self.config, self.tokenizer)
        return ModelConfig(
            **self.config.model.model_dump(),
            source_vocabulary=self.tokenizer.source.size,
            target_vocabulary=self.tokenizer.target.size,
            joint=self.tokenizer.joint,
        )


class Choice(Protocol):
    """Chooses the recipe for a corpus of this size, and says why; it may measure the machine for that."""

    def __call__(self, size: CorpusSize, *, measured: bool = False) -> tuple[RunConfig, str]: ...


NewTokenizer = Callable[[RunConfig, Callable[[], Iterator[Pair]], Inputs], PairTokenizer]
"""The recipe, the pairs, and the languages and tags of the inputs to a tokenizer."""


class Means(NamedTuple):
    """How a corpus is prepared."""

    cleaning: CleaningConfig
    choose: Choice
    report: Reporter
    new_tokenizer: NewTokenizer
    scale: PreparationConfig


def trained_tokenizer(
    config: RunConfig, pairs: Callable[[], Iterator[Pair]], inputs: Inputs
) -> PairTokenizer:
    """A new one for these pairs."""
    tags = (*inputs.tags, *(TERM_TAGS if config.terms.share else ()))
    return PairTokenizer.train(pairs, config.tokenizer, inputs.languages, tags)


def prepare(
    inputs: Inputs,
    folder: Path,
    cleaning: CleaningConfig,
    choose: Choice,
    report: Reporter,
    new_tokenizer: NewTokenizer = trained_tokenizer,
    scale: PreparationConfig = PreparationConfig(),  # noqa: B008 - frozen
) -> Prepared:
    """Do it all, or take what an earlier call had finished in the same folder."""
    if (folder / PREPARED).exists():
        mend_stores(folder, scale.processes, report)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        way = _prepare_stream if scale.stream else _prepare
        way(inputs, folder, Means(cleaning, choose, report, new_tokenizer, scale))
    return load_prepared(folder)


def load_prepared(folder: Path) -> Prepared:
    """What ``prepare`` has finished."""
    try:
        return _loaded(folder, read_json(folder / PREPARED, DAMAGED))
    except (TypeError, ValueError) as error:
        raise HeedfulError(f"the prepared corpus in {folder} is damaged: {error}", hint=DAMAGED) from None


def _loaded(folder: Path, finished: dict[str, Any]) -> Prepared:
    validation = list(cleaned_pairs(folder / "validation.tsv"))
    if not ({"config", "summary"} <= finished.keys() and validation):
        raise HeedfulError(f"the prepared corpus in {folder} is damaged", hint=DAMAGED)
    config = RunConfig.checked(finished["config"])
    tokenizer = PairTokenizer.load(folder / "tokenizer.json")
    streams = (folder / STREAM).is_file()
    store = Stream.open(folder, config, tokenizer) if streams else open_store(folder / TRAINING)
    # An older Heedful knew of no parts.
    sizes = tuple(map(int, finished.get("sizes", [len(store)])))
    shares = tuple(map(float, finished.get("shares", [0.0])))
    if len(sizes) != len(shares) or min(sizes) < 0 or not all(0 <= share <= 1 + 1e-6 for share in shares):
        raise ValueError(f"parts of {sizes} pairs with shares {shares}")
    if sum(sizes) > len(store) and not streams:
        raise ValueError(f"{sum(sizes):,} pairs, of which {len(store):,} are there")
    start, remembered = finished.get("start"), folder / REMEMBERED
    return Prepared(
        config,
        tokenizer,
        store,
        validation,
        [str(line) for line in finished["summary"]],
        Mixture(sizes, shares),
        tuple((one, other) for one, other in finished.get("directions", ())),
        tuple((one, other) for one, other in finished.get("examined", ())),
        BundleConfig.checked(start) if start else None,
        list(cleaned_pairs(remembered)) if remembered.exists() else [],
    )


def _prepare(inputs: Inputs, folder: Path, means: Means) -> None:
    report = means.report
    corpus, summary = cleaned_corpus(inputs, folder, means.cleaning, means.scale, report)
    config, reason = _recipe(corpus, inputs, means)
    report.say(reason)
    corpus = replace(corpus, parts=tempered(corpus.parts, corpus.sizes, config.training.temperature))
    made = _divided(inputs, corpus, config, means)
    tokenizer, notes = made.tokenizer, made.notes
    manifest = encode(corpus, made.learns, config, means.scale.processes, report, inputs.unit)
    mixture = _mixture(corpus, manifest)
    listed, found = (sum(getattr(shard, name) for shard in manifest.shards) for name in ("listed", "found"))
    notes += term_notes(config.terms, listed, found)
    notes += encoding_notes(manifest, tokenizer, config.model.longest, inputs.unit)
    _finish(inputs, corpus, mixture, made, [*summary, reason, *notes], report)


def _prepare_stream(inputs: Inputs, folder: Path, means: Means) -> None:
    """Choose everything by a sample; what is learned from is read while training."""
    report = means.report
    sample, summary = sampled(inputs, folder, means.cleaning, means.scale, report)
    corpus = sample.corpus
    survey = Survey.of(corpus.numbered(), len(corpus.parts))
    times = sum(sample.sizes) / sum(corpus.sizes)
    size = CorpusSize(
        sum(sample.sizes), round(times * sum(survey.characters)), len(survey.alphabet), inputs.unit
    )
    config, reason = means.choose(size, measured=True)
    check_stream(config)
    report.say(reason)
    corpus = replace(corpus, parts=tempered(corpus.parts, sample.sizes, config.training.temperature))
    (folder / "tokenizer.json").unlink(missing_ok=True)  # of a sample that another start has drawn
    made = _divided(inputs, corpus, config, means)
    mixture = write_stream(sample, corpus, made.learns, config, made.tokenizer, inputs)
    _finish(inputs, corpus, mixture, made, [*summary, reason, *made.notes], report)


class Made(NamedTuple):
    """What a corpus is divided into, and its tokenizer."""

    config: RunConfig
    learns: Learns
    tokenizer: PairTokenizer
    start: BundleConfig | None
    examined: list[Direction]
    notes: list[str]


def _divided(inputs: Inputs, corpus: Corpus, config: RunConfig, means: Means) -> Made:
    """Set pairs aside to be examined on, and train the tokenizer on the others."""
    division = divided(inputs, corpus, config)
    start = starting_model(Path(config.tuning.start_from)).config if config.tuning.start_from else None
    learns, old, notes = division.learns, list[Pair](), division.notes
    if start is None:
        means.report.say(f"training the {config.tokenizer.kind} tokenizer")
    else:
        learns, old, lines = remembered_pairs(inputs, corpus, learns, config.cleaning)
        notes += lines
    tokenizer = _tokenizer(corpus, learns, config, inputs, means)
    examined, lines = _write_examinations(division, old, corpus.folder, tokenizer, config, inputs.unit)
    return Made(config, learns, tokenizer, start, examined, notes + lines)


def _finish(
    inputs: Inputs, corpus: Corpus, mixture: Mixture, made: Made, summary: list[str], report: Reporter
) -> None:
    """Tell, and write down, what was done."""
    mixed = _mixed(corpus.parts, mixture, inputs.unit)
    for note in [*made.notes, *mixed]:
        report.say(note)
    write_json(
        corpus.folder / PREPARED,
        {
            "summary": [*summary, *mixed],
            "config": json.loads(made.config.model_dump_json()),
            "start": made.start and json.loads(made.start.model_dump_json()),
            "sizes": mixture.sizes,
            "shares": mixture.shares,
            "directions": inputs.directions,
            "examined": made.examined,
        },
    )


def _recipe(corpus: Corpus, inputs: Inputs, means: Means) -> tuple[RunConfig, str]:
    """The recipe and why: as chosen before a kill, for the machine could be quicker now than then."""
    path = corpus.folder / RECIPE
    if path.is_file():
        state = read_json(path, DAMAGED)
        return RunConfig.checked(state["config"]), state["reason"]
    survey = surveyed(corpus, means.scale.processes, means.report, inputs.unit)
    config, reason = means.choose(_measured(corpus, survey, inputs.unit), measured=True)
    write_json(path, {"reason": reason, "config": json.loads(config.model_dump_json())})
    return config, reason


def _measured(corpus: Corpus, survey: Survey, unit: str) -> CorpusSize:
    """What an epoch sees."""
    mixture = corpus.mixture
    seen = sum(count * weight for count, weight in zip(survey.characters, mixture.weights, strict=True))
    return CorpusSize(sum(mixture.counts), round(seen), len(survey.alphabet), unit)


def _tokenizer(
    corpus: Corpus, learns: Learns, config: RunConfig, inputs: Inputs, means: Means
) -> PairTokenizer:
    """The one that was trained before a kill, or a new one."""
    path = corpus.folder / "tokenizer.json"
    if not path.is_file():
        pairs = partial(_as_often_as_seen, corpus, learns)
        means.new_tokenizer(config, pairs, inputs).save(path)
    return PairTokenizer.load(path)


def _as_often_as_seen(corpus: Corpus, learns: Learns) -> Iterator[Pair]:
    """The training pairs as an epoch sees them: a tokenizer is to suit that. Some shards stand for all."""
    weights = corpus.mixture.weights
    every = len(corpus.shards)
    shards = min(every, max(1, TOKENIZER_PAIRS * every // sum(corpus.sizes)))
    numbered = itertools.chain.from_iterable(map(corpus.of_shard, range(shards)))
    for number, pairs in itertools.groupby(numbered, key=lambda numbered: numbered[0]):
        yield from repeated((pair for _, pair in pairs if learns(pair)), weights[number])


def _write_examinations(
    division: Division,
    old: Sequence[Pair],
    folder: Path,
    tokenizer: PairTokenizer,
    config: RunConfig,
    unit: str,
) -> tuple[list[Direction], list[str]]:
    """Write the pairs to be examined on; returns the direction of each, and what was too long."""
    validation = division.validation
    if config.tuning.new_pieces:
        before = starting_model(Path(config.tuning.start_from)).tokenizer
        (folder / START).mkdir(exist_ok=True)
        before.save(folder / START / "tokenizer.json")
        validation, old = (readable_pairs(pairs, before, config.model) for pairs in (validation, old))
    if old:
        write_tsv(readable_pairs(old, tokenizer, config.model), folder / REMEMBERED)
    fits = [longest_side(pair, tokenizer) < config.model.longest for pair in validation]
    readable = list(itertools.compress(validation, fits))
    if not readable:
        raise HeedfulError(f"every validation {unit} has more than {config.model.longest} tokens")
    write_tsv(readable, folder / "validation.tsv")
    too_long = counted(len(validation) - len(readable), f"validation {unit}")
    note = f"dropped {too_long}: more than {config.model.longest} tokens"
    examined = list(itertools.compress(division.examined, fits))
    return examined, [note] * (len(readable) < len(validation))


def _mixture(corpus: Corpus, manifest: Manifest) -> Mixture:
    """What an epoch takes of what was encoded."""
    sizes = tuple(map(sum, zip(*(shard.parts for shard in manifest.shards), strict=True)))
    for size, part in zip(sizes, corpus.parts, strict=True):
        if part.direction and not size and any(sizes):
            raise HeedfulError(f"no pair of {part.name} is left to learn from", hint="validate on others")
    return Mixture(sizes, corpus.mixture.shares)


def _mixed(parts: Sequence[Part], mixture: Mixture, unit: str) -> list[str]:
    """What an epoch is made of, if it is not simply every pair once."""
    if mixture.whole:
        return []
    counts, total = mixture.counts, sum(mixture.counts)
    return [
        f"of the {counted(total, unit)} of an epoch {count:,} ({count / total:.0%}) are of {part.name}"
        for part, count in zip(parts, counts, strict=True)
    ]
