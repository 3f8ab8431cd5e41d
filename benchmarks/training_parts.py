"""Gain of the optimized parts of training over the plain ones, both in the same run.

    python benchmarks/training_parts.py

The ratios are the result: times on a shared machine vary. The fastest of several rounds counts.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from heedful.data.config import BatchConfig
from heedful.data.sampler import plan_batches
from heedful.models.sublayers import Dropout
from heedful.training.step import label_smoothed_loss, output_loss

TOKENS, D_MODEL, VOCABULARY, ROUNDS = 2048, 128, 8000, 7


def measure_fastest(function: Callable[[], object], repeat: int = 3) -> float:
    """Seconds of one call."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(repeat):
            function()
        best = min(best, (time.perf_counter() - started) / repeat)
    return best


def compare(name: str, plain: Callable[[], object], ours: Callable[[], object]) -> None:
    plain(), ours()
    before, after = measure_fastest(plain), measure_fastest(ours)
    print(f"{name:34} plain {before * 1e3:8.2f} ms   ours {after * 1e3:8.2f} ms   ratio {before / after:5.2f}")


def main() -> None:
    torch.manual_seed(0)
    states = torch.randn(TOKENS, D_MODEL, requires_grad=True)
    output_weight = torch.randn(VOCABULARY, D_MODEL, requires_grad=True)
    targets = torch.randint(1, VOCABULARY, (TOKENS,))
    print(f"{torch.get_num_threads()} threads; {TOKENS} tokens, d_model {D_MODEL}, vocabulary {VOCABULARY}")
    compare(
        "output layer and loss, with gradient",
        lambda: label_smoothed_loss(states @ output_weight.T, targets, 0.1)[0].backward(),
        lambda: output_loss(states, output_weight, targets, 0.1)[0].backward(),
    )
    plain, ours = nn.Dropout(0.1), Dropout(0.1)
    compare("dropout", lambda: plain(states), lambda: ours(states))
    lengths = np.random.default_rng(0).lognormal(2.6, 0.5, (2, 30_000)).astype(int) + 2
    batches = plan_batches(lengths[0], lengths[1], BatchConfig(max_tokens=TOKENS), seed=0, epoch=0)
    useful = sum(lengths[1][batch].sum() for batch in batches)
    padded = sum(lengths[1][batch].max() * len(batch) for batch in batches)
    print(f"useful target tokens in a batch: {useful / padded:.1%}")


if __name__ == "__main__":
    main()
