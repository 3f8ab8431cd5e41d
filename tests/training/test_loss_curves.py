"""Two hundred updates with fast kernels and with the reference formulas: the same loss curve."""

import pytest
import torch
from torch import Tensor

from heedful.data.collate import Batch
from heedful.models import attention as attention_module
from heedful.models.attention import attention, causal_mask, eager_attention
from heedful.tokenization.special_tokens import PAD
from heedful.training import step
from heedful.training.config import TrainingConfig
from heedful.training.step import label_smoothed_loss, new_optimizer, run_update
from tests.training.test_step import new_model, pairs, split

UPDATES = 200


def reference_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    scale: float,
    bias: Tensor | None = None,
) -> Tensor:
    assert not dropout
    assert bias is None
    assert scale == query.size(-1) ** -0.5
    return attention(query, key, value, causal_mask(query.size(-2)) if causal else attention_mask)


def reference_loss(
    states: Tensor, output: Tensor, targets: Tensor, smoothing: float, matmul_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    is_padding = torch.arange(len(output)) == PAD
    logits = (states @ output.T).masked_fill(is_padding, -torch.inf)
    smoothed, nll = label_smoothed_loss(logits, targets, smoothing)
    return smoothed, nll.detach()


def short_attention(
    *tensors: Tensor, causal: bool = False, dropout: float = 0.0, scale: float, bias: Tensor | None = None
) -> Tensor:
    return eager_attention(*tensors, causal=causal, scale=scale, bias=bias)


def train_curve(dtype: torch.dtype, precision: str) -> list[float]:
    model = new_model(1).to(dtype)
    config = TrainingConfig.from_settings({"precision": precision, "label_smoothing": 0.1})
    optimizer, batches = new_optimizer(model, config), new_batches()
    return [
        run_update(model, optimizer, [batches[number % len(batches)]], config, 2e-3).loss for number in range(UPDATES)
    ]


def new_batches() -> list[Batch]:
    return split(*pairs(24), 3)


@pytest.fixture(scope="module")
def reference_curve() -> list[float]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_module, "fast_attention", reference_attention)
        patch.setattr(step, "output_loss", reference_loss)
        return train_curve(torch.float64, "float32")


def test_reference_curve_falls(reference_curve: list[float]) -> None:
    assert reference_curve[-1] < 0.6 * reference_curve[0]


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.long
def test_fast_kernels_match_reference_curve(
    reference_curve: list[float], short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if short:  # the kernel for half precision, in float64
        monkeypatch.setattr(attention_module, "fast_attention", short_attention)
    assert train_curve(torch.float64, "float32") == pytest.approx(reference_curve, abs=1e-9)


def test_bfloat16_curve_is_close_to_reference(reference_curve: list[float]) -> None:
    """Not identical, but close over the complete curve."""
    half = train_curve(torch.float32, "bfloat16")
    assert half != pytest.approx(reference_curve, abs=1e-6)
    assert half == pytest.approx(reference_curve, abs=0.05)
