"""Attention in numbers that a person can check: every step of the lecture as a value with all its parts.

Computed by the functions of the model itself (model/attention.py), in float64, from given matrices or from a
trained model's layer, head and sentence. Rows look at columns.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heedful.bundle import Bundle
from heedful.errors import HeedfulError
from heedful.inspection.stacks import attention_layers, no_such_attention, sublayer_of
from heedful.inspection.trace import Kind, Trace, place
from heedful.model.attention import MultiHeadAttention, attention_scores, masked
from heedful.model.efficient_attention import ProjectedAttention
from heedful.model.relative import AlibiAttention, RelativeAttention, RotaryAttention, turned
from heedful.model.residual import Norm, PreNorm


@dataclass(frozen=True, slots=True)
class Projection:
    """x W + b: how queries, keys, values and the output are made."""

    x: Tensor  # (rows, inputs)
    weight: Tensor  # (inputs, outputs), as the lecture writes it: x W
    bias: Tensor | None = None  # (outputs,)

    @property
    def result(self) -> Tensor:
        """(rows, outputs)."""
        product = self.x @ self.weight
        return product if self.bias is None else product + self.bias


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """Equation 1 from queries, keys and values to the output, with everything between."""

    query: Tensor  # (queries, channels)
    key: Tensor  # (keys, channels)
    value: Tensor  # (keys, value channels)
    visible: Tensor | None = None  # (queries, keys), True = may attend
    scale: float | None = None
    """What scores are divided by; None for the paper's sqrt(d_k), 1 for the exercise without scaling."""
    bias: Tensor | None = None  # (queries, keys)
    """What the distance of two words adds to their scaled score (relative positions, ALiBi)."""
    distance_values: Tensor | None = None  # (queries, keys, value channels)
    """What the distance of two words adds to the value (relative positions)."""

    def products(self, row: int, column: int) -> Tensor:
        """q_c k_c for every channel c: they sum to the score. (channels,)"""
        return self.query[row] * self.key[column]

    @property
    def scores(self) -> Tensor:
        """q . k of every pair: (queries, keys)."""
        return attention_scores(self.query, self.key)

    @property
    def divisor(self) -> float:
        """What the scores are divided by."""
        return math.sqrt(self.query.size(-1)) if self.scale is None else self.scale

    @property
    def scaled(self) -> Tensor:
        """Scores divided by sqrt(d_k)."""
        return self.scores / self.divisor

    @property
    def masked(self) -> Tensor:
        """Scaled scores and what distance adds to them, -inf where nothing may be seen."""
        return masked(self.scaled if self.bias is None else self.scaled + self.bias, self.visible)

    @property
    def weights(self) -> Tensor:
        """softmax of each row: positive, and they sum to 1."""
        return softmax(self.masked)

    @property
    def contributions(self) -> Tensor:
        """weight x value for every pair: (queries, keys, value channels)."""
        values = self.value[None]
        if self.distance_values is not None:
            values = values + self.distance_values
        return self.weights[:, :, None] * values

    @property
    def output(self) -> Tensor:
        """The sum of the contributions: (queries, value channels)."""
        return self.weights @ self.value if self.distance_values is None else self.contributions.sum(1)


def softmax(scores: Tensor) -> Tensor:
    """exp(s_j) / sum of exp(s_k), row by row; -inf becomes exactly 0.

    >>> softmax(torch.tensor([[14.0, 12.0]], dtype=torch.float64))
    tensor([[0.8808, 0.1192]], dtype=torch.float64)
    """
    return scores.softmax(dim=-1)


@dataclass(frozen=True, slots=True)
class HeadStep:
    """One head: X into Q, K and V, then attention."""

    query: Projection
    key: Projection
    value: Projection
    visible: Tensor | None = None
    scale: float | None = None
    module: MultiHeadAttention | None = None
    """The attention of a trained model that this is a head of; None for the paper's."""
    number: int = 0
    """Which of its heads."""
    rows: Tensor | None = None  # (queries, keys)
    """What a model of trees has in place of ``visible``: how words stand to each other."""

    @property
    def attention(self) -> AttentionStep:
        """From Q, K, V to the head's output."""
        return attention_step(self)


