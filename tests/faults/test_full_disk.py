"""No room on the disk, really: nothing that was complete is lost, and with room again the end is the same."""

import resource
from pathlib import Path

import pytest

import heedful
from heedful.config import Settings
from heedful.errors import DiskError
from heedful.files import append_text
from tests.conftest import quick_train_words
from tests.faults.conftest import Moments
from tests.faults.disks import Disk
from tests.faults.harness import (
    Command,
    check_checkpoints,
    check_finished,
    has_lines,
    saved,
    updates,
    weights,
)

KILOBYTE = 1024
PAGE = resource.getpagesize()


@pytest.mark.long
def test_from_the_middle_to_the_end(
    grammar_pairs: Path, quick_model: Path, disk: Disk, tmp_path: Path
) -> None:
    """Training goes on without room; that the end has none is an error, and what was saved is whole."""
    folder = disk.folder / "model"
    with Command(*quick_train_words(grammar_pairs, folder)) as command:
        command.until(saved(folder, 6))
        with command.frozen():
            disk.fill(leave=200 * KILOBYTE)  # enough for the weights, not for Adam's moments
        done = command.ended()
    assert done.status == 1
    assert "is not saved; training goes on" in done.err
    assert "error: no room on the disk for " in done.err
    before = updates(folder)
    assert before[-1] < 24
    assert f"the checkpoint of update {before[-1]} is whole; when there is room on the disk, " in done.err
    assert f"go on with: heedful train --resume {folder}" in done.err
    check_checkpoints(folder)
    assert not list((folder / "training").rglob("*.partial"))
    disk.free()
    with Command("train", "--resume", folder) as command:
        assert command.ended().status == 0
    assert weights(folder) == weights(quick_model)
    check_finished(folder)


def test_in_preparation(grammar_pairs: Path, quick_model: Path, disk: Disk, quick: Settings) -> None:
    """A begun run is not forgotten for a full disk: it can go on, or be begun again."""
    folder = disk.folder / "model"
    disk.fill(leave=24 * KILOBYTE)
    for _ in range(2):
        with pytest.raises(DiskError, match="no room on the disk for") as caught:
            heedful.train(grammar_pairs, folder, languages=("en", "fr"), settings=quick, report=Moments())
        assert "nothing is learned yet; when there is room on the disk, go on with: " in caught.value.hint
    disk.free()
    heedful.resume(folder, report=Moments())
    assert weights(folder) == weights(quick_model)
    check_finished(folder)


def test_in_preparation_by_several_processes(
    grammar_pairs: Path, quick_model: Path, disk: Disk, quick: Settings
) -> None:
    """What a worker meets is as if the command itself had met it: what was begun stays."""
    folder = disk.folder / "model"
    pieces = {"preparation": {"processes": 2, "piece_megabytes": 0.01}}
    disk.fill(leave=40 * KILOBYTE)
    with pytest.raises(DiskError, match="no room on the disk for"):
        heedful.train(
            grammar_pairs, folder, languages=("en", "fr"), settings=quick | pieces, report=Moments()
        )
    assert (folder / "training" / "run.json").exists()
    disk.free()
    heedful.resume(folder, report=Moments())
    assert weights(folder) == weights(quick_model)
    check_finished(folder)


def test_at_the_very_start(grammar_pairs: Path, disk: Disk, quick: Settings) -> None:
    disk.fill()
    with pytest.raises(DiskError, match=r"no room on the disk for .*run.json"):
        heedful.train(grammar_pairs, disk.folder / "model", settings=quick, report=Moments())
    disk.free()
    heedful.train(grammar_pairs, disk.folder / "model", settings=quick, report=Moments())
    check_finished(disk.folder / "model")


def test_for_a_while(grammar_pairs: Path, disk: Disk, quick: Settings, quick_model: Path) -> None:
    """Full at the second checkpoint, room again at the third: a warning, no more."""
    folder = disk.folder / "model"

    def full() -> None:
        disk.fill()
        report.text, report.then = "is not saved", disk.free

    report = Moments("update 6, ", full)
    heedful.train(grammar_pairs, folder, languages=("en", "fr"), settings=quick, report=report)
    assert "update 6 is not saved; training goes on" in report.told
    assert 6 not in updates(folder)
    assert weights(folder) == weights(quick_model)  # which averages the last two
    metrics = (quick_model / "training" / "metrics.jsonl").read_text().count("\n")
    assert has_lines(folder / "training" / "metrics.jsonl", metrics)()  # what had no room came later
    check_finished(folder)


def test_at_the_final_model(grammar_pairs: Path, disk: Disk, quick: Settings, quick_model: Path) -> None:
    folder = disk.folder / "model"
    report = Moments("weights: ", disk.fill)  # they are chosen, and the model is to be written
    with pytest.raises(DiskError, match="no room on the disk for") as caught:
        heedful.train(grammar_pairs, folder, languages=("en", "fr"), settings=quick, report=report)
    assert "the checkpoint of update 24 is whole" in caught.value.hint
    assert not (folder / "config.json").exists()
    disk.free()
    heedful.resume(folder, report=Moments())
    assert weights(folder) == weights(quick_model)
    check_finished(folder)


def test_snapshots_and_metrics_are_no_reason_to_stop(
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
    assert "there will be no snapshot of update 18" in report.told
    assert "metrics.jsonl; its lines are kept for later" in report.told
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


def test_what_has_no_room_is_not_added_in_part(disk: Disk) -> None:
    path = disk.folder / "lines"
    path.write_text("x" * (PAGE - 3))
    disk.fill()
    for _ in range(2):
        with pytest.raises(DiskError, match="no room"):
            append_text(path, "a line\n")
        assert path.read_text() == "x" * (PAGE - 3)
    disk.free()
    append_text(path, "a line\n")
    assert path.read_text() == "x" * (PAGE - 3) + "a line\n"
