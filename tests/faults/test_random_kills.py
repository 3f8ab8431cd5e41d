"""Kills at random times, from startup to the last file, each followed by a resume until the run is complete.

HEEDFUL_KILLS=80 HEEDFUL_SEED=7 pytest -s tests/faults/test_random_kills.py
"""

import os
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import quick_train_args, run_heedful
from tests.faults.training_process import (
    Command,
    Condition,
    check_checkpoints,
    check_finished,
    has_checkpoint,
    updates,
    weights,
)

KILL_COUNT = int(os.environ.get("HEEDFUL_KILLS", "3"))
SEED = int(os.environ.get("HEEDFUL_SEED", "7"))
CHECKPOINT_INTERVAL, LAST_UPDATE = 6, 24
"""Updates between checkpoints, and of the complete run."""
MAX_KILLS_PER_RUN = 4
"""After this many kills a run may finish."""


def next_args(pairs: Path, folder: Path) -> list[str]:
    """What a user runs after a kill: --resume, or the same command again if the run was not created yet."""
    has_started = (folder / "training" / "run.json").exists()
    return ["train", "--resume", str(folder)] if has_started else quick_train_args(pairs, folder)


def phase(folder: Path) -> str:
    """The phase in which a run was killed."""
    training = folder / "training"
    if (folder / "config.json").exists():
        return "model complete"
    if is_writing_model(folder):
        return "writing the model"
    if not (training / "run.json").exists():
        return "starting"
    if not (training / "data" / "preprocessed.json").exists():
        return "preprocessing"
    saved_updates = updates(folder)
    if not saved_updates:
        return "before the first checkpoint"
    return "after the last checkpoint" if saved_updates[-1] == LAST_UPDATE else "training"


def is_writing_model(folder: Path) -> bool:
    """Whether the first file of the model exists."""
    return any(folder.glob("weights.safetensors*"))


@dataclass(frozen=True)
class Timing:
    """Seconds of an uninterrupted run, in total and from one checkpoint to the next."""

    total: float
    between_checkpoints: float


def measure_timing(pairs: Path, folder: Path) -> Timing:
    start_time = time.monotonic()
    with Command(*quick_train_args(pairs, folder)) as command:
        first_save = command.wait_for(has_checkpoint(folder, 0)) and time.monotonic()
        last_save = command.wait_for(has_checkpoint(folder, LAST_UPDATE)) and time.monotonic()
        assert command.wait().status == 0
    return Timing(
        time.monotonic() - start_time, (last_save - first_save) / len(range(0, LAST_UPDATE, CHECKPOINT_INTERVAL))
    )


def choose_kill_time(folder: Path, rng: random.Random, timing: Timing) -> tuple[Condition, float]:
    """A condition to wait for and a delay after it.

    Most of a short run is startup: with uniformly random times, few kills would come later.
    """
    choice = rng.choice(("any time", "training", "training", "writing the model"))
    if choice == "writing the model":
        return (lambda: is_writing_model(folder)), rng.uniform(0, 0.03)
    later_updates = [
        update for update in range(0, LAST_UPDATE + 1, CHECKPOINT_INTERVAL) if update > max(updates(folder), default=-1)
    ]
    if choice == "training" and later_updates:
        return has_checkpoint(folder, rng.choice(later_updates)), rng.uniform(0, timing.between_checkpoints)
    return (lambda: True), rng.uniform(0, timing.total)


def kill_at_random_time(args: list[str], folder: Path, rng: random.Random, timing: Timing) -> bool:
    """Start a command and kill it at a random time; False if it finished first."""
    condition, delay = choose_kill_time(folder, rng, timing)
    with Command(*args) as command:
        while not condition() and command.process.poll() is None:
            time.sleep(0.001)
        time.sleep(delay)
        if command.process.poll() is not None:
            assert command.wait().status == 0, command.stderr
            return False
        command.kill()
        return True


def kill_and_resume(pairs: Path, folder: Path, kills: int, rng: random.Random, timing: Timing) -> Counter[str]:
    """Kill a run at most this often, then let it finish; returns how many kills hit each phase."""
    phases: Counter[str] = Counter()
    while phases.total() < kills and not (folder / "config.json").exists():
        if kill_at_random_time(next_args(pairs, folder), folder, rng, timing):
            phases[phase(folder)] += 1
        check_checkpoints(folder)
    if not (folder / "config.json").exists():
        result = run_heedful(*next_args(pairs, folder))
        assert result.status == 0, result.err
    return phases


@pytest.mark.long
def test_train_killed_at_random_times_resumes_bit_exactly(
    grammar_pairs: Path, quick_model: Path, tmp_path: Path
) -> None:
    timing = measure_timing(grammar_pairs, tmp_path / "timed")
    assert weights(tmp_path / "timed") == weights(quick_model)  # training is deterministic
    rng, phases, runs = random.Random(SEED), Counter[str](), 0
    while phases.total() < KILL_COUNT:
        folder = tmp_path / str(runs)
        kills = min(MAX_KILLS_PER_RUN, KILL_COUNT - phases.total())
        phases += kill_and_resume(grammar_pairs, folder, kills, rng, timing)
        assert weights(folder) == weights(quick_model), runs
        check_finished(folder)
        runs += 1
    print(f"{phases.total()} kills of {runs} runs: {dict(phases)}")
