"""Snapshots: weights at some updates, which do not affect the run and are kept after it."""

import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from heedful.files import write_json
from heedful.model_folder import ModelFolder, read_tensors
from heedful.training.checkpoint import list_saved_weights, load_snapshot, snapshot_updates
from tests.conftest import quick_train_args, run_heedful

QUICK_UPDATES = snapshot_updates(24, 12)


def read_snapshots(folder: Path) -> dict[str, bytes]:
    """The snapshots of a model folder, byte by byte."""
    return {path.name: path.read_bytes() for path in (folder / "training" / "snapshots").iterdir()}


@pytest.mark.parametrize(("total", "count"), [(1535, 12), (100_000, 12), (24, 12), (3, 12), (1000, 2)])
def test_snapshot_updates_are_denser_early(total: int, count: int) -> None:
    updates = sorted(snapshot_updates(total, count))
    assert (updates[0], updates[-1]) == (0, total)
    assert len(updates) <= count
    gaps = [after - before for before, after in pairwise(updates)]
    assert gaps == sorted(gaps)


def test_snapshot_updates_of_none_and_one() -> None:
    assert snapshot_updates(1000, 0) == frozenset()
    assert snapshot_updates(1000, 1) == {0}


def test_snapshots_from_first_to_last_update(quick_model: Path) -> None:
    training = quick_model / "training"
    snapshots = {int(path.stem): path for path in (training / "snapshots").iterdir()}
    assert snapshots.keys() == QUICK_UPDATES
    checkpoint = training / "checkpoints" / f"{24:09}" / "weights.safetensors"
    assert snapshots[24].read_bytes() == checkpoint.read_bytes()
    assert len({path.read_bytes() for path in snapshots.values()}) == len(snapshots)
    assert list_saved_weights(quick_model).keys() > QUICK_UPDATES  # beside the checkpoints


def test_load_snapshot_restores_the_weights(quick_model: Path) -> None:
    model_folder = ModelFolder.load(quick_model)
    first = load_snapshot(model_folder, quick_model, 0)
    stored = read_tensors(quick_model / "training" / "snapshots" / "000000000.safetensors")
    for name, parameter in first.translation_model.named_parameters():
        assert parameter.equal(stored[name]), name
    assert not first.translation_model.output.weight.equal(model_folder.translation_model.output.weight)


@pytest.mark.long
def test_snapshots_do_not_change_the_training(quick_model: Path, grammar_pairs: Path, tmp_path: Path) -> None:
    args = quick_train_args(grammar_pairs, tmp_path / "model")
    assert run_heedful(*args, "--set", "training.snapshots=0").status == 0
    assert not (tmp_path / "model" / "training" / "snapshots").exists()
    weights = (tmp_path / "model" / "weights.safetensors").read_bytes()
    assert weights == (quick_model / "weights.safetensors").read_bytes()


def test_resume_writes_missing_snapshots(quick_model: Path, tmp_path: Path) -> None:
    """As after a kill at update 12: the snapshot was written, its checkpoint was not."""
    folder = tmp_path / "model"
    shutil.copytree(quick_model / "training", folder / "training")
    for path in (folder / "training" / "checkpoints").iterdir():
        if int(path.name) > 12:
            shutil.rmtree(path)
    late = sorted(update for update in QUICK_UPDATES if update > 12)
    for update in late[1:]:
        (folder / "training" / "snapshots" / f"{update:09}.safetensors").unlink()
    write_json(folder / "training" / "snapshots" / f"{late[0]:09}.safetensors", {"from": "another run"})
    assert run_heedful("train", "--resume", folder).status == 0
    assert read_snapshots(folder) == read_snapshots(quick_model)
    assert (folder / "weights.safetensors").read_bytes() == (quick_model / "weights.safetensors").read_bytes()
