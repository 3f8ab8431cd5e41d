"""Asked to stop, by Ctrl-C, a scheduler or a closed terminal, at any moment: it does, and can go on later."""

import os
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
from heedful.progress import Task
from tests.conftest import quick_train_words, run_heedful
from tests.faults.conftest import Moments
from tests.faults.harness import (
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
"""In which a process ends that was asked to: schedulers wait 30."""
LONG_EXAMINATIONS = ("--set", "training.bleu_sentences=200", "--set", "training.held_out=200")


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        *((signal.SIGTERM, each) for each in (" to learn from", "parameters on", "update 6, ", "weights: ")),
        (signal.SIGHUP, "training the "),
        (signal.SIGINT, "training the "),
        (signal.SIGINT, "update 6, "),
    ],
)
def test_at_every_moment(
    number: signal.Signals,
    moment: str,
    grammar_pairs: Path,
    quick_model: Path,
    quick: Settings,
    tmp_path: Path,
) -> None:
    """In this process: between two phases of the work, and in the loop."""
    folder = tmp_path / "model"
    report = Moments(moment, lambda: os.kill(os.getpid(), number))
    before = [signal.getsignal(each) for each in SIGNALS]
    with pytest.raises(StoppedError) as caught:
        heedful.train(grammar_pairs, folder, languages=("en", "fr"), settings=quick, report=report)
    assert caught.value.signal_number == number
    assert caught.value.hint.endswith(f"go on with: heedful train --resume {folder}")
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
    assert f"go on with: heedful train --resume {folder}" in done.err
    check_checkpoints(folder)


@pytest.mark.long
def test_while_validating(grammar_pairs: Path, tmp_path: Path) -> None:
    """The examination is not waited for: the update is saved, and going on begins with the examination."""
    folder, undisturbed = tmp_path / "model", tmp_path / "undisturbed"
    assert run_heedful(*quick_train_words(grammar_pairs, undisturbed), *LONG_EXAMINATIONS).status == 0
    with Command(*quick_train_words(grammar_pairs, folder), *LONG_EXAMINATIONS) as command:
        command.until(has_lines(folder / "training" / "metrics.jsonl", 1))
        stopped(command, signal.SIGTERM, folder)
    assert updates(folder)[-1] == 6
    assert '"validation_loss"' not in (folder / "training" / "metrics.jsonl").read_text()
    heedful.resume(folder, report=Moments())
    assert weights(folder) == weights(undisturbed)
    check_finished(folder)


class Interrupting(Moments):
    """A reporter that is told of the first update, and sends a signal before anything else is done."""

    @contextmanager
    def task(self, label: str, total: int | None = None, done: int = 0, unit: str = "") -> Iterator[Task]:
        yield self

    def advance(self, amount: int = 1, note: str = "") -> None:
        if note:  # training, whose tasks have a note
            os.kill(os.getpid(), signal.SIGTERM)


def test_right_before_an_examination(grammar_pairs: Path, quick: Settings, tmp_path: Path) -> None:
    """It is made up for when the run goes on, not waited for."""
    folder, undisturbed = tmp_path / "model", tmp_path / "undisturbed"
    quick["training"] = {**quick["training"], "validate_every": 1, "updates": 3}
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


def test_the_terminal_is_closed(grammar_pairs: Path, quick_model: Path, tmp_path: Path) -> None:
    """Its window, or the connection to it: nothing can be said any more, and the update is saved."""
    folder = tmp_path / "model"
    pid, terminal = pty.fork()
    if not pid:
        os.environ["OMP_NUM_THREADS"] = "1"
        words = [sys.executable, "-m", "heedful", *quick_train_words(grammar_pairs, folder)]
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


def test_nohup(grammar_pairs: Path, quick: Settings, tmp_path: Path) -> None:
    """Who has told it to ignore a closed terminal is obeyed."""
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
        "reading the corpus": command.has_said("training a model into"),
        "training the tokenizer": command.has_said("training the "),
        "encoding": exists(training / "data" / "training"),
        "training": saved(folder, 0),
        "validating": has_lines(training / "metrics.jsonl", 1),
        "training on": saved(folder, 6),
        "writing the model": saved(folder, 24),
    }


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_in_every_phase_of_a_real_command(
    number: signal.Signals, grammar_pairs: Path, quick_model: Path, tmp_path: Path
) -> None:
    for phase in PHASES:
        folder = tmp_path / phase
        with Command(*quick_train_words(grammar_pairs, folder)) as command:
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
def test_a_tokenizer_that_does_not_listen(tmp_path: Path) -> None:
    """Its training is one long call into a library, which hears no signal; SIGTERM ends it all the same."""
    pairs, folder = tmp_path / "pairs.tsv", tmp_path / "model"
    lines = (" ".join(f"{(n * k) % 99991:x}{(n + k) % 7919:o}" for k in range(3, 15)) for n in range(60_000))
    pairs.write_text("".join(f"{line}\t{line[::-1]}\n" for line in lines))
    with Command(
        "train", pairs, "-o", folder, "--set", "tokenizer.kind=unigram", "--preset", "tiny"
    ) as command:
        command.until(command.has_said("training the unigram tokenizer"))
        time.sleep(4)
        stopped(command, signal.SIGTERM, folder)


@pytest.mark.slow
def test_while_trying_out(grammar_pairs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    longer = ("--set", "training.updates=10000000", "--set", "training.threads=2")
    with Command(*quick_train_words(grammar_pairs, folder), *longer) as command:
        command.until(command.has_said("trying out how"))
        time.sleep(1)
        stopped(command, signal.SIGTERM, folder)
    with Command("train", "--resume", folder) as command:
        command.until(saved(folder, 6))
        stopped(command, signal.SIGTERM, folder)
