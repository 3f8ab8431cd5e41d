"""Section 5.4: numbers dropped at random while training.

On CPUs drawing one random number for each element is an eighth of a training step; four come from each
draw here, 16 bits each, which is fine enough for any rate.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 1 << 16


class Dropout(nn.Module):
    """Each number becomes zero with probability ``rate``; the others grow by 1 / (1 - rate)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and self.rate):
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.rate)
        dropped = round(self.rate * LEVELS)
        kept = random_levels(x.shape) >= dropped - LEVELS // 2
        return x * (kept.to(x.dtype) * (LEVELS / (LEVELS - dropped)))

    def extra_repr(self) -> str:
        return f"{self.rate}"


def random_levels(shape: torch.Size) -> Tensor:
    """Evenly distributed 16-bit integers, from -32,768 to 32,767, by torch's generator."""
    count = shape.numel()
    draws = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    return draws.view(torch.int16)[:count].view(shape)
