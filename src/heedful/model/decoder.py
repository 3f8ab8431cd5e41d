"""The decoder: a stack of layers that writes the target from left to right (section 3.1)."""

from dataclasses import replace

from torch import Tensor, nn

from heedful.model.cache import DecoderCache, LayerCache
from heedful.model.config import Architecture
from heedful.model.embedding import Embedding
from heedful.model.layers import DecoderLayer
from heedful.model.observer import Observer, within
from heedful.model.residual import new_final_norm


class Decoder(nn.Module):
    """Target ids and the encoder's memory to one vector a target position."""

    def __init__(self, config: Architecture, table: nn.Embedding) -> None:
        super().__init__()
        self.embedding = Embedding(config, table)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.norm = new_final_norm(config)

    def forward(
        self, target: Tensor, memory: Tensor, visible: Tensor | None, observer: Observer | None = None
    ) -> Tensor:
        """The whole target at once: (batch, length) ids to (batch, length, width)."""
        x: Tensor = self.embedding(target)
        if observer is not None:
            observer("embedding", x)
        for number, layer in enumerate(self.layers):
            x = layer(x, memory, visible, within(observer, str(number)))
        states: Tensor = self.norm(x)
        if observer is not None:
            observer("states", states)
        return states

    def start(self, memory: Tensor, visible: Tensor | None) -> DecoderCache:
        """An empty target for each sentence of the memory."""
        layers = []
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            key, value = layer.cross_attention.key_value(memory)
            nothing = key.new_empty(key.size(0), key.size(1), 0, key.size(3))
            layers.append(LayerCache(nothing, nothing, key, value))
        return DecoderCache(tuple(layers), visible)

    def step(self, tokens: Tensor, cache: DecoderCache) -> tuple[Tensor, DecoderCache]:
        """The states after one more token a row: (rows,) ids to (rows, width)."""
        x: Tensor = self.embedding(tokens[:, None], first=cache.length)
        layers = []
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            assert isinstance(layer, DecoderLayer)
            x, grown = layer.step(x, layer_cache, cache.visible)
            layers.append(grown)
        states = self.norm(x)[:, 0]
        return states, replace(cache, layers=tuple(layers), length=cache.length + 1)
