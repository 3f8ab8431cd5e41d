"""Time and memory to preprocess a large corpus, with one process and with all cores.

python benchmarks/preparation.py [--pairs 10000000] [--processes 2] [--files 4] [--folder FOLDER]

Pairs are sentences of the demo grammar with numbers in them, so that few are alike, in several TSV files, one
of them gzipped; every fiftieth may be a duplicate. Prints what each way took, pairs a second, and the most
memory that all its processes together had at a time (proportional: what they share counts once).
"""

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from heedful.data.demo_corpus.grammar import generate_pairs

SETTINGS = {"preset": "small", "training": {"max_updates": 100}}
CODE = """
import json, sys, time
from pathlib import Path
from heedful.data.config import CleaningConfig, PreprocessingConfig
from heedful.progress import Reporter
from heedful.training.run import make_config_chooser
from heedful.data.corpus import CorpusInputs, make_sources
from heedful.training.preparation import prepare

class TimedReporter(Reporter):
    def info(self, text):
        print(f"  {time.monotonic() - started:7.1f} s  {text}", flush=True)

started = time.monotonic()
preprocessing = PreprocessingConfig.model_validate_json(sys.argv[3])
files = tuple(map(Path, sys.argv[4:]))
choose = make_config_chooser(json.loads(sys.argv[2]))
report = TimedReporter()
inputs, folder = CorpusInputs(make_sources(files)), Path(sys.argv[1])
prepared = prepare(inputs, folder, CleaningConfig(), choose, report, preprocessing=preprocessing)
print(f"  {time.monotonic() - started:7.1f} s  in all, {len(prepared.training):,} pairs")
started = time.monotonic()
prepared.batches().update(0, 0)
print(f"  {time.monotonic() - started:7.1f} s  to the first update")
"""


def lines(pairs: int, seed: int) -> Iterator[bytes]:
    """Sentences with a number; now and then one comes again."""
    dice, sentences = random.Random(seed), generate_pairs(20_000)
    for number in range(pairs):
        pair = sentences[dice.randrange(len(sentences))]
        named = dice.randrange(10_000) if number % 50 else 7
        yield f"{named} {pair.source}\t{named} {pair.target}\n".encode()


def write_files(folder: Path, pairs: int, count: int) -> list[Path]:
    """As many pairs in files of unlike size, the last one packed."""
    shares = [number + 1 for number in range(count)]
    paths = []
    for number, share in enumerate(shares):
        own = pairs * share // sum(shares)
        packed = number == 0  # the smallest: a packed file is one piece
        path = folder / f"pairs{number}.tsv{'.gz' * packed}"
        with gzip.open(path, "wb", compresslevel=1) if packed else path.open("wb") as file:
            file.writelines(lines(own, number))
        paths.append(path)
    return paths


def memory_of(leader: int) -> int:
    """Bytes that a process and its children have, what is shared divided among those who share it."""
    total, waiting = 0, [leader]
    while waiting:
        process = waiting.pop()
        try:
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
            waiting += map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())
        except OSError:
            continue
        # Pages of files are the system's to drop; what a process cannot do without is anonymous.
        total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss_Anon:"))
    return 1024 * total


def measure(folder: Path, paths: list[Path], scale: dict[str, float]) -> tuple[float, int]:
    """Seconds and most bytes of a preparation."""
    words = [str(folder), json.dumps(SETTINGS), json.dumps(scale), *map(str, paths)]
    started, most = time.monotonic(), 0
    process = subprocess.Popen([sys.executable, "-c", CODE, *words])

    def watch() -> None:
        nonlocal most
        while process.poll() is None:
            most = max(most, memory_of(process.pid))
            time.sleep(0.2)

    watcher = threading.Thread(target=watch)
    watcher.start()
    watcher.join()
    assert process.returncode == 0
    return time.monotonic() - started, most


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10_000_000)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, default=None, help="where there is room; else the system's")
    parser.add_argument("--shard-pairs", type=int, default=1_000_000)
    parser.add_argument("--piece-megabytes", type=float, default=32)
    told = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=told.folder) as name:
        folder = Path(name)
        started = time.monotonic()
        paths = write_files(folder, told.pairs, told.files)
        size = sum(path.stat().st_size for path in paths)
        print(f"{told.pairs:,} pairs, {size / 1e6:,.0f} MB, written in {time.monotonic() - started:.0f} s")
        taken = []
        for processes in (1, told.processes):
            print(f"{processes} process(es):", flush=True)
            scale = {"shard_pairs": told.shard_pairs, "piece_megabytes": told.piece_megabytes}
            seconds, most = measure(folder / f"by{processes}", paths, scale | {"processes": processes})
            taken.append(seconds)
            print(f"  {seconds:.1f} s, {told.pairs / seconds:,.0f} pairs/s, {most / 1e6:,.0f} MB at most")
        print(f"{taken[0] / taken[1]:.2f} times as quick by {told.processes} processes")


if __name__ == "__main__":
    main()