def attention_step(head: HeadStep) -> AttentionStep:
    """What the kind of attention makes of queries, keys and values before they meet."""
    module, visible, scale = head.module, head.visible, head.scale
    query, key, value = head.query.result, head.key.result, head.value.result
    match module:
        case RotaryAttention():
            return AttentionStep(turned(query), turned(key), value, visible, scale)
        case AlibiAttention():
            bias = module.bias(query, key)[head.number].cpu()
            return AttentionStep(query, key, value, visible, scale, bias)
        case RelativeAttention():
            relations = module.relations(query, key, head.rows)
            of_keys = _added([each.keys[each.rows] for each in relations])
            of_values = _added([each.values[each.rows] for each in relations])
            bias = (query[:, None] * of_keys).sum(-1) * module.scale
            return AttentionStep(query, key, value, visible, scale, bias, of_values)
        case ProjectedAttention():
            mask = None if visible is None else visible[:1]
            sums = [x.detach().cpu().double() for x in (module.key_sums, module.value_sums)]
            key, value = (module.summed(x, table, mask) for x, table in zip((key, value), sums, strict=True))
            return AttentionStep(query, key, value, None, scale)
    return AttentionStep(query, key, value, visible, scale)


def _added(vectors: Sequence[Tensor]) -> Tensor:
    """What all relations of two words add, in float64: (queries, keys, channels)."""
    return torch.stack([each.detach().cpu().double() for each in vectors]).sum(0)


def head_step(
    x: Tensor,
    w_query: Tensor,
    w_key: Tensor,
    w_value: Tensor,
    *,
    memory: Tensor | None = None,
    visible: Tensor | None = None,
    scale: float | None = None,
) -> HeadStep:
    """One head from given matrices; keys and values come from ``memory`` in cross-attention."""
    looked_at = x if memory is None else memory
    _check_inner("x and w_query", x, w_query)
    _check_inner("x and w_key", looked_at, w_key)
    _check_inner("x and w_value", looked_at, w_value)
    if w_query.size(1) != w_key.size(1):
        raise HeedfulError(
            f"queries of {w_query.size(1)} channels cannot meet keys of {w_key.size(1)}",
            hint="w_query and w_key have as many columns",
        )
    return HeadStep(
        Projection(x, w_query), Projection(looked_at, w_key), Projection(looked_at, w_value), visible, scale
    )


def _check_inner(names: str, x: Tensor, weight: Tensor) -> None:
    if x.dim() != 2 or weight.dim() != 2 or x.size(1) != weight.size(0):
        shapes = f"{'x'.join(map(str, x.shape))} and {'x'.join(map(str, weight.shape))}"
        raise HeedfulError(
            f"{names} cannot be multiplied: {shapes}",
            hint="the columns of the first are the rows of the second",
        )


@dataclass(frozen=True, slots=True)
class MultiHeadStep:
    """All heads side by side, through W^O, into the residual sum and its LayerNorm."""

    heads: tuple[HeadStep, ...]
    w_output: Tensor | None = None  # (heads x channels, width)
    b_output: Tensor | None = None
    before: Tensor | None = None
    """The stream that the result is added to: X itself after post-norm, X before its norm for pre-norm."""
    norm: Norm | None = None
    """The norm after the sum (post-norm), if any."""
    summed: bool = True
    """Whether there is a sum; a model without residuals goes on with the output alone."""

    @property
    def concat(self) -> Tensor:
        """The heads' outputs next to each other: (queries, heads x channels)."""
        return torch.cat([head.attention.output for head in self.heads], dim=-1)

    @property
    def projected(self) -> Tensor:
        """Concat W^O: (queries, width)."""
        if self.w_output is None:
            return self.concat
        return Projection(self.concat, self.w_output, self.b_output).result

    @property
    def residual(self) -> Tensor:
        """x + the sublayer's output."""
        return self.before + self.projected if self.before is not None and self.summed else self.projected

    @property
    def output(self) -> Tensor:
        """The residual sum, normalised if the model is post-norm."""
        return self.residual if self.norm is None else self.norm(self.residual)


