"""Every member of the family, as settings on top of the paper's: what holds for one holds for all."""

from typing import Any

VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre-norm": {"norm": "pre"},
    "learned": {"positions": "learned"},
    "relative": {"positions": "relative", "relative_distance": 3},
    "rotary": {"positions": "rotary"},
    "alibi": {"positions": "alibi"},
    "nowhere": {"positions": "none"},
    "rms": {"normalization": "rms"},
    "rms-pre": {"normalization": "rms", "norm": "pre"},
    "silu": {"activation": "silu"},
    "gated": {"gated": True, "activation": "silu"},
    "unscaled": {"scaled_attention": False},
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
