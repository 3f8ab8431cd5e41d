"""Checkpoints that a disk does not give back as they were: the one before is used, the end is the same."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import heedful
from heedful.errors import HeedfulError
from tests.conftest import run_heedful
from tests.faults.conftest import Moments
from tests.faults.harness import check_finished, cut_short, flip_bit, updates, weights


@pytest.fixture
def begun(quick_model: Path, tmp_path: Path) -> Path:
    """The quick model's training, its last checkpoint written and its model not."""
    shutil.copytree(quick_model / "training", tmp_path / "model" / "training")
    return tmp_path / "model"


def checkpoint(folder: Path, update: int) -> Path:
    return folder / "training" / "checkpoints" / f"{update:09}"


@pytest.mark.parametrize("damage", [flip_bit, cut_short, Path.unlink])
def test_the_newest_is_damaged(damage: Callable[[Path], None], begun: Path, quick_model: Path) -> None:
    damage(checkpoint(begun, 24) / "optimizer.safetensors")
    report = Moments()
    heedful.resume(begun, report=report)
    assert f"{checkpoint(begun, 24)} is damaged and not used: " in report.told
    assert "going on from update 18" in report.told
    assert weights(begun) == weights(quick_model)
    check_finished(begun)
    assert not list(begun.rglob("*.damaged"))  # passed again, it was deleted


def test_two_are_damaged(begun: Path, quick_model: Path) -> None:
    """The whole command; what it says is on standard error, and no traceback."""
    flip_bit(checkpoint(begun, 24) / "weights.safetensors", 0.9)
    (checkpoint(begun, 18) / "state.json").write_text("")
    done = run_heedful("train", "--resume", begun, "--quiet")
    assert done.status == 0, done.err
    assert "000000024 is damaged" in done.err
    assert "000000018 is damaged" in done.err
    assert weights(begun) == weights(quick_model)
    check_finished(begun)


def test_all_are_damaged(begun: Path, quick_model: Path) -> None:
    for update in updates(begun):
        flip_bit(checkpoint(begun, update) / "weights.safetensors")
    for _ in range(2):  # it does not begin anew behind the user's back
        with pytest.raises(HeedfulError, match=r"no checkpoint in .* is whole") as caught:
            heedful.resume(begun, report=Moments())
    shutil.rmtree(begun / "training" / "checkpoints")  # as the hint says
    assert f"rm -r {begun / 'training' / 'checkpoints'}" in caught.value.hint
    heedful.resume(begun, report=Moments())
    assert weights(begun) == weights(quick_model)


def test_one_to_be_averaged_is_damaged(begun: Path) -> None:
    flip_bit(checkpoint(begun, 18) / "weights.safetensors")
    report = Moments()
    heedful.resume(begun, report=report)
    assert "000000018 is damaged and not used" in report.told
    assert "all updates were done already" in report.told
    assert "weights: the checkpoint of update 24" in report.told
    assert checkpoint(begun, 18).with_name("000000018.damaged").is_dir()


def test_heedful_average_leaves_it_out(quick_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(quick_model, folder)
    flip_bit(checkpoint(folder, 24) / "weights.safetensors")
    done = run_heedful("average", folder, "--last", "2", "-o", tmp_path / "averaged")
    assert done.status == 0, done.err
    assert "000000024 is damaged" in done.err
    assert "000000012" in done.err
    assert checkpoint(folder, 24).is_dir()  # somebody else's training is left as it is
    named = [checkpoint(folder, 18), checkpoint(folder, 24)]
    done = run_heedful("average", *named, "-o", tmp_path / "named")
    assert done.status == 1
    assert "000000024 is damaged" in done.err


def test_there_is_always_one_before(grammar_pairs: Path, tmp_path: Path, quick: dict[str, object]) -> None:
    """Even if only one is to be kept, a run that loses its newest checkpoint has another to go on from."""
    quick["training"] = {**quick["training"], "keep": 1, "average": 1}  # type: ignore[dict-item]
    folder = tmp_path / "model"
    heedful.train(grammar_pairs, folder, settings=quick, report=Moments())
    assert len(updates(folder)) >= 2
    whole = weights(folder)
    flip_bit(checkpoint(folder, 24) / "weights.safetensors")
    heedful.resume(folder, report=Moments())
    assert weights(folder) == whole
