"""Presets: all valid, base and big as in the paper, and auto grows with the corpus."""

from itertools import pairwise

import pytest
import torch

from heedful.errors import HeedfulError
from heedful.models.config import ModelConfig
from heedful.models.transformer import Transformer
from heedful.training.auto_config import choose_config_for_size
from heedful.training.config import PRESETS, RunConfig
from heedful.training.lr_schedule import compute_learning_rate
from heedful.training.preparation import CorpusSize
from heedful.training.run import make_config_chooser

SIZES = [100, 3_000, 30_000, 300_000, 10_000_000]


def corpus(pairs: int, alphabet: int = 89) -> CorpusSize:
    """Sentences of about 100 characters per side, as in news text."""
    return CorpusSize(pairs, pairs * 200, alphabet)


@pytest.mark.parametrize("name", PRESETS)
def test_preset_is_valid(name: str) -> None:
    config = PRESETS[name]()
    assert config.preset == name
    assert RunConfig.from_settings(config.model_dump()) == config
    size = config.tokenizer.vocab_size
    with torch.device("meta"):
        shape = ModelConfig(**config.model.model_dump(), source_vocab_size=size, target_vocab_size=size)
        assert Transformer(shape).parameter_count() > 0


def test_preset_base_matches_the_paper() -> None:
    config = PRESETS["base"]()
    model, training, search = config.model, config.training, config.generation
    assert (model.encoder_layers, model.decoder_layers, model.d_model, model.heads) == (6, 6, 512, 8)
    assert (model.d_ff, model.dropout, model.norm_placement) == (2048, 0.1, "post")
    assert (model.positions, model.activation, model.tie_output_embeddings) == ("sinusoidal", "relu", True)
    assert (config.tokenizer.model_type, config.tokenizer.vocab_size, config.tokenizer.joint_vocabulary) == (
        "bpe",
        37_000,
        True,
    )
    assert (training.warmup_updates, training.lr_schedule, training.label_smoothing) == (4000, "noam", 0.1)
    assert (training.adam_beta1, training.adam_beta2, training.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert (training.max_updates, training.average_checkpoints) == (100_000, 5)
    assert 24_000 <= config.batching.max_tokens * training.gradient_accumulation <= 26_000
    assert (search.beam_size, search.length_penalty, search.max_length_offset) == (4, 0.6, 50)
    assert compute_learning_rate(4000, 0.04, training, model.d_model, 100_000) == pytest.approx(6.98771e-4, rel=1e-6)


def test_preset_big_matches_the_paper() -> None:
    base, big = PRESETS["base"](), PRESETS["big"]()
    assert (big.model.d_model, big.model.heads, big.model.d_ff) == (1024, 16, 4096)
    assert (big.model.encoder_layers, big.model.decoder_layers, big.model.dropout) == (6, 6, 0.3)
    assert (big.training.max_updates, big.training.average_checkpoints) == (300_000, 20)
    assert big.training.keep_last >= big.training.average_checkpoints
    assert (big.tokenizer, big.generation) == (base.tokenizer, base.generation)


@pytest.mark.parametrize("pairs", SIZES)
def test_choose_config_for_size_is_valid_and_explained(pairs: int) -> None:
    config, reason = choose_config_for_size(corpus(pairs))
    assert RunConfig.from_settings(config.model_dump()) == config
    assert config.preset == "auto"
    for number in (
        f"{pairs:,} pairs",
        f"d_model {config.model.d_model}",
        f"{config.model.encoder_layers}+{config.model.decoder_layers} layers",
        f"vocabulary up to {config.tokenizer.vocab_size:,}",
        f"dropout {config.model.dropout:g}",
        f"{config.batching.max_tokens:,} tokens",
    ):
        assert number in reason


def test_choose_config_for_size_grows_with_the_corpus() -> None:
    configs = [choose_config_for_size(corpus(pairs))[0] for pairs in SIZES]
    for less, more in pairwise(configs):
        assert less.model.d_model <= more.model.d_model
        assert less.model.encoder_layers <= more.model.encoder_layers
        assert less.tokenizer.vocab_size <= more.tokenizer.vocab_size
        assert less.batching.max_tokens <= more.batching.max_tokens
        assert less.model.dropout >= more.model.dropout
        assert less.training.max_epochs >= more.training.max_epochs
        assert less.training.warmup_updates <= more.training.warmup_updates
    assert configs[0].tokenizer.vocab_size < 1000
    assert configs[0].model.d_model < configs[-1].model.d_model
    assert configs[0].model.dropout > configs[-1].model.dropout


def test_choose_config_for_size_has_room_for_every_character() -> None:
    """Chinese has thousands; those beyond ``tokenizer.max_alphabet`` are spelled in bytes anyway."""
    few, many, most = (choose_config_for_size(corpus(100, letters))[0].tokenizer for letters in (89, 1999, 7001))
    assert few.vocab_size < 1999 + 256 < many.vocab_size
    assert most.vocab_size == many.vocab_size + most.max_alphabet - 1999


def test_choose_config_for_size_warmup_is_short() -> None:
    for pairs in (3_000, 30_000, 300_000, 10_000_000):
        config, _ = choose_config_for_size(corpus(pairs))
        updates = pairs * 20 / config.batching.max_tokens * config.training.max_epochs  # 20 target tokens each
        assert config.training.warmup_updates < updates / 4


# ---- overrides


def test_config_chooser_settings_override_the_preset() -> None:
    config, reason = make_config_chooser({"preset": "tiny", "model": {"d_model": 64}})(corpus(100))
    expected = PRESETS["tiny"]()
    assert config == expected.model_copy(update={"model": expected.model.model_copy(update={"d_model": 64})})
    assert reason == "preset tiny; overrides: model.d_model=64"


def test_config_chooser_default_is_auto() -> None:
    choose = make_config_chooser({"training": {"max_epochs": 3}})
    small, large = choose(corpus(100)), choose(corpus(10_000_000))
    assert small[0].training.max_epochs == large[0].training.max_epochs == 3
    assert small[0].model.d_model < large[0].model.d_model
    assert "100 pairs" in small[1]
    assert small[1].endswith("overrides: training.max_epochs=3")


@pytest.mark.parametrize(
    ("settings", "problem", "hint"),
    [
        ({"preset": "bsae"}, "there is no preset 'bsae'", "did you mean 'base'?"),
        ({"preset": "xyz"}, "there is no preset 'xyz'", "presets: auto, demo, tiny, small, base, big"),
        ({"preset": 7}, "there is no preset 7", "presets: auto, demo, tiny, small, base, big"),
        ({"model": {"d_modle": 64}}, "unknown setting 'model.d_modle'", "did you mean 'model.d_model'?"),
        ({"modle": {"d_model": 64}}, "unknown setting 'modle'", "did you mean 'model'?"),
        ({"beam_size": 3}, "unknown setting 'beam_size'", "did you mean 'generation.beam_size'?"),
        (
            {"model": {"heads": 7}, "preset": "base"},
            "d_model 512 is not divisible by 7 heads",
            "use 1, 2, 4, 8, 16, 32, 64 heads",
        ),
    ],
)
def test_config_chooser_invalid_setting_is_an_error(settings: dict[str, object], problem: str, hint: str) -> None:
    with pytest.raises(HeedfulError) as error:
        make_config_chooser(settings)
    assert (error.value.problem, error.value.hint) == (problem, hint)
