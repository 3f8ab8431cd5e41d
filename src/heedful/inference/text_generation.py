"""Language models: generate text from a prompt, and predict masked tokens (blanks)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heedful.config import merge_settings
from heedful.errors import HeedfulError
from heedful.generation.config import GenerationConfig
from heedful.generation.search import search
from heedful.model_folder import ModelFolder
from heedful.models.base import Model
from heedful.models.language_models import CausalLM, MaskedLM
from heedful.tokenization.normalization import METASPACE, clean_sentence
from heedful.tokenization.special_tokens import END, MASK, UNK

BLANK_PATTERN = re.compile(r"_{2,}")

PLACEHOLDER_CHARACTER = "\ue000"
"""A private-use character that stands for a blank during tokenization."""


@dataclass(frozen=True, slots=True)
class FillCandidate:
    """A token that could fill a blank."""

    text: str
    probability: float


def make_sampling_config(model_folder: ModelFolder, overrides: Mapping[str, Any]) -> GenerationConfig:
    """The model's generation settings with sampling and these overrides."""
    return GenerationConfig.from_settings(
        merge_settings(model_folder.config.generation.model_dump(), {"method": "sample", **overrides})
    )


def generate_text(model_folder: ModelFolder, prompt: str, settings: GenerationConfig, max_length: int) -> list[str]:
    """``n_best`` texts that start with the prompt, up to ``max_length`` tokens each."""
    model = model_folder.model
    if not isinstance(model, CausalLM):
        raise HeedfulError(
            "this model does not generate text", hint="train one: heedful train --task causal_lm texts.txt"
        )
    prompt_ids = model_folder.tokenizer.target.encode(clean_sentence(prompt, model_folder.config.unicode_normalization))
    limit = max_length if model.max_length is None else min(max_length, model.max_length)
    if len(prompt_ids) >= limit:
        can_extend = model.max_length is None or max_length < model.max_length
        raise HeedfulError(
            f"the prompt has {len(prompt_ids)} tokens, and the text may have {limit}",
            hint=f"allow more: --max-length {2 * len(prompt_ids)}" if can_extend else "give a shorter prompt",
        )
    source = torch.tensor([[END]], device=model.output.weight.device)
    hypotheses = search(model, source, settings, max_lengths=[limit], prefixes=[prompt_ids])[0]
    return [model_folder.tokenizer.target.decode(hypothesis.tokens) for hypothesis in hypotheses]


@torch.inference_mode()
def fill_blanks(model_folder: ModelFolder, text: str, top_k: int) -> list[list[FillCandidate]]:
    """The most probable tokens for every blank (__) of the text, each predicted independently."""
    model = model_folder.model
    if not isinstance(model, MaskedLM):
        raise HeedfulError(
            "this model does not fill in blanks", hint="train one: heedful train --task masked_lm texts.txt"
        )
    ids = encode_text_with_blanks(model_folder, text)
    probabilities = _token_probabilities(model, ids)[blank_positions(ids)]
    best = probabilities.topk(min(top_k, probabilities.size(-1) - 1), dim=-1)
    candidates = []
    for token_ids, row_probabilities in zip(best.indices.tolist(), best.values.tolist(), strict=True):
        tokens = model_folder.tokenizer.source.ids_to_tokens(token_ids)
        texts = [token.replace(METASPACE, " ").strip() or METASPACE for token in tokens]
        candidates.append([*map(FillCandidate, texts, row_probabilities)])
    return candidates


@torch.inference_mode()
def fill_blank_ids(model_folder: ModelFolder, ids: Sequence[int], masked_ids: Sequence[int]) -> list[int]:
    """The ids of a text with the most probable token in each blank; the model reads ``masked_ids``."""
    probabilities = _token_probabilities(model_folder.model, masked_ids)
    probabilities[:, : UNK + 1] = 0  # special tokens are not words
    best_ids = probabilities.argmax(-1).tolist()
    return [best_ids[position] if token_id == MASK else token_id for position, token_id in enumerate(ids)]


def _token_probabilities(model: Model, ids: Sequence[int]) -> Tensor:
    """The probability of every token at every position: (positions, vocabulary)."""
    source = torch.tensor([[*ids, END]], device=model.output.weight.device)
    return model.logits(model.encode(source)[0]).softmax(-1)


def encode_text_with_blanks(model_folder: ModelFolder, text: str) -> list[int]:
    """As ``encode_blanks``; an error if there is no blank or the text is too long for the model."""
    ids = encode_blanks(model_folder, text)
    max_length = model_folder.model.max_length
    if not blank_positions(ids):
        raise HeedfulError("there is no blank in the text", hint='write __ for it: "A man __ a horse."')
    if max_length is not None and len(ids) >= max_length:
        raise HeedfulError(f"{len(ids)} tokens are too many: this model ends at {max_length}")
    return ids


def blank_positions(ids: Sequence[int]) -> list[int]:
    """The positions of the blanks, from 0."""
    return [position for position, token_id in enumerate(ids) if token_id == MASK]


def encode_blanks(model_folder: ModelFolder, text: str) -> list[int]:
    """The ids of a text, with one MASK per blank, which includes the space before it."""
    tokenizer = model_folder.tokenizer.source
    ids = tokenizer.encode(
        clean_sentence(BLANK_PATTERN.sub(PLACEHOLDER_CHARACTER, text), model_folder.config.unicode_normalization)
    )
    blank_offsets = [
        offset for offset, character in enumerate(tokenizer.decode(ids)) if character == PLACEHOLDER_CHARACTER
    ]
    result: list[int] = []
    emitted: set[int] = set()
    for token_id, span in zip(ids, tokenizer.char_spans(ids), strict=True):
        start, stop = span or (-1, -1)
        # Several tokens spell the placeholder; a token that is only the space before it belongs to the blank.
        blank = next((offset for offset in blank_offsets if start <= offset < max(stop, start + 1)), None)
        if blank is None:
            result.append(token_id)
        elif start < stop and blank not in emitted:
            result.append(MASK)
            emitted.add(blank)
    return result
