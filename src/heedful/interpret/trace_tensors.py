"""The tensors of a trace by name, computed on request in the smallest suitable type.

float16 for views, uint8 for thumbnails and masks, float32 for logits and positions, int32 for ids.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.interpret.activations import ATTENTION_KINDS, Activations, AttentionKind, attention_name, get_stack
from heedful.model_folder import ModelFolder
from heedful.models.attention import attention_scores, causal_mask
from heedful.models.base import Model, pad_with_end

THUMBNAIL_SIZE = 24
"""Maximum rows and columns of a thumbnail; longer sentences are pooled."""

LENS_TOP_K = 5
"""Predictions listed for each layer."""

EXTRA_PADDING = 3
"""Padding tokens of the example batch."""

SELF_ATTENTION_KINDS: tuple[AttentionKind, ...] = ("encoder", "decoder")
"""Self-attention, one kind per stack; the last stack writes."""

ATTENTION_TENSORS = ("q", "k", "v", "weights", "heads", "output", "x")
_DTYPE_NAMES = {torch.float16: "F16", torch.float32: "F32", torch.uint8: "U8", torch.int32: "I32"}


@dataclass(frozen=True)
class LazyTensor:
    """A tensor computed on request."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    compute: Callable[[], Tensor]


def _wrap(tensor: Tensor, dtype: torch.dtype) -> LazyTensor:
    return LazyTensor(tuple(tensor.shape), dtype, lambda: tensor)


@dataclass(frozen=True)
class TensorIndex:
    """All tensors of a trace."""

    entries: dict[str, LazyTensor]

    @property
    def lens_ids(self) -> list[int]:
        """Every id that the logit lens predicts at some stage."""
        return sorted(set(self.get("lens.ids").flatten().tolist())) if "lens.ids" in self.entries else []

    @cached_property
    def specs(self) -> dict[str, Any]:
        """Type and shape of each."""
        return {
            name: {"dtype": _DTYPE_NAMES[entry.dtype], "shape": entry.shape} for name, entry in self.entries.items()
        }

    def get(self, name: str) -> Tensor:
        """One tensor."""
        entry = self.entries.get(name)
        if entry is None:
            raise HeedfulError(f"tensor {name!r} does not exist", hint="the manifest lists all tensors")
        return entry.compute().to(entry.dtype).contiguous()

    def to_bytes(self, names: Iterable[str]) -> bytes:
        """The named tensors as a safetensors file."""
        return save({name: self.get(name) for name in names})

    def size(self, names: Iterable[str]) -> int:
        """Bytes of the named tensors."""
        selected = [self.entries[name] for name in names if name in self.entries]
        return sum(torch.Size(entry.shape).numel() * entry.dtype.itemsize for entry in selected)


def build_tensor_index(model_folder: ModelFolder, activations: Activations) -> TensorIndex:
    """Every tensor of a pass."""
    entries: dict[str, LazyTensor] = {}
    tensors = activations.tensors
    for kind in ATTENTION_KINDS:
        if activations.layers[kind]:
            entries[f"thumbnails.{kind}"] = _make_thumbnails(activations, kind)
        for layer in range(activations.layers[kind]):
            name = attention_name(kind, layer)
            for part in ATTENTION_TENSORS:
                if (tensor := tensors.get(f"{name}.{part}")) is not None:
                    entries[f"{name}.{part}"] = _wrap(tensor, torch.float16)
            if (pattern := tensors.get(f"{name}.pattern")) is not None:
                entries[f"{name}.pattern"] = _wrap(pattern, torch.uint8)
            if f"{name}.q" in tensors:
                query, key = tensors[f"{name}.q"], tensors[f"{name}.k"]
                shape = (*query.shape[:-1], key.size(-2))
                entries[f"{name}.scores"] = LazyTensor(shape, torch.float16, partial(attention_scores, query, key))
    for name, tensor in tensors.items():
        if name.endswith(("residual", "embedding", "memory", "states")):
            entries[name] = _wrap(tensor, torch.float16)
    for step in range(len(activations.target.ids)):
        entries[f"logits.{step}"] = _wrap(tensors["logits"][step], torch.float32)
    model = model_folder.model
    stacks = [kind for kind in SELF_ATTENTION_KINDS if activations.layers[kind]]
    if not stacks:  # recurrent
        return TensorIndex(entries)
    for kind in stacks:
        decoder_input = torch.tensor([activations.decoder_input.ids])
        tokens = (activations.encoder_input if kind == "encoder" else decoder_input).to(model.output.weight.device)
        positions = get_stack(model, kind).embedding.position_vectors(tokens).expand(1, tokens.size(1), -1)[0]
        entries[f"{kind}.positions"] = _wrap(positions.detach().cpu(), torch.float32)
    if "decoder" in stacks:
        length = len(activations.decoder_input.ids)
        entries["decoder.mask"] = LazyTensor((length, length), torch.uint8, partial(causal_mask, length))
    if "encoder" in stacks:
        entries |= _make_padding_example(model, activations)
    lens_ids, lens_probabilities = _compute_logit_lens(model, activations, stacks[-1])
    entries["lens.ids"] = _wrap(lens_ids, torch.int32)
    entries["lens.probabilities"] = _wrap(lens_probabilities, torch.float32)
    return TensorIndex(entries)


