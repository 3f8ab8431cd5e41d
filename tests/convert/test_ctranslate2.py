"""Conversion to CTranslate2: every variant matches PyTorch."""

import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from heedful.convert import compatibility
from heedful.convert.compatibility import MAX_SINUSOIDAL_POSITIONS, ctranslate2_incompatibility
from heedful.convert.ctranslate2.weights import export_ctranslate2, new_specification, sinusoidal_table
from heedful.errors import HeedfulError
from heedful.generation.config import GenerationConfig
from heedful.inference.ctranslate2_backend import CTranslate2Backend
from heedful.inference.loading import load
from heedful.inference.translator import Translator
from heedful.model_folder import WEIGHTS_FILE, ModelFolder, ModelFolderConfig, read_arrays, read_tensors, write_tensors
from heedful.models.config import ModelConfig
from heedful.models.embeddings import sinusoids
from heedful.models.transformer import Transformer
from tests.interpret.small_models import new_tokenizer
from tests.models.variants import VARIANTS

SOURCES = ["The dog is tired.", "I am a student.", "The animal didn't cross the street because it was wide.", "猫"]
TARGETS = ["Le chien est fatigué.", "Je suis un étudiant.", "L'animal n'a pas traversé la rue.", "chat"]


def variant(
    norm_placement: str,
    positions: str,
    activation: str,
    bias: bool,
    tie_output_embeddings: bool,
    longest_source: int = 40,
    **others: object,
) -> ModelFolder:
    tokenizer = new_tokenizer("bpe")
    config = ModelConfig.from_settings(
        {
            "d_model": 24,
            "heads": 3,
            "encoder_layers": 3,
            "decoder_layers": 2,
            "d_ff": 40,
            "norm_placement": norm_placement,
            "positions": positions,
            "max_length": 64,
            "activation": activation,
            "attention_bias": bias,
            "tie_output_embeddings": tie_output_embeddings,
            "source_vocab_size": tokenizer.source.vocab_size,
            "target_vocab_size": tokenizer.target.vocab_size,
            "share_embeddings": False,
            **others,
        }
    )
    torch.manual_seed(5)
    model = Transformer(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter) * (parameter != 0)
    return ModelFolder(ModelFolderConfig(model=config, max_source_length=longest_source), tokenizer, model.eval())


SETTING_COMBINATIONS = list(
    product(["post", "pre"], ["sinusoidal", "learned"], ["relu", "gelu"], [True, False], [True, False])
)


SUPPORTED_POSITIONS = ("sinusoidal", "learned", "relative", "rotary", "none")
UNSUPPORTED = {
    "no-residuals": "model.residuals = False",
    "no-residuals-pre": "model.residuals = False",
    "bigbird": "model.encoder_attention = 'bigbird'",
    "bigbird-without-first": "model.encoder_attention = 'bigbird'",
    "linformer": "model.encoder_attention = 'linformer'",
}


@pytest.mark.parametrize(
    ("norm", "positions", "activation", "bias", "tie_output_embeddings"),
    SETTING_COMBINATIONS[::3] + SETTING_COMBINATIONS[1:2],
)
def test_ctranslate2_matches_pytorch(
    norm: str, positions: str, activation: str, bias: bool, tie_output_embeddings: bool, tmp_path: Path
) -> None:
    check_match(variant(norm, positions, activation, bias, tie_output_embeddings), tmp_path)


@pytest.mark.parametrize("name", VARIANTS)
def test_ctranslate2_variant_matches_or_is_rejected(name: str, tmp_path: Path) -> None:
    settings = {"norm_placement": "post", "positions": "sinusoidal", "activation": "relu", **VARIANTS[name]}
    model_folder = variant(**settings, bias=True, tie_output_embeddings=True)
    setting = UNSUPPORTED.get(name, "")
    if settings["positions"] not in SUPPORTED_POSITIONS:
        setting = f"model.positions = '{settings['positions']}'"
    if setting:
        with pytest.raises(HeedfulError, match=setting):
            export_ctranslate2(model_folder, tmp_path)
    else:
        check_match(model_folder, tmp_path)


