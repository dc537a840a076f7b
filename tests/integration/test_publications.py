"""What a publication left out, and what changed beside the log: exactly these tables are read again, nothing stops."""

from __future__ import annotations

import re
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import pytest

from cdc.model.errors import OperatorError
from cdc.model.state import State
from connectors.postgres.reliance.ledger import Facts
from connectors.postgres.reliance.reliance import Reliance
from connectors.postgres.source import PostgresSource
from tests.conftest import Database
from tests.integration.connector import Connector
from tests.integration.running import Running, eventually, ordered, rows, same
from tests.integration.test_schema_changes import AGAIN, asked

_WRITTEN: Final = (
    "UPDATE t SET v = v || '!' WHERE id < 5; UPDATE u SET v = v || '!' WHERE id < 5",
    "DELETE FROM t WHERE id = (SELECT max(id) FROM t); DELETE FROM u WHERE id = (SELECT max(id) FROM u)",
    "INSERT INTO t SELECT max(id) + 7, 'missed' FROM t; INSERT INTO u SELECT max(id) + 7, 'missed' FROM u",
)
_ROOT: Final = "publish_via_partition_root = true"
_OF: Final = "CREATE PUBLICATION {0} FOR {1} WITH (" + _ROOT + ")"

SITUATIONS: Final[tuple[tuple[str, str, str, set[str]], ...]] = (
    ("out and in", "ALTER PUBLICATION {0} DROP TABLE t", "ALTER PUBLICATION {0} ADD TABLE t", {"t"}),
    (
        "row filter",
        "ALTER PUBLICATION {0} SET TABLE t WHERE (id > 99), u",
        "ALTER PUBLICATION {0} SET TABLE t, u",
        {"t"},
    ),
    ("column list", "ALTER PUBLICATION {0} SET TABLE t, u (id)", "ALTER PUBLICATION {0} SET TABLE t, u", {"u"}),
    (
        "publish reduced",
        "ALTER PUBLICATION {0} SET (publish = 'insert')",
        "ALTER PUBLICATION {0} SET (publish = 'insert, update, delete, truncate')",
        {"t", "u"},
    ),
    (
        "generated columns",
        "ALTER PUBLICATION {0} SET (publish_generated_columns = stored)",
        "ALTER PUBLICATION {0} SET (publish_generated_columns = none)",
        {"t", "u"},
    ),
    ("made again of tables", "DROP PUBLICATION {0}", _OF.format("{0}", "TABLE t, u"), {"t", "u"}),
    ("made again of all", "DROP PUBLICATION {0}", _OF.format("{0}", "ALL TABLES"), {"t", "u"}),
    ("of all, made again", "DROP PUBLICATION {0}", _OF.format("{0}", "ALL TABLES"), {"t", "u"}),
    ("unlogged", "ALTER TABLE t SET UNLOGGED", "ALTER TABLE t SET LOGGED", {"t"}),
    ("renamed, and back", "ALTER PUBLICATION {0} RENAME TO {0}_x", "ALTER PUBLICATION {0}_x RENAME TO {0}", {"t", "u"}),
    ("made again of a schema", "DROP PUBLICATION {0}", _OF.format("{0}", "TABLES IN SCHEMA public"), {"t", "u"}),
    (
        "schema out and in",
        "ALTER PUBLICATION {0} DROP TABLES IN SCHEMA public",
        "ALTER PUBLICATION {0} ADD TABLES IN SCHEMA public",
        {"t", "u"},
    ),
    (
        "rows as those of their partitions",
        "ALTER PUBLICATION {0} SET (publish_via_partition_root = false)",
        "ALTER PUBLICATION {0} SET (publish_via_partition_root = true)",
        {"t", "u"},
    ),
    ("moved to another schema, and back", "ALTER TABLE u SET SCHEMA x", "ALTER TABLE x.u SET SCHEMA public", {"u"}),
)
"""What happens, how it ends, and the tables of which something may be missing."""

