"""Settings: what is written is checked, and what is wrong is explained."""

from pathlib import Path

import pytest

from heedful.choosing import chooser
from heedful.config import merged, parsed_overrides, read_toml
from heedful.errors import HeedfulError
from heedful.training.config import RunConfig
from heedful.training.preparation import CorpusSize


def test_overrides_are_typed_by_their_look() -> None:
    words = ["a.b=1", "a.c=1e-3", "a.d=true", "a.e=text with spaces", "a.f=[1, 2]", "a.g=", "a.h=x=y"]
    assert parsed_overrides(words) == {
        "a": {"b": 1, "c": 1e-3, "d": True, "e": "text with spaces", "f": [1, 2], "g": "", "h": "x=y"}
    }


@pytest.mark.parametrize("word", ["novalue", "=3", "a..b=3", ".a=1"])
def test_unreadable_override(word: str) -> None:
    with pytest.raises(HeedfulError, match="cannot read setting"):
        parsed_overrides([word])


def test_later_wins_section_by_section() -> None:
    assert merged({"a": {"x": 1, "y": 2}, "b": 1}, {"a": {"y": 3}}) == {"a": {"x": 1, "y": 3}, "b": 1}


@pytest.mark.parametrize(
    ("settings", "problem", "hint"),
    [
        ({"modle": {}}, "unknown setting 'modle'", "'model'"),
        ({"model": {"widht": 3}}, "unknown setting 'model.widht'", "'model.width'"),
        ({"epochs": 3}, "unknown setting 'epochs'", "'training.epochs'"),
        ({"model": {"zzz": 3}}, "unknown setting 'model.zzz'", "known here: family, width, heads"),
        ({"model": {"width": "wide"}}, "setting 'model.width': 'wide' should be a valid integer", "d_model"),
        (
            {"model": {"dropout": 1.5}},
            "setting 'model.dropout': 1.5 should be less than or equal to 0.9",
            "P_drop",
        ),
        ({"model": {"norm": "mid"}}, "setting 'model.norm': 'mid' should be 'post' or 'pre'", "residual"),
        ({"model": 3}, "setting 'model'", ""),
        ({"training": {"average": 9}}, "averaging 9 checkpoints needs as many kept, not 5", "training.keep"),
        ({"tokenizer": {"kind": "word", "dropout": 0.1}}, "tokenizer.dropout", "tokenizer.kind=bpe"),
        ({"search": {"beam": 1, "n_best": 2}}, "a beam of 1 cannot give 2", "set the beam"),
    ],
)
def test_wrong_settings_are_explained(settings: dict[str, object], problem: str, hint: str) -> None:
    with pytest.raises(HeedfulError) as caught:
        RunConfig.checked(settings)
    assert problem in caught.value.problem
    assert hint in caught.value.hint


def test_recipes_from_toml(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('preset = "tiny"\n[model]\ndropout = 0.2\n', encoding="utf-8-sig")
    config, _ = chooser(read_toml(recipe))(CorpusSize(1000, 50_000, 60))
    assert (config.preset, config.model.dropout, config.model.width) == ("tiny", 0.2, 128)
    with pytest.raises(HeedfulError, match="cannot read recipe"):
        read_toml(tmp_path / "none.toml")
    recipe.write_text("model = {", encoding="utf-8")
    with pytest.raises(HeedfulError, match="not valid TOML"):
        read_toml(recipe)


def test_shipped_recipes_are_valid() -> None:
    for recipe in (Path(__file__).parent.parent / "examples").glob("*.toml"):
        assert chooser(read_toml(recipe))(CorpusSize(29_000, 4_000_000, 120))


def test_a_config_survives_json() -> None:
    config = RunConfig.checked({"model": {"width": 64}, "cleaning": {"max_ratio": 3}})
    assert RunConfig.model_validate_json(config.model_dump_json()) == config