def layer_norm(x: Tensor, epsilon: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) of each row, as ``nn.LayerNorm`` without gain and bias.

    >>> layer_norm(torch.tensor([[1.0, 2, 3, 4]], dtype=torch.float64))
    tensor([[-1.3416, -0.4472,  0.4472,  1.3416]], dtype=torch.float64)
    """
    return nn.functional.layer_norm(x, x.shape[-1:], eps=epsilon)


def model_attention(bundle: Bundle, seen: Trace, kind: Kind, layer: int) -> MultiHeadStep:
    """The attention of a trained model's layer (from 0), with the numbers it had in this pass."""
    check_place(bundle, kind, layer)
    module, before, norm = _sublayer(bundle, seen, kind, layer)
    divisor = None if bundle.config.model.scaled_attention else 1.0
    x = seen.tensors[f"{place(kind, layer)}.x"].double()
    memory = seen.tensors["encoder.memory"].double() if kind == "cross" else x
    visible = seen.visible(kind, layer)
    tree = seen.tensors.get("encoder.tree") if kind == "encoder" else None
    rows = None if tree is None else tree[0]
    weight = module.input.weight.detach().cpu().double().T.chunk(3, dim=1)  # W^Q, W^K, W^V: (width, width)
    bias = module.input.bias
    biases = [None] * 3 if bias is None else bias.detach().cpu().double().chunk(3)
    channels = module.width // module.heads
    heads = []
    for head in range(module.heads):
        own = slice(head * channels, (head + 1) * channels)
        query, key, value = (
            Projection(of, w[:, own], None if b is None else b[own])
            for of, w, b in zip((x, memory, memory), weight, biases, strict=True)
        )
        heads.append(HeadStep(query, key, value, visible, divisor, module, head, rows))
    output_bias = None if module.output.bias is None else module.output.bias.detach().cpu().double()
    w_output = module.output.weight.detach().cpu().double().T
    summed = bundle.config.model.residuals
    return MultiHeadStep(tuple(heads), w_output, output_bias, before, norm, summed)


def check_place(bundle: Bundle, kind: Kind, layer: int, head: int | None = None) -> None:
    """Layers and heads count from 0 here, and from 1 for people: the error speaks to people."""
    config = bundle.config.model
    layers = attention_layers(config)[kind]
    if not layers:
        raise no_such_attention(config, kind)
    stack = "encoder" if kind == "encoder" else "decoder"
    if not 0 <= layer < layers:
        raise HeedfulError(
            f"there is no layer {layer + 1}: the {stack} has {layers}", hint=f"layers go from 1 to {layers}"
        )
    if head is not None and not 0 <= head < config.heads:
        raise HeedfulError(
            f"there is no head {head + 1}: each layer has {config.heads}",
            hint=f"heads go from 1 to {config.heads}",
        )


def _sublayer(
    bundle: Bundle, seen: Trace, kind: Kind, layer: int
) -> tuple[MultiHeadAttention, Tensor, Norm | None]:
    """The attention module, the stream that its result is added to, and the norm after the sum."""
    attention, residual = sublayer_of(bundle.predictor, kind, layer)
    name = "encoder" if kind == "encoder" else "decoder"
    entry = f"{name}.embedding" if layer == 0 else f"{name}.{layer - 1}.feed_forward.residual"
    before = seen.tensors[f"decoder.{layer}.self.residual" if kind == "cross" else entry]
    after = None if isinstance(residual, PreNorm) else _doubled(residual.norm)
    return attention, before.double(), after


def _doubled(norm: Norm) -> Norm:
    """A float64 copy of a trained norm, on the CPU."""
    return copy.deepcopy(norm).cpu().double().requires_grad_(False)
