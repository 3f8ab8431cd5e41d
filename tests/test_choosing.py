"""The recipe for a corpus and a time."""

from itertools import pairwise

import pytest
import torch

from heedful.choosing import (
    MINUTES,
    NO_LIMIT,
    PEAK,
    SHAPES,
    Option,
    chooser,
    model_of_shape,
    possible,
    within,
)
from heedful.config import Settings, merged
from heedful.model.config import ModelConfig
from heedful.model.transformer import Transformer
from heedful.training.config import RunConfig, TrainingConfig
from heedful.training.preparation import CorpusSize
from heedful.training.speed import operations_per_second, operations_per_token
from heedful.training.tasks import TASKS

SPEED = 2e11
MULTI30K = CorpusSize(29_000, 3_900_000, 120)


@pytest.mark.parametrize("pairs", [100, 3_000, 30_000, 300_000, 10_000_000])
@pytest.mark.parametrize("minutes", [0.2, 10.0, 30.0, 600.0])
@pytest.mark.parametrize("all_of_it", [True, False])
def test_a_valid_recipe_and_its_reason(pairs: int, minutes: float, all_of_it: bool) -> None:
    size = CorpusSize(pairs, 150 * pairs, 4000)
    config, reason = within(size, minutes, SPEED, all_of_it=all_of_it)
    assert RunConfig.checked(config.model_dump()) == config
    assert config.training.minutes == minutes
    assert config.tokenizer.vocabulary > 2000  # room for the letters
    for words in (f"{minutes:g} minutes for {pairs:,} pairs", f"width {config.model.width}"):
        assert words in reason


def test_more_time_or_speed_is_a_larger_model_and_more_dropout() -> None:
    chosen = [within(MULTI30K, minutes, SPEED, all_of_it=True)[0] for minutes in (1, 5, 30, 180, 1000)]
    for less, more in pairwise(chosen):
        assert less.model.width <= more.model.width
        assert less.batches.tokens <= more.batches.tokens
    assert chosen[0].model.width < chosen[-1].model.width
    assert chosen[0].model.dropout < chosen[-1].model.dropout
    quick, slow = (within(MULTI30K, 30, speed, all_of_it=True)[0] for speed in (1e12, 1e10))
    assert quick.model.width > slow.model.width


def test_a_small_corpus_does_not_take_all_the_time() -> None:
    size = CorpusSize(500, 50_000, 60)
    some, all_of_it = (within(size, 30, SPEED, all_of_it=use)[0] for use in (False, True))
    assert some.training.epochs < all_of_it.training.epochs


def test_a_small_corpus_gets_a_small_model_however_long() -> None:
    widths = [
        within(CorpusSize(pairs, 100 * pairs, 60), 600, SPEED, all_of_it=True)[0].model.width
        for pairs in (300, 600, 3_000, 30_000)
    ]
    assert widths == sorted(widths)
    assert widths[1] <= 128 < widths[-1]


def test_auto_is_by_the_clock_unless_told_steps() -> None:
    assert chooser({})(MULTI30K)[0].training.minutes == MINUTES
    assert chooser({"training": {"minutes": 7.0}})(MULTI30K)[0].training.minutes == 7
    for steps in ({"epochs": 3}, {"updates": 30}):
        assert chooser({"training": dict(steps)})(MULTI30K)[0].training.minutes == 0
    config, reason = chooser({"training": {"minutes": 7.0}, "model": {"width": 64}})(MULTI30K)
    assert config.model.width == 64
    assert reason.endswith("told: 7 minutes, model.width=64")


@pytest.mark.parametrize("preset", ["auto", "tiny", "demo"])
def test_told_updates_are_done_whatever_the_epochs_of_the_preset(preset: str) -> None:
    def training(**told: int) -> TrainingConfig:
        return chooser({"preset": preset, "training": told})(MULTI30K)[0].training

    usual = training(updates=0).epochs
    assert usual < 1000
    assert training(updates=60).epochs == NO_LIMIT
    assert training(updates=60, epochs=2).epochs == 2  # told both: whatever comes first
    assert training(epochs=2).epochs == 2


