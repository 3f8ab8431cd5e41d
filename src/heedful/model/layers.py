"""Section 3.1: the layers, each a few sublayers wrapped in residual + LayerNorm."""

from torch import Tensor, nn

from heedful.model.attention import MultiHeadAttention
from heedful.model.cache import LayerCache
from heedful.model.config import Architecture
from heedful.model.feed_forward import new_feed_forward
from heedful.model.observer import Observer, within
from heedful.model.residual import new_residual
from heedful.model.self_attention import (
    attention_options,
    new_decoder_attention,
    new_encoder_attention,
)


def new_cross_attention(config: Architecture) -> MultiHeadAttention:
    """The decoder's attention over the source: always full, and without a notion of distance."""
    return MultiHeadAttention(config.width, config.heads, **attention_options(config))


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, config: Architecture, number: int = 0) -> None:
        super().__init__()
        self.attention = new_encoder_attention(config, number)
        self.feed_forward = new_feed_forward(config)
        self.residual_attention, self.residual_feed_forward = new_residual(config), new_residual(config)

    def forward(self, x: Tensor, visible: Tensor | None, observer: Observer | None = None) -> Tensor:
        look = within(observer, "self")
        x = self.residual_attention(x, lambda x: self.attention(x, visible=visible, observer=look))
        if observer is not None:
            observer("self.residual", x)
        x = self.residual_feed_forward(x, self.feed_forward)
        if observer is not None:
            observer("feed_forward.residual", x)
        return x


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the encoder's output, then feed-forward."""

    def __init__(self, config: Architecture) -> None:
        super().__init__()
        self.attention = new_decoder_attention(config)
        self.cross_attention = new_cross_attention(config)
        self.feed_forward = new_feed_forward(config)
        self.residual_attention, self.residual_cross = new_residual(config), new_residual(config)
        self.residual_feed_forward = new_residual(config)

    def forward(
        self, x: Tensor, memory: Tensor, visible: Tensor | None, observer: Observer | None = None
    ) -> Tensor:
        """The whole target at once (teacher forcing): position i sees the target up to i."""
        own, cross = within(observer, "self"), within(observer, "cross")
        x = self.residual_attention(x, lambda x: self.attention(x, causal=True, observer=own))
        if observer is not None:
            observer("self.residual", x)
        x = self.residual_cross(x, lambda x: self.cross_attention(x, memory, visible, observer=cross))
        if observer is not None:
            observer("cross.residual", x)
        x = self.residual_feed_forward(x, self.feed_forward)
        if observer is not None:
            observer("feed_forward.residual", x)
        return x

    def step(self, x: Tensor, cache: LayerCache, visible: Tensor | None) -> tuple[Tensor, LayerCache]:
        """One more target token for every row: (rows, 1, width); returns the grown cache."""
        grown = cache

        def look_back(x: Tensor) -> Tensor:
            nonlocal grown
            query, key, value = self.attention.project(x, cache.length)
            grown = cache.extended(key, value)
            return self.attention.attend(query, grown.key, grown.value)

        def look_at_source(x: Tensor) -> Tensor:
            # All beams of a sentence look at the same source: they are queries side by side.
            sentences = cache.memory_key.size(0)
            query = self.cross_attention.query(x.view(sentences, -1, x.size(-1)))
            found = self.cross_attention.attend(query, cache.memory_key, cache.memory_value, visible=visible)
            return found.view_as(x)

        x = self.residual_attention(x, look_back)
        x = self.residual_cross(x, look_at_source)
        x = self.residual_feed_forward(x, self.feed_forward)
        return x, grown
