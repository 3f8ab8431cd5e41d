"""Two trainings in one folder: exactly one continues; the other gets an error and changes nothing."""

import os
import random
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import heedful
from heedful.data.corpus import CorpusInputs, make_sources
from heedful.errors import HeedfulError
from heedful.files import lock_folder
from heedful.training.run import create_run, read_run_description, resume_run
from tests.conftest import quick_train_args
from tests.faults.conftest import Moments
from tests.faults.training_process import Command, check_finished, exists, updates, weights

WON, REFUSED, FAILED, BROKEN = range(4)


def in_children(count: int, work: Callable[[int], int]) -> list[int]:
    """What so many processes return that begin at the same moment."""
    start = time.monotonic() + 0.02
    pids = []
    for number in range(count):
        pid = os.fork()
        if not pid:
            status = BROKEN
            try:
                while time.monotonic() < start:
                    pass
                status = work(number)
            except BaseException:
                traceback.print_exc(file=sys.stderr)
            finally:
                os._exit(status)
        pids.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def begin(folder: Path, number: int, *, fail: bool = False) -> int:
    """Begin a run as ``heedful train`` does, and be at work for a moment."""
    ours = {"training": {"seed": number}}
    try:
        with create_run(folder, CorpusInputs(make_sources((Path("pairs.tsv"),))), ours, ours):
            time.sleep(0.01)
            assert read_run_description(folder).settings == ours  # nobody else's, and still there
            if fail:
                raise HeedfulError("the corpus is no good")
            (folder / "weights.safetensors").write_text(str(number))
            return WON
    except HeedfulError as error:
        if "no good" in error.problem:
            return FAILED
        if is_clear(error.problem):
            return REFUSED
        print(f"not clear: {error.problem}", file=sys.stderr)
        return BROKEN


def is_clear(problem: str) -> bool:
    return "another process is using" in problem or "already exists" in problem


@pytest.mark.long
def test_concurrent_starts_one_wins(tmp_path: Path) -> None:
    for round_number in range(20):
        folder = tmp_path / str(round_number)
        found = in_children(4, lambda number, folder=folder: begin(folder, number))  # type: ignore[misc]
        assert Counter(found) == {WON: 1, REFUSED: 3}
        assert (folder / "weights.safetensors").read_text() == str(found.index(WON))
        assert read_run_description(folder).settings == {"training": {"seed": found.index(WON)}}


@pytest.mark.long
def test_failed_start_removes_only_its_own_run(tmp_path: Path) -> None:
    """Every second one fails and removes what it began, while others begin in the same folder."""
    found: Counter[int] = Counter()
    for round_number in range(20):
        folder = tmp_path / str(round_number)

        def work(number: int, folder: Path = folder) -> int:
            time.sleep(random.Random(str((number, folder.name))).uniform(0, 0.03))
            return begin(folder, number, fail=number % 2 == 0)

        ends = in_children(4, work)
        assert BROKEN not in ends
        assert ends.count(WON) <= 1
        found.update(ends)
        if WON in ends:
            assert (folder / "weights.safetensors").read_text() == str(ends.index(WON))
        else:
            assert not folder.exists()
    assert found[FAILED]
    assert found[WON]


def test_lock_folder_deleted_concurrently_succeeds(tmp_path: Path) -> None:
    """Making a folder is not one step: it may be gone in the middle of it."""

    def work(number: int) -> int:
        try:
            for _ in range(0 if number else 15_000):
                with lock_folder(tmp_path / "a" / "b" / "training"):
                    pass
        finally:
            if not number:
                (tmp_path / "done").touch()
        while not (tmp_path / "done").exists():
            shutil.rmtree(tmp_path / "a", ignore_errors=True)
        return WON

    assert in_children(2, work) == [WON, WON]


def test_start_after_kill_without_checkpoint_starts_again(tmp_path: Path) -> None:
    (tmp_path / "m" / "training" / "data").mkdir(parents=True)
    (tmp_path / "m" / "training" / "run.json.partial").write_text("{")
    assert begin(tmp_path / "m", 1) == WON
    assert {path.name for path in (tmp_path / "m" / "training").iterdir()} == {"run.json", "lock"}


@pytest.mark.long
def test_concurrent_commands_one_wins(grammar_pairs: Path, quick_model: Path, tmp_path: Path) -> None:
    """A second start or resume while the first trains is rejected, and the first is not affected."""
    folder = tmp_path / "model"
    words = quick_train_args(grammar_pairs, folder)
    with Command(*words) as first, Command(*words) as second:
        moment = exists(folder / "training" / "run.json")
        while not moment():
            time.sleep(0.002)
        assert "another process is using" in run_resume(folder)
        done = [first.ended(), second.ended()]
    assert sorted(each.status for each in done) == [0, 1]
    refused = next(each for each in done if each.status)
    assert is_clear(refused.err)
    assert weights(folder) == weights(quick_model)
    check_finished(folder)


def run_resume(folder: Path) -> str:
    """The error of a second process that tries to resume a run of this one."""
    with pytest.raises(HeedfulError) as caught, resume_run(folder):
        pass
    return caught.value.problem


@pytest.mark.slow
def test_concurrent_commands_many_times_one_wins(grammar_pairs: Path, quick_model: Path, tmp_path: Path) -> None:
    for number in range(10):
        folder = tmp_path / str(number)
        words = quick_train_args(grammar_pairs, folder)
        with Command(*words) as one, Command(*words) as other, Command(*words) as third:
            done = [each.ended() for each in (one, other, third)]
        assert sorted(each.status for each in done) == [0, 1, 1]
        assert weights(folder) == weights(quick_model)
        check_finished(folder)


def test_kill_while_writing_the_model_resumes(quick_model: Path, grammar_pairs: Path, tmp_path: Path) -> None:
    """It is no model yet, nobody takes it for one, and the training writes it again."""
    folder = tmp_path / "model"
    shutil.copytree(quick_model / "training", folder / "training")
    (folder / "weights.safetensors").write_bytes(b"old")
    (folder / "tokenizer.json.partial").write_text("{")
    for use in (lambda: heedful.train(grammar_pairs, folder), lambda: heedful.load(folder)):
        with pytest.raises(HeedfulError) as caught:
            use()
        assert f"heedful train --resume {folder}" in caught.value.hint
    assert updates(folder)[-1] == 24
    heedful.resume(folder, report=Moments())
    assert weights(folder) == weights(quick_model)
    check_finished(folder)
