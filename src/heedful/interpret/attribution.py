"""What an output token depends on: attention rollout, gradient and occlusion; and models with ablated heads.

Attention shows where a head attends; attribution shows what the output depends on, by source token.
"""

import copy
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError
from heedful.interpret.activations import (
    ATTENTION_KINDS,
    Activations,
    AttentionKind,
    check_layer_and_head,
    get_sublayer,
)
from heedful.model_folder import ModelFolder
from heedful.models.base import Seq2SeqModel, select_token_ids
from heedful.tokenization.special_tokens import PAD

MAX_LOGITS = 1 << 24
"""Logits held at once during occlusion: 64 MB."""


def attention_rollout(activations: Activations) -> Tensor:
    """How much of each source token is in each encoder output, by weights alone: (source, source).

    Attention rollout (Abnar and Zuidema 2020): each layer mixes half of its input (the residual) with half of
    what its heads attend to on average. Rows sum to 1.
    """
    if not activations.has_rollout:
        raise HeedfulError(
            "attention rollout is not defined for this model: its encoder words do not attend to words",
            hint="use gradient or occlusion",
        )
    mixture = torch.eye(len(activations.source.ids), dtype=torch.float64)
    for layer in range(activations.layers["encoder"]):
        mixture = (mixture + activations.weights("encoder", layer).double().mean(0) @ mixture) / 2
    return mixture


def target_rollout(activations: Activations) -> tuple[Tensor, Tensor]:
    """Rollout through both stacks: how much of each source and each target token is in each decoder output.

    (target, source) and (target, target): the rows of both together sum to 1.
    """
    length, source = len(activations.decoder_input.ids), attention_rollout(activations)
    from_source = torch.zeros(length, len(source), dtype=torch.float64)
    from_target = torch.eye(length, dtype=torch.float64)
    for layer in range(activations.layers["decoder"]):
        self_weights = activations.weights("decoder", layer).double().mean(0)
        from_source, from_target = (
            (from_source + self_weights @ from_source) / 2,
            (from_target + self_weights @ from_target) / 2,
        )
        cross_mixture = activations.weights("cross", layer).double().mean(0) @ source
        from_source, from_target = (from_source + cross_mixture) / 2, from_target / 2
    return from_source, from_target


def gradient_attribution(
    model_folder: ModelFolder, activations: Activations, step: int, contrast_id: int | None = None
) -> Tensor:
    """Norm of the gradient at each source embedding, for the token written at ``step``: (source,).

    Differentiates the margin, the token's logit minus that of ``contrast_id`` (default: the strongest other
    token), because the gradient of a probability near 1 vanishes.
    """
    return gradient_matrix(model_folder, activations, [step], contrast_id)[0]


def gradient_matrix(
    model_folder: ModelFolder,
    activations: Activations,
    steps: Sequence[int] | None = None,
    contrast_id: int | None = None,
) -> Tensor:
    """``gradient_attribution`` of some or all target tokens: (target, source)."""
    model = model_folder.translation_model.eval()
    source, decoder_input = _build_inputs(model, activations)
    embeddings = model.embeddings[0](select_token_ids(source))
    embeddings = embeddings.detach().requires_grad_()
    gradient_norms = []
    with torch.enable_grad():
        hook = model.embeddings[0].register_forward_hook(lambda *_: embeddings)
        try:
            memory = model.encode(source)
        finally:
            hook.remove()
        states = model.decode(decoder_input, memory, source)[0]
        for step in range(len(activations.target.ids)) if steps is None else steps:
            margin = _logit_margin(model.logits(states[step]), activations.target.ids[step], contrast_id)
            (gradient,) = torch.autograd.grad(margin, embeddings, retain_graph=True)
            gradient_norms.append(gradient.norm(dim=-1)[0].detach().cpu())
    return torch.stack(gradient_norms)


def occlusion_attribution(
    model_folder: ModelFolder, activations: Activations, step: int, contrast_id: int | None = None
) -> Tensor:
    """How much of the margin of the token at ``step`` is lost if a source token is masked: (source,).

    Masked like padding, so all others keep their positions. In nats; negative if masking the token helps.
    """
    return occlusion_matrix(model_folder, activations, [step], contrast_id)[0]


