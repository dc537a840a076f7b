"""Handles temporary files for transactions that are too long for memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from cdc.model.errors import RetryableError


@contextmanager
def on_disk() -> Iterator[None]:
    """Turn a full disk inside into an error that says so."""
    try:
        yield
    except OSError as exc:
        raise RetryableError(
            f"a transaction of the log does not fit into {tempfile.gettempdir()}: {exc.strerror or exc}",
            hint="make room there; or start it with TMPDIR set to a folder that has as much as the longest transaction",
        ) from exc
