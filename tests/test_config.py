"""Settings: parsing, validation and error messages."""

from pathlib import Path

import pytest

from heedful.config import merge_settings, parse_overrides, read_toml
from heedful.errors import HeedfulError
from heedful.training.config import RunConfig
from heedful.training.preparation import CorpusSize
from heedful.training.run import make_config_chooser


def test_parse_overrides_infers_types() -> None:
    overrides = ["a.b=1", "a.c=1e-3", "a.d=true", "a.e=text with spaces", "a.f=[1, 2]", "a.g=", "a.h=x=y"]
    assert parse_overrides(overrides) == {
        "a": {"b": 1, "c": 1e-3, "d": True, "e": "text with spaces", "f": [1, 2], "g": "", "h": "x=y"}
    }


@pytest.mark.parametrize("override", ["novalue", "=3", "a..b=3", ".a=1"])
def test_parse_overrides_invalid_raises(override: str) -> None:
    with pytest.raises(HeedfulError, match="cannot parse setting"):
        parse_overrides([override])


def test_merge_settings_overrides_per_section() -> None:
    assert merge_settings({"a": {"x": 1, "y": 2}, "b": 1}, {"a": {"y": 3}}) == {"a": {"x": 1, "y": 3}, "b": 1}


@pytest.mark.parametrize(
    ("settings", "problem", "hint"),
    [
        ({"modle": {}}, "unknown setting 'modle'", "'model'"),
        ({"model": {"d_modle": 3}}, "unknown setting 'model.d_modle'", "'model.d_model'"),
        ({"max_epochs": 3}, "unknown setting 'max_epochs'", "'training.max_epochs'"),
        ({"model": {"zzz": 3}}, "unknown setting 'model.zzz'", "known here: architecture, d_model, heads"),
        ({"model": {"d_model": "wide"}}, "setting 'model.d_model': 'wide' should be a valid integer", "d_model"),
        ({"model": {"dropout": 1.5}}, "setting 'model.dropout': 1.5 should be less than or equal to 0.9", "P_drop"),
        (
            {"model": {"norm_placement": "mid"}},
            "setting 'model.norm_placement': 'mid' should be 'post' or 'pre'",
            "residual",
        ),
        ({"model": 3}, "setting 'model'", ""),
        (
            {"training": {"average_checkpoints": 9}},
            "cannot average 9 checkpoints if only 5 are kept",
            "training.keep_last",
        ),
        (
            {"tokenizer": {"model_type": "word", "bpe_dropout": 0.1}},
            "tokenizer.bpe_dropout",
            "tokenizer.model_type=bpe",
        ),
        ({"generation": {"beam_size": 1, "n_best": 2}}, "n_best 2 is larger than beam_size 1", "set beam_size"),
    ],
)
def test_invalid_setting_raises_with_hint(settings: dict[str, object], problem: str, hint: str) -> None:
    with pytest.raises(HeedfulError) as caught:
        RunConfig.from_settings(settings)
    assert problem in caught.value.problem
    assert hint in caught.value.hint


def test_read_toml_recipe_is_parsed_or_raises(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('preset = "tiny"\n[model]\ndropout = 0.2\n', encoding="utf-8-sig")
    config, _ = make_config_chooser(read_toml(recipe))(CorpusSize(1000, 50_000, 60))
    assert (config.preset, config.model.dropout, config.model.d_model) == ("tiny", 0.2, 128)
    with pytest.raises(HeedfulError, match="cannot read recipe"):
        read_toml(tmp_path / "none.toml")
    recipe.write_text("model = {", encoding="utf-8")
    with pytest.raises(HeedfulError, match="not valid TOML"):
        read_toml(recipe)


def test_shipped_recipes_are_valid() -> None:
    for recipe in (Path(__file__).parent.parent / "examples").glob("*.toml"):
        assert make_config_chooser(read_toml(recipe))(CorpusSize(29_000, 4_000_000, 120))


def test_config_round_trips_as_json() -> None:
    config = RunConfig.from_settings({"model": {"d_model": 64}, "cleaning": {"max_length_ratio": 3}})
    assert RunConfig.model_validate_json(config.model_dump_json()) == config
