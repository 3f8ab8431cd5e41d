"""Device, precision, cores and process-wide settings. Torch is imported inside functions."""

import ctypes
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.errors import HeedfulError

if TYPE_CHECKING:
    import torch


def select_device(name: str) -> "torch.device":
    """Select a device by name; ``auto`` prefers a GPU.

    >>> select_device("cpu")
    device(type='cpu')
    """
    import torch

    local_rank = os.environ.get("LOCAL_RANK")  # torchrun: one GPU per local process
    if name == "cuda" and local_rank:
        name = f"cuda:{local_rank}"
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device(f"cuda:{local_rank}" if local_rank else "cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda", "mps"):
            raise RuntimeError("unsupported device type")
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise HeedfulError(f"cannot use device {name!r}: {reason}", hint="use auto or cpu") from None
    return device


def mixed_precision(device: "torch.device", precision: str) -> AbstractContextManager[Any]:
    """Autocast to bfloat16 if requested, or with ``auto`` if the GPU supports it."""
    import torch

    if precision == "auto":
        supports_bfloat16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
        precision = "bfloat16" if supports_bfloat16 else "float32"
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def available_cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # absent on macOS and Windows
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Let PyTorch use this many threads in this block."""
    import torch

    previous_count = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous_count)


def is_under_torchrun() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ and "RANK" in os.environ


LAUNCH_FOLDER_VARIABLE, LAUNCHER_VARIABLE = "HEEDFUL_LAUNCH_FOLDER", "HEEDFUL_LAUNCHER_PID"
"""Name the folder and the process of training/launcher.py."""

RESULT_FILES = "result-*.json"
"""In the folder of a launch: what its ranks return, by number of restarts."""


def exit_with_launcher() -> None:
    """End this rank soon after its launcher: torchrun, which nobody could stop it through, or training/launcher.py.

    Called first thing, because a launcher may die while its ranks import PyTorch. Needs POSIX, except for the folder
    of a launch.
    """
    launcher, folder = int(os.environ.get(LAUNCHER_VARIABLE, os.getppid())), os.environ.get(LAUNCH_FOLDER_VARIABLE)

    def watch() -> None:
        while (os.name != "posix" or os.getppid() == launcher) and (folder is None or Path(folder).is_dir()):
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def get_torchrun_rank() -> int:
    """Rank of this process; 0 without torchrun."""
    return int(os.environ["RANK"]) if is_under_torchrun() else 0


# ---- Process-wide settings, applied before torch is imported
#
# Training allocates and frees the same large blocks at every step. By default, glibc returns them to the
# system and the kernel clears them again; here they are reused.
#
# OpenMP threads spin while they wait. The default of milliseconds nearly stops training on a busy machine;
# microseconds cost nothing on an idle one and keep a third of the speed or more on a busy one (docs/log.md).

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # names and numbers of glibc's malloc.h

MAX_MMAP_THRESHOLD = 32 * 1024 * 1024  # glibc refuses a larger mmap threshold on 64-bit systems


def configure_process() -> None:
    """Set short spinning, memory reuse and huge pages; existing environment variables win."""
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    if _is_virtual_amx():
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # absent where the C library is not glibc
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAX_MMAP_THRESHOLD)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def _is_virtual_amx() -> bool:
    """Whether this is a virtual machine with AMX: some advertise it and die of SIGILL in bfloat16 products."""
    try:
        with Path("/proc/cpuinfo").open(encoding="ascii", errors="replace") as file:
            flags = next((line for line in file if line.startswith("flags")), "")
    except OSError:  # not Linux
        return False
    return " amx_tile" in flags and " hypervisor" in flags
