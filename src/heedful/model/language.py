"""Half a Transformer each: a language model is the decoder alone, a masked one the encoder alone.

What grew out of the paper: GPT goes on with a text, BERT fills in what is missing in one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heedful.model.config import Architecture, ModelConfig
from heedful.model.embedding import Embedding, new_output_bias, new_tables
from heedful.model.encoder import Encoder
from heedful.model.feed_forward import new_feed_forward
from heedful.model.observer import Observer, within
from heedful.model.predictor import Predictor
from heedful.model.residual import new_final_norm, new_residual
from heedful.model.self_attention import new_decoder_attention
from heedful.model.translator import Translator


@dataclass(frozen=True, slots=True)
class TextCache:
    """Keys and values of the text so far, of every layer: (rows, heads, length, channels)."""

    layers: tuple[tuple[Tensor, Tensor], ...]
    beams: int = 1
    length: int = 0

    def reorder(self, rows: Tensor) -> "TextCache":
        """The cache of the chosen rows, given as (sentences, beams)."""
        flat = rows.flatten()
        layers = tuple((key[flat], value[flat]) for key, value in self.layers)
        return TextCache(layers, rows.size(1), self.length)


class CausalLayer(nn.Module):
    """Masked self-attention, then feed-forward: a decoder layer with nothing to look at but its own text."""

    def __init__(self, config: Architecture) -> None:
        super().__init__()
        self.attention = new_decoder_attention(config)
        self.feed_forward = new_feed_forward(config)
        self.residual_attention, self.residual_feed_forward = new_residual(config), new_residual(config)

    def forward(self, x: Tensor, observer: Observer | None = None) -> Tensor:
        """The whole text at once: position i sees the text up to i."""
        own = within(observer, "self")
        x = self.residual_attention(x, lambda x: self.attention(x, causal=True, observer=own))
        if observer is not None:
            observer("self.residual", x)
        x = self.residual_feed_forward(x, self.feed_forward)
        if observer is not None:
            observer("feed_forward.residual", x)
        return x

    def step(self, x: Tensor, cache: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """One more token for every row: (rows, 1, width); returns the grown cache."""
        grown = cache

        def look_back(x: Tensor) -> Tensor:
            nonlocal grown
            query, key, value = self.attention.project(x, cache[0].size(2))
            grown = (torch.cat([cache[0], key], 2), torch.cat([cache[1], value], 2))
            return self.attention.attend(query, *grown)

        x = self.residual_attention(x, look_back)
        return self.residual_feed_forward(x, self.feed_forward), grown


class LanguageModel(Translator):
    """A decoder alone: goes on with a text. There is no source; what is given for one is not read."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        _, target, output = new_tables(config)
        self.embedding = Embedding(config, target)
        self.layers = nn.ModuleList(CausalLayer(config) for _ in range(config.decoder_layers))
        self.norm = new_final_norm(config)
        self.output = output
        self.output_bias = new_output_bias(config)

    @property
    def tables(self) -> tuple[nn.Embedding, nn.Embedding]:
        return self.embedding.table, self.embedding.table

    def encode(self, source: Tensor, observer: Observer | None = None) -> Tensor:
        return self.output.weight.new_zeros(len(source), 0, self.config.width)

    def decode(
        self, target: Tensor, memory: Tensor, source: Tensor, observer: Observer | None = None
    ) -> Tensor:
        look = within(observer, "decoder")
        x: Tensor = self.embedding(target)
        if look is not None:
            look("embedding", x)
        for number, layer in enumerate(self.layers):
            x = layer(x, within(look, str(number)))
        states: Tensor = self.norm(x)
        if look is not None:
            look("states", states)
        return states

    def start(self, source: Tensor) -> TextCache:
        heads, channels = self.config.heads, self.config.channels
        nothing = self.output.weight.new_empty(len(source), heads, 0, channels)
        return TextCache(((nothing, nothing),) * len(self.layers))

    def step(self, tokens: Tensor, state: TextCache) -> tuple[Tensor, TextCache]:
        x: Tensor = self.embedding(tokens[:, None], first=state.length)
        layers = []
        for layer, cache in zip(self.layers, state.layers, strict=True):
            assert isinstance(layer, CausalLayer)
            x, grown = layer.step(x, cache)
            layers.append(grown)
        found = self.logits(self.norm(x)[:, 0]).log_softmax(-1)
        return found, TextCache(tuple(layers), state.beams, state.length + 1)


class MaskedModel(Predictor):
    """An encoder alone: predicts the words that are blank from those on both sides."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        source, _, output = new_tables(config)
        self.encoder = Encoder(config, source)
        self.output = output
        self.output_bias = new_output_bias(config)

    @property
    def tables(self) -> tuple[nn.Embedding, nn.Embedding]:
        return self.encoder.embedding.table, self.encoder.embedding.table

    def encode(self, source: Tensor, observer: Observer | None = None) -> Tensor:
        memory: Tensor = self.encoder(source, self.visible(source), within(observer, "encoder"))
        return memory

    def decode(
        self, target: Tensor, memory: Tensor, source: Tensor, observer: Observer | None = None
    ) -> Tensor:
        """Each place predicts its own word: the memory is all there is."""
        return memory
