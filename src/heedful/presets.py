"""Recipes with a name: functions that return a RunConfig. ``auto`` chooses by the size of the corpus.

The size table comes from what small corpora want: smaller vocabularies, fewer layers, more dropout
(Sennrich and Zhang 2019, and docs/log.md).
"""

import difflib
import math
from collections.abc import Callable

from heedful.config import Settings, merged
from heedful.corpora.batches import BatchConfig
from heedful.decoding.config import SearchConfig
from heedful.errors import HeedfulError
from heedful.model.config import Architecture
from heedful.text.tokenizer import TokenizerConfig
from heedful.training.config import RunConfig, TrainingConfig
from heedful.training.preparation import Choice, CorpusSize

FEWEST_UPDATES = 2000
"""A model needs about so many steps whatever the corpus: a small one gets smaller batches."""
SPECIALS_AND_BYTES = 300
"""What every vocabulary holds before any letter, rounded up."""


def demo() -> RunConfig:
    """The embedded grammar in a minute: whole words, so that the pictures show words."""
    return RunConfig(
        preset="demo",
        tokenizer=TokenizerConfig(kind="word", vocabulary=1200, joint=False),
        model=Architecture(
            width=64, heads=4, encoder_layers=2, decoder_layers=2, feed_forward_width=128, dropout=0.05
        ),
        batches=BatchConfig(tokens=4096, sentences=64),
        training=TrainingConfig(
            epochs=5,
            schedule="linear",
            rate=3e-3,
            warmup=100,
            bleu_sentences=100,
            held_out=400,
            keep=3,
            snapshots=12,  # 0.9 MB each: the page shows how heads form
        ),
        search=SearchConfig(beam=1),
    )


def tiny() -> RunConfig:
    """A few thousand to fifty thousand pairs on a laptop: minutes to an hour."""
    return RunConfig(
        preset="tiny",
        tokenizer=TokenizerConfig(vocabulary=6000),
        model=Architecture(
            width=128,
            heads=4,
            encoder_layers=4,
            decoder_layers=4,
            feed_forward_width=512,
            norm="pre",  # learns sooner than post-norm at this size (docs/log.md)
            dropout=0.2,
        ),
        batches=BatchConfig(tokens=2048),
        training=TrainingConfig(epochs=20, rate=2.5e-3, warmup=600, cooldown=0.35, average=5),
    )


def small() -> RunConfig:
    """A hundred thousand pairs and more: hours on a laptop."""
    return RunConfig(
        preset="small",
        tokenizer=TokenizerConfig(vocabulary=16000),
        model=Architecture(
            width=256, heads=4, encoder_layers=4, decoder_layers=4, feed_forward_width=1024, norm="pre"
        ),
        batches=BatchConfig(tokens=4096),
        training=TrainingConfig(epochs=20, rate=1.5e-3, warmup=2000, cooldown=0.2, average=5),
    )


def base() -> RunConfig:
    """The paper's base model (table 3): 25,000 target tokens an update, 100,000 updates."""
    return RunConfig(
        preset="base",
        tokenizer=TokenizerConfig(vocabulary=37000),
        model=Architecture(),
        batches=BatchConfig(tokens=4096),
        training=TrainingConfig(
            epochs=1000, updates=100_000, accumulate=6, validate_every=1000, average=5, patience=20
        ),
    )


def big() -> RunConfig:
    """The paper's big model (table 3): 300,000 updates."""
    paper = base()
    return paper.model_copy(
        update={
            "preset": "big",
            "model": Architecture(width=1024, heads=16, feed_forward_width=4096, dropout=0.3),
            "training": paper.training.model_copy(update={"updates": 300_000, "average": 20, "keep": 20}),
        }
    )


PRESETS: dict[str, Callable[[], RunConfig]] = {
    "demo": demo,
    "tiny": tiny,
    "small": small,
    "base": base,
    "big": big,
}


def auto(size: CorpusSize) -> tuple[RunConfig, str]:
    """The recipe for a corpus of this size, and a sentence that says why."""
    kind, start, layers, dropout, epochs = _by_size(size.pairs)
    words = size.characters / 6  # letters and a space
    letters = min(size.alphabet, start.tokenizer.alphabet)
    vocabulary = max(auto_vocabulary(words, start.tokenizer.vocabulary), SPECIALS_AND_BYTES + letters + 200)
    epoch_tokens = words / 2 * 1.3  # half the words are targets, 1.3 pieces each
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
        f"preset auto: {size.pairs:,} pairs are a {kind} corpus, so width {start.model.width}, "
        f"{layers}+{layers} layers, vocabulary up to {vocabulary:,}, dropout {dropout:g}, "
        f"batches of {batch:,} tokens, {epochs} epochs"
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


def chooser(settings: Settings) -> Choice:
    """How a run with these settings gets its recipe: the preset's, with the settings on top."""
    name = settings.get("preset", "auto")
    if not isinstance(name, str) or (name != "auto" and name not in PRESETS):
        known = ["auto", *PRESETS]
        close = difflib.get_close_matches(str(name), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"presets: {', '.join(known)}"
        raise HeedfulError(f"there is no preset {name!r}", hint=hint)

    def choose(size: CorpusSize) -> tuple[RunConfig, str]:
        config, reason = auto(size) if name == "auto" else (PRESETS[name](), f"preset {name}")
        return with_settings(config, settings), reason + _told(settings)

    choose(
        CorpusSize(50_000, 5_000_000, 100)
    )  # a wrong setting is an error now, not after the corpus was read
    return choose


def with_settings(config: RunConfig, settings: Settings) -> RunConfig:
    """The recipe with the user's settings put in, all checked."""
    return RunConfig.checked(merged(config.model_dump(), settings))


def _told(settings: Settings) -> str:
    """The settings that the user gave, as words."""
    named = [
        f"{section}.{key}={value}"
        for section, values in settings.items()
        for key, value in (values.items() if isinstance(values, dict) else ())
    ]
    return f"; told: {', '.join(named)}" if named else ""
