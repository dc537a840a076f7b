"""Steps of views in PostgreSQL, as `tests.views.steps` has them of the embedded engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import psycopg2.extensions
import pytest

from cdc.model.change import Kind
from spark_apply.stores.postgres.session.server import Server
from spark_apply.views.database.names import waiting
from spark_apply.views.database.state import DatabaseState
from spark_apply.views.database.step import DatabaseStep
from spark_apply.views.database.values import type_of
from spark_apply.views.embedded.containment import Search
from spark_apply.views.embedded.state import ViewState
from spark_apply.views.model.values import Columns, quoted
from spark_apply.views.planning.view import View
from spark_apply.views.running.step import StepOfViews
from spark_apply.views.sql.plan import plan_view
from spark_apply.views.sql.view_plan import Division, Relation
from tests.conftest import Database
from tests.views.engine import TYPES
from tests.views.steps import Steps, position

_KINDS = {of: Kind(name) for name, of in TYPES.items()} | {"INTEGER": Kind("int32")}


class DatabaseSteps(Steps):
    """The same in PostgreSQL."""

    def __init__(self, url: str, relations: Sequence[Relation], views: Sequence[View], *, job: str = "steps") -> None:
        self.url, self.job = url, job
        super().__init__(Path(), relations, views)

    def _new_state(self, folder: Path) -> ViewState:
        return DatabaseState(self.url, job=self.job, prefix="p")

    def write(self, table: str, rows: Mapping[tuple[Any, ...], Sequence[Any] | None]) -> None:
        of = next(each for each in self.tables if each.relation == table)
        kinds = dict(of.columns)
        names = [*of.key, *(name for name in kinds if name not in of.key)]
        listed = ", ".join(map(quoted, names))
        values = ", ".join(f"CAST(? AS {type_of(kinds[name])})" for name in names)
        with self.state.transaction():
            for key, row in rows.items():
                rest = list(row) if row is not None else [None] * (len(names) - len(key))
                self.state.execute(
                    f"INSERT INTO {waiting(table)} (_cdc_key, _cdc_position, _cdc_op, {listed}) "
                    f"VALUES (?, ?, ?, {values})",
                    [json.dumps(key), position(self.commit), "d" if row is None else "u", *key, *rest],
                )

    def _new_step(self, before: int | None, stale: Sequence[str], search: Search) -> StepOfViews:
        assert isinstance(self.state, DatabaseState)
        return DatabaseStep(self.state, position(self.commit), before, self.clock_ms, stale, search=search)


class Breaking:
    """Ends a session of ours once: before a statement with the text `point`, or at the commit of a step."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.database, self.point = database, ""
        connect: Callable[[Server], psycopg2.extensions.connection] = Server._connect

        def connected(server: Server) -> psycopg2.extensions.connection:
            found = connect(server)
            found.cursor_factory = self._cursor()
            return found

        monkeypatch.setattr(Server, "_connect", connected)

    def _cursor(self) -> type[psycopg2.extensions.cursor]:
        lose = self._lose

        class Cursor(psycopg2.extensions.cursor):
            def execute(self, query: Any, vars: Any = None) -> None:  # noqa: A002 - the driver's name
                lose(self, str(query), None)
                super().execute(query, vars)
                lose(self, str(query), vars)

            def copy_expert(self, sql: Any, file: Any, size: int = 8192) -> None:
                lose(self, str(sql), None)
                super().copy_expert(sql, file, size)

        return Cursor

    def _lose(self, cursor: psycopg2.extensions.cursor, statement: str, given: Any) -> None:
        if given is None:
            found = bool(self.point) and self.point in statement
        else:
            found = self.point.startswith("COMMIT") and "INSERT INTO meta" in statement and "outbox" in given
        if found:
            self.point = ""
            pid = cursor.connection.info.backend_pid
            assert self.database.rows(f"SELECT pg_terminate_backend({pid}, 30000)") == [(True,)]


def view_of(
    name: str, sql: str, key: Sequence[str], relations: Mapping[str, Relation], engine: str, *, full: bool = False
) -> View:
    """A view with the columns that the embedded engine says it has: no Spark is asked."""
    plan = plan_view(name, sql, key, relations, engine=engine, divided=Division(full=full))
    described = plan_view(name, sql, key, relations, divided=Division(full=full))
    duck = duckdb.connect()
    duck.execute("CREATE SCHEMA after")
    for read in described.reads:
        listed = ", ".join(f"{quoted(column)} {TYPES[kind.name]}" for column, kind in relations[read].columns.items())
        duck.execute(f"CREATE TABLE after.{quoted(read)} ({listed})")
    for node in described.nodes:
        whole = node.whole.replace("$clock_after", "TIMESTAMP '2026-01-01'")
        duck.execute(f"CREATE TABLE after.{quoted(node.name)} AS {whole}")
    found = dict(duck.execute(f"SELECT column_name, column_type FROM (DESCRIBE after.{quoted(name)})").fetchall())
    columns: Columns = [(each, _KINDS[found[each]]) for each in described.nodes[-1].columns]
    return View(plan, columns, sql)
