"""Where the arithmetic happens: device, precision, threads."""

import os
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from heedful.errors import HeedfulError

if TYPE_CHECKING:
    import torch


def chosen_device(name: str) -> "torch.device":
    """The device of this name; ``auto`` takes a GPU when there is one.

    >>> chosen_device("cpu")
    device(type='cpu')
    """
    import torch

    place = os.environ.get("LOCAL_RANK")  # torchrun: each process of a machine has a GPU of its own
    if name == "cuda" and place:
        name = f"cuda:{place}"
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device(f"cuda:{place}" if place else "cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda", "mps"):
            raise RuntimeError("not a device that computes")
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise HeedfulError(f"device {name!r} cannot be used: {reason}", hint="try auto or cpu") from None
    return device


def mixed_precision(device: "torch.device", precision: str) -> AbstractContextManager[Any]:
    """A context in which products are bfloat16 where that is asked for or, by itself, quicker."""
    import torch

    if precision == "auto":
        able = device.type == "cuda" and torch.cuda.is_bf16_supported()
        precision = "bfloat16" if able else "float32"
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def available_cores() -> int:
    """Cores this process may run on, which may be fewer than the machine has."""
    affinity = getattr(os, "sched_getaffinity", None)  # absent on macOS and Windows
    return len(affinity(0)) if affinity else os.cpu_count() or 1
