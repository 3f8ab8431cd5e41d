"""How quickly this machine trains, before there is a model to train: by some steps of a middling one."""

import time
from functools import cache

import torch

from heedful.model.config import ModelConfig
from heedful.model.predictor import Predictor
from heedful.model.transformer import Transformer
from heedful.training.batch import Batch, new_batch
from heedful.training.update import BatchLoss, add_gradient

USUAL = 1e11
"""Operations a second of two cores of a laptop: what is assumed where nothing is measured."""
SENTENCES, LENGTH, VOCABULARY = 64, 15, 4000
ROUNDS = 3


@cache
def operations_per_second(threads: int, device: torch.device) -> float:
    """Multiplications and additions a second of a training step, in the quicker precision; takes a second."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng():
            model = _middling().to(device)
            rows = torch.randint(2, VOCABULARY, (SENTENCES, LENGTH)).tolist()
            batch = new_batch(rows, rows)
            best = min(
                _seconds(model, batch, precision)
                for precision in ("float32", "bfloat16")
                for _ in range(ROUNDS)
            )
        return operations_per_token(model.config, LENGTH + 1) * batch.tokens / best
    finally:
        torch.set_num_threads(before)


def _seconds(model: Predictor, batch: Batch, precision: str) -> float:
    started = time.perf_counter()
    model.zero_grad(set_to_none=True)
    add_gradient(BatchLoss(model, 0.1), [batch], precision)
    gradient = model.output.weight.grad
    assert gradient is not None
    float(gradient.sum())  # waits until a GPU is done
    return time.perf_counter() - started


def operations_per_token(config: ModelConfig, length: float) -> float:
    """Of a training step, for each target token: six for each weight that it meets, and attention's own.

    A source token is counted for each target token: sentences are about as long on both sides.
    """
    width, inner = config.width, config.feed_forward_width
    encoder = config.encoder_layers * (4 * width * width + 2 * width * inner)
    decoder = config.decoder_layers * (8 * width * width + 2 * width * inner)
    attention = (config.encoder_layers + 2 * config.decoder_layers) * 2 * width * length
    return 6.0 * (encoder + decoder + attention + width * config.target_vocabulary)


def _middling() -> Transformer:
    return Transformer(
        ModelConfig(
            width=192,
            heads=4,
            encoder_layers=2,
            decoder_layers=2,
            feed_forward_width=768,
            source_vocabulary=VOCABULARY,
            target_vocabulary=VOCABULARY,
        )
    ).train()
