"""Time and memory to preprocess a large corpus, with one process and with all cores.

python benchmarks/preparation.py [--pairs 10000000] [--processes 2] [--files 4] [--folder FOLDER] [--old CHECKOUT]

With --old, another checkout of Heedful preprocesses the same files, in turn with this one.

Pairs are sentences of the demo grammar with numbers, so that few are equal, in several TSV files, one of them
gzipped; every fiftieth may be a duplicate. Prints the time, pairs per second, and the peak memory of all
processes together (proportional: shared memory counts once).
"""

import argparse
import gzip
import json
import os
import random
import shutil
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
print(f"  {time.monotonic() - started:7.1f} s  in total, {len(prepared.dataset):,} pairs")
started = time.monotonic()
prepared.create_batches().update(0, 0)
print(f"  {time.monotonic() - started:7.1f} s  to the first update")
"""


def generate_lines(pairs: int, seed: int) -> Iterator[bytes]:
    """Sentences with a number, some of them repeated."""
    rng, sentences = random.Random(seed), generate_pairs(20_000)
    for number in range(pairs):
        pair = sentences[rng.randrange(len(sentences))]
        number_prefix = rng.randrange(10_000) if number % 50 else 7
        yield f"{number_prefix} {pair.source}\t{number_prefix} {pair.target}\n".encode()


def write_files(folder: Path, pairs: int, count: int) -> list[Path]:
    """Write the pairs to files of different sizes, the first one gzipped."""
    weights = [number + 1 for number in range(count)]
    paths = []
    for number, weight in enumerate(weights):
        pair_count = pairs * weight // sum(weights)
        is_gzipped = number == 0  # the smallest: a gzipped file is one chunk
        path = folder / f"pairs{number}.tsv{'.gz' * is_gzipped}"
        with gzip.open(path, "wb", compresslevel=1) if is_gzipped else path.open("wb") as file:
            file.writelines(generate_lines(pair_count, number))
        paths.append(path)
    return paths


def measure_memory(leader: int) -> int:
    """Memory of a process and its children in bytes, with shared memory divided among them."""
    total, remaining = 0, [leader]
    while remaining:
        process = remaining.pop()
        try:
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
            remaining += map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())
        except OSError:
            continue
        # Pages of files can be dropped by the system; only anonymous memory is needed.
        total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss_Anon:"))
    return 1024 * total


def measure(checkout: Path, folder: Path, paths: list[Path], scale: dict[str, float]) -> tuple[float, int]:
    """Seconds and peak memory in bytes of a preparation by a checkout."""
    args = [str(folder), json.dumps(SETTINGS), json.dumps(scale), *map(str, paths)]
    started, peak = time.monotonic(), 0
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    process = subprocess.Popen([sys.executable, "-P", "-c", CODE, *args], env=environment)

    def watch() -> None:
        nonlocal peak
        while process.poll() is None:
            peak = max(peak, measure_memory(process.pid))
            time.sleep(0.2)

    watcher = threading.Thread(target=watch)
    watcher.start()
    watcher.join()
    assert process.returncode == 0
    return time.monotonic() - started, peak


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10_000_000)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--folder", type=Path, default=None, help="a folder with enough space; default: the temporary folder"
    )
    parser.add_argument("--old", type=Path, help="another checkout, to compare with")
    parser.add_argument("--shard-pairs", type=int, default=1_000_000)
    parser.add_argument("--chunk-megabytes", type=float, default=32)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        started = time.monotonic()
        paths = write_files(folder, options.pairs, options.files)
        size = sum(path.stat().st_size for path in paths)
        print(f"{options.pairs:,} pairs, {size / 1e6:,.0f} MB, written in {time.monotonic() - started:.0f} s")
        checkouts = {"old": options.old.resolve()} if options.old else {}
        checkouts["new"] = Path(__file__).resolve().parents[1]
        run_seconds: dict[str, list[float]] = {}
        for processes in (1, options.processes):
            for name, checkout in checkouts.items():
                print(f"{name}, {processes} process(es):", flush=True)
                scale = {"shard_pairs": options.shard_pairs, "chunk_megabytes": options.chunk_megabytes}
                output = folder / f"{name}{processes}"
                seconds, peak = measure(checkout, output, paths, scale | {"processes": processes})
                shutil.rmtree(output)
                run_seconds.setdefault(name, []).append(seconds)
                print(f"  {seconds:.1f} s, {options.pairs / seconds:,.0f} pairs/s, {peak / 1e6:,.0f} MB peak")
        for name, seconds_by_count in run_seconds.items():
            ratio = seconds_by_count[0] / seconds_by_count[1]
            print(f"{name}: {ratio:.2f} times as fast with {options.processes} processes")


if __name__ == "__main__":
    main()