def test_only_what_the_user_said_is_told() -> None:
    told: Settings = {"training": {"minutes": 1.0, "rate": 0.5}}
    settings = merged(TASKS["language"], told)
    reason = chooser({**settings, "preset": "tiny"}, told)(MULTI30K)[1]
    assert reason == "preset tiny; told: 1 minute, training.rate=0.5"


def test_a_preset_with_a_time_trains_to_its_end() -> None:
    config = chooser({"preset": "tiny", "training": {"minutes": 7.0}})(MULTI30K)[0].training
    assert config.minutes == 7
    assert config.epochs > 1000
    both = chooser({"preset": "tiny", "training": {"minutes": 7.0, "epochs": 2}})(MULTI30K)[0].training
    assert (both.minutes, both.epochs) == (7, 2)


def test_the_machine_is_measured_only_when_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def pretended(threads: int, device: torch.device) -> float:
        asked.append(threads)
        return 1e13

    monkeypatch.setattr("heedful.choosing.operations_per_second", pretended)
    by_time, by_steps = chooser({"training": {"threads": 3}}), chooser({"training": {"updates": 9}})
    assert asked == []
    by_steps(MULTI30K, measured=True)
    assert asked == []
    assert by_time(MULTI30K, measured=True)[0].model.width > by_time(MULTI30K)[0].model.width
    assert asked == [3]


def test_the_measure_of_this_machine() -> None:
    threads, drawn = torch.get_num_threads(), torch.get_rng_state()
    assert 1e8 < operations_per_second(1, torch.device("cpu")) < 1e15
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_told_shape_is_what_the_rest_is_chosen_for() -> None:
    config, reason = chooser({"model": {"width": 320, "encoder_layers": 3, "decoder_layers": 1}})(MULTI30K)
    assert (config.model.width, config.model.feed_forward_width) == (320, 1280)
    assert config.training.rate == pytest.approx(PEAK / 320**0.5, abs=1e-5)
    assert "width 320" in reason


def test_what_makes_it_end_by_the_clock() -> None:
    training = within(MULTI30K, 30, SPEED, all_of_it=True)[0].training
    assert (training.schedule, training.cooldown, training.validate_every) == ("linear", 0, 0)
    assert (training.updates, training.patience) == (0, 0)
    base = chooser({"preset": "base", "training": {"minutes": 7.0}})(MULTI30K)[0].training
    assert (base.schedule, base.cooldown, base.validate_every) == ("linear", 0, 0)
    assert (base.updates, base.patience) == (0, 0)
    assert base.rate == 0  # the paper's


@pytest.mark.parametrize(("width", "layers"), SHAPES)
def test_weights_are_counted_rightly(width: int, layers: int) -> None:
    option = Option.of(width, layers, 3000, 1e15)
    config = model_of_shape(width, layers, 3000)
    with torch.device("meta"):
        exact = Transformer(config).parameter_count()
    assert option.weights == pytest.approx(exact, rel=0.02)  # biases and norms
    assert option.tokens == 1e15 / operations_per_token(config, 20)


def test_vectors_of_any_width_that_may_be_chosen() -> None:
    assert {config.model.width for config in possible({})} == {width for width, _ in SHAPES}
    assert {config.model.width for config in possible({"model": {"width": 72}})} == {72}
    assert {config.model.width for config in possible({"preset": "small"})} == {256}


def test_operations_of_a_token_by_hand() -> None:
    config = ModelConfig(
        width=4,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
        feed_forward_width=8,
        source_vocabulary=10,
        target_vocabulary=10,
    )
    # Encoder 4 x 16 + 64, decoder 8 x 16 + 64, three attentions of 2 x 4 x 5, output 40; six for each.
    assert operations_per_token(config, 5) == 6 * (128 + 192 + 120 + 40)
