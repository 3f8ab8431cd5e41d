"""Training speed of Heedful, Hugging Face, eole and Marian, with the same tokens and model sizes.

    python benchmarks/training_speed.py [--sizes tiny,base] [--rounds 3] [--seconds 30] [--only ours,marian]
                                        [--data FOLDER] [--languages en-de] [--environments FOLDER]

Every round runs every toolkit once, in turn, so that other load on the machine affects all. Reported: target
tokens (with </s>, without padding) per second of wall-clock time, after a warm-up, on all cores. The other toolkits
have their own environments, created by the first run (4 GB, minutes). Without --data: sentences of the demo
grammar. peers/toolkits.py lists the remaining differences between the toolkits.
"""

import argparse
import json
import shutil
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from peers import toolkits
from peers.environments import PACKAGES, ROOT, InstallationError, create_environment, versions
from peers.machine import description, product_rates, threads
from peers.measurement import Measurement, RunError, TrainingCommand, measure
from peers.sizes import SIZES, Size, model_flops
from peers.tokenized_corpus import Files, TokenizedCorpus, prepare_corpus
from peers.toolkits import Task

from heedful.training.config import TrainingConfig

HEEDFUL_VARIANTS: dict[str, dict[str, str]] = {
    "ours": {},
    "ours-float32": {"training.precision": "float32"},
    "ours-bfloat16": {"training.precision": "bfloat16"},
    "ours-processes": {"training.processes": "2"},
}
"""`heedful train` with these overrides."""
PEERS: dict[str, tuple[Callable[..., TrainingCommand], str, dict[str, str]]] = {
    "hugging-face": (toolkits.hugging_face, "hugging-face", {}),
    "hugging-face-bfloat16": (toolkits.hugging_face, "hugging-face", {"precision": "bfloat16"}),
    "eole": (toolkits.eole, "eole", {}),
    "marian": (toolkits.marian, "marian", {}),
}
"""Other toolkits: how to start them, their environment, their settings."""
ENVIRONMENTS = Path.home() / ".cache" / "heedful-benchmarks"

Value = TypeVar("Thing")
Runs = dict[str, list[Measurement | None]]
"""One run per round of every toolkit; None where it failed."""


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stops the running toolkit too
    names = options.only or [*HEEDFUL_VARIANTS, *PEERS]
    machine, failures = description(), dict[str, str]()
    names = [name for name in names if can_run(name, options.environments, failures)]
    with tempfile.TemporaryDirectory(prefix="training-speed-") as scratch:
        folder = Path(scratch)
        files = Files.of(options.data, options.languages) if options.data else Files.demo(folder)
        tokenized = prepare_corpus(files, folder, options.sizes)
        print(
            f"{files.training[0].parent}: {len(tokenized.dataset):,} pairs, "
            f"{tokenized.source_lengths.sum():,} source and {tokenized.target_lengths.sum():,} target tokens "
            f"per epoch; {threads()} threads"
        )
        results = {size.name: _compare(names, size, files, tokenized, options, failures) for size in options.sizes}
    for name, reason in failures.items():
        print(f"NOT MEASURED  {name}: {reason}")
    corpus = _corpus(tokenized, options.data)
    results_data = {"machine": machine, "corpus": corpus, "sizes": results, "not_measured": failures}
    print(f"written to {write_results(results_data, options)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    choices = [*HEEDFUL_VARIANTS, *PEERS]
    parser.add_argument("--sizes", type=new_choice_parser(SIZES), default=[*SIZES.values()], help=", ".join(SIZES))
    parser.add_argument("--only", type=new_choice_parser({name: name for name in choices}), help=", ".join(choices))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30, help="measured seconds of each run")
    parser.add_argument("--warmup", type=int, help="updates that do not count; default: by size")
    parser.add_argument("--data", type=resolve_path, help="folder of a corpus; default: the demo grammar")
    parser.add_argument("--languages", type=lambda text: text.split("-"), default=["en", "de"])
    parser.add_argument("--environments", type=resolve_path, default=ENVIRONMENTS)
    parser.add_argument(
        "--output", type=resolve_path, default=ROOT / "benchmarks" / "results", help="folder of the result file"
    )
    return parser.parse_args()


def resolve_path(text: str) -> Path:
    return Path(text).resolve()  # toolkits run in other folders


def new_choice_parser(choices: dict[str, Value]) -> Callable[[str], list[Value]]:
    def choose(text: str) -> list[Value]:
        if unknown := [name for name in text.split(",") if name not in choices]:
            raise argparse.ArgumentTypeError(f"unknown name {unknown[0]}; choose from {', '.join(choices)}")
        return [choices[name] for name in text.split(",")]

    return choose


def can_run(name: str, environments: Path, failures: dict[str, str]) -> bool:
    """Whether a toolkit can be started; creates its environment."""
    if name in HEEDFUL_VARIANTS:
        unknown = [
            key for key in HEEDFUL_VARIANTS[name] if key.removeprefix("training.") not in TrainingConfig.model_fields
        ]
        if unknown:
            failures[name] = f"this version has no setting {unknown[0]}"
        return not unknown
    try:
        create_environment(PEERS[name][1], environments)
    except InstallationError as error:
        failures[name] = str(error)
    return name not in failures


