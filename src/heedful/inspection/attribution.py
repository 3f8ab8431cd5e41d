"""What a translated word depends on, beyond attention weights: rollout, gradient and occlusion.

Attention says where a head looks; these say what the answer hangs on. All give one number for every source
token (or word), higher for more.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from heedful.bundle import Bundle
from heedful.errors import HeedfulError
from heedful.inspection.trace import Trace
from heedful.model.translator import Translator
from heedful.text.tokenizer import PAD

MOST_LOGITS = 1 << 24
"""Numbers held at once while words are hidden one after the other: 64 MB."""


def rollout(seen: Trace) -> Tensor:
    """How much of each source token is in each encoder output, if weights alone moved it: (source, source).

    Attention rollout of Abnar and Zuidema 2020: each layer mixes half of itself (the residual) with half of
    what its heads, on average, look at. Rows sum to 1.
    """
    if not seen.has_rollout:
        raise HeedfulError(
            "there is no rollout of this model: the words of its encoder do not look at words",
            hint="gradient and occlusion work for it",
        )
    mixed = torch.eye(len(seen.source.ids), dtype=torch.float64)
    for layer in range(seen.layers["encoder"]):
        mixed = (mixed + seen.weights("encoder", layer).double().mean(0) @ mixed) / 2
    return mixed


def target_rollout(seen: Trace) -> tuple[Tensor, Tensor]:
    """Rollout through both stacks: how much of each source and each target token is in each decoder output.

    (target, source) and (target, target): the rows of both together sum to 1.
    """
    length, source = len(seen.read.ids), rollout(seen)
    from_source = torch.zeros(length, len(source), dtype=torch.float64)
    from_target = torch.eye(length, dtype=torch.float64)
    for layer in range(seen.layers["decoder"]):
        own = seen.weights("decoder", layer).double().mean(0)
        from_source, from_target = (
            (from_source + own @ from_source) / 2,
            (from_target + own @ from_target) / 2,
        )
        looked_at = seen.weights("cross", layer).double().mean(0) @ source
        from_source, from_target = (from_source + looked_at) / 2, from_target / 2
    return from_source, from_target


def gradient_attribution(bundle: Bundle, seen: Trace, step: int, rival: int | None = None) -> Tensor:
    """Length of the gradient at each source token's vector, for the token written at ``step``: (source,).

    What is differentiated is the margin, the token's logit minus its rival's (by default the strongest): a
    probability near 1 is flat and would have no gradient to speak of.
    """
    return _gradients(bundle, seen, [step], rival)[0]


def gradient_matrix(bundle: Bundle, seen: Trace) -> Tensor:
    """``gradient_attribution`` of every written token against its strongest rival: (written, source)."""
    return _gradients(bundle, seen, range(len(seen.written.ids)), None)


def _gradients(bundle: Bundle, seen: Trace, steps: Sequence[int], rival: int | None) -> Tensor:
    """One pass forward, then one back for each step: (steps, source)."""
    model = bundle.model.eval()
    source, before = _ids(bundle, seen)
    pieces = torch.tensor([seen.encoder_ids], device=source.device)
    vectors = model.tables[0](pieces).detach().requires_grad_()
    found = []
    with torch.enable_grad():
        states = _states(model, source, before, vectors)[0]
        for step in steps:
            margin = _margin(model.logits(states[step]), seen.written.ids[step], rival)
            (gradient,) = torch.autograd.grad(margin, vectors, retain_graph=True)
            found.append(gradient.norm(dim=-1)[0].detach().cpu())
    return torch.stack(found)


def occlusion_attribution(bundle: Bundle, seen: Trace, step: int, rival: int | None = None) -> Tensor:
    """How much of the margin of the token written at ``step`` is lost if a source token is hidden: (source,).

    Hidden like padding: nobody can look at it, and all others keep their places. In nats (a difference of
    log-odds against the rival); negative if hiding the token helps.
    """
    return _lost(bundle, seen, [step], rival)[0]


def occlusion_matrix(bundle: Bundle, seen: Trace) -> Tensor:
    """``occlusion_attribution`` of every written token against its strongest rival: (written, source)."""
    return _lost(bundle, seen, range(len(seen.written.ids)), None)


@torch.inference_mode()
def _lost(bundle: Bundle, seen: Trace, steps: Sequence[int], rival: int | None) -> Tensor:
    """What each step loses by each hidden source token: (steps, source)."""
    model = bundle.model.eval()
    source, before = _ids(bundle, seen)
    length = source.size(1)
    hidden = source.repeat(length + 1, 1)
    hidden[torch.arange(length), torch.arange(length)] = PAD  # the last row hides nothing
    at_once = max(1, MOST_LOGITS // (len(steps) * model.output.weight.size(0)))
    margins = []
    tokens = [seen.written.ids[step] for step in steps]
    for first in range(0, length + 1, at_once):
        rows = hidden[first : first + at_once]
        logits = model.logits(model(rows, before.expand(len(rows), -1))[:, list(steps)])
        margins += [
            [float(_margin(row, token, rival)) for token, row in zip(tokens, each, strict=True)]
            for each in logits
        ]
    table = torch.tensor(margins).T  # (steps, source + 1)
    return table[:, -1:] - table[:, :-1]


def shares(attribution: Tensor) -> Tensor:
    """Each row as shares of what speaks for its word, which sum to 1; what speaks against it counts as 0."""
    positive = attribution.clamp(min=0)
    return positive / positive.sum(-1, keepdim=True).clamp(min=1e-12)


def _ids(bundle: Bundle, seen: Trace) -> tuple[Tensor, Tensor]:
    device = bundle.model.output.weight.device
    return torch.tensor([seen.given], device=device), torch.tensor([seen.read.ids], device=device)


def _states(model: Translator, source: Tensor, before: Tensor, vectors: Tensor) -> Tensor:
    """The usual pass, from word vectors that somebody wants the gradient of."""
    hook = model.tables[0].register_forward_hook(lambda *_: vectors)
    try:
        memory = model.encode(source)
    finally:
        hook.remove()
    return model.decode(before, memory, source)


def _margin(logits: Tensor, token: int, rival: int | None) -> Tensor:
    if rival is not None:
        return logits[token] - logits[rival]
    others = logits.index_fill(0, torch.tensor(token, device=logits.device), -torch.inf)
    return logits[token] - others.max()
