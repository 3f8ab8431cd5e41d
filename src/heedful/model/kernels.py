"""Equation 1, computed quickly: which way is quickest depends on the device, the precision and the lengths.

The formula itself, that these are tested against, is ``attention`` in attention.py.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SHORT = 128 * 128
"""Weights of a head up to which they are all held: quicker than computing them again for the gradient."""
HALF = (torch.bfloat16, torch.float16)


def quick_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    scale: float | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """softmax(query . key / sqrt(channels)) value; ``causal`` stands for a square look-ahead mask.

    ``scale`` stands for 1 / sqrt(channels) if it is given. A constant ``bias`` is added to the scaled scores.

    PyTorch's kernel never holds all weights at once, so its memory grows with the length and not with its
    square. On CPUs it is slow in half precision, five times slower than in single precision when it comes to
    gradients; there short sentences go another way, and long ones in single precision.
    """
    scale = query.size(-1) ** -0.5 if scale is None else scale
    if query.device.type == "cpu" and query.dtype in HALF:
        with torch.autocast("cpu", enabled=False):
            if query.size(-2) * key.size(-2) <= SHORT and not dropout:
                return short_attention(query, key, value, visible, causal=causal, scale=scale, bias=bias)
            single = query.float(), key.float(), value.float()
            return _fused(*single, visible, causal, dropout, scale, bias).to(query.dtype)
    return _fused(query, key, value, visible, causal, dropout, scale, bias)


def short_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """The same with the weights kept for the gradient; every query must see something."""
    if causal:
        assert visible is None, "as in PyTorch's kernel: one mask or the other"
        visible = _earlier(query, key)
    hidden = None if visible is None else ~visible
    scale = query.size(-1) ** -0.5 if scale is None else scale
    heads: Tensor = _ShortAttention.apply(query, key, value, hidden, scale, bias)  # type: ignore[no-untyped-call]
    return heads


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor | None,
    causal: bool,
    dropout: float,
    scale: float,
    bias: Tensor | None,
) -> Tensor:
    mask = visible
    if bias is not None:
        shown = _earlier(query, key) if causal else visible
        mask = bias.to(query.dtype)
        mask = mask if shown is None else mask.masked_fill(~shown, -torch.inf)
        causal = False
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale
    )


def _earlier(query: Tensor, key: Tensor) -> Tensor:
    return torch.ones(query.size(-2), key.size(-2), dtype=torch.bool, device=query.device).tril()


class _ShortAttention(torch.autograd.Function):
    """Few large operations instead of many small ones: all heads of all sentences are one product."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        hidden: Tensor | None,
        scale: float,
        bias: Tensor | None,
    ) -> Tensor:
        batch, heads, length, channels = query.shape
        q, k, v = (x.reshape(batch * heads, -1, channels) for x in (query, key, value))
        ctx.scale = scale
        scores = torch.baddbmm(q.new_empty(()), q, k.mT, beta=0, alpha=scale)
        if bias is not None:
            scores.view(batch, heads, length, -1).add_(bias)
        if hidden is not None:
            scores.view(batch, heads, length, -1).masked_fill_(hidden, -torch.inf)
        weights = scores.softmax(-1)
        ctx.save_for_backward(q, k, v, weights)
        return torch.bmm(weights, v).view(batch, heads, length, channels)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights = ctx.saved_tensors
        batch, heads, _, channels = gradients[0].shape
        gradient = gradients[0].reshape(batch * heads, -1, channels)
        of_weights = torch.bmm(gradient, v.mT)
        of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
        nothing = q.new_empty(())
        of_query = torch.baddbmm(nothing, of_scores, k, beta=0, alpha=ctx.scale)
        of_key = torch.baddbmm(nothing, of_scores.mT, q, beta=0, alpha=ctx.scale)
        of_value = torch.bmm(weights.mT, gradient)
        shape = batch, heads, -1, channels
        return of_query.view(shape), of_key.view(shape), of_value.view(shape), None, None, None
