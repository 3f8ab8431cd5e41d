"""From files of pairs to token ids: clean, split, train the tokenizer, encode.

data/pairs.tsv        cleaned pairs of all parts, with their tags
data/training/        token store of the training part
data/validation.tsv   held-out pairs
data/tokenizer.json
data/prepared.json    written last: what was done, and the recipe that was chosen
"""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from heedful.corpora.filters import CleaningConfig, CleaningReport, Pair, clean, cleaned_pairs
from heedful.corpora.formats import read_pairs, read_texts, write_tsv
from heedful.corpora.hashes import SeenHashes
from heedful.corpora.parts import Direction, Mixture, Part, check_shares, repeated
from heedful.corpora.reading import Reading, ReadingConfig, Record
from heedful.corpora.split import split
from heedful.corpora.store import TokenStore
from heedful.errors import HeedfulError
from heedful.files import read_json, write_json
from heedful.progress import Reporter, counted
from heedful.text.glossary import TERM_TAGS
from heedful.text.tags import without_tags
from heedful.text.tokenizer import PairTokenizer
from heedful.training.config import RunConfig
from heedful.training.directions import (
    DirectionPairs,
    Division,
    held_out_of_each,
    interleaved,
    tempered,
)
from heedful.training.encoding import encode, longest_side
from heedful.training.terms import TermWriter

DAMAGED = "the training cannot go on: delete the model folder and train anew"


@dataclass(frozen=True, slots=True)
class CorpusSize:
    """What a recipe is chosen by."""

    pairs: int
    characters: int  # of both sides
    alphabet: int  # different characters
    unit: str = "pair"  # or line, of plain text


