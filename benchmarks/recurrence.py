"""Training speed of a GRU and a Transformer on the same sentences, by length.

    python benchmarks/recurrence.py [--lengths 8,16,32,...] [--tokens 2048] [--threads 1,2] [--rounds 3]

Training steps (forward and backward) of an encoder-decoder with 2+2 layers and d_model 256, alternating in one
run: batches of the same number of tokens, and a single sentence. Printed: target tokens per second of both on one
core and on two, and the ratio on the most cores. A GRU has one sequential operation per word, the Transformer a
fixed number.
"""

import argparse
import time

import torch

from heedful.data.collate import Batch, collate
from heedful.models.base import Model
from heedful.models.config import ModelConfig
from heedful.models.factory import new_model
from heedful.training.step import BatchLoss, accumulate_gradient

VOCABULARY, D_MODEL = 4000, 256
KINDS = ("transformer", "gru")


def main() -> None:
    options = _options()
    torch.manual_seed(1)
    models = {kind: _model(kind) for kind in KINDS}
    for kind, model in models.items():
        print(f"{kind}: {model.parameter_count():,} parameters")
    for sentences in ("many", "one"):
        title = f"a batch of {options.tokens:,} tokens" if sentences == "many" else "one sentence"
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
                "d_model": D_MODEL,
                "heads": 4,
                "encoder_layers": 2,
                "decoder_layers": 2,
                "d_ff": 4 * D_MODEL if kind == "transformer" else D_MODEL,
                "source_vocab_size": VOCABULARY,
                "target_vocab_size": VOCABULARY,
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
    numbers = lambda text: [int(number) for number in text.split(",")]  # noqa: E731
    parser.add_argument("--lengths", type=numbers, default=[8, 16, 32, 64, 128, 256])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
