"""Two hundred updates the quick way and the plain way: the same loss curve."""

import pytest
import torch
from torch import Tensor

from heedful.model import attention as attention_module
from heedful.model.attention import attention, look_ahead_mask
from heedful.model.config import PAD
from heedful.model.kernels import short_attention
from heedful.training import update as update_module
from heedful.training.batch import Batch
from heedful.training.config import TrainingConfig
from heedful.training.loss import label_smoothed_loss
from heedful.training.update import new_optimizer, update
from tests.training.test_update import new_model, pairs, split

UPDATES = 200


def plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    scale: float,
) -> Tensor:
    assert not dropout
    assert scale == query.size(-1) ** -0.5
    return attention(query, key, value, look_ahead_mask(query.size(-2)) if causal else visible)


def plain_loss(
    states: Tensor, output: Tensor, targets: Tensor, smoothing: float, products: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    hidden = torch.arange(len(output)) == PAD
    logits = (states @ output.T).masked_fill(hidden, -torch.inf)
    smoothed, likelihood = label_smoothed_loss(logits, targets, smoothing)
    return smoothed, likelihood.detach()


def always_short(*parts: Tensor, causal: bool = False, dropout: float = 0.0, scale: float) -> Tensor:
    return short_attention(*parts, causal=causal, scale=scale)


def curve(dtype: torch.dtype, precision: str) -> list[float]:
    model = new_model(1).to(dtype)
    config = TrainingConfig.checked({"precision": precision, "label_smoothing": 0.1})
    optimizer, batches = new_optimizer(model, config), batches_of_pairs()
    return [
        update(model, optimizer, [batches[number % len(batches)]], config, 2e-3) for number in range(UPDATES)
    ]


def batches_of_pairs() -> list[Batch]:
    return split(*pairs(24), 3)


@pytest.fixture(scope="module")
def plain() -> list[float]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(attention_module, "quick_attention", plain_attention)
        patched.setattr(update_module, "output_loss", plain_loss)
        return curve(torch.float64, "float32")


def test_the_plain_way_learns(plain: list[float]) -> None:
    assert plain[-1] < 0.6 * plain[0]


@pytest.mark.parametrize("short", [False, True])
def test_the_same_curve(plain: list[float], short: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if short:  # the way of half precision, in float64
        monkeypatch.setattr(attention_module, "quick_attention", always_short)
    assert curve(torch.float64, "float32") == pytest.approx(plain, abs=1e-9)


def test_half_precision_follows_it(plain: list[float]) -> None:
    """Not to the digit, but all the way."""
    half = curve(torch.float32, "bfloat16")
    assert half != pytest.approx(plain, abs=1e-6)
    assert half == pytest.approx(plain, abs=0.05)
