"""Decoder-only and encoder-only models."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from heedful.data.collate import collate_masked
from heedful.models.config import ModelConfig
from heedful.models.language_models import CausalLM, MaskedLM
from heedful.tokenization.special_tokens import END, MASK, PAD
from tests.models.test_transformer import close, padded_ids
from tests.models.variants import VARIANTS

DECODERS = ["paper", "pre-norm", "learned", "relative", "rotary", "alibi", "gated", "bigbird"]


def new_config(architecture: str, **changes: object) -> ModelConfig:
    return ModelConfig.from_settings(
        {
            "architecture": architecture,
            "source_vocab_size": 23,
            "target_vocab_size": 23,
            "d_model": 24,
            "heads": 3,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "d_ff": 37,
            "dropout": 0.0,
            "max_length": 40,
            **changes,
        }
    )


@pytest.mark.parametrize("name", DECODERS)
def test_causal_lm_step_matches_forward_and_hides_the_future(name: str) -> None:
    torch.manual_seed(1)
    model = CausalLM(new_config("causal_lm", **VARIANTS[name])).double().eval()
    text, empty_source = padded_ids([12, 12, 12], 23, start=True), torch.full((3, 1), END)
    states = model(empty_source, text)
    expected, state = model.logits(states).log_softmax(-1), model.start(empty_source)
    for position in range(12):
        actual, state = model.step(text[:, position], state)
        close(actual, expected[:, position])
        changed = text.clone()
        changed[:, position] = changed[:, position] % 22 + 1
        assert torch.equal(model(empty_source, changed)[:, :position], states[:, :position])
    permutation = torch.tensor([[2, 0], [1, 1]])
    moved = state.reorder(permutation)
    actual, _ = model.step(torch.tensor([3, 4, 5, 6]), moved)
    histories = torch.cat([text[permutation.flatten()], torch.tensor([[3], [4], [5], [6]])], 1)
    close(actual, model.logits(model(empty_source.repeat(2, 1)[:4], histories)[:, -1]).log_softmax(-1))


def test_causal_lm_ignores_source() -> None:
    torch.manual_seed(1)
    model = CausalLM(new_config("causal_lm")).double().eval()
    text = padded_ids([6, 6], 23, start=True)
    close(model(padded_ids([4, 2], 23), text), model(padded_ids([7, 7], 23), text))


def test_masked_lm_uses_both_sides() -> None:
    """The last word determines the middle one, which the left context alone cannot predict."""
    torch.manual_seed(1)
    model = MaskedLM(new_config("masked_lm"))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    middle = torch.arange(3, 11)
    first = torch.full_like(middle, 3)
    source = torch.stack([first, torch.full_like(middle, MASK), middle + 8, torch.full_like(middle, END)], 1)
    for _ in range(120):
        optimizer.zero_grad()
        loss = F.cross_entropy(model.logits(model.encode(source)[:, 1]), middle)
        loss.backward()
        optimizer.step()
    assert torch.equal(model.logits(model.encode(source)[:, 1]).argmax(-1), middle)


def test_collate_masked_selects_and_replaces_tokens() -> None:
    rows = [[5 + n % 15 for n in range(200)] for _ in range(50)]
    batch = collate_masked(rows, np.random.default_rng(1), 23)
    original = torch.tensor([[*row, END] for row in rows])
    is_selected = batch.target != PAD
    assert torch.equal(batch.target[is_selected], original[is_selected])
    assert torch.equal(batch.source[~is_selected], original[~is_selected])
    assert not is_selected[:, -1].any()
    assert 0.14 < float(is_selected.float().mean()) < 0.16
    selected = batch.source[is_selected]
    assert 0.78 < float((selected == MASK).float().mean()) < 0.82
    assert 0.09 < float((selected == original[is_selected]).float().mean()) < 0.12
    repeated = collate_masked(rows, np.random.default_rng(1), 23)
    assert torch.equal(repeated.source, batch.source)
    short = collate_masked([[7], [8, 9]], np.random.default_rng(2), 23)
    assert ((short.target != PAD).sum(1) >= 1).all()
