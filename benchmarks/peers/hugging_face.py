"""Train a MarianMTModel in a plain PyTorch loop.

    python hugging_face.py TOKENS BATCHES PROGRESS SIZE_JSON

Runs in an environment with torch and transformers only. SIZE_JSON holds the dimensions, the vocabulary, the
threads and the precision. After every update it writes a line to PROGRESS; it trains until it is stopped.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import MarianConfig, MarianMTModel

PAD, END = 0, 1


def main(token_folder: Path, batches_path: Path, progress: Path, size: dict[str, Any]) -> None:
    torch.set_num_threads(size["threads"])
    torch.manual_seed(1)
    sources, targets = read_sentences(token_folder / "train.source"), read_sentences(token_folder / "train.target")
    model = new_model(size).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0, fused=True
    )
    tokens, started = 0, time.perf_counter()
    with progress.open("w", encoding="utf-8") as file:
        for update, batch in enumerate(json.loads(batches_path.read_text(encoding="utf-8")), start=1):
            source, target = pad_rows([sources[i] for i in batch]), pad_rows([targets[i] for i in batch])
            with torch.autocast("cpu", torch.bfloat16, enabled=size["bfloat16"]):
                loss = compute_loss(model, source, target, size["smoothing"])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            tokens += int((target != PAD).sum())
            line = {"update": update, "tokens": tokens, "seconds": time.perf_counter() - started}
            file.write(json.dumps({**line, "loss": loss.item()}) + "\n")
            file.flush()


def new_model(size: dict[str, Any]) -> MarianMTModel:
    return MarianMTModel(
        MarianConfig(
            vocab_size=size["vocabulary"],
            decoder_vocab_size=size["vocabulary"],
            share_encoder_decoder_embeddings=True,
            tie_word_embeddings=True,
            d_model=size["d_model"],
            encoder_layers=size["layers"],
            decoder_layers=size["layers"],
            encoder_attention_heads=size["heads"],
            decoder_attention_heads=size["heads"],
            encoder_ffn_dim=size["d_ff"],
            decoder_ffn_dim=size["d_ff"],
            activation_function="relu",
            dropout=size["dropout"],
            attention_dropout=0.0,
            activation_dropout=0.0,
            scale_embedding=True,
            max_position_embeddings=1024,
            pad_token_id=PAD,
            eos_token_id=END,
            forced_eos_token_id=None,
            decoder_start_token_id=PAD,
        )
    )


def compute_loss(model: MarianMTModel, source: Tensor, target: Tensor, smoothing: float) -> Tensor:
    decoder_input = F.pad(target[:, :-1], (1, 0), value=PAD)  # (sentences, target length)
    logits = model(
        input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=decoder_input, use_cache=False
    ).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten(), ignore_index=PAD, label_smoothing=smoothing)


def read_sentences(path: Path) -> list[Tensor]:
    """Read the ids of each line, with END."""
    with path.open(encoding="utf-8") as file:
        return [torch.tensor([int(token[1:]) for token in line.split()] + [END]) for line in file]


def pad_rows(rows: list[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]))
