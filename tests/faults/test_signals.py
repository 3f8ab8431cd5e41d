"""Signals (Ctrl-C, a scheduler, a closed terminal) stop training at any time, and it can be resumed."""

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
from tests.faults.conftest import TriggerReporter
from tests.faults.training_process import (
    Command,
    check_checkpoints,
    check_finished,
    has_checkpoint,
    has_lines,
    updates,
    weights,
)
from tests.stop_points import TIMEOUT, StopPoint, has_stopped, stop_at_message

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
UPDATE = "heedful.training.distributed:Replica.update"


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        *((signal.SIGTERM, message) for message in (" to train on", "parameters on", "update 6, ", "weights: ")),
        (signal.SIGHUP, "training the "),
        (signal.SIGINT, "training the "),
        (signal.SIGINT, "update 6, "),
    ],
)
@pytest.mark.long
def test_signal_at_message_resumes_bit_exactly(
    sent: signal.Signals, message: str, grammar_pairs: Path, quick_model: Path, quick: Settings, tmp_path: Path
) -> None:
    """In this process: between two phases, and in the training loop."""
    folder = tmp_path / "model"
    report = TriggerReporter(message, lambda: os.kill(os.getpid(), sent))
    before = [signal.getsignal(signal_number) for signal_number in SIGNALS]
    with pytest.raises(StoppedError) as caught:
        heedful.train(grammar_pairs, folder, languages=("en", "fr"), settings=quick, report=report)
    assert caught.value.signal_number == sent
    assert caught.value.hint.endswith(f"resume with: heedful train --resume {folder}")
    assert [signal.getsignal(signal_number) for signal_number in SIGNALS] == before
    assert not (folder / "config.json").exists()
    check_checkpoints(folder)
    heedful.resume(folder, report=TriggerReporter())
    assert weights(folder) == weights(quick_model)
    check_finished(folder)


def check_stop(command: Command, number: signal.Signals, folder: Path) -> None:
    """Send a signal: the command stops, prints how to resume, and leaves valid checkpoints."""
    result = command.send(number).resume().wait()
    assert result.status == 128 + number, result.err
    assert f"\nstopped by {'Ctrl-C' if number == signal.SIGINT else number.name}\n" in result.err
    assert f"resume with: heedful train --resume {folder}" in result.err
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
    original_function = pkgutil.resolve_name(f"heedful.training.{function}")

    def send_signal(first: object, second: object, *others: object) -> object:
        if updates(folder) == [0] and second != 0:  # the first validation, or right before it
            monkeypatch.undo()
            os.kill(os.getpid(), signal.SIGTERM)
        return original_function(first, second, *others)

    monkeypatch.setattr(f"heedful.training.{function}", send_signal)
    with pytest.raises(StoppedError):
        heedful.train(grammar_pairs, folder, languages=("en", "fr"), settings=quick, report=TriggerReporter())
    assert updates(folder)[-1] == 6
    assert '"validation_loss"' not in (folder / "training" / "metrics.jsonl").read_text()
    heedful.resume(folder, report=TriggerReporter())
    assert weights(folder) == weights(quick_model)
    check_finished(folder)


class InterruptingReporter(TriggerReporter):
    """A reporter that sends a signal right after the first update."""

    @contextmanager
    def task(self, label: str, total: int | None = None, done: int = 0, unit: str = "") -> Iterator[ProgressTask]:
        yield self

    def advance(self, amount: int = 1, note: str = "") -> None:
        if note:  # training, whose tasks have a note
            os.kill(os.getpid(), signal.SIGTERM)


def test_signal_right_before_validation_resumes_with_it(grammar_pairs: Path, quick: Settings, tmp_path: Path) -> None:
    """The validation is skipped, and resuming starts with it."""
    folder, reference = tmp_path / "model", tmp_path / "reference"
    quick["training"] = {**quick["training"], "validate_every": 1, "max_updates": 3}
    heedful.train(grammar_pairs, reference, settings=quick, report=TriggerReporter())
    with pytest.raises(StoppedError):
        heedful.train(grammar_pairs, folder, settings=quick, report=InterruptingReporter())
    assert updates(folder) == [0, 1]
    assert not has_lines(folder / "training" / "metrics.jsonl", 2)
    report = TriggerReporter()
    heedful.resume(folder, report=report)
    assert "update 1, epoch" in report.messages
    assert weights(folder) == weights(reference)
    check_finished(folder)


