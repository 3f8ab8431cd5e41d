"""Section 5.4: cross-entropy with label smoothing, summed over tokens.

The caller divides once by all target tokens of the update, so that splitting a batch changes nothing.
``label_smoothed_loss`` is the formula; ``output_loss`` computes the same from the states, output layer
included, some tokens at a time, and its gradient on the way: the logits of a whole batch never exist.
"""

from typing import Any

import torch
from torch import Tensor

from heedful.model.config import PAD

CHUNK_NUMBERS = 1 << 22
"""Logits held at a time: 16 MB, half of a usual last-level cache."""


def label_smoothed_loss(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Smoothed loss and plain negative log-likelihood, both summed over the tokens that are not PAD.

    The smoothed goal is 1 - smoothing for the right word, plus smoothing / words for each word.
    """
    log_probabilities = logits.log_softmax(-1)
    likelihood = -log_probabilities.gather(-1, targets[..., None])[..., 0]
    spread = -log_probabilities[..., PAD + 1 :].mean(-1)  # PAD is never the next word
    counts = targets != PAD
    smoothed = (1 - smoothing) * likelihood + smoothing * spread
    return smoothed[counts].sum(), likelihood[counts].sum()


def output_loss(states: Tensor, output: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """``label_smoothed_loss`` of ``states @ output.T``; ``output`` is the output layer, a row a word."""
    counts = targets != PAD
    smoothed, likelihood = _OutputLoss.apply(  # type: ignore[no-untyped-call]
        states[counts], output, targets[counts], smoothing
    )
    return smoothed, likelihood


class _OutputLoss(torch.autograd.Function):
    """Forward computes the gradients too: it has the logits at hand, and they are thrown away at once."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, output: Tensor, targets: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        wanted = any(ctx.needs_input_grad)
        words = output[PAD + 1 :]
        state_gradient = torch.empty_like(states) if wanted else None
        word_gradient = torch.zeros_like(words) if wanted else None
        smoothed = likelihood = torch.zeros((), dtype=torch.float64, device=states.device)
        rows = max(1, CHUNK_NUMBERS // len(words))
        for first in range(0, len(states), rows):
            part, right = states[first : first + rows], targets[first : first + rows] - (PAD + 1)
            part_smoothed, part_likelihood, gradient = _chunk(part @ words.T, right, smoothing, wanted)
            smoothed, likelihood = smoothed + part_smoothed, likelihood + part_likelihood
            if gradient is not None and state_gradient is not None and word_gradient is not None:
                torch.mm(gradient, words, out=state_gradient[first : first + rows])
                word_gradient.addmm_(gradient.T, part)
        ctx.save_for_backward(state_gradient, word_gradient)
        likelihood = likelihood.to(output.dtype)
        ctx.mark_non_differentiable(likelihood)
        return smoothed.to(output.dtype), likelihood

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        state_gradient, word_gradient = ctx.saved_tensors
        scale = gradients[0]
        whole = torch.nn.functional.pad(word_gradient, (0, 0, PAD + 1, 0))
        return state_gradient * scale, whole * scale, None, None


def _chunk(
    logits: Tensor, right: Tensor, smoothing: float, wanted: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Losses of some tokens, and the gradient of their logits: softmax - goal. Overwrites the logits."""
    index = right[:, None]
    words = logits.size(1)
    chosen = logits.gather(1, index)[:, 0]
    average = logits.mean(1)
    highest = logits.amax(1, keepdim=True)
    exponentials = logits.sub_(highest).exp_()
    total = exponentials.sum(1, keepdim=True)
    normaliser = (total.log() + highest)[:, 0]
    smoothed = normaliser - (1 - smoothing) * chosen - smoothing * average
    likelihood = normaliser - chosen
    if not wanted:
        return smoothed.sum(dtype=torch.float64), likelihood.sum(dtype=torch.float64), None
    gradient = exponentials.div_(total)
    if smoothing:
        gradient.sub_(smoothing / words)
    gradient.scatter_add_(1, index, gradient.new_full((1, 1), smoothing - 1).expand_as(index))
    return smoothed.sum(dtype=torch.float64), likelihood.sum(dtype=torch.float64), gradient
