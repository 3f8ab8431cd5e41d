"""Process-wide settings, made in one place before torch is imported.

Training allocates and frees the same large blocks at every step. By default glibc returns them to
the system each time and the kernel clears them again; here they are kept.

Threads that wait for each other spin. By default they spin for milliseconds, and on a machine that is
busy with something else training all but stands still; spinning for microseconds costs nothing on a
quiet machine and keeps a third of the speed or more on a busy one (docs/log.md).
"""

import ctypes
import os
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # names and numbers of glibc's malloc.h
LARGEST_THRESHOLD = 32 * 1024 * 1024  # glibc refuses a larger mmap threshold on 64-bit systems


def prepare() -> None:
    """Short spins, freed memory kept, huge pages allowed; a user's own settings win."""
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # absent where the C library is not glibc
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_THRESHOLD)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