def _make_thumbnails(activations: Activations, kind: AttentionKind) -> LazyTensor:
    """All heads of a kind, max-pooled: (layers, heads, rows, columns), 255 is a weight of 1."""
    _, queries, keys = activations.weights(kind, 0).shape
    shape = (activations.layers[kind], activations.heads, min(queries, THUMBNAIL_SIZE), min(keys, THUMBNAIL_SIZE))

    def compute() -> Tensor:
        weights = torch.stack([activations.weights(kind, layer) for layer in range(activations.layers[kind])])
        pooled = torch.nn.functional.adaptive_max_pool2d(weights.float(), shape[2:])
        return (pooled * 255).round()

    return LazyTensor(shape, torch.uint8, compute)


def _make_padding_example(model: Model, activations: Activations) -> dict[str, LazyTensor]:
    """The padding mask and first-layer weights of the sentence in a batch with a longer one.

    Empty if the padded length exceeds the model's maximum, or for a Linformer.
    """
    length = len(activations.source.ids)
    padded_length = length + EXTRA_PADDING
    if activations.projected_keys is not None or (model.max_length is not None and padded_length > model.max_length):
        return {}
    longer_ids = [*activations.source.ids[:1] * EXTRA_PADDING, *activations.source.ids[:-1]]
    sentences = activations.encoder_input[0, :-1].tolist(), longer_ids
    batch = pad_with_end(sentences).to(model.output.weight.device)

    def compute_mask() -> Tensor:
        attention_mask = model.source_attention_mask(batch)
        assert attention_mask is not None
        return attention_mask[0].flatten().cpu()

    @torch.inference_mode()
    def compute_weights() -> Tensor:
        tensors: dict[str, Tensor] = {}
        model.encode(batch, tensors.__setitem__)
        return tensors["encoder.0.self.weights"][0, :, :length].cpu()

    return {
        "padding.mask": LazyTensor((padded_length,), torch.uint8, compute_mask),
        "padding.weights": LazyTensor((activations.heads, length, padded_length), torch.float16, compute_weights),
    }


def list_residual_stream(activations: Activations, kind: AttentionKind) -> list[str]:
    """Hook names of a stack's residual stream, from the embedding to the last layer."""
    cross = ("cross",) if kind == "decoder" and activations.layers["cross"] else ()
    parts = ("self", *cross, "feed_forward")
    sublayers = [f"{kind}.{layer}.{part}" for layer in range(activations.layers[kind]) for part in parts]
    return [f"{kind}.embedding", *(f"{name}.residual" for name in sublayers)]


@torch.inference_mode()
def _compute_logit_lens(model: Model, activations: Activations, kind: AttentionKind) -> tuple[Tensor, Tensor]:
    """The most probable ids at each stage of the residual stream, and their probabilities: (stages, steps, ids).

    Applies the final norm (pre-norm) and the output layer, as after the last layer.
    """
    norm, device = get_stack(model, kind).norm, model.output.weight.device
    top_ids, top_probabilities = [], []
    for name in list_residual_stream(activations, kind):  # one at a time: all logits together would take gigabytes
        probabilities = model.logits(norm(activations.tensors[name].to(device))).softmax(-1)
        best = probabilities.topk(min(LENS_TOP_K, probabilities.size(-1)), dim=-1)
        top_ids.append(best.indices.cpu())
        top_probabilities.append(best.values.float().cpu())
    return torch.stack(top_ids), torch.stack(top_probabilities)