def check_match(model_folder: ModelFolder, tmp_path: Path) -> None:
    before = {name: tensor.clone() for name, tensor in model_folder.translation_model.state_dict().items()}
    export_ctranslate2(model_folder, tmp_path, "int8")
    export_ctranslate2(model_folder, tmp_path, "float32")
    assert all(
        torch.equal(tensor, before[name]) for name, tensor in model_folder.translation_model.state_dict().items()
    )
    ctranslate2_translator = Translator(CTranslate2Backend(model_folder, tmp_path, precision="float32", workers=1))
    pytorch_translator = Translator.with_pytorch(model_folder)
    for ours, theirs in zip(
        pytorch_translator.score(SOURCES, TARGETS), ctranslate2_translator.score(SOURCES, TARGETS), strict=True
    ):
        assert theirs.token_log_probabilities == pytest.approx(ours.token_log_probabilities, abs=1e-4)
    search = GenerationConfig(beam_size=1, max_length_offset=12)
    for ours, theirs in zip(
        pytorch_translator.translate(SOURCES, search),
        ctranslate2_translator.translate(SOURCES, search, details=True),
        strict=True,
    ):
        assert theirs.alternatives[0].tokens == ours.alternatives[0].tokens
        assert theirs.score == pytest.approx(ours.score, abs=1e-3)
        assert "<pad>" not in theirs.alternatives[0].tokens


def test_ctranslate2_long_sentence_matches(tmp_path: Path) -> None:
    """CTranslate2 is limited to the positions of its table."""
    model_folder = variant("post", "sinusoidal", "relu", True, True, longest_source=2_000)
    export_ctranslate2(model_folder, tmp_path, "float32")
    source, target = ["The dog is tired, " * 60], ["Le chien est fatigué, " * 60]
    [ours] = Translator.with_pytorch(model_folder).score(source, target)
    [theirs] = Translator(CTranslate2Backend(model_folder, tmp_path, precision="float32", workers=1)).score(
        source, target
    )
    assert 256 < len(ours.token_log_probabilities) < MAX_SINUSOIDAL_POSITIONS
    assert theirs.token_log_probabilities == pytest.approx(ours.token_log_probabilities, abs=1e-3)


def test_every_model_setting_is_listed() -> None:
    """A new setting must be added to the supported ones, or models with it are rejected."""
    assert set(ModelConfig.model_fields) == set(compatibility.CTRANSLATE2_VALUES)
    for name, values in compatibility.CTRANSLATE2_VALUES.items():
        annotation = ModelConfig.model_fields[name].annotation
        assert values is None or set(values) <= ({True, False} if annotation is bool else set(get_args(annotation)))


