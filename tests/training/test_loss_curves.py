"""Two hundred updates with fast kernels and with the reference formulas: the same loss curve."""

import pytest
import torch
from torch import Tensor

from heedful.data.collate import Batch
from heedful.models import attention as attention_module
from heedful.models.attention import attention, causal_mask, eager_attention
from heedful.tokenization.special_tokens import PAD
from heedful.training import step as update_module
from heedful.training.config import TrainingConfig
from heedful.training.step import label_smoothed_loss, new_optimizer, run_update
from tests.training.test_step import new_model, pairs, split

UPDATES = 200


def plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    scale: float,
) -> Tensor:
    assert not dropout
    assert scale == query.size(-1) ** -0.5
    return attention(query, key, value, causal_mask(query.size(-2)) if causal else attention_mask)


def plain_loss(
    states: Tensor, output: Tensor, targets: Tensor, smoothing: float, matmul_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    hidden = torch.arange(len(output)) == PAD
    logits = (states @ output.T).masked_fill(hidden, -torch.inf)
    smoothed, likelihood = label_smoothed_loss(logits, targets, smoothing)
    return smoothed, likelihood.detach()


def always_short(*parts: Tensor, causal: bool = False, dropout: float = 0.0, scale: float) -> Tensor:
    return eager_attention(*parts, causal=causal, scale=scale)


def curve(dtype: torch.dtype, precision: str) -> list[float]:
    model = new_model(1).to(dtype)
    config = TrainingConfig.from_settings({"precision": precision, "label_smoothing": 0.1})
    optimizer, batches = new_optimizer(model, config), batches_of_pairs()
    return [
        run_update(model, optimizer, [batches[number % len(batches)]], config, 2e-3).loss for number in range(UPDATES)
    ]


def batches_of_pairs() -> list[Batch]:
    return split(*pairs(24), 3)


@pytest.fixture(scope="module")
def plain() -> list[float]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(attention_module, "fast_attention", plain_attention)
        patched.setattr(update_module, "output_loss", plain_loss)
        return curve(torch.float64, "float32")


def test_reference_curve_falls(plain: list[float]) -> None:
    assert plain[-1] < 0.6 * plain[0]


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.long
def test_fast_kernels_match_reference_curve(plain: list[float], short: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if short:  # the way of half precision, in float64
        monkeypatch.setattr(attention_module, "fast_attention", always_short)
    assert curve(torch.float64, "float32") == pytest.approx(plain, abs=1e-9)


def test_bfloat16_curve_is_close_to_reference(plain: list[float]) -> None:
    """Not to the digit, but all the way."""
    half = curve(torch.float32, "bfloat16")
    assert half != pytest.approx(plain, abs=1e-6)
    assert half == pytest.approx(plain, abs=0.05)
