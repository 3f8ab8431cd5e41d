"""Sections 3.1 and 3.3: the layers, each a few sublayers wrapped in residual + LayerNorm."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from heedful.model.attention import MultiHeadAttention
from heedful.model.cache import LayerCache
from heedful.model.config import Architecture
from heedful.model.dropout import Dropout
from heedful.model.observer import Observer, within

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


class FeedForward(nn.Module):
    """max(0, x W_1 + b_1) W_2 + b_2, equation 2: the same for every position."""

    def __init__(self, config: Architecture) -> None:
        super().__init__()
        self.inner = nn.Linear(config.width, config.feed_forward_width)
        self.outer = nn.Linear(config.feed_forward_width, config.width)
        self.activation = ACTIVATIONS[config.activation]
        self.dropout = Dropout(config.activation_dropout)
        for linear in (self.inner, self.outer):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.outer(self.dropout(self.activation(self.inner(x))))
        return result


class PostNorm(nn.Module):
    """LayerNorm(x + Sublayer(x)), as in the paper; dropout on the sublayer's output (section 5.4)."""

    def __init__(self, config: Architecture) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        result: Tensor = self.norm(x + self.dropout(sublayer(x)))
        return result


class PreNorm(PostNorm):
    """x + Sublayer(LayerNorm(x)): trains without warm-up; the stack needs one more norm at its end."""

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        result: Tensor = x + self.dropout(sublayer(self.norm(x)))
        return result


RESIDUALS: dict[str, type[PostNorm]] = {"post": PostNorm, "pre": PreNorm}


def new_attention(config: Architecture) -> MultiHeadAttention:
    """The attention this config describes."""
    return MultiHeadAttention(
        config.width, config.heads, dropout=config.attention_dropout, bias=config.attention_bias
    )


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, config: Architecture) -> None:
        super().__init__()
        self.attention = new_attention(config)
        self.feed_forward = FeedForward(config)
        residual = RESIDUALS[config.norm]
        self.residual_attention, self.residual_feed_forward = residual(config), residual(config)

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
        self.attention, self.cross_attention = new_attention(config), new_attention(config)
        self.feed_forward = FeedForward(config)
        residual = RESIDUALS[config.norm]
        self.residual_attention, self.residual_cross = residual(config), residual(config)
        self.residual_feed_forward = residual(config)

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
            query, key, value = self.attention.project(x)
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
