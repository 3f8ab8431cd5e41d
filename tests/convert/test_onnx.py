"""ONNX export: ONNX Runtime matches PyTorch step by step, with any padding, and translates identically."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import pytest
import torch

from heedful.convert import onnx as onnx_export
from heedful.convert.compatibility import find_incompatibility
from heedful.convert.onnx import (
    OPSET,
    OnnxDecoder,
    OnnxEncoder,
    OnnxGraphs,
    export_onnx,
    remove_position_caches,
)
from heedful.errors import HeedfulError
from heedful.generation.config import GenerationConfig
from heedful.inference.translator import Translator
from heedful.model_folder import ModelFolder
from heedful.models.base import pad_with_end
from heedful.models.config import ModelConfig
from tests.convert.trained_models import PAIRS, SENTENCES, train_model
from tests.interpret.small_models import new_model_folder

VARIANTS: dict[str, dict[str, Any]] = {
    "rotary": {"positions": "rotary", "norm_placement": "pre", "norm": "rmsnorm", "gated_feed_forward": True},
    "relative": {"positions": "relative", "max_relative_distance": 3, "activation": "gelu"},
    "alibi": {"positions": "alibi", "scale_attention": False, "attention_bias": False},
    "learned": {"positions": "learned", "max_length": 64, "tie_output_embeddings": False},
    "no-positions": {"positions": "none", "residuals": False, "activation": "silu"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of a trained model."""
    path = tmp_path_factory.mktemp("onnx") / "out"
    [message] = export_onnx(train_model(), path)
    assert message.startswith("verified with ONNX Runtime")
    return path


