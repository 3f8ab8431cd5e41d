"""What all models share, and the observer that receives intermediate tensors.

An observer gets named tensors (``encoder.0.self.weights``, ``decoder.2.cross.q``) during a forward pass.
Observing never changes the output, and unobserved tensors are never computed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.models.config import ModelConfig
from heedful.tokenization.special_tokens import PAD

Observer = Callable[[str, Tensor], None]


def observe(observer: Observer | None, name: str, value: Tensor) -> None:
    """Report a tensor to the observer, if there is one."""
    if observer is not None:
        observer(name, value)


def scope_observer(observer: Observer | None, scope: str) -> Observer | None:
    """Prefix the names that a submodule reports with ``scope``."""
    if observer is None:
        return None
    return lambda name, value: observer(f"{scope}.{name}", value)


def select_token_ids(source: Tensor) -> Tensor:
    """The token ids of a source: itself, or with dependency trees the first of its columns: (batch, length)."""
    return source if source.dim() == 2 else source[..., 0]


class Model(nn.Module):
    """Predicts target tokens from source tokens; all that training needs."""

    config: ModelConfig
    output: nn.Embedding
    """Output layer: one row per target token, often the target embedding itself (section 3.4)."""
    output_bias: nn.Parameter | None
    """Bias of the output layer, if it has one."""

    @property
    @abstractmethod
    def embeddings(self) -> tuple[nn.Embedding, nn.Embedding]:
        """Token embeddings of source and target."""

    @property
    def max_length(self) -> int | None:
        """Maximum sentence length in tokens; None if unlimited."""
        return self.config.max_length if self.config.has_max_length else None

    @staticmethod
    def source_attention_mask(source: Tensor) -> Tensor | None:
        """Mask of the source padding: (batch, 1, 1, length), or None without padding."""
        attention_mask = select_token_ids(source) != PAD
        return None if bool(attention_mask.all()) else attention_mask[:, None, None]

    @abstractmethod
    def encode(self, source: Tensor, observer: Observer | None = None) -> Tensor:
        """Encode source ids (ending with END, padded) to the memory: (batch, length, d_model).

        A model that reads dependency trees also takes (batch, length, 3): token id, word and head.
        """

    @abstractmethod
    def decode(self, target: Tensor, memory: Tensor, source: Tensor, observer: Observer | None = None) -> Tensor:
        """Decoder states for a target that starts with PAD: (batch, length, d_model)."""

    def forward(self, source: Tensor, target: Tensor, observer: Observer | None = None) -> Tensor:
        """States that predict the next token at each target position (teacher forcing)."""
        return self.decode(target, self.encode(source, observer), source, observer)

    def logits(self, states: Tensor) -> Tensor:
        """Logits over the target vocabulary; -inf for PAD, which is never predicted."""
        logits = F.linear(states, self.output.weight, self.output_bias)
        logits[..., PAD] = -torch.inf
        return logits

    def output_product(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """The two factors of the logits, states and output rows; a bias becomes one more column of both."""
        weight = self.output.weight
        if self.output_bias is None:
            return states.to(weight.dtype), weight
        ones = states.new_ones(*states.shape[:-1], 1)
        return (torch.cat([states, ones], -1).to(weight.dtype), torch.cat([weight, self.output_bias[:, None]], -1))

    def parameter_count(self) -> int:
        """Number of trained parameters; shared ones count once."""
        return sum(parameter.numel() for parameter in self.parameters())


class Scorer(ABC):
    """Scores given targets: a model, or an ensemble of models."""

    @abstractmethod
    def log_probabilities(self, source: Tensor, decoder_input: Tensor) -> Tensor:
        """Log-probabilities of the next token at each position: (batch, length, vocabulary)."""

    def score(self, source: Tensor, target: Tensor) -> Tensor:
        """Log-probability of each token of a target (ending with END, padded); 0 at padding."""
        decoder_input = torch.cat([target.new_full((target.size(0), 1), PAD), target[:, :-1]], dim=1)
        log_probabilities = self.log_probabilities(source, decoder_input)
        return log_probabilities.gather(-1, target[..., None])[..., 0].masked_fill(target == PAD, 0.0)


class AutoregressiveModel(Model, Scorer):
    """Generates from left to right, one token at a time (generation/decoder_protocol.py)."""

    @abstractmethod
    def start(self, source: Tensor) -> Any:
        """Encode the source; the decoder state of an empty target."""

    @abstractmethod
    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Append one token per row; log-probabilities of the next one (rows, vocabulary) and the state."""

    def log_probabilities(self, source: Tensor, decoder_input: Tensor) -> Tensor:
        return self.logits(self(source, decoder_input)).log_softmax(-1)


class Seq2SeqModel(AutoregressiveModel):
    """Reads a source sentence and generates its translation."""
