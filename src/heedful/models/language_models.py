"""Decoder-only and encoder-only Transformers: a causal LM as in GPT, a masked LM as in BERT."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heedful.models.base import AutoregressiveModel, Model, Observer, observe, scope_observer
from heedful.models.config import ArchitectureConfig, ModelConfig
from heedful.models.embeddings import Embedding, new_output_bias, new_token_embeddings
from heedful.models.sublayers import new_feed_forward, new_final_norm, new_residual
from heedful.models.transformer import Encoder, new_decoder_attention


@dataclass(frozen=True, slots=True)
class CausalLMCache:
    """Keys and values of the text so far, per layer: (rows, heads, length, d_k)."""

    layers: tuple[tuple[Tensor, Tensor], ...]
    beam_size: int = 1
    length: int = 0

    def reorder(self, rows: Tensor) -> "CausalLMCache":
        """Select rows, given as (sentences, beam_size)."""
        flat_rows = rows.flatten()
        layers = tuple((key[flat_rows], value[flat_rows]) for key, value in self.layers)
        return CausalLMCache(layers, rows.size(1), self.length)


class CausalLMLayer(nn.Module):
    """Masked self-attention, then feed-forward: a decoder layer without cross-attention."""

    def __init__(self, config: ArchitectureConfig) -> None:
        super().__init__()
        self.attention = new_decoder_attention(config)
        self.feed_forward = new_feed_forward(config)
        self.residual_attention, self.residual_feed_forward = new_residual(config), new_residual(config)

    def forward(self, x: Tensor, observer: Observer | None = None) -> Tensor:
        """All positions at once: position i attends to positions up to i."""
        self_observer = scope_observer(observer, "self")
        x = self.residual_attention(x, lambda x: self.attention(x, causal=True, observer=self_observer))
        observe(observer, "self.residual", x)
        x = self.residual_feed_forward(x, self.feed_forward)
        observe(observer, "feed_forward.residual", x)
        return x

    def step(self, x: Tensor, cache: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Append one token per row: (rows, 1, d_model) and the longer cache."""
        query, key, value = self.attention.project(self.residual_attention.prepare(x), cache[0].size(2))
        key, value = torch.cat([cache[0], key], 2), torch.cat([cache[1], value], 2)
        x = self.residual_attention.combine(x, self.attention.attend_and_project(query, key, value))
        return self.residual_feed_forward(x, self.feed_forward), (key, value)


class CausalLM(AutoregressiveModel):
    """Decoder only: continues a text. It ignores the source, and its memory is empty."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        _, target, output = new_token_embeddings(config)
        self.embedding = Embedding(config, target)
        self.layers = nn.ModuleList(CausalLMLayer(config) for _ in range(config.decoder_layers))
        self.norm = new_final_norm(config)
        self.output = output
        self.output_bias = new_output_bias(config)

    @property
    def embeddings(self) -> tuple[nn.Embedding, nn.Embedding]:
        return self.embedding.table, self.embedding.table

    def encode(self, source: Tensor, observer: Observer | None = None) -> Tensor:
        return self.output.weight.new_zeros(len(source), 0, self.config.d_model)

    def decode(self, target: Tensor, memory: Tensor, source: Tensor, observer: Observer | None = None) -> Tensor:
        decoder_observer = scope_observer(observer, "decoder")
        x: Tensor = self.embedding(target)
        observe(decoder_observer, "embedding", x)
        for index, layer in enumerate(self.layers):
            x = layer(x, scope_observer(decoder_observer, str(index)))
        states: Tensor = self.norm(x)
        observe(decoder_observer, "states", states)
        return states

    def start(self, source: Tensor) -> CausalLMCache:
        heads, channels = self.config.heads, self.config.channels
        empty = self.output.weight.new_empty(len(source), heads, 0, channels)
        return CausalLMCache(((empty, empty),) * len(self.layers))

    def step(self, tokens: Tensor, state: CausalLMCache) -> tuple[Tensor, CausalLMCache]:
        x: Tensor = self.embedding(tokens[:, None], offset=state.length)
        layers = []
        for layer, cache in zip(self.layers, state.layers, strict=True):
            assert isinstance(layer, CausalLMLayer)
            x, new_cache = layer.step(x, cache)
            layers.append(new_cache)
        log_probabilities = self.logits(self.norm(x)[:, 0]).log_softmax(-1)
        return log_probabilities, CausalLMCache(tuple(layers), state.beam_size, state.length + 1)


class MaskedLM(Model):
    """Encoder only: predicts masked tokens from both sides."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        source, _, output = new_token_embeddings(config)
        self.encoder = Encoder(config, source)
        self.output = output
        self.output_bias = new_output_bias(config)

    @property
    def embeddings(self) -> tuple[nn.Embedding, nn.Embedding]:
        return self.encoder.embedding.table, self.encoder.embedding.table

    def encode(self, source: Tensor, observer: Observer | None = None) -> Tensor:
        memory: Tensor = self.encoder(source, self.source_attention_mask(source), scope_observer(observer, "encoder"))
        return memory

    def decode(self, target: Tensor, memory: Tensor, source: Tensor, observer: Observer | None = None) -> Tensor:
        """Each position predicts its own token, so the memory is the result."""
        return memory
