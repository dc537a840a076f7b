"""Connections to a SQLite file, and its driver's errors in our terms."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from cdc.model.errors import CdcError, ConfigError, OperatorError, RetryableError

SCHEME: Final = "sqlite://"
OLDEST: Final = (3, 37, 0)
"""Older libraries do not tell which tables are STRICT or WITHOUT ROWID."""
_WAIT_S: Final = 10.0
"""How long another writer is waited for."""
GO_ON: Final = "nothing is lost: the connector goes on from its position"


def path_of(url: str) -> Path:
    """Return the file that a URL names: ``sqlite:///shop.db`` here, ``sqlite:////srv/shop.db`` from the root on."""
    path = unquote(url.removeprefix(SCHEME)[1:])
    if not url.startswith(f"{SCHEME}/") or not path or "?" in url:
        raise ConfigError(
            "source.url is not the URL of a SQLite file", hint="sqlite:///shop.db, or sqlite:////srv/shop.db"
        )
    return Path(path).absolute()


class Session:
    """Is one connection, in autocommit. Texts come as bytes: they may be other than UTF-8."""

    def __init__(self, path: Path) -> None:
        """Open the file, which is there. Raises OperatorError if it cannot be written, RetryableError if it is gone."""
        self.path = path
        self._file = _file(path)
        try:
            self._connection = sqlite3.connect(
                f"file:{quote(str(path))}?mode=rw", uri=True, timeout=_WAIT_S, isolation_level=None,
                check_same_thread=False,
            )  # fmt: skip
        except sqlite3.Error as exc:
            raise translate(exc, f"opening {path}") from exc
        self._connection.text_factory = bytes
        self.rows("preparing a session", "PRAGMA foreign_keys = OFF")

    def rows(self, doing: str, statement: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run one statement. Raises what `translate` makes of an error, with `doing` in front."""
        try:
            return self._connection.execute(statement, parameters).fetchall()
        except sqlite3.Error as exc:
            raise translate(exc, doing) from exc

    def cursor(self, doing: str, statement: str, parameters: Sequence[object] = ()) -> sqlite3.Cursor:
        """Run a statement whose rows are fetched one by one."""
        try:
            return self._connection.execute(statement, parameters)
        except sqlite3.Error as exc:
            raise translate(exc, doing) from exc

    def require_same_file(self) -> None:
        """Raise RetryableError if the path leads to another file by now: this connection would never see its rows."""
        if _file(self.path) != self._file:
            raise RetryableError(f"SQLite file {self.path} was replaced by another one: looking at it again")

    def rollback(self) -> None:
        """End what is open without a trace."""
        if self._connection.in_transaction:
            self.rows("rolling back", "ROLLBACK")

    def interrupt(self) -> None:
        """End what another thread is reading."""
        try:
            self._connection.interrupt()
        except sqlite3.ProgrammingError:
            pass  # it is closed

    def close(self) -> None:
        self._connection.close()


def _file(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError as exc:
        raise RetryableError(f"SQLite file {path} does not exist", hint="is source.url right?") from exc
    return found.st_dev, found.st_ino


def translate(exc: sqlite3.Error, doing: str) -> CdcError:
    """Return a statement's error in our terms. SQLite's messages name tables and columns, and hold no values."""
    if isinstance(exc, sqlite3.OperationalError):
        text = str(exc)
        if "readonly" in text or "unable to open" in text:
            return OperatorError(
                f"{doing}: the file cannot be written ({text})",
                hint="the connector's user must be able to write the file and its folder: chmod, chown",
            )
        if "no such" in text or "syntax" in text:
            return OperatorError(f"{doing}: {text}", hint="cdc check CONNECTOR.yaml says what is there")
        return RetryableError(f"{doing}: {text}", hint=GO_ON)
    if isinstance(exc, sqlite3.DatabaseError) and not isinstance(exc, sqlite3.ProgrammingError):
        return OperatorError(f"{doing}: {exc}", hint="PRAGMA integrity_check tells whether the file is whole")
    return RetryableError(f"{doing}: the connection is closed", hint=GO_ON)


def quoted(*names: str) -> str:
    """Write a name as SQL does."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def literal(text: str) -> str:
    """Write a text as SQL does: in triggers, which take no parameters."""
    return "'" + text.replace("'", "''") + "'"
