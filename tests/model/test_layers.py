"""The parts of a layer by hand; the whole layers stand in test_transformer.py, against PyTorch's."""

import pytest
import torch
from torch import Tensor, nn

from heedful.model.config import Architecture
from heedful.model.embedding import Embedding, new_table
from heedful.model.encoder import Encoder
from heedful.model.feed_forward import FeedForward
from heedful.model.layers import DecoderLayer, EncoderLayer
from heedful.model.positions import sinusoids
from heedful.model.residual import PostNorm, PreNorm

SMALL = Architecture(width=2, heads=1, feed_forward_width=3, dropout=0.0)


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


def test_norm_stands_after_the_sum_or_before_the_sublayer() -> None:
    x = torch.tensor([[5.0, 1.0]], dtype=torch.float64)  # normalised: (1, -1)

    def sublayer(x: Tensor) -> Tensor:
        return x * torch.tensor([0.0, 3.0])

    post, pre = PostNorm(SMALL).double()(x, sublayer), PreNorm(SMALL).double()(x, sublayer)
    # After: (5, 1) + (0, 3) = (5, 4), normalised (1, -1). Before: (5, 1) + (0, -3).
    torch.testing.assert_close(post, torch.tensor([[1.0, -1.0]]).double(), rtol=0, atol=1e-4)
    torch.testing.assert_close(pre, torch.tensor([[5.0, -2.0]]).double(), rtol=0, atol=1e-4)


def test_embedding_is_scaled_and_placed() -> None:
    torch.manual_seed(1)
    table = new_table(11, 6)
    embedding = Embedding(Architecture(width=6, heads=3, dropout=0.0), table).double()
    tokens = torch.tensor([[3, 7, 3], [5, 0, 0]])
    expected = table.weight[tokens] * 6**0.5 + sinusoids(3, 6).double()
    torch.testing.assert_close(embedding(tokens), expected, rtol=0, atol=1e-12)
    later = embedding(tokens[:, 2:], first=2)
    torch.testing.assert_close(later, expected[:, 2:], rtol=0, atol=1e-12)


def test_embedding_starts_at_the_papers_scale_with_a_zero_row() -> None:
    torch.manual_seed(2)
    table = new_table(1009, 66)
    assert not table.weight[0].any()
    assert float(table.weight[1:].detach().std()) == pytest.approx(66**-0.5, rel=0.02)


@pytest.mark.parametrize("place", ["residual_attention", "residual_cross", "residual_feed_forward"])
def test_dropout_is_on_the_output_of_every_sublayer(place: str) -> None:
    """Section 5.4; one place alone in training is noise enough, and none is none."""
    torch.manual_seed(3)
    layer = DecoderLayer(Architecture(width=6, heads=3, feed_forward_width=7, dropout=0.5)).eval()
    x, memory = torch.randn(2, 5, 6), torch.randn(2, 3, 6)
    assert torch.equal(layer(x, memory, None), layer(x, memory, None))
    layer.get_submodule(place).train()
    assert not torch.equal(layer(x, memory, None), layer(x, memory, None))


def test_dropout_is_on_the_sum_of_embedding_and_position() -> None:
    torch.manual_seed(5)
    config = Architecture(width=6, heads=3, dropout=0.5)
    embedding, tokens = Embedding(config, new_table(11, 6)), torch.randint(1, 11, (5, 7))
    noisy, plain = embedding(tokens), embedding.eval()(tokens)
    kept = noisy != 0
    assert 0.3 < float(kept.double().mean()) < 0.7
    torch.testing.assert_close(noisy[kept], 2 * plain[kept])


@pytest.mark.parametrize("name", ["attention_dropout", "activation_dropout"])
def test_the_other_dropouts_work_in_training_alone(name: str) -> None:
    torch.manual_seed(4)
    config = Architecture(width=6, heads=3, feed_forward_width=7, dropout=0.0).model_copy(update={name: 0.5})
    layer, x = EncoderLayer(config), torch.randn(2, 5, 6)
    assert not torch.equal(layer(x, None), layer(x, None))
    assert torch.equal(layer.eval()(x, None), layer(x, None))


def test_a_stack_of_pre_norm_layers_ends_with_one_more_norm() -> None:
    config = Architecture(width=6, heads=3, feed_forward_width=7, encoder_layers=2)
    table = new_table(11, 6)
    assert isinstance(Encoder(config, table).norm, nn.Identity)
    pre = Encoder(config.model_copy(update={"norm": "pre"}), table)
    assert isinstance(pre.norm, nn.LayerNorm)
