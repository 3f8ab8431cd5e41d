"""What each export format can express, and sample sentences to verify an export with.

A model is refused unless every one of its settings is listed as supported: an unknown setting must never give
a wrong export. Torch-free.
"""

from collections.abc import Mapping
from itertools import islice

from heedful.errors import HeedfulError
from heedful.model_folder import ModelFolder
from heedful.models.config import ModelConfig
from heedful.tokenization.normalization import METASPACE
from heedful.tokenization.special_tokens import END
from heedful.tokenization.tokenizer import Tokenizer

SupportedValues = Mapping[str, tuple[str | bool, ...] | None]
"""The values of each model setting that a format supports; None for all."""

SHAPE_SETTINGS = (
    "d_model",
    "heads",
    "encoder_layers",
    "decoder_layers",
    "d_ff",
    "max_length",
    "max_relative_distance",
    "gated_feed_forward",
    "scale_attention",
    "attention_bias",
    "source_vocab_size",
    "target_vocab_size",
    "output_bias",
    "scale_embeddings",
    "tie_output_embeddings",
    "share_embeddings",
    "dropout",  # dropout is for training only
    "attention_dropout",
    "activation_dropout",
    "block_size",  # the others belong to efficient attention, which no format supports
    "window_blocks",
    "global_blocks",
    "random_blocks",
    "projected_length",
)
"""Settings of which every format supports every value, or that do not affect a trained model with full attention."""


def find_incompatibility(program: str, config: ModelConfig, supported_values: SupportedValues) -> str:
    """Why a program cannot run a model, or an empty string."""
    for name in type(config).model_fields:
        if name not in supported_values:
            return f"{program} does not support model.{name}"
        values = supported_values[name]
        if values is not None and getattr(config, name) not in values:
            return f"{program} does not support model.{name} = {getattr(config, name)!r}"
    return ""


def incompatibility_error(
    target: str, reason: str, config: ModelConfig, supported_values: SupportedValues
) -> HeedfulError:
    """The error of an export that a format does not support, with alternatives."""
    alternatives = [
        f"train with model.{name} = {' or '.join(str(value).lower() for value in values)}"
        for name, values in supported_values.items()
        if values is not None and getattr(config, name) not in values
    ]
    fallback = "use this model with --engine pytorch"
    return HeedfulError(f"cannot convert to {target}: {reason}", hint=", or ".join([*alternatives[:1], fallback]))


# ---- CTranslate2

MAX_SINUSOIDAL_POSITIONS = 4096
"""Sinusoidal positions in a converted model; CTranslate2 cannot go beyond them."""

MAX_LEARNED_POSITIONS = 100_000

CTRANSLATE2_VALUES: SupportedValues = {
    **dict.fromkeys(SHAPE_SETTINGS),
    "architecture": ("transformer",),
    "positions": ("sinusoidal", "learned", "relative", "rotary", "none"),  # alibi: decoders only
    "encoder_attention": ("full",),
    "decoder_attention": ("full",),
    "residuals": (True,),
    "norm_placement": ("post", "pre"),
    "norm": ("layernorm", "rmsnorm"),
    "activation": ("relu", "gelu", "silu"),
}


def ctranslate2_incompatibility(config: ModelConfig) -> str:
    """Why CTranslate2 cannot run a model, or an empty string."""
    if config.positions == "learned" and config.max_length > MAX_LEARNED_POSITIONS:
        return f"CTranslate2 supports at most {MAX_LEARNED_POSITIONS:,} learned positions"
    return find_incompatibility("CTranslate2", config, CTRANSLATE2_VALUES)


def check_ctranslate2(config: ModelConfig) -> None:
    """Raise an error if CTranslate2 cannot run a model."""
    if reason := ctranslate2_incompatibility(config):
        raise incompatibility_error("a CTranslate2 model", reason, config, CTRANSLATE2_VALUES)


# ---- Sample sentences, made of the model's own subwords, so that they exist for any language

SAMPLE_LENGTHS = (3, 5, 7)
"""Subwords per sample sentence; with END, short enough for every model (model.max_length is at least 8)."""


def sample_sentences(tokenizer: Tokenizer) -> list[list[int]]:
    """Ids, without END, of words from the whole vocabulary, frequent and rare ones."""
    vocabulary = list(enumerate(tokenizer.ids_to_tokens(range(tokenizer.vocab_size))))
    words = [token_id for token_id, subword in vocabulary if subword[:1] == METASPACE and subword[1:].isalpha()]
    candidates = words or [token_id for token_id, _ in vocabulary[END + 1 :]]
    count = sum(SAMPLE_LENGTHS)
    sample = [candidates[index * (len(candidates) - 1) // (count - 1)] for index in range(count)]
    sample_ids = iter(sample[::2] + sample[1::2])
    return [list(islice(sample_ids, length)) for length in SAMPLE_LENGTHS]


def sample_texts(model_folder: ModelFolder) -> list[str]:
    """Sample sentences of the source language as text."""
    return model_folder.tokenizer.source.decode_batch(sample_sentences(model_folder.tokenizer.source))
