"""MySQL's snapshot by triggers: as by its log, except that views are compared with rounds of changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from cdc.config.config import ConnectorConfig
from cdc.model.change import Table, Xid
from cdc.model.errors import BugError
from connectors.mysql import session
from connectors.mysql.catalog import server
from connectors.mysql.catalog.catalog import Catalog
from connectors.triggers.mysql.change_log import ChangeLog
from connectors.triggers.mysql.rounds import Pins, await_safe, behind
from snapshot.mysql.snapshotter import MysqlSnapshotter


@dataclass(frozen=True, slots=True)
class RoundView:
    """A view that saw all rounds up to one, and nothing besides."""

    last: int
    token: str = ""
    """That of this round; empty in a view of before it was kept."""

    @classmethod
    def parse(cls, text: str) -> RoundView:
        last, _, token = text.partition(" ")
        return cls(int(last), token)

    @property
    def text(self) -> str:
        return f"{self.last} {self.token}"

    def sees(self, xid: Xid) -> bool:
        """Whether the view saw the round with this number."""
        if isinstance(xid, str):
            raise BugError("rounds have numbers")
        return xid <= self.last


class ChangeTables:
    """What triggers write: a `snapshot.mysql.logs.Log`."""

    def __init__(self, config: ConnectorConfig) -> None:
        self._name = config.name

    def catalog(self, connection: session.Connection) -> Catalog:
        return Catalog(connection, by_triggers=True)

    def parse(self, text: str) -> RoundView:
        return RoundView.parse(text)

    def take_views(
        self,
        sessions: Sequence[session.Connection],
        tables: Sequence[Table],
        connect: Callable[[], session.Connection],
        *,
        over: Callable[[], bool],
        all_: bool,
        exact: bool,
    ) -> tuple[Sequence[RoundView], int]:
        """Take each view at the end of a round of its own: what it saw is in rounds up to there, and nothing else is.

        No two sessions can take one view, and what is committed between two of them would be in the rows of the later
        one and in a round behind the earlier one: it would be told twice.
        """
        del tables, over, all_, exact  # nothing is waited for
        views: list[RoundView] = []
        with closing(connect()) as locking:
            changes = ChangeLog(locking, self._name, server.look(locking))
            pins, change_tables = Pins(locking, changes.names), changes.change_tables()
            for each in sessions:
                last = pins.pin(each, (*session.VIEW, "SAVEPOINT pin"), change_tables)
                views.append(RoundView(last, changes.token(last)))
                session.rows(each, "taking a view", "ROLLBACK TO SAVEPOINT pin")  # lets go of the change tables
                session.check_settings(each)
            await_safe(locking)
        return views, behind(views[-1].last)

    def end(self, connection: session.Connection) -> int:
        """Nothing is to be waited for: triggers write by names, and those of another name are made again."""
        del connection
        return 0


def open_snapshotter(config: ConnectorConfig) -> MysqlSnapshotter:
    """Make the snapshotter. It does not connect yet."""
    return MysqlSnapshotter(config, ChangeTables(config))
