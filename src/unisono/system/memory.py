"""Keep freed memory for the next step, instead of giving it back to the kernel and faulting it in again.

glibc maps every allocation above a threshold afresh, so that each step of a training pays a page fault per 4 KiB of
activations and gradients. Here the same sizes come back every step. Never changes a bit.
"""

import ctypes

# malloc.h of glibc.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_LARGEST = 32 << 20
"""Bytes: the largest threshold glibc takes; allocations above it are still mapped afresh."""


def keep_freed_memory() -> bool:
    """Tell this process's allocator to keep what is freed; returns whether there is a glibc to listen.

    Costs memory: the process stays as large as it has once been.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return False
    told = [(_M_MMAP_THRESHOLD, _LARGEST), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 2 * _LARGEST)]
    return all(libc.mallopt(option, value) == 1 for option, value in told)
