"""Random kills of a group of processes under torchrun: any rank, at any time.

    python -m tests.faults.group_kills KILLS

A training of three processes is killed rank by rank, and torchrun restarts it; now and then torchrun itself
is killed too, and the same command given again. In the end its examinations are compared with those of one
process that nobody disturbed.
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
from tests.training.test_distributed import SAME, ranks_of, start, validation

TOLD = ("--set", "training.max_updates=1500", "--set", "training.validate_every=250", *SAME)
TORCHRUN = 0.1
"""Fraction of the kills that hit torchrun with all its processes."""


def main(kills: int, seed: int = 3) -> None:
    dice, hit = random.Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory() as scratch:
        pairs, alone, folder = (Path(scratch) / name for name in ("pairs.tsv", "alone", "group"))
        write_tsv([(pair.source, pair.target) for pair in generate_pairs(600)], pairs)
        assert run_heedful(*quick_train_args(pairs, alone), *TOLD).status == 0
        words = [*quick_train_args(pairs, folder), *TOLD]
        process = start(3, *words)
        while sum(hit.values()) < kills and process.poll() is None:
            time.sleep(dice.uniform(0.5, 9.0))
            ranks = ranks_of(process.pid)
            if dice.random() < TORCHRUN:
                for pid in (process.pid, *ranks):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                process.communicate()
                hit["torchrun and all"] += 1
                process = start(3, *words)
            elif ranks:
                rank = dice.randrange(len(ranks))
                with suppress(ProcessLookupError):
                    os.kill(ranks[rank], signal.SIGKILL)
                hit[f"rank {rank}"] += 1
        said, _ = process.communicate(timeout=900)
        assert process.returncode == 0, said[-3000:]
        print(f"{sum(hit.values())} kills: {dict(sorted(hit.items()))}")
        print("examinations:", *(f"{loss:.4f}" for loss in validation(folder)))
        print("undisturbed: ", *(f"{loss:.4f}" for loss in validation(alone)), flush=True)
        # Another number of processes rounds otherwise, and what little there is to learn is soon overlearned.
        assert validation(folder) == pytest.approx(validation(alone), rel=2e-2)


if __name__ == "__main__":
    main(int(sys.argv[1]))
