"""Every tensor of one forward pass, collected by hooks while a sentence and its translation pass the model.

Weights are (heads, queries, keys): rows attend to columns. Decoder row t reads target token t - 1 (the start
for t = 0) and writes token t. A causal language model has no source; a masked one has no decoder input.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, takewhile
from typing import Literal, get_args

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.generation.config import GenerationConfig
from heedful.generation.search import search
from heedful.inference.text_generation import blank_positions, encode_text_with_blanks, fill_blank_ids
from heedful.model_folder import ModelFolder
from heedful.models.attention import MultiHeadAttention, causal_mask
from heedful.models.base import Model, pad_with_end, select_token_ids
from heedful.models.config import RECURRENT_ARCHITECTURES, ModelConfig
from heedful.models.language_models import CausalLM, CausalLMLayer, MaskedLM
from heedful.models.sublayers import PostNorm
from heedful.models.transformer import Decoder, DecoderLayer, Encoder, EncoderLayer, Transformer
from heedful.tokenization.dependency_trees import SentenceIds, get_token_ids
from heedful.tokenization.normalization import METASPACE, clean_sentence
from heedful.tokenization.special_tokens import END, MASK, PAD
from heedful.tokenization.tokenizer import Tokenizer

AttentionKind = Literal["encoder", "decoder", "cross"]

ATTENTION_KINDS: tuple[AttentionKind, ...] = get_args(AttentionKind)
"""Encoder self-attention, decoder self-attention, and cross-attention of the decoder on the encoder."""

START_LABEL, END_LABEL, BLANK_LABEL = "<s>", "</s>", "__"
SPECIAL_LABELS = {PAD: START_LABEL, END: END_LABEL}


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """One side of a pass: token ids, subwords, and the words they form."""

    ids: tuple[int, ...]
    subwords: tuple[str, ...]
    """Printable subwords; ▁ stands for a space."""
    word_ids: tuple[int, ...]
    """The word index of each subword."""
    words: tuple[str, ...]

    def find_word(self, word: str, text_name: str = "the sentence") -> int:
        """The index of a word, given by its spelling or by its number from 1."""
        if word in self.words:
            return self.words.index(word)
        casefolded_words = [candidate.casefold() for candidate in self.words]
        if word.casefold() in casefolded_words:
            return casefolded_words.index(word.casefold())
        if word.isdecimal() and 1 <= int(word) <= len(self.words):
            return int(word) - 1
        raise HeedfulError(
            f"the word {word!r} is not in {text_name}",
            hint=f"choose one of: {' '.join(self.words)}, or a number from 1 to {len(self.words)}",
        )

    def positions_of_word(self, word_id: int) -> list[int]:
        """Positions of a word's subwords."""
        return [position for position, its_word_id in enumerate(self.word_ids) if its_word_id == word_id]


def group_into_words(tokenizer: Tokenizer, ids: Sequence[int], words: Sequence[str]) -> TokenSequence:
    """The subwords grouped into the given words; the start, leading tags and the end are separate words."""
    text_word_ids = tokenizer.align_to_words(ids, words)
    leading = list(takewhile(lambda position: text_word_ids[position] < 0 and ids[position] != END, range(len(ids))))
    labels = [SPECIAL_LABELS.get(ids[i]) or tokenizer.ids_to_tokens([ids[i]])[0] for i in leading]
    all_words = [*labels, *words, *([END_LABEL] if ids and ids[-1] == END else [])]
    word_ids = [
        word_id + len(labels) if word_id >= 0 else position if position < len(labels) else len(all_words) - 1
        for position, word_id in enumerate(text_word_ids)
    ]
    return replace(build_token_sequence(tokenizer, ids), word_ids=tuple(word_ids), words=tuple(all_words))


EMPTY_SEQUENCE = TokenSequence((), (), (), ())


