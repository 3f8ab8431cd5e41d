"""Section 3.2: scaled dot-product attention and its many heads.

Masks are boolean, True = may attend, everywhere.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.model.kernels import quick_attention
from heedful.model.observer import Observer


def attention_scores(query: Tensor, key: Tensor) -> Tensor:
    """query . key for every pair: (..., queries, keys)."""
    return query @ key.transpose(-2, -1)


def masked(scores: Tensor, visible: Tensor | None) -> Tensor:
    """Scores with -inf where nothing may be seen: softmax then gives exactly zero."""
    return scores if visible is None else scores.masked_fill(~visible, -torch.inf)


def attention_weights(
    query: Tensor, key: Tensor, visible: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """softmax(query . key / sqrt(channels)), equation 1; hidden positions weigh exactly zero.

    ``scale`` stands for 1 / sqrt(channels) when it is given.
    """
    scores = attention_scores(query, key)
    scaled = scores / math.sqrt(query.size(-1)) if scale is None else scores * scale
    return masked(scaled, visible).softmax(dim=-1)


def attention(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None = None) -> Tensor:
    """Equation 1 as written: the reference that the kernels of the model are tested against."""
    return attention_weights(query, key, visible) @ value


def look_ahead_mask(length: int, device: torch.device | None = None) -> Tensor:
    """Position i may attend to j <= i, itself included (section 3.2.3).

    >>> look_ahead_mask(3).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(batch, length, width) -> (batch, heads, length, channels)."""
    batch, length, width = x.shape
    return x.view(batch, length, heads, width // heads).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(batch, heads, length, channels) -> (batch, length, width)."""
    return x.transpose(1, 2).flatten(2)


class MultiHeadAttention(nn.Module):
    """Concat(head_1, ..., head_h) W^O with head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V), section 3.2.2.

    W^Q, W^K and W^V of all heads are the three thirds of one matrix, so that self-attention is one product.
    Other attentions (relative.py, efficient_attention.py) are this one with another ``look``.
    """

    def __init__(
        self, width: int, heads: int, *, dropout: float = 0.0, bias: bool = True, scaled: bool = True
    ) -> None:
        super().__init__()
        self.width, self.heads, self.dropout = width, heads, dropout
        self.scale = (width // heads) ** -0.5 if scaled else 1.0
        self.input = nn.Linear(width, 3 * width, bias=bias)
        self.output = nn.Linear(width, width, bias=bias)
        # Xavier for the three thirds as one matrix: flatter attention at first, which learns far sooner
        # than Xavier for each (docs/log.md).
        nn.init.xavier_uniform_(self.input.weight)
        nn.init.xavier_uniform_(self.output.weight)
        if bias:
            nn.init.zeros_(self.input.bias)
            nn.init.zeros_(self.output.bias)

    def project(self, x: Tensor, first: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of the same tokens (self-attention): each (batch, heads, length, channels).

        ``first`` is where the first of them stands: here no difference, x knows it already.
        """
        query, key, value = self.input(x).chunk(3, dim=-1)
        return split_heads(query, self.heads), split_heads(key, self.heads), split_heads(value, self.heads)

    def query(self, x: Tensor) -> Tensor:
        """Only the query of these tokens (cross-attention)."""
        return split_heads(self._part(x, 0, self.width), self.heads)

    def key_value(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Key and value of the memory that will be looked at; computed once a sentence."""
        key, value = self._part(memory, self.width, 3 * self.width).chunk(2, dim=-1)
        return split_heads(key, self.heads), split_heads(value, self.heads)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        visible: Tensor | None = None,
        causal: bool = False,
        observer: Observer | None = None,
    ) -> Tensor:
        """Heads side by side through W^O; ``causal`` stands for a square look-ahead mask."""
        if observer is not None:
            mask = look_ahead_mask(query.size(-2), query.device) if causal else visible
            observer("q", query)
            observer("k", key)
            observer("v", value)
            pattern = self.pattern(key.size(-2))
            if pattern is not None:
                observer("pattern", pattern[None])
            observer("weights", self.weights(query, key, mask))
        heads = self.look(query, key, value, visible, causal=causal)
        result: Tensor = self.output(join_heads(heads))
        if observer is not None:
            observer("heads", heads)
            observer("output", result)
        return result

    def look(
        self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, *, causal: bool
    ) -> Tensor:
        """What each head finds: (batch, heads, queries, channels). Fewer queries than keys are the last."""
        return quick_attention(
            query, key, value, visible, causal=causal, dropout=self.dropped, scale=self.scale
        )

    def weights(self, query: Tensor, key: Tensor, visible: Tensor | None) -> Tensor:
        """How much each query looks at each key, all of it at once: for people to see."""
        return attention_weights(query, key, visible, self.scale)

    def pattern(self, length: int) -> Tensor | None:
        """Which words this kind of attention lets see which, masks aside: (length, length); None for all."""
        return None

    @property
    def dropped(self) -> float:
        """Share of the weights that is dropped now."""
        return self.dropout if self.training else 0.0

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        visible: Tensor | None = None,
        *,
        causal: bool = False,
        observer: Observer | None = None,
    ) -> Tensor:
        """Tokens ``x`` look at ``memory``, or at each other when there is none."""
        if observer is not None:
            observer("x", x)
        if memory is None:
            query, key, value = self.project(x)
        else:
            query, (key, value) = self.query(x), self.key_value(memory)
        return self.attend(query, key, value, visible=visible, causal=causal, observer=observer)

    def _part(self, x: Tensor, start: int, stop: int) -> Tensor:
        bias = None if self.input.bias is None else self.input.bias[start:stop]
        return F.linear(x, self.input.weight[start:stop], bias)
