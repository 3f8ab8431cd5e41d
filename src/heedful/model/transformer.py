"""The whole model of figure 1: encoder, decoder, and the output layer."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.model.cache import DecoderCache
from heedful.model.config import PAD, ModelConfig
from heedful.model.decoder import Decoder
from heedful.model.embedding import new_table
from heedful.model.encoder import Encoder
from heedful.model.observer import Observer, within


class Transformer(nn.Module):
    """Encoder-decoder Transformer; ``encode`` and ``decode`` apart, so that search needs nothing else."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        source = new_table(config.source_vocabulary, config.width)
        target = source if config.joint else new_table(config.target_vocabulary, config.width)
        output = target if config.tie_output else new_table(config.target_vocabulary, config.width)
        self.encoder = Encoder(config, source)
        self.decoder = Decoder(config, target)
        self.output = output  # a table of rows: one vector for each word that may come next

    @property
    def longest(self) -> int | None:
        """Tokens of the longest sentence; None for positions without an end."""
        return self.config.longest if self.config.positions == "learned" else None

    @staticmethod
    def visible(source: Tensor) -> Tensor | None:
        """Which source positions are no padding: (batch, 1, 1, length), or None when all are."""
        visible = source != PAD
        return None if bool(visible.all()) else visible[:, None, None]

    def encode(self, source: Tensor, observer: Observer | None = None) -> Tensor:
        """Source ids, each sentence ended and padded, to the memory: (batch, length, width)."""
        memory: Tensor = self.encoder(source, self.visible(source), within(observer, "encoder"))
        return memory

    def decode(
        self, target: Tensor, memory: Tensor, source: Tensor, observer: Observer | None = None
    ) -> Tensor:
        """States for a whole target, which starts with PAD: (batch, length, width)."""
        states: Tensor = self.decoder(target, memory, self.visible(source), within(observer, "decoder"))
        return states

    def forward(self, source: Tensor, target: Tensor, observer: Observer | None = None) -> Tensor:
        """States that predict each next token of ``target`` (teacher forcing)."""
        return self.decode(target, self.encode(source, observer), source, observer)

    def logits(self, states: Tensor) -> Tensor:
        """A score for every word of the target vocabulary; PAD can never be next."""
        logits = F.linear(states, self.output.weight)
        logits[..., PAD] = -torch.inf
        return logits

    def start(self, source: Tensor) -> DecoderCache:
        """Read the source; nothing is written yet."""
        return self.decoder.start(self.encode(source), self.visible(source))

    def step(self, tokens: Tensor, state: DecoderCache) -> tuple[Tensor, DecoderCache]:
        """Write one token a row; returns the log-probabilities of the next: (rows, vocabulary)."""
        states, state = self.decoder.step(tokens, state)
        return self.logits(states).log_softmax(-1), state

    def score(self, source: Tensor, target: Tensor) -> Tensor:
        """Log-probability of each token of a given target (ended, padded): 0 at padding."""
        before = torch.cat([target.new_full((target.size(0), 1), PAD), target[:, :-1]], dim=1)
        log_probabilities = self.logits(self(source, before)).log_softmax(-1)
        gained = log_probabilities.gather(-1, target[..., None])[..., 0]
        return gained.masked_fill(target == PAD, 0.0)

    def parameter_count(self) -> int:
        """Trained numbers, shared ones counted once."""
        return sum(parameter.numel() for parameter in self.parameters())
