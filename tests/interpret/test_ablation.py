"""Head ablation, and snapshots of earlier updates."""

from pathlib import Path

import numpy as np
import pytest
import torch

from heedful.errors import HeedfulError
from heedful.interpret.activations import (
    ATTENTION_KINDS,
    AttentionKind,
    attention_name,
    compute_activations,
    get_sublayer,
)
from heedful.interpret.attribution import HeadIndex, ablate_heads, parse_head
from heedful.interpret.trace import compute_trace
from heedful.interpret.trace_schema import TraceRequest
from heedful.model_folder import ModelFolder, named_parameters, write_tensors
from heedful.training.checkpoint import list_saved_weights, load_snapshot
from tests.interpret.small_models import new_model_folder

SOURCE = "The animal didn't cross the street."
TARGET = "L'animal n'a pas traversé la rue."


def clone_weights(model_folder: ModelFolder) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model_folder.translation_model.state_dict().items()}


@pytest.mark.parametrize("kind", ATTENTION_KINDS)
@pytest.mark.parametrize("heads", [(0,), (3,), (1, 2)])
def test_ablate_heads_zeroes_rows_of_w_o(kind: AttentionKind, heads: tuple[int, ...]) -> None:
    """Recomputed with NumPy from the head outputs: Concat(heads) W^O, with zero rows for those heads."""
    model_folder, layer = new_model_folder(), 1
    activations = compute_activations(
        ablate_heads(model_folder, [HeadIndex(kind, layer, head) for head in heads]), SOURCE, TARGET
    )
    name, channels = attention_name(kind, layer), 5  # width 20, 4 heads
    concatenated = np.concatenate(list(activations.tensors[f"{name}.heads"].double().numpy()), axis=-1)
    module = get_sublayer(model_folder.translation_model, kind, layer)[0].output
    matrix = module.weight.detach().double().numpy().T.copy()
    for head in heads:
        matrix[head * channels : (head + 1) * channels] = 0
    expected = concatenated @ matrix + module.bias.detach().double().numpy()
    np.testing.assert_allclose(activations.tensors[f"{name}.output"].numpy(), expected, atol=1e-5)
    unablated = concatenated @ module.weight.detach().double().numpy().T + module.bias.detach().double().numpy()
    assert np.abs(expected - unablated).max() > 1e-2  # the head contributes


def test_ablate_heads_changes_only_later_tensors() -> None:
    model_folder = new_model_folder()
    plain = compute_activations(model_folder, SOURCE, TARGET).tensors
    ablated = compute_activations(ablate_heads(model_folder, [HeadIndex("encoder", 1, 2)]), SOURCE, TARGET).tensors
    for name in ("encoder.embedding", "encoder.0.self.weights", "encoder.1.self.weights", "decoder.embedding"):
        assert ablated[name].equal(plain[name]), name
    for name in ("encoder.1.self.output", "encoder.2.self.weights", "decoder.0.cross.weights", "logits"):
        assert not ablated[name].equal(plain[name]), name


def test_ablate_heads_leaves_original_model_unchanged() -> None:
    """Bit-exactly; the ablated model shares all weights but W^O."""
    model_folder = new_model_folder()
    before, plain = clone_weights(model_folder), compute_activations(model_folder, SOURCE, TARGET).tensors["logits"]
    other = ablate_heads(model_folder, [HeadIndex("cross", 0, 1), HeadIndex("cross", 0, 1), HeadIndex("decoder", 1, 0)])
    compute_trace(model_folder, TraceRequest(source=SOURCE, ablated_heads=("encoder.0.0",), beam_size=2))
    after = clone_weights(model_folder)
    assert before.keys() == after.keys()
    assert all(after[name].equal(value) for name, value in before.items())
    assert compute_activations(model_folder, SOURCE, TARGET).tensors["logits"].equal(plain)
    parameter_ids = {id(parameter) for parameter in model_folder.translation_model.parameters()}
    assert sum(id(parameter) not in parameter_ids for parameter in other.translation_model.parameters()) == 2


@pytest.mark.parametrize("name", ["encoder.0.3", "decoder.1.0", "cross.12.7"])
def test_parse_head_round_trips_name(name: str) -> None:
    assert parse_head(name).name == name


@pytest.mark.parametrize(
    "name", ["", "cross", "cross.1", "cross.1.", "other.0.0", "cross.-1.0", "cross.1.0.0", f"cross.{'1' * 5000}.0"]
)
def test_parse_head_invalid_name_is_an_error(name: str) -> None:
    with pytest.raises(HeedfulError, match="is not a valid head"):
        parse_head(name)


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        (HeadIndex("encoder", 3, 0), "layer 4 does not exist"),
        (HeadIndex("cross", 2, 0), "layer 3 does not exist"),
        (HeadIndex("cross", 0, 4), "head 5 does not exist"),
    ],
)
def test_ablate_heads_missing_head_is_an_error(head: HeadIndex, problem: str) -> None:
    with pytest.raises(HeedfulError, match=problem):
        ablate_heads(new_model_folder(), [head])


# ---- snapshots


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder with a checkpoint, and snapshots of other weights."""
    for update, path in (
        (200, tmp_path / "training" / "checkpoints" / "000000200" / "weights.safetensors"),
        (7, tmp_path / "training" / "snapshots" / "000000007.safetensors"),
        (30, tmp_path / "training" / "snapshots" / "000000030.safetensors"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {
            name: value + update for name, value in named_parameters(new_model_folder().translation_model).items()
        }
        write_tensors(path, tensors)
    (tmp_path / "training" / "snapshots" / "notes.safetensors").touch()
    return tmp_path


def test_load_snapshot_loads_weights_of_update(folder: Path) -> None:
    model_folder = new_model_folder()
    before = clone_weights(model_folder)
    assert list(list_saved_weights(folder)) == [7, 30, 200]
    for update in (7, 200):
        snapshot = load_snapshot(model_folder, folder, update)
        assert not snapshot.translation_model.training
        expected = named_parameters(model_folder.translation_model)
        for name, value in named_parameters(snapshot.translation_model).items():
            torch.testing.assert_close(value, expected[name] + update, rtol=0, atol=0)
    assert all(clone_weights(model_folder)[name].equal(value) for name, value in before.items())


def test_load_snapshot_missing_update_is_an_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match=r"no checkpoint of update 8(?s:.*)7, 30, 200"):
        load_snapshot(new_model_folder(), folder, 8)
    with pytest.raises(HeedfulError, match="available: none"):
        load_snapshot(new_model_folder(), tmp_path / "elsewhere", 8)


def test_load_snapshot_unusable_weights_are_an_error(folder: Path) -> None:
    model_folder = new_model_folder()
    tensors = named_parameters(model_folder.translation_model)
    name = next(iter(tensors))
    path = list_saved_weights(folder)[30]
    write_tensors(path, {**tensors, name: torch.full_like(tensors[name], torch.nan)})
    with pytest.raises(HeedfulError, match="training had diverged"):
        load_snapshot(model_folder, folder, 30)
    with pytest.raises(HeedfulError, match="has shape"):
        load_snapshot(new_model_folder(d_model=24), folder, 7)
    path.write_bytes(b"cut")
    with pytest.raises(HeedfulError, match="corrupt or truncated"):
        load_snapshot(model_folder, folder, 30)
