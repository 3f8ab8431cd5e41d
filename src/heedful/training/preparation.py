"""From files of pairs to token ids: clean, split, train the tokenizer, encode.

data/pairs.tsv        cleaned pairs
data/training/        token store of the training part
data/validation.tsv   held-out pairs
data/tokenizer.json
data/prepared.json    written last: what was done, and the recipe that was chosen
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from heedful.corpora.filters import CleaningConfig, CleaningReport, Pair, clean, cleaned_pairs
from heedful.corpora.formats import read_pairs, read_texts, write_tsv
from heedful.corpora.reading import Reading, ReadingConfig, Record
from heedful.corpora.split import split
from heedful.corpora.store import StoreWriter, TokenStore
from heedful.errors import HeedfulError
from heedful.files import read_json, write_json
from heedful.model.config import Architecture
from heedful.places import LIMIT
from heedful.progress import Reporter, counted
from heedful.text.tokenizer import PairTokenizer
from heedful.text.trees import encoded_sources
from heedful.training.config import RunConfig

ENCODED_AT_ONCE = 10_000
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

    @property
    def unit(self) -> str:
        """What they are made of."""
        return "line" if self.plain else "pair"

    def records(self, paths: Sequence[Path]) -> Iterator[Record]:
        """What stands in some of the files."""
        if self.plain:
            return read_texts(paths)
        return read_pairs(paths, Reading(self.languages, self.reading))


@dataclass(frozen=True, slots=True)
class Prepared:
    """A corpus ready to train on."""

    config: RunConfig
    tokenizer: PairTokenizer
    training: TokenStore
    validation: list[Pair]
    summary: list[str]


class Choice(Protocol):
    """Chooses the recipe for a corpus of this size, and says why; it may measure the machine for that."""

    def __call__(self, size: CorpusSize, *, measured: bool = False) -> tuple[RunConfig, str]: ...


NewTokenizer = Callable[[RunConfig, Callable[[], Iterator[Pair]], tuple[str, str] | None], PairTokenizer]
"""The recipe, the pairs and their languages to a tokenizer."""


def _trained_tokenizer(
    config: RunConfig, pairs: Callable[[], Iterator[Pair]], languages: tuple[str, str] | None
) -> PairTokenizer:
    return PairTokenizer.train(pairs, config.tokenizer, languages)


def prepare(
    inputs: Inputs,
    folder: Path,
    cleaning: CleaningConfig,
    choose: Choice,
    report: Reporter,
    new_tokenizer: NewTokenizer = _trained_tokenizer,
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
    return Prepared(
        RunConfig.checked(finished["config"]),
        PairTokenizer.load(folder / "tokenizer.json"),
        TokenStore.open(folder / "training"),
        validation,
        finished["summary"],
    )


def _prepare(
    inputs: Inputs,
    folder: Path,
    cleaning: CleaningConfig,
    choose: Choice,
    report: Reporter,
    new_tokenizer: NewTokenizer,
) -> None:
    pairs_path = folder / "pairs.tsv"
    summary = _cleaned(inputs, pairs_path, cleaning, report)
    size = _measured(pairs_path, inputs.unit)
    config, reason = choose(size, measured=True)
    report.say(reason)
    training, validation, notes = _divided(inputs, pairs_path, config)
    report.say(f"training the {config.tokenizer.kind} tokenizer")
    tokenizer = new_tokenizer(config, training, inputs.languages)
    tokenizer.save(folder / "tokenizer.json")
    readable = [pair for pair in validation if _longest_side(pair, tokenizer) < config.model.longest]
    if not readable:
        raise HeedfulError(f"every validation {inputs.unit} has more than {config.model.longest} tokens")
    if len(readable) < len(validation):
        too_long = counted(len(validation) - len(readable), f"validation {inputs.unit}")
        notes.append(f"dropped {too_long}: more than {config.model.longest} tokens")
    write_tsv(readable, folder / "validation.tsv")
    notes += _encoded(training, tokenizer, folder / "training", config.model, report, inputs.unit)
    for note in notes:
        report.say(note)
    write_json(
        folder / "prepared.json",
        {
            "summary": [*summary, reason, *notes],
            "config": json.loads(config.model_dump_json()),
        },
    )


def _cleaned(inputs: Inputs, result: Path, cleaning: CleaningConfig, report: Reporter) -> list[str]:
    counts, paths = CleaningReport(unit=inputs.unit), inputs.training
    records = report.track(inputs.records(paths), "reading", unit=f"{inputs.unit}s")
    write_tsv(clean(records, cleaning, counts, trees=inputs.trees), result)
    lines = counts.lines()
    for line in lines:
        report.say(line)
    if counts.kept < 2:
        raise HeedfulError(
            f"{_names(paths)}: {counts.kept} of {counted(counts.read, inputs.unit)} are fit to learn from",
            hint=_cure(inputs, counts),
        )
    return lines


def _cure(inputs: Inputs, counts: CleaningReport) -> str:
    """What to do when next to nothing is left."""
    if counts.dropped.get("too long", 0) > counts.read / 2:
        return "keep long lines: --set cleaning.max_characters=0 (0 for any length)"
    if inputs.plain:
        return "the report above says what fell out"
    shape = f"source TAB target{' TAB heads' * inputs.trees}"
    return f"a corpus is one pair a line, {shape}; the report above says what fell out"


def _divided(
    inputs: Inputs, pairs_path: Path, config: RunConfig
) -> tuple[Callable[[], Iterator[Pair]], list[Pair], list[str]]:
    """The training pairs, the validation pairs, and a word about how they came to be."""
    if inputs.validation:
        validation, lines = _given_validation(inputs, config)
        known = set(validation)  # a pair in both would be an examination with the answers known
        leaked = sum(pair in known for pair in cleaned_pairs(pairs_path))
        notes = [
            f"validating on {counted(len(validation), inputs.unit)} of {_names(inputs.validation)}",
            *lines,
        ]
        left_out = counted(leaked, f"training {inputs.unit}")
        notes += [f"left out {left_out} that the validation set has too"] * (leaked > 0)
        return lambda: (pair for pair in cleaned_pairs(pairs_path) if pair not in known), validation, notes
    parts = split(lambda: cleaned_pairs(pairs_path), config.training.held_out or None)
    if not parts.held_out:
        raise HeedfulError(
            f"no {inputs.unit} of {_names(inputs.training)} can be held out: their translations all recur",
            hint="give pairs to validate on: --validation FILES",
        )
    notes = [
        f"held out {counted(len(parts.held_out), inputs.unit)} for validation, chosen by a hash of the source"
    ]
    if parts.leaks:
        notes.append(
            f"left out {counted(parts.leaks, inputs.unit)}: held out, but training has their translation"
        )
    return parts.training, parts.held_out, notes


def _given_validation(inputs: Inputs, config: RunConfig) -> tuple[list[Pair], list[str]]:
    """The pairs, and what was dropped of them."""
    counts = CleaningReport(unit=inputs.unit)
    records = inputs.records(inputs.validation)
    pairs = list(clean(records, config.cleaning, counts, trees=inputs.trees))
    if not pairs:
        raise HeedfulError(f"{_names(inputs.validation)}: no usable {inputs.unit} to validate on")
    return pairs, [f"of the validation {inputs.unit}s {line}" for line in counts.lines()[1:]]


def _encoded(
    pairs: Callable[[], Iterator[Pair]],
    tokenizer: PairTokenizer,
    folder: Path,
    model: Architecture,
    report: Reporter,
    unit: str,
) -> list[str]:
    """Write the token store; says what was too long for the model."""
    kept = too_long = 0
    longest, trees = model.longest, model.trees
    with (
        StoreWriter(folder, LIMIT if trees else tokenizer.source.size, tokenizer.target.size) as writer,
        report.task("encoding", unit=f"{unit}s") as task,
    ):
        for chunk in _chunks(pairs(), ENCODED_AT_ONCE):
            sources = encoded_sources(tokenizer.source, [pair.read for pair in chunk])
            targets = tokenizer.target.encode_batch([pair.target for pair in chunk])
            for source, target in zip(sources, targets, strict=True):
                if max(len(source), len(target)) < longest:  # END needs a place too
                    writer.add(source, target)
                    kept += 1
                else:
                    too_long += 1
            task.advance(len(chunk))
    if not kept:
        raise HeedfulError(
            f"every {unit} has more than {longest} tokens", hint="raise model.longest, or split the sentences"
        )
    notes = [f"{counted(kept, unit)} to learn from; vocabulary {_vocabulary(tokenizer)}"]
    return notes + [f"dropped {too_long:,}: more than {longest} tokens (model.longest)"] * (too_long > 0)


def _longest_side(pair: Pair, tokenizer: PairTokenizer) -> int:
    return max(len(tokenizer.source.encode(pair.source)), len(tokenizer.target.encode(pair.target)))


def _vocabulary(tokenizer: PairTokenizer) -> str:
    if tokenizer.joint:
        return f"{tokenizer.source.size:,}, joint"
    return f"{tokenizer.source.size:,} and {tokenizer.target.size:,}"


def _measured(path: Path, unit: str) -> CorpusSize:
    pairs = characters = 0
    alphabet: set[str] = set()
    for pair in cleaned_pairs(path):
        pairs += 1
        characters += len(pair.source) + len(pair.target)
        alphabet.update(pair.source, pair.target)
    return CorpusSize(pairs, characters, len(alphabet), unit)


def _chunks(items: Iterable[Pair], size: int) -> Iterator[list[Pair]]:
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def _names(paths: Sequence[Path]) -> str:
    return " and ".join(str(path) for path in paths)
