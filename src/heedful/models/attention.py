"""Section 3.2: scaled dot-product attention, its heads, and the kernels that compute it fast.

Masks are boolean everywhere: True = may attend. ``attention`` is equation 1 as written; tests compare the
kernels with it.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.models.base import Observer, observe


def attention_scores(query: Tensor, key: Tensor) -> Tensor:
    """Q K^T: (..., queries, keys)."""
    return query @ key.transpose(-2, -1)


def mask_scores(scores: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Set masked scores to -inf, so that softmax gives them exactly zero weight."""
    return scores if attention_mask is None else scores.masked_fill(~attention_mask, -torch.inf)


def attention_weights(
    query: Tensor,
    key: Tensor,
    attention_mask: Tensor | None = None,
    scale: float | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """softmax(Q K^T / sqrt(d_k) + bias), equation 1 without bias; ``scale`` replaces 1 / sqrt(d_k)."""
    scores = attention_scores(query, key)
    scaled = scores / math.sqrt(query.size(-1)) if scale is None else scores * scale
    return mask_scores(scaled if bias is None else scaled + bias, attention_mask).softmax(dim=-1)


def attention(query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """Equation 1 as written: the reference for the fast kernels."""
    return attention_weights(query, key, attention_mask) @ value


def causal_mask(queries: int, keys: int | None = None, device: torch.device | None = None) -> Tensor:
    """Position i may attend to positions j <= i (section 3.2.3): (queries, keys), square by default.

    >>> causal_mask(3).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    return torch.ones(queries, queries if keys is None else keys, dtype=torch.bool, device=device).tril()


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(batch, length, d_model) -> (batch, heads, length, d_k)."""
    batch, length, d_model = x.shape
    return x.view(batch, length, heads, d_model // heads).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(batch, heads, length, d_k) -> (batch, length, d_model)."""
    return x.transpose(1, 2).flatten(2)


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_h) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V), section 3.2.2.

    W^Q, W^K and W^V of all heads are the three thirds of one matrix, so self-attention needs one product.
    Positions (relative_positions.py) override ``encode_positions`` or ``score_bias``; other variants override
    ``attend`` and ``weights``.
    """

    def __init__(
        self, d_model: int, heads: int, *, dropout: float = 0.0, bias: bool = True, scaled: bool = True
    ) -> None:
        super().__init__()
        self.d_model, self.heads, self.dropout = d_model, heads, dropout
        self.scale = (d_model // heads) ** -0.5 if scaled else 1.0
        self.input = nn.Linear(d_model, 3 * d_model, bias=bias)
        self.output = nn.Linear(d_model, d_model, bias=bias)
        # Xavier over the joint matrix: the initial attention is flatter than with Xavier per third, and the
        # model learns much sooner (docs/log.md).
        nn.init.xavier_uniform_(self.input.weight)
        nn.init.xavier_uniform_(self.output.weight)
        if bias:
            nn.init.zeros_(self.input.bias)
            nn.init.zeros_(self.output.bias)

    def project(self, x: Tensor, offset: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value for self-attention: each (batch, heads, length, d_k).

        ``offset`` is the position of the first token.
        """
        query, key, value = (split_heads(third, self.heads) for third in self.input(x).chunk(3, dim=-1))
        return self.encode_positions(query, offset), self.encode_positions(key, offset), value

    def encode_positions(self, x: Tensor, offset: int = 0) -> Tensor:
        """Queries or keys of self-attention with their positions, (..., length, d_k); unchanged by default."""
        return x

    def score_bias(self, query: Tensor, key: Tensor) -> Tensor | None:
        """What is added to the scaled scores: (heads, queries, keys); None by default."""
        return None

    def query(self, x: Tensor) -> Tensor:
        """Query for cross-attention: (batch, heads, length, d_k)."""
        return split_heads(self._project_slice(x, 0, self.d_model), self.heads)

    def key_value(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Key and value of the memory, computed once per sentence."""
        key, value = self._project_slice(memory, self.d_model, 3 * self.d_model).chunk(2, dim=-1)
        return split_heads(key, self.heads), split_heads(value, self.heads)

    def attend_and_project(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        attention_mask: Tensor | None = None,
        causal: bool = False,
        observer: Observer | None = None,
    ) -> Tensor:
        """Attend, concatenate the heads, multiply by W^O; ``causal`` means a causal mask."""
        if observer is not None:
            mask = causal_mask(query.size(-2), device=query.device) if causal else attention_mask
            observer("q", query)
            observer("k", key)
            observer("v", value)
            pattern = self.pattern(key.size(-2))
            if pattern is not None:
                observer("pattern", pattern[None])
            observer("weights", self.weights(query, key, mask))
        heads = self.attend(query, key, value, attention_mask, causal=causal)
        result: Tensor = self.output(join_heads(heads))
        if observer is not None:
            observer("heads", heads)
            observer("output", result)
        return result

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *, causal: bool
    ) -> Tensor:
        """Weighted sum of the values per head: (batch, heads, queries, d_k).

        With fewer queries than keys (incremental decoding), the queries are the last positions.
        """
        return fast_attention(
            query,
            key,
            value,
            attention_mask,
            causal=causal,
            dropout=self.active_dropout,
            scale=self.scale,
            bias=self.score_bias(query, key),
        )

    def weights(self, query: Tensor, key: Tensor, attention_mask: Tensor | None) -> Tensor:
        """The full matrix of attention weights, for inspection: (batch, heads, queries, keys)."""
        return attention_weights(query, key, attention_mask, self.scale, self.score_bias(query, key))

    def pattern(self, length: int) -> Tensor | None:
        """Which positions a sparse attention lets attend, masks aside: (length, length); None for all."""
        return None

    @property
    def active_dropout(self) -> float:
        """Dropout probability of the attention weights; 0 outside training."""
        return self.dropout if self.training else 0.0

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        causal: bool = False,
        observer: Observer | None = None,
    ) -> Tensor:
        """Attend from ``x`` to ``memory`` (cross-attention), or within ``x`` if memory is None."""
        observe(observer, "x", x)
        if memory is None:
            query, key, value = self.project(x)
        else:
            query, (key, value) = self.query(x), self.key_value(memory)
        return self.attend_and_project(
            query, key, value, attention_mask=attention_mask, causal=causal, observer=observer
        )

    def _project_slice(self, x: Tensor, start: int, stop: int) -> Tensor:
        bias = None if self.input.bias is None else self.input.bias[start:stop]
        return F.linear(x, self.input.weight[start:stop], bias)


# ---- Kernels

MAX_EAGER_WEIGHTS = 128 * 128
"""Up to this many weights per head, storing them is faster than recomputing them for the gradient."""

HALF_PRECISION = (torch.bfloat16, torch.float16)


def fast_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    scale: float | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Equation 1; ``causal`` means a causal mask, a constant ``bias`` is added to the scaled scores.

    PyTorch's SDPA kernel never stores all weights, so its memory is linear in the length. On CPUs, its
    backward pass is five times slower in half precision than in single precision; there, short sentences
    use ``eager_attention`` and long ones single precision.
    """
    scale = query.size(-1) ** -0.5 if scale is None else scale
    if query.device.type == "cpu" and query.dtype in HALF_PRECISION:
        with torch.autocast("cpu", enabled=False):
            if query.size(-2) * key.size(-2) <= MAX_EAGER_WEIGHTS and not dropout:
                return eager_attention(query, key, value, attention_mask, causal=causal, scale=scale, bias=bias)
            inputs = query.float(), key.float(), value.float(), attention_mask
            return fast_attention(*inputs, causal=causal, dropout=dropout, scale=scale, bias=bias).to(query.dtype)
    if bias is not None:
        allowed = causal_mask(query.size(-2), key.size(-2), query.device) if causal else attention_mask
        attention_mask, causal = mask_scores(bias.to(query.dtype), allowed), False
    return F.scaled_dot_product_attention(query, key, value, attention_mask, dropout, causal, scale=scale)


def eager_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Equation 1 with the weights stored for the gradient; every query must attend to some key."""
    if causal:
        assert attention_mask is None, "as in SDPA: either a mask or causal"
        attention_mask = causal_mask(query.size(-2), key.size(-2), query.device)
    masked_positions = None if attention_mask is None else ~attention_mask
    scale = query.size(-1) ** -0.5 if scale is None else scale
    heads: Tensor = _EagerAttention.apply(query, key, value, masked_positions, scale, bias)  # type: ignore[no-untyped-call]
    return heads


class _EagerAttention(torch.autograd.Function):
    """Few large operations instead of many small ones: one batched product for all heads and sentences."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        masked_positions: Tensor | None,
        scale: float,
        bias: Tensor | None,
    ) -> Tensor:
        batch, heads, length, channels = query.shape
        q, k, v = (x.reshape(batch * heads, -1, channels) for x in (query, key, value))
        ctx.scale = scale
        scores = torch.baddbmm(q.new_empty(()), q, k.mT, beta=0, alpha=scale)
        if bias is not None:
            scores.view(batch, heads, length, -1).add_(bias)
        if masked_positions is not None:
            scores.view(batch, heads, length, -1).masked_fill_(masked_positions, -torch.inf)
        weights = scores.softmax(-1)
        ctx.save_for_backward(q, k, v, weights)
        return torch.bmm(weights, v).view(batch, heads, length, channels)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights = ctx.saved_tensors
        batch, heads, _, channels = grad_outputs[0].shape
        grad_output = grad_outputs[0].reshape(batch * heads, -1, channels)
        grad_weights = torch.bmm(grad_output, v.mT)
        grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
        unused = q.new_empty(())
        grad_query = torch.baddbmm(unused, grad_scores, k, beta=0, alpha=ctx.scale)
        grad_key = torch.baddbmm(unused, grad_scores.mT, q, beta=0, alpha=ctx.scale)
        grad_value = torch.bmm(weights.mT, grad_output)
        shape = batch, heads, -1, channels
        return grad_query.view(shape), grad_key.view(shape), grad_value.view(shape), None, None, None