def _compare(
    names: Sequence[str],
    size: Size,
    files: Files,
    corpus: TokenizedCorpus,
    options: argparse.Namespace,
    failures: dict[str, str],
) -> dict[str, object]:
    """Run and print all rounds of one size; returns the entry of the result file."""
    runs: Runs = {name: [] for name in names}
    products = []
    for number in range(1, options.rounds + 1):
        products.append(product_rates())
        for name in names:
            print_progress(f"{size.name}, round {number} of {options.rounds}: {name}")
            folder = corpus.folder / f"{size.name}-{number}-{name}"
            folder.mkdir()
            task = Task(size, files, corpus, threads(), folder)
            try:
                runs[name].append(_one_run(name, task, options))
            except (RunError, OSError) as error:
                runs[name].append(None)
                failures[f"{name} ({size.name}, round {number})"] = str(error)
                print_progress(f"  failed: {error}")
            shutil.rmtree(folder)  # gigabytes of checkpoints otherwise
    flops = model_flops(size, corpus.vocabulary, corpus.source_lengths, corpus.target_lengths)
    flops_per_token = flops / float(corpus.target_lengths.sum())
    product = {kind: statistics.median(rates[kind] for rates in products) for kind in ("warm", "cold")}
    print(_table(size, runs, flops_per_token * 1e-9, product))
    return {
        "flops_per_target_token": flops_per_token,
        "product_gflops": products,
        "runs": {name: [run and _as_numbers(run) for run in measurements] for name, measurements in runs.items()},
    }


def _one_run(name: str, task: Task, options: argparse.Namespace) -> Measurement:
    if name in HEEDFUL_VARIANTS:
        training_command = toolkits.heedful(name, HEEDFUL_VARIANTS[name], task)
    else:
        start, environment_name, settings = PEERS[name]
        training_command = start(name, settings, task, create_environment(environment_name, options.environments))
    warmup = task.size.warmup if options.warmup is None else options.warmup
    run = measure(training_command, seconds=options.seconds, warmup=warmup)
    store = task.folder / "model" / "training" / "data" / "train"
    if name in HEEDFUL_VARIANTS and not task.corpus.has_same_tokens(store):
        raise RunError("`heedful train` tokenized the corpus differently")
    print_progress(f"  {run.rate:,.0f} tokens/s ({run.updates} updates in {run.seconds:.1f} s)")
    return run


def _table(size: Size, runs: Runs, gflop_per_token: float, product: dict[str, float]) -> str:
    """Medians over the rounds; ratios are computed within a round, where other load is similar."""
    rates = {name: [run.rate for run in measurements if run] for name, measurements in runs.items()}
    measured = {name: statistics.median(values) for name, values in rates.items() if values}
    peers = [name for name in measured if name in PEERS]
    best = max(peers, key=lambda name: measured[name]) if peers else ""
    lines = [
        f"\n{size.name}: {size.layers}+{size.layers} layers, d_model {size.d_model}, "
        f"batches of {size.batch_tokens:,}; a float32 product runs at {product['warm']:.0f} GFLOP/s warm, "
        f"{product['cold']:.0f} cold",
        f"  {'':22} {'tokens/s':>8} {'lowest-highest':>15} {'to ' + (best or 'the best peer'):>26} "
        f"{'per update':>10} {'GFLOP/s':>8} {'of warm':>8} {'of cold':>8} {'memory':>8}",
    ]
    for name, rate in sorted(measured.items(), key=lambda item: -item[1]):
        gflops = rate * gflop_per_token
        peaks = [run.peak_megabytes for run in runs[name] if run and run.peak_megabytes]
        lines.append(
            f"  {name:22} {rate:8,.0f} {f'{min(rates[name]):,.0f}-{max(rates[name]):,.0f}':>15} "
            f"{_ratio(runs[name], runs[best]) if best else '':>26} {_tokens_per_update(runs[name]):10,.0f} "
            f"{gflops:8.1f} {gflops / product['warm']:8.0%} {gflops / product['cold']:8.0%} "
            f"{f'{max(peaks):,.0f} MB' if peaks else 'unknown':>8}"
        )
    lines += [f"  {name:22} not measured, see below" for name in runs if name not in measured]
    return "\n".join(lines)


def _ratio(runs: Sequence[Measurement | None], peer: Sequence[Measurement | None]) -> str:
    """Median, minimum and maximum over the rounds that both completed."""
    ratios = [run.rate / other.rate for run, other in zip(runs, peer, strict=True) if run and other]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})" if ratios else "no round"


def _tokens_per_update(runs: Sequence[Measurement | None]) -> float:
    """Mean target tokens per update: the budget is the same, but toolkits fill it differently."""
    return sum(run.tokens for run in runs if run) / sum(run.updates for run in runs if run)


def _as_numbers(run: Measurement) -> dict[str, float | None]:
    return {
        "tokens_per_second": round(run.rate, 1),
        "tokens": run.tokens,
        "seconds": round(run.seconds, 3),
        "updates": run.updates,
        "peak_megabytes": run.peak_megabytes and round(run.peak_megabytes),
    }


def _corpus(corpus: TokenizedCorpus, data: Path | None) -> dict[str, object]:
    return {
        "name": data.name if data else "demo grammar",
        "pairs": len(corpus.source_lengths),
        "source_tokens": int(corpus.source_lengths.sum()),
        "target_tokens": int(corpus.target_lengths.sum()),
        "vocabulary": corpus.vocabulary,
    }


def write_results(results_data: dict[str, object], options: argparse.Namespace) -> Path:
    """Write the result file of today; further runs of a day get a number."""
    peers = {name: versions(name, options.environments) for name in PACKAGES}
    settings = {"rounds": options.rounds, "seconds": options.seconds, "warmup": options.warmup}
    options.output.mkdir(parents=True, exist_ok=True)
    stem = f"training_speed-{datetime.now(UTC):%Y-%m-%d}"
    numbered = (options.output / f"{stem}{number}.json" for number in ("", *(f"-{n}" for n in range(2, 1000))))
    path: Path = next(path for path in numbered if not path.exists())
    path.write_text(json.dumps(results_data | {"peers": peers} | settings, indent=2) + "\n", encoding="utf-8")
    return path


def print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
