"""Kills at random moments, from start-up to the last file, each followed by a resume until the run is done.

HEEDFUL_KILLS=80 pytest -s tests/faults/test_random_kills.py -k training
"""

import os
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import quick_train_args, run_heedful
from tests.faults.training_process import Command, Moment, check_checkpoints, check_finished, saved, updates, weights

KILLS = int(os.environ.get("HEEDFUL_KILLS", "3"))
SEED = int(os.environ.get("HEEDFUL_SEED", "7"))
EVERY, LAST = 6, 24
"""Updates between checkpoints, and of the complete training."""
AT_MOST = 4
"""Kills of one training; then it is left alone until it is done."""


def next_words(pairs: Path, folder: Path) -> list[str]:
    """What a user types after a kill: --resume, or the first command again if it had not even begun."""
    begun = (folder / "training" / "run.json").exists()
    return ["train", "--resume", str(folder)] if begun else quick_train_args(pairs, folder)


def phase(folder: Path) -> str:
    """How far a training was when it was killed."""
    training = folder / "training"
    if (folder / "config.json").exists():
        return "the model was written"
    if writes_the_model(folder):
        return "writing the model"
    if not (training / "run.json").exists():
        return "starting"
    if not (training / "data" / "preprocessed.json").exists():
        return "preparing"
    done = updates(folder)
    if not done:
        return "before the first checkpoint"
    return "after the last checkpoint" if done[-1] == LAST else "training"


def writes_the_model(folder: Path) -> bool:
    """Whether it has begun with that."""
    return any(folder.glob("weights.safetensors*"))


@dataclass(frozen=True)
class Timing:
    """Of an undisturbed run: seconds of all, and from one checkpoint to the next."""

    whole: float
    between: float


def timing_of_a_run(pairs: Path, folder: Path) -> Timing:
    started = time.monotonic()
    with Command(*quick_train_args(pairs, folder)) as command:
        learns = command.until(saved(folder, 0)) and time.monotonic()
        ended = command.until(saved(folder, LAST)) and time.monotonic()
        assert command.ended().status == 0
    return Timing(time.monotonic() - started, (ended - learns) / len(range(0, LAST, EVERY)))


def random_moment(folder: Path, dice: random.Random, timing: Timing) -> tuple[Moment, float]:
    """What is waited for, and then for how many seconds; most of a short run is its start, so by chance
    alone few kills would come later."""
    way = dice.choice(("any time", "learning", "learning", "writing the model"))
    if way == "writing the model":
        return (lambda: writes_the_model(folder)), dice.uniform(0, 0.03)
    rest = [update for update in range(0, LAST + 1, EVERY) if update > max(updates(folder), default=-1)]
    if way == "learning" and rest:
        return saved(folder, dice.choice(rest)), dice.uniform(0, timing.between)
    return (lambda: True), dice.uniform(0, timing.whole)


def was_killed(words: list[str], folder: Path, dice: random.Random, timing: Timing) -> bool:
    """Start a command and kill it at a random moment; False if it was quicker."""
    moment, seconds = random_moment(folder, dice, timing)
    with Command(*words) as command:
        while not moment() and command.process.poll() is None:
            time.sleep(0.001)
        time.sleep(seconds)
        if command.process.poll() is not None:
            assert command.ended().status == 0, command.said
            return False
        command.killed()
        return True


def kill_again_and_again(pairs: Path, folder: Path, kills: int, dice: random.Random, timing: Timing) -> Counter[str]:
    """A training that is killed at most so often; returns in which phases it was."""
    found: Counter[str] = Counter()
    while found.total() < kills and not (folder / "config.json").exists():
        if was_killed(next_words(pairs, folder), folder, dice, timing):
            found[phase(folder)] += 1
        check_checkpoints(folder)
    if not (folder / "config.json").exists():
        done = run_heedful(*next_words(pairs, folder))
        assert done.status == 0, done.err
    return found


@pytest.mark.long
def test_training(grammar_pairs: Path, quick_model: Path, tmp_path: Path) -> None:
    timing = timing_of_a_run(grammar_pairs, tmp_path / "timed")
    assert weights(tmp_path / "timed") == weights(quick_model)  # training is a function of its input
    dice, found, trainings = random.Random(SEED), Counter[str](), 0
    while found.total() < KILLS:
        folder = tmp_path / str(trainings)
        left = min(AT_MOST, KILLS - found.total())
        found += kill_again_and_again(grammar_pairs, folder, left, dice, timing)
        assert weights(folder) == weights(quick_model), trainings
        check_finished(folder)
        trainings += 1
    print(f"{found.total()} kills of {trainings} trainings: {dict(found)}")
