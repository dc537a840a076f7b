"""Says which tables join the publication: those that are there at a start, and those of a pattern that come later.

A table joins by a statement that waits for those who alter, vacuum or index it, and all other tables would wait with
it. So one that just a pattern brings is left out while it is locked, and looked at again while the log is followed. The
log says nothing of tables that the publication does not carry, so the catalog is asked for new ones now and then.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from psycopg2 import sql

from cdc.config.source_config import SourceConfig
from cdc.config.table_patterns import LEFT_OUT, named
from cdc.model.change import Table
from cdc.model.errors import NewTablesError, OperatorError, RetryableError
from connectors.captured_tables import LeftOut
from connectors.postgres.catalog.catalog import Captured, Catalog
from connectors.postgres.slot.slot import carried, table_list

LOCKS_S: Final = 10.0
"""How long a lock is waited for, of each statement."""
_ASKED_EVERY_S: Final = 0.25
NEW_EVERY_S: Final = 10.0
_NEW_SHARE: Final = 200
"""To look for new tables takes at most one part in so many of the time."""
_JUDGED: Final = 100
"""So many tables that were left out are judged again at each look: they may have a key by now."""

_OWNED: Final = "SELECT pg_has_role(pubowner, 'USAGE') FROM pg_publication WHERE pubname = %s"
_THEIRS: Final = "SELECT oid::int8 FROM pg_class WHERE oid = ANY (%s::oid[]) AND NOT pg_has_role(relowner, 'USAGE')"
# A worker of autovacuum, which belongs to no user, lets go for who waits for it. Prepared transactions have no process.
_LOCKED: Final = """
SELECT l.relation::int8, min(l.pid)
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.relation = ANY (%s::oid[])
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.mode IN ('ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                 'AccessExclusiveLock')
  AND l.pid IS DISTINCT FROM pg_backend_pid() AND (a.pid IS NULL OR a.usesysid IS NOT NULL)
GROUP BY 1"""


class Joining:
    """Holds the tables that one session captures, or has left out."""

    def __init__(self, publication: str, of: SourceConfig) -> None:
        self._publication = publication
        self._patterns = [item for item in of.tables if item not in named(of.tables)]
        self._keys = of.keys
        self._may_pass: AbstractSet[str] = frozenset()
        """Tables that cannot be captured for now, also those that are named: they are judged again at each look."""
        self._waits: dict[int, str] = {}
        """The tables that were locked, by oid."""
        self._captured: frozenset[str] = frozenset()
        self._told: set[str] = set()
        """The tables that are left out, which was said."""
        self._new_at_s = float("inf")

    def possible(self, catalog: Catalog, captured: Sequence[Captured], left_out: LeftOut) -> tuple[Captured, ...]:
        """Leave out tables that cannot join the publication now, as somebody else must put them there.

        A table that somebody makes or alters stops no other, if a pattern alone brings it. One that is named, and
        locked, is waited for later.
        """
        theirs = unpublishable(catalog, self._publication, captured)
        for one in theirs:
            left_out(one.table, may_not_publish(catalog, self._publication, one.table))
        brought = [one for one in captured if one not in theirs and left_out.brings(one.table.qualified)]
        held = self._held(catalog, brought)
        for one, pid in held:
            left_out.for_now(one.table, is_locked(one.table, pid))
        self._waits = {one.oid: one.table.qualified for one, _ in held}
        without = {*(one.oid for one in theirs), *self._waits}
        possible = tuple(one for one in captured if one.oid not in without)
        self._captured, self._told = frozenset(one.table.qualified for one in possible), {*left_out.found}
        self._may_pass = left_out.may_pass
        if self._may_pass or any(not pattern.startswith(LEFT_OUT) for pattern in self._patterns):
            self._new_at_s = time.monotonic() + NEW_EVERY_S
        return possible

    def _held(self, catalog: Catalog, captured: Sequence[Captured]) -> list[tuple[Captured, int | None]]:
        """Return those that are still locked after as long as a statement would wait."""
        until = time.monotonic() + LOCKS_S
        while held := locked(catalog, self._publication, captured):
            if time.monotonic() > until:
                break
            time.sleep(_ASKED_EVERY_S)
        return held

    def look(self, catalog: Catalog) -> None:
        """Raise NewTablesError once a table that a pattern brings, and that is not captured, is there or is free."""
        if self._waits:
            held = {oid for oid, _ in catalog.rows("reading pg_locks", _LOCKED, ([*self._waits],))}
            free = [name for oid, name in self._waits.items() if oid not in held]
            if free:
                raise NewTablesError(f"table {', '.join(sorted(free))} is locked no more: taking it up", free)
        begun_s = time.monotonic()
        if begun_s < self._new_at_s:
            return
        new = self._new(catalog)
        self._new_at_s = begun_s + max(NEW_EVERY_S, (time.monotonic() - begun_s) * _NEW_SHARE)
        if new:
            said = f"table {', '.join(new)} is new, or can be captured by now, and source.tables has it: taking it up"
            raise NewTablesError(said, new)

    def _new(self, catalog: Catalog) -> list[str]:
        """Return the tables that can be captured by now; log those that cannot, once."""
        names = {*catalog.brought([*self._patterns, *self._may_pass])} - self._captured
        if len(names) > _JUDGED:
            names -= self._told - self._may_pass
        if not names:
            return []
        left_out = LeftOut(self._patterns)
        asked = sorted(names) if len(names) <= _JUDGED else [*self._patterns, *(self._may_pass & names)]
        try:
            there = catalog.captured(asked, self._keys, left_out)
        except OperatorError:  # one of them has just been dropped
            return []
        new = [one for one in there if one.table.qualified not in self._captured]
        theirs = unpublishable(catalog, self._publication, new)
        for one in theirs:
            left_out(one.table, may_not_publish(catalog, self._publication, one.table))
        waiting = [one for one, _ in locked(catalog, self._publication, new)]  # it is being made
        left_out.tell(but=self._told | self._captured)
        self._told |= left_out.found.keys()
        return [one.table.qualified for one in new if one not in theirs and one not in waiting]


def locked(catalog: Catalog, publication: str, captured: Sequence[Captured]) -> list[tuple[Captured, int | None]]:
    """Return the tables that would have to wait to join the publication, with the process that holds them up.

    None stands for a prepared transaction.
    """
    there = carried(catalog, publication)
    missing = {one.oid: one for one in captured if (one.table.schema, one.table.name) not in there}
    rows = catalog.rows("reading pg_locks", _LOCKED, ([*missing],)) if missing else []
    return [(missing[oid], pid) for oid, pid in rows]


def is_locked(table: Table, pid: int | None) -> RetryableError:
    """Return the error of a table that is waited for."""
    if pid is None:
        by, asks = "a prepared transaction", "SELECT gid, prepared FROM pg_prepared_xacts"
    else:
        by, asks = f"process {pid}", f"SELECT state, xact_start, query FROM pg_stat_activity WHERE pid = {pid}"  # noqa: S608 - a number
    return RetryableError(
        f"table {table.qualified} cannot join the publication: it is locked by {by}",
        hint=f"it is taken up once it is free; who holds it: {asks}",
    )


def unpublishable(catalog: Catalog, name: str, captured: Sequence[Captured]) -> list[Captured]:
    """Return the tables that the publication, where it exists, does not carry, and this user may not put there."""
    owned = catalog.rows("reading pg_publication", _OWNED, (name,))
    if not owned:
        return []
    there = carried(catalog, name)
    missing = [one for one in captured if (one.table.schema, one.table.name) not in there]
    rows = catalog.rows("reading the catalog", _THEIRS, ([one.oid for one in missing],)) if missing else []
    theirs = {oid for (oid,) in rows}
    return [one for one in missing if one.oid in theirs or not owned[0][0]]


def may_not_publish(catalog: Catalog, name: str, table: Table) -> OperatorError:
    """Return the error of a table that another user must put into the publication."""
    statement = sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(sql.Identifier(name), table_list([table]))
    return OperatorError(
        f"table {table.qualified} is not in publication {name}, and this user may not put it there",
        hint=catalog.text(statement),
    )
