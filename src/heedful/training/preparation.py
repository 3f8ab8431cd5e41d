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
from pathlib import Path
from typing import Any, Protocol

from heedful.bundle import BundleConfig
from heedful.corpora.filters import CleaningConfig, Pair, cleaned_pairs
from heedful.corpora.formats import write_tsv
from heedful.corpora.parts import Direction, Mixture, Part, repeated
from heedful.corpora.store import TokenStore
from heedful.errors import HeedfulError
from heedful.files import read_json, write_json
from heedful.model.config import ModelConfig
from heedful.progress import Reporter, counted
from heedful.text.glossary import TERM_TAGS
from heedful.text.tags import without_tags
from heedful.text.tokenizer import PairTokenizer
from heedful.training.config import RunConfig
from heedful.training.directions import tempered
from heedful.training.division import Corpus, Learns, cleaned_corpus, divided, remembered_pairs
from heedful.training.encoding import encode, longest_side, readable_pairs
from heedful.training.inputs import Inputs
from heedful.training.starting_model import starting_model, tuned_shape
from heedful.training.terms import TermWriter

__all__ = ["Choice", "CorpusSize", "Inputs", "Prepared", "load_prepared", "prepare", "trained_tokenizer"]

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
    training: TokenStore
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
    try:
        return _loaded(folder, read_json(folder / "prepared.json", DAMAGED))
    except (TypeError, ValueError) as error:
        raise HeedfulError(f"the prepared corpus in {folder} is damaged: {error}", hint=DAMAGED) from None


def _loaded(folder: Path, finished: dict[str, Any]) -> Prepared:
    validation = list(cleaned_pairs(folder / "validation.tsv"))
    if not ({"config", "summary"} <= finished.keys() and validation):
        raise HeedfulError(f"the prepared corpus in {folder} is damaged", hint=DAMAGED)
    store = TokenStore.open(folder / "training")
    sizes = finished.get("sizes", [len(store)])  # an older Heedful knew of no parts
    start, remembered = finished.get("start"), folder / REMEMBERED
    return Prepared(
        RunConfig.checked(finished["config"]),
        PairTokenizer.load(folder / "tokenizer.json"),
        store,
        validation,
        [str(line) for line in finished["summary"]],
        Mixture(tuple(map(int, sizes)), tuple(map(float, finished.get("shares", [0.0])))),
        tuple((one, other) for one, other in finished.get("directions", ())),
        tuple((one, other) for one, other in finished.get("examined", ())),
        BundleConfig.checked(start) if start else None,
        list(cleaned_pairs(remembered)) if remembered.exists() else [],
    )


def _prepare(
    inputs: Inputs,
    folder: Path,
    cleaning: CleaningConfig,
    choose: Choice,
    report: Reporter,
    new_tokenizer: NewTokenizer,
) -> None:
    corpus, summary = cleaned_corpus(inputs, folder / "pairs.tsv", cleaning, report)
    config, reason = choose(_measured(corpus, inputs.unit), measured=True)
    report.say(reason)
    corpus = replace(corpus, parts=tempered(corpus.parts, corpus.sizes, config.training.temperature))
    learns, validation, notes, examined = divided(inputs, corpus, config)
    start = starting_model(Path(config.tuning.start_from)).config if config.tuning.start_from else None
    old: list[Pair] = []
    if start is None:
        report.say(f"training the {config.tokenizer.kind} tokenizer")
    else:
        learns, old, lines = remembered_pairs(inputs, corpus, learns, config.cleaning)
        notes += lines
    tokenizer = new_tokenizer(config, lambda: _as_often_as_seen(corpus, learns), inputs)
    tokenizer.save(folder / "tokenizer.json")
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
            "start": start and json.loads(start.model_dump_json()),
            "sizes": mixture.sizes,
            "shares": mixture.shares,
            "directions": inputs.directions,
            "examined": list(itertools.compress(examined, fits)),
        },
    )


def _as_often_as_seen(corpus: Corpus, learns: Learns) -> Iterator[Pair]:
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


def _measured(corpus: Corpus, unit: str) -> CorpusSize:
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
