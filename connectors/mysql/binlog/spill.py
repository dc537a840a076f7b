"""Handles temporary files for transactions that are too long for memory."""

from __future__ import annotations

import tempfile
from contextlib import AbstractContextManager, suppress
from typing import IO

from cdc.machine.temporary_files import on_temporary_disk


def on_disk() -> AbstractContextManager[None]:
    """Turn a full or closed disk inside into an error that says so."""
    return on_temporary_disk("a transaction of the log")


def open_file() -> IO[bytes]:
    """Make a file for one transaction, which the caller closes."""
    with on_disk():
        return tempfile.TemporaryFile(prefix="cdc-transaction-")


def close_file(file: IO[bytes]) -> None:
    """Let go of such a file; what a full disk has not taken of it is wanted by nobody any more."""
    with suppress(OSError):
        file.close()
