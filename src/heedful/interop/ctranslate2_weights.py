"""Our weights in the places where CTranslate2 expects them."""

from typing import Any

import numpy as np
from torch import Tensor, nn

from heedful.bundle import Bundle
from heedful.engines.ctranslate2 import POSITIONS
from heedful.model.attention import MultiHeadAttention
from heedful.model.config import PAD, ModelConfig
from heedful.model.decoder import Decoder
from heedful.model.encoder import Encoder
from heedful.model.layers import DecoderLayer, EncoderLayer, FeedForward, PostNorm
from heedful.text.tokenizer import END, UNKNOWN

NEVER = -1e4
"""Bias of a word that must never be written: the padding, which is also the start."""


def new_specification(bundle: Bundle) -> Any:
    """The model as CTranslate2 describes one, with all its numbers."""
    import ctranslate2  # type: ignore[import-untyped]

    model, config = bundle.model, bundle.config.model
    activations = ctranslate2.specs.Activation
    specification = ctranslate2.specs.TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.heads,
        pre_norm=config.norm == "pre",
        activation={"relu": activations.RELU, "gelu": activations.GELU}[config.activation],
        alignment_layer=config.alignment_layer,
        alignment_heads=config.heads,
    )
    _fill_encoder(specification.encoder, model.encoder, config)
    _fill_decoder(specification.decoder, model.decoder, config)
    specification.decoder.projection.weight = _numbers(model.output.weight)
    bias = np.zeros(config.target_vocabulary, dtype=np.float32)
    bias[PAD] = NEVER
    specification.decoder.projection.bias = bias
    specification.register_source_vocabulary(_names(config.source_vocabulary))
    specification.register_target_vocabulary(_names(config.target_vocabulary))
    settings = specification.config
    settings.unk_token, settings.eos_token, settings.bos_token = str(UNKNOWN), str(END), str(PAD)
    settings.decoder_start_token = str(PAD)
    settings.add_source_bos, settings.add_source_eos = False, False  # our ids come with their end
    settings.layer_norm_epsilon = nn.LayerNorm(1).eps
    return specification


def _names(size: int) -> list[str]:
    """Tokens are called by their ids: no piece of any script can be mistaken for another."""
    return [str(identity) for identity in range(size)]


def _fill_encoder(specification: Any, encoder: Encoder, config: ModelConfig) -> None:
    specification.scale_embeddings = True
    specification.embeddings[0].weight = _numbers(encoder.embedding.table.weight)
    specification.position_encodings.encodings = _positions(encoder, config)
    for own, layer in zip(specification.layer, encoder.layers, strict=True):
        assert isinstance(layer, EncoderLayer)
        _fill_self_attention(own.self_attention, layer.attention, layer.residual_attention)
        _fill_feed_forward(own.ffn, layer.feed_forward, layer.residual_feed_forward)
    if isinstance(encoder.norm, nn.LayerNorm):
        _fill_norm(specification.layer_norm, encoder.norm)


def _fill_decoder(specification: Any, decoder: Decoder, config: ModelConfig) -> None:
    specification.scale_embeddings = True
    specification.embeddings.weight = _numbers(decoder.embedding.table.weight)
    specification.position_encodings.encodings = _positions(decoder, config)
    for own, layer in zip(specification.layer, decoder.layers, strict=True):
        assert isinstance(layer, DecoderLayer)
        _fill_self_attention(own.self_attention, layer.attention, layer.residual_attention)
        _fill_cross_attention(own.attention, layer.cross_attention, layer.residual_cross)
        _fill_feed_forward(own.ffn, layer.feed_forward, layer.residual_feed_forward)
    if isinstance(decoder.norm, nn.LayerNorm):
        _fill_norm(specification.layer_norm, decoder.norm)


def _positions(stack: Encoder | Decoder, config: ModelConfig) -> np.ndarray:
    """The explicit table: CTranslate2's own sines follow another convention."""
    length = config.longest if config.positions == "learned" else POSITIONS
    table: Tensor = stack.embedding.positions(length)
    return _numbers(table)


def _fill_self_attention(own: Any, attention: MultiHeadAttention, residual: PostNorm) -> None:
    _fill_linear(own.linear[0], attention.input.weight, attention.input.bias)
    _fill_linear(own.linear[1], attention.output.weight, attention.output.bias)
    _fill_norm(own.layer_norm, residual.norm)


def _fill_cross_attention(own: Any, attention: MultiHeadAttention, residual: PostNorm) -> None:
    width, bias = attention.width, attention.input.bias
    _fill_linear(own.linear[0], attention.input.weight[:width], None if bias is None else bias[:width])
    _fill_linear(own.linear[1], attention.input.weight[width:], None if bias is None else bias[width:])
    _fill_linear(own.linear[2], attention.output.weight, attention.output.bias)
    _fill_norm(own.layer_norm, residual.norm)


def _fill_feed_forward(own: Any, feed_forward: FeedForward, residual: PostNorm) -> None:
    _fill_linear(own.linear_0, feed_forward.inner.weight, feed_forward.inner.bias)
    _fill_linear(own.linear_1, feed_forward.outer.weight, feed_forward.outer.bias)
    _fill_norm(own.layer_norm, residual.norm)


def _fill_linear(own: Any, weight: Tensor, bias: Tensor | None) -> None:
    own.weight = _numbers(weight)
    if bias is not None:
        own.bias = _numbers(bias)


def _fill_norm(own: Any, norm: nn.LayerNorm) -> None:
    own.gamma, own.beta = _numbers(norm.weight), _numbers(norm.bias)


def _numbers(tensor: Tensor) -> np.ndarray:
    """A copy: quantising writes into what it is given."""
    numbers: np.ndarray = tensor.detach().cpu().float().numpy().copy()
    return numbers
