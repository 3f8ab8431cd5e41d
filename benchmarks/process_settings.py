"""Gain of the process settings of `heedful.devices.configure_process`: training steps with and without them.

    python benchmarks/process_settings.py

Both run in separate processes, in alternating rounds; the fastest round of each counts.
"""

import os
import subprocess
import sys
import time

ROUNDS = 3
WITHOUT = {  # a MALLOC_ variable disables the allocator settings; the others are the defaults
    "MALLOC_ARENA_TEST": "8",
    "THP_MEM_ALLOC_ENABLE": "0",
    "GOMP_SPINCOUNT": "300000",
}


def measure() -> None:
    """Train a tiny model on random ids; print target tokens per second."""
    from heedful.devices import configure_process

    configure_process()
    import torch

    from heedful.data.collate import collate
    from heedful.models.config import ModelConfig
    from heedful.models.transformer import Transformer
    from heedful.training.config import tiny
    from heedful.training.step import new_optimizer, run_update

    torch.manual_seed(0)
    config = tiny()
    sizes = {"source_vocab_size": 8000, "target_vocab_size": 8000}
    model = Transformer(ModelConfig(**config.model.model_dump(), **sizes)).train()
    optimizer = new_optimizer(model, config.training)
    rows = torch.randint(3, 8000, (128, 15)).tolist()
    batch = collate(rows, rows)
    for _ in range(5):
        run_update(model, optimizer, [batch], config.training, 1e-4)
    started = time.perf_counter()
    for _ in range(30):
        run_update(model, optimizer, [batch], config.training, 1e-4)
    print(30 * batch.tokens / (time.perf_counter() - started))


def run(environment: dict[str, str]) -> float:
    command = [sys.executable, __file__, "measure"]
    result = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    return float(result.stdout)


def main() -> None:
    rounds = [(run(WITHOUT), run({})) for _ in range(ROUNDS)]
    for without, ours in rounds:
        print(f"without {without:7,.0f} tokens/s   with {ours:7,.0f} tokens/s   ratio {ours / without:5.2f}")
    best = max(ours for _, ours in rounds) / max(without for without, _ in rounds)
    print(f"fastest rounds compared: {best:.2f}")


if __name__ == "__main__":
    measure() if sys.argv[1:] == ["measure"] else main()
