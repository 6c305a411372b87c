"""Memory that is freed stays with the process, so that the next array need not fetch it again.

By default glibc gives large arrays back to the kernel, and the next one pays for a page fault every
4 KiB: a third of a training step on the CPU, a tenth of a forward.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # of malloc.h
_LARGEST_KEPT, _MOST_KEPT = 32 << 20, 512 << 20  # bytes; glibc allows no larger first one


def keep_freed_memory() -> bool:
    """Has this process keep all that is freed, for training; False where it cannot be told to."""
    return _set(_MMAP_MAX, 0) and _set(_TRIM_THRESHOLD, -1)


def keep_freed_strips() -> bool:
    """Has this process keep arrays of up to 32 MiB that are freed, 512 MiB at most."""
    return _set(_MMAP_THRESHOLD, _LARGEST_KEPT) and _set(_TRIM_THRESHOLD, _MOST_KEPT)


def _set(what: int, value: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc alone has it
    return mallopt is not None and bool(mallopt(what, value))
