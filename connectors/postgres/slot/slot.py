"""PostgreSQL keeps a publication and a slot for a connector; here they are made, and checked against its position.

Why acknowledging the slot after Kafka's commit loses nothing:

- The server keeps its log for the slot. From the LSN that is asked for on, it sends every transaction whose commit
  record is there or later, whole and in the order of commits. What lies before the slot's confirmed LSN it never sends
  again.
- The confirmed LSN moves only where we say so. `ReplicationConnection.flushed` is given positions that a committed
  Kafka transaction holds; what was merely read moves `written`, which confirms nothing. So the slot is never ahead of
  Kafka's position, and all that is behind the position can still be read. While a log is idle, the pipeline commits
  the position alone before it acknowledges it.
- After a crash between Kafka's commit and the acknowledgement, the stream is asked for from Kafka's position, and drops
  transactions whose commit record starts before it. None is published twice.
- A slot that is ahead all the same was moved, or made again. PostgreSQL would skip what lies between without a word, so
  `slot_refusals` stops the start. It also stops it where the slot is gone or lost, or the server ends before the
  position.
- An older copy of the server has a slot that is behind the position, and another log before it: `history` tells.
- A change of a table that is not in the publication at that time never comes. The position therefore records when each
  table joined and when the publication was last changed, and `ledger.difference` finds a table that was out in between,
  also where the publication was dropped and made again, left changes out for a while, or had a filter. The rows of
  exactly these tables are read again, under views that see all that was not published.
- At the first start the publication is made before the slot. The slot's exported snapshot shows exactly what was
  committed before the slot's first LSN, and the stream has what is committed behind it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import errors, sql

from cdc.model.change import Table
from cdc.model.errors import ChangedError, GapError, OperatorError, RetryableError, VerdictError, raise_first
from connectors.postgres.catalog import queries
from connectors.postgres.catalog.catalog import Catalog
from connectors.postgres.lsn import lsn_number, lsn_text
from connectors.postgres.session import identifier
from connectors.postgres.slot.invalidation import loss
from connectors.postgres.slot.replication_stream import ReplicationConnection
from connectors.postgres.slot.timeline import CLOSE_THE_GAP

_GONE: Final = (errors.UndefinedTable, errors.InvalidSchemaName, errors.UndefinedObject)
"""What is named was there a moment ago: it came from the catalog."""
FAILOVER_SLOTS: Final = 170000
"""The first version that copies slots to standbys."""
REASON: Final = "coalesce(to_jsonb(s) ->> 'invalidation_reason', '')"
"""Of a row `s` of pg_replication_slots: an older server than 17 gives none, and a primary then has only one."""
OLDER_TRANSACTIONS_S: Final = 60.0
"""How long a new view waits for transactions that began before it."""
_TOLD_S: Final = 10.0
_RENAMED: Final = """
SELECT pubname::text FROM pg_publication
WHERE oid = ANY (%s::oid[]) AND NOT EXISTS (SELECT FROM pg_publication WHERE pubname = %s)
"""
_WHO_IS_OPEN: Final = (
    "SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY 2; "
    "SELECT gid, prepared FROM pg_prepared_xacts"
)

log = logging.getLogger("cdc")


@dataclass(frozen=True, slots=True)
class Slot:
    """Is a row of pg_replication_slots."""

    plugin: str
    database: str
    restart: int
    """Where decoding begins; of a slot just made, the log's end as it was then."""
    confirmed: int
    wal_status: str
    active_pid: int | None
    reason: str
    """Why the server has given it up, where it says so."""
    here: str
    """The database of the session that has found it."""


