"""Which blocks of words see which in BigBird's attention, and why each is seen."""

from typing import Any, Literal

from heedful.inspection.trace import KINDS, Kind, Trace, place
from heedful.model.config import ModelConfig

Reason = Literal["first", "window", "random"]
"""One of the first blocks, one around it, or one by chance."""


def patterns(model: ModelConfig, seen: Trace) -> dict[str, Any]:
    """For each attention where not all words see all: the blocks that each block sees, and the reasons."""
    found = {}
    for kind in KINDS:
        for layer in range(seen.layers[kind]):
            name = place(kind, layer)
            if (pattern := seen.tensors.get(f"{name}.pattern")) is None:
                continue
            rows = [row.nonzero().flatten().tolist() for row in pattern[:: model.block, :: model.block]]
            reasons = [[reason(model, kind, row, each) for each in line] for row, line in enumerate(rows)]
            found[name] = {"block": model.block, "rows": rows, "reasons": reasons}
    return found


def reason(model: ModelConfig, kind: Kind, row: int, column: int) -> Reason:
    """Why a block (from 0) sees another; in the encoder the first ones also see everything."""
    if column < model.global_blocks or (kind == "encoder" and row < model.global_blocks):
        return "first"
    before, after = (model.window_blocks - 1, 0) if kind == "decoder" else (model.window_blocks // 2,) * 2
    return "window" if row - before <= column <= row + after else "random"
