"""What is learned from a line of the corpus: to translate it, to go on with it, to fill in its blanks.

Plain text comes as pairs whose two sides are the same; what each task makes of them is decided here.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from heedful.config import Settings
from heedful.corpora.batches import padded
from heedful.model.config import PAD, Architecture
from heedful.text.tokenizer import BLANK, END
from heedful.training.batch import Batch, new_batch

TASKS: dict[str, Settings] = {
    "translate": {},
    "language": {
        "model": {"family": "language"},
        "tokenizer": {"joint": True},
        "training": {"label_smoothing": 0.0, "bleu_sentences": 0},
    },
    "mask": {
        "model": {"family": "mask"},
        "tokenizer": {"joint": True},
        "training": {"label_smoothing": 0.0, "bleu_sentences": 0},
    },
}
"""Settings that each task begins with."""
HIDDEN = 0.15
"""Share of the tokens that are to be guessed; of these..."""
BLANKS, WRONG = 0.8, 0.1
"""...so many are blank and so many another word; the rest stay as they are (Devlin et al. 2019)."""
FIRST_PIECE = 3
"""Ids below are no pieces of text."""

Rows = Sequence[Sequence[int]]


BatchMaker = Callable[[Rows, Rows, Sequence[int]], Batch]
"""Sources, targets and a seed to a batch: what is random in it depends on the seed alone."""


def batch_maker(config: Architecture, vocabulary: int) -> BatchMaker:
    """How a model of this family gets its batches; ``vocabulary`` is of the words that it could mistake."""
    if config.family == "language":
        return lambda sources, targets, seed: new_batch([[] for _ in sources], targets)
    if config.family == "mask":
        return lambda sources, targets, seed: masked_batch(
            sources, np.random.default_rng(list(seed)), vocabulary
        )
    return lambda sources, targets, seed: new_batch(sources, targets)


def masked_batch(rows: Rows, random: np.random.Generator, vocabulary: int) -> Batch:
    """Some words of each sentence blank, wrong or as they are; to be written are these, and nothing else."""
    read, wanted = [], []
    for row in rows:
        ids = np.append(np.asarray(row, dtype=np.int64), END)
        chosen = random.random(len(ids)) < HIDDEN
        chosen[-1] = False  # the end is no word
        if len(row) and not chosen.any():
            chosen[random.integers(len(row))] = True
        fate = random.random(len(ids))
        other = random.integers(FIRST_PIECE, vocabulary, len(ids))
        seen = np.where(chosen & (fate < BLANKS), BLANK, ids)
        seen = np.where(chosen & (fate >= BLANKS) & (fate < BLANKS + WRONG), other, seen)
        read.append(seen)
        wanted.append(np.where(chosen, ids, PAD))
    source, target = torch.from_numpy(padded(read, PAD)), torch.from_numpy(padded(wanted, PAD))
    return Batch(source, target, target)
