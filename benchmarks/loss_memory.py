"""Savings of the chunked loss: peak memory and time of one training step, with chunks and with all logits at once.

    python benchmarks/loss_memory.py [--vocabulary 37000] [--tokens 4096]

The paper's base model and batches of 4,096 tokens, in float32; each method runs in a separate process.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

LENGTH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vocabulary", type=int, default=37_000)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--one", choices=["unchunked", "chunks"])
    options = parser.parse_args()
    if options.one:
        print(json.dumps(_step(options.one == "chunks", options.vocabulary, options.tokens)))
        return
    args = ["--vocabulary", str(options.vocabulary), "--tokens", str(options.tokens)]
    results = {
        method: json.loads(
            subprocess.run([sys.executable, __file__, "--one", method, *args], check=True, capture_output=True).stdout
        )
        for method in ("unchunked", "chunks")
    }
    for method, numbers in results.items():
        print(f"{method:8} peak {numbers['megabytes']:6,.0f} MB   step {numbers['seconds']:5.1f} s")
    less = results["unchunked"]["megabytes"] - results["chunks"]["megabytes"]
    ratio = results["unchunked"]["seconds"] / results["chunks"]["seconds"]
    print(f"in chunks: {less:,.0f} MB less, {ratio:.2f} times as fast")


def _step(chunks: bool, vocabulary: int, tokens: int) -> dict[str, float]:
    from heedful.devices import configure_process

    configure_process()
    import torch

    from heedful.data.collate import collate
    from heedful.models.config import ModelConfig
    from heedful.models.transformer import Transformer
    from heedful.tokenization.special_tokens import PAD
    from heedful.training.step import label_smoothed_loss, output_loss

    torch.manual_seed(1)
    model = Transformer(ModelConfig(source_vocab_size=vocabulary, target_vocab_size=vocabulary)).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    rows = torch.randint(2, vocabulary, (tokens // LENGTH, LENGTH - 1)).tolist()
    batch = collate(rows, rows)
    seconds = float("inf")
    for _ in range(2):
        started = time.perf_counter()
        states, weight = model(batch.source, batch.decoder_input), model.output.weight
        if chunks:
            loss, _ = output_loss(states, weight, batch.target, 0.1)
        else:
            is_padding = torch.arange(vocabulary) == PAD
            logits = (states @ weight.T).masked_fill(is_padding, -torch.inf)
            loss, _ = label_smoothed_loss(logits, batch.target, 0.1)
        optimizer.zero_grad(set_to_none=True)
        (loss / batch.tokens).backward()
        optimizer.step()
        seconds = min(seconds, time.perf_counter() - started)
    return {"megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "seconds": seconds}


if __name__ == "__main__":
    main()
