"""Check how the time of a function grows with the size of its input, on any machine."""

import time
from collections.abc import Callable

FAST_SECONDS = 1.0
"""Less CPU time than this is always accepted: small times cannot be compared."""


def check_nearly_linear(work: Callable[[int], object], size: int) -> None:
    """Fail if 8 times the input takes more than 24 times as long; quadratic work takes 64 times as long."""
    seconds = _measure(work, size)
    if seconds > FAST_SECONDS:
        small_seconds = max(_measure(work, size // 8) for _ in range(3))
        if seconds >= 24 * small_seconds:  # other load, or garbage collection
            seconds = min(_measure(work, size) for _ in range(3))
        assert seconds < 24 * small_seconds, f"{small_seconds:.3g} s for {size // 8}, {seconds:.3g} s for {size}"


def _measure(work: Callable[[int], object], size: int) -> float:
    start = time.process_time()
    work(size)
    return time.process_time() - start