def compute_stepwise(graphs: OnnxGraphs, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Logits before each target token: (rows, length, vocabulary)."""
    state, actual = graphs.start(source), []
    for tokens in np.concatenate([np.zeros_like(target[:, :1]), target[:, :-1]], axis=1).T:
        logits, state = graphs.step(tokens, state)
        actual.append(logits)
    return np.stack(actual, axis=1)


def check_match(model_folder: ModelFolder, graphs: OnnxGraphs, longest: int) -> None:
    """Cached decoding of sentences with different lengths matches our uncached model."""
    torch.manual_seed(2)
    sources = [torch.randint(300, 600, (length,)).tolist() for length in (1, 11, longest)]
    targets = [torch.randint(300, 600, (length,)).tolist() for length in (37, 5, 1)]
    source, target = pad_with_end(sources), pad_with_end(targets)
    decoder_input = torch.cat([torch.zeros_like(target[:, :1]), target[:, :-1]], dim=1)
    with torch.inference_mode():
        expected = model_folder.translation_model.logits(model_folder.translation_model(source, decoder_input)).numpy()
    actual = compute_stepwise(graphs, source.numpy(), target.numpy())
    for row, length in enumerate(map(len, targets)):
        np.testing.assert_allclose(actual[row, : length + 1, 1:], expected[row, : length + 1, 1:], rtol=1e-4, atol=1e-4)
    assert np.isneginf(actual[..., 0]).all()  # padding is never generated
    for row, (source_ids, target_ids) in enumerate(
        zip(sources, targets, strict=True)
    ):  # one sentence at a time, without padding
        alone = compute_stepwise(graphs, pad_with_end([source_ids]).numpy(), pad_with_end([target_ids]).numpy())
        np.testing.assert_allclose(alone[0, :, 1:], actual[row, : len(target_ids) + 1, 1:], rtol=1e-5, atol=1e-5)


def test_onnx_base_variant_matches(folder: Path) -> None:
    check_match(train_model(), OnnxGraphs(folder), longest=300)


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_onnx_variant_matches(name: str, tmp_path: Path) -> None:
    model_folder = new_model_folder("bpe", layers=(2, 2), heads=5, **VARIANTS[name])
    export_onnx(model_folder, tmp_path / "out")
    check_match(model_folder, OnnxGraphs(tmp_path / "out"), longest=40)


@pytest.mark.parametrize("name", VARIANTS)
def test_onnx_modules_match_the_model(name: str) -> None:
    """Before tracing: encoder and decoder as separate modules, without cached position tables."""
    model_folder = new_model_folder("bpe", layers=(2, 2), heads=5, **VARIANTS[name])
    model, model_without_caches = model_folder.translation_model, remove_position_caches(model_folder.translation_model)
    longest = model_folder.config.model.max_length if model_folder.config.model.has_max_length else 300
    torch.manual_seed(4)
    source = pad_with_end([torch.randint(300, 600, (length,)).tolist() for length in (5, longest - 1)])
    with torch.inference_mode():
        state, memory = model.start(source), OnnxEncoder(model_without_caches)(source)
        past = [tensor[:, :, :0] for tensor in memory]
        for tokens in (torch.tensor([0, 0]), torch.tensor([301, 302]), torch.tensor([303, 1])):
            expected, state = model.step(tokens, state)
            logits, past = OnnxDecoder(model_without_caches)(tokens, source, memory, past)
            torch.testing.assert_close(logits.log_softmax(-1), expected, rtol=1e-5, atol=1e-5)


def test_readme_program_translates_identically(folder: Path) -> None:
    [program] = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    program_for_sentences = re.sub(r"for sentence in .*:", lambda _: f"for sentence in {SENTENCES!r}:", program)
    process = subprocess.run(
        [sys.executable, "-c", program_for_sentences], cwd=folder, capture_output=True, text=True, check=True
    )
    ours = [
        translation.text
        for translation in Translator.with_pytorch(train_model()).translate(SENTENCES, GenerationConfig(beam_size=1))
    ]
    assert process.stdout.splitlines() == ours
    assert ours[1] == PAIRS[1][1]  # the model has learned this sentence


def test_onnx_folder_has_valid_graphs_settings_and_vocabulary(folder: Path) -> None:
    for name in ("encoder.onnx", "decoder.onnx"):
        graph = onnx.load(folder / name)
        onnx.checker.check_model(graph)
        assert [opset.version for opset in graph.opset_import if not opset.domain] == [OPSET]
    settings = json.loads((folder / "generation.json").read_text(encoding="utf-8"))
    assert (settings["start"], settings["end"], settings["max_length"]) == (0, 1, None)
    tokens = json.loads((folder / "target_vocabulary.json").read_text(encoding="utf-8"))
    assert tuple(tokens) == train_model().tokenizer.target.vocabulary.tokens


def test_onnx_wrong_graphs_raise(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check after the export detects graphs of another model."""
    monkeypatch.setattr(onnx_export, "write_graphs", lambda _, path: shutil.copytree(folder, path, dirs_exist_ok=True))
    with pytest.raises(HeedfulError, match="the exported graphs are wrong"):
        export_onnx(train_model("bpe", updates=1), tmp_path / "out")


def test_every_model_setting_is_listed() -> None:
    """A new setting must be added to the supported ones, or models with it are rejected."""
    assert set(ModelConfig.model_fields) == set(onnx_export.SUPPORTED_VALUES)
    for name, values in onnx_export.SUPPORTED_VALUES.items():
        assert values is None or set(values) <= set(get_args(ModelConfig.model_fields[name].annotation))


class FutureModelConfig(ModelConfig):
    """A model config with a new setting."""

    gate: bool = False


def onnx_incompatibility(config: ModelConfig) -> str:
    return find_incompatibility("ONNX export", config, onnx_export.SUPPORTED_VALUES)


def test_unsupported_setting_is_rejected() -> None:
    config = train_model().config.model
    assert onnx_incompatibility(config) == ""
    for change in ({"positions": "dependency"}, {"encoder_attention": "linformer"}, {"architecture": "lstm"}):
        [(name, value)] = change.items()
        assert f"model.{name} = {value!r}" in onnx_incompatibility(config.model_copy(update=change))
    assert "model.gate" in onnx_incompatibility(FutureModelConfig(**config.model_dump()))


def test_onnx_missing_packages_raise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(HeedfulError, match="needs onnxruntime") as error:
        export_onnx(train_model(), tmp_path / "out")
    assert error.value.hint == "pip install 'heedful[onnx]'"
    assert not (tmp_path / "out").exists()
