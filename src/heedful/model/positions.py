"""Section 3.5: where a token stands, as a vector added to its embedding."""

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError
from heedful.model.config import SINUSOIDAL, Architecture


def sinusoids(length: int, width: int, first: int = 0) -> Tensor:
    """The table of the model: ``exact_sinusoids``, rounded to float32."""
    return exact_sinusoids(length, width, first).float()


def exact_sinusoids(length: int, width: int, first: int = 0) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos of the same; rows ``first`` and on.

    >>> exact_sinusoids(2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 1.0000]], dtype=torch.float64)
    """
    position = torch.arange(first, first + length, dtype=torch.float64)[:, None]
    rate = 10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = position / rate  # (length, width / 2)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


class SinusoidalPositions(nn.Module):
    """The paper's fixed sines: no parameters, no longest sentence."""

    table: Tensor

    def __init__(self, width: int, ready: int = 256) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("table", sinusoids(ready, width), persistent=False)

    def forward(self, length: int, first: int = 0) -> Tensor:
        """Rows ``first`` to ``first + length``: (length, width)."""
        if first + length <= len(self.table):
            return self.table[first : first + length]
        return sinusoids(length, self.width, first).to(self.table)


class LearnedPositions(nn.Module):
    """A trained row for each position up to ``longest``; the paper found both nearly equal."""

    def __init__(self, width: int, longest: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(longest, width))
        nn.init.normal_(self.table, std=width**-0.5)

    def forward(self, length: int, first: int = 0) -> Tensor:
        """Rows ``first`` to ``first + length``: (length, width)."""
        if first + length > len(self.table):
            longest = len(self.table)
            raise HeedfulError(
                f"{first + length} tokens are too many: this model's learned positions end at {longest}",
                hint="give shorter sentences, or train with a larger model.longest",
            )
        return self.table[first : first + length]


class NoPositions(nn.Module):
    """Nothing is added: words know their places within self-attention (relative.py), or not at all."""

    nothing: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("nothing", torch.zeros(1, width), persistent=False)

    def forward(self, length: int, first: int = 0) -> Tensor:
        """Zeros, wherever they stand: (length, width)."""
        return self.nothing.expand(length, -1)


def new_positions(config: Architecture) -> nn.Module:
    """What this config adds to embeddings."""
    if config.positions in SINUSOIDAL:
        return SinusoidalPositions(config.width)
    if config.positions == "learned":
        return LearnedPositions(config.width, config.longest)
    return NoPositions(config.width)
