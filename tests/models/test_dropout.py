"""Dropout: the rate, the mean, and no effect in evaluation."""

import pytest
import torch

from heedful.models.sublayers import INT16_LEVELS, Dropout, random_int16

COUNT = 200_003


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.3, 0.5, 0.9])
def test_dropout_drops_at_rate_p(rate: float) -> None:
    torch.manual_seed(1)
    dropped = int((Dropout(rate)(torch.ones(COUNT)) == 0).sum())
    sigma = (COUNT * rate * (1 - rate)) ** 0.5
    assert abs(dropped - COUNT * rate) < 5 * sigma


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_preserves_mean_and_scales(rate: float) -> None:
    torch.manual_seed(2)
    result = Dropout(rate)(torch.ones(COUNT, dtype=torch.float64))
    sigma = (rate / (1 - rate) / COUNT) ** 0.5
    assert abs(float(result.mean()) - 1) < 5 * sigma
    assert result[result != 0].unique().tolist() == pytest.approx([1 / (1 - rate)], abs=1 / INT16_LEVELS)


def test_dropout_adjacent_elements_are_independent() -> None:
    """Four elements share one 64-bit draw and must be independent."""
    torch.manual_seed(3)
    nonzero = (Dropout(0.5)(torch.ones(COUNT)) != 0).double() - 0.5
    for distance in range(1, 9):
        correlation = float((nonzero[distance:] * nonzero[:-distance]).mean()) * 4
        assert abs(correlation) < 5 / COUNT**0.5


def test_random_int16_is_uniform() -> None:
    torch.manual_seed(4)
    levels = random_int16(torch.Size([1_000_003]))
    assert levels.dtype == torch.int16
    assert int(levels.min()) < -32_700
    assert int(levels.max()) > 32_700
    counts = torch.histc(levels.float(), bins=16, min=-32_768, max=32_768)
    assert float((counts - 1_000_003 / 16).abs().max()) < 5 * (1_000_003 / 16) ** 0.5


def test_dropout_eval_or_zero_rate_is_identity() -> None:
    x = torch.randn(3, 5, 7)
    assert Dropout(0.3).eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_dropout_gradient_is_the_applied_mask() -> None:
    torch.manual_seed(5)
    x = torch.randn(3, 5, 7, dtype=torch.float64, requires_grad=True)
    result = Dropout(0.3)(x)
    result.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad * x, result, rtol=0, atol=1e-15)
    assert set((x.grad == 0).unique().tolist()) == {True, False}


def test_dropout_same_seed_same_mask() -> None:
    layer, x = Dropout(0.3), torch.ones(3, 5, 7)

    def apply_dropout(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return layer(x)

    assert torch.equal(apply_dropout(6), apply_dropout(6))
    assert not torch.equal(apply_dropout(6), apply_dropout(7))
    torch.manual_seed(6)
    assert not torch.equal(layer(x), layer(x))


@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 7), (2, 3, 11)])
def test_dropout_supports_any_shape(shape: tuple[int, ...]) -> None:
    assert Dropout(0.5)(torch.ones(shape)).shape == shape
