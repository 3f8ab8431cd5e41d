"""Section 3.4: token ids to vectors, times sqrt(d_model), plus positions, then dropout."""

import torch
from torch import Tensor, nn

from heedful.model.config import PAD, Architecture, ModelConfig
from heedful.model.dropout import Dropout
from heedful.model.positions import new_positions


def new_table(vocabulary: int, width: int) -> nn.Embedding:
    """An embedding matrix of the paper's scale, with a zero row for padding that stays zero."""
    table = nn.Embedding(vocabulary, width, padding_idx=PAD)
    nn.init.normal_(table.weight, std=width**-0.5)
    with torch.no_grad():
        table.weight[PAD].zero_()
    return table


def new_tables(config: ModelConfig) -> tuple[nn.Embedding, nn.Embedding, nn.Embedding]:
    """Of the source, of the target and of the output layer: one and the same where the config ties them."""
    source = new_table(config.source_vocabulary, config.width)
    target = source if config.joint else new_table(config.target_vocabulary, config.width)
    return source, target, target if config.tie_output else new_table(config.target_vocabulary, config.width)


def new_output_bias(config: ModelConfig) -> nn.Parameter | None:
    """A number for each word that may be predicted, zero at first; None if the output layer has none."""
    return nn.Parameter(torch.zeros(config.target_vocabulary)) if config.output_bias else None


class Embedding(nn.Module):
    """Ids to the vectors that enter the first layer. The table may be shared with other modules."""

    def __init__(self, config: Architecture, table: nn.Embedding) -> None:
        super().__init__()
        self.table = table
        self.positions = new_positions(config)
        self.scale = config.embedding_scale
        self.dropout = Dropout(config.dropout)

    def forward(self, tokens: Tensor, first: int = 0) -> Tensor:
        """Vectors of ``tokens`` (batch, length), the first of which stands at position ``first``."""
        result: Tensor = self.dropout(self.vectors(tokens) * self.scale + self.places(tokens, first))
        return result

    def vectors(self, tokens: Tensor) -> Tensor:
        """The rows of the table: (batch, length, width)."""
        rows: Tensor = self.table(tokens)
        return rows

    def places(self, tokens: Tensor, first: int = 0) -> Tensor:
        """What is added to them for where they stand: (length, width), or one for each sentence."""
        positions: Tensor = self.positions(tokens.size(1), first)
        return positions
