"""Every model variant, as changes to the settings of the paper's model."""

from typing import Any

import torch
from torch import Tensor

from heedful.models.config import DEPENDENCY_POSITIONS
from heedful.tokenization.special_tokens import PAD

VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre-norm": {"norm_placement": "pre"},
    "learned": {"positions": "learned"},
    "relative": {"positions": "relative", "max_relative_distance": 3},
    "rotary": {"positions": "rotary"},
    "alibi": {"positions": "alibi"},
    "dependency": {"positions": "dependency"},
    "relative-dependency": {"positions": "relative-dependency", "max_relative_distance": 3},
    "no-positions": {"positions": "none"},
    "rms": {"norm": "rmsnorm"},
    "rms-pre": {"norm": "rmsnorm", "norm_placement": "pre"},
    "silu": {"activation": "silu"},
    "gated": {"gated_feed_forward": True, "activation": "silu"},
    "unscaled": {"scale_attention": False},
    "unscaled-embeddings": {"scale_embeddings": False},
    "output-bias": {"output_bias": True},
    "no-residuals": {"residuals": False},
    "no-residuals-pre": {"residuals": False, "norm_placement": "pre"},
    "bigbird": {
        "encoder_attention": "bigbird",
        "decoder_attention": "bigbird",
        "block_size": 2,
        "window_blocks": 1,
        "random_blocks": 1,
    },
    "bigbird-without-first": {
        "encoder_attention": "bigbird",
        "decoder_attention": "bigbird",
        "block_size": 1,
        "window_blocks": 1,
        "global_blocks": 0,
        "random_blocks": 1,
    },
    "linformer": {"encoder_attention": "linformer", "projected_length": 3},
}


def add_random_trees(name: str, ids: Tensor) -> Tensor:
    """The padded ids, beside them a random tree in each but the last sentence if the variant reads trees.

    A word has one or more tokens; END is part of no word.
    """
    if VARIANTS[name].get("positions") not in DEPENDENCY_POSITIONS:
        return ids
    word_column, head_column = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, sentence in enumerate(ids[:-1]):
        length = int((sentence != PAD).sum()) - 1
        word_numbers = (torch.rand(length) < 0.6).cumsum(0).clamp(min=1).tolist()
        count = max(word_numbers, default=0)
        permutation = torch.randperm(count).tolist()  # the head of a word comes before it here
        heads = {
            word + 1: permutation[int(torch.randint(position, ()))] + 1 if position else 0
            for position, word in enumerate(permutation)
        }
        word_column[row, :length] = torch.tensor(word_numbers)
        head_column[row, :length] = torch.tensor([heads[word] for word in word_numbers])
    return torch.stack([ids, word_column, head_column], dim=-1)
