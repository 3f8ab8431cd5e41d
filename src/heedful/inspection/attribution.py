"""What a translated word depends on, beyond attention weights: rollout, gradient and occlusion.

Attention says where a head looks; these say what the answer hangs on. All give one number for every source
token (or word), higher for more.
"""

import torch
from torch import Tensor

from heedful.bundle import Bundle
from heedful.inspection.trace import Trace
from heedful.model.transformer import Transformer
from heedful.text.tokenizer import PAD


def rollout(seen: Trace) -> Tensor:
    """How much of each source token is in each encoder output, if weights alone moved it: (source, source).

    Attention rollout of Abnar and Zuidema 2020: each layer mixes half of itself (the residual) with half of
    what its heads, on average, look at. Rows sum to 1.
    """
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
    model = bundle.model.eval()
    source, before = _ids(bundle, seen)
    vectors = model.encoder.embedding.table(source).detach().requires_grad_()
    with torch.enable_grad():
        logits = _logits(model, source, before, vectors)[0, step]
        (gradient,) = torch.autograd.grad(_margin(logits, seen.written.ids[step], rival), vectors)
    lengths: Tensor = gradient.norm(dim=-1)[0].detach().cpu()
    return lengths


@torch.inference_mode()
def occlusion_attribution(bundle: Bundle, seen: Trace, step: int, rival: int | None = None) -> Tensor:
    """How much of the margin of the token written at ``step`` is lost if a source token is hidden: (source,).

    Hidden like padding: nobody can look at it, and all others keep their places. In nats (a difference of
    log-odds against the rival); negative if hiding the token helps.
    """
    logits = _with_one_hidden(bundle, seen)[:, step]
    margins = torch.stack([_margin(row, seen.written.ids[step], rival) for row in logits])
    return (margins[-1] - margins[:-1]).cpu()


@torch.inference_mode()
def occlusion_matrix(bundle: Bundle, seen: Trace) -> Tensor:
    """``occlusion_attribution`` of every written token against its strongest rival: (written, source)."""
    logits = _with_one_hidden(bundle, seen)
    margins = torch.stack(
        [
            torch.stack([_margin(row, token, None) for row in logits[:, step]])
            for step, token in enumerate(seen.written.ids)
        ]
    )  # (written, source + 1)
    return (margins[:, -1:] - margins[:, :-1]).cpu()


def gradient_matrix(bundle: Bundle, seen: Trace) -> Tensor:
    """``gradient_attribution`` of every written token against its strongest rival: (written, source)."""
    steps = range(len(seen.written.ids))
    return torch.stack([gradient_attribution(bundle, seen, step) for step in steps])


def shares(attribution: Tensor) -> Tensor:
    """Each row as shares of what speaks for its word, which sum to 1; what speaks against it counts as 0."""
    positive = attribution.clamp(min=0)
    return positive / positive.sum(-1, keepdim=True).clamp(min=1e-12)


def _with_one_hidden(bundle: Bundle, seen: Trace) -> Tensor:
    """Logits of the same target with each source token hidden in turn, and last with none hidden."""
    model = bundle.model.eval()
    source, before = _ids(bundle, seen)
    length = source.size(1)
    hidden = source.repeat(length + 1, 1)
    hidden[torch.arange(length), torch.arange(length)] = PAD
    return model.logits(model(hidden, before.expand(length + 1, -1)))


def _ids(bundle: Bundle, seen: Trace) -> tuple[Tensor, Tensor]:
    device = bundle.model.output.weight.device
    return torch.tensor([seen.source.ids], device=device), torch.tensor([seen.read.ids], device=device)


def _logits(model: Transformer, source: Tensor, before: Tensor, vectors: Tensor) -> Tensor:
    """The usual pass, from word vectors that somebody wants the gradient of."""
    table = model.encoder.embedding.table
    hook = table.register_forward_hook(lambda *_: vectors)
    try:
        memory = model.encode(source)
    finally:
        hook.remove()
    return model.logits(model.decode(before, memory, source))


def _margin(logits: Tensor, token: int, rival: int | None) -> Tensor:
    if rival is not None:
        return logits[token] - logits[rival]
    others = logits.index_fill(0, torch.tensor(token, device=logits.device), -torch.inf)
    return logits[token] - others.max()