def find_slot(catalog: Catalog, name: str) -> Slot | None:
    """Return the slot as it is now; None where there is none."""
    rows = catalog.rows(
        "reading pg_replication_slots",
        "SELECT coalesce(plugin, ''), coalesce(database, ''), restart_lsn::text, confirmed_flush_lsn::text,"  # noqa: S608 - constant
        f" coalesce(wal_status, ''), active_pid, {REASON}, current_database()::text"
        " FROM pg_replication_slots s WHERE slot_name = %s",
        (name,),
    )
    for plugin, database, restart, confirmed, wal_status, pid, reason, here in rows:
        began, flushed = lsn_number(restart or "0/0"), lsn_number(confirmed or "0/0")
        return Slot(plugin, database, began, flushed, wal_status, pid, reason, here)
    return None


def slot_refusals(catalog: Catalog, name: str, lsn: int) -> Iterator[OperatorError]:
    """Give why the log cannot be followed from `lsn` through the slot without a gap."""
    end = catalog.end()
    if end < lsn:
        yield GapError(
            f"server behind the position: its log ends at {lsn_text(end)}, but Kafka holds changes up to "
            f"{lsn_text(lsn)}: an older copy of the server was restored, and the topics have what it does not",
            hint=CLOSE_THE_GAP,
        )
    slot = find_slot(catalog, name)
    if slot is None:
        yield GapError(f"slot missing: {name} is gone, and with it the log after {lsn_text(lsn)}", hint=CLOSE_THE_GAP)
    elif slot.plugin != "pgoutput":
        yield VerdictError(
            f"slot taken: {name} belongs to another tool (plugin {slot.plugin or 'none'})",
            hint="set source.slot to a name of its own",
        )
    elif slot.database != slot.here:
        yield GapError(
            f"slot of another database: {name} follows database {slot.database}, and source.url leads to {slot.here}: "
            "this one has taken its name, or the slot its place",
            hint=f"point source.url at database {slot.database}; or, if {slot.here} stands in its place by now, "
            f"{CLOSE_THE_GAP}",
        )
    elif slot.wal_status == "lost":
        lost = loss(name, slot.reason)
        yield GapError(lost.message, hint=lost.hint)
    elif slot.confirmed > lsn and slot.restart > lsn:
        yield GapError(
            f"slot re-made: {name} begins at {lsn_text(slot.restart)}, behind the position {lsn_text(lsn)} that Kafka "
            "holds: it was dropped and made again, or moved, and what lies between is not in it",
            hint=CLOSE_THE_GAP,
        )
    elif slot.confirmed > lsn:
        yield GapError(
            f"slot ahead: {name} stands at {lsn_text(slot.confirmed)}, but Kafka holds changes only up to "
            f"{lsn_text(lsn)}: it was moved, or older topics were restored; PostgreSQL would skip what lies between "
            "without a word",
            hint=CLOSE_THE_GAP,
        )


def unused_refusals(catalog: Catalog, name: str, connector: str) -> Iterator[OperatorError]:
    """Give why a connector without a position cannot take the slot's name: it cannot have made the slot."""
    if find_slot(catalog, name) is not None:
        yield VerdictError(
            f"slot re-made or foreign: {name} exists, and there is no position of connector {connector}",
            hint="if the connector has run before, its position is lost (a topic, or a file): begin under a new name; "
            "if another tool uses the slot, set source.slot to another name. Without the slot, what uses it can never "
            "go on: only who is sure that nothing does may take it away (docs/operations.md)",
        )


def drop_slot(connection: ReplicationConnection, name: str) -> None:
    """Remove a slot nobody has used yet."""
    connection.query(f'DROP_REPLICATION_SLOT "{name}"', f"dropping slot {name}")


def create_slot(connection: ReplicationConnection, name: str, *, version: int) -> tuple[int, str]:
    """Make the slot; give its consistent point and its exported snapshot, valid while `connection` stays idle.

    Where the server can, it copies the slot to standbys: a promoted one is then followed without a gap.
    """
    options = "(SNAPSHOT 'export', FAILOVER)" if version >= FAILOVER_SLOTS else "EXPORT_SNAPSHOT"
    rows = connection.query(
        f'CREATE_REPLICATION_SLOT "{name}" LOGICAL pgoutput {options}', f"creating slot {name}", within_s=None
    )
    _name, consistent_point, snapshot, _plugin = rows[0]
    return lsn_number(consistent_point), snapshot


