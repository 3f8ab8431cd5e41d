"""The fast kernels against equation 1 as written."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from heedful.models import attention as attention_module
from heedful.models.attention import attention, causal_mask, eager_attention, fast_attention

SENTENCES, HEADS, CHANNELS = 3, 2, 5


def inputs(queries: int, keys: int, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(queries)
    shapes = [(SENTENCES, HEADS, length, CHANNELS) for length in (queries, keys, keys)]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def padding_mask(keys: int) -> Tensor:
    attention_mask = torch.ones(SENTENCES, 1, 1, keys, dtype=torch.bool)
    attention_mask[1, ..., -1] = attention_mask[2, ..., 2:] = False
    return attention_mask


def compute_with_gradients(kernel: Callable[..., Tensor], tensors: list[Tensor]) -> list[Tensor]:
    result = kernel(*tensors)
    torch.manual_seed(9)
    return [result, *torch.autograd.grad(result, tensors, torch.randn(result.shape).to(result.dtype))]


@pytest.mark.parametrize("kernel", [fast_attention, eager_attention])
@pytest.mark.parametrize("queries", [1, 6])
@pytest.mark.parametrize("mask", ["none", "padding", "causal"])
def test_attention_kernels_match_formula(kernel: Callable[..., Tensor], queries: int, mask: str) -> None:
    """In float64 to 1e-9, including gradients."""
    keys = queries if mask == "causal" else 6
    attention_mask = {"none": None, "padding": padding_mask(keys), "causal": causal_mask(queries)}[mask]
    tensors = inputs(queries, keys, torch.float64)
    expected = compute_with_gradients(lambda *qkv: attention(*qkv, attention_mask), tensors)
    if mask == "causal":
        actual = compute_with_gradients(lambda *qkv: kernel(*qkv, causal=True), tensors)
    else:
        actual = compute_with_gradients(lambda *qkv: kernel(*qkv, attention_mask), tensors)
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_kernels_half_precision_matches_single(
    short: bool, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kernel is as accurate as half precision allows."""
    monkeypatch.setattr(attention_module, "MAX_EAGER_WEIGHTS", 36 if short else 35)
    tensors = inputs(6, 6, torch.bfloat16)
    attention_mask = None if causal else padding_mask(6)
    single = [tensor.detach().float().requires_grad_() for tensor in tensors]
    mask = causal_mask(6) if causal else attention_mask
    expected = compute_with_gradients(lambda *qkv: attention(*qkv, mask), single)
    actual = compute_with_gradients(lambda *qkv: fast_attention(*qkv, attention_mask, causal=causal), tensors)
    assert all(tensor.dtype == torch.bfloat16 for tensor in actual)
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours.float(), theirs, rtol=0.05, atol=0.05)


def test_attention_dropout_half_precision_drops_weights() -> None:
    torch.manual_seed(1)
    query, key, _ = inputs(6, 6, torch.bfloat16)
    ones = torch.ones_like(key)
    without_dropout = fast_attention(query, key, ones)
    torch.testing.assert_close(without_dropout.float(), torch.ones(without_dropout.shape), rtol=0.02, atol=0.02)
    dropped = fast_attention(query, key, ones, dropout=0.5)
    assert float((dropped - 1).abs().mean().detach()) > 0.1


@pytest.mark.parametrize(("dtype", "short"), [(torch.bfloat16, True), (torch.float32, False)])
def test_fast_attention_uses_eager_kernel_for_short_half_precision(
    dtype: torch.dtype, short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    query_shapes: list[torch.Size] = []

    def record_query_shape(query: Tensor, *tensors: Tensor, **options: bool) -> Tensor:
        query_shapes.append(query.shape)
        return eager_attention(query, *tensors, **options)

    monkeypatch.setattr(attention_module, "eager_attention", record_query_shape)
    fast_attention(*inputs(6, 6, dtype))
    assert bool(query_shapes) == short
    monkeypatch.setattr(attention_module, "MAX_EAGER_WEIGHTS", 35)
    fast_attention(*inputs(6, 6, dtype))
    assert len(query_shapes) == short


def test_fast_attention_long_half_precision_computes_in_single(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also inside autocast, which would convert them back."""
    monkeypatch.setattr(attention_module, "MAX_EAGER_WEIGHTS", 35)
    tensors = inputs(6, 6, torch.bfloat16)
    exact = attention(*(tensor.float() for tensor in tensors)).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(fast_attention(*tensors), exact)
