"""Bulk translation as real processes, which tests kill: who they are, and what is left of them."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.processes import descendants, is_running

RAY_ENGINE = ["--engine", "ctranslate2", "--beam", "1", "--set", "generation.max_length_offset=4"]
"""Quick, and the same to the byte whoever translates."""


def begun(words: Sequence[str | Path]) -> "subprocess.Popen[str]":
    """The command line in a process of its own that goes on meanwhile."""
    return subprocess.Popen(
        [sys.executable, "-m", "heedful", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
    )


def workers_of(pid: int) -> list[int]:
    """The workers that translate for a command."""
    return [each for each, command in descendants(pid).items() if command.startswith("ray::MapWorker")]


def wait_for_shards(folder: Path, count: int, run: "subprocess.Popen[str]", seconds: float = 90) -> None:
    """Wait until so many shards are finished."""
    deadline = time.monotonic() + seconds
    while len(list(folder.glob("0*.json"))) < count:
        assert time.monotonic() < deadline, "no shard was finished"
        assert run.poll() is None, run.communicate()[1]
        time.sleep(0.01)


def ended(pids: Sequence[int], seconds: float = 30) -> bool:
    """Whether all processes end within some time."""
    deadline = time.monotonic() + seconds
    while any(map(is_running, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