@dataclass(frozen=True, slots=True)
class Inputs:
    """The user's files."""

    training: tuple[Path, ...]
    validation: tuple[Path, ...] = ()
    languages: tuple[str, str] | None = None
    plain: bool = False
    """Whether these are plain texts, and no pairs."""
    trees: bool = False
    """Whether sources come with the heads of their words."""
    reading: ReadingConfig = ReadingConfig()  # noqa: RUF009 - frozen
    """How files of other programs are read."""
    parts: tuple[Part, ...] = ()
    """More to learn from, behind the training files."""
    examined: tuple[Part, ...] = ()
    """More to validate on; their shares say nothing."""

    def __post_init__(self) -> None:
        if self.tags and (self.trees or self.plain):
            raise HeedfulError(
                f"{'trees' if self.trees else 'plain texts'} cannot be tagged", hint="leave out the tags"
            )

    @property
    def corpus(self) -> tuple[Part, ...]:
        """All parts to learn from."""
        return (*([Part(self.training, self.languages)] * bool(self.training)), *self.parts)

    @property
    def examination(self) -> tuple[Part, ...]:
        """All parts to validate on, if any are given."""
        return (*([Part(self.validation, self.languages)] * bool(self.validation)), *self.examined)

    @property
    def tags(self) -> tuple[str, ...]:
        """Those of all parts, in their order."""
        named = [tag for part in (*self.corpus, *self.examination) for tag in part.tags]
        return tuple(dict.fromkeys(named))

    @property
    def unit(self) -> str:
        """What they are made of."""
        return "line" if self.plain else "pair"

    @property
    def directions(self) -> tuple[Direction, ...]:
        """What is learned, if a tag asks for each target."""
        return tuple(dict.fromkeys(part.direction for part in self.corpus if part.direction))

    def records(self, part: Part) -> Iterator[Record]:
        """What stands in the files of a part, whose languages may be others than the model's."""
        if self.plain:
            return read_texts(part.paths)
        languages = part.languages or self.languages
        if not part.reverse:
            return read_pairs(part.paths, Reading(languages, self.reading))
        assert languages  # a direction says them
        found = read_pairs(part.paths, Reading((languages[1], languages[0]), self.reading))
        return (record._replace(source=record.target, target=record.source) for record in found)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A corpus ready to train on."""

    config: RunConfig
    tokenizer: PairTokenizer
    training: TokenStore
    validation: list[Pair]
    summary: list[str]
    mixture: Mixture | None = None
    """Which pairs of the store an epoch sees, if not every pair once."""
    directions: tuple[Direction, ...] = ()
    """What is learned, if it is several."""
    examined: tuple[Direction, ...] = ()
    """The direction of each validation pair, if they are of several."""


class Choice(Protocol):
    """Chooses the recipe for a corpus of this size, and says why; it may measure the machine for that."""

    def __call__(self, size: CorpusSize, *, measured: bool = False) -> tuple[RunConfig, str]: ...


NewTokenizer = Callable[[RunConfig, Callable[[], Iterator[Pair]], Inputs], PairTokenizer]
"""The recipe, the pairs, and the languages and tags of the inputs to a tokenizer."""


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
) -> Prepared:
    """Do it all, or take what an earlier call had finished in the same folder."""
    if not (folder / "prepared.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        _prepare(inputs, folder, cleaning, choose, report, new_tokenizer)
    return load_prepared(folder)


def load_prepared(folder: Path) -> Prepared:
    """What ``prepare`` has finished."""
    finished = read_json(folder / "prepared.json", DAMAGED)
    validation = list(cleaned_pairs(folder / "validation.tsv"))
    if not ({"config", "summary"} <= finished.keys() and validation):
        raise HeedfulError(f"the prepared corpus in {folder} is damaged", hint=DAMAGED)
    store = TokenStore.open(folder / "training")
    sizes = finished.get("sizes", [len(store)])  # an older Heedful knew of no parts
    return Prepared(
        RunConfig.checked(finished["config"]),
        PairTokenizer.load(folder / "tokenizer.json"),
        store,
        validation,
        finished["summary"],
        Mixture(tuple(sizes), tuple(finished.get("shares", [0.0]))),
        tuple((one, other) for one, other in finished.get("directions", ())),
        tuple((one, other) for one, other in finished.get("examined", ())),
    )


def _prepare(
    inputs: Inputs,
    folder: Path,
    cleaning: CleaningConfig,
    choose: Choice,
    report: Reporter,
    new_tokenizer: NewTokenizer,
) -> None:
    corpus, summary = _cleaned(inputs, folder / "pairs.tsv", cleaning, report)
    config, reason = choose(_measured(corpus, inputs.unit), measured=True)
    report.say(reason)
    corpus = replace(corpus, parts=tempered(corpus.parts, corpus.sizes, config.training.temperature))
    learns, validation, notes, examined = _divided(inputs, corpus, config)
    report.say(f"training the {config.tokenizer.kind} tokenizer")
    tokenizer = new_tokenizer(config, lambda: _as_often_as_seen(corpus, learns), inputs)
    tokenizer.save(folder / "tokenizer.json")
    fits = [longest_side(pair, tokenizer) < config.model.longest for pair in validation]
    readable = list(itertools.compress(validation, fits))
    if not readable:
        raise HeedfulError(f"every validation {inputs.unit} has more than {config.model.longest} tokens")
    if len(readable) < len(validation):
        too_long = counted(len(validation) - len(readable), f"validation {inputs.unit}")
        notes.append(f"dropped {too_long}: more than {config.model.longest} tokens")
    write_tsv(readable, folder / "validation.tsv")
    terms = TermWriter(
        config.terms, lambda: ((number, pair) for number, pair in corpus.numbered() if learns(pair))
    )
    sizes, lines = encode(terms.pairs(), tokenizer, folder / "training", config.model, report, inputs.unit)
    for number, part in enumerate(corpus.parts):
        if part.direction and not sizes[number]:
            raise HeedfulError(f"no pair of {part.name} is left to learn from", hint="validate on others")
    notes += terms.notes
    mixture = Mixture(tuple(sizes[number] for number in range(len(corpus.parts))), corpus.mixture.shares)
    notes += [*lines, *_mixed(corpus.parts, mixture, inputs.unit)]
    for note in notes:
        report.say(note)
    write_json(
        folder / "prepared.json",
        {
            "summary": [*summary, reason, *notes],
            "config": json.loads(config.model_dump_json()),
            "sizes": mixture.sizes,
            "shares": mixture.shares,
            "directions": inputs.directions,
            "examined": list(itertools.compress(examined, fits)),
        },
    )


@dataclass(frozen=True, slots=True)
class _Corpus:
    """The cleaned pairs of all parts, one behind another in a file."""

    path: Path
    parts: tuple[Part, ...]
    sizes: tuple[int, ...]

    @property
    def mixture(self) -> Mixture:
        return Mixture(self.sizes, tuple(part.share for part in self.parts))

    def numbered(self) -> Iterator[tuple[int, Pair]]:
        """Each with the number of its part."""
        pairs = cleaned_pairs(self.path)
        for number, size in enumerate(self.sizes):
            for pair in itertools.islice(pairs, size):
                yield number, pair

    def pairs(self, *, held_out: bool | None = None) -> Iterator[Pair]:
        """All, or those that may be held out, or the others."""
        wanted = [held_out is None or part.held_out == held_out for part in self.parts]
        return (pair for number, pair in self.numbered() if wanted[number])

    def of_parts(self, numbers: Sequence[int]) -> Iterator[Pair]:
        """Those of some parts."""
        return (pair for number, pair in self.numbered() if number in numbers)

    def directions(self) -> list[DirectionPairs]:
        """The pairs of each direction that may be held out; files of one direction are one."""
        numbers: dict[Direction, list[int]] = {}
        for number, part in enumerate(self.parts):
            if part.direction and part.held_out:
                numbers.setdefault(part.direction, []).append(number)
        return [
            DirectionPairs(
                name,
                partial(self.of_parts, own),
                sum(self.sizes[number] for number in own),
                self.parts[own[0]].reverse,
            )
            for name, own in numbers.items()
        ]


def _cleaned(
    inputs: Inputs, result: Path, cleaning: CleaningConfig, report: Reporter
) -> tuple[_Corpus, list[str]]:
    parts = inputs.corpus
    check_shares(parts)
    counts, seen = [CleaningReport(unit=inputs.unit) for _ in parts], SeenHashes()

    def pairs() -> Iterator[Pair]:
        for part, count in zip(parts, counts, strict=True):
            records = report.track(inputs.records(part), "reading", unit=f"{inputs.unit}s")
            yield from clean(records, cleaning, count, trees=inputs.trees, tags=part.tags, seen=seen)

    write_tsv(pairs(), result)
    lines = []
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
    return _Corpus(result, parts, tuple(count.kept for count in counts)), lines


def _cure(inputs: Inputs, counts: CleaningReport) -> str:
    """What to do when next to nothing is left."""
    if counts.dropped.get("too long", 0) > counts.read / 2:
        return "keep long lines: --set cleaning.max_characters=0 (0 for any length)"
    if inputs.plain:
        return "the report above says what fell out"
    shape = f"source TAB target{' TAB heads' * inputs.trees}"
    return f"a corpus is one pair a line, {shape}; the report above says what fell out"


def _divided(inputs: Inputs, corpus: _Corpus, config: RunConfig) -> Division:
    if inputs.examination:
        return _given_validation(inputs, corpus, config.cleaning)
    if inputs.directions:
        return held_out_of_each(corpus.directions(), corpus.pairs, config.training.held_out)
    parts = split(
        lambda: corpus.pairs(held_out=True),
        config.training.held_out or None,
        lambda: corpus.pairs(held_out=False),
    )
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
    return Division(parts.learns, parts.held_out, notes)


def _given_validation(inputs: Inputs, corpus: _Corpus, cleaning: CleaningConfig) -> Division:
    """The pairs of the user's files; a pair in both would be an examination with the answers known."""
    counts, groups = CleaningReport(unit=inputs.unit), list[list[Pair]]()
    for part in inputs.examination:
        records = inputs.records(part)
        groups.append(list(clean(records, cleaning, counts, trees=inputs.trees, tags=part.tags)))
    names, validation = _names(inputs.examination), list(itertools.chain(*groups))
    if not validation:
        raise HeedfulError(f"{names}: no usable {inputs.unit} to validate on")
    known = {_untagged(pair) for pair in validation}
    if inputs.directions:
        known |= {Pair(pair.target, pair.source) for pair in known}
    leaked = sum(_untagged(pair) in known for pair in corpus.pairs())
    left_out = counted(leaked, f"training {inputs.unit}")
    notes = [
        f"validating on {counted(len(validation), inputs.unit)} of {names}",
        *(f"of the validation {inputs.unit}s {line}" for line in counts.lines()[1:]),
        *[f"left out {left_out} that the validation set has too"] * (leaked > 0),
    ]
    if inputs.directions:
        told = [part.direction or inputs.directions[0] for part in inputs.examination]
        return Division(lambda pair: _untagged(pair) not in known, *interleaved(told, groups, notes))
    return Division(lambda pair: _untagged(pair) not in known, validation, notes)


