"""The sinusoids of section 3.5 by hand, at any position; learned positions up to their limit."""

import math

import pytest
import torch

from heedful.errors import HeedfulError
from heedful.models.embeddings import LearnedPositions, SinusoidalPositions, sinusoids


def test_sinusoids_by_hand() -> None:
    # d_model 4: the first pair rotates by 1 per position, the second by 1 / 100.
    expected = [
        [0.0, 1.0, 0.0, 1.0],
        [0.841471, 0.540302, 0.0099998, 0.99995],
        [0.909297, -0.416147, 0.0199987, 0.99980],
    ]
    torch.testing.assert_close(sinusoids(3, 4), torch.tensor(expected), rtol=0, atol=1e-6)


def test_sinusoids_match_formula() -> None:
    table = sinusoids(7, 10)
    for position in range(7):
        for i in range(5):
            angle = position / 10000 ** (2 * i / 10)
            assert table[position, 2 * i] == pytest.approx(math.sin(angle), abs=1e-7)
            assert table[position, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-7)


def test_sinusoids_shift_is_a_rotation() -> None:
    """Section 3.5: PE(pos + k) is a linear function of PE(pos), the same for every pos."""
    pairs = sinusoids(31, 6).double().view(31, 3, 2)
    rate = 10000 ** (torch.arange(0, 6, 2).double() / 6)
    sine, cosine = (5 / rate).sin(), (5 / rate).cos()
    shifted = torch.stack(
        [pairs[:-5, :, 0] * cosine + pairs[:-5, :, 1] * sine, pairs[:-5, :, 1] * cosine - pairs[:-5, :, 0] * sine],
        dim=-1,
    )
    torch.testing.assert_close(pairs[5:], shifted, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("first", "length"), [(0, 3), (2, 5), (8, 3), (9, 7), (11, 2), (4999, 3)])
def test_sinusoidal_positions_have_no_maximum_length(first: int, length: int) -> None:
    positions = SinusoidalPositions(6, cached_length=11)
    assert torch.equal(positions(length, first), sinusoids(5003, 6)[first : first + length])


def test_sinusoidal_positions_are_not_stored() -> None:
    positions = SinusoidalPositions(6)
    assert not list(positions.parameters())
    assert not positions.state_dict()


def test_sinusoidal_positions_follow_the_dtype() -> None:
    positions = SinusoidalPositions(6, cached_length=5).double()
    assert positions(3).dtype == positions(3, 4).dtype == torch.float64


def test_learned_positions_too_long_raises() -> None:
    torch.manual_seed(2)
    positions = LearnedPositions(6, max_length=11)
    assert torch.equal(positions(4, 7), positions.table[7:11])
    assert positions.table.requires_grad
    with pytest.raises(HeedfulError, match="12 tokens exceed the 11 learned positions") as error:
        positions(5, 7)
    assert "11 learned positions" in str(error.value)
    assert "model.max_length" in error.value.hint
