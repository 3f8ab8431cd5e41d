"""Train a MarianMTModel with common settings for some minutes, and translate the test set periodically.

    python hugging_face_quality.py TOKENS BATCHES TEST RESULTS SIZE_JSON

The same loop as hugging_face.py, with a schedule: AdamW at 5e-4, warm-up of 500 updates, then linear decay to zero
at the end of the time. TEST has the tokens of the sources. Every few minutes of training, a line is written to
RESULTS: the minutes of CPU time and the ids of each greedy translation. Translation and other load on the machine
do not count as training time.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from hugging_face import END, PAD, compute_loss, new_model, pad_rows, read_sentences
from torch import Tensor
from transformers import MarianMTModel

PEAK, WARMUP = 5e-4, 500


def main(token_folder: Path, batches_path: Path, test: Path, results: Path, size: dict[str, Any]) -> None:
    torch.set_num_threads(size["threads"])
    torch.manual_seed(1)
    sources, targets = read_sentences(token_folder / "train.source"), read_sentences(token_folder / "train.target")
    test_sources = read_sentences(test)
    model = new_model(size).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)
    batches = json.loads(batches_path.read_text(encoding="utf-8"))
    spent, validations, update = 0.0, 0, 0
    with results.open("w", encoding="utf-8") as file:
        while spent < size["minutes"]:
            batch, started = batches[update % len(batches)], time.process_time()
            update += 1
            rate = PEAK * min(1.0, update / WARMUP) * (1 - spent / size["minutes"])
            for group in optimizer.param_groups:
                group["lr"] = rate
            source, target = pad_rows([sources[i] for i in batch]), pad_rows([targets[i] for i in batch])
            loss = compute_loss(model, source, target, size["smoothing"])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            spent += (time.process_time() - started) / 60
            if spent >= min((validations + 1) * size["every"], size["minutes"]):
                validations += 1
                line = {"minutes": spent, "update": update, "translations": _translate(model, test_sources)}
                file.write(json.dumps(line) + "\n")
                file.flush()


@torch.inference_mode()
def _translate(model: MarianMTModel, test_sources: list[Tensor]) -> list[list[int]]:
    model.eval()
    indices = sorted(range(len(test_sources)), key=lambda number: len(test_sources[number]))
    result: list[list[int]] = [[] for _ in test_sources]
    for start in range(0, len(indices), 100):
        batch_indices = indices[start : start + 100]
        source = pad_rows([test_sources[number] for number in batch_indices])
        output = model.generate(
            input_ids=source,
            attention_mask=(source != PAD).long(),
            num_beams=1,
            do_sample=False,
            max_new_tokens=source.size(1) + 50,
        )
        for number, ids in zip(batch_indices, output[:, 1:].tolist(), strict=True):
            result[number] = ids[: ids.index(END)] if END in ids else ids
    model.train()
    return result


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:5]), json.loads(sys.argv[5]))
