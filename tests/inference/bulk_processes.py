"""Bulk translation in separate processes that tests kill: start them, find their workers, wait for them."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.processes import descendants, is_running

RAY_ENGINE = ["--engine", "ctranslate2", "--beam", "1", "--set", "generation.max_length_offset=4"]
"""Fast, and the output does not depend on which worker translates a shard."""

SECONDS = 300
"""How long to wait for a process; on an idle machine everything takes a few seconds."""


def start_bulk(args: Sequence[str | Path], *, hold_after: int | None = None) -> "subprocess.Popen[str]":
    """Start the command line in a process of its own.

    With ``hold_after``, no worker starts to finish a shard once so many are finished, until
    ``release_workers``: the command cannot end before the test has killed what it wants to kill.
    """
    program = ["-m", "heedful"] if hold_after is None else [str(Path(__file__).with_name("held_bulk.py"))]
    return subprocess.Popen(
        [sys.executable, *program, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "HEEDFUL_HOLD_AFTER": str(hold_after)},
    )


def release_workers(folder: Path) -> None:
    """Let the workers held by ``start_bulk`` finish their shards."""
    (folder / "incomplete" / "released").touch()


def find_workers(pid: int) -> list[int]:
    """The process ids of the workers that translate for a command."""
    return [
        worker
        for worker, command in descendants(pid).items()
        if command.startswith(("ray::ShardWorker", "ray::HeldWorker"))
    ]


def wait_for_shards(folder: Path, count: int, process: "subprocess.Popen[str]", *, pattern: str = "0*.json") -> None:
    """Wait until so many shards are finished, or so many files match a pattern."""
    deadline = time.monotonic() + SECONDS
    while len(list(folder.glob(pattern))) < count:
        assert time.monotonic() < deadline, f"fewer than {count} files match {pattern}"
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)


def wait_for_exit(pids: Sequence[int]) -> None:
    """Wait until all these processes have exited."""
    deadline = time.monotonic() + SECONDS
    while running := list(filter(is_running, pids)):
        assert time.monotonic() < deadline, f"still running: {running}"
        time.sleep(0.1)
