"""Training through every interruption: the same result to the bit, and never a broken checkpoint."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors import safe_open

from heedful.training.checkpoint import checkpoints, read_state
from tests.conftest import quick_train_words, run_heedful

LONGER = ("--set", "training.updates=300", "--set", "training.validate_every=100")


def start(*words: str | Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "heedful", *map(str, words)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def weights(folder: Path) -> bytes:
    return (folder / "weights.safetensors").read_bytes()


def check_checkpoints_whole(folder: Path) -> None:
    for path in checkpoints(folder / "training" / "checkpoints"):
        assert read_state(path).update == int(path.name)
        for name in ("weights", "optimizer"):
            with safe_open(path / f"{name}.safetensors", "pt") as file:
                assert file.keys() or int(path.name) == 0  # Adam has no moments before the first update


def resume_words(pairs: Path, folder: Path) -> list[str]:
    """What a user types after a kill: --resume, or the first command again if it had not even begun."""
    begun = (folder / "training" / "run.json").exists()
    return ["train", "--resume", str(folder)] if begun else quick_train_words(pairs, folder)


def seconds_of_a_run(pairs: Path, folder: Path) -> float:
    started = time.monotonic()
    assert run_heedful(*quick_train_words(pairs, folder)).status == 0
    return time.monotonic() - started


def kill_after(seconds: float, words: list[str], folder: Path) -> None:
    """Start a training, kill it outright, and look at what it left."""
    process = start(*words)
    time.sleep(seconds)
    process.kill()
    process.communicate()
    check_checkpoints_whole(folder)


def test_killed_again_and_again(grammar_pairs: Path, quick_model: Path, tmp_path: Path) -> None:
    seconds = seconds_of_a_run(grammar_pairs, tmp_path / "timed")
    assert weights(tmp_path / "timed") == weights(quick_model)  # training is a function of its input
    folder, dice = tmp_path / "killed", random.Random(7)
    for _ in range(4):
        kill_after(dice.uniform(0.3, 1.0) * seconds, resume_words(grammar_pairs, folder), folder)
    done = run_heedful(*resume_words(grammar_pairs, folder))
    assert done.status == 0, done.err
    assert weights(folder) == weights(quick_model)


@pytest.mark.slow
def test_killed_at_twenty_random_moments(grammar_pairs: Path, quick_model: Path, tmp_path: Path) -> None:
    seconds = seconds_of_a_run(grammar_pairs, tmp_path / "timed")
    dice = random.Random(11)
    for number in range(20):
        folder = tmp_path / str(number)
        kill_after(dice.uniform(0.2, 1.0) * seconds, quick_train_words(grammar_pairs, folder), folder)
        done = run_heedful(*resume_words(grammar_pairs, folder))
        assert done.status == 0, done.err
        assert weights(folder) == weights(quick_model), number


@pytest.fixture(scope="module")
def long_model(grammar_pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quick run with so many updates that a signal surely comes in time."""
    folder = tmp_path_factory.mktemp("long") / "model"
    assert run_heedful(*quick_train_words(grammar_pairs, folder), *LONGER).status == 0
    return folder


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop(number: signal.Signals, grammar_pairs: Path, long_model: Path, tmp_path: Path) -> None:
    """Ctrl-C and SIGTERM: the update is finished and saved, the exit status says which, nothing is lost."""
    folder = tmp_path / "model"
    process = start(*quick_train_words(grammar_pairs, folder), *LONGER)
    metrics = folder / "training" / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(number)
    _, told = process.communicate(timeout=300)
    assert process.returncode == 128 + number, told
    assert f"heedful train --resume {folder}" in told.decode()
    assert f"\nstopped by {'Ctrl-C' if number == signal.SIGINT else 'SIGTERM'}\n" in told.decode()
    saved = checkpoints(folder / "training" / "checkpoints")
    assert 0 < int(saved[-1].name) < 300
    assert run_heedful("train", "--resume", folder).status == 0
    assert weights(folder) == weights(long_model)
