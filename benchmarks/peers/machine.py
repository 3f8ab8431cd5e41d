"""The machine and its matrix-multiplication speed, the upper bound of training speed."""

import os
import platform
import time
from pathlib import Path

import torch

ROWS, INNER, COLUMNS = 2048, 512, 2048
"""A product as in a feed-forward network: tokens x d_model by d_model x d_ff."""
CACHE_IF_UNKNOWN = 64 << 20


def threads() -> int:
    """Cores that this process may use, for every toolkit."""
    affinity = getattr(os, "sched_getaffinity", None)  # absent on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def description() -> dict[str, object]:
    """The machine, for the result file."""
    return {
        "processor": _processor(),
        "cores": threads(),
        "last_level_cache": last_level_cache(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load_before": os.getloadavg()[0],
    }


def product_rates(seconds: float = 1.0) -> dict[str, float]:
    """GFLOP/s of a float32 product: with cached matrices, and with more matrices than the cache holds.

    Training is between the two, closer to the second: all other weights are used between two uses of a weight.
    """
    torch.set_num_threads(threads())
    size = 4 * (ROWS * INNER + INNER * COLUMNS + ROWS * COLUMNS)
    sets = 2 + 4 * last_level_cache() // size
    return {"warm": _rate(1, seconds), "cold": _rate(sets, seconds)}


def _rate(sets: int, seconds: float) -> float:
    matrices = [
        (torch.randn(ROWS, INNER), torch.randn(INNER, COLUMNS), torch.empty(ROWS, COLUMNS)) for _ in range(sets)
    ]
    for first_matrix, second_matrix, result in matrices:
        torch.mm(first_matrix, second_matrix, out=result)
    calls, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        first_matrix, second_matrix, result = matrices[calls % sets]
        torch.mm(first_matrix, second_matrix, out=result)
        calls += 1
    return 2e-9 * ROWS * INNER * COLUMNS * calls / (time.perf_counter() - started)


def last_level_cache() -> int:
    """Bytes of the largest cache, if the system reports it."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) << {"K": 10, "M": 20}.get(text[-1], 0))
    return max(sizes, default=CACHE_IF_UNKNOWN)


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