def build_token_sequence(
    tokenizer: Tokenizer, ids: Sequence[int], labels: Mapping[int, str] = SPECIAL_LABELS
) -> TokenSequence:
    """The ids with their subwords, grouped into the tokenizer's words; ``labels`` names special tokens."""
    word_ids = tokenizer.word_ids(ids)
    words = []
    for word_id in range(max(word_ids) + 1):
        word = [token_id for token_id, its_word_id in zip(ids, word_ids, strict=True) if its_word_id == word_id]
        # A word that is only a space must not become empty.
        text = tokenizer.decode(word).strip() or "".join(tokenizer.ids_to_tokens(word))
        words.append(labels.get(word[0]) or text)
    subwords = [
        labels.get(token_id, subword) for token_id, subword in zip(ids, tokenizer.ids_to_tokens(ids), strict=True)
    ]
    if len(words) == len(subwords):  # one subword per word: space marks are redundant
        subwords = [subword.removeprefix(METASPACE) or subword for subword in subwords]
    return TokenSequence(tuple(ids), tuple(subwords), tuple(word_ids), tuple(words))


@dataclass(frozen=True)
class Activations:
    """A sentence, its translation, and every tensor of the forward pass."""

    source: TokenSequence
    """What the encoder reads: the sentence and its end; empty without an encoder."""
    decoder_input: TokenSequence
    """What the decoder reads: the start, then the translation; empty without a decoder."""
    target: TokenSequence
    """What the model writes: the translation and its end; for a masked language model the filled text."""
    tensors: dict[str, Tensor]
    """By hook name (``encoder.0.self.weights``), without the batch dimension."""
    encoder_input: Tensor
    """The source as the encoder reads it, with PAD for masked tokens: (1, length), or (1, length, 3) with a tree."""
    masked_source: tuple[int, ...] = ()
    """Source positions masked like padding."""
    projected_keys: TokenSequence | None = None
    """What the encoder attends to instead of words (Linformer)."""
    tag_count: int = 0
    """Language tags before the source; each is a word that no target word aligns to."""

    @property
    def blank_positions(self) -> list[int] | None:
        """Positions that a masked language model filled; None for other models."""
        return None if self.decoder_input.ids else blank_positions(self.source.ids)

    def attention_mask(self, kind: AttentionKind, layer: int) -> Tensor | None:
        """The mask of a layer: (queries, keys), True = may attend; None if nothing is masked."""
        sparse_pattern = self.tensors.get(f"{attention_name(kind, layer)}.pattern")
        if kind == "decoder":
            mask = causal_mask(len(self.decoder_input.ids))
        elif self.masked_source:
            queries = len(self.queries_and_keys(kind)[0].ids)
            mask = (select_token_ids(self.encoder_input) != PAD).expand(queries, -1)
        else:
            return sparse_pattern
        return mask if sparse_pattern is None else mask & sparse_pattern

    def weights(self, kind: AttentionKind, layer: int) -> Tensor:
        """Attention weights of a layer (from 0): (heads, queries, keys)."""
        return self.tensors[f"{attention_name(kind, layer)}.weights"]

    def queries_and_keys(self, kind: AttentionKind) -> tuple[TokenSequence, TokenSequence]:
        """The queries (rows) and keys (columns); rows of cross-attention are labeled with what they write."""
        return {
            "encoder": (self.source, self.projected_keys or self.source),
            "decoder": (self.decoder_input, self.decoder_input),
            "cross": (self.target, self.source),
        }[kind]

    @cached_property
    def layers(self) -> dict[AttentionKind, int]:
        """Number of layers of each kind."""
        return {
            kind: next(layer for layer in count() if f"{attention_name(kind, layer)}.weights" not in self.tensors)
            for kind in ATTENTION_KINDS
        }

    @property
    def has_rollout(self) -> bool:
        """Whether encoder words attend to words: not in recurrent models or in a Linformer."""
        return self.projected_keys is None and self.layers["encoder"] > 0

    @property
    def heads(self) -> int:
        """Heads per layer."""
        return self.weights(next(kind for kind in ATTENTION_KINDS if self.layers[kind]), 0).size(0)

    def keep_cross_attention(self) -> "Activations":
        """Only what alignment needs, so that many can be held in memory."""
        cross_weights = {name: tensor for name, tensor in self.tensors.items() if name.endswith(".cross.weights")}
        return replace(self, tensors=cross_weights)


