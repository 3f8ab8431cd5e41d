"""Conversion to CTranslate2: every variant gives the same numbers; what is kept is renewed in time."""

import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from heedful.api import load
from heedful.bundle import Bundle, BundleConfig
from heedful.decoding.config import SearchConfig
from heedful.engines.ctranslate2 import POSITIONS, CTranslate2Engine
from heedful.engines.native import NativeEngine
from heedful.errors import HeedfulError
from heedful.interop import ctranslate2
from heedful.interop.ctranslate2 import converted, export
from heedful.model.config import ModelConfig
from heedful.model.transformer import Transformer
from tests.inspection.models import new_tokenizer
from tests.model.variants import VARIANTS as FAMILY

SOURCES = [
    "The dog is tired.",
    "I am a student.",
    "The animal didn't cross the street because it was wide.",
    "猫",
]
TARGETS = ["Le chien est fatigué.", "Je suis un étudiant.", "L'animal n'a pas traversé la rue.", "chat"]


def variant(
    norm: str,
    positions: str,
    activation: str,
    bias: bool,
    tied: bool,
    longest_source: int = 40,
    **others: object,
) -> Bundle:
    tokenizer = new_tokenizer("bpe")
    config = ModelConfig.checked(
        {
            "width": 24,
            "heads": 3,
            "encoder_layers": 3,
            "decoder_layers": 2,
            "feed_forward_width": 40,
            "norm": norm,
            "positions": positions,
            "longest": 64,
            "activation": activation,
            "attention_bias": bias,
            "tie_output": tied,
            "source_vocabulary": tokenizer.source.size,
            "target_vocabulary": tokenizer.target.size,
            "joint": False,
            **others,
        }
    )
    torch.manual_seed(5)
    model = Transformer(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter) * (parameter != 0)
    return Bundle(BundleConfig(model=config, longest_source=longest_source), tokenizer, model.eval())


VARIANTS = list(
    product(["post", "pre"], ["sinusoidal", "learned"], ["relu", "gelu"], [True, False], [True, False])
)


REFUSED = {
    "alibi": "model.positions = 'alibi'",
    "tree": "model.positions = 'tree'",
    "relative-tree": "model.positions = 'relative-tree'",
    "no-residuals": "model.residuals = False",
    "no-residuals-pre": "model.residuals = False",
    "bigbird": "model.encoder_attention = 'bigbird'",
    "bigbird-without-first": "model.encoder_attention = 'bigbird'",
    "linformer": "model.encoder_attention = 'linformer'",
}


@pytest.mark.parametrize(("norm", "positions", "activation", "bias", "tied"), VARIANTS[::3] + VARIANTS[1:2])
def test_every_variant_agrees(
    norm: str, positions: str, activation: str, bias: bool, tied: bool, tmp_path: Path
) -> None:
    agrees(variant(norm, positions, activation, bias, tied), tmp_path)


@pytest.mark.parametrize("name", FAMILY)
def test_every_member_of_the_family_agrees_or_is_refused(name: str, tmp_path: Path) -> None:
    settings = {"norm": "post", "positions": "sinusoidal", "activation": "relu", **FAMILY[name]}
    bundle = variant(**settings, bias=True, tied=True)
    if name in REFUSED:
        with pytest.raises(HeedfulError, match=REFUSED[name]):
            export(bundle, tmp_path)
    else:
        agrees(bundle, tmp_path)


def agrees(bundle: Bundle, tmp_path: Path) -> None:
    before = {name: tensor.clone() for name, tensor in bundle.model.state_dict().items()}
    export(bundle, tmp_path, "int8")
    export(bundle, tmp_path, "float32")
    assert all(torch.equal(tensor, before[name]) for name, tensor in bundle.model.state_dict().items())
    quick = CTranslate2Engine(bundle, tmp_path, precision="float32", workers=1)
    native = NativeEngine(bundle)
    for ours, theirs in zip(native.score(SOURCES, TARGETS), quick.score(SOURCES, TARGETS), strict=True):
        assert theirs.token_log_probabilities == pytest.approx(ours.token_log_probabilities, abs=1e-4)
    search = SearchConfig(beam=1, extra_length=12)
    for ours, theirs in zip(
        native.translate(SOURCES, search), quick.translate(SOURCES, search, details=True), strict=True
    ):
        assert theirs.alternatives[0].tokens == ours.alternatives[0].tokens
        assert theirs.score == pytest.approx(ours.score, abs=1e-3)
        assert "<pad>" not in theirs.alternatives[0].tokens


def test_a_long_sentence_has_positions_to_its_end(tmp_path: Path) -> None:
    """CTranslate2 cannot go beyond the table that it is given."""
    bundle = variant("post", "sinusoidal", "relu", True, True, longest_source=2_000)
    export(bundle, tmp_path, "float32")
    source, target = ["The dog is tired, " * 60], ["Le chien est fatigué, " * 60]
    [ours] = NativeEngine(bundle).score(source, target)
    [theirs] = CTranslate2Engine(bundle, tmp_path, precision="float32", workers=1).score(source, target)
    assert 256 < len(ours.token_log_probabilities) < POSITIONS
    assert theirs.token_log_probabilities == pytest.approx(ours.token_log_probabilities, abs=1e-3)


