"""Which self-attention a config describes: by how words know their places, or by how little they look at."""

from typing import Any

from heedful.model.attention import MultiHeadAttention
from heedful.model.config import Architecture
from heedful.model.efficient_attention import BlockAttention, Blocks, CausalBlockAttention, ProjectedAttention
from heedful.model.relative import AlibiAttention, RelativeAttention, RotaryAttention
from heedful.model.trees import TreeAttention


def attention_options(config: Architecture) -> dict[str, Any]:
    """What all kinds of attention take."""
    return {
        "dropout": config.attention_dropout,
        "bias": config.attention_bias,
        "scaled": config.scaled_attention,
    }


def new_encoder_attention(config: Architecture, layer: int) -> MultiHeadAttention:
    """Of an encoder layer, counted from 0: each draws its own random blocks."""
    sizes, options = (config.width, config.heads), attention_options(config)
    if config.encoder_attention == "bigbird":
        blocks = Blocks(config.block, config.window_blocks, config.global_blocks, config.random_blocks)
        return BlockAttention(*sizes, blocks=blocks, seed=layer, **options)
    if config.encoder_attention == "linformer":
        return ProjectedAttention(*sizes, longest=config.longest, sums=config.projected_length, **options)
    if config.positions == "relative-tree":
        return TreeAttention(*sizes, distance=config.relative_distance, **options)
    return _full(config)


def new_decoder_attention(config: Architecture) -> MultiHeadAttention:
    """Of a decoder layer, from left to right."""
    if config.decoder_attention == "bigbird":
        blocks = Blocks(config.block, config.window_blocks, config.global_blocks)
        return CausalBlockAttention(config.width, config.heads, blocks=blocks, **attention_options(config))
    return _full(config)


def _full(config: Architecture) -> MultiHeadAttention:
    """Every word may look at every word."""
    sizes, options = (config.width, config.heads), attention_options(config)
    if config.positions in ("relative", "relative-tree"):
        return RelativeAttention(*sizes, distance=config.relative_distance, **options)
    kinds: dict[str, type[MultiHeadAttention]] = {"rotary": RotaryAttention, "alibi": AlibiAttention}
    return kinds.get(config.positions, MultiHeadAttention)(*sizes, **options)
