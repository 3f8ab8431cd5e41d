"""The two graphs of an ONNX export: one reads the source, one writes a token.

They run the model's own modules. Only what keeps a table ready for the first positions is replaced by what
computes every position, since a graph takes no branch.
"""

import copy
from collections.abc import Sequence

from torch import Tensor, nn

from heedful.model.cache import DecoderCache, LayerCache
from heedful.model.config import PAD
from heedful.model.positions import SinusoidalPositions
from heedful.model.relative import RotaryAttention, turned_by, turns
from heedful.model.transformer import Transformer


class SourceReader(nn.Module):
    """Source ids, ended and padded, to the keys and values that the decoder's layers look at."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor) -> list[Tensor]:
        visible = _visible(source)
        cache = self.model.decoder.start(self.model.encoder(source, visible), visible)
        return [tensor for layer in cache.layers for tensor in (layer.memory_key, layer.memory_value)]


class TokenWriter(nn.Module):
    """One token for every row, and all that is known so far, to the scores of the next token."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, tokens: Tensor, source: Tensor, memory: Sequence[Tensor], cache: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """``memory`` is what was read, ``cache`` keys and values of what is written: both two a layer."""
        layers = tuple(
            LayerCache(*cache[place : place + 2], *memory[place : place + 2])
            for place in range(0, len(cache), 2)
        )
        states, grown = self.model.decoder.step(
            tokens, DecoderCache(layers, _visible(source), length=layers[0].length)
        )
        return self.model.logits(states), [
            tensor for layer in grown.layers for tensor in (layer.key, layer.value)
        ]


class ComputedRotaryAttention(RotaryAttention):
    """Rotary attention without a table that is ready."""

    def __init__(self, other: RotaryAttention) -> None:
        super().__init__(other.width, other.heads)
        self.input, self.output, self.scale = other.input, other.output, other.scale

    def project(self, x: Tensor, first: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super(RotaryAttention, self).project(x)
        table = turns(x.size(1), query.size(-1), first)
        return turned_by(query, table), turned_by(key, table), value


def without_tables(model: Transformer) -> Transformer:
    """A copy of a model on the CPU that computes every position anew."""
    model = copy.deepcopy(model).cpu().eval()
    for stack in (model.encoder, model.decoder):
        if isinstance(stack.embedding.positions, SinusoidalPositions):
            stack.embedding.positions = SinusoidalPositions(model.config.width, ready=0)
        for layer in stack.layers:
            if isinstance(layer.attention, RotaryAttention):
                layer.attention = ComputedRotaryAttention(layer.attention)
    return model


def names(what: str, layers: int) -> list[str]:
    """Of keys and values, as graphs call them: what was read ("memory"), what was written up to now ("past"),
    and that grown by one token ("present").

    >>> names("past", 1)
    ['past_key_0', 'past_value_0']
    """
    return [f"{what}_{part}_{layer}" for layer in range(layers) for part in ("key", "value")]


def _visible(source: Tensor) -> Tensor:
    """Always a mask: whether there is padding must not decide what a graph is like."""
    visible: Tensor = (source != PAD)[:, None, None]
    return visible
