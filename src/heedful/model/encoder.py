"""The encoder: a stack of layers that reads the whole source at once (section 3.1)."""

from torch import Tensor, nn

from heedful.model.config import Architecture
from heedful.model.embedding import Embedding
from heedful.model.layers import EncoderLayer
from heedful.model.observer import Observer, within
from heedful.model.residual import new_final_norm
from heedful.model.trees import DepthEmbedding, PieceEmbedding, structural_rows

EMBEDDINGS: dict[str, type[Embedding]] = {"tree": DepthEmbedding, "relative-tree": PieceEmbedding}
"""Of encoders that read trees."""


class Encoder(nn.Module):
    """Source ids to one vector a token, the memory that the decoder looks at."""

    def __init__(self, config: Architecture, table: nn.Embedding) -> None:
        super().__init__()
        self.embedding = EMBEDDINGS.get(config.positions, Embedding)(config, table)
        self.layers = nn.ModuleList(EncoderLayer(config, number) for number in range(config.encoder_layers))
        self.norm = new_final_norm(config)

    def forward(self, source: Tensor, visible: Tensor | None, observer: Observer | None = None) -> Tensor:
        x: Tensor = self.embedding(source)
        if observer is not None:
            observer("embedding", x)
        for number, layer in enumerate(self.layers):
            x = layer(x, visible, within(observer, str(number)))
        memory: Tensor = self.norm(x)
        if observer is not None:
            observer("memory", memory)
        return memory


class TreeEncoder(Encoder):
    """An encoder whose attention knows how words stand to each other in a tree."""

    def __init__(self, config: Architecture, table: nn.Embedding) -> None:
        super().__init__(config, table)
        self.distance = config.relative_distance

    def forward(self, source: Tensor, visible: Tensor | None, observer: Observer | None = None) -> Tensor:
        rows = structural_rows(source, visible, self.distance)
        if observer is not None:
            observer("tree", rows)
        return super().forward(source, rows, observer)


def new_encoder(config: Architecture, table: nn.Embedding) -> Encoder:
    """The encoder that this config describes."""
    return (TreeEncoder if config.positions == "relative-tree" else Encoder)(config, table)
