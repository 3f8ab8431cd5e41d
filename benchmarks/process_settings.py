"""What the process-wide settings of heedful/process.py gain: training steps with and without them, in turn.

    python benchmarks/process_settings.py

Each side runs in processes of its own, several rounds in turn; the quickest round of each counts.
"""

import os
import subprocess
import sys
import time

ROUNDS = 3
WITHOUT = {  # any MALLOC_ variable makes `prepare` leave the allocator alone; the others are the defaults
    "MALLOC_ARENA_TEST": "8",
    "THP_MEM_ALLOC_ENABLE": "0",
    "GOMP_SPINCOUNT": "300000",
}


def measure() -> None:
    """Train a tiny model on random ids; print target tokens a second."""
    import torch

    from heedful.data.collate import collate
    from heedful.models.config import ModelConfig
    from heedful.models.transformer import Transformer
    from heedful.training.config import tiny
    from heedful.training.step import new_optimizer, run_update

    torch.manual_seed(0)
    config = tiny()
    sizes = {"source_vocabulary": 8000, "target_vocabulary": 8000}
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
    words = [sys.executable, __file__, "measure"]
    done = subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    rounds = [(run(WITHOUT), run({})) for _ in range(ROUNDS)]
    for without, ours in rounds:
        print(f"without {without:7,.0f} tokens/s   with {ours:7,.0f} tokens/s   ratio {ours / without:5.2f}")
    best = max(ours for _, ours in rounds) / max(without for without, _ in rounds)
    print(f"quickest against quickest: {best:.2f}")


if __name__ == "__main__":
    measure() if sys.argv[1:] == ["measure"] else main()
