"""What all models share: the padded input, and the observer that receives intermediate tensors.

An observer gets named tensors (``encoder.0.self.weights``, ``decoder.2.cross.q``) during a forward pass.
Observing never changes the output, and unobserved tensors are never computed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from heedful.models.config import ModelConfig
from heedful.tokenization.dependency_trees import SentenceIds, TreeToken
from heedful.tokenization.special_tokens import END, PAD

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


TokenRows = Sequence[SentenceIds]


def pad_with_end(sentences: TokenRows) -> Tensor:
    """Add END and pad: (sentences, length), or (sentences, length, 3) if any sentence has a dependency tree.

    >>> pad_with_end([[7, 8], [9]]).tolist()
    [[7, 8, 1], [9, 1, 0]]
    """
    rows, end = [np.asarray(tokens, dtype=np.int64) for tokens in sentences], np.array([END])
    if any(row.ndim == 2 for row in rows):
        rows, end = [_add_empty_columns(row) for row in rows], _add_empty_columns(end)
    return torch.from_numpy(pad_rows([np.concatenate([row, end]) for row in rows], PAD))


def _add_empty_columns(row: NDArray[np.int64]) -> NDArray[np.int64]:
    """Tokens in no word of a dependency tree, if they are token ids alone."""
    return row if row.ndim == 2 else np.pad(row[:, None], ((0, 0), (0, len(TreeToken._fields) - 1)))


def pad_rows(rows: Sequence[NDArray[Any]], pad_id: int = 0) -> NDArray[np.int64]:
    """The rows as one array, shorter ones padded at the end; tokens may have columns.

    >>> pad_rows([np.array([5, 6, 7]), np.array([8])])
    array([[5, 6, 7],
           [8, 0, 0]])
    """
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    mask = np.arange(lengths.max(initial=0)) < lengths[:, None]  # (rows, longest)
    if not len(rows):
        return np.empty(mask.shape, dtype=np.int64)
    padded = np.full((*mask.shape, *rows[0].shape[1:]), pad_id, dtype=np.int64)
    padded[mask] = np.concatenate(rows)
    return padded


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
