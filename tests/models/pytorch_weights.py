"""Our weights under the names of ``torch.nn``, which the parity tests load into PyTorch modules."""

from torch import Tensor

from heedful.models.attention import MultiHeadAttention
from heedful.models.transformer import Transformer

ATTENTION = {
    "input.weight": "in_proj_weight",
    "input.bias": "in_proj_bias",
    "output.weight": "out_proj.weight",
    "output.bias": "out_proj.bias",
}
SHARED = {
    **{f"attention.{ours}": f"self_attn.{theirs}" for ours, theirs in ATTENTION.items()},
    **{f"cross_attention.{ours}": f"multihead_attn.{theirs}" for ours, theirs in ATTENTION.items()},
}
for kind in ("weight", "bias"):
    SHARED[f"feed_forward.inner.{kind}"] = f"linear1.{kind}"
    SHARED[f"feed_forward.outer.{kind}"] = f"linear2.{kind}"
    SHARED[f"residual_attention.norm.{kind}"] = f"norm1.{kind}"
    SHARED[f"residual_cross.norm.{kind}"] = f"norm2.{kind}"
LAST_NORM = {"encoder": "norm2", "decoder": "norm3"}


def attention_as_pytorch(ours: MultiHeadAttention) -> dict[str, Tensor]:
    """The weights of one attention, for ``torch.nn.MultiheadAttention``."""
    return {ATTENTION[name]: tensor for name, tensor in ours.state_dict().items()}


def as_pytorch(ours: Transformer) -> dict[str, Tensor]:
    """The weights of both stacks, for ``torch.nn.Transformer``, which has no embeddings."""
    return {
        rename_parameter(name): tensor
        for name, tensor in ours.state_dict().items()
        if name.startswith(("encoder.layers", "decoder.layers", "encoder.norm", "decoder.norm"))
    }


def rename_parameter(name: str) -> str:
    stack, module, rest = name.split(".", 2)
    if module == "norm":
        return name
    number, inner = rest.split(".", 1)
    last = "residual_feed_forward.norm"
    theirs = inner.replace(last, LAST_NORM[stack]) if inner.startswith(last) else SHARED[inner]
    return f"{stack}.layers.{number}.{theirs}"
