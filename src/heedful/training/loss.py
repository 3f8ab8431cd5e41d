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


def output_loss(
    states: Tensor, output: Tensor, targets: Tensor, smoothing: float, products: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """``label_smoothed_loss`` of ``states @ output.T``; ``output`` is the output layer, a row a word.

    Matrices are multiplied in the precision ``products`` if that is given; everything else keeps its own.
    """
    counts = targets != PAD
    smoothed, likelihood = _OutputLoss.apply(  # type: ignore[no-untyped-call]
        states[counts], output, targets[counts], smoothing, products or output.dtype
    )
    return smoothed, likelihood


class _OutputLoss(torch.autograd.Function):
    """Forward computes the gradients too: it has the logits at hand, and they are thrown away at once."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, output: Tensor, targets: Tensor, smoothing: float, products: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        wanted = any(ctx.needs_input_grad)
        words = output[PAD + 1 :]
        head = _Head(words.to(products), words.mean(0), smoothing)
        state_gradient = torch.empty_like(states) if wanted else None
        word_gradient = torch.zeros_like(words) if wanted else None
        smoothed = likelihood = torch.zeros((), dtype=torch.float64, device=states.device)
        rows = max(1, CHUNK_NUMBERS // len(words))
        for first in range(0, len(states), rows):
            part, right = states[first : first + rows], targets[first : first + rows] - (PAD + 1)
            exponentials, total, losses = head.losses(part, right)
            smoothed, likelihood = smoothed + losses[0], likelihood + losses[1]
            if state_gradient is not None and word_gradient is not None:
                state_gradient[first : first + rows] = head.gradients(
                    part, right, exponentials, total, words, word_gradient
                )
        if word_gradient is not None:
            # Each word's share of the smoothing is the same: once for all of them.
            word_gradient -= states.sum(0) * (smoothing / len(words))
        ctx.save_for_backward(state_gradient, word_gradient)
        likelihood = likelihood.to(output.dtype)
        ctx.mark_non_differentiable(likelihood)
        return smoothed.to(output.dtype), likelihood

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        state_gradient, word_gradient = ctx.saved_tensors
        scale = gradients[0]
        whole = torch.nn.functional.pad(word_gradient, (0, 0, PAD + 1, 0))
        return state_gradient * scale, whole * scale, None, None, None


class _Head:
    """The output layer of some tokens: their losses, and the gradient, softmax - goal, of their logits.

    A pass over all logits costs a good part of a product with them, so there are as few as can be: the mean
    logit comes from the mean word, and softmax's division and the goal are applied to what the logits are
    multiplied with, which is shorter by far.
    """

    def __init__(self, words: Tensor, mean_word: Tensor, smoothing: float) -> None:
        self.words, self.mean_word, self.smoothing = words, mean_word, smoothing

    def losses(self, states: Tensor, right: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """exp(logits), their sum, and the smoothed and plain loss summed over the tokens."""
        logits = (states.to(self.words.dtype) @ self.words.T).to(states.dtype)
        chosen = logits.gather(1, right[:, None])[:, 0]
        highest = logits.amax(1, keepdim=True)
        exponentials = logits.sub_(highest).exp_()
        total = exponentials.sum(1, keepdim=True)
        normaliser = (total.log() + highest)[:, 0]
        goal = (1 - self.smoothing) * chosen + self.smoothing * (states @ self.mean_word)
        return (
            exponentials,
            total,
            ((normaliser - goal).sum(dtype=torch.float64), (normaliser - chosen).sum(dtype=torch.float64)),
        )

    def gradients(
        self,
        states: Tensor,
        right: Tensor,
        exponentials: Tensor,
        total: Tensor,
        words: Tensor,
        word_gradient: Tensor,
    ) -> Tensor:
        """Of the states; those of the words are added to ``word_gradient``."""
        precision, kept = self.words.dtype, 1 - self.smoothing
        exponentials = exponentials.to(precision)
        scaled = (states / total).to(precision)
        if precision == words.dtype:
            word_gradient.addmm_(exponentials.T, scaled)
        else:
            word_gradient += exponentials.T @ scaled
        word_gradient.index_add_(0, right, states, alpha=-kept)
        gradient = (exponentials @ self.words).to(words.dtype).div_(total)
        gradient.sub_(words[right], alpha=kept)
        return gradient.sub_(self.mean_word, alpha=self.smoothing)
