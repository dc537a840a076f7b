"""What a view of MySQL's is compared with: the log that the tables' changes are in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from cdc.model.change import Table, Xid
from connectors.mysql import session
from connectors.mysql.catalog import server
from connectors.mysql.catalog.catalog import Catalog
from snapshot.handover import ReadView
from snapshot.mysql import views
from snapshot.mysql.visibility import BinlogView


class View(Protocol):
    """Knows which transactions of the log a read certainly saw."""

    @property
    def text(self) -> str:
        """The text that progress keeps."""

    def sees(self, xid: Xid) -> bool:
        """Whether the read certainly saw the transaction with this xid."""


class Log(Protocol):
    """Knows where the log of a connector ends, and which tables it tells of."""

    def catalog(self, connection: session.Connection) -> Catalog:
        """Return the catalog that describes tables as the log's events have them."""

    def parse(self, text: str) -> ReadView:
        """Parse what a view's `text` gave."""

    def take_views(
        self,
        sessions: Sequence[session.Connection],
        tables: Sequence[Table],
        connect: Callable[[], session.Connection],
        *,
        over: Callable[[], bool],
        all_: bool,
        exact: bool,
    ) -> tuple[Sequence[View], int]:
        """Begin a view on each session; return them, and a commit position that none saw beyond. See `views.take_view`.

        Those of a log that tells of truncates are equal: which of several a row was read under, its position does not
        say.
        """

    def end(self, connection: session.Connection) -> int:
        """Return a commit position behind every statement by now that may have given columns other names."""


class BinaryLog:
    """The server's own."""

    def catalog(self, connection: session.Connection) -> Catalog:
        return Catalog(connection)

    def parse(self, text: str) -> ReadView:
        return BinlogView.parse(text)

    def take_views(
        self,
        sessions: Sequence[session.Connection],
        tables: Sequence[Table],
        connect: Callable[[], session.Connection],
        *,
        over: Callable[[], bool],
        all_: bool,
        exact: bool,
    ) -> tuple[Sequence[View], int]:
        taken, end = views.take_view(sessions, tables, connect, over=over, all_=all_, exact=exact)
        return [taken] * len(sessions), end

    def end(self, connection: session.Connection) -> int:
        return server.status(connection, server.look(connection))[0].commit
