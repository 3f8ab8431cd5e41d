"""The engine of an ensemble: several models with the same vocabularies translate as one, in PyTorch."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from heedful.bundle import Bundle
from heedful.decoding.ensemble import Ensemble, Mean
from heedful.engines.native import NativeEngine, aligning_attention
from heedful.errors import HeedfulError
from heedful.progress import counted


class EnsembleEngine(NativeEngine):
    """Bundles at work together; ``bundle`` is the first, with the narrowest limits of all.

    Alignments are by the mean of the members' attention, each at its own layer that aligns best.
    """

    def __init__(
        self, bundles: Sequence[Bundle], mean: Mean = "probabilities", names: Sequence[object] = ()
    ) -> None:
        check_alike(bundles, names or [f"model {number}" for number in range(1, len(bundles) + 1)])
        configs = [bundle.config for bundle in bundles]
        limits = {
            "longest_source": min(config.longest_source for config in configs),
            "by_sentence": any(config.by_sentence for config in configs),
        }
        super().__init__(replace(bundles[0], config=configs[0].model_copy(update=limits)))
        self.models = tuple(bundle.model.eval() for bundle in bundles)
        self._ensemble = Ensemble(self.models, mean)
        self.name = f"PyTorch, {counted(len(bundles), 'model')} together"

    @property
    def decoder(self) -> Ensemble:
        """All of them."""
        return self._ensemble

    def _looked(self, source: Tensor, before: Tensor) -> Tensor:
        found = [aligning_attention(model, source, before) for model in self.models]
        return torch.stack(found).mean(0)


def check_alike(bundles: Sequence[Bundle], names: Sequence[object]) -> None:
    """An error unless all read and write the same ids, of text that is cleaned alike."""
    first = bundles[0]
    for bundle, name in zip(bundles[1:], names[1:], strict=True):
        difference = _difference(first, bundle)
        if difference:
            raise HeedfulError(
                f"{names[0]} and {name} cannot work together: {difference}",
                hint="train both on the same pairs with the same tokenizer settings; "
                "another training.seed makes another model",
            )


def _difference(first: Bundle, other: Bundle) -> str:
    """What keeps two models apart; empty if nothing does."""
    for side in ("source", "target"):
        one, two = (getattr(bundle.tokenizer, side).vocabulary for bundle in (first, other))
        if one != two:
            sizes = f"{len(one.pieces):,} and {len(two.pieces):,} entries"
            return f"their {side} vocabularies differ ({sizes})"
    for setting in ("languages", "targets", "normalize"):
        here, there = (getattr(bundle.config, setting) for bundle in (first, other))
        if here != there:
            return f"their {setting} differ ({here!r} and {there!r} in config.json)"
    if first.config.model.trees != other.config.model.trees:
        return "one reads trees and the other does not"
    return ""
