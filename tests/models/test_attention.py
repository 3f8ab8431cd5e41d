"""Equation 1 by hand, and multi-head attention against PyTorch."""

import pytest
import torch
from torch import Tensor, nn

from heedful.models.attention import (
    MultiHeadAttention,
    attention,
    attention_weights,
    causal_mask,
    join_heads,
    split_heads,
)
from tests.models.pytorch_weights import attention_as_pytorch


def close(ours: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(ours, expected, rtol=0, atol=tolerance)


def randomize_parameters(module: MultiHeadAttention) -> MultiHeadAttention:
    """No parameter is zero or one, so that a missing bias is detected."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module


# ---- by hand


def test_attention_weights_of_thinking_machines_example() -> None:
    query = torch.zeros(1, 64, dtype=torch.float64)
    key = torch.zeros(2, 64, dtype=torch.float64)
    query[0, :2] = torch.tensor([8.0, 4.0])
    key[:, :2] = torch.tensor([[10.0, 8.0], [10.0, 4.0]])
    assert (query @ key.T).tolist() == [[112.0, 96.0]]
    close(attention_weights(query, key), torch.tensor([[0.880797, 0.119203]]).double(), 5e-7)


def test_attention_of_three_words_by_hand() -> None:
    query = torch.tensor([[1.0, 0, 2], [2, 2, 2], [2, 1, 3]]).double()
    key = torch.tensor([[0.0, 1, 1], [4, 4, 0], [2, 3, 1]]).double()
    value = torch.tensor([[1.0, 2, 3], [2, 8, 0], [2, 6, 3]]).double()
    assert (query @ key.T).tolist() == [[2, 4, 4], [4, 16, 12], [4, 12, 10]]
    # Scores 2, 4, 4 over sqrt(3): e^0 and twice e^1.154701 = 3.173075, of a total of 7.346150.
    first = torch.tensor([0.136126, 0.431937, 0.431937]).double()
    close(attention_weights(query, key)[0], first, 5e-7)
    close(attention(query, key, value)[0], first @ value, 5e-6)
    # The exercise omits the scaling; a query sqrt(3) times as long cancels it.
    unscaled = attention(query * 3**0.5, key, value)
    printed = [[1.9366, 6.6831, 1.5951], [2.0000, 7.9640, 0.0540], [1.9997, 7.7599, 0.3584]]
    close(unscaled, torch.tensor(printed).double(), 5e-5)


def test_causal_mask_gives_triangular_weights() -> None:
    scores = torch.tensor(
        [[0.1, 0.9, 0.9, 0.9], [0.3, 0.8, 0.9, 0.9], [0.3, 0.5, 0.8, 0.9], [0.2, 0.4, 0.4, 0.4]]
    ).double()
    # With unit keys of 4 channels the scores are query / 2.
    weights = attention_weights(2 * scores, torch.eye(4).double(), causal_mask(4))
    printed = [
        [1, 0, 0, 0],
        [0.37754, 0.62246, 0, 0],
        [0.25839, 0.31560, 0.42601, 0],
        [0.21440, 0.26187, 0.26187, 0.26187],
    ]
    close(weights, torch.tensor(printed).double(), 5e-6)
    assert (weights[~causal_mask(4)] == 0).all()


def test_causal_mask_by_hand() -> None:
    table = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert causal_mask(5).int().tolist() == table
    assert causal_mask(5).dtype == torch.bool


def test_split_heads_takes_adjacent_channels() -> None:
    x = torch.arange(2 * 3 * 10).view(2, 3, 10)
    heads = split_heads(x, 2)
    assert heads.shape == (2, 2, 3, 5)
    assert heads[1, 1, 2].tolist() == [55, 56, 57, 58, 59]
    assert torch.equal(join_heads(heads), x)


def test_masked_positions_get_zero_weight() -> None:
    torch.manual_seed(3)
    query, key = torch.randn(3, 2, 5, 13).double(), torch.randn(3, 2, 7, 13).double()
    attention_mask = (torch.arange(7) < torch.tensor([[7], [4], [1]]))[:, None, None]  # (batch, 1, 1, keys)
    weights = attention_weights(query, key, attention_mask)
    assert (weights.masked_select(~attention_mask.expand_as(weights)) == 0).all()
    assert (weights.masked_select(attention_mask.expand_as(weights)) > 0).all()
    close(weights.sum(-1), torch.ones(3, 2, 5).double())


# ---- the fused kernel matches the formula


@pytest.mark.parametrize("masked", ["nothing", "padding", "look-ahead"])
def test_attention_kernel_matches_formula(masked: str) -> None:
    torch.manual_seed(5)
    module = randomize_parameters(MultiHeadAttention(26, 2).double().eval())
    keys = 5 if masked == "look-ahead" else 7
    query = torch.randn(3, 2, 5, 13).double()
    key, value = torch.randn(3, 2, keys, 13).double(), torch.randn(3, 2, keys, 13).double()
    padding = (torch.arange(keys) < torch.tensor([[keys], [4], [1]]))[:, None, None]
    attention_mask = {"nothing": None, "padding": padding, "look-ahead": causal_mask(5)}[masked]
    expected = module.output(join_heads(attention(query, key, value, attention_mask)))
    close(module.attend_and_project(query, key, value, attention_mask=attention_mask), expected)
    if masked == "look-ahead":
        close(module.attend_and_project(query, key, value, causal=True), expected)


def test_query_and_key_value_match_project() -> None:
    torch.manual_seed(7)
    module = randomize_parameters(MultiHeadAttention(26, 2).double())
    x = torch.randn(3, 5, 26).double()
    query, key, value = module.project(x)
    close(module.query(x), query)
    close(module.key_value(x)[0], key)
    close(module.key_value(x)[1], value)


# ---- against PyTorch


@pytest.mark.parametrize("bias", [True, False])
def test_cross_attention_matches_pytorch(bias: bool) -> None:
    torch.manual_seed(11)
    ours = randomize_parameters(MultiHeadAttention(26, 2, bias=bias).double().eval())
    theirs = nn.MultiheadAttention(26, 2, bias=bias, batch_first=True).double().eval()
    theirs.load_state_dict(attention_as_pytorch(ours))
    x, memory = torch.randn(3, 5, 26).double(), torch.randn(3, 7, 26).double()
    attention_mask = torch.arange(7) < torch.tensor([[7], [4], [1]])  # (batch, keys)
    expected, weights = theirs(x, memory, memory, key_padding_mask=~attention_mask, average_attn_weights=False)
    observed: dict[str, Tensor] = {}
    close(ours(x, memory, attention_mask[:, None, None], observer=observed.__setitem__), expected)
    close(observed["weights"], weights)


def test_masked_self_attention_matches_pytorch() -> None:
    torch.manual_seed(13)
    ours = randomize_parameters(MultiHeadAttention(26, 2).double().eval())
    theirs = nn.MultiheadAttention(26, 2, batch_first=True).double().eval()
    theirs.load_state_dict(attention_as_pytorch(ours))
    x = torch.randn(3, 7, 26).double()
    expected, weights = theirs(x, x, x, attn_mask=~causal_mask(7), average_attn_weights=False)
    observed: dict[str, Tensor] = {}
    close(ours(x, causal=True, observer=observed.__setitem__), expected)
    close(observed["weights"], weights)
    assert list(observed) == ["x", "q", "k", "v", "weights", "heads", "output"]


def test_initial_weights_are_within_xavier_bound() -> None:
    """The Xavier bound of the three input matrices as one: from 74 channels to 3 times 74."""
    torch.manual_seed(17)
    module = MultiHeadAttention(74, 2)
    for weight, outputs in ((module.input.weight, 3 * 74), (module.output.weight, 74)):
        bound = (6 / (74 + outputs)) ** 0.5
        assert 0.98 * bound < weight.abs().max() <= bound
        assert abs(float(weight.detach().std()) - bound / 3**0.5) < 0.02 * bound
    assert not module.input.bias.any()
    assert not module.output.bias.any()
