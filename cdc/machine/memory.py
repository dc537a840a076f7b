"""Tells malloc to keep memory that is freed."""

from __future__ import annotations

import ctypes
from typing import Final

KEPT_BYTES: Final = 32 * 1024 * 1024
"""glibc's greatest value of the size from which a block gets a mapping of its own."""

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def keep_freed() -> None:
    """Keep up to KEPT_BYTES for what is allocated next, where malloc is glibc's; for the whole process.

    Batches come and go by the megabyte. By default glibc gives such blocks back to the kernel, which then clears each
    page again.

    https://man7.org/linux/man-pages/man3/mallopt.3.html
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_MMAP_THRESHOLD, KEPT_BYTES)
