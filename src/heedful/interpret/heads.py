"""What each head does in a forward pass: entropy, distance, attention patterns, and word alignment.

Profiles ignore masked source tokens, since nothing attends to them.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.data.word_alignment import WordLink, align_by_attention
from heedful.interpret.activations import ATTENTION_KINDS, Activations, AttentionKind, aggregate_to_words
from heedful.models.config import ModelConfig

MIN_PATTERN_WEIGHT = 0.5
"""Mean weight from which a pattern names the head."""

MIN_BROAD_ENTROPY = 0.8
"""Normalized entropy from which a head is called broad."""


def entropy(weights: Tensor) -> Tensor:
    """- sum of w log2 w over the keys, in bits; a weight of zero adds nothing.

    >>> entropy(torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]))
    tensor([0., 2.])
    """
    bits: Tensor = -torch.special.xlogy(weights, weights).sum(-1) / math.log(2) + 0.0  # + 0: no minus zero
    return bits


@dataclass(frozen=True, slots=True)
class HeadProfile:
    """Averages over all rows of some sentences; layer and head count from 0."""

    kind: AttentionKind
    layer: int
    head: int
    entropy: float
    """Of the weights, in bits: 0 for one token, 3 for eight tokens with equal weights."""
    normalized_entropy: float
    """Entropy over its maximum for the number of visible tokens: 0 to 1."""
    distance: float | None = None
    """Mean distance from query to key in tokens; None in cross-attention, as the next three."""
    previous_weight: float | None = None
    self_weight: float | None = None
    next_weight: float | None = None
    sink_weight: float = 0.0
    """Weight on the end of the source, or on the start of the target."""
    alignment_score: float | None = None
    """How far cross-attention is an alignment: the smaller of two means, ends excluded: the largest weight of
    each row and the largest weight of each column."""

    @property
    def pattern(self) -> str:
        """The dominant pattern, or an empty string."""
        pattern_weights = {
            "previous word": self.previous_weight,
            "next word": self.next_weight,
            "itself": self.self_weight,
            "start sink" if self.kind == "decoder" else "end sink": self.sink_weight,
        }
        if self.normalized_entropy >= MIN_BROAD_ENTROPY:
            return "broad"
        name, weight = max(pattern_weights.items(), key=lambda item: item[1] or 0.0)
        if (weight or 0.0) >= MIN_PATTERN_WEIGHT:
            return name
        return "aligner" if (self.alignment_score or 0.0) >= MIN_PATTERN_WEIGHT else ""


def compute_head_profiles(passes: Iterable[Activations]) -> list[HeadProfile]:
    """A profile of every head, encoder first; each sentence has the same weight in the averages."""
    totals: dict[tuple[AttentionKind, int], dict[str, Tensor]] = {}
    count = 0
    for activations in passes:
        count += 1
        for kind in ATTENTION_KINDS:
            for layer in range(activations.layers[kind]):
                weights = activations.weights(kind, layer).double()
                if kind == "encoder" and activations.projected_keys is not None:  # keys without positions (Linformer)
                    entropies = entropy(weights).mean(-1)
                    max_entropy = max(math.log2(weights.size(-1)), 1e-9)
                    measures = {"entropy": entropies, "normalized_entropy": entropies / max_entropy}
                else:
                    measures = _measure_layer(weights, kind, activations.masked_source)
                total = totals.setdefault((kind, layer), dict.fromkeys(measures, torch.zeros(())))
                for name, values in measures.items():
                    total[name] = total[name] + values
    return [
        HeadProfile(kind, layer, head, **{name: float(values[head] / count) for name, values in total.items()})
        for kind in ATTENTION_KINDS
        for (layer_kind, layer), total in sorted(totals.items())
        if layer_kind == kind
        for head in range(len(total["entropy"]))
    ]


def _measure_layer(weights: Tensor, kind: AttentionKind, masked_source: Sequence[int]) -> dict[str, Tensor]:
    """Means over the rows of a layer, (heads,) each, named as the fields of ``HeadProfile``."""
    heads, queries, keys = weights.shape
    query_position, key_position = torch.arange(queries)[:, None], torch.arange(keys)
    is_unmasked = [kind == "decoder" or position not in masked_source for position in range(keys)]
    unmasked_keys = key_position[is_unmasked]
    if kind == "encoder":
        weights, query_position = weights[:, unmasked_keys], query_position[unmasked_keys]
    entropies = entropy(weights)
    visible_keys = key_position + 1 if kind == "decoder" else torch.tensor([len(unmasked_keys)] * len(query_position))
    max_entropies = visible_keys.log2()
    has_choice = max_entropies > 0  # a row that sees one token cannot be broad
    measures = {
        "entropy": entropies.mean(-1),
        "normalized_entropy": (entropies[:, has_choice] / max_entropies[has_choice]).mean(-1)
        if has_choice.any()
        else torch.zeros(heads),
        "sink_weight": weights[:, :, 0 if kind == "decoder" else keys - 1].mean(-1),
    }
    if kind == "cross":
        alignment_score = torch.zeros(heads)
        if queries > 1 and len(unmasked_keys) > 1:  # more than the end on both sides
            word_weights = weights[:, :, unmasked_keys[:-1]]
            query_peaks = word_weights[:, :-1].amax(-1).mean(-1)
            key_peaks = word_weights.amax(-2).mean(-1)
            alignment_score = torch.minimum(query_peaks, key_peaks)
        return measures | {"alignment_score": alignment_score}
    offset = key_position - query_position
    return measures | {
        "distance": (weights * offset.abs()).sum(-1).mean(-1),
        "previous_weight": (weights * (offset == -1)).sum(-1).mean(-1),
        "self_weight": (weights * (offset == 0)).sum(-1).mean(-1),
        "next_weight": (weights * (offset == 1)).sum(-1).mean(-1),
    }


# ---- Word alignment: cross-attention links the words of both languages.


@dataclass(frozen=True, slots=True)
class Aligner:
    """The attention to read the alignment from: a head of a decoder layer, or the mean of its heads.

    A word's row is the one that writes it or, shifted, the one that reads it (Shift-Att, Chen et al. 2020).
    """

    layer: int
    head: int | None
    """None: the mean of all heads."""
    shifted: bool
    """Whether a word's row is the one that reads it instead of the one that writes it."""

    @property
    def name(self) -> str:
        """For messages, counted from 1."""
        head = "the mean of heads" if self.head is None else f"head {self.head + 1}"
        row = "reads" if self.shifted else "writes"
        return f"decoder layer {self.layer + 1}, {head}, the row that {row} the word"

    @property
    def label(self) -> str:
        """For tables, such as "cross 2.1, shifted": head 1 of layer 2."""
        head = "mean" if self.head is None else str(self.head + 1)
        return f"cross {self.layer + 1}.{head}{', shifted' if self.shifted else ''}"

    def weights(self, activations: Activations) -> Tensor:
        """(target words, source words) without tags and ends, so rows may sum to less than 1."""
        layer_weights = activations.weights("cross", self.layer)
        head_weights = layer_weights.mean(0) if self.head is None else layer_weights[self.head]
        rows = activations.decoder_input if self.shifted else activations.target
        word_weights = aggregate_to_words(head_weights, rows, activations.source)[:, activations.tag_count : -1]
        return word_weights[1:] if self.shifted else word_weights[:-1]  # without the start, or without the end

    def extract_links(self, activations: Activations) -> list[WordLink]:
        """Links each target word to the source word with its largest share of attention."""
        return align_by_attention(self.weights(activations).numpy())


def list_aligners(activations: Activations) -> list[Aligner]:
    """Every aligner of a model."""
    heads: list[int | None] = [None, *range(activations.heads)]
    return [
        Aligner(layer, head, shifted)
        for layer in range(activations.layers["cross"])
        for head in heads
        for shifted in (False, True)
    ]


def default_aligner(config: ModelConfig) -> Aligner:
    """The mean of the heads of the layer that usually aligns best."""
    return Aligner(config.alignment_layer, None, shifted=False)
