"""Signals (Ctrl-C, a scheduler, a closed terminal) at any moment stop training, which can be resumed."""

import os
import pkgutil
import pty
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import heedful
from heedful.config import Settings
from heedful.errors import StoppedError
from heedful.progress import ProgressTask
from tests.conftest import quick_train_args, run_heedful
from tests.faults.conftest import Moments
from tests.faults.training_process import (
    Command,
    Moment,
    check_checkpoints,
    check_finished,
    exists,
    has_lines,
    saved,
    updates,
    weights,
)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SECONDS = 10.0
"""In which a process must exit after a signal: schedulers wait 30."""


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        *((signal.SIGTERM, moment) for moment in (" to train on", "parameters on", "update 6, ", "weights: ")),
        (signal.SIGHUP, "training the "),
        (signal.SIGINT, "training the "),
        (signal.SIGINT, "update 6, "),
    ],
)
@pytest.mark.long
def test_signal_at_every_moment_resumes_bit_exactly(
    number: signal.Signals, moment: str, grammar_pairs: Path, quick_model: Path, quick: Settings, tmp_path: Path
) -> None:
    """In this process: between two phases of the work, and in the loop."""
    folder = tmp_path / "model"
    report = Moments(moment, lambda: os.kill(os.getpid(), number))
    before = [signal.getsignal(each) for each in SIGNALS]
    with pytest.raises(StoppedError) as caught:
        heedful.train(grammar_pairs, folder, languages=("en", "fr"), settings=quick, report=report)
    assert caught.value.signal_number == number
    assert caught.value.hint.endswith(f"resume with: heedful train --resume {folder}")
    assert [signal.getsignal(each) for each in SIGNALS] == before
    assert not (folder / "config.json").exists()
    check_checkpoints(folder)
    heedful.resume(folder, report=Moments())
    assert weights(folder) == weights(quick_model)
    check_finished(folder)


def stopped(command: Command, number: signal.Signals, folder: Path) -> None:
    """Ask a command to stop: it does so soon, says how to go on, and leaves no process."""
    asked = time.monotonic()
    done = command.send(number).ended()
    assert time.monotonic() - asked < SECONDS
    assert done.status == 128 + number, done.err
    assert f"\nstopped by {'Ctrl-C' if number == signal.SIGINT else number.name}\n" in done.err
    assert f"resume with: heedful train --resume {folder}" in done.err
    check_checkpoints(folder)


