"""Figure 1: the encoder-decoder Transformer.

    target ids -> Decoder: embedding + positions -> N x DecoderLayer -> output layer -> log-probabilities
                                                        ^ cross-attention
    source ids -> Encoder: embedding + positions -> N x EncoderLayer -> memory

The layers are in layers.py, their attention in attention.py, the embeddings in embeddings.py.
"""

from dataclasses import replace

from torch import Tensor, nn

from heedful.models.base import Observer, Seq2SeqModel, observe, scope_observer
from heedful.models.config import ArchitectureConfig, ModelConfig
from heedful.models.embeddings import Embedding, new_output_bias, new_token_embeddings
from heedful.models.layers import DecoderCache, DecoderLayer, EncoderLayer, LayerCache
from heedful.models.relative_positions import DepthEmbedding, split_columns, structural_distance_ids
from heedful.models.sublayers import new_final_norm


class Transformer(Seq2SeqModel):
    """The whole model of figure 1."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        source, target, output = new_token_embeddings(config)
        self.encoder = (TreeEncoder if config.positions == "relative-dependency" else Encoder)(config, source)
        self.decoder = Decoder(config, target)
        self.output = output
        self.output_bias = new_output_bias(config)

    @property
    def embeddings(self) -> tuple[nn.Embedding, nn.Embedding]:
        return self.encoder.embedding.table, self.decoder.embedding.table

    def encode(self, source: Tensor, observer: Observer | None = None) -> Tensor:
        memory: Tensor = self.encoder(source, self.source_attention_mask(source), scope_observer(observer, "encoder"))
        return memory

    def decode(self, target: Tensor, memory: Tensor, source: Tensor, observer: Observer | None = None) -> Tensor:
        states: Tensor = self.decoder(
            target, memory, self.source_attention_mask(source), scope_observer(observer, "decoder")
        )
        return states

    def start(self, source: Tensor) -> DecoderCache:
        return self.decoder.start(self.encode(source), self.source_attention_mask(source))

    def step(self, tokens: Tensor, state: DecoderCache) -> tuple[Tensor, DecoderCache]:
        states, state = self.decoder.step(tokens, state)
        return self.logits(states).log_softmax(-1), state


class Encoder(nn.Module):
    """Source ids to the memory: one vector per source token."""

    def __init__(self, config: ArchitectureConfig, token_embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding = (DepthEmbedding if config.positions == "dependency" else Embedding)(config, token_embedding)
        self.layers = nn.ModuleList(EncoderLayer(config, index) for index in range(config.encoder_layers))
        self.norm = new_final_norm(config)

    def forward(self, source: Tensor, attention_mask: Tensor | None, observer: Observer | None = None) -> Tensor:
        x: Tensor = self.embedding(source)
        observe(observer, "embedding", x)
        for index, layer in enumerate(self.layers):
            x = layer(x, attention_mask, scope_observer(observer, str(index)))
        memory: Tensor = self.norm(x)
        observe(observer, "memory", memory)
        return memory


class Decoder(nn.Module):
    """Target ids and the memory to one state per target position."""

    def __init__(self, config: ArchitectureConfig, token_embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding = Embedding(config, token_embedding)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.norm = new_final_norm(config)

    def forward(
        self, target: Tensor, memory: Tensor, attention_mask: Tensor | None, observer: Observer | None = None
    ) -> Tensor:
        """All target positions at once: (batch, length) ids to (batch, length, d_model)."""
        x: Tensor = self.embedding(target)
        observe(observer, "embedding", x)
        for index, layer in enumerate(self.layers):
            x = layer(x, memory, attention_mask, scope_observer(observer, str(index)))
        states: Tensor = self.norm(x)
        observe(observer, "states", states)
        return states

    def start(self, memory: Tensor, attention_mask: Tensor | None) -> DecoderCache:
        """The cache of an empty target for each sentence of the memory."""
        layers = []
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            key, value = layer.cross_attention.key_value(memory)
            empty = key.new_empty(key.size(0), key.size(1), 0, key.size(3))
            layers.append(LayerCache(empty, empty, key, value))
        return DecoderCache(tuple(layers), attention_mask)

    def step(self, tokens: Tensor, cache: DecoderCache) -> tuple[Tensor, DecoderCache]:
        """Append one token per row: (rows,) ids to (rows, d_model) states and the longer cache."""
        x: Tensor = self.embedding(tokens[:, None], offset=cache.length)
        layers = []
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            assert isinstance(layer, DecoderLayer)
            x, new_layer_cache = layer.step(x, layer_cache, cache.attention_mask)
            layers.append(new_layer_cache)
        states = self.norm(x)[:, 0]
        return states, replace(cache, layers=tuple(layers), length=cache.length + 1)


class TreeEncoder(Encoder):
    """An encoder whose attention also sees distances in the dependency tree (relative_positions.py)."""

    def __init__(self, config: ArchitectureConfig, token_embedding: nn.Embedding) -> None:
        super().__init__(config, token_embedding)
        self.max_distance = config.max_relative_distance

    def forward(self, source: Tensor, attention_mask: Tensor | None, observer: Observer | None = None) -> Tensor:
        token_ids, word, head = split_columns(source)
        distance_ids = structural_distance_ids(word, head, attention_mask, self.max_distance)
        observe(observer, "tree", distance_ids)
        return super().forward(token_ids, distance_ids, observer)
