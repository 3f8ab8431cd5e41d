"""Attention step by step, with every intermediate value, in float64.

Computed by the functions of the model (models/attention.py), from given matrices or from a layer of a trained
model. Rows attend to columns.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError
from heedful.interpret.activations import Activations, AttentionKind, attention_name, check_layer_and_head, get_sublayer
from heedful.model_folder import ModelFolder
from heedful.models.attention import MultiHeadAttention, attention_scores, mask_scores
from heedful.models.efficient_attention import LinformerAttention
from heedful.models.relative_positions import RelativeAttention
from heedful.models.sublayers import Norm, PreNorm


@dataclass(frozen=True, slots=True)
class Projection:
    """x W + b: queries, keys, values and the output."""

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
    """Equation 1 from queries, keys and values to the output, with all intermediate values."""

    query: Tensor  # (queries, channels)
    key: Tensor  # (keys, channels)
    value: Tensor  # (keys, value channels)
    attention_mask: Tensor | None = None  # (queries, keys), True = may attend
    scale: float | None = None
    """The divisor of the scores; None: sqrt(d_k) as in the paper."""
    bias: Tensor | None = None  # (queries, keys)
    """Added to the scaled scores by the distance of two words (relative positions, ALiBi)."""
    distance_values: Tensor | None = None  # (queries, keys, value channels)
    """Added to the values by the distance of two words (relative positions)."""

    def products(self, row: int, column: int) -> Tensor:
        """q_c k_c for every channel c: they sum to the score. (channels,)"""
        return self.query[row] * self.key[column]

    @property
    def scores(self) -> Tensor:
        """q . k of every pair: (queries, keys)."""
        return attention_scores(self.query, self.key)

    @property
    def divisor(self) -> float:
        return math.sqrt(self.query.size(-1)) if self.scale is None else self.scale

    @property
    def scaled_scores(self) -> Tensor:
        """Scores divided by sqrt(d_k)."""
        return self.scores / self.divisor

    @property
    def masked_scores(self) -> Tensor:
        """Scaled scores plus the distance bias, -inf where masked."""
        scores = self.scaled_scores if self.bias is None else self.scaled_scores + self.bias
        return mask_scores(scores, self.attention_mask)

    @property
    def weights(self) -> Tensor:
        """softmax of each row."""
        return softmax(self.masked_scores)

    @property
    def contributions(self) -> Tensor:
        """weight x value for every pair: (queries, keys, value channels)."""
        values = self.value[None] if self.distance_values is None else self.value[None] + self.distance_values
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
    attention_mask: Tensor | None = None
    scale: float | None = None
    module: MultiHeadAttention | None = None
    """The attention module of a trained model; None for the paper's attention."""
    head_index: int = 0
    """Which of its heads."""
    tree_relations: Tensor | None = None  # (queries, keys)
    """Relations of the words in a dependency tree, for models that use them."""

    @property
    def attention(self) -> AttentionStep:
        """From Q, K, V to the head's output, by the kind of attention."""
        module, mask, scale = self.module, self.attention_mask, self.scale
        query, key, value = self.query.result, self.key.result, self.value.result
        match module:
            case None:
                return AttentionStep(query, key, value, mask, scale)
            case RelativeAttention():
                relations = module.relative_vectors(query, key, self.tree_relations)
                relation_keys = _sum_in_float64([relation.keys[relation.indices] for relation in relations])
                relation_values = _sum_in_float64([relation.values[relation.indices] for relation in relations])
                bias = (query[:, None] * relation_keys).sum(-1) * module.scale
                return AttentionStep(query, key, value, mask, scale, bias, relation_values)
            case LinformerAttention():
                key_mask = None if mask is None else mask[:1]
                key, value = (
                    module.project_sequence(x, projection.detach().cpu().double(), key_mask)
                    for x, projection in ((key, module.key_sums), (value, module.value_sums))
                )
                return AttentionStep(query, key, value, None, scale)
        score_bias = module.score_bias(query, key)
        head_bias = None if score_bias is None else score_bias[self.head_index].cpu()
        query, key = module.encode_positions(query), module.encode_positions(key)
        return AttentionStep(query, key, value, mask, scale, head_bias)


def _sum_in_float64(vectors: Sequence[Tensor]) -> Tensor:
    return torch.stack([vector.detach().cpu().double() for vector in vectors]).sum(0)


