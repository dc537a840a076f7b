"""What stands before a transaction in a MariaDB's log, where its connection is lost meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.model.errors import RetryableError
from connectors.mysql.replication.mariadb_history import trace


class _Lost:
    """A dump whose connection is lost before the file's first event."""

    def follow(self, _begin: object) -> None: ...

    def read(self, _within_s: float) -> bytes:
        raise RetryableError("the server: the log's connection was lost")

    def close(self) -> None: ...


def test_a_lost_connection_is_not_a_file_in_which_nothing_stands() -> None:
    """Else another file is looked through, and the server is said not to have the transaction any more."""
    dump: Any = _Lost()
    with pytest.raises(RetryableError, match="was lost"):
        trace(lambda: dump, ["mariadb-bin.000001"], (0, 1, 7))
