"""A record in one file: what goes in comes out, and Python's own safetensors opens it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from heedful.errors import HeedfulError
from heedful.inspection.asked import Asked
from heedful.inspection.record import Record, record
from heedful.inspection.record_file import load_record, manifest_alone, record_bytes, save_record
from tests.inspection.models import new_bundle

SENTENCE = "The animal didn't cross the street."


@pytest.fixture(scope="module")
def made() -> Record:
    return record(new_bundle(), Asked(source=SENTENCE, beam=2))


def test_round_trip(made: Record, tmp_path: Path) -> None:
    path = tmp_path / "record.safetensors"
    save_record(made, path, name="mine")
    found = load_record(path)
    assert found.manifest == json.loads(json.dumps(manifest_alone(made, name="mine")))
    assert found.manifest["model"]["name"] == "mine"
    assert found.manifest["segments"] == [[SENTENCE, ""]]
    assert set(found.tensors) == set(made.tensors.entries) == set(found.manifest["tensors"])
    for name, tensor in found.tensors.items():
        assert torch.equal(tensor, made.tensors.get(name)), name
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_any_program_opens_it(made: Record, tmp_path: Path) -> None:
    path = tmp_path / "record.safetensors"
    path.write_bytes(record_bytes(made, manifest_alone(made), ["encoder.1.self.weights"]))
    with safe_open(path, "np") as file:
        assert json.loads(file.metadata()["heedful"])["asked"]["source"] == SENTENCE
        weights = file.get_tensor("encoder.1.self.weights")
    expected = made.seen.weights("encoder", 1).half().numpy()
    assert weights.shape == expected.shape
    assert (weights == expected).all()


def test_what_is_no_record(made: Record, tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    with pytest.raises(HeedfulError, match="no such file"):
        load_record(path)
    path.write_bytes(b"no tensors at all")
    with pytest.raises(HeedfulError, match="is no record"):
        load_record(path)
    save_file({"x": torch.zeros(2)}, path)
    with pytest.raises(HeedfulError, match="it has no manifest"):
        load_record(path)
    path.write_bytes(record_bytes(made, {**manifest_alone(made), "format": 99}, []))
    with pytest.raises(HeedfulError, match="format 99, not 1"):
        load_record(path)
    with pytest.raises(HeedfulError, match="cannot write"):
        save_record(made, tmp_path / "nowhere" / "record.safetensors")
