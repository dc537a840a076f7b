"""Files that are only for a while: what the system says of a full or closed folder becomes an error of ours."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any, Final

from cdc.model.errors import CdcError, OperatorError, RetryableError

_PASSING: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO, errno.EAGAIN, errno.EINTR}
)
"""What passes: room and open files are had again once others give them back."""
_CLOSED: Final = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH})
_PRIMARY: Final = 0xFF
"""SQLite's primary code is the low byte of an extended one."""

_OPEN: Final = Path("/dev/fd")
_BLOCK: Final = 512
"""Bytes of a block as `st_blocks` counts them, whatever the file system's are."""


@contextmanager
def on_temporary_disk(what: str) -> Iterator[None]:
    """Translate what is raised inside; `what` needs the room. RetryableError while it may pass, else OperatorError."""
    try:
        yield
    except (OSError, sqlite3.Error, sqlite3.Warning) as exc:
        raise no_room(what, exc) from exc


def no_room(what: str, exc: Exception) -> CdcError:
    """Return what a failed write to a temporary file means."""
    folder = _folder()
    if isinstance(exc, OSError):
        passing, reason = exc.errno in _PASSING, exc.strerror or type(exc).__name__
    else:  # the library's words name no row
        code = getattr(exc, "sqlite_errorcode", None)
        passing, reason = code is None or code & _PRIMARY not in _CLOSED, str(exc) or type(exc).__name__
    if passing:
        return RetryableError(
            f"{what} does not fit into {folder}: {reason}",
            hint=f"make room there: df -h {quote(str(folder))}; or start it with TMPDIR set to a folder that has room",
        )
    return OperatorError(
        f"{what} cannot be kept in {folder}: {reason}",
        hint=f"the connector's user must be able to write there: ls -ld {quote(str(folder))}; or start it "
        "with TMPDIR set to a folder that it may write to",
    )


def _folder() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:  # none of the usual folders can be written to
        return os.environ.get("TMPDIR", "/tmp")  # noqa: S108 - a name for a message


def temporary_bytes() -> int | None:
    """Return what this process's temporary files take on disk; None where the system does not tell.

    They are the open files that have no name any more: SQLite and `tempfile` take it away as they make one.
    """
    found = 0
    try:
        numbers = [path.name for path in _OPEN.iterdir()]
    except OSError:
        return None
    for number in numbers:
        try:
            of = os.fstat(int(number))
        except OSError:  # closed meanwhile, as the listing's own
            continue
        if stat.S_ISREG(of.st_mode) and of.st_nlink == 0:
            found += of.st_blocks * _BLOCK
    return found


class TemporaryDatabase:
    """Is a SQLite database in a file that goes with its connection; `what` it keeps is for errors.

    It may be used on any thread, on one at a time.
    """

    def __init__(self, what: str, script: str) -> None:
        self._what = what
        with on_temporary_disk(what):
            self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
            self._db.executescript(f"PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF; {script}")

    def run(self, statement: str, values: tuple[Any, ...] = ()) -> None:
        """Run a statement that gives no rows."""
        try:
            self._db.execute(statement, values)
        except (sqlite3.Error, sqlite3.Warning, OSError) as exc:
            raise no_room(self._what, exc) from exc

    def run_for_each(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> int:
        """Run a statement for each of the rows; return how many rows it changed."""
        try:
            return max(self._db.executemany(statement, rows).rowcount, 0)
        except (sqlite3.Error, sqlite3.Warning) as exc:
            raise no_room(self._what, exc) from exc

    def rows(self, statement: str, values: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        """Give what a query finds, as it is found."""
        with on_temporary_disk(self._what):
            yield from self._db.execute(statement, values)

    def close(self) -> None:
        """Close it and give its room back; safe to call twice."""
        with on_temporary_disk(self._what):
            self._db.close()
