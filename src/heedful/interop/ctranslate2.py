"""A model folder as a CTranslate2 model: the same weights in the quickest engine's own layout.

Converted files are kept beside the model (MODEL/ctranslate2/) and made again when the weights change.
"""

import hashlib
import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from heedful.bundle import PARTS, Bundle
from heedful.engines.ctranslate2 import POSITIONS
from heedful.errors import HeedfulError
from heedful.files import locked, write_json
from heedful.model.attention import MultiHeadAttention
from heedful.model.config import PAD, ModelConfig
from heedful.model.decoder import Decoder
from heedful.model.encoder import Encoder
from heedful.model.layers import DecoderLayer, EncoderLayer, FeedForward, PostNorm
from heedful.text.tokenizer import END, UNKNOWN

Precision = Literal["float32", "int8"]
PRECISIONS: tuple[Precision, ...] = ("float32", "int8")
LAYOUT = 1
"""Grows when the conversion changes, so that old files are made again."""
CHOICES = {"positions": ("sinusoidal", "learned"), "norm": ("post", "pre"), "activation": ("relu", "gelu")}
"""Settings of a model of which only these values can be expressed."""
EXPRESSED = frozenset(
    {
        "width",
        "heads",
        "encoder_layers",
        "decoder_layers",
        "feed_forward_width",
        "longest",
        "attention_bias",
        "source_vocabulary",
        "target_vocabulary",
        "tie_output",  # the output layer and the embeddings are written out, shared or not
        "joint",
        "dropout",  # of training only
        "attention_dropout",
        "activation_dropout",
    }
)
"""Settings of which every value can be expressed."""
LONGEST_TABLE = 100_000
NEVER = -1e4
"""Bias of a word that must never be written: the padding, which is also the start."""


def is_installed() -> bool:
    """Whether the CTranslate2 package is there."""
    return find_spec("ctranslate2") is not None


def require() -> None:
    """An error with the command to install it, if it is missing."""
    if not is_installed():
        raise HeedfulError(
            "CTranslate2 is not installed", hint="pip install 'heedful[ctranslate2]', or use --engine pytorch"
        )


def why_not(config: ModelConfig) -> str:
    """Why a model cannot be expressed; empty if it can. What is not known here is refused."""
    for name in type(config).model_fields:
        if name in CHOICES and getattr(config, name) not in CHOICES[name]:
            return f"there is no way to express model.{name} = {getattr(config, name)!r}"
        if name not in CHOICES and name not in EXPRESSED:
            return f"there is no way to express model.{name}"
    if config.positions == "learned" and config.longest > LONGEST_TABLE:
        return f"its table of learned positions has more than {LONGEST_TABLE:,} rows"
    return ""


def check_expressible(config: ModelConfig) -> None:
    """An error with the reason, if a model cannot be expressed."""
    reason = why_not(config)
    if reason:
        raise HeedfulError(f"this cannot be a CTranslate2 model: {reason}", hint="use --engine pytorch")


def converted(folder: Path, bundle: Bundle, precision: Precision) -> Path:
    """The CTranslate2 model of a model folder: the one kept beside it, or a new one if there is none.

    Where the folder cannot be written, the error says so.
    """
    check_expressible(bundle.config.model)
    require()
    kept = folder / "ctranslate2"
    result = kept / precision
    wanted = _wanted(folder, precision)
    if _is_current(result, wanted):
        return result
    kept.mkdir(exist_ok=True)
    with locked(kept, wait=True):  # two processes may start together
        if not _is_current(result, wanted):
            shutil.rmtree(result, ignore_errors=True)
            export(bundle, result, precision)
            write_json(result / "heedful.json", wanted)
    return result


def is_ready(folder: Path, precision: Precision) -> bool:
    """Whether a conversion of these very weights is there."""
    return _is_current(folder / "ctranslate2" / precision, _wanted(folder, precision))


def forget(folder: Path, precision: Precision) -> None:
    """Remove a conversion that turned out to be damaged."""
    shutil.rmtree(folder / "ctranslate2" / precision, ignore_errors=True)


def export(bundle: Bundle, folder: Path, precision: Precision = "float32") -> None:
    """Write a CTranslate2 model: model.bin, config.json and both vocabularies."""
    check_expressible(bundle.config.model)
    require()
    specification = _specification(bundle)
    specification.validate()
    specification.optimize(quantization=None if precision == "float32" else precision)
    folder.mkdir(parents=True, exist_ok=True)
    specification.save(str(folder))


def _wanted(folder: Path, precision: Precision) -> dict[str, Any]:
    """What a conversion must have been made of."""
    return {"layout": LAYOUT, "weights": _fingerprint(folder), "precision": precision}


def _is_current(folder: Path, wanted: dict[str, Any]) -> bool:
    try:
        return bool(json.loads((folder / "heedful.json").read_text(encoding="utf-8")) == wanted)
    except (OSError, ValueError):  # none, or damaged: made again
        return False


def _fingerprint(folder: Path) -> str:
    """Of what the conversion depends on: the weights, their shape, the vocabularies."""
    digest = hashlib.blake2b(digest_size=16)
    for name in PARTS:
        with (folder / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "blake2b").digest())
    return digest.hexdigest()


def _specification(bundle: Bundle) -> Any:
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
