"""What a view of PostgreSQL's is compared with: the log that the tables' changes are in."""

from __future__ import annotations

from contextlib import suppress
from typing import Final, Protocol

import psycopg2.extensions

from cdc.config.config import ConnectorConfig
from cdc.model.errors import OperatorError
from connectors.postgres.catalog.catalog import Catalog
from connectors.postgres.lsn import at_record_end

WATERMARK: Final = "cdc.watermark"
"""The prefix of the message that moves the log's reader past the window's end at once."""


class Log(Protocol):
    """Knows where the log of a connector ends, and which tables it tells of."""

    late: bool
    """Whether a transaction that began before the log was held, and is not in it, may end behind its beginning."""

    looks: bool
    """Whether what was altered is found by looks at the catalog alone, which do not see what was set back between."""

    def catalog(self, connection: psycopg2.extensions.connection) -> Catalog:
        """Return the catalog that describes tables as the log's events have them."""

    def end(self, catalog: Catalog) -> int:
        """Return a commit position behind all that the session's view sees; asked once that is taken."""

    def nudge(self, catalog: Catalog) -> None:
        """Write something that the commit afterwards makes safe, and with it all that the view sees.

        The log's reader gets there at once by that.
        """


class WriteAheadLog:
    """PostgreSQL's own, by its LSN."""

    late = True
    looks = True

    def __init__(self, config: ConnectorConfig) -> None:
        self._publication = config.publication

    def catalog(self, connection: psycopg2.extensions.connection) -> Catalog:
        return Catalog(connection, self._publication)

    def end(self, catalog: Catalog) -> int:
        return at_record_end(catalog.end())

    def nudge(self, catalog: Catalog) -> None:
        with suppress(OperatorError):  # without the right to it, the log's reader gets there a little later
            catalog.rows("writing a watermark", "SELECT pg_logical_emit_message(true, %s, '')", (WATERMARK,))