def mask_positions(source: Tensor, masked: Sequence[int]) -> Tensor:
    """The source with PAD at the masked positions; all others keep their positions."""
    return source.index_fill(1, torch.tensor(masked, dtype=torch.int64, device=source.device), PAD)


def attention_name(kind: AttentionKind, layer: int) -> str:
    """The hook name of an attention: ``encoder.0.self``, ``decoder.1.cross``."""
    return f"{'encoder' if kind == 'encoder' else 'decoder'}.{layer}.{'cross' if kind == 'cross' else 'self'}"


def compute_activations(model_folder: ModelFolder, source: str, target: str | None = None) -> Activations:
    """Run a sentence and its translation (given, or generated) through the model and keep every tensor."""
    source_ids = encode_source(model_folder, source)
    if target is None:
        target_ids = translate_ids(model_folder, source_ids)
    else:
        model_folder.check_translates()
        target_ids = model_folder.target_ids(target)
    return compute_activations_from_ids(model_folder, source_ids, target_ids)


def regroup_words(
    model_folder: ModelFolder, activations: Activations, source: Sequence[str], target: Sequence[str]
) -> Activations:
    """The same pass with its subwords grouped into the given words."""
    tokenizer, form = model_folder.tokenizer, model_folder.config.unicode_normalization
    source_words, target_words = ([clean_sentence(word, form) for word in side] for side in (source, target))
    return replace(
        activations,
        source=group_into_words(tokenizer.source, activations.source.ids, source_words),
        decoder_input=group_into_words(tokenizer.target, activations.decoder_input.ids, target_words),
        target=group_into_words(tokenizer.target, activations.target.ids, target_words),
    )


def encode_source(model_folder: ModelFolder, source: str) -> SentenceIds:
    """Source ids of a sentence, without END; a masked language model needs at least one blank."""
    if model_folder.config.model.architecture == "masked_lm":
        return encode_text_with_blanks(model_folder, source)
    ids = model_folder.source_ids(source)
    if not ids:
        raise HeedfulError("the sentence is empty", hint="give a sentence with at least one word")
    return ids


def translate_ids(model_folder: ModelFolder, source_ids: SentenceIds) -> list[int]:
    """The model's output for one sentence: its translation, continuation, or filled text."""
    architecture = model_folder.config.model.architecture
    token_ids = get_token_ids(source_ids)
    if architecture == "masked_lm":
        return fill_blank_ids(model_folder, token_ids, token_ids)
    model = model_folder.autoregressive_model
    source = pad_with_end([source_ids]).to(model.output.weight.device)
    config = model_folder.config.generation.model_copy(
        update={"method": "beam", "n_best": 1, "beam_size": default_beam_size(model_folder)}
    )
    max_length = compute_max_output_length(model_folder, len(source_ids), config)
    prefix = token_ids if architecture == "causal_lm" else ()
    return list(search(model, source, config, max_lengths=[max_length], prefixes=[prefix])[0][0].tokens)


def default_beam_size(model_folder: ModelFolder) -> int:
    """The beam size of the model's config; language models use greedy search."""
    return 1 if model_folder.config.model.architecture == "causal_lm" else model_folder.config.generation.beam_size


def compute_max_output_length(model_folder: ModelFolder, source_length: int, config: GenerationConfig) -> int:
    """The longest output that the decoder can also read again, after the start token."""
    max_length = config.max_output_length(source_length)
    model_max_length = model_folder.autoregressive_model.max_length
    return max_length if model_max_length is None else min(max_length, model_max_length - 1)


