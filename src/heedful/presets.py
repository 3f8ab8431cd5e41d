"""Recipes with a name: functions that return a RunConfig."""

from collections.abc import Callable

from heedful.corpora.batches import BatchConfig
from heedful.decoding.config import SearchConfig
from heedful.model.config import Architecture
from heedful.text.tokenizer import TokenizerConfig
from heedful.training.config import RunConfig, TrainingConfig


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
