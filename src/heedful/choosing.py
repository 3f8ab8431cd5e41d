"""Which recipe a run gets: a preset's, or one for the corpus and the time there is; settings go on top.

The table of sizes comes from what small corpora want: smaller vocabularies, fewer layers, more dropout
(Sennrich and Zhang 2019, and docs/log.md); what is chosen by time, from the speed-runs in docs/log.md.
"""

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from heedful.config import Settings, merged
from heedful.errors import HeedfulError
from heedful.model.config import ModelConfig
from heedful.presets import PRESETS, small, tiny
from heedful.progress import counted
from heedful.training.budget import EXAMINATIONS
from heedful.training.config import RunConfig, TrainingConfig
from heedful.training.devices import available_cores, chosen_device
from heedful.training.preparation import Choice, CorpusSize
from heedful.training.speed import USUAL, operations_per_second, operations_per_token

MINUTES = 30.0
"""What auto takes at most when it is told neither a time nor epochs."""
NO_LIMIT = 100_000
"""Epochs that no training comes to."""
BY_THE_CLOCK: Settings = {
    "epochs": NO_LIMIT,
    "updates": 0,
    "patience": 0,
    "schedule": "linear",
    "cooldown": 0,
    "validate_every": 0,
}
"""What makes a preset's training last as long as it is given, and be at its best by then."""
FEWEST_UPDATES = 2000
"""A model needs about so many steps whatever the corpus: a small one gets smaller batches."""
SPECIALS_AND_BYTES = 300
"""What every vocabulary holds before any letter, rounded up."""
SHAPES = [(64, 2), (96, 2), (128, 2), (192, 2), (256, 2), (256, 3), (384, 3), (384, 4), (512, 4), (512, 6)]
"""Widths, and layers of encoder and decoder, that a training by the clock chooses from.

Wide and shallow ones come further in the same time than narrow and deep ones of as many weights.
"""
PEAK = 0.032
"""Of the learning rate, times the square root of the width."""
TOKENS_PER_WEIGHT, DEEP = 0.25, 0.6
"""So many target tokens should a model be able to learn from for each of its weights: else a smaller one.

The second is for models of more than two layers, which learn later.
"""
WEIGHTS_PER_TOKEN = 200
"""So many weights at most for each target token of the corpus: a larger model would learn it by heart."""
PIECES_PER_CHANNEL = 40
"""A vocabulary of more makes the output layer most of the work."""
UPDATES = 4000
"""About so many in a training by the clock: small batches learn sooner, large ones are quicker to compute."""
TUNING_RATE = 0.1
"""Of the learning rate of a training from the beginning: a tuned model is to change little."""
TUNING_UPDATES = 40
"""Of an epoch at least, where batches can be so small."""
LEARNING = 0.85
"""Part of the time that is spent learning; the rest prepares and examines."""