@torch.inference_mode()
def occlusion_matrix(
    model_folder: ModelFolder,
    activations: Activations,
    steps: Sequence[int] | None = None,
    contrast_id: int | None = None,
) -> Tensor:
    """``occlusion_attribution`` of some or all target tokens: (target, source)."""
    model = model_folder.translation_model.eval()
    source, decoder_input = _build_inputs(model, activations)
    steps = range(len(activations.target.ids)) if steps is None else steps
    length = source.size(1)
    occluded = source.repeat_interleave(length + 1, 0)
    occluded[torch.arange(length), torch.arange(length)] = PAD  # the last row masks nothing
    batch_size = max(1, MAX_LOGITS // (len(steps) * model.output.weight.size(0)))
    margins = []
    for start in range(0, length + 1, batch_size):
        rows = occluded[start : start + batch_size]
        logits = model.logits(model(rows, decoder_input.expand(len(rows), -1))[:, list(steps)])
        margins += [
            [
                float(_logit_margin(step_logits, activations.target.ids[step], contrast_id))
                for step, step_logits in zip(steps, row_logits, strict=True)
            ]
            for row_logits in logits
        ]
    margin_table = torch.tensor(margins).T  # (steps, source + 1)
    return margin_table[:, -1:] - margin_table[:, :-1]


def normalize_attribution(attribution: Tensor) -> Tensor:
    """Each row scaled to sum to 1; negative values count as 0."""
    positive = attribution.clamp(min=0)
    return positive / positive.sum(-1, keepdim=True).clamp(min=1e-12)


def _build_inputs(model: Seq2SeqModel, activations: Activations) -> tuple[Tensor, Tensor]:
    decoder_input = torch.tensor([activations.decoder_input.ids], device=model.output.weight.device)
    return activations.encoder_input.to(decoder_input), decoder_input


def _logit_margin(logits: Tensor, token_id: int, contrast_id: int | None) -> Tensor:
    if contrast_id is not None:
        return logits[token_id] - logits[contrast_id]
    others = logits.index_fill(0, torch.tensor(token_id, device=logits.device), -torch.inf)
    return logits[token_id] - others.max()


# ---- Head ablation (Michel et al. 2019).


class HeadIndex(NamedTuple):
    """One head of a model; layer and head count from 0."""

    kind: AttentionKind
    layer: int
    head: int

    @property
    def name(self) -> str:
        """Counted from 0, as in tensor names: cross.1.0."""
        return f"{self.kind}.{self.layer}.{self.head}"

    @property
    def label(self) -> str:
        """Counted from 1: cross 2.1 is head 1 of layer 2."""
        return f"{self.kind} {self.layer + 1}.{self.head + 1}"


def parse_head(name: str) -> HeadIndex:
    """The head with this name, counted from 0.

    >>> parse_head("cross.1.0")
    HeadIndex(kind='cross', layer=1, head=0)
    """
    for kind in ATTENTION_KINDS:
        if match := re.fullmatch(rf"{kind}\.(\d{{1,9}})\.(\d{{1,9}})", name):
            return HeadIndex(kind, int(match[1]), int(match[2]))
    raise HeedfulError(f"{name!r} is not a valid head", hint="write kind.layer.head, counted from 0, such as cross.1.0")


def ablate_heads(model_folder: ModelFolder, ablated_heads: Iterable[HeadIndex]) -> ModelFolder:
    """The model with zero rows of W^O for these heads; shares all other weights with the original."""
    heads = list(dict.fromkeys(ablated_heads))
    if not heads:
        return model_folder
    shared = {id(parameter): parameter for parameter in model_folder.model.parameters()}
    model = copy.deepcopy(model_folder.model, shared)
    for kind, layer, head in heads:
        check_layer_and_head(model_folder, kind, layer, head)
        attention, _ = get_sublayer(model, kind, layer)
        channels = attention.d_model // attention.heads
        weight = attention.output.weight.detach().clone()
        weight[:, head * channels : (head + 1) * channels] = 0  # nn.Linear stores W^O transposed
        attention.output.weight = nn.Parameter(weight, requires_grad=False)
    return replace(model_folder, weights=model)
