"""Heads switched off, and weights of the past: exactly what is asked, and the model itself stays as it is."""

from pathlib import Path

import numpy as np
import pytest
import torch

from heedful.bundle import Bundle, named_parameters, write_tensors
from heedful.errors import HeedfulError
from heedful.inspection.ablation import Head, attention_module, read_head, without_heads
from heedful.inspection.asked import Asked
from heedful.inspection.record import record
from heedful.inspection.snapshots import at_snapshot, snapshots
from heedful.inspection.trace import KINDS, Kind, place, trace
from tests.inspection.models import new_bundle

SOURCE = "The animal didn't cross the street."
TARGET = "L'animal n'a pas traversé la rue."


def weights_of(bundle: Bundle) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in bundle.model.state_dict().items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("off", [(0,), (3,), (1, 2)])
def test_a_head_that_is_off_is_zero_rows_of_w_o(kind: Kind, off: tuple[int, ...]) -> None:
    """Recomputed with NumPy from what each head gives: Concat(heads) W^O, rows of those heads zero."""
    bundle, layer = new_bundle(), 1
    seen = trace(without_heads(bundle, [Head(kind, layer, head) for head in off]), SOURCE, TARGET)
    name, channels = place(kind, layer), 5  # width 20, 4 heads
    joined = np.concatenate(list(seen.tensors[f"{name}.heads"].double().numpy()), axis=-1)
    module = attention_module(bundle.model, kind, layer).output
    matrix = module.weight.detach().double().numpy().T.copy()
    for head in off:
        matrix[head * channels : (head + 1) * channels] = 0
    expected = joined @ matrix + module.bias.detach().double().numpy()
    np.testing.assert_allclose(seen.tensors[f"{name}.output"].numpy(), expected, atol=1e-5)
    whole = joined @ module.weight.detach().double().numpy().T + module.bias.detach().double().numpy()
    assert np.abs(expected - whole).max() > 1e-2  # the head did say something


def test_what_comes_before_hears_no_difference_and_what_comes_after_does() -> None:
    bundle = new_bundle()
    plain = trace(bundle, SOURCE, TARGET).tensors
    off = trace(without_heads(bundle, [Head("encoder", 1, 2)]), SOURCE, TARGET).tensors
    for name in (
        "encoder.embedding",
        "encoder.0.self.weights",
        "encoder.1.self.weights",
        "decoder.embedding",
    ):
        assert off[name].equal(plain[name]), name
    for name in ("encoder.1.self.output", "encoder.2.self.weights", "decoder.0.cross.weights", "logits"):
        assert not off[name].equal(plain[name]), name


def test_the_model_itself_stays_as_it_is() -> None:
    """To the bit, and it shares all weights but W^O with the others."""
    bundle = new_bundle()
    before, plain = weights_of(bundle), trace(bundle, SOURCE, TARGET).tensors["logits"]
    other = without_heads(bundle, [Head("cross", 0, 1), Head("cross", 0, 1), Head("decoder", 1, 0)])
    record(bundle, Asked(source=SOURCE, off=("encoder.0.0",), beam=2))
    after = weights_of(bundle)
    assert before.keys() == after.keys()
    assert all(after[name].equal(value) for name, value in before.items())
    assert trace(bundle, SOURCE, TARGET).tensors["logits"].equal(plain)
    own = {id(parameter) for parameter in bundle.model.parameters()}
    assert sum(id(parameter) not in own for parameter in other.model.parameters()) == 2


@pytest.mark.parametrize("name", ["encoder.0.3", "decoder.1.0", "cross.12.7"])
def test_names_of_heads(name: str) -> None:
    assert read_head(name).name == name


@pytest.mark.parametrize(
    "name",
    ["", "cross", "cross.1", "cross.1.", "other.0.0", "cross.-1.0", "cross.1.0.0", f"cross.{'1' * 5000}.0"],
)
def test_what_is_no_head(name: str) -> None:
    with pytest.raises(HeedfulError, match="is not a head"):
        read_head(name)


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        (Head("encoder", 3, 0), "no layer 4"),
        (Head("cross", 2, 0), "no layer 3"),
        (Head("cross", 0, 4), "no head 5"),
    ],
)
def test_heads_that_the_model_does_not_have(head: Head, problem: str) -> None:
    with pytest.raises(HeedfulError, match=problem):
        without_heads(new_bundle(), [head])


# ---- weights of the past


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder with a checkpoint, and snapshots of other weights."""
    for update, path in (
        (200, tmp_path / "training" / "checkpoints" / "000000200" / "weights.safetensors"),
        (7, tmp_path / "training" / "snapshots" / "000000007.safetensors"),
        (30, tmp_path / "training" / "snapshots" / "000000030.safetensors"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {name: value + update for name, value in named_parameters(new_bundle().model).items()}
        write_tensors(path, tensors)
    (tmp_path / "training" / "snapshots" / "notes.safetensors").touch()
    return tmp_path


def test_the_weights_of_an_update(folder: Path) -> None:
    bundle = new_bundle()
    before = weights_of(bundle)
    assert list(snapshots(folder)) == [7, 30, 200]
    for update in (7, 200):
        then = at_snapshot(bundle, folder, update)
        assert not then.model.training
        expected = named_parameters(bundle.model)
        for name, value in named_parameters(then.model).items():
            torch.testing.assert_close(value, expected[name] + update, rtol=0, atol=0)
    assert all(weights_of(bundle)[name].equal(value) for name, value in before.items())


def test_an_update_that_was_not_kept(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match=r"no checkpoint of update 8(?s:.*)7, 30, 200"):
        at_snapshot(new_bundle(), folder, 8)
    with pytest.raises(HeedfulError, match="kept are: none"):
        at_snapshot(new_bundle(), tmp_path / "elsewhere", 8)


def test_weights_that_cannot_be_looked_at(folder: Path) -> None:
    bundle = new_bundle()
    tensors = named_parameters(bundle.model)
    name = next(iter(tensors))
    path = snapshots(folder)[30]
    write_tensors(path, {**tensors, name: torch.full_like(tensors[name], torch.nan)})
    with pytest.raises(HeedfulError, match="training had diverged"):
        at_snapshot(bundle, folder, 30)
    with pytest.raises(HeedfulError, match="has shape"):
        at_snapshot(new_bundle(width=24), folder, 7)
    path.write_bytes(b"cut")
    with pytest.raises(HeedfulError, match="damaged or cut short"):
        at_snapshot(bundle, folder, 30)
