"""Training in one process with all threads, and in one process per thread with DDP and FSDP: speed and memory.

    python benchmarks/processes.py [--sizes tiny,base,deep] [--rounds 3] [--old CHECKOUT --old-parallel sum]

Every round trains once with every configuration, so that other load affects all. Reported: target tokens per second
of wall-clock time without the first updates, and the peak memory (RSS) of the largest process that trains. With
``--old``, another checkout of Heedful trains too, with one process per thread. ``deep`` is a model whose weights and
moments, unlike its embeddings and activations, are large: FSDP is for such models.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from heedful.data.reader import write_tsv
from heedful.devices import available_cores

SETTINGS = {
    "tiny": ("preset=tiny", "tokenizer.vocab_size=8000", "batching.max_tokens=4096", "training.max_updates=30"),
    "base": ("preset=base", "tokenizer.vocab_size=37000", "batching.max_tokens=1024", "training.max_updates=12"),
    "deep": (
        *("preset=base", "tokenizer.vocab_size=4000", "model.encoder_layers=12", "model.decoder_layers=12"),
        *("batching.max_tokens=256", "training.max_updates=12"),
    ),
}
COMMON_SETTINGS = (
    *("tokenizer.bpe_dropout=0", "training.gradient_accumulation=1", "training.bleu_sentences=0"),
    *("training.validation_size=10", "training.validate_every=6", "training.precision=float32"),
    *("training.average_checkpoints=1", "training.keep_last=1"),
)
PAIRS, WORDS = 20_000, 60_000
POLL_SECONDS = 0.05


def main() -> None:
    options = _options()
    cores, new = available_cores(), Path(__file__).parents[1]
    configurations: dict[str, tuple[Path, int, str]] = {
        f"1 process x {cores} threads": (new, 1, "ddp"),
        f"{cores} processes x 1 thread, ddp": (new, cores, "ddp"),
        f"{cores} processes x 1 thread, fsdp": (new, cores, "fsdp"),
    }
    if options.old:
        configurations[f"{cores} processes x 1 thread, old"] = (options.old, cores, options.old_parallel)
    with tempfile.TemporaryDirectory(prefix="processes-") as scratch:
        pairs = Path(scratch) / "pairs.tsv"
        write_tsv(_generate_pairs(), pairs)
        for size in options.sizes.split(","):
            results: dict[str, list[tuple[float, float]]] = {name: [] for name in configurations}
            for number in range(options.rounds):
                for index, (name, (checkout, processes, parallel)) in enumerate(configurations.items()):
                    folder = Path(scratch) / f"{size}-{number}-{index}"
                    settings = (*SETTINGS[size], *COMMON_SETTINGS, f"training.threads={cores}")
                    settings = (*settings, f"training.parallel={parallel}", f"training.processes={processes}")
                    results[name].append(_train(checkout, pairs, folder, settings))
            first = statistics.median(speed for speed, _ in next(iter(results.values())))
            for name, values in results.items():
                speed, memory = (statistics.median(column) for column in zip(*values, strict=True))
                print(
                    f"{size:5} {name:30} {speed:8,.0f} tokens/s  {speed / first:5.2f}x  {memory:6,.0f} MB", flush=True
                )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="tiny,base,deep")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--old", type=Path, help="another checkout")
    parser.add_argument("--old-parallel", default="ddp", help="its training.parallel")
    return parser.parse_args()


def _generate_pairs() -> list[tuple[str, str]]:
    """Random sentences of common lengths."""
    rng = random.Random(1)
    vocabulary = ["".join(rng.choices("aeioubdfgklmnprstvz", k=rng.randint(3, 9))) for _ in range(WORDS)]
    weights = [1 / (rank + 10) for rank in range(WORDS)]
    sampled_words = iter(rng.choices(vocabulary, weights, k=PAIRS * 60))

    def sentence(length: int) -> str:
        return " ".join(next(sampled_words) for _ in range(length))

    lengths = [rng.randint(4, 24) for _ in range(PAIRS)]
    return [(sentence(length), sentence(length)) for length in lengths]


def _train(checkout: Path, pairs: Path, folder: Path, settings: Sequence[str]) -> tuple[float, float]:
    """Tokens per second after the first six updates, and the peak memory of the largest rank in MB."""
    arguments = [argument for setting in settings for argument in ("--set", setting)]
    command = [sys.executable, "-m", "heedful", "train", str(pairs), "-o", str(folder), "--quiet", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    peaks: dict[int, int] = {}
    while process.poll() is None:
        ranks = _children(process.pid) or [process.pid]
        peaks |= {pid: max(_peak_kilobytes(pid), peaks.get(pid, 0)) for pid in ranks}
        time.sleep(POLL_SECONDS)
    if process.returncode:
        raise SystemExit(f"training failed: {' '.join(command)}")
    ranks = {pid: peak for pid, peak in peaks.items() if pid != process.pid} or peaks
    lines = [json.loads(line) for line in (folder / "training" / "metrics.jsonl").read_text().splitlines()]
    speeds = [line["tokens_per_second"] for line in lines if "tokens_per_second" in line and line["update"] > 6]
    return statistics.median(speeds), max(ranks.values()) / 1024


def _children(pid: int) -> list[int]:
    """Child processes that train, not those that preprocess."""
    children = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_text(errors="replace")
        except (OSError, IndexError):  # it has exited
            continue
        if parent == pid and "heedful.training" in command:
            children.append(int(folder.name))
    return children


def _peak_kilobytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return 0


if __name__ == "__main__":
    main()
