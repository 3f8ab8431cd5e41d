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
        logits = F.linear(states, self.output.weight)
        logits[..., PAD] = -torch.inf
        return logits

    def parameter_count(self) -> int:
        """Trained numbers, shared ones counted once."""
        return sum(parameter.numel() for parameter in self.parameters())
