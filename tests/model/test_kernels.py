"""The quick ways to compute equation 1, against the formula as written."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from heedful.model import kernels
from heedful.model.attention import attention, look_ahead_mask
from heedful.model.kernels import quick_attention, short_attention

SENTENCES, HEADS, CHANNELS = 3, 2, 5


def inputs(queries: int, keys: int, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(queries)
    shapes = [(SENTENCES, HEADS, length, CHANNELS) for length in (queries, keys, keys)]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def some_hidden(keys: int) -> Tensor:
    visible = torch.ones(SENTENCES, 1, 1, keys, dtype=torch.bool)
    visible[1, ..., -1] = visible[2, ..., 2:] = False
    return visible


def result_and_gradients(way: Callable[..., Tensor], parts: list[Tensor]) -> list[Tensor]:
    result = way(*parts)
    torch.manual_seed(9)
    return [result, *torch.autograd.grad(result, parts, torch.randn(result.shape).to(result.dtype))]


@pytest.mark.parametrize("way", [quick_attention, short_attention])
@pytest.mark.parametrize("queries", [1, 6])
@pytest.mark.parametrize("mask", ["none", "padding", "causal"])
def test_equal_to_the_formula(way: Callable[..., Tensor], queries: int, mask: str) -> None:
    """Float64, to 1e-9, gradients too."""
    keys = queries if mask == "causal" else 6
    visible = {"none": None, "padding": some_hidden(keys), "causal": look_ahead_mask(queries)}[mask]
    parts = inputs(queries, keys, torch.float64)
    expected = result_and_gradients(lambda *qkv: attention(*qkv, visible), parts)
    if mask == "causal":
        found = result_and_gradients(lambda *qkv: way(*qkv, causal=True), parts)
    else:
        found = result_and_gradients(lambda *qkv: way(*qkv, visible), parts)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_half_precision_on_cpus(short: bool, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever way it takes: as near as half precision is."""
    monkeypatch.setattr(kernels, "SHORT", 36 if short else 35)
    parts = inputs(6, 6, torch.bfloat16)
    visible = None if causal else some_hidden(6)
    single = [part.detach().float().requires_grad_() for part in parts]
    mask = look_ahead_mask(6) if causal else visible
    expected = result_and_gradients(lambda *qkv: attention(*qkv, mask), single)
    found = result_and_gradients(lambda *qkv: quick_attention(*qkv, visible, causal=causal), parts)
    assert all(part.dtype == torch.bfloat16 for part in found)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.float(), theirs, rtol=0.05, atol=0.05)


def test_dropout_of_weights_in_half_precision_drops() -> None:
    torch.manual_seed(1)
    query, key, _ = inputs(6, 6, torch.bfloat16)
    ones = torch.ones_like(key)
    whole = quick_attention(query, key, ones)
    torch.testing.assert_close(whole.float(), torch.ones(whole.shape), rtol=0.02, atol=0.02)
    dropped = quick_attention(query, key, ones, dropout=0.5)
    assert float((dropped - 1).abs().mean().detach()) > 0.1


@pytest.mark.parametrize(("dtype", "short"), [(torch.bfloat16, True), (torch.float32, False)])
def test_who_goes_the_short_way(dtype: torch.dtype, short: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[torch.Size] = []

    def spy(query: Tensor, *rest: Tensor, **named: bool) -> Tensor:
        taken.append(query.shape)
        return short_attention(query, *rest, **named)

    monkeypatch.setattr(kernels, "short_attention", spy)
    quick_attention(*inputs(6, 6, dtype))
    assert bool(taken) == short
    monkeypatch.setattr(kernels, "SHORT", 35)
    quick_attention(*inputs(6, 6, dtype))
    assert len(taken) == short


def test_long_sentences_in_half_precision_are_computed_in_single(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also inside autocast, which would turn them back."""
    monkeypatch.setattr(kernels, "SHORT", 35)
    parts = inputs(6, 6, torch.bfloat16)
    exact = attention(*(part.float() for part in parts)).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(quick_attention(*parts), exact)
