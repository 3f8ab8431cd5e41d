"""Folders that cannot be written, or that disappear during training, are clear errors."""

import shutil
from pathlib import Path

import pytest

import heedful
from heedful.config import Settings
from heedful.errors import DiskError, HeedfulError
from tests.conftest import quick_train_args, run_heedful
from tests.faults.conftest import TriggerReporter
from tests.faults.tmpfs_disk import Disk
from tests.faults.training_process import Command, check_checkpoints, check_finished, updates, weights
from tests.stop_points import stop_at_message


def test_train_on_read_only_disk_is_an_error(grammar_pairs: Path, disk: Disk) -> None:
    disk.make_read_only()
    result = run_heedful(*quick_train_args(grammar_pairs, disk.folder / "model"))
    assert result.status == 1
    assert f"error: cannot write {disk.folder / 'model' / 'training' / 'lock'}: Read-only" in result.err


def test_disk_becoming_read_only_resumes(grammar_pairs: Path, quick_model: Path, disk: Disk, quick: Settings) -> None:
    """As after a disk error: saved files stay, and training resumes when the disk is writable again."""
    folder = disk.folder / "model"
    report = TriggerReporter("update 12, ", disk.make_read_only)
    with pytest.raises(DiskError, match=r"cannot write .*000000024: Read-only") as caught:
        heedful.train(grammar_pairs, folder, languages=("en", "fr"), settings=quick, report=report)
    assert "the checkpoint of update 6 is complete" in caught.value.hint
    with pytest.raises(DiskError, match=r"cannot write .*lock: Read-only"):
        heedful.resume(folder, report=TriggerReporter())
    disk.make_writable()
    heedful.resume(folder, report=TriggerReporter())
    assert weights(folder) == weights(quick_model)
    check_finished(folder)


def test_unmounted_disk_is_an_error_and_a_copy_resumes(
    grammar_pairs: Path, quick_model: Path, disk: Disk, quick: Settings, tmp_path: Path
) -> None:
    """As when a cable is pulled: nothing is written to the empty mount point."""
    folder, copy = disk.folder / "model", tmp_path / "copy"

    def vanish() -> None:
        shutil.copytree(folder, copy)
        disk.vanish()

    with pytest.raises(DiskError, match="cannot write") as caught:
        heedful.train(
            grammar_pairs, folder, languages=("en", "fr"), settings=quick, report=TriggerReporter("update 12, ", vanish)
        )
    assert f"was {folder} deleted?" in caught.value.hint
    assert not list(disk.folder.iterdir())
    check_checkpoints(copy)
    heedful.resume(copy, report=TriggerReporter())
    assert weights(copy) == weights(quick_model)


@pytest.mark.long
def test_deleted_folder_is_an_error(grammar_pairs: Path, tmp_path: Path) -> None:
    """rm -rf during training: an error at the next checkpoint, and the folder is not created again."""
    folder = tmp_path / "model"
    with Command(*quick_train_args(grammar_pairs, folder), stop_point=stop_at_message("update 12, ")) as command:
        command.wait_until_stopped()
        shutil.rmtree(folder)
        result = command.resume().wait()
    assert result.status == 1
    assert "error: cannot write" in result.err
    assert f"was {folder} deleted?" in result.err
    assert not folder.exists()


@pytest.mark.parametrize("subfolder", ["", "model"])
def test_output_path_that_is_a_file_is_an_error(
    subfolder: str, grammar_pairs: Path, tmp_path: Path, quick: Settings
) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(HeedfulError, match=r"file is a file"):
        heedful.train(grammar_pairs, tmp_path / "file" / subfolder, settings=quick, report=TriggerReporter())
    assert (tmp_path / "file").read_text() == "precious"


def test_output_folder_parents_are_created(grammar_pairs: Path, tmp_path: Path, quick: Settings) -> None:
    folder = tmp_path / "not" / "yet" / "there"
    quick["training"] = {**quick["training"], "max_updates": 1}
    heedful.train(grammar_pairs, folder, settings=quick, report=TriggerReporter())
    check_finished(folder)
    assert updates(folder)[-1] == 1
