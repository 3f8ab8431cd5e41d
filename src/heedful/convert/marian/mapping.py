"""MarianMT settings and weights in Heedful's terms, and back; unsupported settings are errors."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.generation.config import GenerationConfig
from heedful.models.config import ModelConfig
from heedful.models.embeddings import sinusoids

MARIAN_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}

DEFAULT_MAX_LENGTH = 512
"""Default maximum tokens of sources and translations."""

NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "do_sample": (False,),
    "num_beam_groups": (1,),
    "num_return_sequences": (1,),
    "diversity_penalty": (0.0,),
    "repetition_penalty": (1.0,),
    "encoder_repetition_penalty": (1.0,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "min_length": (0, 1),
    "min_new_tokens": (0,),
    "forced_bos_token_id": (),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "sequence_bias": ({}, []),
    "exponential_decay_length_penalty": (),
    "penalty_alpha": (),
    "guidance_scale": (1.0,),
    "constraints": (),
    "force_words_ids": (),
}
"""Generation settings that Heedful lacks, with the values that have no effect."""

REQUIRED_VALUES: dict[str, Any] = {
    "normalize_embedding": False,
    "normalize_before": False,
    "add_final_layer_norm": False,
}
"""Settings of older files; MarianMT has only these values."""


def check_is_marian(config: Mapping[str, Any]) -> None:
    """Raise an error that names the model type if this is not a MarianMT model."""
    model_type, names = config.get("model_type"), config.get("architectures") or ["MarianMTModel"]
    if model_type != "marian" or not isinstance(names, list) or "MarianMTModel" not in names:
        class_name = names[0] if isinstance(names, list) else names
        description = f"type {model_type!r}" if model_type != "marian" else str(class_name)
        if model_type is None and "model" in config:
            raise HeedfulError("this is already a Heedful model folder", hint="use it with heedful translate")
        raise HeedfulError(
            f"not a MarianMT model: its config.json says {description}",
            hint="heedful import reads MarianMT models such as Helsinki-NLP/opus-mt-en-de",
        )


def model_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Shape of the model without vocabulary sizes and shared embeddings."""
    for name, value in REQUIRED_VALUES.items():
        if config.get(name, value) != value:
            reject_setting(name, config[name], "MarianMT does not support it")
    for name in ("attention_heads", "ffn_dim"):
        encoder, decoder = (config.get(f"{stack}_{name}") for stack in ("encoder", "decoder"))
        if encoder != decoder:
            reject_setting(f"encoder_{name}", encoder, f"the decoder has {decoder}; both must be equal")
    activation = config.get("activation_function", "gelu")
    if not isinstance(activation, str) or activation not in MARIAN_ACTIVATIONS:
        reject_setting("activation_function", activation, f"supported: {', '.join(MARIAN_ACTIVATIONS)}")
    return {
        "d_model": _positive_int(config, "d_model"),
        "heads": _positive_int(config, "encoder_attention_heads"),
        "encoder_layers": _positive_int(config, "encoder_layers"),
        "decoder_layers": _positive_int(config, "decoder_layers"),
        "d_ff": _positive_int(config, "encoder_ffn_dim"),
        "activation": MARIAN_ACTIVATIONS[activation],
        "scale_embeddings": bool(config.get("scale_embedding", False)),
        "max_length": config.get("max_position_embeddings", 1024),
        **{name: config.get(name, 0.0) for name in ("dropout", "attention_dropout", "activation_dropout")},
    }


