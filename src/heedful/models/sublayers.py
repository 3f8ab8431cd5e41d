"""The parts of every layer: feed-forward (section 3.3), residual and norm (3.1), dropout (5.4)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.models.config import NORM_EPSILON, ArchitectureConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


class FeedForward(nn.Module):
    """max(0, x W_1 + b_1) W_2 + b_2, equation 2."""

    def __init__(self, config: ArchitectureConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.d_model, config.d_ff)
        self.outer = nn.Linear(config.d_ff, config.d_model)
        self.activation = ACTIVATIONS[config.activation]
        self.dropout = Dropout(config.activation_dropout)
        for linear in (self.inner, self.outer):
            _initialize(linear)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.outer(self.dropout(self.activation(self.inner(x))))
        return result


class GatedFeedForward(FeedForward):
    """(activation(x W_1 + b_1) * (x V + c)) W_2 + b_2: a gated linear unit (Shazeer 2020)."""

    def __init__(self, config: ArchitectureConfig) -> None:
        super().__init__(config)
        self.gate = nn.Linear(config.d_model, config.d_ff)
        _initialize(self.gate)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.outer(self.dropout(self.activation(self.inner(x)) * self.gate(x)))
        return result


def new_feed_forward(config: ArchitectureConfig) -> FeedForward:
    """Build the feed-forward network of a layer."""
    return (GatedFeedForward if config.gated_feed_forward else FeedForward)(config)


def _initialize(linear: nn.Linear) -> None:
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)


Sublayer = Callable[[Tensor], Tensor]

Norm = nn.LayerNorm | nn.RMSNorm


def new_norm(config: ArchitectureConfig) -> Norm:
    """LayerNorm: (x - mean) / sqrt(var + eps) * gain + bias; RMSNorm: x / sqrt(mean(x²) + eps) * gain."""
    norm_class = nn.LayerNorm if config.norm == "layernorm" else nn.RMSNorm
    return norm_class(config.d_model, eps=NORM_EPSILON)


def new_final_norm(config: ArchitectureConfig) -> nn.Module:
    """The norm after the last layer, which only a pre-norm stack needs."""
    return new_norm(config) if config.norm_placement == "pre" else nn.Identity()


class PostNorm(nn.Module):
    """Norm(x + Sublayer(x)), as in the paper; dropout on the sublayer's output (section 5.4)."""

    def __init__(self, config: ArchitectureConfig) -> None:
        super().__init__()
        self.norm = new_norm(config)
        self.dropout = Dropout(config.dropout)
        self.residuals = config.residuals

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        return self.combine(x, sublayer(self.prepare(x)))

    def prepare(self, x: Tensor) -> Tensor:
        """The input of the sublayer."""
        return x

    def combine(self, x: Tensor, output: Tensor) -> Tensor:
        """The result, from the input ``x`` and the output of the sublayer."""
        result: Tensor = self.norm(self.add(x, output))
        return result

    def add(self, x: Tensor, output: Tensor) -> Tensor:
        """x + dropout(output), or dropout(output) alone in ablations without residuals."""
        dropped: Tensor = self.dropout(output)
        return x + dropped if self.residuals else dropped


class PreNorm(PostNorm):
    """x + Sublayer(Norm(x)): trains without warm-up; the stack needs one more norm at its end."""

    def prepare(self, x: Tensor) -> Tensor:
        normalized: Tensor = self.norm(x)
        return normalized

    def combine(self, x: Tensor, output: Tensor) -> Tensor:
        return self.add(x, output)


def new_residual(config: ArchitectureConfig) -> PostNorm:
    """Build the residual connection and norm around a sublayer."""
    return (PreNorm if config.norm_placement == "pre" else PostNorm)(config)


INT16_LEVELS = 1 << 16


class Dropout(nn.Module):
    """Zero each element with probability ``p`` and scale the others by 1 / (1 - p).

    On CPUs, drawing one random number per element takes an eighth of a training step; here each 64-bit draw
    serves four elements with 16 bits each, precise enough for any p.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self.p):
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        threshold = round(self.p * INT16_LEVELS)
        keep_mask = random_int16(x.shape) >= threshold - INT16_LEVELS // 2
        return x * (keep_mask.to(x.dtype) * (INT16_LEVELS / (INT16_LEVELS - threshold)))


def random_int16(shape: torch.Size) -> Tensor:
    """Uniform 16-bit integers from torch's global generator."""
    count = shape.numel()
    draws = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    return draws.view(torch.int16)[:count].view(shape)