HARMLESS: Final = (
    "ALTER PUBLICATION {0} ADD TABLE other",
    "COMMENT ON PUBLICATION {0} IS 'ours'",
    "GRANT SELECT ON t TO PUBLIC",
    "ALTER TABLE t SET (fillfactor = 90)",
    "VACUUM FULL t",
    "ANALYZE t",
    "CREATE INDEX ON t (v)",
    "ALTER PUBLICATION {0} DROP TABLE other",
)


def _made(database: Database, kafka: str, prefix: str, folder: Path) -> Connector:
    database.execute(
        "CREATE SCHEMA x",
        *(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)" for name in ("t", "other")),
        "CREATE TABLE u (id int PRIMARY KEY, v text) PARTITION BY HASH (id)",
        "CREATE TABLE u_0 PARTITION OF u FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
        "INSERT INTO t SELECT n, 'a' FROM generate_series(1, 20) n",
        "INSERT INTO u SELECT n, 'a' FROM generate_series(1, 20) n",
    )
    connector = Connector(folder, prefix, database.url, kafka, ["public.t", "public.u"])
    connector.catch_up()
    return connector


def _publication(connector: Connector) -> str:
    return f"cdc_{connector.name}"


def test_a_publication_that_left_something_out(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Each while it does not run: the tables concerned are read again, once, and deletes that were missed come too."""
    connector = _made(postgres18, kafka, prefix, tmp_path)
    name = _publication(connector)
    for what, begin, end, concerned in SITUATIONS:
        postgres18.execute("SET search_path = public, x", begin.format(name), *_WRITTEN, end.format(name))
        again = {reason.partition(":")[0].removeprefix("public.") for reason in asked(connector.catch_up())}
        assert again == concerned, what
        for table in ("public.t", "public.u"):
            same(connector, postgres18, table)
    postgres18.execute(f"DROP PUBLICATION {name}", _OF.format(name, "TABLE t, u"))
    connector.catch_up()
    postgres18.execute(*(each.format(name) for each in HARMLESS))
    assert asked(connector.catch_up()) == []


@pytest.mark.full  # test_a_publication_that_left_something_out, test_ddl_that_nobody_writes_after
@pytest.mark.parametrize(
    "number", [pytest.param(0, marks=pytest.mark.full), pytest.param(3, marks=pytest.mark.full), 5]
)
def test_a_publication_changed_while_running(
    number: int, postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """It notices within seconds, reads again, and goes on; what it stops at, it stops at only where it stays so."""
    connector = _made(postgres18, kafka, prefix, tmp_path)
    _, begin, end, concerned = SITUATIONS[number]
    name = _publication(connector)
    with Running(connector) as run:
        run.await_following()
        postgres18.execute(begin.format(name), *_WRITTEN, end.format(name))
        for table in sorted(concerned):
            run.await_line(f"table public.{table} was read while the log was followed")
        for table in ("t", "u"):
            eventually(
                lambda table=table: (
                    ordered(connector.fold(f"public.{table}").values())
                    == ordered(rows(postgres18, f"SELECT * FROM {table}"))
                ),
                "the fold is the table",
            )
        assert {reason.partition(":")[0] for reason in asked(run.stderr)} == {f"public.{name}" for name in concerned}
        assert "trying again" not in run.stderr
        if number:
            postgres18.execute(begin.format(name))
            assert run.ended() == (1 if number == 3 else 4)  # it is put right at the server alone; it is a gap
            assert "hint:" in run.stderr
        else:
            run.process.send_signal(signal.SIGTERM)
            assert run.ended() == 0


def test_a_table_out_of_the_publication_while_a_start_looks(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one look's statements the first finds it out, and the last finds it in: nothing is taken for what it was."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    connector.catch_up()
    look, alter = Reliance._facts, f"ALTER PUBLICATION cdc_{prefix} {{}} TABLE t"
    between = [alter.format("ADD"), "INSERT INTO t VALUES (1)", alter.format("DROP")]

    def looked(*of: Any) -> dict[str, Facts]:
        if len(between) > 1:
            postgres18.execute(between.pop(), between.pop())
        found = look(*of)
        postgres18.execute(*between[:1])
        between.clear()
        return found

    monkeypatch.setattr(Reliance, "_facts", looked)
    connector.catch_up()
    same(connector, postgres18, "public.t")


@pytest.mark.every_server
def test_a_table_that_comes_back_where_a_start_was_all_that_knew_it_gone(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entry is left in the position, of a publication that it is not in: a start puts it there again."""
    postgres18.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE t (id int PRIMARY KEY)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.a", "public.t"], as_owner=True)
    connector.catch_up()

    def killed(*_: Any) -> None:
        raise OperatorError("killed", hint="start it again")

    with monkeypatch.context() as patched:
        patched.setattr(PostgresSource, "stream", killed)
        without = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.a"], as_owner=True)
        assert without.here("run", "FILE", "--until-caught-up").returncode == 1
    postgres18.execute(f"ALTER PUBLICATION cdc_{prefix} DROP TABLE t", "INSERT INTO t VALUES (1)")
    looks: list[State] = []

    def verify(reliance: Reliance, state: State, *of: Any, **named: Any) -> None:
        looks.append(state)
        if len(looks) > 3:
            raise OperatorError("looking again without an end", hint="")
        looked(reliance, state, *of, **named)

    looked = Reliance.verify
    monkeypatch.setattr(Reliance, "verify", verify)
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.a", "public.t"], as_owner=True)
    connector.catch_up()
    assert "public.t" in looks[0].carried
    assert "public.t" not in looks[0].tables
    same(connector, postgres18, "public.t")


@pytest.mark.every_server
def test_a_publication_missing_in_the_log(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """PostgreSQL 16 sends nothing from before it was made, for ever: a gap, which is closed on demand. 18 goes on."""
    connector = _made(database, kafka, prefix, tmp_path)
    name = _publication(connector)
    database.execute(f"DROP PUBLICATION {name}", *_WRITTEN, _OF.format(name, "TABLE t, u"))
    done = connector.here("run", "FILE", "--until-caught-up")
    if done.returncode:
        assert "publication missing in the log" in done.stderr
        assert "--after-gap" in done.stderr
        assert connector.here("run", "FILE", "--until-caught-up").returncode == 4
        connector.close_the_gap()
    assert (done.returncode == 4) == (database.rows("SELECT current_setting('server_version_num')::int < 180000")[0][0])
    for table in ("public.t", "public.u"):
        same(connector, database, table)
    assert AGAIN not in connector.catch_up()


@pytest.mark.every_server
@pytest.mark.parametrize("runs", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_publication_that_is_renamed(
    *, runs: bool, database: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """It is known by its number: its name of now is said, and the statement of the hint is what helps."""
    connector = _made(database, kafka, prefix, tmp_path)
    name = _publication(connector)
    with Running(connector) if runs else nullcontext() as run:
        if run is not None:
            run.await_following()
        database.execute(f'ALTER PUBLICATION {name} RENAME TO "Another"', "DELETE FROM t WHERE id = 3")
        if run is not None:
            assert run.ended() == 4
            assert f"publication {name} is called Another by now" in run.stderr
    database.execute("INSERT INTO t VALUES (90, 'later')")
    assert f"publication {name} is called Another by now" in connector.here("check", "FILE").stdout
    done = connector.here("run", "FILE", "--until-caught-up")
    assert done.returncode == 4
    (statement,) = re.findall(r"ALTER PUBLICATION \S+ RENAME TO \S+;", done.stderr)
    database.execute(statement)
    done = connector.here("run", "FILE", "--until-caught-up")
    if done.returncode:  # PostgreSQL 16 sends nothing of what was written under the other name
        assert "publication missing in the log" in done.stderr
        connector.close_the_gap()
    for table in ("public.t", "public.u"):
        same(connector, database, table)