@pytest.mark.parametrize("function", ["trainer.validate", "metrics_log.MetricsLog.write"])
def test_signal_during_validation_resumes_with_it(
    function: str,
    grammar_pairs: Path,
    quick_model: Path,
    quick: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At its start, or between the last update and its start: the update is saved, and resuming validates it."""
    folder = tmp_path / "model"
    original = pkgutil.resolve_name(f"heedful.training.{function}")

    def send_signal(first: object, second: object, *others: object) -> object:
        if updates(folder) == [0] and second != 0:  # the first validation, or right before it
            monkeypatch.undo()
            os.kill(os.getpid(), signal.SIGTERM)
        return original(first, second, *others)

    monkeypatch.setattr(f"heedful.training.{function}", send_signal)
    with pytest.raises(StoppedError):
        heedful.train(grammar_pairs, folder, languages=("en", "fr"), settings=quick, report=Moments())
    assert updates(folder)[-1] == 6
    assert '"validation_loss"' not in (folder / "training" / "metrics.jsonl").read_text()
    heedful.resume(folder, report=Moments())
    assert weights(folder) == weights(quick_model)
    check_finished(folder)


class Interrupting(Moments):
    """A reporter that sends a signal right after the first update."""

    @contextmanager
    def task(self, label: str, total: int | None = None, done: int = 0, unit: str = "") -> Iterator[ProgressTask]:
        yield self

    def advance(self, amount: int = 1, note: str = "") -> None:
        if note:  # training, whose tasks have a note
            os.kill(os.getpid(), signal.SIGTERM)


def test_signal_right_before_validation_resumes_with_it(grammar_pairs: Path, quick: Settings, tmp_path: Path) -> None:
    """The validation is skipped, and resuming starts with it."""
    folder, undisturbed = tmp_path / "model", tmp_path / "undisturbed"
    quick["training"] = {**quick["training"], "validate_every": 1, "max_updates": 3}
    heedful.train(grammar_pairs, undisturbed, settings=quick, report=Moments())
    with pytest.raises(StoppedError):
        heedful.train(grammar_pairs, folder, settings=quick, report=Interrupting())
    assert updates(folder) == [0, 1]
    assert not has_lines(folder / "training" / "metrics.jsonl", 2)()
    report = Moments()
    heedful.resume(folder, report=report)
    assert "update 1, epoch" in report.told
    assert weights(folder) == weights(undisturbed)
    check_finished(folder)


@pytest.mark.long
def test_closed_terminal_saves_and_stops(grammar_pairs: Path, quick_model: Path, tmp_path: Path) -> None:
    """The terminal or the connection is closed: nothing can be printed, but the update is saved."""
    folder = tmp_path / "model"
    pid, terminal = pty.fork()
    if not pid:
        os.environ["OMP_NUM_THREADS"] = "1"
        words = [sys.executable, "-m", "heedful", *quick_train_args(grammar_pairs, folder)]
        os.execv(words[0], words)
    moment, limit = saved(folder, 6), time.monotonic() + 60
    os.set_blocking(terminal, False)
    while not moment() and time.monotonic() < limit:
        try:
            os.read(terminal, 1 << 16)  # a terminal shows what is written to it
        except BlockingIOError:
            time.sleep(0.002)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) in (128 + signal.SIGHUP, -signal.SIGHUP)
    check_checkpoints(folder)
    assert updates(folder)[-1] >= 6
    heedful.resume(folder, report=Moments())
    assert weights(folder) == weights(quick_model)
    check_finished(folder)


def test_sighup_under_nohup_is_ignored(grammar_pairs: Path, quick: Settings, tmp_path: Path) -> None:
    """nohup ignores SIGHUP."""
    folder, before = tmp_path / "model", signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        report = Moments("update 6, ", lambda: os.kill(os.getpid(), signal.SIGHUP))
        heedful.train(grammar_pairs, folder, settings=quick, report=report)
    finally:
        signal.signal(signal.SIGHUP, before)
    check_finished(folder)


PHASES = (
    "reading the corpus",
    "training the tokenizer",
    "encoding",
    "training",
    "validating",
    "training on",
    "writing the model",
)


def phases(command: Command, folder: Path) -> dict[str, Moment]:
    """Moments in every part of the work."""
    training = folder / "training"
    return {
        "reading the corpus": command.has_said("training into"),
        "training the tokenizer": command.has_said("training the "),
        "encoding": exists(training / "data" / "train"),
        "training": saved(folder, 0),
        "validating": has_lines(training / "metrics.jsonl", 1),
        "training on": saved(folder, 6),
        "writing the model": saved(folder, 24),
    }


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_signal_in_every_phase_of_a_command_resumes(
    number: signal.Signals, grammar_pairs: Path, quick_model: Path, tmp_path: Path
) -> None:
    for phase in PHASES:
        folder = tmp_path / phase
        with Command(*quick_train_args(grammar_pairs, folder)) as command:
            command.until(phases(command, folder)[phase])
            command.send(number)
            done = command.ended(SECONDS)
        # The last phase may be over before the signal comes: then there is a model, as without.
        allowed = {128 + number, -number} | ({0} if phase == "writing the model" else set())
        assert done.status in allowed, (phase, done.err)
        assert run_heedful("train", "--resume", folder).status == 0, phase
        assert weights(folder) == weights(quick_model), phase
        check_finished(folder)


@pytest.mark.slow
def test_signal_during_native_code_exits(tmp_path: Path) -> None:
    """Its training is one long call into a library, which hears no signal; SIGTERM ends it all the same."""
    pairs, folder = tmp_path / "pairs.tsv", tmp_path / "model"
    lines = (" ".join(f"{(n * k) % 99991:x}{(n + k) % 7919:o}" for k in range(3, 15)) for n in range(60_000))
    pairs.write_text("".join(f"{line}\t{line[::-1]}\n" for line in lines))
    with Command("train", pairs, "-o", folder, "--set", "tokenizer.model_type=unigram", "--preset", "tiny") as command:
        command.until(command.has_said("training the unigram tokenizer"))
        time.sleep(4)
        stopped(command, signal.SIGTERM, folder)


@pytest.mark.slow
def test_signal_during_autotuning_resumes(grammar_pairs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    longer = ("--set", "training.max_updates=10000000", "--set", "training.threads=2")
    with Command(*quick_train_args(grammar_pairs, folder), *longer) as command:
        command.until(command.has_said("measuring which"))
        time.sleep(1)
        stopped(command, signal.SIGTERM, folder)
    with Command("train", "--resume", folder) as command:
        command.until(saved(folder, 6))
        stopped(command, signal.SIGTERM, folder)
