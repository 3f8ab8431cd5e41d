"""Compare two checkouts of Heedful: startup, training and bulk translation, in alternating rounds.

    python benchmarks/checkouts.py OLD NEW --old-set training.updates=200 --new-set training.max_updates=200

Each command runs in a new process with one thread. Printed: the median of wall-clock and CPU seconds of each
checkout, and the ratio new / old. The settings of the two may differ, where names have changed between them.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from heedful.data.demo_corpus.grammar import generate_pairs

COMMANDS = ("help", "train", "translate")


def run(checkout: Path, arguments: list[str]) -> tuple[float, float]:
    """Wall-clock and CPU seconds of one command."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    cpu_before, start = _cpu_seconds(), time.perf_counter()
    subprocess.run([sys.executable, "-m", "heedful", *arguments], env=environment, check=True, capture_output=True)
    return time.perf_counter() - start, _cpu_seconds() - cpu_before


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=10_000, help="sentence pairs to train on")
    parser.add_argument("--lines", type=int, default=10_000, help="lines to translate")
    parser.add_argument("--old-set", action="append", default=[], help="a setting of the old checkout")
    parser.add_argument("--new-set", action="append", default=[], help="a setting of the new checkout")
    options = parser.parse_args()
    checkouts = {"old": options.old.resolve(), "new": options.new.resolve()}
    settings = {"old": options.old_set, "new": options.new_set}
    seconds: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pairs = generate_pairs(max(options.pairs, options.lines))
        pairs_file, lines_file = folder / "pairs.tsv", folder / "lines.txt"
        pairs_file.write_text(
            "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs[: options.pairs]), encoding="utf-8"
        )
        lines_file.write_text("".join(f"{pair.source}\n" for pair in pairs[: options.lines]), encoding="utf-8")
        for round_number in range(options.rounds):
            for side in ("old", "new") if round_number % 2 == 0 else ("new", "old"):
                model = folder / f"{side}-{round_number}"
                overrides = [word for setting in settings[side] for word in ("--set", setting)]
                train = ["train", str(pairs_file), "-o", str(model), "--languages", "en-fr", "--preset", "demo"]
                train += ["--set", "training.threads=1", "--set", "training.processes=1", *overrides]
                translate = ["translate", str(model), "-i", str(lines_file), "-o", str(model / "out.txt")]
                for command, arguments in zip(
                    COMMANDS, (["--help"], train, [*translate, "--workers", "1"]), strict=True
                ):
                    seconds.setdefault((command, side), []).append(run(checkouts[side], arguments))
    print(f"{'':10} {'old: wall':>10} {'CPU':>8} {'new: wall':>10} {'CPU':>8} {'wall ratio':>11} {'CPU ratio':>10}")
    for command in COMMANDS:
        old, new = (
            [statistics.median(values) for values in zip(*seconds[command, side], strict=True)]
            for side in ("old", "new")
        )
        print(
            f"{command:10} {old[0]:9.2f}s {old[1]:7.2f}s {new[0]:9.2f}s {new[1]:7.2f}s "
            f"{new[0] / old[0]:11.2f} {new[1] / old[1]:10.2f}"
        )


if __name__ == "__main__":
    main()
