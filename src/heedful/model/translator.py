"""A model that writes from left to right: search and scoring need no more of it."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from heedful.model.config import PAD
from heedful.model.predictor import Predictor


class Scorer(ABC):
    """Says how likely given targets are."""

    @abstractmethod
    def log_probabilities(self, source: Tensor, before: Tensor) -> Tensor:
        """Of every next token of targets, given with their start: (batch, length, vocabulary)."""

    def score(self, source: Tensor, target: Tensor) -> Tensor:
        """Log-probability of each token of a given target (ended, padded): 0 at padding."""
        before = torch.cat([target.new_full((target.size(0), 1), PAD), target[:, :-1]], dim=1)
        gained = self.log_probabilities(source, before).gather(-1, target[..., None])[..., 0]
        return gained.masked_fill(target == PAD, 0.0)


class Translator(Predictor, Scorer):
    """Reads a source, and writes a target one token at a time."""

    @abstractmethod
    def start(self, source: Tensor) -> Any:
        """Read the source; nothing is written yet."""

    @abstractmethod
    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Write one token a row; returns the log-probabilities of the next: (rows, vocabulary)."""

    def log_probabilities(self, source: Tensor, before: Tensor) -> Tensor:
        return self.logits(self(source, before)).log_softmax(-1)
