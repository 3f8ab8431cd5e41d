"""Checkpoints that a disk does not give back as they were: the one before is used, the end is the same."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import heedful
from heedful.errors import HeedfulError
from tests.conftest import run_heedful
from tests.faults.conftest import Moments
from tests.faults.training_process import check_finished, cut_short, flip_bit, updates, weights


@pytest.fixture
def begun(quick_model: Path, tmp_path: Path) -> Path:
    """The quick model's training, its last checkpoint written and its model not."""
    shutil.copytree(quick_model / "training", tmp_path / "model" / "training")
    return tmp_path / "model"


def checkpoint(folder: Path, update: int) -> Path:
    return folder / "training" / "checkpoints" / f"{update:09}"


@pytest.mark.parametrize("damage", [flip_bit, cut_short, Path.unlink])
def test_resume_with_corrupt_newest_checkpoint_uses_the_one_before(
    damage: Callable[[Path], None], begun: Path, quick_model: Path
) -> None:
    damage(checkpoint(begun, 24) / "optimizer.safetensors")
    report = Moments()
    heedful.resume(begun, report=report)
    assert f"ignoring corrupt checkpoint {checkpoint(begun, 24)}: " in report.told
    assert "resuming from update 18" in report.told
    assert weights(begun) == weights(quick_model)
    check_finished(begun)
    assert not list(begun.rglob("*.corrupt"))  # passed again, it was deleted


def test_resume_with_two_corrupt_checkpoints_warns_and_matches(begun: Path, quick_model: Path) -> None:
    """The complete command; errors are on standard error, without a traceback."""
    flip_bit(checkpoint(begun, 24) / "weights.safetensors", 0.9)
    (checkpoint(begun, 18) / "trainer_state.json").write_text("")
    done = run_heedful("train", "--resume", begun, "--quiet")
    assert done.status == 0, done.err
    assert "000000024: " in done.err
    assert "000000018: " in done.err
    assert weights(begun) == weights(quick_model)
    check_finished(begun)


def test_resume_with_all_checkpoints_corrupt_is_an_error(begun: Path, quick_model: Path) -> None:
    for update in updates(begun):
        flip_bit(checkpoint(begun, update) / "weights.safetensors")
    for _ in range(2):  # it does not begin anew behind the user's back
        with pytest.raises(HeedfulError, match=r"all checkpoints in .* are corrupt") as caught:
            heedful.resume(begun, report=Moments())
    shutil.rmtree(begun / "training" / "checkpoints")  # as the hint says
    assert f"rm -r {begun / 'training' / 'checkpoints'}" in caught.value.hint
    heedful.resume(begun, report=Moments())
    assert weights(begun) == weights(quick_model)


def test_resume_of_finished_run_skips_corrupt_checkpoint_in_average(begun: Path) -> None:
    flip_bit(checkpoint(begun, 18) / "weights.safetensors")
    report = Moments()
    heedful.resume(begun, report=report)
    assert "000000018: " in report.told
    assert "training had already finished" in report.told
    assert "weights: checkpoint of update 24" in report.told
    assert checkpoint(begun, 18).with_name("000000018.corrupt").is_dir()


def test_average_command_skips_corrupt_checkpoint(quick_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(quick_model, folder)
    flip_bit(checkpoint(folder, 24) / "weights.safetensors")
    done = run_heedful("average", folder, "--last", "2", "-o", tmp_path / "averaged")
    assert done.status == 0, done.err
    assert "000000024 is corrupt" in done.err
    assert "000000012" in done.err
    assert checkpoint(folder, 24).is_dir()  # somebody else's training is left as it is
    named = [checkpoint(folder, 18), checkpoint(folder, 24)]
    done = run_heedful("average", *named, "-o", tmp_path / "named")
    assert done.status == 1
    assert "000000024 is corrupt" in done.err


def test_keep_last_one_still_keeps_two_checkpoints(
    grammar_pairs: Path, tmp_path: Path, quick: dict[str, object]
) -> None:
    """Even if only one is to be kept, a run that loses its newest checkpoint has another to go on from."""
    quick["training"] = {**quick["training"], "keep_last": 1, "average_checkpoints": 1}  # type: ignore[dict-item]
    folder = tmp_path / "model"
    heedful.train(grammar_pairs, folder, settings=quick, report=Moments())
    assert len(updates(folder)) >= 2
    whole = weights(folder)
    flip_bit(checkpoint(folder, 24) / "weights.safetensors")
    heedful.resume(folder, report=Moments())
    assert weights(folder) == whole
