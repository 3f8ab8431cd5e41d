"""Section 3.1: every sublayer is wrapped in a residual sum and a norm; here are the ways to do it."""

from collections.abc import Callable

from torch import Tensor, nn

from heedful.model.config import Architecture
from heedful.model.dropout import Dropout

Sublayer = Callable[[Tensor], Tensor]
EPSILON = 1e-5
Norm = nn.LayerNorm | nn.RMSNorm


def new_norm(config: Architecture) -> Norm:
    """LayerNorm: (x - mean) / sqrt(variance + eps) gain + bias; RMSNorm: x / sqrt(mean of x² + eps) gain."""
    kind = nn.LayerNorm if config.normalization == "layer" else nn.RMSNorm
    return kind(config.width, eps=EPSILON)


def new_final_norm(config: Architecture) -> nn.Module:
    """What a stack ends with: post-norm layers end normalised, a pre-norm stack is normalised once."""
    return new_norm(config) if config.norm == "pre" else nn.Identity()


class PostNorm(nn.Module):
    """Norm(x + Sublayer(x)), as in the paper; dropout on the sublayer's output (section 5.4)."""

    def __init__(self, config: Architecture) -> None:
        super().__init__()
        self.norm = new_norm(config)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        result: Tensor = self.norm(x + self.dropout(sublayer(x)))
        return result


class PreNorm(PostNorm):
    """x + Sublayer(Norm(x)): trains without warm-up; the stack needs one more norm at its end."""

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        result: Tensor = x + self.dropout(sublayer(self.norm(x)))
        return result


class PostNormAlone(PostNorm):
    """Norm(Sublayer(x)): what is left of the paper's layer without the residual sum."""

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        result: Tensor = self.norm(self.dropout(sublayer(x)))
        return result


class PreNormAlone(PreNorm):
    """Sublayer(Norm(x)), without the residual sum."""

    def forward(self, x: Tensor, sublayer: Sublayer) -> Tensor:
        result: Tensor = self.dropout(sublayer(self.norm(x)))
        return result


RESIDUALS: dict[tuple[str, bool], type[PostNorm]] = {
    ("post", True): PostNorm,
    ("pre", True): PreNorm,
    ("post", False): PostNormAlone,
    ("pre", False): PreNormAlone,
}


def new_residual(config: Architecture) -> PostNorm:
    """The one that this config describes."""
    return RESIDUALS[config.norm, config.residuals](config)
