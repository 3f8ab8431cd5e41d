"""Preset auto: the configuration for a corpus and a time limit."""

from itertools import pairwise

import pytest
import torch

from heedful.config import Settings, merge_settings
from heedful.models.config import ModelConfig
from heedful.models.transformer import Transformer
from heedful.training.auto_config import (
    DEFAULT_MINUTES,
    MODEL_SHAPES,
    PEAK_LR_FACTOR,
    ShapeOption,
    build_model_config,
    choose_config_for_time,
    count_operations_per_token,
    measure_operations_per_second,
)
from heedful.training.config import TASKS, RunConfig, TrainingConfig
from heedful.training.preparation import CorpusSize
from heedful.training.run import UNLIMITED_EPOCHS, list_possible_configs, make_config_chooser

SPEED = 2e11
MULTI30K = CorpusSize(29_000, 3_900_000, 120)


@pytest.mark.parametrize("pairs", [100, 3_000, 30_000, 300_000, 10_000_000])
@pytest.mark.parametrize("minutes", [0.2, 10.0, 30.0, 600.0])
@pytest.mark.parametrize("use_all_time", [True, False])
def test_choose_config_for_time_is_valid_and_explained(pairs: int, minutes: float, use_all_time: bool) -> None:
    size = CorpusSize(pairs, 150 * pairs, 4000)
    config, reason = choose_config_for_time(size, minutes, SPEED, use_all_time=use_all_time)
    assert RunConfig.from_settings(config.model_dump()) == config
    assert config.training.max_minutes == minutes
    assert config.tokenizer.vocab_size > 2000  # room for all characters
    for text in (f"{minutes:g} minutes for {pairs:,} pairs", f"d_model {config.model.d_model}"):
        assert text in reason


def test_choose_config_for_time_grows_with_time_and_speed() -> None:
    configs = [
        choose_config_for_time(MULTI30K, minutes, SPEED, use_all_time=True)[0] for minutes in (1, 5, 30, 180, 1000)
    ]
    for less, more in pairwise(configs):
        assert less.model.d_model <= more.model.d_model
        assert less.batching.max_tokens <= more.batching.max_tokens
    assert configs[0].model.d_model < configs[-1].model.d_model
    assert configs[0].model.dropout < configs[-1].model.dropout
    fast, slow = (choose_config_for_time(MULTI30K, 30, speed, use_all_time=True)[0] for speed in (1e12, 1e10))
    assert fast.model.d_model > slow.model.d_model


def test_choose_config_for_time_small_corpus_has_fewer_epochs() -> None:
    size = CorpusSize(500, 50_000, 60)
    limited, unlimited = (choose_config_for_time(size, 30, SPEED, use_all_time=use)[0] for use in (False, True))
    assert limited.training.max_epochs < unlimited.training.max_epochs


def test_choose_config_for_time_small_corpus_gets_a_small_model() -> None:
    d_models = [
        choose_config_for_time(CorpusSize(pairs, 100 * pairs, 60), 600, SPEED, use_all_time=True)[0].model.d_model
        for pairs in (300, 600, 3_000, 30_000)
    ]
    assert d_models == sorted(d_models)
    assert d_models[1] <= 128 < d_models[-1]


def test_config_chooser_auto_limits_time_unless_steps_are_set() -> None:
    assert make_config_chooser({})(MULTI30K)[0].training.max_minutes == DEFAULT_MINUTES
    assert make_config_chooser({"training": {"max_minutes": 7.0}})(MULTI30K)[0].training.max_minutes == 7
    for steps in ({"max_epochs": 3}, {"max_updates": 30}):
        assert make_config_chooser({"training": dict(steps)})(MULTI30K)[0].training.max_minutes == 0
    config, reason = make_config_chooser({"training": {"max_minutes": 7.0}, "model": {"d_model": 64}})(MULTI30K)
    assert config.model.d_model == 64
    assert reason.endswith("overrides: 7 minutes, model.d_model=64")


@pytest.mark.parametrize("preset", ["auto", "tiny", "demo"])
def test_config_chooser_max_updates_lifts_the_epoch_limit(preset: str) -> None:
    def choose_training(**overrides: int) -> TrainingConfig:
        return make_config_chooser({"preset": preset, "training": overrides})(MULTI30K)[0].training

    default_epochs = choose_training(max_updates=0).max_epochs
    assert default_epochs < 1000
    assert choose_training(max_updates=60).max_epochs == UNLIMITED_EPOCHS
    assert choose_training(max_updates=60, max_epochs=2).max_epochs == 2  # the limit reached first ends the run
    assert choose_training(max_epochs=2).max_epochs == 2


