"""Train a MarianMTModel with usual settings for some minutes; translate the test set again and again.

    python hugging_face_quality.py PIECES PLAN TEST RESULTS SIZE_JSON

The same loop as hugging_face.py, with a schedule: AdamW at 5e-4, warm-up of 500 updates, then down to zero
at the end of the time. TEST holds the pieces of the sources. Every few minutes of training a line goes to
RESULTS: the minutes of CPU time and the ids of each greedy translation. Neither translating nor other work
on the machine counts as training time.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from hugging_face import END, PAD, loss_of, new_model, pad_rows, sentences_of
from torch import Tensor
from transformers import MarianMTModel

PEAK, WARMUP = 5e-4, 500


def main(pieces: Path, plan: Path, test: Path, results: Path, size: dict[str, Any]) -> None:
    torch.set_num_threads(size["threads"])
    torch.manual_seed(1)
    sources, targets = sentences_of(pieces / "train.source"), sentences_of(pieces / "train.target")
    questions = sentences_of(test)
    model = new_model(size).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)
    batches = json.loads(plan.read_text(encoding="utf-8"))
    spent, told, update = 0.0, 0, 0
    with results.open("w", encoding="utf-8") as file:
        while spent < size["minutes"]:
            batch, started = batches[update % len(batches)], time.process_time()
            update += 1
            rate = PEAK * min(1.0, update / WARMUP) * (1 - spent / size["minutes"])
            for group in optimizer.param_groups:
                group["lr"] = rate
            source, target = pad_rows([sources[i] for i in batch]), pad_rows([targets[i] for i in batch])
            loss = loss_of(model, source, target, size["smoothing"])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            spent += (time.process_time() - started) / 60
            if spent >= min((told + 1) * size["every"], size["minutes"]):
                told += 1
                line = {"minutes": spent, "update": update, "translations": _translate(model, questions)}
                file.write(json.dumps(line) + "\n")
                file.flush()


@torch.inference_mode()
def _translate(model: MarianMTModel, questions: list[Tensor]) -> list[list[int]]:
    model.eval()
    order = sorted(range(len(questions)), key=lambda number: len(questions[number]))
    result: list[list[int]] = [[] for _ in questions]
    for first in range(0, len(order), 100):
        some = order[first : first + 100]
        source = pad_rows([questions[number] for number in some])
        written = model.generate(
            input_ids=source,
            attention_mask=(source != PAD).long(),
            num_beams=1,
            do_sample=False,
            max_new_tokens=source.size(1) + 50,
        )
        for number, ids in zip(some, written[:, 1:].tolist(), strict=True):
            result[number] = ids[: ids.index(END)] if END in ids else ids
    model.train()
    return result


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:5]), json.loads(sys.argv[5]))
