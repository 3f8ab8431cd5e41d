"""One process with all threads, compared with one process per thread, for each method of parallel training.

    python benchmarks/processes.py [--sizes tiny,base] [--rounds 3] [--seconds 10] [--precision float32]

Every round runs every configuration once, on the same updates of the same run, so that other load affects all.
Reported: target tokens per second of wall-clock time, without the first update.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

import torch
from heedful.training.distributed.group import ProcessGroup
from heedful.training.distributed.leader import open_workers

import heedful
from heedful.data.reader import write_tsv
from heedful.devices import available_cores, configure_process
from heedful.models.factory import new_model
from heedful.progress import Reporter
from heedful.training.preparation import load_prepared
from heedful.training.step import BatchSchedule, TrainState, new_optimizer

QUIET = Reporter(quiet=True)
VOCABULARY = {"tiny": 8_000, "base": 37_000}
TOKENS = {"tiny": 4_096, "base": 4_096}
PAIRS, WORDS = 20_000, 60_000


def main() -> None:
    options = _options()
    configure_process()
    cores = available_cores()
    configurations = {f"1 process x {cores} threads": (1, "sum")} | {
        f"{cores} processes x 1 thread, {parallel}": (cores, parallel) for parallel in ("sum", "ddp", "fsdp")
    }
    with tempfile.TemporaryDirectory(prefix="processes-") as scratch:
        pairs = Path(scratch) / "pairs.tsv"
        write_tsv(_generate_pairs(), pairs)
        for size in options.sizes.split(","):
            runs = {
                parallel: _prepare_run(pairs, Path(scratch) / size / parallel, size, parallel)
                for parallel in ("sum", "ddp", "fsdp")
            }
            speeds: dict[str, list[float]] = {name: [] for name in configurations}
            for _ in range(options.rounds):
                for name, (processes, parallel) in configurations.items():
                    speeds[name].append(
                        _speed(runs[parallel], processes, cores // processes, options.precision, options.seconds)
                    )
            first = statistics.median(speeds[next(iter(configurations))])
            for name, values in speeds.items():
                middle = statistics.median(values)
                print(f"{size:5} {name:30} {middle:8,.0f} tokens/s  {middle / first:5.2f}x", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="tiny,base")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each configuration in a round")
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
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


def _prepare_run(pairs: Path, folder: Path, size: str, parallel: str) -> Path:
    """Prepare a corpus by a run of one update."""
    settings = {
        "preset": size,
        "tokenizer": {"vocab_size": VOCABULARY[size], "bpe_dropout": 0.0},
        "batching": {"max_tokens": TOKENS[size]},
        "training": {
            "max_updates": 1,
            "gradient_accumulation": 1,
            "bleu_sentences": 0,
            "validation_size": 10,
            "parallel": parallel,
            "processes": 1,
            "precision": "float32",
        },
    }
    sibling = next(folder.parent.glob("*/training/data"), None)
    if sibling is None:
        heedful.train(pairs, folder, settings=settings, report=QUIET)
        return folder / "training"
    training = folder / "training"
    training.mkdir(parents=True)
    (training / "data").symlink_to(sibling)
    return _set_parallel(training, parallel)


def _set_parallel(training: Path, parallel: str) -> Path:
    """Copy the corpus with another value of training.parallel."""
    data, folder = (training / "data").resolve(), training / "data"
    folder.unlink()
    folder.mkdir()
    for path in data.iterdir():
        if path.name != "preprocessed.json":
            (folder / path.name).symlink_to(path)
    values = json.loads((data / "preprocessed.json").read_text())
    values["config"]["training"]["parallel"] = parallel
    (folder / "preprocessed.json").write_text(json.dumps(values))
    return training


def _speed(run: Path, processes: int, threads: int, precision: str, seconds: float) -> float:
    prepared = load_prepared(run / "data")
    torch.manual_seed(1)
    batch_schedule, model = BatchSchedule(prepared, run, QUIET), new_model(prepared.model_config)
    train_state = TrainState(run, batch_schedule, model, new_optimizer(model, batch_schedule.settings))
    with open_workers(train_state, ProcessGroup(), processes, threads, QUIET) as workers:
        workers.update(1, precision, 1e-4)
        tokens, update, started = 0, 2, time.monotonic()
        while time.monotonic() - started < seconds:
            tokens += workers.update(update, precision, 1e-4).sums.tokens
            update += 1
        return tokens / (time.monotonic() - started)


if __name__ == "__main__":
    main()