def generation_settings(config: Mapping[str, Any], generation: Mapping[str, Any]) -> GenerationConfig:
    """Default generation settings; older models have them in config.json."""
    settings = {**config, **{name: value for name, value in generation.items() if value is not None}}
    for name, neutral in NEUTRAL_VALUES.items():
        if settings.get(name) is not None and settings[name] not in neutral:
            reject_setting(name, settings[name], "Heedful does not support it")
    pad, end = config.get("pad_token_id"), config.get("eos_token_id")
    banned = settings.get("bad_words_ids") or []
    if not isinstance(banned, list) or any(words != [pad] for words in banned):
        reject_setting("bad_words_ids", settings["bad_words_ids"], "only [[<pad>]] is supported")
    if settings.get("forced_eos_token_id") not in (None, end, [end]):
        reject_setting("forced_eos_token_id", settings["forced_eos_token_id"], "only </s> is supported")
    if not isinstance(settings.get("early_stopping", False), bool):
        reject_setting("early_stopping", settings["early_stopping"], "only true and false are supported")
    if settings.get("max_new_tokens") is not None:
        max_length = _positive_int(settings, "max_new_tokens")
    else:
        default = settings.get("max_length") is None
        max_length = (DEFAULT_MAX_LENGTH if default else _positive_int(settings, "max_length")) - 1  # the start token
    # At the maximum length Hugging Face appends </s>, Heedful stops.
    max_length = max(max_length - (settings.get("forced_eos_token_id") is not None), 1)
    return GenerationConfig.from_settings(
        {
            "beam_size": settings.get("num_beams", 1),
            "length_penalty": settings.get("length_penalty", 1.0),
            "length_normalization": "length",
            "early_stopping": settings.get("early_stopping", False),
            "max_length": max_length,
            "max_length_offset": max_length,
        }
    )


def _positive_int(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise HeedfulError(f"config.json has {name} = {value!r}", hint="it must be a positive integer")
    return value


def reject_setting(name: str, value: Any, reason: str) -> NoReturn:
    """Raise the error of an unsupported setting."""
    raise HeedfulError(f"cannot import this model: unsupported {name} = {value!r} ({reason})")


def marian_config(model: ModelConfig, pad: int, end: int) -> dict[str, Any]:
    """config.json of a compatible model (``exporter.marian_incompatibility``)."""
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "d_model": model.d_model,
        "encoder_layers": model.encoder_layers,
        "decoder_layers": model.decoder_layers,
        "encoder_attention_heads": model.heads,
        "encoder_ffn_dim": model.d_ff,
        "decoder_attention_heads": model.heads,
        "decoder_ffn_dim": model.d_ff,
        "activation_function": "swish" if model.activation == "silu" else model.activation,
        "scale_embedding": model.scale_embeddings,
        "max_position_embeddings": model.max_length,
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": model.activation_dropout,
        "vocab_size": model.source_vocab_size,
        "decoder_vocab_size": model.target_vocab_size,
        "share_encoder_decoder_embeddings": model.share_embeddings,
        "tie_word_embeddings": model.tie_output_embeddings,
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
        "eos_token_id": end,
        "forced_eos_token_id": end,
        "dtype": "float32",
    }


def marian_generation_config(generation: GenerationConfig, pad: int, end: int) -> dict[str, Any]:
    """generation_config.json; Hugging Face lacks the paper's length penalty."""
    return {
        "num_beams": generation.beam_size,
        "length_penalty": generation.length_penalty,
        "early_stopping": generation.early_stopping,
        "max_length": generation.max_length + 2 if generation.max_length else DEFAULT_MAX_LENGTH,
        "bad_words_ids": [[pad]],
        "renormalize_logits": True,
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
        "eos_token_id": end,
        "forced_eos_token_id": end,
    }


# ---- Weights
#
# Marian's positions have all sines first, then all cosines; section 3.5 interleaves them. This is a
# permutation of the channels of the residual stream: permuting all weights that read or write the stream is
# lossless. The rows of the embeddings are permuted by the vocabularies.

SHARED_EMBEDDINGS, OUTPUT_BIAS, LM_HEAD = "model.shared.weight", "final_logits_bias", "lm_head.weight"

ENCODER_EMBEDDINGS, DECODER_EMBEDDINGS = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")

HEEDFUL_ENCODER_EMBEDDINGS = "encoder.embedding.table.weight"
HEEDFUL_DECODER_EMBEDDINGS = "decoder.embedding.table.weight"

HEEDFUL_OUTPUT_WEIGHT, HEEDFUL_OUTPUT_BIAS = "output.weight", "output_bias"

POSITION_TABLES = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")


class WeightMapping(NamedTuple):
    """A Heedful tensor, the Marian tensors it concatenates, and its dimensions along the residual stream."""

    heedful_name: str
    marian_names: tuple[str, ...]
    residual_dims: tuple[int, ...]


class VocabularyPermutations(NamedTuple):
    """Marian's id of each Heedful id."""

    source: Sequence[int]
    target: Sequence[int]