def publication_refusals(catalog: Catalog, name: str, tables: Sequence[Table]) -> Iterator[OperatorError]:
    """Give why the publication, where it exists, leaves out changes, columns or rows: events would have holes."""
    found = catalog.rows(
        "reading pg_publication",
        "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate AND pubviaroot FROM pg_publication"
        " WHERE pubname = %s",
        (name,),
    )
    if found and not found[0][0]:
        yield OperatorError(
            f"publication {name} exists, but leaves changes out",
            hint=f"ALTER PUBLICATION {identifier(name)} SET (publish = 'insert, update, delete, truncate', "
            "publish_via_partition_root = true)",
        )
    there = carried(catalog, name)
    whole = ", ".join(f"ONLY {identifier(schema, table)}" for schema, table in there)
    for table in tables:
        thinned = there.get((table.schema, table.name))
        if thinned:
            yield OperatorError(
                f"publication {name} carries only some {thinned} of {table.qualified}",
                hint=f"ALTER PUBLICATION {identifier(name)} SET TABLE {whole}",
            )


def _version(catalog: Catalog) -> int:
    ((version,),) = catalog.rows("reading the version", "SELECT current_setting('server_version_num')::int")
    return int(version)


def ensure_publication(catalog: Catalog, name: str, tables: Sequence[Table], *, each: bool = True) -> bool:
    """Make the publication carry `tables`; True if it had to be made or changed.

    Raises OperatorError where it exists and leaves something out. `each` is as in `_add`: within a transaction, no
    statement follows one that was refused.
    """
    raise_first(publication_refusals(catalog, name, tables))
    if not catalog.rows("reading pg_publication", "SELECT 1 FROM pg_publication WHERE pubname = %s", (name,)):
        statement = sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)").format(
            sql.Identifier(name), table_list(tables)
        )
        _by_owner(catalog, f"creating publication {name}", statement)
        return True
    there = carried(catalog, name)
    missing = [t for t in tables if (t.schema, t.name) not in there]
    if missing:
        _add(catalog, name, missing, each=each)
    return bool(missing)


def _add(catalog: Catalog, name: str, tables: Sequence[Table], *, each: bool) -> None:
    """Have a publication carry tables. Raises for those that cannot join it, by their names.

    An event trigger may refuse one of them, and with it the statement: then `each` is tried by itself, and the others
    have joined. By the names a start knows which tables it can do without.
    """
    statement = sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(sql.Identifier(name), table_list(tables))
    try:
        _by_owner(catalog, f"adding tables to publication {name} ({', '.join(t.qualified for t in tables)})", statement)
    except OperatorError:
        refused = (
            [table for table in tables if _is_refused(catalog, name, table)] if each and len(tables) > 1 else tables
        )
        if len(refused) == len(tables):
            raise
        if refused:
            _add(catalog, name, refused, each=False)


def _is_refused(catalog: Catalog, name: str, table: Table) -> bool:
    try:
        _add(catalog, name, [table], each=False)
    except OperatorError:
        return True
    return False


def rehearse_publication(catalog: Catalog, name: str, tables: Sequence[Table]) -> bool:
    """Raise or return what `ensure_publication` would, and leave everything as it is."""
    catalog.rows("beginning", "BEGIN")
    try:
        catalog.rows("setting lock_timeout", "SET LOCAL lock_timeout = '10s'")
        return ensure_publication(catalog, name, tables, each=False)
    finally:
        catalog.rows("rolling back", "ROLLBACK")


def _by_owner(catalog: Catalog, doing: str, statement: sql.Composable) -> None:
    """Run a statement that the tables' owner may have to run instead; the hint then is the statement."""
    try:
        catalog.rows(doing, statement)
    except OperatorError as exc:
        if isinstance(exc.__cause__, _GONE):
            raise ChangedError(f"{exc.message}: it has just been dropped, looking again") from exc
        hint = f"{catalog.text(statement)}; -- as the tables' owner"
        raise OperatorError(exc.message, hint=hint) from exc