@pytest.mark.long
def test_closed_terminal_saves_and_stops(grammar_pairs: Path, quick_model: Path, tmp_path: Path) -> None:
    """The terminal or the connection is closed: nothing can be printed, but the update is saved."""
    folder = tmp_path / "model"
    pid, terminal = pty.fork()
    if not pid:
        os.environ["OMP_NUM_THREADS"] = "1"
        command = [*StopPoint(UPDATE, [8]).program(), *quick_train_args(grammar_pairs, folder)]
        os.execv(command[0], command)
    deadline = time.monotonic() + TIMEOUT
    os.set_blocking(terminal, False)
    while not has_stopped(pid):
        assert time.monotonic() < deadline, "the process did not reach its stop point"
        try:
            os.read(terminal, 1 << 16)  # so that the process does not block when the buffer is full
        except BlockingIOError:
            time.sleep(0.002)
    os.close(terminal)  # sends SIGHUP and SIGCONT
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) in (128 + signal.SIGHUP, -signal.SIGHUP)
    check_checkpoints(folder)
    assert updates(folder)[-1] >= 6
    heedful.resume(folder, report=TriggerReporter())
    assert weights(folder) == weights(quick_model)
    check_finished(folder)


def test_sighup_under_nohup_is_ignored(grammar_pairs: Path, quick: Settings, tmp_path: Path) -> None:
    """nohup starts a process with SIGHUP ignored."""
    folder, before = tmp_path / "model", signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        report = TriggerReporter("update 6, ", lambda: os.kill(os.getpid(), signal.SIGHUP))
        heedful.train(grammar_pairs, folder, settings=quick, report=report)
    finally:
        signal.signal(signal.SIGHUP, before)
    check_finished(folder)


PHASES = {
    "reading the corpus": stop_at_message("training into"),
    "training the tokenizer": stop_at_message("training the "),
    "encoding": StopPoint("heedful.data.dataset:TokenDatasetWriter.add", [100]),
    "training": StopPoint(UPDATE, [3]),
    "validating": StopPoint("heedful.training.trainer:validate"),
    "training after a validation": StopPoint(UPDATE, [8]),
    "writing the model": stop_at_message("weights: "),
}


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_signal_in_every_phase_of_a_command_resumes(
    number: signal.Signals, grammar_pairs: Path, quick_model: Path, tmp_path: Path
) -> None:
    for phase, stop_point in PHASES.items():
        folder = tmp_path / phase
        with Command(*quick_train_args(grammar_pairs, folder), stop_point=stop_point) as command:
            result = command.wait_until_stopped().send(number).resume().wait()
        assert result.status in (128 + number, -number), (phase, result.err)
        assert run_heedful("train", "--resume", folder).status == 0, phase
        assert weights(folder) == weights(quick_model), phase
        check_finished(folder)


@pytest.mark.slow
def test_signal_during_tokenizer_training_exits(tmp_path: Path) -> None:
    """Unigram training is one long call of native code, during which Python's signal handlers do not run."""
    pairs, folder = tmp_path / "pairs.tsv", tmp_path / "model"
    lines = (" ".join(f"{(n * k) % 99991:x}{(n + k) % 7919:o}" for k in range(3, 15)) for n in range(60_000))
    pairs.write_text("".join(f"{line}\t{line[::-1]}\n" for line in lines))
    args = ("train", pairs, "-o", folder, "--set", "tokenizer.model_type=unigram", "--preset", "tiny")
    with Command(*args, stop_point=stop_at_message("training the unigram tokenizer")) as command:
        command.wait_until_stopped().resume()
        time.sleep(4)  # until it is in native code
        check_stop(command, signal.SIGTERM, folder)


ENDLESS_NATIVE_CALL = """
import hashlib, runpy, sys
from heedful.tokenization.pair_tokenizer import PairTokenizer

def run_native_code(*args, **options):
    print("in native code", file=sys.stderr, flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # takes many minutes

PairTokenizer.train = run_native_code
runpy.run_module("heedful", run_name="__main__", alter_sys=True)
"""


@pytest.mark.long
def test_signal_during_endless_native_call_exits(grammar_pairs: Path, tmp_path: Path) -> None:
    """SIGTERM ends the process without waiting for native code to return."""
    folder, program = tmp_path / "model", (sys.executable, "-c", ENDLESS_NATIVE_CALL)
    with Command(*quick_train_args(grammar_pairs, folder), program=program) as command:
        command.wait_for(lambda: "in native code" in command.stderr)
        check_stop(command, signal.SIGTERM, folder)


@pytest.mark.slow
def test_signal_during_autotuning_resumes(grammar_pairs: Path, tmp_path: Path) -> None:
    folder, point = tmp_path / "model", StopPoint("heedful.training.autotune:measure_speeds")
    values = ("max_updates=10000000", "validate_every=1", "threads=2")
    settings = [arg for value in values for arg in ("--set", f"training.{value}")]
    with Command(*quick_train_args(grammar_pairs, folder), *settings, stop_point=point) as command:
        check_stop(command.wait_until_stopped(), signal.SIGTERM, folder)
    with Command("train", "--resume", folder) as command:
        command.wait_for(has_checkpoint(folder, 1))
        check_stop(command, signal.SIGTERM, folder)
