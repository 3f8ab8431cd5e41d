"""Every member of the family, as settings on top of the paper's: what holds for one holds for all."""

from typing import Any

import torch
from torch import Tensor

from heedful.model.config import PAD, TREE_POSITIONS
from heedful.places import packed

VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre-norm": {"norm": "pre"},
    "learned": {"positions": "learned"},
    "relative": {"positions": "relative", "relative_distance": 3},
    "rotary": {"positions": "rotary"},
    "alibi": {"positions": "alibi"},
    "tree": {"positions": "tree"},
    "relative-tree": {"positions": "relative-tree", "relative_distance": 3},
    "nowhere": {"positions": "none"},
    "rms": {"normalization": "rms"},
    "rms-pre": {"normalization": "rms", "norm": "pre"},
    "silu": {"activation": "silu"},
    "gated": {"gated": True, "activation": "silu"},
    "unscaled": {"scaled_attention": False},
    "unscaled-embeddings": {"scale_embeddings": False},
    "output-bias": {"output_bias": True},
    "no-residuals": {"residuals": False},
    "no-residuals-pre": {"residuals": False, "norm": "pre"},
    "bigbird": {
        "encoder_attention": "bigbird",
        "decoder_attention": "bigbird",
        "block": 2,
        "window_blocks": 1,
        "random_blocks": 1,
    },
    "bigbird-without-first": {
        "encoder_attention": "bigbird",
        "decoder_attention": "bigbird",
        "block": 1,
        "window_blocks": 1,
        "global_blocks": 0,
        "random_blocks": 1,
    },
    "linformer": {"encoder_attention": "linformer", "projected_length": 3},
}


def in_trees(name: str, ids: Tensor) -> Tensor:
    """The padded ids, with a random tree in each but the last sentence if the variant reads trees.

    Words have one to three pieces; the last piece before the padding, the end, is in no word.
    """
    if VARIANTS[name].get("positions") not in TREE_POSITIONS:
        return ids
    placed = ids.clone()
    for row, sentence in enumerate(ids[:-1]):
        length = int((sentence != PAD).sum()) - 1
        words = (torch.rand(length) < 0.6).cumsum(0).clamp(min=1).tolist()
        count = max(words, default=0)
        order = torch.randperm(count).tolist()  # a word hangs on one that comes before it here
        heads = {
            word + 1: order[int(torch.randint(place, ()))] + 1 if place else 0
            for place, word in enumerate(order)
        }
        for place, word in enumerate(words):
            placed[row, place] = packed(int(sentence[place]), word, heads[word])
    return placed
