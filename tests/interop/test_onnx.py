"""The ONNX export: ONNX Runtime gives our numbers, step by step and with any padding, and our sentences."""

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

from heedful.bundle import Bundle
from heedful.decoding.config import SearchConfig
from heedful.engines.native import NativeEngine
from heedful.errors import HeedfulError
from heedful.interop import onnx as exporting
from heedful.interop.onnx import OPSET, export_onnx, why_not
from heedful.interop.onnx_graphs import SourceReader, TokenWriter, without_tables
from heedful.interop.onnx_run import Graphs
from heedful.interop.samples import ended
from heedful.model.config import ModelConfig
from tests.inspection.models import new_bundle
from tests.interop.learned import PAIRS, SENTENCES, learned

VARIANTS: dict[str, dict[str, Any]] = {
    "rotary": {"positions": "rotary", "norm": "pre", "normalization": "rms", "gated": True},
    "relative": {"positions": "relative", "relative_distance": 3, "activation": "gelu"},
    "alibi": {"positions": "alibi", "scaled_attention": False, "attention_bias": False},
    "learned": {"positions": "learned", "longest": 64, "tie_output": False},
    "nowhere": {"positions": "none", "residuals": False, "activation": "silu"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of a model that has learned something."""
    path = tmp_path_factory.mktemp("onnx") / "out"
    [said] = export_onnx(learned(), path)
    assert said.startswith("checked with ONNX Runtime")
    return path


def stepwise(graphs: Graphs, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The scores before each token of the target: (rows, length, vocabulary)."""
    state, found = graphs.start(source), []
    for tokens in np.concatenate([np.zeros_like(target[:, :1]), target[:, :-1]], axis=1).T:
        logits, state = graphs.step(tokens, state)
        found.append(logits)
    return np.stack(found, axis=1)


def agrees(bundle: Bundle, graphs: Graphs, longest: int) -> None:
    """Word by word with a cache, for sentences of many lengths: as our model at once and without one."""
    torch.manual_seed(2)
    sources = [torch.randint(300, 600, (length,)).tolist() for length in (1, 11, longest)]
    targets = [torch.randint(300, 600, (length,)).tolist() for length in (37, 5, 1)]
    source, target = torch.tensor(ended(sources)), torch.tensor(ended(targets))
    before = torch.cat([torch.zeros_like(target[:, :1]), target[:, :-1]], dim=1)
    with torch.inference_mode():
        expected = bundle.model.logits(bundle.model(source, before)).numpy()
    found = stepwise(graphs, source.numpy(), target.numpy())
    for row, length in enumerate(map(len, targets)):
        np.testing.assert_allclose(
            found[row, : length + 1, 1:], expected[row, : length + 1, 1:], rtol=1e-5, atol=1e-5
        )
    assert np.isneginf(found[..., 0]).all()  # padding is never written
    for row, (own, wanted) in enumerate(zip(sources, targets, strict=True)):  # alone, so without padding
        alone = stepwise(graphs, np.array(ended([own])), np.array(ended([wanted])))
        np.testing.assert_allclose(alone[0, :, 1:], found[row, : len(wanted) + 1, 1:], rtol=1e-5, atol=1e-5)


def test_the_paper(folder: Path) -> None:
    agrees(learned(), Graphs(folder), longest=300)


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant(name: str, tmp_path: Path) -> None:
    bundle = new_bundle("bpe", layers=(2, 2), heads=5, **VARIANTS[name])
    export_onnx(bundle, tmp_path / "out")
    agrees(bundle, Graphs(tmp_path / "out"), longest=40)


@pytest.mark.parametrize("name", VARIANTS)
def test_what_becomes_a_graph_is_the_model(name: str) -> None:
    """Before it is traced: without ready tables, beyond the positions that they have, and in two parts."""
    bundle = new_bundle("bpe", layers=(2, 2), heads=5, **VARIANTS[name])
    model, other = bundle.model, without_tables(bundle.model)
    longest = bundle.config.model.longest if bundle.config.model.ends else 300
    torch.manual_seed(4)
    source = torch.tensor(ended([torch.randint(300, 600, (length,)).tolist() for length in (5, longest - 1)]))
    with torch.inference_mode():
        ours, memory = model.start(source), SourceReader(other)(source)
        past = [each[:, :, :0] for each in memory]
        for tokens in (torch.tensor([0, 0]), torch.tensor([301, 302]), torch.tensor([303, 1])):
            expected, ours = model.step(tokens, ours)
            logits, past = TokenWriter(other)(tokens, source, memory, past)
            torch.testing.assert_close(logits.log_softmax(-1), expected, rtol=1e-5, atol=1e-5)


def test_the_program_of_the_readme_translates_as_we_do(folder: Path) -> None:
    [program] = re.findall(
        r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    asked = re.sub(r"for sentence in .*:", lambda _: f"for sentence in {SENTENCES!r}:", program)
    done = subprocess.run(
        [sys.executable, "-c", asked], cwd=folder, capture_output=True, text=True, check=True
    )
    ours = [each.text for each in NativeEngine(learned()).translate(SENTENCES, SearchConfig(beam=1))]
    assert done.stdout.splitlines() == ours
    assert ours[1] == PAIRS[1][1]  # it has learned something


def test_what_lies_beside_the_graphs(folder: Path) -> None:
    for name in ("encoder.onnx", "decoder.onnx"):
        graph = onnx.load(folder / name)
        onnx.checker.check_model(graph)
        assert [each.version for each in graph.opset_import if not each.domain] == [OPSET]
    settings = json.loads((folder / "generation.json").read_text(encoding="utf-8"))
    assert (settings["start"], settings["end"], settings["longest"]) == (0, 1, None)
    pieces = json.loads((folder / "target_vocabulary.json").read_text(encoding="utf-8"))
    assert tuple(pieces) == learned().tokenizer.target.vocabulary.pieces


def test_wrong_numbers_are_not_handed_over(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the graphs were of another model, the check would find it."""
    monkeypatch.setattr(
        exporting, "write_graphs", lambda _, path: shutil.copytree(folder, path, dirs_exist_ok=True)
    )
    with pytest.raises(HeedfulError, match="the exported graphs are wrong"):
        export_onnx(learned("bpe", updates=1), tmp_path / "out")


def test_every_setting_of_a_model_has_been_thought_of() -> None:
    """A new setting must be put into one of the two lists, or it is refused."""
    assert set(ModelConfig.model_fields) == {*exporting.CHOICES, *exporting.EXPRESSED}
    for name, values in exporting.CHOICES.items():
        assert set(values) <= set(get_args(ModelConfig.model_fields[name].annotation))


class Gated(ModelConfig):
    """A model of tomorrow."""

    gate: bool = False


def test_what_cannot_be_expressed_is_refused() -> None:
    config = learned().config.model
    assert why_not(config) == ""
    for change in ({"positions": "tree"}, {"encoder_attention": "linformer"}, {"family": "lstm"}):
        [(name, value)] = change.items()
        assert f"model.{name} = {value!r}" in why_not(config.model_copy(update=change))
    assert "model.gate" in why_not(Gated(**config.model_dump()))


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(exporting, "PACKAGES", ("onnx", "no_such_package"))
    with pytest.raises(HeedfulError, match="needs no_such_package") as error:
        export_onnx(learned(), tmp_path / "out")
    assert error.value.hint == "pip install 'heedful[onnx]'"
    assert not (tmp_path / "out").exists()
