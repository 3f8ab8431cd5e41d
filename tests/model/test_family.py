"""What must hold of the paper's model must hold of every member of the family."""

import pytest
import torch
import torch.nn.functional as F

from heedful.errors import HeedfulError
from heedful.model.config import PAD, Architecture
from heedful.model.transformer import Transformer
from tests.model.test_transformer import close, new_model, padded_ids
from tests.model.variants import VARIANTS, in_trees

EVERY = pytest.mark.parametrize("name", VARIANTS)


def variant(name: str, seed: int = 5) -> Transformer:
    return new_model(seed, longest=40, **{"width": 24, "heads": 3, **VARIANTS[name]})


@EVERY
def test_padding_changes_nothing(name: str) -> None:
    model = variant(name)
    source = in_trees(name, padded_ids([13, 4, 1], 19))
    target = padded_ids([9, 9, 9], 23, start=True)
    wider, longer = F.pad(source, (0, 3), value=PAD), F.pad(target, (0, 2), value=PAD)
    close(model.encode(wider)[:, :13][source != PAD], model.encode(source)[source != PAD])
    close(model(wider, longer)[:, :9], model(source, target))


@EVERY
def test_company_and_order_change_nothing(name: str) -> None:
    model, lengths = variant(name), [13, 8, 1]
    source = in_trees(name, padded_ids(lengths, 19))
    target = padded_ids([9, 9, 9], 23, start=True)
    together, order = model(source, target), torch.tensor([2, 0, 1])
    close(model(source[order], target[order]), together[order])
    for row, length in enumerate(lengths):
        close(model(source[row : row + 1, :length], target[row : row + 1])[0], together[row])


@EVERY
def test_the_future_never_reaches_the_past(name: str) -> None:
    """The gradient of a state with respect to every later word's vector is exactly zero."""
    model = variant(name)
    source, target = padded_ids([13, 4], 19), padded_ids([11, 11], 23, start=True)
    memory, visible = model.encode(source).detach(), model.visible(source)
    x = model.decoder.embedding(target).detach().requires_grad_()
    states = x
    for layer in model.decoder.layers:
        states = layer(states, memory, visible)
    for position in range(11):
        gradient = torch.autograd.grad(states[:, position].sum(), x, retain_graph=True)[0]
        assert not gradient[:, position + 1 :].any()
        assert gradient[:, position].any()


@EVERY
def test_steps_are_teacher_forcing(name: str) -> None:
    model = variant(name)
    source = in_trees(name, padded_ids([13, 4, 1], 19))
    target = padded_ids([12, 12, 12], 23, start=True)
    whole = model.logits(model(source, target)).log_softmax(-1)
    state = model.start(source)
    for position in range(12):
        found, state = model.step(target[:, position], state)
        close(found, whole[:, position])


@EVERY
def test_looking_changes_nothing(name: str) -> None:
    model = variant(name)
    source, target = in_trees(name, padded_ids([13, 4], 19)), padded_ids([9, 9], 23, start=True)
    seen: dict[str, torch.Tensor] = {}
    assert torch.equal(model(source, target, seen.__setitem__), model(source, target))
    for key, weights in seen.items():
        if key.endswith("weights"):
            close(weights.sum(-1), torch.ones(weights.shape[:-1]).double())


@pytest.mark.long
@EVERY
def test_it_can_learn_by_heart(name: str) -> None:
    """Ten pairs that only the order of words tells apart, but for models that do not know it."""
    torch.manual_seed(1)
    model = variant(name).float()
    source = torch.stack([torch.randperm(7) + 2 for _ in range(10)])
    target = F.pad(source.flip(1), (0, 1), value=1)
    if VARIANTS[name].get("positions") == "none":  # the decoder, which reads from the left, still knows it
        source = torch.arange(10)[:, None] + 2
    source = in_trees(name, source)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    first = float(-model.score(source, target).detach().mean())
    for _ in range(150):
        optimizer.zero_grad()
        loss = -model.score(source, target).mean()
        loss.backward()
        optimizer.step()
    # Without residuals it learns how often each word comes, and no more: as the paper's successors found.
    assert float(loss.detach()) < (0.25 if VARIANTS[name].get("residuals", True) else 0.6) * first


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"encoder_attention": "bigbird", "positions": "rotary"}, "does not go with rotary positions"),
        ({"decoder_attention": "bigbird", "positions": "alibi"}, "does not go with alibi positions"),
        ({"encoder_attention": "bigbird", "window_blocks": 2}, "odd number of blocks"),
        ({"positions": "rotary", "width": 15, "heads": 5}, "even number of channels"),
        ({"positions": "tree", "width": 15, "heads": 5}, "even width"),
        ({"positions": "tree", "family": "gru"}, "does not read trees"),
        ({"positions": "relative-tree", "family": "mask"}, "does not read trees"),
        ({"positions": "relative-tree", "encoder_attention": "bigbird"}, "does not go with relative-tree"),
    ],
)
def test_what_cannot_be(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(HeedfulError, match=problem):
        Architecture.checked(settings)
