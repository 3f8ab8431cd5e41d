"""Why recurrence had to go: a GRU and a Transformer on the same sentences, by their length.

    python benchmarks/recurrence.py [--lengths 8,16,32,...] [--tokens 2048] [--threads 1,2] [--rounds 3]

Training steps (forward and backward) of an encoder-decoder of 2+2 layers and width 256, in turn in one run:
batches of the same number of tokens, and a single sentence, where nothing else can be computed beside it.
Printed: target tokens a second of both on one core and on two, and the ratio on the most cores. Operations
that must wait for each other: a GRU has one for every word, the Transformer a fixed number.
"""

import argparse
import time

import torch

from heedful.data.collate import Batch, collate
from heedful.models.base import Model
from heedful.models.config import ModelConfig
from heedful.models.factory import new_model
from heedful.training.step import BatchLoss, accumulate_gradient

VOCABULARY, WIDTH = 4000, 256
KINDS = ("transformer", "gru")


def main() -> None:
    options = _options()
    torch.manual_seed(1)
    models = {kind: _model(kind) for kind in KINDS}
    for kind, model in models.items():
        print(f"{kind}: {model.parameter_count():,} parameters")
    for sentences in ("many", "one"):
        title = f"a batch of {options.tokens:,} tokens" if sentences == "many" else "one sentence alone"
        print(f"\n{title}")
        print("  length" + "".join(f"  {kind}, {n} threads" for n in options.threads for kind in KINDS) + "  ratio")
        for length in options.lengths:
            count = max(1, options.tokens // length) if sentences == "many" else 1
            rows = torch.randint(3, VOCABULARY, (count, length - 1)).tolist()
            batch = collate(rows, rows)
            speeds = {
                (kind, threads): _speed(models[kind], batch, threads, options.rounds)
                for threads in options.threads
                for kind in KINDS
            }
            cells = "".join(f"{speed:>24,.0f}" for speed in speeds.values())
            last = options.threads[-1]
            print(f"{length:8}{cells}{speeds['transformer', last] / speeds['gru', last]:8.2f}x", flush=True)


def _model(kind: str) -> Model:
    return new_model(
        ModelConfig.from_settings(
            {
                "architecture": kind,
                "d_model": WIDTH,
                "heads": 4,
                "encoder_layers": 2,
                "decoder_layers": 2,
                "feed_forward_width": 4 * WIDTH if kind == "transformer" else WIDTH,
                "source_vocabulary": VOCABULARY,
                "target_vocabulary": VOCABULARY,
                "dropout": 0.0,
            }
        )
    ).train()


def _speed(model: Model, batch: Batch, threads: int, rounds: int) -> float:
    torch.set_num_threads(threads)
    best = float("inf")
    for _ in range(rounds):
        model.zero_grad(set_to_none=True)
        started = time.perf_counter()
        accumulate_gradient(BatchLoss(model, 0.1), [batch], "float32")
        best = min(best, time.perf_counter() - started)
    return batch.tokens / best


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    numbers = lambda words: [int(word) for word in words.split(",")]  # noqa: E731
    parser.add_argument("--lengths", type=numbers, default=[8, 16, 32, 64, 128, 256])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
