"""Our weights in the places where CTranslate2 expects them."""

from typing import Any

import numpy as np
from torch import Tensor, nn

from heedful.bundle import Bundle
from heedful.engines.ctranslate2 import POSITIONS
from heedful.interop.ctranslate2 import Tokens
from heedful.model.attention import MultiHeadAttention
from heedful.model.config import INNER_POSITIONS, PAD, ModelConfig
from heedful.model.decoder import Decoder
from heedful.model.encoder import Encoder
from heedful.model.feed_forward import FeedForward, GatedFeedForward
from heedful.model.layers import DecoderLayer, EncoderLayer
from heedful.model.relative import RelativeAttention
from heedful.model.residual import EPSILON, Norm, PostNorm
from heedful.model.transformer import Transformer
from heedful.text.tokenizer import END, UNKNOWN, PairTokenizer, Tokenizer

NEVER = -1e4
"""Bias of a word that must never be written: the padding, which is also the start."""


def new_specification(bundle: Bundle, tokens: Tokens = "ids") -> Any:
    """The model as CTranslate2 describes one, with all its numbers."""
    import ctranslate2  # type: ignore[import-untyped]

    model, config = bundle.model, bundle.config.model
    assert isinstance(model, Transformer)  # why_not has refused all others
    specs, options = ctranslate2.specs.transformer_spec, _options(config)
    specification = ctranslate2.specs.TransformerSpec(
        specs.TransformerEncoderSpec(config.encoder_layers, config.heads, **options),
        specs.TransformerDecoderSpec(
            config.decoder_layers,
            config.heads,
            alignment_layer=config.alignment_layer,
            alignment_heads=config.heads,
            **options,
        ),
    )
    _fill_encoder(specification.encoder, model.encoder, config)
    _fill_decoder(specification.decoder, model.decoder, config)
    specification.decoder.projection.weight = _numbers(model.output.weight)
    nothing = np.zeros(config.target_vocabulary, dtype=np.float32)
    bias = nothing if model.output_bias is None else _numbers(model.output_bias)
    bias[PAD] = NEVER
    specification.decoder.projection.bias = bias
    _name_tokens(specification, bundle.tokenizer, tokens)
    specification.config.layer_norm_epsilon = EPSILON
    return specification


def _name_tokens(specification: Any, tokenizer: PairTokenizer, tokens: Tokens) -> None:
    """Both vocabularies, and which of their entries stand for no text."""
    source, target = _names(tokenizer.source, tokens), _names(tokenizer.target, tokens)
    specification.register_source_vocabulary(source)
    specification.register_target_vocabulary(target)
    settings = specification.config
    settings.unk_token, settings.eos_token, settings.bos_token = target[UNKNOWN], target[END], target[PAD]
    settings.decoder_start_token = target[PAD]
    settings.add_source_bos, settings.add_source_eos = False, tokens == "pieces"  # our ids have their end


def _options(config: ModelConfig) -> dict[str, Any]:
    """What both stacks are told."""
    import ctranslate2

    kinds = ctranslate2.specs.Activation
    return {
        "pre_norm": config.norm == "pre",
        "activation": {"relu": kinds.RELU, "gelu": kinds.GELU, "silu": kinds.SWISH}[config.activation],
        "ffn_glu": config.gated,
        "rms_norm": config.normalization == "rms",
        "relative_position": config.positions == "relative",
        "rotary_dim": config.channels if config.positions == "rotary" else None,
    }


def _names(tokenizer: Tokenizer, tokens: Tokens) -> list[str]:
    """What the ids are called: by their digits no piece of any script can be mistaken for another."""
    if tokens == "pieces":
        return tokenizer.pieces(range(tokenizer.size))
    return [str(identity) for identity in range(tokenizer.size)]


