"""Names a socket of the file system so that the kernel takes it: it knows about a hundred bytes of a path."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_MOST_BYTES: Final = 100


@contextmanager
def short_name(path: Path) -> Iterator[str]:
    """Give a name of the socket for as long as it is bound or connected to; by its folder where its own is too long."""
    if len(os.fsencode(path)) <= _MOST_BYTES or sys.platform != "linux":
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
