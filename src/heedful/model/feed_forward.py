"""Section 3.3: the feed-forward network of every layer, the same for every position, and its gated kin."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from heedful.model.config import Architecture
from heedful.model.dropout import Dropout

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


class FeedForward(nn.Module):
    """max(0, x W_1 + b_1) W_2 + b_2, equation 2."""

    def __init__(self, config: Architecture) -> None:
        super().__init__()
        self.inner = nn.Linear(config.width, config.feed_forward_width)
        self.outer = nn.Linear(config.feed_forward_width, config.width)
        self.activation = ACTIVATIONS[config.activation]
        self.dropout = Dropout(config.activation_dropout)
        for linear in (self.inner, self.outer):
            _start(linear)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.outer(self.dropout(self.activation(self.inner(x))))
        return result


class GatedFeedForward(FeedForward):
    """(activation(x W_1 + b_1) * (x V + c)) W_2 + b_2: a gated linear unit (Shazeer 2020)."""

    def __init__(self, config: Architecture) -> None:
        super().__init__(config)
        self.gate = nn.Linear(config.width, config.feed_forward_width)
        _start(self.gate)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.outer(self.dropout(self.activation(self.inner(x)) * self.gate(x)))
        return result


def new_feed_forward(config: Architecture) -> FeedForward:
    """The one that this config describes."""
    return (GatedFeedForward if config.gated else FeedForward)(config)


def _start(linear: nn.Linear) -> None:
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
