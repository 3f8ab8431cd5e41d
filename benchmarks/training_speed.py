"""Training speed of Heedful, Hugging Face, eole and Marian, with the same tokens and model sizes.

    python benchmarks/training_speed.py [--sizes tiny,base] [--rounds 3] [--seconds 30] [--only ours,marian]
                                        [--data FOLDER] [--languages en-de] [--environments FOLDER]

Every round runs every toolkit once, in turn, so that other load on the machine affects all. Reported: target
tokens (with </s>, without padding) per second of wall-clock time, after a warm-up, on all cores. The other toolkits
have their own environments, created by the first run (4 GB, minutes). Without --data: Multi30k beside the
repository if it is there, else the embedded grammar. peers/toolkits.py says what still differs between
the programs.
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
from peers.environments import PACKAGES, ROOT, InstallationError, environment, versions
from peers.machine import description, product_rates, threads
from peers.measurement import Contestant, Measured, RunError, measure
from peers.sizes import SIZES, Size, model_flops
from peers.tokenized_corpus import Files, Pieces, prepare_pieces
from peers.toolkits import Task

from heedful.training.config import TrainingConfig

OURS: dict[str, dict[str, str]] = {
    "ours": {},
    "ours-float32": {"training.precision": "float32"},
    "ours-bfloat16": {"training.precision": "bfloat16"},
    "ours-processes": {"training.processes": "2"},
}
"""Our command with these settings on top."""
PEERS: dict[str, tuple[Callable[..., Contestant], str, dict[str, str]]] = {
    "hugging-face": (toolkits.hugging_face, "hugging-face", {}),
    "hugging-face-bfloat16": (toolkits.hugging_face, "hugging-face", {"precision": "bfloat16"}),
    "eole": (toolkits.eole, "eole", {}),
    "marian": (toolkits.marian, "marian", {}),
}
"""Others: how to start them, their environment, their settings."""
MULTI30K = ROOT.parent / "shared" / "data" / "multi30k"
ENVIRONMENTS = Path.home() / ".cache" / "heedful-benchmarks"

Thing = TypeVar("Thing")
Runs = dict[str, list[Measured | None]]
"""Of every contestant a run a round; None where it failed."""


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that whoever is running is stopped too
    names = options.only or [*OURS, *PEERS]
    machine, failures = description(), dict[str, str]()
    names = [name for name in names if _can_take_part(name, options.environments, failures)]
    with tempfile.TemporaryDirectory(prefix="training-speed-") as scratch:
        folder = Path(scratch)
        files = Files.of(options.data, options.languages) if options.data else Files.demo(folder)
        pieces = prepare_pieces(files, folder, options.sizes)
        print(
            f"{files.training[0].parent}: {len(pieces.store):,} pairs, "
            f"{pieces.source_lengths.sum():,} source and {pieces.target_lengths.sum():,} target tokens "
            f"an epoch; {threads()} threads"
        )
        results = {size.name: _compare(names, size, files, pieces, options, failures) for size in options.sizes}
    for name, reason in failures.items():
        print(f"NOT MEASURED  {name}: {reason}")
    corpus = _corpus(pieces, options.data)
    told = {"machine": machine, "corpus": corpus, "sizes": results, "not_measured": failures}
    print(f"written to {_written(told, options)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    known = [*OURS, *PEERS]
    parser.add_argument("--sizes", type=_chosen(SIZES), default=[*SIZES.values()], help=", ".join(SIZES))
    parser.add_argument("--only", type=_chosen({name: name for name in known}), help=", ".join(known))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30, help="of each run that count")
    parser.add_argument("--warmup", type=int, help="updates that do not count; else by the size")
    parser.add_argument("--data", type=_place, default=MULTI30K if MULTI30K.is_dir() else None)
    parser.add_argument("--languages", type=lambda text: text.split("-"), default=["en", "de"])
    parser.add_argument("--environments", type=_place, default=ENVIRONMENTS)
    parser.add_argument(
        "--output", type=_place, default=ROOT / "benchmarks" / "results", help="folder of the result file"
    )
    return parser.parse_args()


def _place(text: str) -> Path:
    return Path(text).resolve()  # toolkits run in other folders


def _chosen(known: dict[str, Thing]) -> Callable[[str], list[Thing]]:
    def choose(text: str) -> list[Thing]:
        if unknown := [name for name in text.split(",") if name not in known]:
            raise argparse.ArgumentTypeError(f"there is no {unknown[0]}; there are {', '.join(known)}")
        return [known[name] for name in text.split(",")]

    return choose


def _can_take_part(name: str, environments: Path, failures: dict[str, str]) -> bool:
    """Whether a contestant can be started at all; a peer's environment is made here."""
    if name in OURS:
        unknown = [key for key in OURS[name] if key.removeprefix("training.") not in TrainingConfig.model_fields]
        if unknown:
            failures[name] = f"this version has no setting {unknown[0]}"
        return not unknown
    try:
        environment(PEERS[name][1], environments)
    except InstallationError as error:
        failures[name] = str(error)
    return name not in failures


