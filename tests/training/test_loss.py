"""Label smoothing by hand and against PyTorch, and the chunked loss against the plain one."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.tokenization.special_tokens import PAD
from heedful.training import step
from heedful.training.step import label_smoothed_loss, output_loss

VOCAB_SIZE, D_MODEL = 11, 7
TARGETS = torch.tensor([[5, 1, PAD, PAD, PAD], [3, 10, 2, 7, 1], [1, PAD, PAD, PAD, PAD]])


def random_inputs(seed: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    states = torch.randn(3, 5, D_MODEL, dtype=torch.float64, requires_grad=True)
    output = torch.randn(VOCAB_SIZE, D_MODEL, dtype=torch.float64)
    output[PAD] = 0
    return states, output.requires_grad_()


def compute_logits(states: Tensor, output: Tensor) -> Tensor:
    is_padding = torch.zeros(len(output), dtype=torch.bool)
    is_padding[PAD] = True
    return (states @ output.T).masked_fill(is_padding, -torch.inf)


def test_label_smoothed_loss_by_hand() -> None:
    """Probabilities 1/2, 1/4, 1/4; the correct word is the second. PAD is not a word."""
    logits = torch.tensor([[[-torch.inf, math.log(2), 0.0, 0.0]]], dtype=torch.float64)
    smoothed, nll = label_smoothed_loss(logits, torch.tensor([[2]]), 0.3)
    assert float(nll) == pytest.approx(2 * math.log(2))
    # 0.7 of 2 ln 2, and a tenth of ln 2 + 2 ln 2 + 2 ln 2.
    assert float(smoothed) == pytest.approx((0.7 * 2 + 0.1 * 5) * math.log(2))


def test_output_loss_by_hand() -> None:
    states = torch.tensor([[[1.0]]], dtype=torch.float64)
    output = torch.tensor([[9.0], [math.log(2)], [0.0], [0.0]], dtype=torch.float64)  # PAD's row is ignored
    smoothed, nll = output_loss(states, output, torch.tensor([[2]]), 0.3)
    assert float(nll) == pytest.approx(2 * math.log(2))
    assert float(smoothed) == pytest.approx((0.7 * 2 + 0.1 * 5) * math.log(2))


@pytest.mark.parametrize("chunk_logits", [1, 29, 30, 53, 1 << 22])  # 1, 2, 3, 5 tokens at a time, or all 8
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_output_loss_matches_label_smoothed_loss(
    smoothing: float, chunk_logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "CHUNK_LOGITS", chunk_logits)
    states, output = random_inputs(1)
    plain = label_smoothed_loss(compute_logits(states, output), TARGETS, smoothing)
    expected_gradients = torch.autograd.grad(3 * plain[0], (states, output))
    chunked = output_loss(states, output, TARGETS, smoothing)
    gradients = torch.autograd.grad(3 * chunked[0], (states, output))
    for actual, reference in zip((*chunked, *gradients), (*plain, *expected_gradients), strict=True):
        torch.testing.assert_close(actual, reference, rtol=0, atol=1e-12)
    assert not chunked[1].requires_grad
    assert not gradients[1][PAD].any()
    assert not gradients[0][TARGETS == PAD].any()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses_match_pytorch_without_pad(smoothing: float) -> None:
    states, output = random_inputs(2)
    logits = states.detach() @ output.detach()[1:].T
    is_token = TARGETS != PAD
    expected = F.cross_entropy(logits[is_token], TARGETS[is_token] - 1, label_smoothing=smoothing, reduction="sum")
    plain = F.cross_entropy(logits[is_token], TARGETS[is_token] - 1, reduction="sum")
    for smoothed, nll in (
        label_smoothed_loss(compute_logits(states, output), TARGETS, smoothing),
        output_loss(states, output, TARGETS, smoothing),
    ):
        torch.testing.assert_close(smoothed.detach(), expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(nll.detach(), plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_output_loss_gradient_by_finite_differences(smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "CHUNK_LOGITS", 30)
    states, output = random_inputs(3)
    assert torch.autograd.gradcheck(lambda *inputs: output_loss(*inputs, TARGETS, smoothing)[0], (states, output))


def test_output_loss_is_invariant_to_padding_and_splitting() -> None:
    states, output = random_inputs(4)
    total = torch.stack(output_loss(states, output, TARGETS, 0.1))
    wider = torch.stack(output_loss(F.pad(states, (0, 0, 0, 2), value=8.0), output, F.pad(TARGETS, (0, 2)), 0.1))
    row_losses = [torch.stack(output_loss(states[[row]], output, TARGETS[[row]], 0.1)) for row in range(3)]
    torch.testing.assert_close(wider, total, rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.stack(row_losses).sum(0), total, rtol=0, atol=1e-12)


def test_output_loss_huge_logits_stay_finite() -> None:
    states, output = random_inputs(5)
    smoothed, nll = output_loss(states.float() * 1e4, output.float(), TARGETS, 0.1)
    assert bool(torch.isfinite(smoothed))
    assert bool(torch.isfinite(nll))


def test_output_loss_without_grad_keeps_no_graph() -> None:
    states, output = random_inputs(6)
    with torch.no_grad():
        expected = label_smoothed_loss(compute_logits(states, output), TARGETS, 0.1)
        actual = output_loss(states, output, TARGETS, 0.1)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    assert actual[0].grad_fn is None


@pytest.mark.parametrize("frozen", ["states", "output"])
def test_output_loss_with_frozen_input_matches(frozen: str) -> None:
    states, output = random_inputs(7)
    trained = output if frozen == "states" else states
    expected = torch.autograd.grad(label_smoothed_loss(compute_logits(states, output), TARGETS, 0.1)[0], trained)
    (states if frozen == "states" else output).requires_grad_(False)
    actual = torch.autograd.grad(output_loss(states, output, TARGETS, 0.1)[0], trained)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk_logits", [100, 1 << 22])
def test_output_loss_in_bfloat16_is_close(chunk_logits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly the same loss and gradients, but not identical, or the setting would have no effect."""
    monkeypatch.setattr(step, "CHUNK_LOGITS", chunk_logits)
    torch.manual_seed(4)
    states = torch.randn(3, 5, 64, requires_grad=True)
    output = (torch.randn(VOCAB_SIZE, 64) / 8).requires_grad_()
    exact = output_loss(states, output, TARGETS, 0.1)
    expected = torch.autograd.grad(exact[0], (states, output))
    half = output_loss(states, output, TARGETS, 0.1, torch.bfloat16)
    gradients = torch.autograd.grad(half[0], (states, output))
    assert float(half[0].detach()) == pytest.approx(float(exact[0].detach()), rel=0.01)
    assert float(half[1]) != float(exact[1])
    for actual, reference in zip(gradients, expected, strict=True):
        assert actual.dtype == torch.float32
        assert float(F.cosine_similarity(actual.flatten(), reference.flatten(), dim=0)) > 0.999
        assert float(actual.norm() / reference.norm()) == pytest.approx(1, abs=0.01)