def left(catalog: Catalog, name: str, tables: Iterable[str], by: Collection[str]) -> Iterator[GapError]:
    """Refuse tables we follow that the publication does not carry now; `ledger.difference` tells of earlier times.

    `by` are the numbers of publications that have carried them.
    """
    there = {f"{schema}.{table}" for schema, table in carried(catalog, name)}
    missing = sorted(set(tables) - there)
    other_name = list(renamed(catalog, name, by)) if missing else []
    yield from other_name
    for table in missing if not other_name else ():
        yield GapError(
            f"publication {name} no longer carries {table}: its changes since then never reached the log",
            hint=f"put it in again, and its rows are read again at the next start; or {CLOSE_THE_GAP}",
        )


def publications(entries: Mapping[str, str]) -> set[str]:
    """Return the numbers of the publications by which tables were in the log: `reliance.ledger` writes the entries."""
    paths = (path for entry in entries.values() for of in entry.split(" ")[1:2] for path in of.split(","))
    return {oid for oid, joined, _ in (path.partition(":") for path in paths) if joined}


def renamed(catalog: Catalog, name: str, by: Collection[str]) -> Iterator[GapError]:
    """Refuse that the publication has another name by now: nothing is sent of it under the one that it had."""
    rows = catalog.rows("reading pg_publication", _RENAMED, ([*by], name))
    for (now,) in rows:
        yield GapError(
            f"publication {name} is called {now} by now: what is written since is not sent to the connector",
            hint=f"ALTER PUBLICATION {identifier(now)} RENAME TO {identifier(name)}; -- as its owner. Its tables are "
            f"then read again at the next start, which refuses another source.publication. Or {CLOSE_THE_GAP}",
        )


def carried(catalog: Catalog, name: str) -> dict[tuple[str, str], str]:
    """Return a publication's tables, and what is left out of each: ``rows``, ``columns``, or nothing."""
    rows = catalog.rows("reading the publication", queries.published(_version(catalog)), (name,))
    return {(schema, table): what for _, schema, table, _, _, _, what in rows}


def table_list(tables: Sequence[Table]) -> sql.Composable:
    """Return tables as SQL lists them, without those that inherit from them: they are published if captured themselves.

    Of a partitioned table ONLY leaves out nothing.
    """
    return sql.SQL(", ").join(sql.SQL("ONLY {}").format(sql.Identifier(t.schema, t.name)) for t in tables)


def await_older_transactions(
    catalog: Catalog,
    reading: str,
    *,
    within_s: float | None = OLDER_TRANSACTIONS_S,
    over: Callable[[], bool] = lambda: False,
) -> None:
    """Return once every transaction that began before the call has ended, and so is seen by every later view.

    Such a transaction may have changed rows before their table joined the publication. Or it may have been logged
    before the slot's first LSN, though its commit is visible only later. The log has none of that for us. The bound is
    a transaction id of our own, because a snapshot ends at the newest *completed* transaction, and one whose commit is
    held back may be newer. Raises RetryableError after `within_s`, or once it is `over`; `reading` names in the log
    what waits.
    """
    ((mine,),) = catalog.rows("taking a transaction id", "SELECT pg_current_xact_id()::text::int8")
    begun_s, told = time.monotonic(), False
    while not over():
        ((oldest,),) = catalog.rows("taking a view", "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::int8")
        if oldest > mine:
            return
        waited_s = time.monotonic() - begun_s
        if within_s is not None and waited_s > within_s:
            raise RetryableError(
                "a transaction that began before this snapshot is still open, and the log may not have its changes",
                hint=_WHO_IS_OPEN,
            )
        if not told and waited_s > _TOLD_S:
            log.warning("%s waits for transactions that began before it: %s", reading, _WHO_IS_OPEN)
            told = True
        time.sleep(0.05)
    raise RetryableError("reading was ended")
