"""Judges whether a server has room for the locks that one statement over all of a table takes.

Reading a partitioned table locks each of its partitions and each of their indexes, all at once. The server's table of
locks is made when it starts: `max_locks_per_transaction` for each session that it can have. An application that reads
by the partition's key never meets this limit; a snapshot does, with 3,000 partitions of two indexes each.

https://www.postgresql.org/docs/current/runtime-config-locks.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from cdc.model.errors import OperatorError
from connectors.postgres.catalog.queries import Rows

_NEEDED: Final = """
WITH RECURSIVE part(root, oid) AS (
    SELECT oid, oid FROM pg_class WHERE oid = ANY (%s::oid[]) AND relkind = 'p'
    UNION ALL
    SELECT part.root, i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid
)
SELECT part.root::int8, count(DISTINCT part.oid), count(DISTINCT part.oid) + count(x.indexrelid)
FROM part LEFT JOIN pg_index x ON x.indrelid = part.oid GROUP BY 1
"""
_ROOM: Final = """
SELECT current_setting('max_locks_per_transaction')::int8, current_setting('max_connections')::int8
       + current_setting('max_worker_processes')::int8 + current_setting('max_wal_senders')::int8
       + coalesce(current_setting('autovacuum_worker_slots', true), current_setting('autovacuum_max_workers'))::int8
       + current_setting('max_prepared_transactions')::int8
"""
_GROWS: Final = 2
_SLACK: Final = 3000
"""The table of locks may grow into memory that nothing else of the server has taken: surely not beyond both."""
_STEP: Final = 64


def refusals(rows: Rows, tables: Mapping[int, str]) -> Iterator[OperatorError]:
    """Give the tables, by oid, that cannot be read by one statement."""
    needed = rows("counting partitions", _NEEDED, (list(tables),))
    if not needed:
        return
    ((each, sessions),) = rows("reading settings", _ROOM, ())
    for root, partitions, locks in needed:
        if locks > each * sessions * _GROWS + _SLACK:
            enough = -(-2 * locks // (sessions * _STEP)) * _STEP
            yield OperatorError(
                f"table {tables[root]}: a snapshot locks its {partitions - 1} partitions and their indexes, {locks} "
                f"relations, and the server has room for about {each * sessions} locks (max_locks_per_transaction)",
                hint=f"ALTER SYSTEM SET max_locks_per_transaction = {enough}; then restart the server",
            )
