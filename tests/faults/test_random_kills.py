"""Killed outright at random moments, from start-up to the last file, and taken up again until it is done.

HEEDFUL_KILLS=80 pytest -s tests/faults/test_random_kills.py -k training
"""

import os
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import quick_train_words, run_heedful
from tests.faults.harness import Command, Moment, check_checkpoints, check_finished, saved, updates, weights

KILLS = int(os.environ.get("HEEDFUL_KILLS", "3"))
SEED = int(os.environ.get("HEEDFUL_SEED", "7"))
PREPARED = "parameters on"
"""What a training says when it is about to learn, or to go on with it."""
AT_MOST = 4
"""Kills of one training; then it is left alone until it is done."""


def next_words(pairs: Path, folder: Path) -> list[str]:
    """What a user types after a kill: --resume, or the first command again if it had not even begun."""
    begun = (folder / "training" / "run.json").exists()
    return ["train", "--resume", str(folder)] if begun else quick_train_words(pairs, folder)


def phase(folder: Path) -> str:
    """How far a training was when it was killed."""
    training = folder / "training"
    if (folder / "config.json").exists():
        return "the model was written"
    if any(folder.glob("weights.safetensors*")):
        return "writing the model"
    if not (training / "run.json").exists():
        return "starting"
    if not (training / "data" / "prepared.json").exists():
        return "preparing"
    done = updates(folder)
    if not done:
        return "before the first checkpoint"
    return "after the last checkpoint" if done[-1] == 24 else "training"


@dataclass(frozen=True)
class Timing:
    """Of an undisturbed run: seconds of all, and of what comes after the preparation."""

    whole: float
    learning: float


def learns(command: Command, folder: Path) -> Moment:
    """The moment at which it begins to learn, or to go on with it."""
    return lambda: PREPARED in command.said and saved(folder, 0)()


def timing_of_a_run(pairs: Path, folder: Path) -> Timing:
    started = time.monotonic()
    with Command(*quick_train_words(pairs, folder)) as command:
        prepared = command.until(learns(command, folder)) and time.monotonic()
        assert command.ended().status == 0
    return Timing(time.monotonic() - started, time.monotonic() - prepared)


def was_killed(words: list[str], folder: Path, dice: random.Random, timing: Timing) -> bool:
    """Start a command and kill it at a random moment of the whole, or of the end; False if it was quicker."""
    with Command(*words) as command:
        if dice.random() < 0.5:  # most of a short run is its start
            command.until(learns(command, folder))
            time.sleep(dice.uniform(0, timing.learning))
        else:
            time.sleep(dice.uniform(0, timing.whole))
        if command.process.poll() is not None:
            assert command.ended().status == 0, command.said
            return False
        command.killed()
        return True


def kill_again_and_again(
    pairs: Path, folder: Path, kills: int, dice: random.Random, timing: Timing
) -> Counter[str]:
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
