"""The configuration of preset ``auto`` and of fine-tuning, chosen by corpus size, time limit and machine speed.

The size table follows Sennrich and Zhang (2019): small corpora need smaller vocabularies, fewer layers and
more dropout; docs/log.md has our runs.
"""

import math
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, Self

import torch

from heedful.config import Settings
from heedful.data.collate import collate
from heedful.devices import available_cores, select_device, use_threads
from heedful.models.config import ModelConfig
from heedful.models.transformer import Transformer
from heedful.progress import format_count
from heedful.training.config import RunConfig, TrainingConfig, apply_settings, format_minutes, small, tiny
from heedful.training.lr_schedule import TIMED_VALIDATIONS
from heedful.training.preparation import CorpusSize
from heedful.training.step import BatchLoss, accumulate_gradient

DEFAULT_OPERATIONS_PER_SECOND = 1e11
"""Of two laptop cores: assumed when nothing is measured."""

PROBE_SENTENCES, PROBE_LENGTH, PROBE_VOCAB_SIZE = 64, 15, 4000

PROBE_ROUNDS = 3


@cache
def measure_operations_per_second(threads: int, device: torch.device) -> float:
    """Speed of a training step of a medium-sized model in the faster precision; takes about a second."""
    config = build_model_config(192, 2, PROBE_VOCAB_SIZE)
    with use_threads(threads), torch.random.fork_rng():
        model = Transformer(config).train().to(device)
        rows = torch.randint(2, PROBE_VOCAB_SIZE, (PROBE_SENTENCES, PROBE_LENGTH)).tolist()
        batch, seconds = collate(rows, rows), []
        for precision in ("float32", "bfloat16") * PROBE_ROUNDS:
            start_time = time.perf_counter()
            model.zero_grad(set_to_none=True)
            accumulate_gradient(BatchLoss(model, 0.1), [batch], precision)
            assert model.output.weight.grad is not None
            float(model.output.weight.grad.sum())  # waits for the GPU
            seconds.append(time.perf_counter() - start_time)
    return count_operations_per_token(config, PROBE_LENGTH + 1) * batch.tokens / min(seconds)


def count_operations_per_token(config: ModelConfig, length: float) -> float:
    """Operations of a training step per target token: six per weight used, plus those of attention.

    Assumes as many source tokens as target tokens.
    """
    d_model, d_ff = config.d_model, config.d_ff
    encoder = config.encoder_layers * (4 * d_model * d_model + 2 * d_model * d_ff)
    decoder = config.decoder_layers * (8 * d_model * d_model + 2 * d_model * d_ff)
    attention = (config.encoder_layers + 2 * config.decoder_layers) * 2 * d_model * length
    return 6.0 * (encoder + decoder + attention + d_model * config.target_vocab_size)


DEFAULT_MINUTES = 30.0
"""Time limit of preset auto without a limit by the user."""

MIN_UPDATES = 2000
"""A model needs about this many updates on any corpus: a small one gets smaller batches."""

RESERVED_TOKENS = 300
"""Special tokens and bytes of every vocabulary, rounded up."""

MODEL_SHAPES = [(64, 2), (96, 2), (128, 2), (192, 2), (256, 2), (256, 3), (384, 3), (384, 4), (512, 4), (512, 6)]
"""(d_model, layers per side) to choose from under a time limit.

In the same time, wide and shallow models get further than narrow and deep ones of the same size.
"""

SHAPE_FIELDS = {"d_model", "heads", "encoder_layers", "decoder_layers", "d_ff"}

PEAK_LR_FACTOR = 0.032
"""Peak learning rate times sqrt(d_model)."""

MIN_TOKENS_PER_PARAMETER, MIN_TOKENS_PER_PARAMETER_DEEP = 0.25, 0.6
"""Target tokens to train on per parameter, below which a smaller model is chosen.

The second is for models of more than two layers, which learn later.
"""

MAX_PARAMETERS_PER_TOKEN = 200
"""Per target token of the corpus: a larger model would memorize it."""