def test_config_chooser_reason_lists_only_overrides() -> None:
    overrides: Settings = {"training": {"max_minutes": 1.0, "learning_rate": 0.5}}
    settings = merge_settings(TASKS["causal_lm"], overrides)
    reason = make_config_chooser({**settings, "preset": "tiny"}, overrides)(MULTI30K)[1]
    assert reason == "preset tiny; overrides: 1 minute, training.learning_rate=0.5"


def test_preset_with_time_limit_has_no_epoch_limit() -> None:
    config = make_config_chooser({"preset": "tiny", "training": {"max_minutes": 7.0}})(MULTI30K)[0].training
    assert config.max_minutes == 7
    assert config.max_epochs > 1000
    both = make_config_chooser({"preset": "tiny", "training": {"max_minutes": 7.0, "max_epochs": 2}})(MULTI30K)[
        0
    ].training
    assert (both.max_minutes, both.max_epochs) == (7, 2)


def test_config_chooser_measures_speed_only_for_time_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    measured_threads: list[int] = []

    def measure(threads: int, device: torch.device) -> float:
        measured_threads.append(threads)
        return 1e13

    monkeypatch.setattr("heedful.training.auto_config.measure_operations_per_second", measure)
    by_time, by_steps = (
        make_config_chooser({"training": {"threads": 3}}),
        make_config_chooser({"training": {"max_updates": 9}}),
    )
    assert measured_threads == []
    by_steps(MULTI30K, measured=True)
    assert measured_threads == []
    assert by_time(MULTI30K, measured=True)[0].model.d_model > by_time(MULTI30K)[0].model.d_model
    assert measured_threads == [3]


def test_measure_operations_per_second_restores_threads_and_seed() -> None:
    threads, rng_state = torch.get_num_threads(), torch.get_rng_state()
    assert 1e8 < measure_operations_per_second(1, torch.device("cpu")) < 1e15
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), rng_state)


def test_config_chooser_with_set_shape_adapts_the_rest() -> None:
    config, reason = make_config_chooser({"model": {"d_model": 320, "encoder_layers": 3, "decoder_layers": 1}})(
        MULTI30K
    )
    assert (config.model.d_model, config.model.d_ff) == (320, 1280)
    assert config.training.learning_rate == pytest.approx(PEAK_LR_FACTOR / 320**0.5, abs=1e-5)
    assert "d_model 320" in reason


def test_time_limit_sets_schedule_and_validation() -> None:
    training = choose_config_for_time(MULTI30K, 30, SPEED, use_all_time=True)[0].training
    assert (training.lr_schedule, training.cooldown_fraction, training.validate_every) == ("linear", 0, 0)
    assert (training.max_updates, training.patience) == (0, 0)
    base = make_config_chooser({"preset": "base", "training": {"max_minutes": 7.0}})(MULTI30K)[0].training
    assert (base.lr_schedule, base.cooldown_fraction, base.validate_every) == ("linear", 0, 0)
    assert (base.max_updates, base.patience) == (0, 0)
    assert base.learning_rate == 0  # the paper's


@pytest.mark.parametrize(("d_model", "layers"), MODEL_SHAPES)
def test_shape_option_estimates_parameters(d_model: int, layers: int) -> None:
    option = ShapeOption.estimate(d_model, layers, 3000, 1e15)
    config = build_model_config(d_model, layers, 3000)
    with torch.device("meta"):
        exact = Transformer(config).parameter_count()
    assert option.parameters == pytest.approx(exact, rel=0.02)  # biases and norms
    assert option.tokens == 1e15 / count_operations_per_token(config, 20)


def test_list_possible_configs_covers_every_d_model() -> None:
    assert {config.model.d_model for config in list_possible_configs({})} == {d_model for d_model, _ in MODEL_SHAPES}
    assert {config.model.d_model for config in list_possible_configs({"model": {"d_model": 72}})} == {72}
    assert {config.model.d_model for config in list_possible_configs({"preset": "small"})} == {256}


def test_count_operations_per_token_by_hand() -> None:
    config = ModelConfig(
        d_model=4, heads=2, encoder_layers=1, decoder_layers=1, d_ff=8, source_vocab_size=10, target_vocab_size=10
    )
    # Encoder 4 x 16 + 64, decoder 8 x 16 + 64, three attentions of 2 x 4 x 5, output 40; six for each.
    assert count_operations_per_token(config, 5) == 6 * (128 + 192 + 120 + 40)