def _untagged(pair: Pair) -> Pair:
    return pair._replace(source=without_tags(pair.source))


def _as_often_as_seen(corpus: _Corpus, learns: Callable[[Pair], bool]) -> Iterator[Pair]:
    """The training pairs as an epoch sees them: a tokenizer is to suit that."""
    weights = corpus.mixture.weights
    for number, pairs in itertools.groupby(corpus.numbered(), key=lambda numbered: numbered[0]):
        yield from repeated((pair for _, pair in pairs if learns(pair)), weights[number])


def _mixed(parts: Sequence[Part], mixture: Mixture, unit: str) -> list[str]:
    """What an epoch is made of, if it is not simply every pair once."""
    if mixture.whole:
        return []
    counts, total = mixture.counts, sum(mixture.counts)
    return [
        f"of the {counted(total, unit)} of an epoch {count:,} ({count / total:.0%}) are of {part.name}"
        for part, count in zip(parts, counts, strict=True)
    ]


def _measured(corpus: _Corpus, unit: str) -> CorpusSize:
    """What an epoch sees."""
    characters = [0] * len(corpus.parts)
    alphabet: set[str] = set()
    for number, pair in corpus.numbered():
        source = without_tags(pair.source)
        characters[number] += len(source) + len(pair.target)
        alphabet.update(source, pair.target)
    mixture = corpus.mixture
    seen = sum(count * weight for count, weight in zip(characters, mixture.weights, strict=True))
    return CorpusSize(sum(mixture.counts), round(seen), len(alphabet), unit)


def _names(parts: Sequence[Part]) -> str:
    return " and ".join(part.name for part in parts)