class MarianEmbeddings(NamedTuple):
    """Marian's embeddings and output layer."""

    source: Tensor
    target: Tensor
    output: Tensor

    @property
    def is_shared(self) -> bool:
        """Whether source and target share embeddings."""
        return self.source is self.target or torch.equal(self.source, self.target)


def channel_permutation(d_model: int) -> Tensor:
    """Marian's index of each Heedful channel.

    >>> channel_permutation(6)
    tensor([0, 3, 1, 4, 2, 5])
    """
    return torch.arange(d_model).view(2, d_model // 2).T.flatten()


def weight_mappings(config: ModelConfig) -> Iterator[WeightMapping]:
    """All tensors but the embeddings and the output layer."""
    for stack, count in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        attentions = [("attention", "self_attn", "residual_attention", "self_attn_layer_norm")]
        if stack == "decoder":
            attentions.append(("cross_attention", "encoder_attn", "residual_cross", "encoder_attn_layer_norm"))
        for layer in range(count):
            heedful_prefix, marian_prefix = f"{stack}.layers.{layer}.", f"model.{stack}.layers.{layer}."
            norms = {"residual_feed_forward": "final_layer_norm"}
            for attention, marian_attention, residual, norm in attentions:
                heedful, marian = heedful_prefix + attention, marian_prefix + marian_attention
                for kind, residual_dims in (("weight", (1,)), ("bias", ())):
                    projections = tuple(f"{marian}.{projection}_proj.{kind}" for projection in "qkv")
                    yield WeightMapping(f"{heedful}.input.{kind}", projections, residual_dims)
                    yield WeightMapping(f"{heedful}.output.{kind}", (f"{marian}.out_proj.{kind}",), (0,))
                norms[residual] = norm
            yield WeightMapping(f"{heedful_prefix}feed_forward.inner.weight", (f"{marian_prefix}fc1.weight",), (1,))
            yield WeightMapping(f"{heedful_prefix}feed_forward.inner.bias", (f"{marian_prefix}fc1.bias",), ())
            yield WeightMapping(f"{heedful_prefix}feed_forward.outer.weight", (f"{marian_prefix}fc2.weight",), (0,))
            yield WeightMapping(f"{heedful_prefix}feed_forward.outer.bias", (f"{marian_prefix}fc2.bias",), (0,))
            for residual, norm in norms.items():
                for kind in ("weight", "bias"):
                    marian_names = (f"{marian_prefix}{norm}.{kind}",)
                    yield WeightMapping(f"{heedful_prefix}{residual}.norm.{kind}", marian_names, (0,))


def to_heedful_weights(
    marian_tensors: Mapping[str, Tensor],
    embeddings: MarianEmbeddings,
    config: ModelConfig,
    permutations: VocabularyPermutations,
) -> dict[str, Tensor]:
    """Convert to Heedful tensors; a missing or unknown tensor is an error."""
    channels = channel_permutation(config.d_model)
    for name in POSITION_TABLES:
        if name in marian_tensors:  # older files: they must be the sinusoids
            table = _permute(marian_tensors[name].float(), (1,), channels)
            expected = sinusoids(len(table), config.d_model)
            if table.shape != expected.shape or not torch.allclose(table, expected, atol=1e-4):
                raise HeedfulError(f"{name!r} does not contain sinusoidal positions")
    known_names = {*POSITION_TABLES, SHARED_EMBEDDINGS, ENCODER_EMBEDDINGS, DECODER_EMBEDDINGS, LM_HEAD, OUTPUT_BIAS}
    tensors: dict[str, Tensor] = {}
    for mapping in weight_mappings(config):
        marian_parts = [_get_tensor(marian_tensors, name) for name in mapping.marian_names]
        tensors[mapping.heedful_name] = _permute(torch.cat(marian_parts), mapping.residual_dims, channels)
        known_names.update(mapping.marian_names)
    for name in marian_tensors:
        if name not in known_names:
            raise HeedfulError(f"unexpected tensor {name!r}: it is not part of a MarianMT model")
    embedding_tables = {HEEDFUL_ENCODER_EMBEDDINGS: (embeddings.source, permutations.source)}
    if not config.share_embeddings:
        embedding_tables[HEEDFUL_DECODER_EMBEDDINGS] = (embeddings.target, permutations.target)
    if not config.tie_output_embeddings:
        embedding_tables[HEEDFUL_OUTPUT_WEIGHT] = (embeddings.output, permutations.target)
    for name, (table, permutation) in embedding_tables.items():
        tensors[name] = _permute(_select_rows(table, permutation), (1,), channels)
    if config.output_bias:
        tensors[HEEDFUL_OUTPUT_BIAS] = _select_rows(marian_tensors[OUTPUT_BIAS].flatten(), permutations.target)
    return {name: tensor.float().contiguous() for name, tensor in tensors.items()}


def select_embeddings(
    marian_tensors: Mapping[str, Tensor], *, share_embeddings: bool, tie_embeddings: bool
) -> MarianEmbeddings:
    """Select embeddings as transformers does: untied models share only missing matrices."""
    if share_embeddings and tie_embeddings:
        name = SHARED_EMBEDDINGS if SHARED_EMBEDDINGS in marian_tensors else ENCODER_EMBEDDINGS
        source = target = _get_tensor(marian_tensors, name)
    else:
        source, target = (
            _get_tensor(marian_tensors, name if name in marian_tensors or not share_embeddings else SHARED_EMBEDDINGS)
            for name in (ENCODER_EMBEDDINGS, DECODER_EMBEDDINGS)
        )
    return MarianEmbeddings(source, target, target if tie_embeddings else _get_tensor(marian_tensors, LM_HEAD))


def to_marian_weights(
    heedful_tensors: Mapping[str, Tensor], config: ModelConfig, permutations: VocabularyPermutations
) -> dict[str, Tensor]:
    """Convert to Marian tensors; shared ones appear once."""
    inverse = channel_permutation(config.d_model).argsort()
    tensors: dict[str, Tensor] = {}
    for mapping in weight_mappings(config):
        permuted = _permute(heedful_tensors[mapping.heedful_name], mapping.residual_dims, inverse)
        tensors |= zip(mapping.marian_names, permuted.chunk(len(mapping.marian_names)), strict=True)
    source_rows, target_rows = (torch.tensor(permutation).argsort() for permutation in permutations)
    source = _permute(heedful_tensors[HEEDFUL_ENCODER_EMBEDDINGS][source_rows], (1,), inverse)
    if config.share_embeddings:
        tensors[SHARED_EMBEDDINGS] = source
    else:
        target = _permute(heedful_tensors[HEEDFUL_DECODER_EMBEDDINGS][target_rows], (1,), inverse)
        tensors |= {ENCODER_EMBEDDINGS: source, DECODER_EMBEDDINGS: target}
    if not config.tie_output_embeddings:
        tensors[LM_HEAD] = _permute(heedful_tensors[HEEDFUL_OUTPUT_WEIGHT][target_rows], (1,), inverse)
        if config.share_embeddings:  # transformers then shares nothing
            tensors |= {ENCODER_EMBEDDINGS: source.clone(), DECODER_EMBEDDINGS: source.clone()}
    bias = heedful_tensors.get(HEEDFUL_OUTPUT_BIAS, torch.zeros(config.target_vocab_size))
    tensors[OUTPUT_BIAS] = bias[target_rows][None]
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def _get_tensor(marian_tensors: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in marian_tensors:
        raise HeedfulError(f"the weights lack {name!r}", hint="check that config.json belongs to the same model")
    return marian_tensors[name]


def _select_rows(table: Tensor, permutation: Sequence[int]) -> Tensor:
    if len(table) != len(permutation):
        raise HeedfulError(f"the vocabulary has {len(permutation)} entries, but the weights have {len(table)}")
    return table[torch.tensor(permutation)]


def _permute(tensor: Tensor, dimensions: Sequence[int], permutation: Tensor) -> Tensor:
    for dimension in dimensions:
        if tensor.size(dimension) != len(permutation):
            raise HeedfulError(
                f"a tensor of shape {tuple(tensor.shape)} does not match d_model {len(permutation)}",
                hint="check that config.json belongs to the same model",
            )
        tensor = tensor.index_select(dimension, permutation)
    return tensor
