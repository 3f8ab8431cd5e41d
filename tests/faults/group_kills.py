"""Random kills of a group of processes under torchrun: any rank, at any time.

    python -m tests.faults.group_kills KILLS

Ranks of a training run with three processes are killed, and torchrun restarts the group; sometimes torchrun itself
is killed, alone or with all ranks, and the same command is run again when no rank is left. When a run ends before
the last kill, another one starts. The validation losses are compared with those of one uninterrupted process.
"""

import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from heedful.data.demo_corpus.grammar import generate_pairs
from heedful.data.reader import write_tsv
from tests.conftest import quick_train_args, run_heedful
from tests.faults.training_process import wait_for_exit
from tests.training.test_distributed import SAME, ranks_of, start, validation

SETTINGS = ("--set", "training.max_updates=1500", "--set", "training.validate_every=250", *SAME)
TORCHRUN_FRACTION = 0.2
"""Fraction of the kills that hit torchrun, every second time with all its processes."""


def main(kills: int, seed: int = 3) -> None:
    rng, targets = random.Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory() as scratch:
        pairs, reference = (Path(scratch) / name for name in ("pairs.tsv", "reference"))
        write_tsv([(pair.source, pair.target) for pair in generate_pairs(600)], pairs)
        assert run_heedful(*quick_train_args(pairs, reference), *SETTINGS).status == 0
        print("uninterrupted:    ", *(f"{loss:.4f}" for loss in validation(reference)), flush=True)
        while sum(targets.values()) < kills:
            folder = Path(scratch) / f"group-{sum(targets.values())}"
            train_with_kills([*quick_train_args(pairs, folder), *SETTINGS], kills, targets, rng)
            print(f"{sum(targets.values())} kills: {dict(sorted(targets.items()))}")
            print("validation losses:", *(f"{loss:.4f}" for loss in validation(folder)), flush=True)
            # Another number of processes rounds differently, and the model soon overfits the small corpus.
            assert validation(folder) == pytest.approx(validation(reference), rel=2e-2)


def train_with_kills(args: list[str], kills: int, targets: Counter[str], rng: random.Random) -> None:
    """Train to the end, killing processes until there were enough kills."""
    process = start(3, *args)
    while sum(targets.values()) < kills and process.poll() is None:
        time.sleep(rng.uniform(0.5, 9.0))
        ranks = ranks_of(process.pid)
        if process.poll() is not None:
            break
        if rng.random() < TORCHRUN_FRACTION:
            together = rng.random() < 0.5
            for pid in (process.pid, *ranks) if together else (process.pid,):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
            wait_for_exit(ranks)
            targets["torchrun with all ranks" if together else "torchrun"] += 1
            process = start(3, *args)
        elif ranks:
            rank = rng.randrange(len(ranks))
            with suppress(ProcessLookupError):
                os.kill(ranks[rank], signal.SIGKILL)
            targets[f"rank {rank}"] += 1
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output[-3000:]


if __name__ == "__main__":
    main(int(sys.argv[1]))
