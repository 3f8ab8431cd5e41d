"""Checkpoints: loading restores the saved state exactly, and corruption is detected."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from heedful.data.collate import collate
from heedful.errors import HeedfulError
from heedful.model_folder import named_parameters, read_tensors
from heedful.models.config import ModelConfig
from heedful.models.transformer import Transformer
from heedful.progress import Reporter
from heedful.training.checkpoint import (
    BestWeights,
    Clock,
    CorruptCheckpointError,
    TrainerState,
    ValidationPoint,
    average_weights,
    find_latest_checkpoint,
    list_checkpoints,
    load_checkpoint,
    named_moments,
    prune_checkpoints,
    read_state,
    save_checkpoint,
)
from heedful.training.config import TrainingConfig
from heedful.training.step import new_optimizer, run_update

CONFIG = TrainingConfig(precision="float32")


def save(folder: Path, model: Transformer, optimizer: torch.optim.Optimizer, state: TrainerState) -> Path:
    return save_checkpoint(folder, lambda: named_parameters(model), lambda: named_moments(model, optimizer), state)


def new_model(seed: int, **settings: object) -> Transformer:
    torch.manual_seed(seed)
    shape = {
        "source_vocab_size": 17,
        "target_vocab_size": 17,
        "d_model": 22,
        "heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "d_ff": 13,
    }
    return Transformer(ModelConfig.from_settings({**shape, **settings}))


def train(model: Transformer, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    """Updates with dropout, each seeded by its own number, as in the trainer."""
    losses = []
    for step in steps:
        torch.manual_seed(step)
        rows = torch.randint(2, 17, (5, 7)).tolist()
        losses.append(run_update(model, optimizer, [collate(rows, rows[::-1])], CONFIG, 0.01).loss)
    return losses


def train_and_save(folder: Path, steps: int, seed: int = 1) -> tuple[Transformer, torch.optim.Optimizer, Path]:
    model = new_model(seed)
    optimizer = new_optimizer(model, CONFIG)
    train(model, optimizer, range(1, steps + 1))
    return model, optimizer, save(folder, model, optimizer, TrainerState(update=steps))


@pytest.mark.parametrize(
    "settings", [{}, {"tie_output_embeddings": False}, {"share_embeddings": False, "positions": "learned"}]
)
def test_load_checkpoint_resumes_bit_exactly(tmp_path: Path, settings: dict[str, object]) -> None:
    model = new_model(1, **settings)
    optimizer = new_optimizer(model, CONFIG)
    train(model, optimizer, range(1, 4))
    path = save(tmp_path, model, optimizer, TrainerState(update=3))
    losses = train(model, optimizer, range(4, 7))

    other = new_model(2, **settings)
    other_optimizer = new_optimizer(other, CONFIG)
    assert load_checkpoint(path, other, other_optimizer).update == 3
    assert train(other, other_optimizer, range(4, 7)) == losses
    for (name, parameter), (_, other_parameter) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(parameter, other_parameter), name
        for key, tensor in optimizer.state[parameter].items():
            assert torch.equal(tensor, other_optimizer.state[other_parameter][key]), (name, key)


def test_load_checkpoint_replaces_the_optimizer_state(tmp_path: Path) -> None:
    model, optimizer, path = train_and_save(tmp_path, 2)
    losses = train(model, optimizer, range(3, 6))
    load_checkpoint(path, model, optimizer)
    assert train(model, optimizer, range(3, 6)) == losses


def test_load_checkpoint_before_the_first_update_resumes_bit_exactly(tmp_path: Path) -> None:
    model = new_model(1)
    optimizer = new_optimizer(model, CONFIG)
    path = save(tmp_path, model, optimizer, TrainerState())
    losses = train(model, optimizer, range(1, 3))
    other = new_model(2)
    other_optimizer = new_optimizer(other, CONFIG)
    load_checkpoint(path, other, other_optimizer)
    assert train(other, other_optimizer, range(1, 3)) == losses


def test_read_state_returns_the_saved_state(tmp_path: Path) -> None:
    model = new_model(1)
    state = TrainerState(
        update=17,
        tokens=9973,
        best=BestWeights(loss=1.25, update=13, validations_since_best=2),
        clock=Clock(training_seconds=3.5),
        validations=[ValidationPoint(13, 0.5, 27.5)],
    )
    path = save(tmp_path, model, new_optimizer(model, CONFIG), state)
    assert path.name == "000000017"
    assert read_state(path) == state
    fresh = save(tmp_path, model, new_optimizer(model, CONFIG), TrainerState(update=1))
    assert math.isinf(read_state(fresh).best.loss)


def test_save_checkpoint_twice_replaces_the_first(tmp_path: Path) -> None:
    _, _, path = train_and_save(tmp_path, 2, seed=1)
    before = read_tensors(path / "weights.safetensors")["encoder.embedding.table.weight"]
    model, _, second_path = train_and_save(tmp_path, 2, seed=3)
    after = read_tensors(second_path / "weights.safetensors")["encoder.embedding.table.weight"]
    assert second_path == path
    assert torch.equal(after, model.output.weight.detach())
    assert not torch.equal(before, after)
    assert [item.name for item in tmp_path.iterdir()] == ["000000002"]


def test_list_checkpoints_ignores_partial_ones(tmp_path: Path) -> None:
    for name in ("000000010", "000000002", "000000007.partial", "notes"):
        (tmp_path / name).mkdir()
    assert [path.name for path in list_checkpoints(tmp_path)] == ["000000002", "000000010"]
    assert list_checkpoints(tmp_path / "nowhere") == []


def test_save_checkpoint_failure_leaves_nothing(tmp_path: Path) -> None:
    """A state that is not JSON stands for a disk that fills up after the weights were written."""
    model = new_model(1)
    unserializable = TrainerState(update=3)
    unserializable.tokens = {1, 2}  # type: ignore[assignment]
    with pytest.raises(TypeError):
        save(tmp_path, model, new_optimizer(model, CONFIG), unserializable)
    assert list(tmp_path.iterdir()) == []


def test_prune_checkpoints_keeps_the_listed_updates(tmp_path: Path) -> None:
    for update_number in (1, 2, 3, 5, 8):
        (tmp_path / f"{update_number:09}").mkdir()
        (tmp_path / f"{update_number:09}" / "trainer_state.json").write_text("{}")
    (tmp_path / "000000004.partial").mkdir()
    prune_checkpoints(tmp_path, {2, 5, 8, 99})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000002", "000000005", "000000008"]
    assert all((path / "trainer_state.json").is_file() for path in list_checkpoints(tmp_path))


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null", '{"update": 3, "unknown": 1}', "7"])
def test_read_state_corrupt_is_an_error(tmp_path: Path, text: str) -> None:
    _, _, path = train_and_save(tmp_path, 1)
    (path / "trainer_state.json").write_text(text)
    with pytest.raises(HeedfulError, match="is corrupt") as error:
        read_state(path)
    assert str(path) in error.value.hint


def test_read_state_missing_is_an_error(tmp_path: Path) -> None:
    _, _, path = train_and_save(tmp_path, 1)
    (path / "trainer_state.json").unlink()
    with pytest.raises(HeedfulError, match="is corrupt"):
        read_state(path)


NAMES = ("weights.safetensors", "optimizer.safetensors", "trainer_state.json", "checksums.json")


def truncate(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flip_bit(data: bytes) -> bytes:
    """Flip one bit in the middle: of a tensor, if the file has any."""
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 4]) + data[len(data) // 2 + 1 :]


def empty(data: bytes) -> bytes:
    return b""


def zero(data: bytes) -> bytes:
    """What some file systems leave after a power cut: the right size, all zeros."""
    return bytes(len(data))


@pytest.mark.parametrize("corrupt", [truncate, flip_bit, empty, zero])
@pytest.mark.parametrize("name", NAMES)
def test_find_latest_checkpoint_skips_a_corrupt_one(
    tmp_path: Path, name: str, corrupt: Callable[[bytes], bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    train_and_save(tmp_path, 1)
    model, optimizer, path = train_and_save(tmp_path, 2)
    (path / name).write_bytes(corrupt((path / name).read_bytes()))
    with pytest.raises(CorruptCheckpointError, match=r"000000002 is corrupt"):
        load_checkpoint(path, model, optimizer)
    assert find_latest_checkpoint(tmp_path, Reporter(quiet=True)) == tmp_path / "000000001"
    assert "ignoring corrupt checkpoint" in capsys.readouterr().err
    assert [item.name for item in list_checkpoints(tmp_path)] == ["000000001"]
    assert (tmp_path / "000000002.corrupt" / name).is_file()


@pytest.mark.parametrize("name", NAMES)
def test_load_checkpoint_missing_file_is_an_error(tmp_path: Path, name: str) -> None:
    model, optimizer, path = train_and_save(tmp_path, 1)
    (path / name).unlink()
    with pytest.raises(CorruptCheckpointError, match=f"{name} is missing"):
        load_checkpoint(path, model, optimizer)


def test_find_latest_checkpoint_all_corrupt_is_an_error(tmp_path: Path) -> None:
    """Nothing is renamed: otherwise the next attempt would silently start from scratch."""
    for steps in (1, 2):
        _, _, path = train_and_save(tmp_path, steps)
        (path / "trainer_state.json").write_text("{")
    for _ in range(2):
        with pytest.raises(HeedfulError, match=r"all checkpoints in .* are corrupt .*000000002.*000000001"):
            find_latest_checkpoint(tmp_path, Reporter(quiet=True))
    assert len(list_checkpoints(tmp_path)) == 2
    assert find_latest_checkpoint(tmp_path / "nowhere", Reporter(quiet=True)) is None


def test_prune_checkpoints_deletes_quarantined_ones_that_the_run_has_passed(tmp_path: Path) -> None:
    for name in ("000000002", "000000004.corrupt"):
        (tmp_path / name).mkdir()
    prune_checkpoints(tmp_path, {2})
    assert (tmp_path / "000000004.corrupt").is_dir()
    (tmp_path / "000000004").mkdir()
    prune_checkpoints(tmp_path, {2, 4})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000002", "000000004"]


def test_load_checkpoint_of_another_shape_is_an_error(tmp_path: Path) -> None:
    _, _, path = train_and_save(tmp_path, 1)
    other = new_model(1, d_ff=11)
    with pytest.raises(HeedfulError, match="has shape"):
        load_checkpoint(path, other, new_optimizer(other, CONFIG))


def test_checkpoint_files_and_plain_json_state(tmp_path: Path) -> None:
    _, _, path = train_and_save(tmp_path, 3)
    assert json.loads((path / "trainer_state.json").read_text())["update"] == 3
    assert {item.name for item in path.iterdir()} == {
        "weights.safetensors",
        "optimizer.safetensors",
        "trainer_state.json",
        "checksums.json",
    }


def test_average_weights_is_the_mean(tmp_path: Path) -> None:
    model = new_model(1)
    optimizer = new_optimizer(model, CONFIG)
    paths, history = [], []
    for step in (1, 2, 3):
        train(model, optimizer, range(step, step + 1))
        paths.append(save(tmp_path, model, optimizer, TrainerState(update=step)))
        history.append({name: tensor.detach().double() for name, tensor in model.named_parameters()})
    averaged = average_weights(paths)
    assert averaged.keys() == history[0].keys()
    for name, tensor in averaged.items():
        expected = (history[0][name] + history[1][name] + history[2][name]) / 3
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor.double(), expected, rtol=1e-7, atol=1e-9)
        assert not torch.equal(history[0][name], history[2][name])


def test_average_weights_of_one_checkpoint_is_identity(tmp_path: Path) -> None:
    model, _, path = train_and_save(tmp_path, 2)
    for name, tensor in average_weights([path]).items():
        assert torch.equal(tensor, dict(model.named_parameters())[name].detach())
