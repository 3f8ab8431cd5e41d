"""What each head does, in numbers: how sharp, how far, whether it keeps to a neighbour or the end, or aligns.

Hidden pieces of the source do not count: nobody looks at them.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.inspection.trace import KINDS, Kind, Trace

HABIT = 0.5
"""Share of a head's weight from which a habit names the head."""
BROAD = 0.8
"""Share of the highest possible entropy from which a head is called broad."""


@dataclass(frozen=True, slots=True)
class HeadProfile:
    """Averages over all rows of some sentences; layer and head count from 0."""

    kind: Kind
    layer: int
    head: int
    entropy: float
    """Of the weights, in bits: 0 looks at one token, 3 evenly at eight."""
    spread: float
    """Entropy as a share of the highest possible for the number of visible tokens: 0 to 1."""
    distance: float | None
    """Tokens between a query and what it looks at; None in cross-attention, where places differ."""
    previous: float | None
    """Weight on the token before; also for the next two only where a sentence looks at itself."""
    itself: float | None
    next: float | None
    end: float
    """Weight on the sink: the end of the source, or the start of the target."""
    aligns: float | None = None
    """How much cross-attention is an alignment, None elsewhere: the smaller of two averages without the ends,
    the largest weight that each written piece gives, and the largest that each source piece gets."""

    @property
    def habit(self) -> str:
        """The name of what it mostly does, or nothing."""
        habits = {
            "previous word": self.previous,
            "next word": self.next,
            "itself": self.itself,
            "start sink" if self.kind == "decoder" else "end sink": self.end,
        }
        if self.spread >= BROAD:
            return "broad"
        name, share = max(habits.items(), key=lambda each: each[1] or 0.0)
        if (share or 0.0) >= HABIT:
            return name
        return "aligner" if (self.aligns or 0.0) >= HABIT else ""


def head_profiles(traces: Iterable[Trace]) -> list[HeadProfile]:
    """A profile of every head, encoder first, averaged over the sentences: each sentence counts the same."""
    sums: dict[tuple[Kind, int], Tensor] = {}
    count = 0
    for seen in traces:
        count += 1
        for kind in KINDS:
            for layer in range(seen.layers[kind]):
                weights = seen.weights(kind, layer).double()
                on_sums = kind == "encoder" and seen.sums is not None
                measured = _on_sums(weights) if on_sums else _measured(weights, kind, seen.hidden)
                sums[kind, layer] = sums.get((kind, layer), torch.zeros_like(measured)) + measured
    return [
        _profile(kind, layer, head, row)
        for (kind, layer), total in sorted(
            sums.items(), key=lambda each: (KINDS.index(each[0][0]), each[0][1])
        )
        for head, row in enumerate((total / count).tolist())
    ]


def _profile(kind: Kind, layer: int, head: int, measured: list[float]) -> HeadProfile:
    entropy, spread, distance, previous, itself, after, end, aligns = measured
    if kind == "cross":
        return HeadProfile(kind, layer, head, entropy, spread, None, None, None, None, end, aligns)
    if math.isnan(distance):
        return HeadProfile(kind, layer, head, entropy, spread, None, None, None, None, 0.0)
    return HeadProfile(kind, layer, head, entropy, spread, distance, previous, itself, after, end)


def entropy(weights: Tensor) -> Tensor:
    """- sum of w log2 w over the keys, in bits; a weight of zero adds nothing.

    >>> entropy(torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]))
    tensor([0., 2.])
    """
    bits: Tensor = -torch.special.xlogy(weights, weights).sum(-1) / math.log(2) + 0.0  # + 0: no minus zero
    return bits


def _measured(weights: Tensor, kind: Kind, hidden: Sequence[int]) -> Tensor:
    """The averages of one layer over its rows: (heads, measures)."""
    heads, queries, keys = weights.shape
    place, other = torch.arange(queries)[:, None], torch.arange(keys)
    looked_at = other if kind == "decoder" else _without(other, hidden)
    if kind == "encoder":
        weights, place = weights[:, looked_at], place[looked_at]
    bits = entropy(weights)
    reach = (other + 1).log2() if kind == "decoder" else torch.tensor([len(looked_at)] * len(place)).log2()
    possible = reach > 0  # a row that sees one token cannot be broad
    spread = (bits[:, possible] / reach[possible]).mean(-1) if possible.any() else torch.zeros(heads)
    sink = 0 if kind == "decoder" else keys - 1
    shares: list[Callable[[], Tensor]] = [
        lambda: (weights * (place - other).abs()).sum(-1).mean(-1),
        lambda: (weights * (other == place - 1)).sum(-1).mean(-1),
        lambda: (weights * (other == place)).sum(-1).mean(-1),
        lambda: (weights * (other == place + 1)).sum(-1).mean(-1),
        lambda: weights[:, :, sink].mean(-1),
        lambda: _aligns(weights[:, :, looked_at]) if kind == "cross" else torch.zeros(heads),
    ]
    return torch.stack([bits.mean(-1), spread, *(share() for share in shares)], dim=-1)


def _on_sums(weights: Tensor) -> Tensor:
    """Where words look at sums of all words (Linformer) there are no distances, no neighbours and no end."""
    bits = entropy(weights).mean(-1)
    nothing = torch.full_like(bits, torch.nan)
    return torch.stack([bits, bits / max(math.log2(weights.size(-1)), 1e-9), *[nothing] * 6], dim=-1)


def _without(places: Tensor, hidden: Sequence[int]) -> Tensor:
    return places[[place not in hidden for place in places.tolist()]]


def _aligns(weights: Tensor) -> Tensor:
    """``HeadProfile.aligns`` of each head: (heads,); 0 if nothing was written, or nothing could be read."""
    heads, queries, keys = weights.shape
    if queries < 2 or keys < 2:  # the ends alone
        return torch.zeros(heads)
    words = weights[:, :, :-1]
    looks = words[:, :-1].amax(-1).mean(-1)
    is_looked_at = words.amax(-2).mean(-1)
    return torch.minimum(looks, is_looked_at)