def build_head_step(
    x: Tensor,
    w_query: Tensor,
    w_key: Tensor,
    w_value: Tensor,
    *,
    memory: Tensor | None = None,
    attention_mask: Tensor | None = None,
    scale: float | None = None,
) -> HeadStep:
    """One head from given matrices; keys and values come from ``memory`` in cross-attention."""
    key_input = x if memory is None else memory
    for name, inputs, weight in (("query", x, w_query), ("key", key_input, w_key), ("value", key_input, w_value)):
        if inputs.dim() != 2 or weight.dim() != 2 or inputs.size(1) != weight.size(0):
            shapes = f"{'x'.join(map(str, inputs.shape))} and {'x'.join(map(str, weight.shape))}"
            raise HeedfulError(
                f"x and w_{name} cannot be multiplied: {shapes}",
                hint="the columns of the first are the rows of the second",
            )
    if w_query.size(1) != w_key.size(1):
        raise HeedfulError(
            f"queries have {w_query.size(1)} channels and keys {w_key.size(1)}",
            hint="w_query and w_key need the same number of columns",
        )
    return HeadStep(
        Projection(x, w_query), Projection(key_input, w_key), Projection(key_input, w_value), attention_mask, scale
    )


@dataclass(frozen=True, slots=True)
class MultiHeadStep:
    """All heads concatenated, times W^O, then the residual sum and its norm."""

    heads: tuple[HeadStep, ...]
    w_output: Tensor | None = None  # (heads x channels, width)
    b_output: Tensor | None = None
    residual_input: Tensor | None = None
    """What the output is added to: X for post-norm, X before its norm for pre-norm."""
    norm: Norm | None = None
    """The norm after the sum (post-norm), if any."""
    has_residual: bool = True
    """False for a model without residual connections."""

    @property
    def concat(self) -> Tensor:
        """(queries, heads x channels)."""
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
        if self.residual_input is None or not self.has_residual:
            return self.projected
        return self.residual_input + self.projected

    @property
    def output(self) -> Tensor:
        """The residual sum, normalized if the model is post-norm."""
        return self.residual if self.norm is None else self.norm(self.residual)


def layer_norm(x: Tensor, epsilon: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) of each row, as ``nn.LayerNorm`` without gain and bias.

    >>> layer_norm(torch.tensor([[1.0, 2, 3, 4]], dtype=torch.float64))
    tensor([[-1.3416, -0.4472,  0.4472,  1.3416]], dtype=torch.float64)
    """
    return nn.functional.layer_norm(x, x.shape[-1:], eps=epsilon)


def build_model_attention(
    model_folder: ModelFolder, activations: Activations, kind: AttentionKind, layer: int
) -> MultiHeadStep:
    """The attention of a layer (from 0) of a trained model, with the values of this pass."""
    check_layer_and_head(model_folder, kind, layer)
    module, residual = get_sublayer(model_folder.model, kind, layer)
    stack = "encoder" if kind == "encoder" else "decoder"
    residual_name = f"{stack}.embedding" if layer == 0 else f"{stack}.{layer - 1}.feed_forward.residual"
    if kind == "cross":
        residual_name = f"decoder.{layer}.self.residual"
    norm = None if isinstance(residual, PreNorm) else copy.deepcopy(residual.norm).cpu().double().requires_grad_(False)
    divisor = None if model_folder.config.model.scale_attention else 1.0
    x = activations.tensors[f"{attention_name(kind, layer)}.x"].double()
    memory = activations.tensors["encoder.memory"].double() if kind == "cross" else x
    attention_mask = activations.attention_mask(kind, layer)
    tree_tensors = activations.tensors.get("encoder.tree") if kind == "encoder" else None
    tree_relations = None if tree_tensors is None else tree_tensors[0]
    weight = module.input.weight.detach().cpu().double().T.chunk(3, dim=1)  # W^Q, W^K, W^V: (width, width)
    bias = module.input.bias
    biases = [None] * 3 if bias is None else bias.detach().cpu().double().chunk(3)
    channels = module.d_model // module.heads
    heads = []
    for head in range(module.heads):
        head_channels = slice(head * channels, (head + 1) * channels)
        query, key, value = (
            Projection(inputs, w[:, head_channels], None if b is None else b[head_channels])
            for inputs, w, b in zip((x, memory, memory), weight, biases, strict=True)
        )
        heads.append(HeadStep(query, key, value, attention_mask, divisor, module, head, tree_relations))
    output_bias = None if module.output.bias is None else module.output.bias.detach().cpu().double()
    w_output = module.output.weight.detach().cpu().double().T
    has_residual = model_folder.config.model.residuals
    residual_input = activations.tensors[residual_name].double()
    return MultiHeadStep(tuple(heads), w_output, output_bias, residual_input, norm, has_residual)
