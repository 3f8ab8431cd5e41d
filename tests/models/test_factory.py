"""Invariances of the paper's model that every variant must have."""

import pytest
import torch
import torch.nn.functional as F

from heedful.errors import HeedfulError
from heedful.models.base import select_token_ids
from heedful.models.config import ArchitectureConfig
from heedful.models.transformer import Transformer
from heedful.tokenization.special_tokens import PAD
from tests.models.test_transformer import close, new_model, padded_ids
from tests.models.variants import VARIANTS, add_random_trees

all_variants = pytest.mark.parametrize("name", VARIANTS)


def new_variant(name: str, seed: int = 5) -> Transformer:
    return new_model(seed, max_length=40, **{"d_model": 24, "heads": 3, **VARIANTS[name]})


@all_variants
def test_padding_changes_nothing(name: str) -> None:
    model = new_variant(name)
    source = add_random_trees(name, padded_ids([13, 4, 1], 19))
    target = padded_ids([9, 9, 9], 23, start=True)
    wider = torch.cat([source, torch.full_like(source[:, :3], PAD)], dim=1)
    longer, is_token = F.pad(target, (0, 2), value=PAD), select_token_ids(source) != PAD
    close(model.encode(wider)[:, :13][is_token], model.encode(source)[is_token])
    close(model(wider, longer)[:, :9], model(source, target))


@all_variants
def test_batch_composition_and_order_change_nothing(name: str) -> None:
    model, lengths = new_variant(name), [13, 8, 1]
    source = add_random_trees(name, padded_ids(lengths, 19))
    target = padded_ids([9, 9, 9], 23, start=True)
    expected, permutation = model(source, target), torch.tensor([2, 0, 1])
    close(model(source[permutation], target[permutation]), expected[permutation])
    for row, length in enumerate(lengths):
        close(model(source[row : row + 1, :length], target[row : row + 1])[0], expected[row])


@all_variants
def test_causal_mask_hides_the_future(name: str) -> None:
    """The gradient of a state with respect to the embedding of every later token is exactly zero."""
    model = new_variant(name)
    source, target = padded_ids([13, 4], 19), padded_ids([11, 11], 23, start=True)
    memory, attention_mask = model.encode(source).detach(), model.source_attention_mask(source)
    x = model.decoder.embedding(target).detach().requires_grad_()
    states = x
    for layer in model.decoder.layers:
        states = layer(states, memory, attention_mask)
    for position in range(11):
        gradient = torch.autograd.grad(states[:, position].sum(), x, retain_graph=True)[0]
        assert not gradient[:, position + 1 :].any()
        assert gradient[:, position].any()


@all_variants
def test_step_matches_teacher_forcing(name: str) -> None:
    model = new_variant(name)
    source = add_random_trees(name, padded_ids([13, 4, 1], 19))
    target = padded_ids([12, 12, 12], 23, start=True)
    expected = model.logits(model(source, target)).log_softmax(-1)
    state = model.start(source)
    for position in range(12):
        actual, state = model.step(target[:, position], state)
        close(actual, expected[:, position])


@all_variants
def test_observer_changes_nothing(name: str) -> None:
    model = new_variant(name)
    source, target = add_random_trees(name, padded_ids([13, 4], 19)), padded_ids([9, 9], 23, start=True)
    observed: dict[str, torch.Tensor] = {}
    assert torch.equal(model(source, target, observed.__setitem__), model(source, target))
    for key, weights in observed.items():
        if key.endswith("weights"):
            close(weights.sum(-1), torch.ones(weights.shape[:-1]).double())


@pytest.mark.long
@all_variants
def test_every_variant_overfits_a_batch(name: str) -> None:
    """Ten pairs that differ only in word order, except for models without positions."""
    torch.manual_seed(1)
    model = new_variant(name).float()
    source = torch.stack([torch.randperm(7) + 2 for _ in range(10)])
    target = F.pad(source.flip(1), (0, 1), value=1)
    if VARIANTS[name].get("positions") == "none":  # the causal decoder still knows the order
        source = torch.arange(10)[:, None] + 2
    source = add_random_trees(name, source)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    first = float(-model.score(source, target).detach().mean())
    for _ in range(150):
        optimizer.zero_grad()
        loss = -model.score(source, target).mean()
        loss.backward()
        optimizer.step()
    # Without residuals a model learns only word frequencies.
    assert float(loss.detach()) < (0.25 if VARIANTS[name].get("residuals", True) else 0.6) * first


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"encoder_attention": "bigbird", "positions": "rotary"}, "does not support rotary positions"),
        ({"decoder_attention": "bigbird", "positions": "alibi"}, "does not support alibi positions"),
        ({"encoder_attention": "bigbird", "window_blocks": 2}, "window_blocks must be odd"),
        ({"positions": "rotary", "d_model": 15, "heads": 5}, "even d_model / heads"),
        ({"positions": "dependency", "d_model": 15, "heads": 5}, "even d_model"),
        ({"positions": "dependency", "architecture": "gru"}, "does not support .*dependency positions"),
        ({"positions": "relative-dependency", "architecture": "masked_lm"}, "does not support .*dependency positions"),
        ({"positions": "relative-dependency", "encoder_attention": "bigbird"}, "does not support relative-dependency"),
    ],
)
def test_invalid_settings_raise(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(HeedfulError, match=problem):
        ArchitectureConfig.from_settings(settings)
