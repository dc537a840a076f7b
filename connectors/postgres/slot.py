"""Publication and slot: what PostgreSQL keeps for a connector, and whether it still fits the connector's position."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from cdc.change import Table
from cdc.errors import OperatorError, RetryableError
from connectors.postgres.catalog import Catalog
from connectors.postgres.session import identifier
from connectors.postgres.stream import ReplicationConnection, lsn_number, lsn_text

ROW_FILTERS: Final = 150000
"""The first version with row filters in publications."""
OLDER_TRANSACTIONS_S: Final = 60.0
"""How long a new view waits for transactions that began before it."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A row of pg_replication_slots."""

    plugin: str
    database: str
    confirmed: int
    wal_status: str
    active_pid: int | None


def find_slot(catalog: Catalog, name: str) -> Slot | None:
    """The slot as it is now; None where there is none."""
    rows = catalog.rows(
        "reading pg_replication_slots",
        "SELECT coalesce(plugin, ''), coalesce(database, ''), confirmed_flush_lsn::text, coalesce(wal_status, ''),"
        " active_pid FROM pg_replication_slots WHERE slot_name = %s",
        (name,),
    )
    for plugin, database, confirmed, wal_status, pid in rows:
        return Slot(plugin, database, lsn_number(confirmed or "0/0"), wal_status, pid)
    return None


def verify_slot(catalog: Catalog, name: str, lsn: int) -> None:
    """Raise OperatorError unless the log can be followed from `lsn` through the slot without a gap."""
    again = (
        "changes since then are lost to this connector: start over under a new connector name (a fresh snapshot), "
        "or restore the database and the topics to one point"
    )
    slot = find_slot(catalog, name)
    if slot is None:
        raise OperatorError(f"slot missing: {name} is gone, and with it the log after {lsn_text(lsn)}", hint=again)
    if slot.plugin != "pgoutput":
        raise OperatorError(
            f"slot taken: {name} belongs to another tool (plugin {slot.plugin or 'none'})",
            hint="set source.slot to a name of its own",
        )
    if slot.wal_status == "lost":
        raise OperatorError(
            f"slot lost: the server removed log that {name} still needed (max_slot_wal_keep_size)", hint=again
        )
    if slot.confirmed > lsn:
        raise OperatorError(
            f"slot ahead: {name} stands at {lsn_text(slot.confirmed)}, but Kafka holds changes only up to "
            f"{lsn_text(lsn)}; PostgreSQL would skip what lies between without a word",
            hint=again,
        )


def drop_slot(connection: ReplicationConnection, name: str) -> None:
    """Remove a slot nobody has used yet."""
    connection.query(f'DROP_REPLICATION_SLOT "{name}"', f"dropping slot {name}")


def create_slot(connection: ReplicationConnection, name: str) -> tuple[int, str]:
    """Make the slot; give its consistent point and its exported snapshot, valid while `connection` stays idle."""
    rows = connection.query(
        f'CREATE_REPLICATION_SLOT "{name}" LOGICAL pgoutput EXPORT_SNAPSHOT', f"creating slot {name}"
    )
    _name, consistent_point, snapshot, _plugin = rows[0]
    return lsn_number(consistent_point), snapshot


def ensure_publication(catalog: Catalog, name: str, tables: Sequence[Table]) -> bool:
    """Make the publication carry `tables`; True if it had to be made or changed.

    Raises OperatorError where it exists and leaves out kinds of changes, columns or rows: events would have holes.
    """
    found = catalog.rows(
        "reading pg_publication",
        "SELECT puballtables, pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot "
        "FROM pg_publication WHERE pubname = %s",
        (name,),
    )
    if not found:
        statement = sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)").format(
            sql.Identifier(name), _list(tables)
        )
        _by_owner(catalog, f"creating publication {name}", statement)
        return True
    (_all_tables, complete, via_root) = found[0]
    if not (complete and via_root):
        raise OperatorError(
            f"publication {name} exists, but leaves changes out",
            hint=f"ALTER PUBLICATION {identifier(name)} SET (publish = 'insert, update, delete, truncate', "
            "publish_via_partition_root = true)",
        )
    carried = _carried(catalog, name)
    missing = [t for t in tables if (t.schema, t.name) not in carried]
    for table in tables:
        if carried.get((table.schema, table.name)):
            raise OperatorError(
                f"publication {name} carries only some rows of {table.qualified}",
                hint=f"ALTER PUBLICATION {identifier(name)} SET TABLE {identifier(table.schema, table.name)}",
            )
    if missing:
        statement = sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(sql.Identifier(name), _list(missing))
        _by_owner(catalog, f"adding tables to publication {name}", statement)
    return bool(missing)


def rehearse_publication(catalog: Catalog, name: str, tables: Sequence[Table]) -> None:
    """Raise what `ensure_publication` would, and leave everything as it is: nothing else is to be made in vain."""
    catalog.rows("beginning", "BEGIN")
    try:
        catalog.rows("setting lock_timeout", "SET LOCAL lock_timeout = '10s'")
        ensure_publication(catalog, name, tables)
    finally:
        catalog.rows("rolling back", "ROLLBACK")


def _by_owner(catalog: Catalog, doing: str, statement: sql.Composable) -> None:
    """Run a statement that the tables' owner may have to run instead; the hint then is the statement."""
    try:
        catalog.rows(doing, statement)
    except OperatorError as exc:
        hint = f"let the tables' owner run it: {catalog.text(statement)}"
        raise OperatorError(exc.message, hint=hint) from exc


def verify_publication(catalog: Catalog, name: str, tables: Iterable[str]) -> None:
    """Raise OperatorError if a table we follow has left the publication: its changes since then are not in the log."""
    carried = {f"{schema}.{table}" for schema, table in _carried(catalog, name)}
    for table in sorted(set(tables) - carried):
        raise OperatorError(
            f"publication {name} no longer carries {table}: its changes since then never reached the log",
            hint="start over under a new connector name (a fresh snapshot), or restore table and topics to one point",
        )


def _carried(catalog: Catalog, name: str) -> dict[tuple[str, str], bool]:
    """Tables of a publication, and whether a row filter thins them out."""
    (version,) = catalog.rows("reading the version", "SELECT current_setting('server_version_num')::int")[0]
    row_filter = "rowfilter IS NOT NULL" if version >= ROW_FILTERS else "false"
    statement = f"SELECT schemaname, tablename, {row_filter} FROM pg_publication_tables WHERE pubname = %s"  # noqa: S608 - two constants
    return {
        (schema, table): thinned
        for schema, table, thinned in catalog.rows("reading the publication", statement, (name,))
    }


def _list(tables: Sequence[Table]) -> sql.Composable:
    return sql.SQL(", ").join(sql.Identifier(t.schema, t.name) for t in tables)


def await_older_transactions(catalog: Catalog) -> None:
    """Return once every transaction that began before now has ended.

    Changes such a transaction made before a table joined the publication, or before the slot's point if its commit is
    held after it was logged, are not in the log for us; once it has ended, a new view sees them.
    """
    ((newest,),) = catalog.rows("reading the snapshot", "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::int8")
    deadline = time.monotonic() + OLDER_TRANSACTIONS_S
    while True:
        ((oldest,),) = catalog.rows(
            "reading the snapshot", "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::int8"
        )
        if oldest >= newest:
            return
        if time.monotonic() > deadline:
            raise RetryableError(
                "a transaction that began before this snapshot is still open, and the log may not have its changes",
                hint="SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY 2",
            )
        time.sleep(0.1)
