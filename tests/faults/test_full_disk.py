"""A full disk: complete files are never lost, and once there is space again, the model is the same."""

import resource
from pathlib import Path

import pytest

import heedful
from heedful.config import Settings
from heedful.errors import DiskError
from heedful.files import append_text
from tests.conftest import quick_train_args
from tests.faults.conftest import TriggerReporter
from tests.faults.tmpfs_disk import Disk
from tests.faults.training_process import Command, check_checkpoints, check_finished, has_lines, updates, weights
from tests.stop_points import stop_at_message

KILOBYTE = 1024
PAGE = resource.getpagesize()


@pytest.mark.long
def test_full_disk_during_training_saves_and_resumes(
    grammar_pairs: Path, quick_model: Path, disk: Disk, tmp_path: Path
) -> None:
    """Training continues on a full disk; a full disk at the end is an error, and saved files are complete."""
    folder = disk.folder / "model"
    with Command(*quick_train_args(grammar_pairs, folder), stop_point=stop_at_message("update 12, ")) as command:
        command.wait_until_stopped()
        disk.fill(spare_bytes=200 * KILOBYTE)  # enough for the weights, not for Adam's moments
        result = command.resume().wait()
    assert result.status == 1
    assert "is not saved; training continues" in result.err
    assert "error: no space left on the disk for " in result.err
    before = updates(folder)
    assert before[-1] < 24
    assert f"the checkpoint of update {before[-1]} is complete; free disk space, then " in result.err
    assert f"resume with: heedful train --resume {folder}" in result.err
    check_checkpoints(folder)
    assert not list((folder / "training").rglob("*.partial"))
    disk.free()
    with Command("train", "--resume", folder) as command:
        assert command.wait().status == 0
    assert weights(folder) == weights(quick_model)
    check_finished(folder)


def test_full_disk_during_preparation_resumes(
    grammar_pairs: Path, quick_model: Path, disk: Disk, quick: Settings
) -> None:
    """A run that failed on a full disk can be resumed or started again."""
    folder = disk.folder / "model"
    disk.fill(spare_bytes=24 * KILOBYTE)
    for _ in range(2):
        with pytest.raises(DiskError, match="no space left on the disk for") as caught:
            heedful.train(grammar_pairs, folder, languages=("en", "fr"), settings=quick, report=TriggerReporter())
        assert "nothing is trained yet; free disk space, then resume with: " in caught.value.hint
    disk.free()
    heedful.resume(folder, report=TriggerReporter())
    assert weights(folder) == weights(quick_model)
    check_finished(folder)


@pytest.mark.long
def test_full_disk_during_parallel_preparation_resumes(
    grammar_pairs: Path, quick_model: Path, disk: Disk, quick: Settings
) -> None:
    """A disk error in a worker is handled like one in the main process: the run can be resumed."""
    folder = disk.folder / "model"
    parallel = {"preprocessing": {"processes": 2, "chunk_megabytes": 0.01}}
    disk.fill(spare_bytes=40 * KILOBYTE)
    with pytest.raises(DiskError, match="no space left on the disk for"):
        heedful.train(
            grammar_pairs, folder, languages=("en", "fr"), settings=quick | parallel, report=TriggerReporter()
        )
    assert (folder / "training" / "run.json").exists()
    disk.free()
    heedful.resume(folder, report=TriggerReporter())
    assert weights(folder) == weights(quick_model)
    check_finished(folder)


def test_full_disk_at_startup_is_an_error(grammar_pairs: Path, disk: Disk, quick: Settings) -> None:
    disk.fill()
    with pytest.raises(DiskError, match=r"no space left on the disk for .*run.json"):
        heedful.train(grammar_pairs, disk.folder / "model", settings=quick, report=TriggerReporter())
    disk.free()
    heedful.train(grammar_pairs, disk.folder / "model", settings=quick, report=TriggerReporter())
    check_finished(disk.folder / "model")


def test_full_disk_temporarily_does_not_stop_training(
    grammar_pairs: Path, disk: Disk, quick: Settings, quick_model: Path
) -> None:
    """Full at the second checkpoint, free again at the third: only a warning."""
    folder = disk.folder / "model"

    def fill() -> None:
        disk.fill()
        report.text, report.action = "is not saved", disk.free

    report = TriggerReporter("update 6, ", fill)
    heedful.train(grammar_pairs, folder, languages=("en", "fr"), settings=quick, report=report)
    assert "update 6 is not saved; training continues" in report.messages
    assert 6 not in updates(folder)
    assert weights(folder) == weights(quick_model)  # averages the last two checkpoints
    metrics = (quick_model / "training" / "metrics.jsonl").read_text().count("\n")
    assert has_lines(folder / "training" / "metrics.jsonl", metrics)  # pending lines were written later
    check_finished(folder)


def test_full_disk_while_writing_model_resumes(
    grammar_pairs: Path, disk: Disk, quick: Settings, quick_model: Path
) -> None:
    folder = disk.folder / "model"
    report = TriggerReporter("weights: ", disk.fill)  # the weights are selected, and the model will be written next
    with pytest.raises(DiskError, match="no space left on the disk for") as caught:
        heedful.train(grammar_pairs, folder, languages=("en", "fr"), settings=quick, report=report)
    assert "the checkpoint of update 24 is complete" in caught.value.hint
    assert not (folder / "config.json").exists()
    disk.free()
    heedful.resume(folder, report=TriggerReporter())
    assert weights(folder) == weights(quick_model)
    check_finished(folder)


def test_full_disk_for_snapshots_and_metrics_only_warns(
    grammar_pairs: Path, disk: Disk, quick: Settings, quick_model: Path
) -> None:
    folder = disk.folder / "model"
    metrics = folder / "training" / "metrics.jsonl"

    def fill() -> None:
        fill_page(metrics)
        disk.fill()

    report = TriggerReporter("update 12, ", fill)
    with pytest.raises(DiskError):  # there is no space for the model either
        heedful.train(grammar_pairs, folder, languages=("en", "fr"), settings=quick, report=report)
    assert "no snapshot of update 18" in report.messages
    assert "metrics.jsonl; will retry with the next line" in report.messages
    assert metrics.stat().st_size % PAGE == 0  # no partial line
    disk.free()
    heedful.resume(folder, report=TriggerReporter())
    assert weights(folder) == weights(quick_model)


def fill_page(path: Path) -> None:
    """Append a line that fills the last allocated page of a file."""
    start, end = '{"update": 12, "note": "', '"}\n'
    padding = -(path.stat().st_size + len(start) + len(end)) % PAGE
    with path.open("a") as file:
        file.write(start + padding * "x" + end)


def test_append_text_without_space_appends_nothing(disk: Disk) -> None:
    path = disk.folder / "lines"
    path.write_text("x" * (PAGE - 3))
    disk.fill()
    for _ in range(2):
        with pytest.raises(DiskError, match="no space left"):
            append_text(path, "a line\n")
        assert path.read_text() == "x" * (PAGE - 3)
    disk.free()
    append_text(path, "a line\n")
    assert path.read_text() == "x" * (PAGE - 3) + "a line\n"