def compute_activations_from_ids(
    model_folder: ModelFolder, source_ids: SentenceIds, target_ids: Sequence[int], masked_source: Sequence[int] = ()
) -> Activations:
    """``compute_activations`` of token ids; ``masked_source`` are source positions to mask."""
    model = model_folder.model.eval()
    device = model.output.weight.device
    tensors: dict[str, Tensor] = {}
    padded = pad_with_end([source_ids])
    source = mask_positions(padded, masked_source)
    decoder_input = torch.tensor([[PAD, *target_ids]], device=device)
    with torch.inference_mode():
        tensors["logits"] = model.logits(model(source.to(device), decoder_input, tensors.__setitem__))
    config, tokenizer = model_folder.config.model, model_folder.tokenizer
    token_ids = select_token_ids(padded)[0].tolist()  # with END
    labels = {**SPECIAL_LABELS, MASK: BLANK_LABEL} if config.architecture == "masked_lm" else SPECIAL_LABELS
    source_tokens = decoder_tokens = EMPTY_SEQUENCE
    if config.architecture != "causal_lm":
        source_tokens = build_token_sequence(tokenizer.source, token_ids, labels)
    if config.architecture != "masked_lm":
        decoder_tokens = build_token_sequence(tokenizer.target, [PAD, *target_ids])
    projected_keys = None
    has_encoder_attention = config.architecture not in (*RECURRENT_ARCHITECTURES, "causal_lm")
    if has_encoder_attention and config.encoder_attention == "linformer":
        key_ids, key_labels = zip(*((i, f"Σ{i + 1}") for i in range(config.projected_length)), strict=True)
        projected_keys = TokenSequence(key_ids, key_labels, key_ids, key_labels)
    last_tag_id = MASK + len(tokenizer.source.vocabulary.languages)  # tags follow the special tokens
    tags = takewhile(lambda token_id: MASK < token_id <= last_tag_id, token_ids)
    return Activations(
        source_tokens,
        decoder_tokens,
        build_token_sequence(tokenizer.target, [*target_ids, END]),
        {name: tensor[0].cpu() for name, tensor in tensors.items()},
        source,
        masked_source=tuple(masked_source),
        projected_keys=projected_keys,
        tag_count=len(list(tags)),
    )


def describe_unknown_words(model_folder: ModelFolder, activations: Activations) -> list[str]:
    """A note on words outside a word-level vocabulary, which are spelled by characters."""
    if model_folder.tokenizer.source.model_type != "word":
        return []
    tokens = activations.source if activations.source.ids else activations.decoder_input
    unknown = [word for word_id, word in enumerate(tokens.words) if len(tokens.positions_of_word(word_id)) > 1]
    if not unknown:
        return []
    word_list = ", ".join(dict.fromkeys(unknown))
    return [f"Not in this model's vocabulary, so spelled with rarely trained subwords: {word_list}."]


def aggregate_to_words(weights: Tensor, rows: TokenSequence, columns: TokenSequence) -> Tensor:
    """Weights between words: summed over a key's subwords, averaged over a query's.

    Rows still sum to 1 (to 0 for a word without subwords).
    (..., query subwords, key subwords) -> (..., query words, key words)
    """
    return _build_membership_matrix(rows, weights, mean=True) @ sum_over_words(weights, columns)


def sum_over_words(values: Tensor, tokens: TokenSequence) -> Tensor:
    """Sum over the subwords of each word: (..., subwords) -> (..., words)."""
    return values @ _build_membership_matrix(tokens, values, mean=False).T


def _build_membership_matrix(tokens: TokenSequence, reference: Tensor, mean: bool) -> Tensor:
    """(words, subwords): 1 where a subword belongs to a word; for a mean, 1 / subwords of the word."""
    word_ids = torch.tensor(tokens.word_ids, device=reference.device)
    membership = (torch.arange(len(tokens.words), device=reference.device)[:, None] == word_ids).to(reference.dtype)
    return membership / membership.sum(1, keepdim=True).clamp(min=1) if mean else membership


