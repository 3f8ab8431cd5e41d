"""Write the weights of a Transformer as a CTranslate2 model."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from heedful.convert.compatibility import MAX_SINUSOIDAL_POSITIONS, check_ctranslate2
from heedful.errors import HeedfulError
from heedful.model_folder import ModelFolder
from heedful.models.attention import MultiHeadAttention
from heedful.models.config import RELATIVE_POSITIONS, ModelConfig
from heedful.models.relative_positions import RelativeAttention
from heedful.models.sublayers import NORM_EPSILON, FeedForward, GatedFeedForward, Norm, PostNorm
from heedful.models.transformer import Decoder, DecoderLayer, Encoder, EncoderLayer, Transformer
from heedful.tokenization.special_tokens import END, PAD, UNK
from heedful.tokenization.tokenizer import Tokenizer

QUANTIZATIONS = ("float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16")

TokenNaming = Literal["ids", "subwords"]
"""Token names in the converted model: ids for Heedful itself, subwords for other programs."""

PAD_BIAS = -1e4
"""Output bias of PAD, which must never be generated."""


def export_ctranslate2(
    model_folder: ModelFolder, folder: Path, quantization: str = "float32", token_naming: TokenNaming = "ids"
) -> None:
    """Write a CTranslate2 model: model.bin, config.json and both vocabularies.

    With subwords as tokens, CTranslate2 appends END to sources; with ids, sources must include it.
    """
    if quantization not in QUANTIZATIONS:
        raise HeedfulError(
            f"CTranslate2 has no quantization {quantization!r}",
            hint=f"--quantization is one of {', '.join(QUANTIZATIONS)}",
        )
    check_ctranslate2(model_folder.config.model)
    specification = new_specification(model_folder, token_naming)
    specification.validate()
    specification.optimize(quantization=None if quantization == "float32" else quantization)
    folder.mkdir(parents=True, exist_ok=True)
    specification.save(str(folder))


def new_specification(model_folder: ModelFolder, token_naming: TokenNaming = "ids") -> Any:
    """Build the CTranslate2 specification of a model, with its weights."""
    import ctranslate2  # type: ignore[import-untyped]

    model, config = model_folder.translation_model, model_folder.config.model
    assert isinstance(model, Transformer)  # others are incompatible
    specs, activations = ctranslate2.specs.transformer_spec, ctranslate2.specs.Activation
    options = {
        "pre_norm": config.norm_placement == "pre",
        "activation": {"relu": activations.RELU, "gelu": activations.GELU, "silu": activations.SWISH}[
            config.activation
        ],
        "ffn_glu": config.gated_feed_forward,
        "rms_norm": config.norm == "rmsnorm",
        "relative_position": config.positions == "relative",
        "rotary_dim": config.channels if config.positions == "rotary" else None,
    }
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
    specification.encoder.embeddings[0].weight = _to_numpy(model.encoder.embedding.table.weight)
    specification.decoder.embeddings.weight = _to_numpy(model.decoder.embedding.table.weight)
    for stack_spec, stack in ((specification.encoder, model.encoder), (specification.decoder, model.decoder)):
        _fill_stack(stack_spec, stack, config)
    specification.decoder.projection.weight = _to_numpy(model.output.weight)
    zeros = np.zeros(config.target_vocab_size, dtype=np.float32)
    bias = zeros if model.output_bias is None else _to_numpy(model.output_bias)
    bias[PAD] = PAD_BIAS
    specification.decoder.projection.bias = bias
    target = _token_names(model_folder.tokenizer.target, token_naming)
    specification.register_source_vocabulary(_token_names(model_folder.tokenizer.source, token_naming))
    specification.register_target_vocabulary(target)
    settings = specification.config
    settings.unk_token, settings.eos_token, settings.bos_token = target[UNK], target[END], target[PAD]
    settings.decoder_start_token = target[PAD]
    settings.add_source_bos, settings.add_source_eos = False, token_naming == "subwords"
    settings.layer_norm_epsilon = NORM_EPSILON
    return specification


def _token_names(tokenizer: Tokenizer, token_naming: TokenNaming) -> list[str]:
    """Token names by id. Decimal ids are unique, whatever the subwords are."""
    if token_naming == "subwords":
        return tokenizer.ids_to_tokens(range(tokenizer.vocab_size))
    return [str(token_id) for token_id in range(tokenizer.vocab_size)]


def _fill_stack(spec: Any, stack: Encoder | Decoder, config: ModelConfig) -> None:
    spec.scale_embeddings = config.scale_embeddings
    if config.positions in RELATIVE_POSITIONS:
        vars(spec).pop("position_encodings", None)
    else:  # written explicitly: CTranslate2 orders its own sinusoids differently
        length = config.max_length if config.positions == "learned" else MAX_SINUSOIDAL_POSITIONS
        spec.position_encodings.encodings = _to_numpy(stack.embedding.positions(length))
    for layer_spec, layer in zip(spec.layer, stack.layers, strict=True):
        assert isinstance(layer, (EncoderLayer, DecoderLayer))
        _fill_self_attention(layer_spec.self_attention, layer.attention, layer.residual_attention)
        if isinstance(layer, DecoderLayer):
            _fill_cross_attention(layer_spec.attention, layer.cross_attention, layer.residual_cross)
        _fill_feed_forward(layer_spec.ffn, layer.feed_forward, layer.residual_feed_forward)
    if isinstance(stack.norm, (nn.LayerNorm, nn.RMSNorm)):
        _fill_norm(spec.layer_norm, stack.norm)


def _fill_self_attention(spec: Any, attention: MultiHeadAttention, residual: PostNorm) -> None:
    _fill_linear(spec.linear[0], attention.input.weight, attention.input.bias)
    _fill_linear(spec.linear[1], attention.output.weight, attention.output.bias)
    _fill_norm(spec.layer_norm, residual.norm)
    _fill_scale(spec, attention)
    if isinstance(attention, RelativeAttention):
        spec.relative_position_keys = _to_numpy(attention.distance_keys)
        spec.relative_position_values = _to_numpy(attention.distance_values)


def _fill_cross_attention(spec: Any, attention: MultiHeadAttention, residual: PostNorm) -> None:
    d_model, bias = attention.d_model, attention.input.bias
    _fill_linear(spec.linear[0], attention.input.weight[:d_model], None if bias is None else bias[:d_model])
    _fill_linear(spec.linear[1], attention.input.weight[d_model:], None if bias is None else bias[d_model:])
    _fill_linear(spec.linear[2], attention.output.weight, attention.output.bias)
    _fill_norm(spec.layer_norm, residual.norm)
    _fill_scale(spec, attention)


def _fill_scale(spec: Any, attention: MultiHeadAttention) -> None:
    if attention.scale == 1.0:  # CTranslate2 divides by sqrt(d_k) by default
        spec.queries_scale = np.float32(1.0)


def _fill_feed_forward(spec: Any, feed_forward: FeedForward, residual: PostNorm) -> None:
    _fill_linear(spec.linear_0, feed_forward.inner.weight, feed_forward.inner.bias)
    _fill_linear(spec.linear_1, feed_forward.outer.weight, feed_forward.outer.bias)
    if isinstance(feed_forward, GatedFeedForward):
        _fill_linear(spec.linear_0_noact, feed_forward.gate.weight, feed_forward.gate.bias)
    _fill_norm(spec.layer_norm, residual.norm)


def _fill_linear(spec: Any, weight: Tensor, bias: Tensor | None) -> None:
    spec.weight = _to_numpy(weight)
    if bias is not None:
        spec.bias = _to_numpy(bias)


def _fill_norm(spec: Any, norm: Norm) -> None:
    spec.gamma = _to_numpy(norm.weight)
    if isinstance(norm, nn.LayerNorm):
        spec.beta = _to_numpy(norm.bias)


def _to_numpy(tensor: Tensor) -> np.ndarray:
    """A copy, because quantization modifies it in place."""
    array: np.ndarray = tensor.detach().cpu().float().numpy().copy()
    return array
