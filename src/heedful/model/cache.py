"""What the decoder keeps between steps, so that each new token costs one row of attention.

A cache is a value: passed to a step and returned by it; modules hold weights only.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys and values of one decoder layer."""

    key: Tensor  # of the target so far: (rows, heads, length, channels)
    value: Tensor
    memory_key: Tensor  # of the source: (sentences, heads, source length, channels)
    memory_value: Tensor

    @property
    def length(self) -> int:
        """Target positions so far."""
        return self.key.size(2)

    def extended(self, key: Tensor, value: Tensor) -> "LayerCache":
        """The cache with one more target position."""
        return replace(self, key=torch.cat([self.key, key], 2), value=torch.cat([self.value, value], 2))


@dataclass(frozen=True, slots=True)
class DecoderCache:
    """All layers, for ``rows`` hypotheses: ``beams`` of them for each source sentence, side by side."""

    layers: tuple[LayerCache, ...]
    visible: Tensor | None  # source padding: (sentences, 1, 1, source length)
    beams: int = 1
    length: int = 0

    def reorder(self, rows: Tensor) -> "DecoderCache":
        """The cache of the chosen rows, given as (sentences, beams): each line from one old sentence.

        Sentences may be left out. Keys of the source are shared by all beams of a sentence, so they move
        only when a sentence leaves.
        """
        flat = rows.flatten()
        sentences = rows[:, 0] // self.beams
        stays = torch.equal(sentences, torch.arange(self._sentences, device=rows.device))
        layers = tuple(
            LayerCache(
                layer.key[flat],
                layer.value[flat],
                layer.memory_key if stays else layer.memory_key[sentences],
                layer.memory_value if stays else layer.memory_value[sentences],
            )
            for layer in self.layers
        )
        visible = self.visible if stays or self.visible is None else self.visible[sentences]
        return DecoderCache(layers, visible, rows.size(1), self.length)

    @property
    def _sentences(self) -> int:
        return self.layers[0].memory_key.size(0)
