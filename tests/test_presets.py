"""Recipes with a name: all valid, the paper's as printed, and a choice that grows with the corpus."""

from itertools import pairwise

import pytest
import torch

from heedful.choosing import auto, chooser
from heedful.errors import HeedfulError
from heedful.model.config import ModelConfig
from heedful.model.transformer import Transformer
from heedful.presets import PRESETS
from heedful.training.config import RunConfig
from heedful.training.preparation import CorpusSize
from heedful.training.schedule import learning_rate

SIZES = [100, 3_000, 30_000, 300_000, 10_000_000]


def corpus(pairs: int, alphabet: int = 89) -> CorpusSize:
    """Sentences of about 100 characters, both sides together 200: as in newspapers."""
    return CorpusSize(pairs, pairs * 200, alphabet)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_valid(name: str) -> None:
    config = PRESETS[name]()
    assert config.preset == name
    assert RunConfig.checked(config.model_dump()) == config
    size = config.tokenizer.vocabulary
    with torch.device("meta"):
        shape = ModelConfig(**config.model.model_dump(), source_vocabulary=size, target_vocabulary=size)
        assert Transformer(shape).parameter_count() > 0


def test_base_is_the_papers() -> None:
    config = PRESETS["base"]()
    model, training, search = config.model, config.training, config.search
    assert (model.encoder_layers, model.decoder_layers, model.width, model.heads) == (6, 6, 512, 8)
    assert (model.feed_forward_width, model.dropout, model.norm) == (2048, 0.1, "post")
    assert (model.positions, model.activation, model.tie_output) == ("sinusoidal", "relu", True)
    assert (config.tokenizer.kind, config.tokenizer.vocabulary, config.tokenizer.joint) == (
        "bpe",
        37_000,
        True,
    )
    assert (training.warmup, training.schedule, training.label_smoothing) == (4000, "noam", 0.1)
    assert (training.beta1, training.beta2, training.epsilon) == (0.9, 0.98, 1e-9)
    assert (training.updates, training.average) == (100_000, 5)
    assert 24_000 <= config.batches.tokens * training.accumulate <= 26_000
    assert (search.beam, search.length_penalty, search.extra_length) == (4, 0.6, 50)
    assert learning_rate(4000, 0.04, training, model.width, 100_000) == pytest.approx(6.98771e-4, rel=1e-6)


def test_big_is_the_papers() -> None:
    base, big = PRESETS["base"](), PRESETS["big"]()
    assert (big.model.width, big.model.heads, big.model.feed_forward_width) == (1024, 16, 4096)
    assert (big.model.encoder_layers, big.model.decoder_layers, big.model.dropout) == (6, 6, 0.3)
    assert (big.training.updates, big.training.average) == (300_000, 20)
    assert big.training.keep >= big.training.average
    assert (big.tokenizer, big.search) == (base.tokenizer, base.search)


@pytest.mark.parametrize("pairs", SIZES)
def test_auto_gives_a_valid_recipe_and_its_reason(pairs: int) -> None:
    config, reason = auto(corpus(pairs))
    assert RunConfig.checked(config.model_dump()) == config
    assert config.preset == "auto"
    for number in (
        f"{pairs:,} pairs",
        f"width {config.model.width}",
        f"{config.model.encoder_layers}+{config.model.decoder_layers} layers",
        f"vocabulary up to {config.tokenizer.vocabulary:,}",
        f"dropout {config.model.dropout:g}",
        f"{config.batches.tokens:,} tokens",
    ):
        assert number in reason


def test_auto_grows_with_the_corpus() -> None:
    configs = [auto(corpus(pairs))[0] for pairs in SIZES]
    for less, more in pairwise(configs):
        assert less.model.width <= more.model.width
        assert less.model.encoder_layers <= more.model.encoder_layers
        assert less.tokenizer.vocabulary <= more.tokenizer.vocabulary
        assert less.batches.tokens <= more.batches.tokens
        assert less.model.dropout >= more.model.dropout
        assert less.training.epochs >= more.training.epochs
        assert less.training.warmup <= more.training.warmup
    assert configs[0].tokenizer.vocabulary < 1000
    assert configs[0].model.width < configs[-1].model.width
    assert configs[0].model.dropout > configs[-1].model.dropout


def test_auto_has_room_for_every_letter() -> None:
    """Chinese has thousands; those beyond ``tokenizer.alphabet`` are spelled in bytes anyway."""
    few, many, most = (auto(corpus(100, letters))[0].tokenizer for letters in (89, 1999, 7001))
    assert few.vocabulary < 1999 + 256 < many.vocabulary
    assert most.vocabulary == many.vocabulary + most.alphabet - 1999


def test_auto_warms_up_in_a_part_of_the_run() -> None:
    for pairs in (3_000, 30_000, 300_000, 10_000_000):
        config, _ = auto(corpus(pairs))
        updates = pairs * 20 / config.batches.tokens * config.training.epochs  # 20 target tokens each
        assert config.training.warmup < updates / 4


# ---- settings on top


def test_settings_go_on_top_of_the_preset() -> None:
    config, reason = chooser({"preset": "tiny", "model": {"width": 64}})(corpus(100))
    expected = PRESETS["tiny"]()
    assert config == expected.model_copy(update={"model": expected.model.model_copy(update={"width": 64})})
    assert reason == "preset tiny; told: model.width=64"


def test_auto_is_the_default_and_sees_the_size() -> None:
    choose = chooser({"training": {"epochs": 3}})
    small, large = choose(corpus(100)), choose(corpus(10_000_000))
    assert small[0].training.epochs == large[0].training.epochs == 3
    assert small[0].model.width < large[0].model.width
    assert "100 pairs" in small[1]
    assert small[1].endswith("told: training.epochs=3")


@pytest.mark.parametrize(
    ("settings", "problem", "hint"),
    [
        ({"preset": "bsae"}, "there is no preset 'bsae'", "did you mean 'base'?"),
        ({"preset": "xyz"}, "there is no preset 'xyz'", "presets: auto, demo, tiny, small, base, big"),
        ({"preset": 7}, "there is no preset 7", "presets: auto, demo, tiny, small, base, big"),
        ({"model": {"widht": 64}}, "unknown setting 'model.widht'", "did you mean 'model.width'?"),
        ({"modle": {"width": 64}}, "unknown setting 'modle'", "did you mean 'model'?"),
        ({"beam": 3}, "unknown setting 'beam'", "did you mean 'search.beam'?"),
        (
            {"model": {"heads": 7}, "preset": "base"},
            "width 512 does not split evenly over 7 heads",
            "heads could be one of 1, 2, 4, 8, 16, 32, 64",
        ),
    ],
)
def test_mistakes_are_told_before_any_corpus_is_read(
    settings: dict[str, object], problem: str, hint: str
) -> None:
    with pytest.raises(HeedfulError) as caught:
        chooser(settings)
    assert (caught.value.problem, caught.value.hint) == (problem, hint)
