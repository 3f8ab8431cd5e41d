"""What MarianMT's config.json and generation_config.json mean in our settings; the rest is refused."""

from collections.abc import Mapping
from typing import Any, NoReturn

from heedful.decoding.config import SearchConfig
from heedful.errors import HeedfulError
from heedful.model.config import ModelConfig

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
LONGEST = 512
"""Tokens of a translation where a model does not say how many, and of a source."""
UNUSED: dict[str, tuple[Any, ...]] = {
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
"""Settings of a search that ours does not have, with the values that mean nothing."""
LAYOUT: dict[str, Any] = {
    "normalize_embedding": False,
    "normalize_before": False,
    "add_final_layer_norm": False,
}
"""Settings of older files of which only these values are a MarianMT model."""


def check_architecture(config: Mapping[str, Any]) -> None:
    """An error that says what it is instead, if this is not a MarianMT model."""
    kind, names = config.get("model_type"), config.get("architectures") or ["MarianMTModel"]
    if kind != "marian" or not isinstance(names, list) or "MarianMTModel" not in names:
        other = names[0] if isinstance(names, list) else names
        found = f"type {kind!r}" if kind != "marian" else str(other)
        if kind is None and "model" in config:
            raise HeedfulError("this is a model of heedful already", hint="heedful translate works on it")
        raise HeedfulError(
            f"this is no MarianMT model: its config.json says {found}",
            hint="heedful import reads the Helsinki-NLP/opus-mt models and their kin",
        )


def model_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Size and shape, but for the vocabularies and what is tied."""
    for name, value in LAYOUT.items():
        if config.get(name, value) != value:
            refuse(name, config[name], "a MarianMT model has no such layer")
    for name in ("attention_heads", "ffn_dim"):
        encoder, decoder = (config.get(f"{stack}_{name}") for stack in ("encoder", "decoder"))
        if encoder != decoder:
            refuse(f"encoder_{name}", encoder, f"the decoder has {decoder}, and here both have one number")
    activation = config.get("activation_function", "gelu")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        refuse("activation_function", activation, f"known are {', '.join(ACTIVATIONS)}")
    return {
        "width": _number(config, "d_model"),
        "heads": _number(config, "encoder_attention_heads"),
        "encoder_layers": _number(config, "encoder_layers"),
        "decoder_layers": _number(config, "decoder_layers"),
        "feed_forward_width": _number(config, "encoder_ffn_dim"),
        "activation": ACTIVATIONS[activation],
        "scale_embeddings": bool(config.get("scale_embedding", False)),
        "longest": config.get("max_position_embeddings", 1024),
        **{name: config.get(name, 0.0) for name in ("dropout", "attention_dropout", "activation_dropout")},
    }


def search_settings(config: Mapping[str, Any], generation: Mapping[str, Any]) -> SearchConfig:
    """How the model translates unless told otherwise. Older files say so in config.json."""
    said = {**config, **{name: value for name, value in generation.items() if value is not None}}
    for name, harmless in UNUSED.items():
        if said.get(name) is not None and said[name] not in harmless:
            refuse(name, said[name], "the search here has no such setting")
    pad, end = config.get("pad_token_id"), config.get("eos_token_id")
    banned = said.get("bad_words_ids") or []
    if not isinstance(banned, list) or any(words != [pad] for words in banned):
        refuse("bad_words_ids", said["bad_words_ids"], "only <pad> is never written here")
    if said.get("forced_eos_token_id") not in (None, end, [end]):
        refuse("forced_eos_token_id", said["forced_eos_token_id"], "a sentence ends with </s> here")
    if not isinstance(said.get("early_stopping", False), bool):
        refuse("early_stopping", said["early_stopping"], "known are true and false")
    longest = _longest(said)
    return SearchConfig.checked(
        {
            "beam": said.get("num_beams", 1),
            "length_penalty": said.get("length_penalty", 1.0),
            "normalization": "length",
            "early_stopping": said.get("early_stopping", False),
            "longest": longest,
            "extra_length": longest,
        }
    )


def _longest(said: Mapping[str, Any]) -> int:
    """Tokens that may be written. At the longest length Hugging Face writes </s> where ours breaks off."""
    forced = said.get("forced_eos_token_id") is not None
    if said.get("max_new_tokens") is not None:
        written = _number(said, "max_new_tokens")
    else:
        length = said.get("max_length") if said.get("max_length") is not None else LONGEST
        written = _number({"max_length": length}, "max_length") - 1  # the start counts there
    return max(written - forced, 1)


def _number(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise HeedfulError(f"config.json has {name} = {value!r}, which is no number of anything")
    return value


def refuse(name: str, value: Any, reason: str) -> NoReturn:
    """The error for a setting that cannot be expressed."""
    raise HeedfulError(f"this model cannot be taken over: it has {name} = {value!r}, and {reason}")


def marian_config(model: ModelConfig, pad: int, end: int) -> dict[str, Any]:
    """config.json of one of our models, which ``marian_export.why_not`` has agreed to."""
    sizes = {
        f"{stack}_{name}": value
        for stack in ("encoder", "decoder")
        for name, value in (("attention_heads", model.heads), ("ffn_dim", model.feed_forward_width))
    }
    activation = {"relu": "relu", "gelu": "gelu", "silu": "swish"}[model.activation]
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "d_model": model.width,
        "encoder_layers": model.encoder_layers,
        "decoder_layers": model.decoder_layers,
        **sizes,
        "activation_function": activation,
        "scale_embedding": model.scale_embeddings,
        "max_position_embeddings": model.longest,
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": model.activation_dropout,
        "vocab_size": model.source_vocabulary,
        "decoder_vocab_size": model.target_vocabulary,
        "share_encoder_decoder_embeddings": model.joint,
        "tie_word_embeddings": model.tie_output,
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
        "eos_token_id": end,
        "forced_eos_token_id": end,
        "dtype": "float32",
    }


def generation_config(search: SearchConfig, pad: int, end: int) -> dict[str, Any]:
    """generation_config.json: the same search but for the paper's length penalty, unknown there."""
    return {
        "num_beams": search.beam,
        "length_penalty": search.length_penalty,
        "early_stopping": search.early_stopping,
        "max_length": search.longest + 2 if search.longest else LONGEST,
        "bad_words_ids": [[pad]],
        "renormalize_logits": True,
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
        "eos_token_id": end,
        "forced_eos_token_id": end,
    }
