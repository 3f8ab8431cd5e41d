"""No room on the disk, really: nothing that was complete is lost, and with room again the end is the same."""

import resource
from pathlib import Path

import pytest

import heedful
from heedful.config import Settings
from heedful.errors import DiskError
from heedful.files import append_text
from tests.conftest import quick_train_args
from tests.faults.conftest import Moments
from tests.faults.limited_disks import Disk
from tests.faults.training_process import Command, check_checkpoints, check_finished, has_lines, saved, updates, weights

KILOBYTE = 1024
PAGE = resource.getpagesize()


@pytest.mark.long
def test_full_disk_during_training_saves_and_resumes(
    grammar_pairs: Path, quick_model: Path, disk: Disk, tmp_path: Path
) -> None:
    """Training continues on a full disk; a full disk at the end is an error, and saved files are complete."""
    folder = disk.folder / "model"
    with Command(*quick_train_args(grammar_pairs, folder)) as command:
        command.until(saved(folder, 6))
        with command.frozen():
            disk.fill(leave=200 * KILOBYTE)  # enough for the weights, not for Adam's moments
        done = command.ended()
    assert done.status == 1
    assert "is not saved; training continues" in done.err
    assert "error: no space left on the disk for " in done.err
    before = updates(folder)
    assert before[-1] < 24
    assert f"the checkpoint of update {before[-1]} is complete; free disk space, then " in done.err
    assert f"resume with: heedful train --resume {folder}" in done.err
    check_checkpoints(folder)
    assert not list((folder / "training").rglob("*.partial"))
    disk.free()
    with Command("train", "--resume", folder) as command:
        assert command.ended().status == 0
    assert weights(folder) == weights(quick_model)
    check_finished(folder)


def test_full_disk_during_preparation_resumes(
    grammar_pairs: Path, quick_model: Path, disk: Disk, quick: Settings
) -> None:
    """A begun run is not forgotten for a full disk: it can go on, or be begun again."""
    folder = disk.folder / "model"
    disk.fill(leave=24 * KILOBYTE)
    for _ in range(2):
        with pytest.raises(DiskError, match="no space left on the disk for") as caught:
            heedful.train(grammar_pairs, folder, languages=("en", "fr"), settings=quick, report=Moments())
        assert "nothing is trained yet; free disk space, then resume with: " in caught.value.hint
    disk.free()
    heedful.resume(folder, report=Moments())
    assert weights(folder) == weights(quick_model)
    check_finished(folder)


@pytest.mark.long
def test_full_disk_during_parallel_preparation_resumes(
    grammar_pairs: Path, quick_model: Path, disk: Disk, quick: Settings
) -> None:
    """What a worker meets is as if the command itself had met it: what was begun stays."""
    folder = disk.folder / "model"
    pieces = {"preprocessing": {"processes": 2, "chunk_megabytes": 0.01}}
    disk.fill(leave=40 * KILOBYTE)
    with pytest.raises(DiskError, match="no space left on the disk for"):
        heedful.train(grammar_pairs, folder, languages=("en", "fr"), settings=quick | pieces, report=Moments())
    assert (folder / "training" / "run.json").exists()
    disk.free()
    heedful.resume(folder, report=Moments())
    assert weights(folder) == weights(quick_model)
    check_finished(folder)


def test_full_disk_at_startup_is_an_error(grammar_pairs: Path, disk: Disk, quick: Settings) -> None:
    disk.fill()
    with pytest.raises(DiskError, match=r"no space left on the disk for .*run.json"):
        heedful.train(grammar_pairs, disk.folder / "model", settings=quick, report=Moments())
    disk.free()
    heedful.train(grammar_pairs, disk.folder / "model", settings=quick, report=Moments())
    check_finished(disk.folder / "model")


def test_full_disk_for_a_while_does_not_stop_training(
    grammar_pairs: Path, disk: Disk, quick: Settings, quick_model: Path
) -> None:
    """Full at the second checkpoint, room again at the third: a warning, no more."""
    folder = disk.folder / "model"

    def full() -> None:
        disk.fill()
        report.text, report.then = "is not saved", disk.free

    report = Moments("update 6, ", full)
    heedful.train(grammar_pairs, folder, languages=("en", "fr"), settings=quick, report=report)
    assert "update 6 is not saved; training continues" in report.told
    assert 6 not in updates(folder)
    assert weights(folder) == weights(quick_model)  # which averages the last two
    metrics = (quick_model / "training" / "metrics.jsonl").read_text().count("\n")
    assert has_lines(folder / "training" / "metrics.jsonl", metrics)()  # what had no room came later
    check_finished(folder)


def test_full_disk_at_the_final_model_resumes(
    grammar_pairs: Path, disk: Disk, quick: Settings, quick_model: Path
) -> None:
    folder = disk.folder / "model"
    report = Moments("weights: ", disk.fill)  # they are chosen, and the model is to be written
    with pytest.raises(DiskError, match="no space left on the disk for") as caught:
        heedful.train(grammar_pairs, folder, languages=("en", "fr"), settings=quick, report=report)
    assert "the checkpoint of update 24 is complete" in caught.value.hint
    assert not (folder / "config.json").exists()
    disk.free()
    heedful.resume(folder, report=Moments())
    assert weights(folder) == weights(quick_model)
    check_finished(folder)


def test_full_disk_for_snapshots_and_metrics_only_warns(
    grammar_pairs: Path, disk: Disk, quick: Settings, quick_model: Path
) -> None:
    folder = disk.folder / "model"
    metrics = folder / "training" / "metrics.jsonl"

    def full() -> None:
        fill_page(metrics)
        disk.fill()

    report = Moments("update 12, ", full)
    with pytest.raises(DiskError):  # the end has no room either
        heedful.train(grammar_pairs, folder, languages=("en", "fr"), settings=quick, report=report)
    assert "no snapshot of update 18" in report.told
    assert "metrics.jsonl; will retry with the next line" in report.told
    assert metrics.stat().st_size % PAGE == 0  # no line is cut short
    disk.free()
    heedful.resume(folder, report=Moments())
    assert weights(folder) == weights(quick_model)


def fill_page(path: Path) -> None:
    """A line that ends where the room that a file has already taken does."""
    start, end = '{"update": 12, "note": "', '"}\n'
    rest = -(path.stat().st_size + len(start) + len(end)) % PAGE
    with path.open("a") as file:
        file.write(start + rest * "x" + end)


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
