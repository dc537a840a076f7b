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
from connectors.triggers.mysql.rounds import Pins
from snapshot.mysql.snapshotter import MysqlSnapshotter


@dataclass(frozen=True, slots=True)
class RoundView:
    """A view that saw all rounds up to one; what it saw besides is in the next one."""

    last: int

    @classmethod
    def parse(cls, text: str) -> RoundView:
        return cls(int(text))

    @property
    def text(self) -> str:
        return str(self.last)

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

    def take_view(
        self,
        sessions: Sequence[session.Connection],
        tables: Sequence[Table],
        connect: Callable[[], session.Connection],
        *,
        over: Callable[[], bool],
        all_: bool,
        exact: bool,
    ) -> tuple[RoundView, int]:
        """Make a round of all that is committed, and take the views: the first one at its end, the others behind it."""
        del tables, over, all_, exact  # nothing is waited for
        first, *others = sessions
        with closing(connect()) as locking:
            changes = ChangeLog(locking, self._name, server.look(locking))
            begin = (*session.VIEW, "SAVEPOINT pin")
            pins, change_tables = Pins(locking, changes.names), changes.change_tables()
            last = pins.pin(first, begin, change_tables)
            session.rows(first, "taking a view", "ROLLBACK TO SAVEPOINT pin")  # lets go of the change tables
            for other in others:
                for statement in session.VIEW:
                    session.rows(other, "taking a view", statement)
            for each in sessions:
                session.check_settings(each)
            return RoundView(last), pins.end(change_tables)

    def end(self, connection: session.Connection) -> int:
        """Nothing is to be waited for: triggers write by names, and those of another name are made again."""
        del connection
        return 0


def open_snapshotter(config: ConnectorConfig) -> MysqlSnapshotter:
    """Make the snapshotter. It does not connect yet."""
    return MysqlSnapshotter(config, ChangeTables(config))
