"""The seam for looking inside: modules report named tensors while somebody looks.

Names follow the paper: ``encoder.0.self.weights``, ``decoder.2.cross.q``. Looking does not change
the output, and what nobody looks at is never computed.
"""

from collections.abc import Callable

from torch import Tensor

Observer = Callable[[str, Tensor], None]


def within(observer: Observer | None, scope: str) -> Observer | None:
    """The same observer, for a part whose names start with ``scope``."""
    if observer is None:
        return None
    return lambda name, value: observer(f"{scope}.{name}", value)