MAX_SUBWORDS_PER_CHANNEL = 40
"""Of d_model: with a larger vocabulary the output layer dominates the cost."""

TARGET_UPDATES = 4000
"""Under a time limit: small batches learn sooner, large ones compute faster."""

FINETUNING_LR_FACTOR = 0.1
"""Of the learning rate from scratch: fine-tuning should change little."""

MIN_FINETUNING_UPDATES = 40
"""Per epoch, unless batches would become too small."""

TRAINING_TIME_FRACTION = 0.85
"""Fraction of the time limit spent in updates; the rest is preparation and validation."""


def choose_auto_config(
    size: CorpusSize, settings: Settings, requested: TrainingConfig, *, measured: bool
) -> tuple[RunConfig, str]:
    """The configuration of preset ``auto`` and the reason; the user's settings limit the choice."""
    if {"max_epochs", "max_updates"} & settings.get("training", {}).keys():
        return choose_config_for_size(size)
    model = settings.get("model", {})
    layers = model.get("encoder_layers", model.get("decoder_layers"))
    shapes = [(model.get("d_model", d_model), layers or default_layers) for d_model, default_layers in MODEL_SHAPES]
    return choose_config_for_time(
        size,
        requested.max_minutes or DEFAULT_MINUTES,
        get_speed(requested, measured=measured),
        list(dict.fromkeys(shapes)),
        use_all_time=requested.max_minutes > 0,
    )


def get_speed(config: TrainingConfig, *, measured: bool) -> float:
    """Operations per second of this machine, or a default."""
    if not measured:
        return DEFAULT_OPERATIONS_PER_SECOND
    return measure_operations_per_second(config.threads or available_cores(), select_device(config.device))


