"""Checkpoints: what was saved comes back exactly, and what is broken is said to be."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from heedful.bundle import read_tensors
from heedful.errors import HeedfulError
from heedful.model.config import ModelConfig
from heedful.model.transformer import Transformer
from heedful.progress import Reporter
from heedful.training.batch import new_batch
from heedful.training.checkpoint import (
    DamagedError,
    TrainingState,
    averaged_weights,
    checkpoints,
    load_checkpoint,
    newest_whole,
    prune,
    read_state,
    save_checkpoint,
)
from heedful.training.config import TrainingConfig
from heedful.training.update import new_optimizer, update

CONFIG = TrainingConfig(precision="float32")


def new_model(seed: int, **settings: object) -> Transformer:
    torch.manual_seed(seed)
    shape = {
        "source_vocabulary": 17,
        "target_vocabulary": 17,
        "width": 22,
        "heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "feed_forward_width": 13,
    }
    return Transformer(ModelConfig.checked({**shape, **settings}))


def train(model: Transformer, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    """Updates with dropout, the random numbers of each by its own number, as in the loop."""
    losses = []
    for step in steps:
        torch.manual_seed(step)
        rows = torch.randint(2, 17, (5, 7)).tolist()
        losses.append(update(model, optimizer, [new_batch(rows, rows[::-1])], CONFIG, 0.01))
    return losses


def trained(folder: Path, steps: int, seed: int = 1) -> tuple[Transformer, torch.optim.Optimizer, Path]:
    model = new_model(seed)
    optimizer = new_optimizer(model, CONFIG)
    train(model, optimizer, range(1, steps + 1))
    return model, optimizer, save_checkpoint(folder, model, optimizer, TrainingState(update=steps))


@pytest.mark.parametrize("settings", [{}, {"tie_output": False}, {"joint": False, "positions": "learned"}])
def test_going_on_is_as_if_never_interrupted(tmp_path: Path, settings: dict[str, object]) -> None:
    model = new_model(1, **settings)
    optimizer = new_optimizer(model, CONFIG)
    train(model, optimizer, range(1, 4))
    path = save_checkpoint(tmp_path, model, optimizer, TrainingState(update=3))
    losses = train(model, optimizer, range(4, 7))

    other = new_model(2, **settings)
    again = new_optimizer(other, CONFIG)
    assert load_checkpoint(path, other, again).update == 3
    assert train(other, again, range(4, 7)) == losses
    for (name, ours), (_, theirs) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name
        for kind, moment in optimizer.state[ours].items():
            assert torch.equal(moment, again.state[theirs][kind]), (name, kind)


def test_loading_takes_the_place_of_what_the_optimizer_knew(tmp_path: Path) -> None:
    model, optimizer, path = trained(tmp_path, 2)
    losses = train(model, optimizer, range(3, 6))
    load_checkpoint(path, model, optimizer)
    assert train(model, optimizer, range(3, 6)) == losses


def test_a_checkpoint_before_the_first_update(tmp_path: Path) -> None:
    model = new_model(1)
    optimizer = new_optimizer(model, CONFIG)
    path = save_checkpoint(tmp_path, model, optimizer, TrainingState())
    losses = train(model, optimizer, range(1, 3))
    other = new_model(2)
    again = new_optimizer(other, CONFIG)
    load_checkpoint(path, other, again)
    assert train(other, again, range(1, 3)) == losses


def test_state_comes_back(tmp_path: Path) -> None:
    model = new_model(1)
    state = TrainingState(update=17, best_loss=1.25, best_update=13, stale=2, tokens=9973, seconds=3.5)
    path = save_checkpoint(tmp_path, model, new_optimizer(model, CONFIG), state)
    assert path.name == "000000017"
    assert read_state(path) == state
    fresh = save_checkpoint(tmp_path, model, new_optimizer(model, CONFIG), TrainingState(update=1))
    assert math.isinf(read_state(fresh).best_loss)


def test_saving_again_replaces(tmp_path: Path) -> None:
    _, _, path = trained(tmp_path, 2, seed=1)
    before = read_tensors(path / "weights.safetensors")["encoder.embedding.table.weight"]
    model, _, again = trained(tmp_path, 2, seed=3)
    after = read_tensors(again / "weights.safetensors")["encoder.embedding.table.weight"]
    assert again == path
    assert torch.equal(after, model.output.weight.detach())
    assert not torch.equal(before, after)
    assert [each.name for each in tmp_path.iterdir()] == ["000000002"]


def test_only_whole_checkpoints_count(tmp_path: Path) -> None:
    for name in ("000000010", "000000002", "000000007.partial", "notes"):
        (tmp_path / name).mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == ["000000002", "000000010"]
    assert checkpoints(tmp_path / "nowhere") == []


def test_a_failed_save_leaves_nothing(tmp_path: Path) -> None:
    """A state that is no JSON stands for the disk that fills up after the weights were written."""
    model = new_model(1)
    broken = TrainingState(update=3, tokens={1, 2})  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        save_checkpoint(tmp_path, model, new_optimizer(model, CONFIG), broken)
    assert list(tmp_path.iterdir()) == []


def test_prune_keeps_the_right_ones(tmp_path: Path) -> None:
    for update_number in (1, 2, 3, 5, 8):
        (tmp_path / f"{update_number:09}").mkdir()
        (tmp_path / f"{update_number:09}" / "state.json").write_text("{}")
    (tmp_path / "000000004.partial").mkdir()
    prune(tmp_path, {2, 5, 8, 99})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000002", "000000005", "000000008"]
    assert all((path / "state.json").is_file() for path in checkpoints(tmp_path))


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null", '{"update": 3, "unknown": 1}', "7"])
def test_a_damaged_state_is_said_to_be(tmp_path: Path, text: str) -> None:
    _, _, path = trained(tmp_path, 1)
    (path / "state.json").write_text(text)
    with pytest.raises(HeedfulError, match="is damaged") as caught:
        read_state(path)
    assert str(path) in caught.value.hint


def test_a_missing_state_is_said_to_be(tmp_path: Path) -> None:
    _, _, path = trained(tmp_path, 1)
    (path / "state.json").unlink()
    with pytest.raises(HeedfulError, match="is damaged"):
        read_state(path)


NAMES = ("weights.safetensors", "optimizer.safetensors", "state.json", "checksums.json")


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flipped(data: bytes) -> bytes:
    """One bit is another, in the middle: of the numbers, if the file has any."""
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 4]) + data[len(data) // 2 + 1 :]


def emptied(data: bytes) -> bytes:
    return b""


def zeroed(data: bytes) -> bytes:
    """What some file systems leave after a power cut: the right size, and nothing in it."""
    return bytes(len(data))


@pytest.mark.parametrize("damage", [cut, flipped, emptied, zeroed])
@pytest.mark.parametrize("name", NAMES)
def test_damage_is_found_and_the_one_before_is_used(
    tmp_path: Path, name: str, damage: Callable[[bytes], bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path, 1)
    model, optimizer, path = trained(tmp_path, 2)
    (path / name).write_bytes(damage((path / name).read_bytes()))
    with pytest.raises(DamagedError, match=r"000000002 is damaged"):
        load_checkpoint(path, model, optimizer)
    assert newest_whole(tmp_path, Reporter(quiet=True)) == tmp_path / "000000001"
    assert "000000002 is damaged" in capsys.readouterr().err
    assert [each.name for each in checkpoints(tmp_path)] == ["000000001"]
    assert (tmp_path / "000000002.damaged" / name).is_file()


@pytest.mark.parametrize("name", NAMES[:3])
def test_a_missing_file_is_damage(tmp_path: Path, name: str) -> None:
    model, optimizer, path = trained(tmp_path, 1)
    (path / name).unlink()
    with pytest.raises(DamagedError, match=f"has no {name}"):
        load_checkpoint(path, model, optimizer)


@pytest.mark.parametrize("name", NAMES[:2])
def test_an_older_heedful_wrote_no_checksums(tmp_path: Path, name: str) -> None:
    model, optimizer, path = trained(tmp_path, 1)
    (path / "checksums.json").unlink()
    assert load_checkpoint(path, model, optimizer).update == 1
    (path / name).write_bytes(cut((path / name).read_bytes()))
    with pytest.raises(DamagedError, match="cut short"):
        load_checkpoint(path, model, optimizer)


def test_none_is_whole(tmp_path: Path) -> None:
    """An error, and nothing is renamed: else the next try would begin anew without a word."""
    for steps in (1, 2):
        _, _, path = trained(tmp_path, steps)
        (path / "state.json").write_text("{")
    for _ in range(2):
        with pytest.raises(HeedfulError, match=r"no checkpoint in .* is whole .*000000002.*000000001"):
            newest_whole(tmp_path, Reporter(quiet=True))
    assert len(checkpoints(tmp_path)) == 2
    assert newest_whole(tmp_path / "nowhere", Reporter(quiet=True)) is None


def test_a_damaged_one_goes_when_the_run_has_passed_it(tmp_path: Path) -> None:
    for name in ("000000002", "000000004.damaged"):
        (tmp_path / name).mkdir()
    prune(tmp_path, {2})
    assert (tmp_path / "000000004.damaged").is_dir()
    (tmp_path / "000000004").mkdir()
    prune(tmp_path, {2, 4})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000002", "000000004"]


def test_another_models_checkpoint_is_refused(tmp_path: Path) -> None:
    _, _, path = trained(tmp_path, 1)
    other = new_model(1, feed_forward_width=11)
    with pytest.raises(HeedfulError, match="has shape"):
        load_checkpoint(path, other, new_optimizer(other, CONFIG))


def test_state_is_plain_json(tmp_path: Path) -> None:
    _, _, path = trained(tmp_path, 3)
    assert json.loads((path / "state.json").read_text())["update"] == 3
    assert {each.name for each in path.iterdir()} == {
        "weights.safetensors",
        "optimizer.safetensors",
        "state.json",
        "checksums.json",
    }


# ---- averaging


def test_averaged_weights_are_the_mean(tmp_path: Path) -> None:
    model = new_model(1)
    optimizer = new_optimizer(model, CONFIG)
    paths, seen = [], []
    for step in (1, 2, 3):
        train(model, optimizer, range(step, step + 1))
        paths.append(save_checkpoint(tmp_path, model, optimizer, TrainingState(update=step)))
        seen.append({name: tensor.detach().double() for name, tensor in model.named_parameters()})
    found = averaged_weights(paths)
    assert found.keys() == seen[0].keys()
    for name, tensor in found.items():
        expected = (seen[0][name] + seen[1][name] + seen[2][name]) / 3
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor.double(), expected, rtol=1e-7, atol=1e-9)
        assert not torch.equal(seen[0][name], seen[2][name])


def test_the_average_of_one_is_itself(tmp_path: Path) -> None:
    model, _, path = trained(tmp_path, 2)
    for name, tensor in averaged_weights([path]).items():
        assert torch.equal(tensor, dict(model.named_parameters())[name].detach())
