"""Folders that cannot be written, or that vanish while a training writes to them, are clear errors."""

import shutil
from pathlib import Path

import pytest

import heedful
from heedful.config import Settings
from heedful.errors import DiskError, HeedfulError
from tests.conftest import quick_train_args, run_heedful
from tests.faults.conftest import Moments
from tests.faults.limited_disks import Disk
from tests.faults.training_process import Command, check_checkpoints, check_finished, saved, updates, weights


def test_train_on_read_only_disk_is_an_error(grammar_pairs: Path, disk: Disk) -> None:
    disk.make_read_only()
    done = run_heedful(*quick_train_args(grammar_pairs, disk.folder / "model"))
    assert done.status == 1
    assert f"error: cannot write {disk.folder / 'model' / 'training' / 'lock'}: Read-only" in done.err


def test_disk_becoming_read_only_resumes(grammar_pairs: Path, quick_model: Path, disk: Disk, quick: Settings) -> None:
    """As some do after an error: saved files stay, and training resumes when the disk is writable again."""
    folder = disk.folder / "model"
    report = Moments("update 12, ", disk.make_read_only)
    with pytest.raises(DiskError, match=r"cannot write .*000000024: Read-only") as caught:
        heedful.train(grammar_pairs, folder, languages=("en", "fr"), settings=quick, report=report)
    assert "the checkpoint of update 6 is complete" in caught.value.hint
    with pytest.raises(DiskError, match=r"cannot write .*lock: Read-only"):
        heedful.resume(folder, report=Moments())
    disk.make_writable()
    heedful.resume(folder, report=Moments())
    assert weights(folder) == weights(quick_model)
    check_finished(folder)


def test_disk_vanishing_and_returning_resumes(
    grammar_pairs: Path, quick_model: Path, disk: Disk, quick: Settings, tmp_path: Path
) -> None:
    """A cable is pulled: nothing is written into the empty place where the disk was."""
    folder, copy = disk.folder / "model", tmp_path / "copy"

    def vanish() -> None:
        shutil.copytree(folder, copy)
        disk.vanish()

    with pytest.raises(DiskError, match="cannot write") as caught:
        heedful.train(
            grammar_pairs, folder, languages=("en", "fr"), settings=quick, report=Moments("update 12, ", vanish)
        )
    assert f"was {folder} deleted?" in caught.value.hint
    assert not list(disk.folder.iterdir())
    check_checkpoints(copy)
    heedful.resume(copy, report=Moments())
    assert weights(copy) == weights(quick_model)


@pytest.mark.long
def test_deleted_folder_is_an_error(grammar_pairs: Path, tmp_path: Path) -> None:
    """rm -rf while it trains: an error at the next checkpoint, and the folder does not come back."""
    folder = tmp_path / "model"
    with Command(*quick_train_args(grammar_pairs, folder)) as command:
        command.until(saved(folder, 6))
        with command.frozen():
            shutil.rmtree(folder)
        done = command.ended()
    assert done.status == 1
    assert "error: cannot write" in done.err
    assert f"was {folder} deleted?" in done.err
    assert not folder.exists()


@pytest.mark.parametrize("below", ["", "model"])
def test_output_path_that_is_a_file_is_an_error(
    below: str, grammar_pairs: Path, tmp_path: Path, quick: Settings
) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(HeedfulError, match=r"file is a file"):
        heedful.train(grammar_pairs, tmp_path / "file" / below, settings=quick, report=Moments())
    assert (tmp_path / "file").read_text() == "precious"


def test_output_folder_parents_are_created(grammar_pairs: Path, tmp_path: Path, quick: Settings) -> None:
    folder = tmp_path / "not" / "yet" / "there"
    quick["training"] = {**quick["training"], "max_updates": 1}
    heedful.train(grammar_pairs, folder, settings=quick, report=Moments())
    check_finished(folder)
    assert updates(folder)[-1] == 1
