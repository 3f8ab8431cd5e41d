"""Trace files: round trip, and plain safetensors."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from heedful.errors import HeedfulError
from heedful.interpret.trace import Trace, compute_trace, load_trace, save_trace, serialize_trace
from heedful.interpret.trace_schema import TraceRequest
from tests.interpret.small_models import new_model_folder

SENTENCE = "The animal didn't cross the street."


@pytest.fixture(scope="module")
def trace() -> Trace:
    return compute_trace(new_model_folder(), TraceRequest(source=SENTENCE, beam_size=2))


def test_save_trace_round_trips(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "record.safetensors"
    save_trace(trace, path, name="mine")
    loaded = load_trace(path)
    assert loaded.manifest == trace.export_manifest(name="mine")
    assert loaded.manifest["model"]["name"] == "mine"
    assert loaded.manifest["segments"] == [[SENTENCE, ""]]
    assert set(loaded.tensors) == set(trace.tensors.entries) == set(loaded.manifest["tensors"])
    for name, tensor in loaded.tensors.items():
        assert torch.equal(tensor, trace.tensors.get(name)), name
    assert [item.name for item in tmp_path.iterdir()] == [path.name]


def test_serialize_trace_is_plain_safetensors(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "record.safetensors"
    path.write_bytes(serialize_trace(trace, trace.manifest))
    with safe_open(path, "np") as file:
        assert json.loads(file.metadata()["heedful"])["request"]["source"] == SENTENCE
        weights = file.get_tensor("encoder.1.self.weights")
    expected = trace.activations.weights("encoder", 1).half().numpy()
    assert weights.shape == expected.shape
    assert (weights == expected).all()


def test_load_trace_invalid_file_is_an_error(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    with pytest.raises(HeedfulError, match="no such file"):
        load_trace(path)
    path.write_bytes(b"no tensors at all")
    with pytest.raises(HeedfulError, match="is not a trace file"):
        load_trace(path)
    save_file({"x": torch.zeros(2)}, path)
    with pytest.raises(HeedfulError, match="it has no manifest"):
        load_trace(path)
    path.write_bytes(serialize_trace(trace, {**trace.manifest, "format": 99}))
    with pytest.raises(HeedfulError, match="format 99, not 2"):
        load_trace(path)
    with pytest.raises(HeedfulError, match="cannot write"):
        save_trace(trace, tmp_path / "nowhere" / "record.safetensors")