def _compare(
    names: Sequence[str],
    size: Size,
    files: Files,
    pieces: Pieces,
    options: argparse.Namespace,
    failures: dict[str, str],
) -> dict[str, object]:
    """All rounds of one size, printed and as what goes to the result file."""
    runs: Runs = {name: [] for name in names}
    products = []
    for number in range(1, options.rounds + 1):
        products.append(product_rates())
        for name in names:
            _say(f"{size.name}, round {number} of {options.rounds}: {name}")
            folder = pieces.folder / f"{size.name}-{number}-{name}"
            folder.mkdir()
            task = Task(size, files, pieces, threads(), folder)
            try:
                runs[name].append(_one_run(name, task, options))
            except (RunError, OSError) as error:
                runs[name].append(None)
                failures[f"{name} ({size.name}, round {number})"] = str(error)
                _say(f"  failed: {error}")
            shutil.rmtree(folder)  # gigabytes of checkpoints otherwise
    flops = model_flops(size, pieces.vocabulary, pieces.source_lengths, pieces.target_lengths)
    flops_per_token = flops / float(pieces.target_lengths.sum())
    product = {kind: statistics.median(rates[kind] for rates in products) for kind in ("warm", "cold")}
    print(_table(size, runs, flops_per_token * 1e-9, product))
    return {
        "flops_per_target_token": flops_per_token,
        "product_gflops": products,
        "runs": {name: [run and _as_numbers(run) for run in found] for name, found in runs.items()},
    }


def _one_run(name: str, task: Task, options: argparse.Namespace) -> Measured:
    if name in OURS:
        contestant = toolkits.ours(name, OURS[name], task)
    else:
        start, place, settings = PEERS[name]
        contestant = start(name, settings, task, environment(place, options.environments))
    warmup = task.size.warmup if options.warmup is None else options.warmup
    run = measure(contestant, seconds=options.seconds, warmup=warmup)
    store = task.folder / "model" / "training" / "data" / "training"
    if name in OURS and not task.pieces.same_as(store):
        raise RunError("our command cut the corpus into other pieces than the peers were given")
    _say(f"  {run.rate:,.0f} tokens/s ({run.updates} updates in {run.seconds:.1f} s)")
    return run


def _table(size: Size, runs: Runs, gflop_per_token: float, product: dict[str, float]) -> str:
    """Medians over the rounds; ratios are made within a round, where both had the same neighbours."""
    rates = {name: [run.rate for run in found if run] for name, found in runs.items()}
    measured = {name: statistics.median(found) for name, found in rates.items() if found}
    peers = [name for name in measured if name in PEERS]
    best = max(peers, key=lambda name: measured[name]) if peers else ""
    lines = [
        f"\n{size.name}: {size.layers}+{size.layers} layers, width {size.width}, "
        f"batches of {size.batch_tokens:,}; a float32 product runs at {product['warm']:.0f} GFLOP/s warm, "
        f"{product['cold']:.0f} cold",
        f"  {'':22} {'tokens/s':>8} {'lowest-highest':>15} {'to ' + (best or 'the best peer'):>26} "
        f"{'an update':>9} {'GFLOP/s':>8} {'of warm':>8} {'of cold':>8} {'memory':>8}",
    ]
    for name, rate in sorted(measured.items(), key=lambda item: -item[1]):
        gflops = rate * gflop_per_token
        peaks = [run.peak_megabytes for run in runs[name] if run and run.peak_megabytes]
        lines.append(
            f"  {name:22} {rate:8,.0f} {f'{min(rates[name]):,.0f}-{max(rates[name]):,.0f}':>15} "
            f"{_ratio(runs[name], runs[best]) if best else '':>26} {_tokens_an_update(runs[name]):9,.0f} "
            f"{gflops:8.1f} {gflops / product['warm']:8.0%} {gflops / product['cold']:8.0%} "
            f"{f'{max(peaks):,.0f} MB' if peaks else 'unknown':>8}"
        )
    lines += [f"  {name:22} not measured, see below" for name in runs if name not in measured]
    return "\n".join(lines)


def _ratio(runs: Sequence[Measured | None], peer: Sequence[Measured | None]) -> str:
    """Median, smallest and largest over the rounds that both ended."""
    ratios = [run.rate / other.rate for run, other in zip(runs, peer, strict=True) if run and other]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})" if ratios else "no round"


def _tokens_an_update(runs: Sequence[Measured | None]) -> float:
    """Target tokens of an update on average: one budget, but each program fills it its own way."""
    return sum(run.tokens for run in runs if run) / sum(run.updates for run in runs if run)


def _as_numbers(run: Measured) -> dict[str, float | None]:
    return {
        "tokens_per_second": round(run.rate, 1),
        "tokens": run.tokens,
        "seconds": round(run.seconds, 3),
        "updates": run.updates,
        "peak_megabytes": run.peak_megabytes and round(run.peak_megabytes),
    }


def _corpus(pieces: Pieces, data: Path | None) -> dict[str, object]:
    return {
        "name": data.name if data else "demo grammar",
        "pairs": len(pieces.source_lengths),
        "source_tokens": int(pieces.source_lengths.sum()),
        "target_tokens": int(pieces.target_lengths.sum()),
        "vocabulary": pieces.vocabulary,
    }


def _written(told: dict[str, object], options: argparse.Namespace) -> Path:
    """The result file of today; another run the same day gets a number."""
    peers = {name: versions(name, options.environments) for name in PACKAGES}
    settings = {"rounds": options.rounds, "seconds": options.seconds, "warmup": options.warmup}
    options.output.mkdir(parents=True, exist_ok=True)
    stem = f"training_speed-{datetime.now(UTC):%Y-%m-%d}"
    numbered = (options.output / f"{stem}{number}.json" for number in ("", *(f"-{n}" for n in range(2, 1000))))
    path: Path = next(path for path in numbered if not path.exists())
    path.write_text(json.dumps(told | {"peers": peers} | settings, indent=2) + "\n", encoding="utf-8")
    return path


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
