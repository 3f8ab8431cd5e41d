"""Cost of attention by length: full (fused), BigBird and Linformer, from 256 to 16,384 tokens.

    python benchmarks/length_scaling.py [--lengths 256,512,...] [--rounds 3] [--threads 1] [--output FILE]

For each kind and length, a separate process computes one layer of self-attention (d_model 256, 4 heads, one text):
forward only, and forward and backward as in a training step. Printed: seconds (the best of some rounds), the peak
memory that the computation adds, the exponent fitted from 2,048 tokens on (1 is linear, 2 quadratic), and the
length from which a kind is faster than full attention.
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
D_MODEL, HEADS, PROJECTED_LENGTH = 256, 4, 256
FITTED_FROM = 2048


def main() -> None:
    options = parse_options()
    if options.one:
        kind, length = options.one
        print(json.dumps(measure(kind, int(length), options.rounds, options.threads)))
        return
    table = {(kind, length): measure_in_process(kind, length, options) for kind in KINDS for length in options.lengths}
    _print(table, options.lengths)
    if options.output:
        rows = [{"kind": kind, "length": length, **measurement} for (kind, length), measurement in table.items()]
        options.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def measure(kind: str, length: int, rounds: int, threads: int) -> dict[str, float]:
    """Seconds and megabytes of one layer."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    module, causal = new_module(kind, length), kind.endswith("causal")
    x = torch.randn(1, length, D_MODEL)
    with torch.inference_mode():
        module(x[:, :300], causal=causal)  # warm-up
    before = read_peak_megabytes()
    with torch.inference_mode():
        forward = measure_best(lambda: module(x, causal=causal), rounds)
    middle = read_peak_megabytes()

    def step() -> None:
        module.zero_grad(set_to_none=True)
        module(x, causal=causal).sum().backward()

    return {
        "forward": forward,
        "step": measure_best(step, rounds),
        "forward_megabytes": middle - before,
        "step_megabytes": read_peak_megabytes() - before,
    }


def new_module(kind: str, length: int) -> Any:
    from heedful.models.config import ArchitectureConfig
    from heedful.models.transformer import new_decoder_attention, new_encoder_attention

    name, _, causal = kind.partition("-")
    side = "decoder_attention" if causal else "encoder_attention"
    config = ArchitectureConfig.from_settings(
        {
            "d_model": D_MODEL,
            "heads": HEADS,
            side: name,
            "max_length": max(length, 300),
            "projected_length": PROJECTED_LENGTH,
        }
    )
    return new_decoder_attention(config) if causal else new_encoder_attention(config, 0)


def measure_best(action: Any, rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def read_peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_in_process(kind: str, length: int, options: argparse.Namespace) -> dict[str, float]:
    """Measure in a separate process, since the peak memory of a process never falls."""
    args = ["--one", kind, str(length), "--rounds", str(options.rounds), "--threads", str(options.threads)]
    result = subprocess.run([sys.executable, __file__, *args], check=True, capture_output=True, text=True)
    measurement: dict[str, float] = json.loads(result.stdout)
    return measurement


def exponent(points: dict[int, float]) -> float:
    """Slope of log(value) over log(length), by least squares."""
    xs = [math.log(length) for length in points]
    ys = [math.log(max(value, 1e-9)) for value in points.values()]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def _print(table: dict[tuple[str, int], dict[str, float]], lengths: list[int]) -> None:
    for measure_name, unit, scale in (
        ("forward", "ms", 1e3),
        ("step", "ms", 1e3),
        ("forward_megabytes", "MB", 1.0),
        ("step_megabytes", "MB", 1.0),
    ):
        print(f"\n{measure_name.replace('_megabytes', ', memory')} ({unit})")
        print(f"{'tokens':16}" + "".join(f"{length:>9,}" for length in lengths) + "   exponent")
        for kind in KINDS:
            values = {length: table[kind, length][measure_name] for length in lengths}
            fitted = {length: value for length, value in values.items() if length >= FITTED_FROM}
            slope = f"{exponent(fitted):8.2f}" if len(fitted) > 1 else "       -"
            print(f"{kind:16}" + "".join(f"{value * scale:9.1f}" for value in values.values()) + slope)
    for kind in KINDS:
        name, _, causal = kind.partition("-")
        full = "full-causal" if causal else "full"
        if name == "full":
            continue
        for measure_name in ("forward", "step"):
            faster_lengths = [
                length for length in lengths if table[kind, length][measure_name] < table[full, length][measure_name]
            ]
            ratio = table[full, lengths[-1]][measure_name] / table[kind, lengths[-1]][measure_name]
            comparison = (
                f"faster than {full} from {min(faster_lengths):,} tokens"
                if faster_lengths
                else f"never faster than {full}"
            )
            print(f"{kind}, {measure_name}: {comparison}; {ratio:.1f} times at {lengths[-1]:,}")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    numbers = [256, 512, 1024, 2048, 4096, 8192, 16384]
    parser.add_argument("--lengths", type=lambda text: [int(number) for number in text.split(",")], default=numbers)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("KIND", "LENGTH"), help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
