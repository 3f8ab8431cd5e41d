"""What every model has in common: it reads ids, and has a score for every word at every place."""

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.model.config import PAD, ModelConfig
from heedful.model.observer import Observer


class Predictor(nn.Module):
    """Training needs no more of a model."""

    config: ModelConfig
    output: nn.Embedding
    """A table of rows: one vector for each word that may be predicted."""
    output_bias: nn.Parameter | None
    """A number for each of these words, where the output layer has them."""

    @property
    @abstractmethod
    def tables(self) -> tuple[nn.Embedding, nn.Embedding]:
        """The vectors of source words and of target words."""

    @property
    def longest(self) -> int | None:
        """Tokens of the longest sentence; None if there is no table that ends."""
        return self.config.longest if self.config.ends else None

    @staticmethod
    def visible(source: Tensor) -> Tensor | None:
        """Which source positions are no padding: (batch, 1, 1, length), or None when all are."""
        visible = source != PAD
        return None if bool(visible.all()) else visible[:, None, None]

    @abstractmethod
    def encode(self, source: Tensor, observer: Observer | None = None) -> Tensor:
        """Source ids, each sentence ended and padded, to the memory: (batch, length, width)."""

    @abstractmethod
    def decode(
        self, target: Tensor, memory: Tensor, source: Tensor, observer: Observer | None = None
    ) -> Tensor:
        """States for a whole target, which starts with PAD: (batch, length, width)."""

    def forward(self, source: Tensor, target: Tensor, observer: Observer | None = None) -> Tensor:
        """States that predict each next token of ``target`` (teacher forcing)."""
        return self.decode(target, self.encode(source, observer), source, observer)

    def logits(self, states: Tensor) -> Tensor:
        """A score for every word of the target vocabulary; PAD can never be next."""
        logits = F.linear(states, self.output.weight, self.output_bias)
        logits[..., PAD] = -torch.inf
        return logits

    def output_product(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """States and rows, a word each, whose products are the logits: a bias is one more column."""
        rows = self.output.weight
        if self.output_bias is None:
            return states.to(rows.dtype), rows
        ones = states.new_ones(*states.shape[:-1], 1)
        return (
            torch.cat([states, ones], -1).to(rows.dtype),
            torch.cat([rows, self.output_bias[:, None]], -1),
        )

    def parameter_count(self) -> int:
        """Trained numbers, shared ones counted once."""
        return sum(parameter.numel() for parameter in self.parameters())
