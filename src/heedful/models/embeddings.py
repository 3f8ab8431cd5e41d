"""Sections 3.4 and 3.5: token embeddings, scaled by sqrt(d_model), plus positional encodings."""

import torch
from torch import Tensor, nn

from heedful.models.config import SINUSOIDAL_POSITIONS, ArchitectureConfig, ModelConfig, too_long_error
from heedful.models.sublayers import Dropout
from heedful.tokenization.special_tokens import PAD


class Embedding(nn.Module):
    """Token ids to the input of the first layer: embedding * sqrt(d_model) + position, then dropout."""

    def __init__(self, config: ArchitectureConfig, token_embedding: nn.Embedding) -> None:
        super().__init__()
        self.table = token_embedding
        self.positions = new_positions(config)
        self.scale = config.embedding_scale
        self.dropout = Dropout(config.dropout)

    def forward(self, tokens: Tensor, offset: int = 0) -> Tensor:
        """(batch, length) ids, the first at position ``offset``, to (batch, length, d_model)."""
        result: Tensor = self.dropout(self.token_vectors(tokens) * self.scale + self.position_vectors(tokens, offset))
        return result

    def token_vectors(self, tokens: Tensor) -> Tensor:
        """Rows of the embedding matrix: (batch, length, d_model)."""
        rows: Tensor = self.table(tokens)
        return rows

    def position_vectors(self, tokens: Tensor, offset: int = 0) -> Tensor:
        """Positional encodings: (length, d_model), or (batch, length, d_model)."""
        positions: Tensor = self.positions(tokens.size(1), offset)
        return positions


def new_token_embedding(vocab_size: int, d_model: int) -> nn.Embedding:
    """Build an embedding matrix with standard deviation 1 / sqrt(d_model); the PAD row is and stays zero."""
    embedding = nn.Embedding(vocab_size, d_model, padding_idx=PAD)
    nn.init.normal_(embedding.weight, std=d_model**-0.5)
    with torch.no_grad():
        embedding.weight[PAD].zero_()
    return embedding


def new_token_embeddings(config: ModelConfig) -> tuple[nn.Embedding, nn.Embedding, nn.Embedding]:
    """Build the embeddings of source, target and output layer; shared matrices are the same object."""
    source = target = new_token_embedding(config.source_vocab_size, config.d_model)
    if not config.share_embeddings:
        target = new_token_embedding(config.target_vocab_size, config.d_model)
    output = target
    if not config.tie_output_embeddings:
        output = new_token_embedding(config.target_vocab_size, config.d_model)
    return source, target, output


def new_output_bias(config: ModelConfig) -> nn.Parameter | None:
    """Build the bias of the output layer, initially zero; None if the config has none."""
    return nn.Parameter(torch.zeros(config.target_vocab_size)) if config.output_bias else None


def sinusoids(length: int, d_model: int, offset: int = 0) -> Tensor:
    """``exact_sinusoids`` in float32, as the model uses them."""
    return exact_sinusoids(length, d_model, offset).float()


def exact_sinusoids(length: int, d_model: int, offset: int = 0) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos; from position ``offset`` on.

    >>> exact_sinusoids(2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 1.0000]], dtype=torch.float64)
    """
    position = torch.arange(offset, offset + length, dtype=torch.float64)[:, None]
    divisor = 10000 ** (torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    angle = position / divisor  # (length, d_model / 2)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


class SinusoidalPositions(nn.Module):
    """The paper's fixed sinusoids: no parameters, no maximum length."""

    table: Tensor

    def __init__(self, d_model: int, cached_length: int = 256) -> None:
        super().__init__()
        self.d_model = d_model
        self.register_buffer("table", sinusoids(cached_length, d_model), persistent=False)

    def forward(self, length: int, offset: int = 0) -> Tensor:
        """Encodings of positions ``offset`` to ``offset + length``: (length, d_model)."""
        if offset + length <= len(self.table):
            return self.table[offset : offset + length]
        return sinusoids(length, self.d_model, offset).to(self.table)


class LearnedPositions(nn.Module):
    """One trained vector per position up to ``max_length``; about as good as sinusoids (table 3, row E)."""

    def __init__(self, d_model: int, max_length: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(max_length, d_model))
        nn.init.normal_(self.table, std=d_model**-0.5)

    def forward(self, length: int, offset: int = 0) -> Tensor:
        """Encodings of positions ``offset`` to ``offset + length``: (length, d_model)."""
        if offset + length > len(self.table):
            raise too_long_error(offset + length, len(self.table))
        return self.table[offset : offset + length]


class NoPositions(nn.Module):
    """Adds nothing: positions are known within self-attention (relative_positions.py) or not at all."""

    nothing: Tensor

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.register_buffer("nothing", torch.zeros(1, d_model), persistent=False)

    def forward(self, length: int, offset: int = 0) -> Tensor:
        """Zeros: (length, d_model)."""
        return self.nothing.expand(length, -1)


def new_positions(config: ArchitectureConfig) -> nn.Module:
    """Build the positional encoding that is added to embeddings."""
    if config.positions in SINUSOIDAL_POSITIONS:
        return SinusoidalPositions(config.d_model)
    if config.positions == "learned":
        return LearnedPositions(config.d_model, config.max_length)
    return NoPositions(config.d_model)
