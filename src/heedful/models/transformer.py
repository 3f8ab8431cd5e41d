"""Figure 1: the encoder-decoder Transformer, its layers, and the key-value cache of decoding.

    target ids -> Decoder: embedding + positions -> N x DecoderLayer -> output layer -> log-probabilities
                                                        ^ cross-attention
    source ids -> Encoder: embedding + positions -> N x EncoderLayer -> memory

Attention is in attention.py, feed-forward and residuals in sublayers.py, embeddings in embeddings.py. The cache
is a value: ``step`` takes one and returns a longer one; modules hold only weights.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from heedful.models.attention import MultiHeadAttention
from heedful.models.base import Observer, Seq2SeqModel, observe, scope_observer
from heedful.models.config import ArchitectureConfig, ModelConfig
from heedful.models.efficient_attention import (
    BigBirdAttention,
    BlockPattern,
    CausalBigBirdAttention,
    LinformerAttention,
)
from heedful.models.embeddings import Embedding, new_output_bias, new_token_embeddings
from heedful.models.relative_positions import (
    DepthEmbedding,
    TreeAttention,
    new_full_attention,
    split_columns,
    structural_distance_ids,
)
from heedful.models.sublayers import new_feed_forward, new_final_norm, new_residual


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

    def start(self, source: Tensor) -> "DecoderCache":
        return self.decoder.start(self.encode(source), self.source_attention_mask(source))

    def step(self, tokens: Tensor, state: "DecoderCache") -> "tuple[Tensor, DecoderCache]":
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

    def start(self, memory: Tensor, attention_mask: Tensor | None) -> "DecoderCache":
        """The cache of an empty target for each sentence of the memory."""
        layers = []
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            key, value = layer.cross_attention.key_value(memory)
            empty = key.new_empty(key.size(0), key.size(1), 0, key.size(3))
            layers.append(LayerCache(empty, empty, key, value))
        return DecoderCache(tuple(layers), attention_mask)

    def step(self, tokens: Tensor, cache: "DecoderCache") -> "tuple[Tensor, DecoderCache]":
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


# ---- Layers (section 3.1) and their cache.


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, config: ArchitectureConfig, index: int = 0) -> None:
        super().__init__()
        self.attention = new_encoder_attention(config, index)
        self.feed_forward = new_feed_forward(config)
        self.residual_attention, self.residual_feed_forward = new_residual(config), new_residual(config)

    def forward(self, x: Tensor, attention_mask: Tensor | None, observer: Observer | None = None) -> Tensor:
        self_observer = scope_observer(observer, "self")
        x = self.residual_attention(x, lambda x: self.attention(x, None, attention_mask, observer=self_observer))
        observe(observer, "self.residual", x)
        x = self.residual_feed_forward(x, self.feed_forward)
        observe(observer, "feed_forward.residual", x)
        return x


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention over the memory, then feed-forward."""

    def __init__(self, config: ArchitectureConfig) -> None:
        super().__init__()
        self.attention = new_decoder_attention(config)
        self.cross_attention = MultiHeadAttention(config.d_model, config.heads, **config.attention_options)
        self.feed_forward = new_feed_forward(config)
        self.residual_attention, self.residual_cross = new_residual(config), new_residual(config)
        self.residual_feed_forward = new_residual(config)

    def forward(
        self, x: Tensor, memory: Tensor, attention_mask: Tensor | None, observer: Observer | None = None
    ) -> Tensor:
        """All target positions at once (teacher forcing): position i attends to positions up to i."""
        self_observer, cross_observer = scope_observer(observer, "self"), scope_observer(observer, "cross")
        x = self.residual_attention(x, lambda x: self.attention(x, causal=True, observer=self_observer))
        observe(observer, "self.residual", x)
        x = self.residual_cross(x, lambda x: self.cross_attention(x, memory, attention_mask, observer=cross_observer))
        observe(observer, "cross.residual", x)
        x = self.residual_feed_forward(x, self.feed_forward)
        observe(observer, "feed_forward.residual", x)
        return x

    def step(self, x: Tensor, cache: "LayerCache", attention_mask: Tensor | None) -> tuple[Tensor, "LayerCache"]:
        """Append one target token per row: (rows, 1, d_model) and the longer cache."""
        query, key, value = self.attention.project(self.residual_attention.prepare(x), cache.length)
        cache = cache.append(key, value)
        attended = self.attention.attend_and_project(query, cache.key, cache.value)
        x = self.residual_attention.combine(x, attended)

        # All hypotheses of a sentence share one memory: they become queries side by side.
        sentences, d_model = cache.memory_key.size(0), x.size(-1)
        query = self.cross_attention.query(self.residual_cross.prepare(x).view(sentences, -1, d_model))
        attended = self.cross_attention.attend_and_project(
            query, cache.memory_key, cache.memory_value, attention_mask=attention_mask
        )
        x = self.residual_cross.combine(x, attended.view_as(x))
        return self.residual_feed_forward(x, self.feed_forward), cache


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys and values of one decoder layer."""

    key: Tensor  # of the target so far: (rows, heads, length, d_k)
    value: Tensor
    memory_key: Tensor  # of the source: (sentences, heads, source length, d_k)
    memory_value: Tensor

    @property
    def length(self) -> int:
        """Target positions so far."""
        return self.key.size(2)

    def append(self, key: Tensor, value: Tensor) -> "LayerCache":
        """The cache with one more target position."""
        return replace(self, key=torch.cat([self.key, key], 2), value=torch.cat([self.value, value], 2))


@dataclass(frozen=True, slots=True)
class DecoderCache:
    """Caches of all layers; the ``beam_size`` hypotheses of a sentence are adjacent rows."""

    layers: tuple[LayerCache, ...]
    attention_mask: Tensor | None  # of the source padding: (sentences, 1, 1, source length)
    beam_size: int = 1
    length: int = 0

    def reorder(self, rows: Tensor) -> "DecoderCache":
        """Select rows, given as (sentences, beam_size); each line comes from one sentence.

        Sentences may be dropped. Hypotheses of a sentence share the keys of the source, so these move only
        when a sentence is dropped.
        """
        flat_rows, sentences = rows.flatten(), rows[:, 0] // self.beam_size
        layers = [replace(layer, key=layer.key[flat_rows], value=layer.value[flat_rows]) for layer in self.layers]
        attention_mask = self.attention_mask
        if not torch.equal(sentences, torch.arange(layers[0].memory_key.size(0), device=rows.device)):
            layers = [
                replace(layer, memory_key=layer.memory_key[sentences], memory_value=layer.memory_value[sentences])
                for layer in layers
            ]
            attention_mask = None if attention_mask is None else attention_mask[sentences]
        return DecoderCache(tuple(layers), attention_mask, rows.size(1), self.length)


# ---- Which attention a config describes.


def new_encoder_attention(config: ArchitectureConfig, layer: int) -> MultiHeadAttention:
    """Build the self-attention of an encoder layer; BigBird draws other random blocks in each layer."""
    sizes, options = (config.d_model, config.heads), config.attention_options
    if config.encoder_attention == "bigbird":
        blocks = BlockPattern(config.block_size, config.window_blocks, config.global_blocks, config.random_blocks)
        return BigBirdAttention(*sizes, blocks=blocks, seed=layer, **options)
    if config.encoder_attention == "linformer":
        options |= {"max_length": config.max_length, "projected_length": config.projected_length}
        return LinformerAttention(*sizes, **options)
    if config.positions == "relative-dependency":
        return TreeAttention(*sizes, max_distance=config.max_relative_distance, **options)
    return new_full_attention(config)


def new_decoder_attention(config: ArchitectureConfig) -> MultiHeadAttention:
    """Build the causal self-attention of a decoder layer."""
    if config.decoder_attention == "bigbird":
        blocks = BlockPattern(config.block_size, config.window_blocks, config.global_blocks)
        return CausalBigBirdAttention(config.d_model, config.heads, blocks=blocks, **config.attention_options)
    return new_full_attention(config)