def chooser(settings: Settings, told: Settings | None = None) -> Choice:
    """How a run with these settings gets its recipe: the preset's, with the settings on top.

    ``told`` are those that the user gave, if not all of them.
    """
    if settings.get("tuning", {}).get("start_from"):
        return _tuner(settings, settings if told is None else told)
    name = settings.get("preset", "auto")
    if not isinstance(name, str) or (name != "auto" and name not in PRESETS):
        known = ["auto", *PRESETS]
        close = difflib.get_close_matches(str(name), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"presets: {', '.join(known)}"
        raise HeedfulError(f"there is no preset {name!r}", hint=hint)
    preset = PRESETS.get(name, tiny)

    def choose(size: CorpusSize, *, measured: bool = False) -> tuple[RunConfig, str]:
        asked = with_settings(preset(), settings).training
        steps = {"epochs", "updates"} & settings.get("training", {}).keys()
        if name == "auto" and not steps:
            speed = _speed(asked) if measured else USUAL
            shapes = _shapes(settings.get("model", {}))
            config, reason = within(
                size, asked.minutes or MINUTES, speed, shapes, all_of_it=asked.minutes > 0
            )
        elif name == "auto":
            config, reason = auto(size)
        else:
            config, reason = preset(), f"preset {name}"
            if asked.minutes and not steps:
                config = with_settings(config, {"training": BY_THE_CLOCK})
        if steps == {"updates"} and asked.updates:  # else the preset's epochs could end before
            config = with_settings(config, {"training": {"epochs": NO_LIMIT}})
        return with_settings(config, settings), reason + _told(settings if told is None else told)

    # A wrong setting is an error now, not after the corpus was read.
    choose(CorpusSize(50_000, 5_000_000, 100))
    return choose


def _tuner(settings: Settings, told: Settings) -> Choice:
    """The choice for a training that starts from a model; the settings have the model's shape."""

    def choose(size: CorpusSize, *, measured: bool = False) -> tuple[RunConfig, str]:
        asked = with_settings(RunConfig(preset="tuning"), settings)
        steps = {"epochs", "updates"} & settings.get("training", {}).keys()
        speed = _speed(asked.training) if measured and not steps else USUAL
        changes, reason = tuned(size, asked, speed, choosing=not steps)
        if steps == {"updates"} and asked.training.updates:
            changes = merged(changes, {"training": {"epochs": NO_LIMIT}})
        return with_settings(with_settings(asked, changes), settings), reason + _told(on_top)

    on_top = {section: values for section, values in told.items() if section != "tuning"}
    tuning = {name: value for name, value in told.get("tuning", {}).items() if name != "start_from"}
    on_top |= {"tuning": tuning} if tuning else {}
    choose(CorpusSize(5_000, 500_000, 100))  # a wrong setting is an error now
    return choose


def tuned(size: CorpusSize, asked: RunConfig, speed: float, *, choosing: bool) -> tuple[Settings, str]:
    """What a model is tuned by on a corpus of this size, and why: small steps, few epochs.

    ``choosing`` how many epochs is for whom they are not told: then no longer than ``auto`` would train.
    """
    epoch_tokens, told = _target_tokens(size), asked.training
    batch = int(min(4096, max(512, epoch_tokens / TUNING_UPDATES // 64 * 64)))
    epochs = max(3, min(12, round(100_000 / size.pairs))) if choosing else told.epochs
    updates = epoch_tokens / batch * epochs
    rate = round(TUNING_RATE * PEAK / math.sqrt(asked.model.width), 7)
    entries = asked.tokenizer.vocabulary
    model = ModelConfig(**asked.model.model_dump(), source_vocabulary=entries, target_vocabulary=entries)
    needed = epoch_tokens * epochs * operations_per_token(model, 20) / speed / 60
    minutes = told.minutes or (MINUTES if choosing and needed > LEARNING * MINUTES / 2 else 0.0)
    training = {
        "minutes": minutes,
        "epochs": epochs,
        "schedule": "linear",
        "rate": rate,
        "warmup": max(5, min(100, round(updates / 20))),
        "validate_every": 0 if minutes else max(1, round((told.updates or updates) / EXAMINATIONS)),
        "patience": 4,
        "average": 1,
    }
    reason = (
        f"tuning {asked.tuning.start_from} on {counted(size.pairs, size.unit)}: "
        f"{f'{epochs} epochs ' if choosing else ''}"
        f"{f'or {_minutes(minutes)} ' if minutes and choosing else ''}{'at most, ' if choosing else ''}"
        f"learning rate up to {told.rate or rate:.2g}, batches of {batch:,} tokens"
    )
    return {"batches": {"tokens": batch}, "training": training}, reason


def with_settings(config: RunConfig, settings: Settings) -> RunConfig:
    """The recipe with the user's settings put in, all checked."""
    return RunConfig.checked(merged(config.model_dump(), settings))


def auto(size: CorpusSize) -> tuple[RunConfig, str]:
    """The recipe for a corpus of this size, to be trained for some epochs, and a sentence that says why.

    The sentence does not say how many epochs: where this recipe is used, epochs or updates are told.
    """
    kind, start, layers, dropout, epochs = _by_size(size.pairs)
    epoch_tokens, vocabulary = _target_tokens(size), _vocabulary(size, start)
    batch = int(min(start.batches.tokens, max(256, epoch_tokens * epochs / FEWEST_UPDATES // 64 * 64)))
    updates = epoch_tokens / batch  # of an epoch
    changes: Settings = {
        "preset": "auto",
        "tokenizer": {"vocabulary": vocabulary},
        "model": {"dropout": dropout, "encoder_layers": layers, "decoder_layers": layers},
        "batches": {"tokens": batch},
        "training": {
            "epochs": epochs,
            "warmup": max(10, min(start.training.warmup, round(updates * epochs / 8))),
            "validate_every": 0 if 100 <= updates <= 2000 else round(min(max(updates, 100), 2000)),
            "patience": 10,
        },
    }
    reason = (
        f"preset auto: a {kind} corpus of {counted(size.pairs, size.unit)}, so width {start.model.width}, "
        f"{_layers(layers, size)}, vocabulary up to {vocabulary:,}, dropout {dropout:g}, "
        f"batches of {batch:,} tokens"
    )
    return with_settings(start, changes), reason


def model_of_shape(width: int, layers: int, vocabulary: int) -> ModelConfig:
    """As many layers on both sides, and four times the width inside, as in the paper."""
    return ModelConfig(
        width=width,
        heads=_heads(width),
        encoder_layers=layers,
        decoder_layers=layers,
        feed_forward_width=4 * width,
        source_vocabulary=vocabulary,
        target_vocabulary=vocabulary,
    )


@dataclass(frozen=True, slots=True)
class Option:
    """A model that could be trained, and how many target tokens it could learn from in the time."""

    width: int
    layers: int
    weights: int
    tokens: float

    @classmethod
    def of(cls, width: int, layers: int, vocabulary: int, operations: float) -> Self:
        """``operations`` is what can be computed in the time."""
        model = model_of_shape(width, layers, vocabulary)
        # An encoder layer has 4 + 8 squares of the width, a decoder layer 8 + 8.
        weights = 28 * layers * width**2 + vocabulary * width
        return cls(width, layers, weights, operations / operations_per_token(model, 20))


def possible(settings: Settings) -> list[RunConfig]:
    """A recipe of every width that a run with these settings may get."""
    choose = chooser(settings)
    found = [choose(CorpusSize(pairs, 100 * pairs, 100))[0] for pairs in (1_000, 1_000_000)]
    if found[0].preset == "auto" and found[0].training.minutes and "width" not in settings.get("model", {}):
        found += [
            found[0].model_copy(update={"model": found[0].model.model_copy(update={"width": width})})
            for width, _ in SHAPES
        ]
    return found


def _speed(asked: TrainingConfig) -> float:
    return operations_per_second(asked.threads or available_cores(), chosen_device(asked.device))


def _shapes(told: Settings) -> list[tuple[int, int]]:
    """Those that agree with what the user says of the model."""
    layers = told.get("encoder_layers", told.get("decoder_layers"))
    shapes = [(told.get("width", width), layers or usual) for width, usual in SHAPES]
    return sorted(set(shapes), key=shapes.index)


def within(
    size: CorpusSize,
    minutes: float,
    speed: float,
    shapes: Sequence[tuple[int, int]] = SHAPES,
    *,
    all_of_it: bool,
) -> tuple[RunConfig, str]:
    """The recipe that comes furthest in so many minutes at this many operations a second, and why.

    Unless ``all_of_it`` is to be used, a small corpus takes fewer minutes: it has no more to teach.
    """
    kind, start, _, _, epochs = _by_size(size.pairs)
    epoch_tokens, vocabulary = _target_tokens(size), _vocabulary(size, start)
    most = (8 if all_of_it else 2) * epochs
    operations = LEARNING * 60 * minutes * speed
    options = [
        Option.of(width, layers, min(vocabulary, PIECES_PER_CHANNEL * width), operations)
        for width, layers in shapes
    ]
    fitting = [
        option
        for option in options
        if option.tokens >= (TOKENS_PER_WEIGHT if option.layers <= 2 else DEEP) * option.weights
        and option.weights <= WEIGHTS_PER_TOKEN * epoch_tokens
    ]
    chosen = (fitting or options[:1])[-1]
    tokens = min(chosen.tokens, most * epoch_tokens)
    vocabulary = max(min(vocabulary, PIECES_PER_CHANNEL * chosen.width), _smallest_vocabulary(size, start))
    dropout = min(0.3, max(0.1, round(0.1 + (tokens / epoch_tokens - 5) / 150, 2)))
    batch = int(min(4096, max(1024, tokens / UPDATES // 256 * 256)))
    changes: Settings = {
        "preset": "auto",
        "tokenizer": {"vocabulary": vocabulary},
        "model": {
            "width": chosen.width,
            "heads": _heads(chosen.width),
            "encoder_layers": chosen.layers,
            "decoder_layers": chosen.layers,
            "feed_forward_width": 4 * chosen.width,
            "dropout": dropout,
        },
        "batches": {"tokens": batch},
        "training": {
            "minutes": minutes,
            "epochs": most,
            "schedule": "linear",
            "cooldown": 0,
            "rate": round(PEAK / math.sqrt(chosen.width), 5),
            "warmup": max(10, min(400, round(tokens / batch / 10))),
            "average": 1,
        },
    }
    reason = (
        f"preset auto: {_minutes(minutes)} for {counted(size.pairs, size.unit)}, "
        f"a {kind} corpus: width {chosen.width}, {_layers(chosen.layers, size)}, "
        f"vocabulary up to {vocabulary:,}, dropout {dropout:g}, "
        f"batches of {batch:,} tokens, about {_rounded(tokens / epoch_tokens)} epochs"
    )
    return with_settings(start, changes), reason


def _by_size(pairs: int) -> tuple[str, RunConfig, int, float, int]:
    """What a corpus of so many pairs is called, and its preset, layers, dropout and epochs."""
    if pairs < 1_000:
        return "tiny", tiny(), 2, 0.3, 150
    if pairs < 5_000:
        return "very small", tiny(), 3, 0.3, 60
    if pairs < 20_000:
        return "small", tiny(), 4, 0.3, 40
    if pairs < 100_000:
        return "medium-sized", tiny(), 4, 0.25, 25
    return "large", small(), 4, 0.1, max(3, min(20, round(2_000_000 / pairs)))


def auto_vocabulary(words: float, most: int) -> int:
    """Pieces that a corpus of so many words can teach: each should be seen dozens of times.

    >>> [auto_vocabulary(words, 16000) for words in (3_000, 60_000, 700_000, 10_000_000)]
    [500, 500, 6000, 16000]
    """
    return min(most, max(500, math.ceil(words / 120 / 500) * 500))


def _rounded(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.2g}"


def _layers(layers: int, size: CorpusSize) -> str:
    """Of both sides; a model of plain text has one."""
    return f"{layers}+{layers} layers" if size.unit == "pair" else counted(layers, "layer")


def _heads(width: int) -> int:
    return 4 if width <= 256 else 8


def _target_tokens(size: CorpusSize) -> float:
    """Of an epoch: half the words are targets, 1.3 pieces each; a word is letters and a space."""
    return max(1.0, size.characters / 6 / 2 * 1.3)


def _vocabulary(size: CorpusSize, start: RunConfig) -> int:
    wanted = auto_vocabulary(size.characters / 6, start.tokenizer.vocabulary)
    return max(wanted, _smallest_vocabulary(size, start))


def _smallest_vocabulary(size: CorpusSize, start: RunConfig) -> int:
    """With room for every letter and some pieces."""
    return SPECIALS_AND_BYTES + min(size.alphabet, start.tokenizer.alphabet) + 200


def _told(settings: Settings) -> str:
    """The settings that the user gave, as words."""
    named = [
        _minutes(value) if (section, key) == ("training", "minutes") else f"{section}.{key}={_value(value)}"
        for section, values in settings.items()
        for key, value in (values.items() if isinstance(values, dict) else ())
    ]
    return f"; told: {', '.join(named)}" if named else ""


def _value(value: object) -> object:
    return f"{value:g}" if isinstance(value, float) else value


def _minutes(number: float) -> str:
    """As --time says it, and not as the setting that it is."""
    return f"{number:g} minute{'s' * (number != 1)}"