def test_kept_beside_the_model_and_renewed(tmp_path: Path) -> None:
    bundle = variant("post", "sinusoidal", "relu", True, True)
    bundle.save(tmp_path)
    first = converted(tmp_path, bundle, "float32")
    stamp = (first / "model.bin").stat().st_mtime_ns
    assert first == tmp_path / "ctranslate2" / "float32"
    assert not ctranslate2.is_ready(tmp_path, "int8")
    assert (converted(tmp_path, bundle, "float32") / "model.bin").stat().st_mtime_ns == stamp
    with torch.no_grad():
        bundle.model.output.weight[5] += 1
    bundle.save(tmp_path)
    again = converted(tmp_path, Bundle.load(tmp_path), "float32")
    assert (again / "model.bin").stat().st_mtime_ns > stamp
    (again / "heedful.json").write_text("{}")
    assert (converted(tmp_path, bundle, "float32") / "model.bin").stat().st_mtime_ns > stamp
    converted(tmp_path, bundle, "int8")
    assert ctranslate2.is_ready(tmp_path, "int8")


def test_a_damaged_conversion_is_made_again(tmp_path: Path) -> None:
    bundle = variant("post", "sinusoidal", "relu", True, True)
    bundle.save(tmp_path)
    broken = converted(tmp_path, bundle, "int8") / "model.bin"
    broken.write_bytes(broken.read_bytes()[:1000])
    engine = load(tmp_path, device="cpu", workers=1)
    assert engine.name == "CTranslate2 int8"
    assert engine.translate(["The dog."], SearchConfig(beam=1, extra_length=3))[0].alternatives
    (tmp_path / "ctranslate2" / "int8" / "heedful.json").write_text("{")
    assert load(tmp_path, device="cpu", workers=1).name == "CTranslate2 int8"


@pytest.mark.long
def test_two_processes_wait_for_each_other(tmp_path: Path) -> None:
    variant("post", "sinusoidal", "relu", True, True).save(tmp_path)
    code = f"from heedful.api import load; print(load({str(tmp_path)!r}, device='cpu', workers=1).name)"
    runs = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    assert [run.communicate(timeout=120)[0].strip() for run in runs] == ["CTranslate2 int8"] * 3


def test_every_setting_of_a_model_has_been_thought_of() -> None:
    """A new setting must be put into one of the two lists, or it is refused."""
    known = {*ctranslate2.CHOICES, *ctranslate2.EXPRESSED}
    assert set(ModelConfig.model_fields) == known
    for name, values in ctranslate2.CHOICES.items():
        annotation = ModelConfig.model_fields[name].annotation
        assert set(values) <= ({True, False} if annotation is bool else set(get_args(annotation)))


class Gated(ModelConfig):
    """A model of tomorrow."""

    gate: bool = False


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"activation": "swish"}, "model.activation = 'swish'"),
        ({"positions": "spiral"}, "model.positions = 'spiral'"),
        ({"family": "gru"}, "CTranslate2 cannot express model.family = 'gru'"),
        ({"norm": "sandwich"}, "model.norm = 'sandwich'"),
        ({"positions": "learned", "longest": 100_001}, "learned positions has more than 100,000 rows"),
    ],
)
def test_what_cannot_be_expressed_is_refused(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    bundle = variant("post", "sinusoidal", "relu", True, True)
    assert ctranslate2.why_not(bundle.config.model) == ""
    model = bundle.config.model.model_copy(update=change)  # unchecked: such models may come
    assert reason in ctranslate2.why_not(model)
    strange = replace(bundle, config=bundle.config.model_copy(update={"model": model}))
    with pytest.raises(HeedfulError, match="cannot be a CTranslate2 model") as error:
        export(strange, tmp_path / "out")
    assert reason in str(error.value)
    assert not (tmp_path / "out").exists()


def test_an_unknown_setting_is_refused() -> None:
    config = Gated(**variant("post", "sinusoidal", "relu", True, True).config.model.model_dump())
    assert "model.gate" in ctranslate2.why_not(config)


def test_a_model_that_cannot_be_expressed_stays_with_pytorch(tmp_path: Path) -> None:
    config = variant("post", "learned", "relu", True, True).config.model.model_dump()
    tokenizer = new_tokenizer("bpe")
    model = ModelConfig.checked({**config, "longest": 100_001, "width": 6})
    Bundle(BundleConfig(model=model, longest_source=40), tokenizer, Transformer(model)).save(tmp_path)
    engine = load(tmp_path, device="cpu")
    assert engine.name.startswith("PyTorch (its table of learned positions has more than 100,000 rows")
    assert engine.translate(["The dog."], SearchConfig(beam=1, extra_length=3))[0].alternatives
    with pytest.raises(HeedfulError, match="more than 100,000 rows"):
        load(tmp_path, device="cpu", engine="ctranslate2")
    assert not (tmp_path / "ctranslate2").exists()


def test_beyond_the_last_position_it_is_said_what_to_do(tmp_path: Path) -> None:
    bundle = variant("post", "learned", "relu", True, True)  # up to 64 tokens
    export(bundle, tmp_path)
    quick = CTranslate2Engine(bundle, tmp_path, precision="float32", workers=1)
    long = "Le chien est fatigué. " * 40
    for pair in (SOURCES[:1], [long]), ([long], TARGETS[:1]):
        with pytest.raises(HeedfulError, match="learned positions end at 64") as error:
            quick.score(*pair)
        assert "shorter sentences" in error.value.hint


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ctranslate2, "find_spec", lambda name: None)
    with pytest.raises(HeedfulError, match="not installed") as error:
        export(variant("post", "sinusoidal", "relu", True, True), tmp_path)
    assert "pip install 'heedful[ctranslate2]'" in error.value.hint
