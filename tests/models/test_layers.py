"""Sublayers by hand; test_transformer.py compares full layers with PyTorch."""

import pytest
import torch
from torch import Tensor, nn

from heedful.models.config import ArchitectureConfig
from heedful.models.embeddings import Embedding, new_token_embedding, sinusoids
from heedful.models.sublayers import FeedForward, PostNorm, PreNorm
from heedful.models.transformer import DecoderLayer, Encoder, EncoderLayer

SMALL = ArchitectureConfig(d_model=2, heads=1, d_ff=3, dropout=0.0)


def test_feed_forward_by_hand() -> None:
    network = FeedForward(SMALL).double()
    with torch.no_grad():
        network.inner.weight.copy_(torch.tensor([[1.0, 0], [0, 1], [1, 1]]))
        network.inner.bias.copy_(torch.tensor([0.0, 0, -4]))
        network.outer.weight.copy_(torch.tensor([[1.0, 2, 3], [4, 5, 6]]))
        network.outer.bias.copy_(torch.tensor([10.0, 20]))
    x = torch.tensor([[2.0, -3], [1, 5]], dtype=torch.float64)
    # Inner (2, -3, -5) -> (2, 0, 0), and (1, 5, 2).
    assert network(x).tolist() == [[12.0, 28.0], [1 + 10 + 6 + 10.0, 4 + 25 + 12 + 20.0]]


def test_norm_placement_post_and_pre_by_hand() -> None:
    x = torch.tensor([[5.0, 1.0]], dtype=torch.float64)  # normalized: (1, -1)

    def sublayer(x: Tensor) -> Tensor:
        return x * torch.tensor([0.0, 3.0])

    post, pre = PostNorm(SMALL).double()(x, sublayer), PreNorm(SMALL).double()(x, sublayer)
    # After: (5, 1) + (0, 3) = (5, 4), normalized (1, -1). Before: (5, 1) + (0, -3).
    torch.testing.assert_close(post, torch.tensor([[1.0, -1.0]]).double(), rtol=0, atol=1e-4)
    torch.testing.assert_close(pre, torch.tensor([[5.0, -2.0]]).double(), rtol=0, atol=1e-4)


def test_embedding_scales_and_adds_positions() -> None:
    torch.manual_seed(1)
    table = new_token_embedding(11, 6)
    embedding = Embedding(ArchitectureConfig(d_model=6, heads=3, dropout=0.0), table).double()
    tokens = torch.tensor([[3, 7, 3], [5, 0, 0]])
    expected = table.weight[tokens] * 6**0.5 + sinusoids(3, 6).double()
    torch.testing.assert_close(embedding(tokens), expected, rtol=0, atol=1e-12)
    later = embedding(tokens[:, 2:], offset=2)
    torch.testing.assert_close(later, expected[:, 2:], rtol=0, atol=1e-12)


def test_embedding_initial_scale_and_zero_pad_row() -> None:
    torch.manual_seed(2)
    table = new_token_embedding(1009, 66)
    assert not table.weight[0].any()
    assert float(table.weight[1:].detach().std()) == pytest.approx(66**-0.5, rel=0.02)


@pytest.mark.parametrize("module_name", ["residual_attention", "residual_cross", "residual_feed_forward"])
def test_dropout_applies_to_every_sublayer_output(module_name: str) -> None:
    """Section 5.4: each dropout alone makes training random, and without any it is deterministic."""
    torch.manual_seed(3)
    layer = DecoderLayer(ArchitectureConfig(d_model=6, heads=3, d_ff=7, dropout=0.5)).eval()
    x, memory = torch.randn(2, 5, 6), torch.randn(2, 3, 6)
    assert torch.equal(layer(x, memory, None), layer(x, memory, None))
    layer.get_submodule(module_name).train()
    assert not torch.equal(layer(x, memory, None), layer(x, memory, None))


def test_dropout_applies_to_embedding_plus_position() -> None:
    torch.manual_seed(5)
    config = ArchitectureConfig(d_model=6, heads=3, dropout=0.5)
    embedding, tokens = Embedding(config, new_token_embedding(11, 6)), torch.randint(1, 11, (5, 7))
    noisy, plain = embedding(tokens), embedding.eval()(tokens)
    nonzero = noisy != 0
    assert 0.3 < float(nonzero.double().mean()) < 0.7
    torch.testing.assert_close(noisy[nonzero], 2 * plain[nonzero])


@pytest.mark.parametrize("name", ["attention_dropout", "activation_dropout"])
def test_other_dropouts_apply_only_in_training(name: str) -> None:
    torch.manual_seed(4)
    config = ArchitectureConfig(d_model=6, heads=3, d_ff=7, dropout=0.0).model_copy(update={name: 0.5})
    layer, x = EncoderLayer(config), torch.randn(2, 5, 6)
    assert not torch.equal(layer(x, None), layer(x, None))
    assert torch.equal(layer.eval()(x, None), layer(x, None))


def test_pre_norm_stack_ends_with_a_norm() -> None:
    config = ArchitectureConfig(d_model=6, heads=3, d_ff=7, encoder_layers=2)
    table = new_token_embedding(11, 6)
    assert isinstance(Encoder(config, table).norm, nn.Identity)
    pre = Encoder(config.model_copy(update={"norm_placement": "pre"}), table)
    assert isinstance(pre.norm, nn.LayerNorm)