class FutureModelConfig(ModelConfig):
    """A model config with a new setting."""

    gate: bool = False


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"activation": "swish"}, "model.activation = 'swish'"),
        ({"positions": "spiral"}, "model.positions = 'spiral'"),
        ({"architecture": "gru"}, "CTranslate2 does not support model.architecture = 'gru'"),
        ({"norm_placement": "sandwich"}, "model.norm_placement = 'sandwich'"),
        ({"positions": "learned", "max_length": 100_001}, "at most 100,000 learned positions"),
    ],
)
def test_unsupported_setting_is_rejected(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    model_folder = variant("post", "sinusoidal", "relu", True, True)
    assert ctranslate2_incompatibility(model_folder.config.model) == ""
    model = model_folder.config.model.model_copy(update=change)  # unchecked, as for a model of a newer version
    assert reason in ctranslate2_incompatibility(model)
    unsupported_folder = replace(model_folder, config=model_folder.config.model_copy(update={"model": model}))
    with pytest.raises(HeedfulError, match="cannot convert to a CTranslate2 model") as error:
        export_ctranslate2(unsupported_folder, tmp_path / "out")
    assert reason in str(error.value)
    assert not (tmp_path / "out").exists()


def test_unknown_setting_raises() -> None:
    config = FutureModelConfig(**variant("post", "sinusoidal", "relu", True, True).config.model.model_dump())
    assert "model.gate" in ctranslate2_incompatibility(config)


def test_unsupported_model_uses_pytorch(tmp_path: Path) -> None:
    config = variant("post", "learned", "relu", True, True).config.model.model_dump()
    tokenizer = new_tokenizer("bpe")
    model = ModelConfig.from_settings({**config, "max_length": 100_001, "d_model": 6})
    ModelFolder(ModelFolderConfig(model=model, max_source_length=40), tokenizer, Transformer(model)).save(tmp_path)
    engine = load(tmp_path, device="cpu")
    assert engine.name.startswith("PyTorch (CTranslate2 supports at most 100,000 learned positions")
    assert engine.translate(["The dog."], GenerationConfig(beam_size=1, max_length_offset=3))[0].alternatives
    with pytest.raises(HeedfulError, match="at most 100,000 learned positions"):
        load(tmp_path, device="cpu", engine="ctranslate2")


def test_too_long_input_raises_with_hint(tmp_path: Path) -> None:
    model_folder = variant("post", "learned", "relu", True, True)  # up to 64 tokens
    export_ctranslate2(model_folder, tmp_path)
    translator = Translator(CTranslate2Backend(model_folder, tmp_path, precision="float32", workers=1))
    long = "Le chien est fatigué. " * 40
    for pair in (SOURCES[:1], [long]), ([long], TARGETS[:1]):
        with pytest.raises(HeedfulError, match="64 learned positions") as error:
            translator.score(*pair)
        assert "shorter sentences" in error.value.hint


def test_numpy_sinusoids_match_pytorch() -> None:
    theirs = sinusoids(MAX_SINUSOIDAL_POSITIONS, 26)
    torch.testing.assert_close(
        torch.from_numpy(sinusoidal_table(MAX_SINUSOIDAL_POSITIONS, 26)), theirs, rtol=0, atol=1e-7
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_numpy_reads_weights_like_pytorch(dtype: torch.dtype, tmp_path: Path) -> None:
    tensor = torch.randn(3, 5).to(dtype)
    write_tensors(tmp_path / "x", {"a": tensor, "b": tensor[0].clone()})
    arrays = read_arrays(tmp_path / "x")
    assert torch.equal(torch.from_numpy(arrays["a"]), tensor.float())
    assert arrays["b"].tolist() == tensor[0].tolist() or dtype == torch.float64


def test_numpy_integer_weights_raise(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", {"a": torch.arange(3)})
    with pytest.raises(HeedfulError, match="not a float type"):
        read_arrays(tmp_path / "x")


@pytest.mark.parametrize("name", ["encoder.embedding.table.weight", "decoder.layers.1.residual_cross.norm.bias"])
@pytest.mark.parametrize(("change", "problem"), [("drop", "missing or unexpected"), ("cut", "has shape")])
def test_conversion_of_mismatched_weights_raises(name: str, change: str, problem: str, tmp_path: Path) -> None:
    """CTranslate2 itself would crash."""
    variant("post", "learned", "relu", True, True).save(tmp_path)
    tensors = read_tensors(tmp_path / WEIGHTS_FILE)
    tensor = tensors.pop(name)
    write_tensors(tmp_path / WEIGHTS_FILE, tensors | ({name: tensor[1:].clone()} if change == "cut" else {}))
    with pytest.raises(HeedfulError, match=problem):
        new_specification(ModelFolder.open(tmp_path))


def test_conversion_works_without_torch(tmp_path: Path) -> None:
    variant("pre", "sinusoidal", "gelu", True, False).save(tmp_path)
    code = "import sys; sys.modules['torch'] = None\nfrom heedful import load\n"  # importing torch raises ImportError
    code += f"print(load({str(tmp_path)!r}, device='cpu', workers=1).translate(['The dog.'])[0].segments)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "1", result.stderr