# ---- The layer stacks of each architecture, and the attention in them.

LayerStack = Encoder | Decoder | CausalLM
"""Each has an embedding, layers and a final norm."""

SINGLE_STACK_KINDS: dict[str, tuple[AttentionKind, ...]] = {"causal_lm": ("decoder",), "masked_lm": ("encoder",)}
"""Attention of encoder-only and decoder-only models."""


def count_attention_layers(model: ModelConfig) -> dict[AttentionKind, int]:
    """Layers with each kind of attention; a recurrent model has one layer of cross-attention."""
    if model.architecture in RECURRENT_ARCHITECTURES:
        return {"encoder": 0, "decoder": 0, "cross": 1}
    available_kinds = SINGLE_STACK_KINDS.get(model.architecture, ATTENTION_KINDS)
    layer_counts = {"encoder": model.encoder_layers, "decoder": model.decoder_layers, "cross": model.decoder_layers}
    return {kind: layer_counts[kind] if kind in available_kinds else 0 for kind in ATTENTION_KINDS}


def list_attention_kinds(model: ModelConfig) -> list[AttentionKind]:
    """The kinds of attention of a model."""
    return [kind for kind, layers in count_attention_layers(model).items() if layers]


def get_stack(model: Model, kind: AttentionKind) -> LayerStack:
    """The stack that contains a kind of attention."""
    match model:
        case Transformer():
            return model.encoder if kind == "encoder" else model.decoder
        case CausalLM() if kind == "decoder":
            return model
        case MaskedLM() if kind == "encoder":
            return model.encoder
    if model.config.architecture in RECURRENT_ARCHITECTURES:
        raise HeedfulError(
            f"this model is recurrent ({model.config.architecture}): it has no attention layers to explain",
            hint="see its attention over the source with heedful inspect or heedful serve",
        )
    raise _missing_attention_error(model.config, kind)


def _missing_attention_error(model: ModelConfig, kind: AttentionKind) -> HeedfulError:
    kinds = ", ".join(list_attention_kinds(model))
    return HeedfulError(f"this model has no {kind} attention", hint=f"choose one of: {kinds}")


def get_sublayer(model: Model, kind: AttentionKind, layer: int) -> tuple[MultiHeadAttention, PostNorm]:
    """The attention of a layer (from 0), and the residual connection around it."""
    stack_layer = get_stack(model, kind).layers[layer]
    if kind == "cross":
        assert isinstance(stack_layer, DecoderLayer)
        return stack_layer.cross_attention, stack_layer.residual_cross
    assert isinstance(stack_layer, (EncoderLayer, DecoderLayer, CausalLMLayer))
    return stack_layer.attention, stack_layer.residual_attention


def check_attention_kind(name: str) -> AttentionKind:
    """The kind of attention with this name."""
    for kind in ATTENTION_KINDS:
        if kind == name:
            return kind
    raise HeedfulError(f"unknown attention kind {name!r}", hint=f"choose one of: {', '.join(ATTENTION_KINDS)}")


def check_layer_and_head(model_folder: ModelFolder, kind: AttentionKind, layer: int, head: int | None = None) -> None:
    """Raise if the model has no such layer or head; messages count from 1, as users do."""
    config = model_folder.config.model
    layers = count_attention_layers(config)[kind]
    if not layers:
        raise _missing_attention_error(config, kind)
    stack = "encoder" if kind == "encoder" else "decoder"
    if not 0 <= layer < layers:
        raise HeedfulError(
            f"layer {layer + 1} does not exist: the {stack} has {layers}", hint=f"choose a layer from 1 to {layers}"
        )
    if head is not None and not 0 <= head < config.heads:
        raise HeedfulError(
            f"head {head + 1} does not exist: each layer has {config.heads}",
            hint=f"choose a head from 1 to {config.heads}",
        )
