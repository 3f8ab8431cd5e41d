"""Corrupt checkpoints: training resumes from the previous one, and the model is the same."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import heedful
from heedful.errors import HeedfulError
from tests.conftest import run_heedful
from tests.faults.conftest import TriggerReporter
from tests.faults.training_process import check_finished, flip_bit, truncate, updates, weights


@pytest.fixture
def unfinished_run(quick_model: Path, tmp_path: Path) -> Path:
    """The training folder of the quick model: the last checkpoint is written, the model is not."""
    shutil.copytree(quick_model / "training", tmp_path / "model" / "training")
    return tmp_path / "model"


def checkpoint(folder: Path, update: int) -> Path:
    return folder / "training" / "checkpoints" / f"{update:09}"


@pytest.mark.parametrize("damage", [flip_bit, truncate, Path.unlink])
def test_resume_with_corrupt_newest_checkpoint_uses_the_one_before(
    damage: Callable[[Path], None], unfinished_run: Path, quick_model: Path
) -> None:
    damage(checkpoint(unfinished_run, 24) / "optimizer.safetensors")
    report = TriggerReporter()
    heedful.resume(unfinished_run, report=report)
    assert f"ignoring corrupt checkpoint {checkpoint(unfinished_run, 24)}: " in report.messages
    assert "resuming from update 18" in report.messages
    assert weights(unfinished_run) == weights(quick_model)
    check_finished(unfinished_run)
    assert not list(unfinished_run.rglob("*.corrupt"))  # deleted when training passed it again


def test_resume_with_two_corrupt_checkpoints_warns_and_matches(unfinished_run: Path, quick_model: Path) -> None:
    """The complete command; errors are on standard error, without a traceback."""
    flip_bit(checkpoint(unfinished_run, 24) / "weights.safetensors", 0.9)
    (checkpoint(unfinished_run, 18) / "trainer_state.json").write_text("")
    result = run_heedful("train", "--resume", unfinished_run, "--quiet")
    assert result.status == 0, result.err
    assert "000000024: " in result.err
    assert "000000018: " in result.err
    assert weights(unfinished_run) == weights(quick_model)
    check_finished(unfinished_run)


def test_resume_with_all_checkpoints_corrupt_is_an_error(unfinished_run: Path, quick_model: Path) -> None:
    for update in updates(unfinished_run):
        flip_bit(checkpoint(unfinished_run, update) / "weights.safetensors")
    for _ in range(2):  # it does not silently start again
        with pytest.raises(HeedfulError, match=r"all checkpoints in .* are corrupt") as caught:
            heedful.resume(unfinished_run, report=TriggerReporter())
    shutil.rmtree(unfinished_run / "training" / "checkpoints")  # as the hint says
    assert f"rm -r {unfinished_run / 'training' / 'checkpoints'}" in caught.value.hint
    heedful.resume(unfinished_run, report=TriggerReporter())
    assert weights(unfinished_run) == weights(quick_model)


def test_resume_of_finished_run_skips_corrupt_checkpoint_in_average(unfinished_run: Path) -> None:
    flip_bit(checkpoint(unfinished_run, 18) / "weights.safetensors")
    report = TriggerReporter()
    heedful.resume(unfinished_run, report=report)
    assert "000000018: " in report.messages
    assert "training had already finished" in report.messages
    assert "weights: checkpoint of update 24" in report.messages
    assert checkpoint(unfinished_run, 18).with_name("000000018.corrupt").is_dir()


def test_average_command_skips_corrupt_checkpoint(quick_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(quick_model, folder)
    flip_bit(checkpoint(folder, 24) / "weights.safetensors")
    result = run_heedful("average", folder, "--last", "2", "-o", tmp_path / "averaged")
    assert result.status == 0, result.err
    assert "000000024 is corrupt" in result.err
    assert "000000012" in result.err
    assert checkpoint(folder, 24).is_dir()  # the command does not change the training folder
    checkpoints = [checkpoint(folder, 18), checkpoint(folder, 24)]
    result = run_heedful("average", *checkpoints, "-o", tmp_path / "other")
    assert result.status == 1
    assert "000000024 is corrupt" in result.err


def test_keep_last_one_still_keeps_two_checkpoints(
    grammar_pairs: Path, tmp_path: Path, quick: dict[str, object]
) -> None:
    """Even with keep_last=1, a run whose newest checkpoint is corrupt has another one to resume from."""
    quick["training"] = {**quick["training"], "keep_last": 1, "average_checkpoints": 1}  # type: ignore[dict-item]
    folder = tmp_path / "model"
    heedful.train(grammar_pairs, folder, settings=quick, report=TriggerReporter())
    assert len(updates(folder)) >= 2
    expected = weights(folder)
    flip_bit(checkpoint(folder, 24) / "weights.safetensors")
    heedful.resume(folder, report=TriggerReporter())
    assert weights(folder) == expected
