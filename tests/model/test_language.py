"""The two halves of a Transformer: a decoder alone, an encoder alone."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from heedful.model.config import PAD, ModelConfig
from heedful.model.language import LanguageModel, MaskedModel
from heedful.text.tokenizer import BLANK, END
from heedful.training.tasks import masked_batch
from tests.model.test_transformer import close, padded_ids
from tests.model.variants import VARIANTS

DECODERS = ["paper", "pre-norm", "learned", "relative", "rotary", "alibi", "gated", "bigbird"]


def settings(family: str, **changes: object) -> ModelConfig:
    return ModelConfig.checked(
        {
            "family": family,
            "source_vocabulary": 23,
            "target_vocabulary": 23,
            "width": 24,
            "heads": 3,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "feed_forward_width": 37,
            "dropout": 0.0,
            "longest": 40,
            **changes,
        }
    )


@pytest.mark.parametrize("name", DECODERS)
def test_steps_are_the_whole_and_the_future_is_unseen(name: str) -> None:
    torch.manual_seed(1)
    model = LanguageModel(settings("language", **VARIANTS[name])).double().eval()
    text, nothing = padded_ids([12, 12, 12], 23, start=True), torch.full((3, 1), END)
    states = model(nothing, text)
    whole, state = model.logits(states).log_softmax(-1), model.start(nothing)
    for position in range(12):
        found, state = model.step(text[:, position], state)
        close(found, whole[:, position])
        changed = text.clone()
        changed[:, position] = changed[:, position] % 22 + 1
        assert torch.equal(model(nothing, changed)[:, :position], states[:, :position])
    order = torch.tensor([[2, 0], [1, 1]])
    moved = state.reorder(order)
    found, _ = model.step(torch.tensor([3, 4, 5, 6]), moved)
    alone = torch.cat([text[order.flatten()], torch.tensor([[3], [4], [5], [6]])], 1)
    close(found, model.logits(model(nothing.repeat(2, 1)[:4], alone)[:, -1]).log_softmax(-1))


def test_a_source_is_not_read() -> None:
    torch.manual_seed(1)
    model = LanguageModel(settings("language")).double().eval()
    text = padded_ids([6, 6], 23, start=True)
    close(model(padded_ids([4, 2], 23), text), model(padded_ids([7, 7], 23), text))


def test_a_blank_is_filled_from_both_sides() -> None:
    """The word in the middle is told by the last one: from the left alone nobody could know."""
    torch.manual_seed(1)
    model = MaskedModel(settings("mask"))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    middle = torch.arange(3, 11)
    first = torch.full_like(middle, 3)
    source = torch.stack([first, torch.full_like(middle, BLANK), middle + 8, torch.full_like(middle, END)], 1)
    for _ in range(120):
        optimizer.zero_grad()
        loss = F.cross_entropy(model.logits(model.encode(source)[:, 1]), middle)
        loss.backward()
        optimizer.step()
    assert torch.equal(model.logits(model.encode(source)[:, 1]).argmax(-1), middle)


def test_which_words_are_hidden() -> None:
    rows = [[5 + n % 15 for n in range(200)] for _ in range(50)]
    batch = masked_batch(rows, np.random.default_rng(1), 23)
    real = torch.tensor([[*row, END] for row in rows])
    wanted = batch.target != PAD
    assert torch.equal(batch.target[wanted], real[wanted])
    assert torch.equal(batch.source[~wanted], real[~wanted])
    assert not wanted[:, -1].any()
    assert 0.14 < float(wanted.float().mean()) < 0.16
    read = batch.source[wanted]
    assert 0.78 < float((read == BLANK).float().mean()) < 0.82
    assert 0.09 < float((read == real[wanted]).float().mean()) < 0.12
    again = masked_batch(rows, np.random.default_rng(1), 23)
    assert torch.equal(again.source, batch.source)
    short = masked_batch([[7], [8, 9]], np.random.default_rng(2), 23)
    assert ((short.target != PAD).sum(1) >= 1).all()
