"""Cost of attention by length: full (fused), BigBird and Linformer, from 256 to 16,384 tokens.

    python benchmarks/length_scaling.py [--lengths 256,512,...] [--rounds 3] [--threads 1] [--output FILE]

For each kind and length a process of its own computes one layer of self-attention (width 256, 4 heads, one
text): forward alone, and forward and backward, as in a training step. Printed: seconds (the best of a few
rounds), the memory that the computation adds to the process at its peak, the exponent fitted from 2,048 on
(1 is linear, 2 quadratic), and the length from which a kind is faster than full attention.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

KINDS = ("full", "bigbird", "linformer", "full-causal", "bigbird-causal")
WIDTH, HEADS, SUMS = 256, 4, 256
FITTED_FROM = 2048


def main() -> None:
    options = _options()
    if options.one:
        kind, length = options.one
        print(json.dumps(measure(kind, int(length), options.rounds, options.threads)))
        return
    table = {(kind, length): _apart(kind, length, options) for kind in KINDS for length in options.lengths}
    _print(table, options.lengths)
    if options.output:
        rows = [{"kind": kind, "length": length, **found} for (kind, length), found in table.items()]
        options.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def measure(kind: str, length: int, rounds: int, threads: int) -> dict[str, float]:
    """Seconds and megabytes of one layer."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    module, causal = _module(kind, length), kind.endswith("causal")
    x = torch.randn(1, length, WIDTH)
    with torch.inference_mode():
        module(x[:, :300], causal=causal)  # what is loaded and made once
    before = _peak()
    with torch.inference_mode():
        forward = _best(lambda: module(x, causal=causal), rounds)
    middle = _peak()

    def step() -> None:
        module.zero_grad(set_to_none=True)
        module(x, causal=causal).sum().backward()

    return {
        "forward": forward,
        "step": _best(step, rounds),
        "forward_megabytes": middle - before,
        "step_megabytes": _peak() - before,
    }


def _module(kind: str, length: int) -> Any:
    from heedful.models.config import ArchitectureConfig
    from heedful.models.transformer import new_decoder_attention, new_encoder_attention

    name, _, causal = kind.partition("-")
    side = "decoder_attention" if causal else "encoder_attention"
    config = ArchitectureConfig.from_settings(
        {"d_model": WIDTH, "heads": HEADS, side: name, "max_length": max(length, 300), "projected_length": SUMS}
    )
    return new_decoder_attention(config) if causal else new_encoder_attention(config, 0)


def _best(action: Any, rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _apart(kind: str, length: int, options: argparse.Namespace) -> dict[str, float]:
    """In a process of its own: a peak of memory never falls again."""
    words = ["--one", kind, str(length), "--rounds", str(options.rounds), "--threads", str(options.threads)]
    result = subprocess.run([sys.executable, __file__, *words], check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(result.stdout)
    return found


def exponent(points: dict[int, float]) -> float:
    """Slope of log(value) over log(length), by least squares."""
    xs = [math.log(length) for length in points]
    ys = [math.log(max(value, 1e-9)) for value in points.values()]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def _print(table: dict[tuple[str, int], dict[str, float]], lengths: list[int]) -> None:
    for what, unit, scale in (
        ("forward", "ms", 1e3),
        ("step", "ms", 1e3),
        ("forward_megabytes", "MB", 1.0),
        ("step_megabytes", "MB", 1.0),
    ):
        print(f"\n{what.replace('_megabytes', ', memory')} ({unit})")
        print(f"{'tokens':16}" + "".join(f"{length:>9,}" for length in lengths) + "   exponent")
        for kind in KINDS:
            values = {length: table[kind, length][what] for length in lengths}
            fitted = {length: value for length, value in values.items() if length >= FITTED_FROM}
            slope = f"{exponent(fitted):8.2f}" if len(fitted) > 1 else "       -"
            print(f"{kind:16}" + "".join(f"{value * scale:9.1f}" for value in values.values()) + slope)
    for kind in KINDS:
        name, _, causal = kind.partition("-")
        full = "full-causal" if causal else "full"
        if name == "full":
            continue
        for what in ("forward", "step"):
            quicker = [length for length in lengths if table[kind, length][what] < table[full, length][what]]
            ratio = table[full, lengths[-1]][what] / table[kind, lengths[-1]][what]
            said = f"quicker than {full} from {min(quicker):,} tokens" if quicker else f"never quicker than {full}"
            print(f"{kind}, {what}: {said}; {ratio:.1f} times at {lengths[-1]:,}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    numbers = [256, 512, 1024, 2048, 4096, 8192, 16384]
    parser.add_argument("--lengths", type=lambda words: [int(word) for word in words.split(",")], default=numbers)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("KIND", "LENGTH"), help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
