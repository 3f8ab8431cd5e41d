"""The tensors of a record by name: made when they are asked for, as small as their use allows.

float16 for views, uint8 for thumbnails and masks, float32 for logits and positions, int32 for ids.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from heedful.bundle import Bundle
from heedful.errors import HeedfulError
from heedful.inspection.stacks import stack_of
from heedful.inspection.trace import KINDS, Kind, Trace, place
from heedful.model.attention import attention_scores, look_ahead_mask
from heedful.model.predictor import Predictor
from heedful.text.tokenizer import PAD

THUMBNAIL = 24
"""Rows and columns of the largest thumbnail; longer sentences are pooled."""
GUESSES = 5
"""Words of each layer's guess."""
PADDING = 3
"""How much longer the other sentence is in the batch that shows padding."""
SELF: tuple[Kind, ...] = ("encoder", "decoder")
"""Attention of a stack on itself: one for each stack, and the last stack writes."""
KEPT = ("q", "k", "v", "weights", "heads", "output", "x")
_NAMES = {torch.float16: "F16", torch.float32: "F32", torch.uint8: "U8", torch.int32: "I32"}


@dataclass(frozen=True)
class Entry:
    """A tensor that can be made."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    make: Callable[[], Tensor]


@dataclass(frozen=True)
class TensorIndex:
    """All tensors of a record."""

    entries: dict[str, Entry]
    guesses: tuple[Tensor, Tensor]
    """Ids and probabilities of ``lens``: (readings, steps, guesses)."""
    readings: tuple[str, ...]
    """The places of the stream where the guesses were read, in order."""

    @property
    def lens_ids(self) -> list[int]:
        """Every id that some layer has guessed."""
        return sorted(set(self.guesses[0].flatten().tolist()))

    @cached_property
    def described(self) -> dict[str, Any]:
        """Type and shape of each."""
        return {
            name: {"dtype": _NAMES[entry.dtype], "shape": entry.shape} for name, entry in self.entries.items()
        }

    def get(self, name: str) -> Tensor:
        """One tensor."""
        entry = self.entries.get(name)
        if entry is None:
            raise HeedfulError(f"there is no tensor {name!r}", hint="the manifest lists them under tensors")
        return entry.make().to(entry.dtype).contiguous()

    def to_bytes(self, names: Iterable[str]) -> bytes:
        """Some of them as the bytes of a safetensors file."""
        return save({name: self.get(name) for name in names})

    def size(self, names: Iterable[str]) -> int:
        """Bytes of some of them."""
        chosen = [self.entries[name] for name in names if name in self.entries]
        return sum(torch.Size(entry.shape).numel() * entry.dtype.itemsize for entry in chosen)


def tensor_index(bundle: Bundle, seen: Trace) -> TensorIndex:
    """Every tensor that can be asked for."""
    entries: dict[str, Entry] = {}
    for kind in KINDS:
        if seen.layers[kind]:
            entries[f"thumbnails.{kind}"] = _thumbnails(seen, kind)
        for layer in range(seen.layers[kind]):
            name = place(kind, layer)
            for part in KEPT:
                if (tensor := seen.tensors.get(f"{name}.{part}")) is not None:
                    entries[f"{name}.{part}"] = _half(tensor)
            if (pattern := seen.tensors.get(f"{name}.pattern")) is not None:
                entries[f"{name}.pattern"] = _mask(pattern)
            if f"{name}.q" in seen.tensors:
                entries[f"{name}.scores"] = _scores(seen, name)
    for name, tensor in seen.tensors.items():
        if name.endswith(("residual", "embedding", "memory", "states")):
            entries[name] = _half(tensor)
    for step in range(len(seen.written.ids)):
        entries[f"logits.{step}"] = _exact(seen.tensors["logits"][step])
    model = bundle.predictor
    stacks = [kind for kind in SELF if seen.layers[kind]]
    if not stacks:  # recurrent
        nothing = torch.zeros(0, len(seen.written.ids), 0)
        return TensorIndex(entries, (nothing.int(), nothing), ())
    for kind in stacks:
        given = seen.given if kind == "encoder" else seen.sides(kind)[0].ids
        ids = torch.tensor([given], device=model.output.weight.device)
        places = stack_of(model, kind).embedding.places(ids).expand(1, ids.size(1), -1)[0]
        entries[f"{kind}.positions"] = _exact(places.detach().cpu())
    if "decoder" in stacks:
        length = len(seen.read.ids)
        entries["decoder.mask"] = Entry((length, length), torch.uint8, lambda: look_ahead_mask(length))
    if "encoder" in stacks:
        entries |= _padding(model, seen)
    readings, guesses = _lens(model, seen, stacks[-1])
    entries["lens.ids"] = Entry(tuple(guesses[0].shape), torch.int32, lambda: guesses[0])
    entries["lens.probabilities"] = Entry(tuple(guesses[1].shape), torch.float32, lambda: guesses[1])
    return TensorIndex(entries, guesses, readings)


def _half(tensor: Tensor) -> Entry:
    return Entry(tuple(tensor.shape), torch.float16, lambda: tensor)


def _mask(tensor: Tensor) -> Entry:
    return Entry(tuple(tensor.shape), torch.uint8, lambda: tensor)


def _exact(tensor: Tensor) -> Entry:
    return Entry(tuple(tensor.shape), torch.float32, lambda: tensor)


def _scores(seen: Trace, name: str) -> Entry:
    """q . k before division and mask."""
    query, key = seen.tensors[f"{name}.q"], seen.tensors[f"{name}.k"]
    return Entry((*query.shape[:-1], key.size(-2)), torch.float16, lambda: attention_scores(query, key))


def _thumbnails(seen: Trace, kind: Kind) -> Entry:
    """All heads of a kind, the largest weight of each patch: (layers, heads, rows, columns), 255 is 1."""
    _, queries, keys = seen.weights(kind, 0).shape
    shape = (seen.layers[kind], seen.heads, min(queries, THUMBNAIL), min(keys, THUMBNAIL))

    def make() -> Tensor:
        weights = torch.stack([seen.weights(kind, layer) for layer in range(seen.layers[kind])])
        pooled = torch.nn.functional.adaptive_max_pool2d(weights.float(), shape[2:])
        return (pooled * 255).round()

    return Entry(shape, torch.uint8, make)


def _padding(model: Predictor, seen: Trace) -> dict[str, Entry]:
    """The sentence in a batch with a longer one: what is no padding, and what the first layer makes of it.

    Nothing if the model's positions end where the sentence does, or if words look at sums (Linformer).
    """
    length = len(seen.source.ids)
    padded = length + PADDING
    if seen.sums is not None or (model.longest is not None and padded > model.longest):
        return {}
    longer = [*seen.source.ids[:1] * PADDING, *seen.source.ids]
    batch = torch.tensor([[*seen.given, *[PAD] * PADDING], longer], device=model.output.weight.device)

    def visible() -> Tensor:
        found = model.visible(batch)
        assert found is not None
        return found[0].flatten().cpu()

    @torch.inference_mode()
    def weights() -> Tensor:
        found: dict[str, Tensor] = {}
        model.encode(batch, found.__setitem__)
        return found["encoder.0.self.weights"][0, :, :length].cpu()

    return {
        "padding.visible": Entry((padded,), torch.uint8, visible),
        "padding.weights": Entry((seen.heads, length, padded), torch.float16, weights),
    }


def stream_names(seen: Trace, kind: Kind) -> list[str]:
    """A stack's stream from the embedding to the last layer, by the observer's names."""
    cross = ("cross",) if kind == "decoder" and seen.layers["cross"] else ()
    parts = ("self", *cross, "feed_forward")
    sublayers = [f"{kind}.{layer}.{part}" for layer in range(seen.layers[kind]) for part in parts]
    return [f"{kind}.embedding", *(f"{name}.residual" for name in sublayers)]


@torch.inference_mode()
def _lens(model: Predictor, seen: Trace, kind: Kind) -> tuple[tuple[str, ...], tuple[Tensor, Tensor]]:
    """What the model would write if it stopped at each place of the stream: the likeliest ids and how likely.

    The stream of the stack that writes goes through the last norm (pre-norm) and the output layer, as it does
    after the last layer.
    """
    names = stream_names(seen, kind)
    norm, device = stack_of(model, kind).norm, model.output.weight.device
    ids, chances = [], []
    for name in names:  # one by one: all logits of a long sentence at once would take gigabytes
        likely = model.logits(norm(seen.tensors[name].to(device))).softmax(-1)
        best = likely.topk(min(GUESSES, likely.size(-1)), dim=-1)
        ids.append(best.indices.cpu())
        chances.append(best.values.float().cpu())
    return tuple(names), (torch.stack(ids), torch.stack(chances))
