"""Very many damaged files for every reader, and a table of what became of them.

    python -m tests.fuzzing.campaign [SECONDS EACH] [PART OF A NAME]

The readers run in a child process whose memory is bounded: a file that claims to be huge must not be
believed. One that brings the whole process down (a fault of a library in C) is counted as a crash, and the
next goes on.
"""

import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MEMORY = 6 << 30
"""Bytes of address space; PyTorch alone takes a half of it."""
MOST = 100_000
"""Inputs of a reader."""
QUICK = Path("/dev/shm")
"""A disk in memory: readers that write sync their files, which would take most of the time."""
COLUMNS = f"{'reader':36} {'inputs':>8} {'accepted':>9} {'refused':>8} {'crashes':>8} {'seconds':>8}"


def main(seconds: float, part: str) -> int:
    """Try all; the number of crashes."""
    from tests.fuzzing.readers import READERS

    names = [reader.name for reader in READERS if part in reader.name]
    print(COLUMNS)
    rows: list[dict[str, Any]] = []
    while len(rows) < len(names):
        rows += _child(names[len(rows) :], seconds)
    total = {key: sum(row[key] for row in rows) for key in ("inputs", "accepted", "refused", "crashed", "seconds")}
    print(_line({"name": f"all {len(rows)}", **total}))
    return int(total["crashed"])


def _child(names: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    """What a child reports of these readers, as far as it comes."""
    words = [sys.executable, "-W", "ignore", "-m", "tests.fuzzing.campaign", "--child", str(seconds), *names]
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True) as child,
    ):
        assert child.stdout
        for text in child.stdout:
            rows.append(json.loads(text))
            _show(rows[-1])
        if child.wait() and len(rows) < len(names):
            log.seek(0)
            ends = log.read()[-2000:]
            fault = {f"the process ended with {child.returncode}: {ends}": ""}
            tried = {"inputs": 1, "accepted": 0, "refused": 0, "crashed": 1, "seconds": 0.0}
            rows.append({"name": names[len(rows)], **tried, "crashes": fault})
            _show(rows[-1])
    return rows


def _show(row: dict[str, Any]) -> None:
    print(_line(row), flush=True)
    for crash, data in row["crashes"].items():
        print(f"    {crash}\n      {data}", flush=True)


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['name']:36} {row['inputs']:8,} {row['accepted']:9,} {row['refused']:8,} {row['crashed']:8,} "
        f"{row['seconds']:8.0f}"
    )


def _work(seconds: float, names: Sequence[str]) -> None:
    """In the child: try the readers of these names, a line of JSON each."""
    from tests.fuzzing.readers import READERS
    from tests.fuzzing.runner import try_all

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer of ours
    for reader in READERS:
        if reader.name not in names:
            continue
        started = time.monotonic()
        with tempfile.TemporaryDirectory(dir=QUICK if QUICK.is_dir() else None) as folder:
            tally = try_all(reader, Path(folder) / "folder", MOST, seconds)
        told = {
            "name": reader.name,
            "inputs": tally.inputs,
            "accepted": tally.accepted,
            "refused": tally.refused,
            "crashed": tally.crashed,
            "crashes": {name: ascii(data[:400]) for name, data in tally.crashes.items()},
            "seconds": round(time.monotonic() - started, 1),
        }
        print(json.dumps(told), file=answers, flush=True)
    with contextlib.suppress(OSError):
        answers.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _work(float(sys.argv[2]), sys.argv[3:])
    else:
        given = sys.argv[1:]
        sys.exit(bool(main(float(given[0]) if given else 20.0, given[1] if len(given) > 1 else "")))