def choose_finetuning_settings(
    size: CorpusSize, requested: RunConfig, speed: float, *, choose_epochs: bool
) -> tuple[Settings, str]:
    """Settings for fine-tuning on a corpus of this size, and the reason: small steps, few epochs.

    ``choose_epochs`` if the user set no limit.
    """
    epoch_tokens, training_config = size.target_tokens, requested.training
    batch_tokens = int(min(4096, max(512, epoch_tokens / MIN_FINETUNING_UPDATES // 64 * 64)))
    epochs = max(3, min(12, round(100_000 / size.pairs))) if choose_epochs else training_config.max_epochs
    updates = epoch_tokens / batch_tokens * epochs
    learning_rate = round(FINETUNING_LR_FACTOR * PEAK_LR_FACTOR / math.sqrt(requested.model.d_model), 7)
    vocab_size = requested.tokenizer.vocab_size
    model = ModelConfig(**requested.model.model_dump(), source_vocab_size=vocab_size, target_vocab_size=vocab_size)
    needed_minutes = epoch_tokens * epochs * count_operations_per_token(model, 20) / speed / 60
    minutes = training_config.max_minutes or (
        DEFAULT_MINUTES if choose_epochs and needed_minutes > TRAINING_TIME_FRACTION * DEFAULT_MINUTES / 2 else 0.0
    )
    training = {
        "max_minutes": minutes,
        "max_epochs": epochs,
        "lr_schedule": "linear",
        "learning_rate": learning_rate,
        "warmup_updates": max(5, min(100, round(updates / 20))),
        "validate_every": 0 if minutes else max(1, round((training_config.max_updates or updates) / TIMED_VALIDATIONS)),
        "patience": 4,
        "average_checkpoints": 1,
    }
    limits = ""
    if choose_epochs:
        limits = f"at most {epochs} epochs{f' or {format_minutes(minutes)}' if minutes else ''}, "
    reason = (
        f"fine-tuning {requested.finetuning.init_from} on {format_count(size.pairs, size.unit)}: {limits}"
        f"peak learning rate {training_config.learning_rate or learning_rate:.2g}, "
        f"batches of {batch_tokens:,} tokens"
    )
    return {"batching": {"max_tokens": batch_tokens}, "training": training}, reason


def choose_config_for_size(size: CorpusSize) -> tuple[RunConfig, str]:
    """The configuration for a corpus of this size without a time limit, and the reason.

    The reason does not mention epochs: this is used only if the user limits epochs or updates.
    """
    defaults = _defaults_for_size(size.pairs)
    preset_config, epochs = defaults.preset(), defaults.epochs
    epoch_tokens, vocab_size = size.target_tokens, choose_vocab_size(size, preset_config)
    batch_tokens = int(min(preset_config.batching.max_tokens, max(256, epoch_tokens * epochs / MIN_UPDATES // 64 * 64)))
    updates_per_epoch = epoch_tokens / batch_tokens
    changes: Settings = {
        "preset": "auto",
        "tokenizer": {"vocab_size": vocab_size},
        "model": {"dropout": defaults.dropout, "encoder_layers": defaults.layers, "decoder_layers": defaults.layers},
        "batching": {"max_tokens": batch_tokens},
        "training": {
            "max_epochs": epochs,
            "warmup_updates": max(
                10, min(preset_config.training.warmup_updates, round(updates_per_epoch * epochs / 8))
            ),
            "validate_every": 0 if 100 <= updates_per_epoch <= 2000 else round(min(max(updates_per_epoch, 100), 2000)),
            "patience": 10,
        },
    }
    reason = (
        f"preset auto: a {defaults.label} corpus of {format_count(size.pairs, size.unit)}: "
        f"d_model {preset_config.model.d_model}, {_format_layers(defaults.layers, size)}, "
        f"vocabulary up to {vocab_size:,}, dropout {defaults.dropout:g}, "
        f"batches of {batch_tokens:,} tokens"
    )
    return apply_settings(preset_config, changes), reason


def build_model_config(d_model: int, layers: int, vocab_size: int) -> ModelConfig:
    """As many layers on both sides, and d_ff = 4 * d_model, as in the paper."""
    return ModelConfig(
        d_model=d_model,
        heads=4 if d_model <= 256 else 8,
        encoder_layers=layers,
        decoder_layers=layers,
        d_ff=4 * d_model,
        source_vocab_size=vocab_size,
        target_vocab_size=vocab_size,
    )


class ShapeOption(NamedTuple):
    """A candidate model, and how many target tokens it could train on in the time limit."""

    d_model: int
    layers: int
    parameters: int
    tokens: float

    @classmethod
    def estimate(cls, d_model: int, layers: int, vocab_size: int, operations: float) -> Self:
        """``operations`` is what can be computed in the time limit."""
        model = build_model_config(d_model, layers, vocab_size)
        # An encoder layer has (4 + 8) * d_model^2 parameters, a decoder layer (8 + 8) * d_model^2.
        parameters = 28 * layers * d_model**2 + vocab_size * d_model
        return cls(d_model, layers, parameters, operations / count_operations_per_token(model, 20))


def choose_config_for_time(
    size: CorpusSize,
    minutes: float,
    speed: float,
    shapes: Sequence[tuple[int, int]] = MODEL_SHAPES,
    *,
    use_all_time: bool,
) -> tuple[RunConfig, str]:
    """The configuration that gets furthest in this many minutes at ``speed`` operations per second, and why.

    Unless ``use_all_time``, a small corpus stops earlier: more epochs would not help.
    """
    defaults = _defaults_for_size(size.pairs)
    preset_config = defaults.preset()
    epoch_tokens, vocab_size = size.target_tokens, choose_vocab_size(size, preset_config)
    max_epochs = (8 if use_all_time else 2) * defaults.epochs
    operations = TRAINING_TIME_FRACTION * 60 * minutes * speed
    options = [
        ShapeOption.estimate(d_model, layers, min(vocab_size, MAX_SUBWORDS_PER_CHANNEL * d_model), operations)
        for d_model, layers in shapes
    ]
    fitting = [
        option
        for option in options
        if option.tokens
        >= (MIN_TOKENS_PER_PARAMETER if option.layers <= 2 else MIN_TOKENS_PER_PARAMETER_DEEP) * option.parameters
        and option.parameters <= MAX_PARAMETERS_PER_TOKEN * epoch_tokens
    ]
    chosen = (fitting or options[:1])[-1]
    tokens = min(chosen.tokens, max_epochs * epoch_tokens)
    vocab_size = max(min(vocab_size, MAX_SUBWORDS_PER_CHANNEL * chosen.d_model), _min_vocab_size(size, preset_config))
    dropout = min(0.3, max(0.1, round(0.1 + (tokens / epoch_tokens - 5) / 150, 2)))
    batch_tokens = int(min(4096, max(1024, tokens / TARGET_UPDATES // 256 * 256)))
    changes: Settings = {
        "preset": "auto",
        "tokenizer": {"vocab_size": vocab_size},
        "model": {
            **build_model_config(chosen.d_model, chosen.layers, vocab_size).model_dump(include=SHAPE_FIELDS),
            "dropout": dropout,
        },
        "batching": {"max_tokens": batch_tokens},
        "training": {
            "max_minutes": minutes,
            "max_epochs": max_epochs,
            "lr_schedule": "linear",
            "cooldown_fraction": 0,
            "learning_rate": round(PEAK_LR_FACTOR / math.sqrt(chosen.d_model), 5),
            "warmup_updates": max(10, min(400, round(tokens / batch_tokens / 10))),
            "average_checkpoints": 1,
        },
    }
    epochs = tokens / epoch_tokens
    reason = (
        f"preset auto: {format_minutes(minutes)} for {format_count(size.pairs, size.unit)}, "
        f"a {defaults.label} corpus: d_model {chosen.d_model}, {_format_layers(chosen.layers, size)}, "
        f"vocabulary up to {vocab_size:,}, dropout {dropout:g}, "
        f"batches of {batch_tokens:,} tokens, about {f'{epochs:.0f}' if epochs >= 10 else f'{epochs:.2g}'} epochs"
    )
    return apply_settings(preset_config, changes), reason


class SizeDefaults(NamedTuple):
    """What suits a corpus of up to ``max_pairs``."""

    max_pairs: float
    label: str
    preset: Callable[[], RunConfig]
    layers: int
    dropout: float
    epochs: int


SIZE_DEFAULTS = (
    SizeDefaults(1_000, "tiny", tiny, 2, 0.3, 150),
    SizeDefaults(5_000, "very small", tiny, 3, 0.3, 60),
    SizeDefaults(20_000, "small", tiny, 4, 0.3, 40),
    SizeDefaults(100_000, "medium-sized", tiny, 4, 0.25, 25),
    SizeDefaults(math.inf, "large", small, 4, 0.1, 20),
)


def _defaults_for_size(pairs: int) -> SizeDefaults:
    defaults = next(defaults for defaults in SIZE_DEFAULTS if pairs < defaults.max_pairs)
    if defaults.label == "large":  # fewer epochs of very large corpora
        return defaults._replace(epochs=max(3, min(defaults.epochs, round(2_000_000 / pairs))))
    return defaults


def choose_vocab_size(size: CorpusSize, preset_config: RunConfig) -> int:
    """Each subword should occur dozens of times: one per 120 words, of 6 characters."""
    vocab_size = max(500, math.ceil(size.characters / 6 / 120 / 500) * 500)
    return max(min(preset_config.tokenizer.vocab_size, vocab_size), _min_vocab_size(size, preset_config))


def _format_layers(layers: int, size: CorpusSize) -> str:
    """Layers of both sides; a language model has one side."""
    return f"{layers}+{layers} layers" if size.unit == "pair" else format_count(layers, "layer")


def _min_vocab_size(size: CorpusSize, preset_config: RunConfig) -> int:
    """Room for every character and some subwords."""
    return RESERVED_TOKENS + min(size.distinct_characters, preset_config.tokenizer.max_alphabet) + 200
