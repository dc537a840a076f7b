"""Keeps what makes a state on executors count: a file of the driver that names snapshots, and holds what changed since.

    lake.kept        of each relation: the snapshot that has its rows, how many it has now, and their schema
    lake.waiting     of each captured table: the snapshot with events that wait, and up to where they are folded in
    over."R"         rows that have come or changed since the snapshot
    gone."R"         the change columns of all rows of the snapshot that do not count any more
    and `spark_apply.views.embedded.state`: positions, marks, the outbox, the quarantine, few events that wait

One transaction of this file makes a step count, with all tables that it has written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from spark_apply.views.embedded.state import KEY, OP, POSITION, SOURCE_MS, ViewState, place
from spark_apply.views.model.values import Columns, quoted

SHAPE: Final = "spark-1"
_SCHEMAS: Final = ("lake", "over", "gone")
_TABLES: Final = (
    "lake.kept (name VARCHAR PRIMARY KEY, snapshot BIGINT, number BIGINT NOT NULL, columns VARCHAR NOT NULL)",
    "lake.waiting (name VARCHAR PRIMARY KEY, snapshot BIGINT, floor VARCHAR NOT NULL)",
)


class ClusterState(ViewState):
    """The file."""

    def __init__(self, folder: Path, *, memory: str) -> None:
        super().__init__(folder, memory=memory, shape=SHAPE)
        with self.transaction():
            self._make()

    def _make(self) -> None:
        for schema in _SCHEMAS:
            self.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")
        for table in _TABLES:
            self.execute(f"CREATE TABLE IF NOT EXISTS {table}")

    def _forget_all(self) -> None:
        super()._forget_all()
        for schema in _SCHEMAS:
            self.execute(f"DROP SCHEMA {quoted(schema)} CASCADE")
        self._make()

    def prepare_table(self, relation: str, columns: Columns, hidden: Columns, key: Sequence[str]) -> None:
        """Make the place of events that wait; the rows' own schema follows at the next step."""
        del hidden, key
        own = f"{quoted(KEY)} VARCHAR, {quoted(POSITION)} VARCHAR, {quoted(OP)} VARCHAR, {quoted(SOURCE_MS)} BIGINT"
        self._make_or_widen(place("pending", relation), "pending", relation, columns, own)

    def forget(self, relations: Iterable[str]) -> None:
        """Drop rows of relations; their snapshots are no longer named."""
        for relation in relations:
            for table in ("kept", "waiting"):
                self.execute(f"DELETE FROM lake.{table} WHERE name = ?", [relation])
            for schema in ("over", "gone"):
                self.execute(f"DROP TABLE IF EXISTS {place(schema, relation)}")

    def clear_waiting(self, relation: str) -> None:
        super().clear_waiting(relation)
        self.execute("DELETE FROM lake.waiting WHERE name = ?", [relation])

    def arrow(self, statement: str, parameters: object = None) -> pa.Table:
        """Return the rows of a query as Arrow."""
        with self._reached():
            return self._connection.sql(statement, params=parameters).to_arrow_table()

    def types(self, at: str) -> dict[str, str]:
        """Return the columns of a table, with their types."""
        return {str(name): str(kind) for name, kind, *_ in self.rows(f"DESCRIBE SELECT * FROM {at}")}

    def named(self) -> list[tuple[str, str, int]]:
        """Return the snapshots that count: what they are of, the relation, the number."""
        return [
            (str(of), str(name), int(snapshot))
            for of, name, snapshot in self.rows(
                "SELECT 'rows', name, snapshot FROM lake.kept WHERE snapshot IS NOT NULL UNION ALL "
                "SELECT 'waiting', name, snapshot FROM lake.waiting WHERE snapshot IS NOT NULL"
            )
        ]
