"""Relative positions against slow references written from the papers' formulas."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from heedful.models.attention import MultiHeadAttention, causal_mask, join_heads, split_heads
from heedful.models.relative_positions import (
    AlibiAttention,
    RelativeAttention,
    RotaryAttention,
    alibi_slopes,
    relative_distances,
    rotate,
)

D_MODEL, HEADS, CHANNELS = 12, 3, 4


def new(kind: type[MultiHeadAttention], **options: Any) -> Any:
    torch.manual_seed(1)
    module = kind(D_MODEL, HEADS, **options).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return module


def project_without_positions(module: MultiHeadAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values before any position: (heads, length, channels) each."""
    query, key, value = (split_heads(third, HEADS)[0] for third in module.input(x).chunk(3, dim=-1))
    return query, key, value


def reference_rotation(vector: Tensor, position: int) -> Tensor:
    """Equation 15 of RoFormer: a block-diagonal matrix of rotations."""
    matrix = torch.zeros(CHANNELS, CHANNELS, dtype=torch.float64)
    for i in range(CHANNELS // 2):
        angle = position * 10000 ** (-2 * i / CHANNELS)
        rows = slice(2 * i, 2 * i + 2)
        matrix[rows, rows] = torch.tensor(
            [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64
        )
    return matrix @ vector


def reference(module: MultiHeadAttention, x: Tensor, causal: bool) -> Tensor:
    """Attention computed for each head and pair of tokens in a loop."""
    query, key, value = project_without_positions(module, x)
    length = x.size(1)
    heads = []
    for head in range(HEADS):
        rows = []
        for i in range(length):
            key_positions = range(i + 1) if causal else range(length)
            scores, values = [], []
            for j in key_positions:
                q, k, v = query[head, i], key[head, j], value[head, j]
                score = q @ k / math.sqrt(CHANNELS)
                if isinstance(module, RotaryAttention):
                    score = reference_rotation(q, i) @ reference_rotation(k, j) / math.sqrt(CHANNELS)
                if isinstance(module, RelativeAttention):  # equations 3 and 4 of Shaw et al.
                    row = max(-module.max_distance, min(module.max_distance, j - i)) + module.max_distance
                    score = q @ (k + module.distance_keys[row]) / math.sqrt(CHANNELS)
                    v = v + module.distance_values[row]
                if isinstance(module, AlibiAttention):
                    score = score - alibi_slopes(HEADS)[head] * abs(i - j)
                scores.append(score)
                values.append(v)
            weights = torch.stack(scores).softmax(0)
            rows.append((weights[:, None] * torch.stack(values)).sum(0))
        heads.append(torch.stack(rows))
    return module.output(join_heads(torch.stack(heads)[None]))


KINDS = [(RotaryAttention, {}), (RelativeAttention, {"max_distance": 2}), (AlibiAttention, {})]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_relative_attention_matches_formula(
    kind: type[MultiHeadAttention], options: dict[str, Any], causal: bool
) -> None:
    module = new(kind, **options)
    x = torch.randn(1, 7, D_MODEL, dtype=torch.float64, requires_grad=True)
    expected, actual = reference(module, x, causal), module(x, causal=causal)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)
    inputs = [x, *module.parameters()]
    direction = torch.randn_like(expected)
    for ours, theirs in zip(
        torch.autograd.grad((actual * direction).sum(), inputs),
        torch.autograd.grad((expected * direction).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_weights_match_attention_output(kind: type[MultiHeadAttention], options: dict[str, Any]) -> None:
    """The reported weights, times the values (and their distance vectors), are the outputs of the heads."""
    module, observed = new(kind, **options), {}
    x = torch.randn(2, 6, D_MODEL, dtype=torch.float64)
    module(x, causal=True, observer=observed.__setitem__)
    weights = observed["weights"]
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    assert not weights[..., ~causal_mask(6)].any()
    actual = weights @ observed["v"]
    if isinstance(module, RelativeAttention):
        distances = relative_distances(6, 6).clamp(-2, 2) + 2
        actual = actual + (weights[..., None] * module.distance_values[distances]).sum(-2)
    torch.testing.assert_close(actual, observed["heads"], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_relative_attention_bfloat16_is_close(kind: type[MultiHeadAttention], options: dict[str, Any]) -> None:
    module = new(kind, **options).float()
    x = torch.randn(2, 9, D_MODEL)
    expected = module(x, causal=True)
    with torch.autocast("cpu", torch.bfloat16):
        actual = module(x, causal=True)
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.float(), expected, rtol=0.05, atol=0.05)


def test_rotate_preserves_norms_and_relative_products() -> None:
    torch.manual_seed(2)
    query, key = torch.randn(2, CHANNELS, dtype=torch.float64)
    row = torch.stack([query] * 300)
    torch.testing.assert_close(rotate(row).norm(dim=-1), row.norm(dim=-1))
    near = rotate(query[None], 5) @ rotate(key[None], 3).T
    far = rotate(query[None], 905) @ rotate(key[None], 903).T
    torch.testing.assert_close(near, far, rtol=0, atol=1e-10)


def test_rotate_with_offset_matches_full_text() -> None:
    x = torch.randn(400, CHANNELS, dtype=torch.float64)
    expected = rotate(x)
    for cut in (1, 255, 256, 257):
        torch.testing.assert_close(torch.cat([rotate(x[:cut]), rotate(x[cut:], cut)]), expected, rtol=0, atol=1e-12)


def test_alibi_slopes_match_the_paper() -> None:
    assert alibi_slopes(8) == [2.0**-n for n in range(1, 9)]
    assert alibi_slopes(12)[:8] == alibi_slopes(8)
    assert alibi_slopes(12)[8:] == alibi_slopes(16)[0:8:2]
    assert len(alibi_slopes(7)) == 7
