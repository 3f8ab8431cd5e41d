"""Two runs in one folder: exactly one continues; the other gets an error and changes nothing."""

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
from tests.faults.conftest import TriggerReporter
from tests.faults.training_process import Command, check_finished, updates, weights
from tests.stop_points import TIMEOUT, StopPoint

WON, REJECTED, FAILED, CRASHED = range(4)


def run_concurrently(count: int, work: Callable[[int], int]) -> list[int]:
    """Exit statuses of processes that start at the same time."""
    start = time.monotonic() + 0.02
    pids = []
    for number in range(count):
        pid = os.fork()
        if not pid:
            status = CRASHED
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


def start_run(folder: Path, number: int, *, fail: bool = False) -> int:
    """Start a run as ``heedful train`` does, and hold it for a moment."""
    settings = {"training": {"seed": number}}
    try:
        with create_run(folder, CorpusInputs(make_sources((Path("pairs.tsv"),))), settings, settings):
            time.sleep(0.01)
            assert read_run_description(folder).settings == settings  # not overwritten by another process
            if fail:
                raise HeedfulError("invalid corpus")
            (folder / "weights.safetensors").write_text(str(number))
            return WON
    except HeedfulError as error:
        if "invalid corpus" in error.problem:
            return FAILED
        if is_clear_rejection(error.problem):
            return REJECTED
        print(f"unclear rejection: {error.problem}", file=sys.stderr)
        return CRASHED


def is_clear_rejection(problem: str) -> bool:
    return "another process is using" in problem or "already exists" in problem


@pytest.mark.long
def test_concurrent_starts_one_wins(tmp_path: Path) -> None:
    for round_number in range(20):
        folder = tmp_path / str(round_number)
        statuses = run_concurrently(4, lambda number, folder=folder: start_run(folder, number))  # type: ignore[misc]
        assert Counter(statuses) == {WON: 1, REJECTED: 3}
        assert (folder / "weights.safetensors").read_text() == str(statuses.index(WON))
        assert read_run_description(folder).settings == {"training": {"seed": statuses.index(WON)}}


@pytest.mark.long
def test_failed_start_removes_only_its_own_run(tmp_path: Path) -> None:
    """Every second start fails and removes its run while others start in the same folder."""
    totals: Counter[int] = Counter()
    for round_number in range(20):
        folder = tmp_path / str(round_number)

        def work(number: int, folder: Path = folder) -> int:
            time.sleep(random.Random(str((number, folder.name))).uniform(0, 0.03))
            return start_run(folder, number, fail=number % 2 == 0)

        statuses = run_concurrently(4, work)
        assert CRASHED not in statuses
        assert statuses.count(WON) <= 1
        totals.update(statuses)
        if WON in statuses:
            assert (folder / "weights.safetensors").read_text() == str(statuses.index(WON))
        else:
            assert not folder.exists()
    assert totals[FAILED]
    assert totals[WON]


def test_lock_folder_while_folder_is_deleted_succeeds(tmp_path: Path) -> None:
    """Creating nested folders is not atomic: a parent can be deleted in between."""

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

    assert run_concurrently(2, work) == [WON, WON]


def test_start_after_kill_without_checkpoint_starts_again(tmp_path: Path) -> None:
    (tmp_path / "m" / "training" / "data").mkdir(parents=True)
    (tmp_path / "m" / "training" / "run.json.partial").write_text("{")
    assert start_run(tmp_path / "m", 1) == WON
    assert {path.name for path in (tmp_path / "m" / "training").iterdir()} == {"run.json", "lock"}


@pytest.mark.long
def test_concurrent_commands_one_wins(grammar_pairs: Path, quick_model: Path, tmp_path: Path) -> None:
    """A second start or resume while the first trains is rejected, and the first is not affected."""
    folder = tmp_path / "model"
    args, point = quick_train_args(grammar_pairs, folder), StopPoint("heedful.training.distributed:Replica.update")
    with Command(*args, stop_point=point) as first, Command(*args, stop_point=point) as second:
        loser = wait_for_first_exit(first, second)
        winner = (second if loser is first else first).wait_until_stopped()
        assert "another process is using" in get_resume_problem(folder)
        results = [winner.resume().wait(), loser.wait()]
    assert [result.status for result in results] == [0, 1]
    assert is_clear_rejection(results[1].err)
    assert weights(folder) == weights(quick_model)
    check_finished(folder)


def wait_for_first_exit(*commands: Command) -> Command:
    """The first command that exits; the others must reach their stop points and wait."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        for command in commands:
            if command.process.poll() is not None:
                return command
        assert time.monotonic() < deadline, "no command exited"
        time.sleep(0.01)


def get_resume_problem(folder: Path) -> str:
    """The error of resuming a run that another process is training."""
    with pytest.raises(HeedfulError) as caught, resume_run(folder):
        pass
    return caught.value.problem


@pytest.mark.slow
def test_concurrent_commands_many_times_one_wins(grammar_pairs: Path, quick_model: Path, tmp_path: Path) -> None:
    for number in range(10):
        folder = tmp_path / str(number)
        args = quick_train_args(grammar_pairs, folder)
        with Command(*args) as first, Command(*args) as second, Command(*args) as third:
            results = [command.wait() for command in (first, second, third)]
        assert sorted(result.status for result in results) == [0, 1, 1]
        assert weights(folder) == weights(quick_model)
        check_finished(folder)


def test_kill_while_writing_the_model_resumes(quick_model: Path, grammar_pairs: Path, tmp_path: Path) -> None:
    """An incomplete model is never loaded as a model, and resuming writes it again."""
    folder = tmp_path / "model"
    shutil.copytree(quick_model / "training", folder / "training")
    (folder / "weights.safetensors").write_bytes(b"old")
    (folder / "tokenizer.json.partial").write_text("{")
    for use in (lambda: heedful.train(grammar_pairs, folder), lambda: heedful.load(folder)):
        with pytest.raises(HeedfulError) as caught:
            use()
        assert f"heedful train --resume {folder}" in caught.value.hint
    assert updates(folder)[-1] == 24
    heedful.resume(folder, report=TriggerReporter())
    assert weights(folder) == weights(quick_model)
    check_finished(folder)