def _fill_encoder(specification: Any, encoder: Encoder, config: ModelConfig) -> None:
    specification.scale_embeddings = config.scale_embeddings
    specification.embeddings[0].weight = _numbers(encoder.embedding.table.weight)
    _fill_positions(specification, encoder, config)
    for own, layer in zip(specification.layer, encoder.layers, strict=True):
        assert isinstance(layer, EncoderLayer)
        _fill_self_attention(own.self_attention, layer.attention, layer.residual_attention)
        _fill_feed_forward(own.ffn, layer.feed_forward, layer.residual_feed_forward)
    if isinstance(encoder.norm, (nn.LayerNorm, nn.RMSNorm)):
        _fill_norm(specification.layer_norm, encoder.norm)


def _fill_decoder(specification: Any, decoder: Decoder, config: ModelConfig) -> None:
    specification.scale_embeddings = config.scale_embeddings
    specification.embeddings.weight = _numbers(decoder.embedding.table.weight)
    _fill_positions(specification, decoder, config)
    for own, layer in zip(specification.layer, decoder.layers, strict=True):
        assert isinstance(layer, DecoderLayer)
        _fill_self_attention(own.self_attention, layer.attention, layer.residual_attention)
        _fill_cross_attention(own.attention, layer.cross_attention, layer.residual_cross)
        _fill_feed_forward(own.ffn, layer.feed_forward, layer.residual_feed_forward)
    if isinstance(decoder.norm, (nn.LayerNorm, nn.RMSNorm)):
        _fill_norm(specification.layer_norm, decoder.norm)


def _fill_positions(specification: Any, stack: Encoder | Decoder, config: ModelConfig) -> None:
    """The explicit table: CTranslate2's own sines follow another convention."""
    if config.positions in INNER_POSITIONS:
        vars(specification).pop("position_encodings", None)
        return
    length = config.longest if config.positions == "learned" else POSITIONS
    table: Tensor = stack.embedding.positions(length)
    specification.position_encodings.encodings = _numbers(table)


def _fill_self_attention(own: Any, attention: MultiHeadAttention, residual: PostNorm) -> None:
    _fill_linear(own.linear[0], attention.input.weight, attention.input.bias)
    _fill_linear(own.linear[1], attention.output.weight, attention.output.bias)
    _fill_norm(own.layer_norm, residual.norm)
    _fill_scale(own, attention)
    if isinstance(attention, RelativeAttention):
        own.relative_position_keys = _numbers(attention.distance_keys)
        own.relative_position_values = _numbers(attention.distance_values)


def _fill_scale(own: Any, attention: MultiHeadAttention) -> None:
    """CTranslate2 divides by sqrt(d_k) unless it is told otherwise."""
    if attention.scale == 1.0:
        own.queries_scale = np.float32(1.0)


def _fill_cross_attention(own: Any, attention: MultiHeadAttention, residual: PostNorm) -> None:
    width, bias = attention.width, attention.input.bias
    _fill_linear(own.linear[0], attention.input.weight[:width], None if bias is None else bias[:width])
    _fill_linear(own.linear[1], attention.input.weight[width:], None if bias is None else bias[width:])
    _fill_linear(own.linear[2], attention.output.weight, attention.output.bias)
    _fill_norm(own.layer_norm, residual.norm)
    _fill_scale(own, attention)


def _fill_feed_forward(own: Any, feed_forward: FeedForward, residual: PostNorm) -> None:
    _fill_linear(own.linear_0, feed_forward.inner.weight, feed_forward.inner.bias)
    _fill_linear(own.linear_1, feed_forward.outer.weight, feed_forward.outer.bias)
    if isinstance(feed_forward, GatedFeedForward):
        _fill_linear(own.linear_0_noact, feed_forward.gate.weight, feed_forward.gate.bias)
    _fill_norm(own.layer_norm, residual.norm)


def _fill_linear(own: Any, weight: Tensor, bias: Tensor | None) -> None:
    own.weight = _numbers(weight)
    if bias is not None:
        own.bias = _numbers(bias)


def _fill_norm(own: Any, norm: Norm) -> None:
    own.gamma = _numbers(norm.weight)
    if isinstance(norm, nn.LayerNorm):
        own.beta = _numbers(norm.bias)


def _numbers(tensor: Tensor) -> np.ndarray:
    """A copy: quantising writes into what it is given."""
    numbers: np.ndarray = tensor.detach().cpu().float().numpy().copy()
    return numbers
