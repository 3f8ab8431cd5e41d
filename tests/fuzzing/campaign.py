"""Fuzz every reader with many corrupt files and print a table of the outcomes.

    python -m tests.fuzzing.campaign [SECONDS PER READER] [PART OF A READER NAME]

The readers run in a child process with limited memory, so that a file that claims to be huge fails. If a reader
ends the process (a fault in a C library), that counts as a crash, and a new child continues with the next reader.
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

MEMORY_LIMIT = 6 << 30
"""Bytes of address space; PyTorch alone uses half of it."""
MAX_INPUTS = 100_000
"""Per reader."""
MEMORY_DISK = Path("/dev/shm")
"""Readers that write also sync their files, which takes most of the time on a real disk."""
COLUMNS = f"{'reader':36} {'inputs':>8} {'accepted':>9} {'rejected':>8} {'crashes':>8} {'seconds':>8}"


def main(seconds: float, name_part: str) -> int:
    """Run all readers; returns the number of crashes."""
    from tests.fuzzing.readers import READERS

    names = [reader.name for reader in READERS if name_part in reader.name]
    print(COLUMNS)
    rows: list[dict[str, Any]] = []
    while len(rows) < len(names):
        rows += _run_child(names[len(rows) :], seconds)
    total = {key: sum(row[key] for row in rows) for key in ("inputs", "accepted", "rejected", "crashed", "seconds")}
    print(_format_row({"name": f"all {len(rows)}", **total}))
    return int(total["crashed"])


def _run_child(names: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    """Rows of a child process, up to the first reader that ends it."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.fuzzing.campaign", "--child", str(seconds), *names]
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as child,
    ):
        assert child.stdout
        for text in child.stdout:
            rows.append(json.loads(text))
            _print_row(rows[-1])
        if child.wait() and len(rows) < len(names):
            log.seek(0)
            log_end = log.read()[-2000:]
            crash = {f"the process ended with {child.returncode}: {log_end}": ""}
            counts = {"inputs": 1, "accepted": 0, "rejected": 0, "crashed": 1, "seconds": 0.0}
            rows.append({"name": names[len(rows)], **counts, "crashes": crash})
            _print_row(rows[-1])
    return rows


def _print_row(row: dict[str, Any]) -> None:
    print(_format_row(row), flush=True)
    for crash, data in row["crashes"].items():
        print(f"    {crash}\n      {data}", flush=True)


def _format_row(row: dict[str, Any]) -> str:
    return (
        f"{row['name']:36} {row['inputs']:8,} {row['accepted']:9,} {row['rejected']:8,} {row['crashed']:8,} "
        f"{row['seconds']:8.0f}"
    )


def _run_readers(seconds: float, names: Sequence[str]) -> None:
    """In the child process: run readers and print one line of JSON per reader."""
    from tests.fuzzing.readers import READERS
    from tests.fuzzing.runner import try_all

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keep what libraries print out of the output
    for reader in READERS:
        if reader.name not in names:
            continue
        start_time = time.monotonic()
        with tempfile.TemporaryDirectory(dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None) as folder:
            tally = try_all(reader, Path(folder) / "folder", MAX_INPUTS, seconds)
        row = {
            "name": reader.name,
            "inputs": tally.inputs,
            "accepted": tally.accepted,
            "rejected": tally.rejected,
            "crashed": tally.crashed,
            "crashes": {name: ascii(data[:400]) for name, data in tally.crashes.items()},
            "seconds": round(time.monotonic() - start_time, 1),
        }
        print(json.dumps(row), file=output, flush=True)
    with contextlib.suppress(OSError):
        output.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _run_readers(float(sys.argv[2]), sys.argv[3:])
    else:
        args = sys.argv[1:]
        sys.exit(bool(main(float(args[0]) if args else 20.0, args[1] if len(args) > 1 else "")))
