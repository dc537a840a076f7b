"""Whatever somebody does to the target of one table while the job runs, the other tables go on, and are told right."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import orjson
import psycopg2
import psycopg2.errors
import pytest
from pyspark.sql import DataFrame, SparkSession

from cdc.config.apply_config import ApplyTable, StoreConfig
from cdc.model.change import Kind
from cdc.model.errors import OperatorError
from cdc.model.state import Phase
from spark_apply.events.projection import projected_table
from spark_apply.events.quarantine import read_entries
from spark_apply.events.set_aside import read_set_aside
from spark_apply.model.altered import AlteredError
from spark_apply.model.completeness import Mark
from spark_apply.model.store import EVERYTHING, Applied, Batch, CopyError, Due, Refused, Visibility
from spark_apply.model.target_table import Version
from spark_apply.rebuild.quarantine_retry import run_retry
from spark_apply.stores.postgres.batch import copy_text, folding, refused_rows, row_by_row
from spark_apply.stores.postgres.session import server as session
from spark_apply.stores.postgres.session.server import LockedError, Server, wait_for_locks
from spark_apply.stores.postgres.store import PostgresStore
from tests.conftest import Database
from tests.spark.laws import Setting, order, until
from tests.spark.records import position

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread


@contextmanager
def user(database: Database) -> Iterator[str]:
    """A role that is no superuser, whose rights can be taken away; the URL of its sessions."""
    name = f"app_{database.name}"
    database.execute(
        f"CREATE ROLE {name} LOGIN PASSWORD 'secret'",
        f"GRANT CREATE ON DATABASE {database.name} TO {name}",
        f"GRANT ALL ON SCHEMA public TO {name}",
    )
    try:
        scheme, _, rest = database.url.partition("://")
        yield f"{scheme}://{name}:secret@{rest.rpartition('@')[2]}"
    finally:
        database.execute(f"DROP OWNED BY {name} CASCADE", f"DROP ROLE {name}")


def test_a_lock_of_somebody_is_waited_for_only_so_long(postgres18: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what writes a copy, and by what reads it; the hint shows who has it."""
    monkeypatch.setattr(session, "_LOCK_MS", 200)
    postgres18.execute("CREATE TABLE public.locked (n int)")
    holder, server = postgres18.connect(), Server(postgres18.url, "stores.copy")
    holder.cursor().execute("BEGIN; LOCK TABLE public.locked IN ACCESS EXCLUSIVE MODE")

    def write() -> None:
        with server.transaction("applying a batch") as cur:
            wait_for_locks(cur)
            cur.execute("INSERT INTO public.locked VALUES (1)")

    def read() -> None:
        with server.reading("reading") as (_, many):
            many.execute("SELECT n FROM public.locked")

    with pytest.raises(LockedError, match=r"keeps a table, or rows of it, locked \(55P03\)") as told:
        write()
    with pytest.raises(LockedError):
        read()
    asked, _, _ = (told.value.hint or "").partition(" shows who")
    assert holder.info.backend_pid in [pid for (pid, *_) in postgres18.rows(asked)]
    holder.close()
    write()
    read()
    server.close()


def test_schemas_that_somebody_else_has_made_are_enough(postgres18: Database) -> None:
    """The user may not make any in the database, as where rights are given one by one."""
    column = (("id", Kind("int64")),)
    version = Version("shop", "sales", "orders", "shop.sales.orders", 1, ("id",), column)
    table = projected_table([version], ApplyTable(stores=("copy",)))
    with user(postgres18) as url:
        name = f"app_{postgres18.name}"
        postgres18.execute(f"REVOKE CREATE ON DATABASE {postgres18.name} FROM {name}")
        store = PostgresStore(Server(url, "stores.copy"), "shop")
        for schema in ("cdc_apply", "sales"):
            with pytest.raises(OperatorError, match=r"permission denied for database .* \(42501\)"):
                store.open(table)
            postgres18.execute(f"CREATE SCHEMA {schema}", f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {name}")
        store.open(table)
        store.fold([], {table.qualified: Visibility(Mark({}, None), EVERYTHING)})
        store.beside(table)
        store.swap(table, Due("rebuilt", {}))
        store.close()
    assert postgres18.rows("SELECT nspname FROM pg_namespace WHERE nspname ~ '^(cdc_apply|sales)$' ORDER BY 1")


def test_what_keeps_a_column_from_another_type_is_named(postgres18: Database) -> None:
    """A rebuild gives the new copy what others have made of the live one; an index is of any type, a constraint not."""
    store = PostgresStore(Server(postgres18.url, "stores.copy"), "shop")
    versions = [
        Version("shop", "public", "kept", "shop.public.kept", number, ("id",), (("id", Kind("int64")), ("n", kind)))
        for number, kind in ((1, Kind("decimal", 10, 2)), (2, Kind("string")))
    ]
    was, now = (projected_table(versions[:count], ApplyTable(stores=("copy",))) for count in (1, 2))
    store.open(was)
    postgres18.execute(
        "UPDATE cdc_apply.copies SET reload = false",  # as once it is filled
        "CREATE INDEX ON public.kept (n)",
        "ALTER TABLE public.kept ALTER n SET DEFAULT 0, ADD CONSTRAINT positive CHECK (n > 0)",
    )
    with pytest.raises(OperatorError, match=r"column n: it is numeric\(10,2\) and would have to be text"):
        store.open(now)
    with pytest.raises(
        OperatorError, match=r"column n of its copy would have to be text, and others keep it: .*text >"
    ):
        store.beside(now)
    for made, gone in (
        ("ADD COLUMN twice numeric GENERATED ALWAYS AS (n * 2) STORED", "DROP COLUMN twice"),
        (
            "ALTER n DROP DEFAULT, ALTER n TYPE bigint, ALTER n SET NOT NULL, ALTER n ADD GENERATED ALWAYS AS IDENTITY",
            "ALTER n DROP IDENTITY",
        ),
    ):
        postgres18.execute(f"ALTER TABLE public.kept DROP CONSTRAINT IF EXISTS positive, {made}")
        with pytest.raises(OperatorError, match=r"column n .* would have to be text, and others keep it: ") as told:
            store.beside(now)
        assert "take that off the column" in (told.value.hint or "")
        postgres18.execute(f"ALTER TABLE public.kept {gone}")
    store.beside(now)
    assert postgres18.rows(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attname = 'n' AND attrelid::regclass::text ~ '^cdc_apply.copy_[0-9]+$'"
    ) == [("text",)]
    store.close()


def test_all_tables_that_cannot_go_on_are_found_at_once(postgres18: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """One lock is waited for, the next ones hardly, and none again: the other tables of the batch wait for that."""
    monkeypatch.setattr(session, "_LOCK_MS", 400)
    monkeypatch.setattr(session, "_LOCK_AGAIN_MS", 20)
    store = PostgresStore(Server(postgres18.url, "stores.copy"), "shop")
    columns = (("id", Kind("int64")), ("v", Kind("string")), ("n", Kind("decimal", 10, 2)))
    tables = {
        name: projected_table(
            [Version("shop", "public", name, f"shop.public.{name}", 1, ("id",), columns)], ApplyTable(stores=("copy",))
        )
        for name in ("dropped", "fine", "full", "locked", "narrowed", "rounded", "taken", "widened")
    }
    for table in tables.values():
        store.open(table)
    for number in [n for (n,) in postgres18.rows("SELECT number FROM cdc_apply.copies")]:
        postgres18.execute(
            f"INSERT INTO cdc_apply.waiting_{number} (id, v, _cdc_position, _cdc_op) VALUES (1,'a','1','c')"
        )
    holder = postgres18.connect()
    holder.cursor().execute("BEGIN; LOCK TABLE public.locked, public.taken IN ACCESS EXCLUSIVE MODE")
    postgres18.execute(
        "ALTER TABLE public.narrowed DROP COLUMN v",
        "ALTER TABLE public.rounded ALTER COLUMN n TYPE numeric(10,0)",
        "ALTER TABLE public.widened ALTER COLUMN n TYPE numeric(20,2), ADD COLUMN own text",
        "DROP TABLE public.dropped",
        "CREATE FUNCTION full() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'its disk, which is not that of others' USING ERRCODE = 'disk_full'; END $$",
        "CREATE TRIGGER fills BEFORE INSERT ON public.full EXECUTE FUNCTION full()",
    )
    shown = {table.qualified: Visibility(Mark({}, None), EVERYTHING) for table in tables.values()}
    began, took = time.monotonic(), list[float]()
    for _ in range(2):
        with pytest.raises(CopyError) as told:
            store.fold([], shown)
        took, began = [*took, time.monotonic() - began], time.monotonic()
        assert set(told.value.errors) == {f"public.{name}" for name in tables} - {"public.fine", "public.widened"}
        assert (
            "column n: it is numeric(10,0) and would have to be numeric(10,2)"
            in told.value.errors["public.rounded"].message
        )
    assert took[0] >= 0.4 > took[1] - 0.2
    wider = replace(tables["locked"], columns=(*tables["locked"].columns, replace(tables["fine"].columns[1], name="w")))
    with pytest.raises(LockedError):
        store.open(wider)
    holder.close()
    postgres18.execute("DROP TRIGGER fills ON public.full")
    store.open(wider)
    left = {f"public.{name}" for name in ("dropped", "narrowed", "rounded")}
    store.fold([], {name: of for name, of in shown.items() if name not in left})
    for name in ("fine", "full", "locked", "taken", "widened"):
        assert postgres18.rows(f"SELECT id, v FROM public.{name}") == [(1, "a")]
    store.close()


@pytest.mark.parametrize(
    ("encoding", "taken", "lost"),
    [("EUC_JP", "纊表ä", "¢☂"), ("EUC_KR", "가㉾", "갂☂"), ("EUC_TW", "中", "ä☂"), ("LATIN1", "äÿ", "€☂")],
)
def test_a_letter_that_a_database_does_not_have(
    encoding: str, taken: str, lost: str, postgres18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server says which: Python's codecs of that name know others. One row is refused for each, and no table."""
    columns, name = (("id", Kind("int64")), ("v", Kind("string"))), f"{postgres18.name}_o"
    version = Version("shop", "public", "orders", "shop.public.orders", 1, ("v",), columns)
    table = projected_table([version], ApplyTable(stores=("copy",)))
    postgres18.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    other = Database(f"{postgres18.url.rpartition('/')[0]}/{name}?client_encoding=UTF8", name)
    letters = [*taken, *lost, "\0"]
    lines = "".join(f"{n}\t{letter}\t{position(10 + n)}\tc\t0\t{n}\n" for n, letter in enumerate(letters))
    lines += "".join(f"\\N\t{letter}\t{position(80)}\td\t0\t{80 + n}\n" for n, letter in enumerate((*lost, "\0")))
    monkeypatch.setattr(copy_text, "_chunks", lambda _batch: iter([memoryview(lines.encode())]))
    refused: list[Refused] = []
    shown = {table.qualified: Visibility(Mark({}, None), EVERYTHING, refuse=refused.extend)}
    batch = Batch(table, cast("DataFrame", None), len(letters), position(90), refuse=refused.extend)
    store = PostgresStore(Server(other.url, "stores.copy"), "shop")
    try:
        store.open(table)
        store.fold([batch], shown)
        assert other.rows("SELECT v FROM orders ORDER BY id") == [(letter,) for letter in taken]
        assert [letters[of.offset] for of in refused] == [*lost, "\0"]
        asked = [orjson.dumps({"v": letter}).decode() for letter in letters]  # as `cdc verify` does
        assert sorted(row.id for row in store.rows(table, asked)) == sorted(asked[: len(taken)])
        assert {of.reason for of in refused} == {
            "PostgreSQL cannot store a character that its encoding does not have: v",
            "PostgreSQL cannot store the character U+0000: v",
        }
    finally:
        store.close()
        postgres18.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_a_column_that_another_hand_drops_sets_one_table_aside(postgres18: Database) -> None:
    """Also where that is the only thing that is wrong: the others have the batch."""
    store = PostgresStore(Server(postgres18.url, "stores.copy"), "shop")
    columns = (("id", Kind("int64")), ("n", Kind("decimal", 10, 2)))
    tables = {
        name: projected_table(
            [Version("shop", "public", name, f"shop.public.{name}", 1, ("id",), columns)], ApplyTable(stores=("copy",))
        )
        for name in ("altered", "fine")
    }
    for table in tables.values():
        store.open(table)
    for number in [n for (n,) in postgres18.rows("SELECT number FROM cdc_apply.copies")]:
        postgres18.execute(
            f"INSERT INTO cdc_apply.waiting_{number} (id, n, _cdc_position, _cdc_op) VALUES (1,2,'1','c')"
        )
    postgres18.execute("ALTER TABLE public.altered DROP COLUMN n")
    shown = {table.qualified: Visibility(Mark({}, None), EVERYTHING) for table in tables.values()}
    with pytest.raises(CopyError) as told:
        store.fold([], shown)
    assert set(told.value.errors) == {"public.altered"}
    store.fold([], {"public.fine": shown["public.fine"]})
    store.close()
    assert postgres18.rows("SELECT id, n FROM public.fine") == [(1, 2)]


def test_columns_that_another_hand_has_exchanged(postgres18: Database) -> None:
    """Under the same names, so that a row would have another's value, or none: seen while it runs, and by a start."""
    columns = (("id", Kind("int64")), ("a", Kind("string")), ("b", Kind("string")))
    tables = {
        name: projected_table(
            [Version("shop", "public", name, f"shop.public.{name}", 1, ("id",), columns)], ApplyTable(stores=("copy",))
        )
        for name in ("fine", "remade", "swapped")
    }
    shown = {of.qualified: Visibility(Mark({0: 1}, None, version=1), EVERYTHING) for of in tables.values()}
    store = PostgresStore(Server(postgres18.url, "stores.copy"), "shop")
    for table in tables.values():
        store.open(table)
    store.fold([], shown)
    postgres18.execute(
        "ALTER TABLE swapped RENAME a TO c",
        "ALTER TABLE swapped RENAME b TO a",
        "ALTER TABLE swapped RENAME c TO b",
        "ALTER TABLE remade DROP b, ADD b text",
    )
    with pytest.raises(CopyError) as told:
        store.fold([], shown)
    said = {name: error.message.partition(":")[0] for name, error in told.value.errors.items()}
    assert said == {
        "public.remade": "PostgreSQL table public.remade has another column b than it had",
        "public.swapped": "PostgreSQL table public.swapped has another column a, b than it had",
    }
    store.set_mark(tables["swapped"], Mark({0: 2}, None, version=1))
    store.close()
    store = PostgresStore(Server(postgres18.url, "stores.copy"), "shop")
    store.open(tables["fine"])
    for name in ("remade", "swapped"):
        with pytest.raises(OperatorError, match=f"table public.{name} has another column .* than it had"):
            store.open(tables[name])
        store.beside(tables[name])  # as the hint says
        store.swap(tables[name], Due("rebuilt", {0: 2}))
        store.open(tables[name])
    store.fold([], shown)
    store.close()
    postgres18.execute(  # as a dump of an older release leaves it: the same columns, and other numbers
        "ALTER TABLE fine RENAME TO gone",
        "CREATE TABLE fine AS SELECT b, a, _cdc_position, id FROM gone",
        "DROP TABLE gone",
        "ALTER TABLE fine ADD PRIMARY KEY (id)",
    )
    store = PostgresStore(Server(postgres18.url, "stores.copy"), "shop")
    store.foresee(tables["fine"])
    store.open(tables["fine"])
    assert store.mark(tables["fine"]) is None, "its topic is read again"
    store.close()


@pytest.mark.parametrize("to", ["an earlier mark", "no mark", "an earlier mark, altered", "an earlier mark, reopened"])
def test_a_server_that_loses_what_it_had_committed_while_the_job_runs(postgres18: Database, to: str) -> None:
    """As by a fail-over, or a crash under `synchronous_commit = off`: a copy is opened again, and goes on from there.

    Also where the next batch brings another version of the table, so that the copy is opened before it is written, or
    has just been opened, as when a job starts.

    Written on, a copy would say that it has what came between. Where nothing was lost, a new session goes on.
    """
    store, columns = PostgresStore(Server(postgres18.url, "stores.copy"), "shop"), (("id", Kind("int64")),)
    tables = {
        name: projected_table(
            [Version("shop", "public", name, f"shop.public.{name}", 1, ("id",), columns)], ApplyTable(stores=("copy",))
        )
        for name in ("fine", "lost")
    }

    def shown(end: int) -> dict[str, Visibility]:
        return {of.qualified: Visibility(Mark({0: end}, None), EVERYTHING) for of in tables.values()}

    for table in tables.values():
        store.open(table)
    store.fold([], shown(3))
    ((kept,),) = postgres18.rows("SELECT mark FROM cdc_apply.copies WHERE name = 'lost'")
    store.fold([], shown(5))
    if "reopened" in to:
        store.open(tables["lost"])
    found = "NULL" if to == "no mark" else f"'{kept}'"
    postgres18.execute(
        f"UPDATE cdc_apply.copies SET mark = {found} WHERE name = 'lost'",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'cdc apply'",
    )
    if to == "an earlier mark, altered":
        store.fold([], {"public.fine": shown(7)["public.fine"]})
        with pytest.raises(AlteredError, match=r"public\.lost was put back to an earlier state"):
            store.open(tables["lost"])
    else:
        with pytest.raises(CopyError, match=r"public\.lost was put back to an earlier state") as told:
            store.fold([], shown(7))
        assert set(told.value.errors) == {"public.lost"}
    store.open(tables["lost"])
    marks = [store.mark(of) for of in tables.values()]
    assert [mark and mark.ends for mark in marks] == [
        {0: 7 if "altered" in to else 5},
        None if to == "no mark" else {0: 3},
    ]
    store.fold([], shown(7))
    store.close()


@pytest.mark.parametrize(("given", "kept"), [("off", "local"), ("on", "on"), ("remote_write", "remote_write")])
def test_what_was_committed_stays(postgres18: Database, given: str, kept: str) -> None:
    """A crash of the server takes back no commit that is counted on elsewhere, whatever a role says."""
    server = Server(f"{postgres18.url}?options=-c%20synchronous_commit%3D{given}", "stores.copy")
    with server.transaction("looking") as cur:
        cur.execute("SHOW synchronous_commit")
        assert cur.fetchall() == [(kept,)]
    server.close()


def test_a_session_that_others_get_commits_as_it_did(postgres18: Database) -> None:
    """Of views, behind a pooler by transactions: what they commit is made again from the topics."""
    url = f"{postgres18.url}?options=-c%20synchronous_commit%3Doff"
    server = Server(url, "store", by_transaction=True)
    with server.transaction("looking") as cur:
        cur.execute("SHOW synchronous_commit")
        assert cur.fetchall() == [("off",)]
    server.close()


def test_a_function_of_somebody_that_finds_no_name_is_told(postgres18: Database) -> None:
    """It finds it in their sessions: the job's look in pg_catalog alone. So of a trigger, and of one for statements."""
    postgres18.execute(
        "CREATE TABLE told (id int)",
        "CREATE TABLE audit (id int)",
        "CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN INSERT INTO audit VALUES (NEW.id); RETURN NEW; END'",
        "CREATE TRIGGER noted BEFORE INSERT ON told FOR EACH ROW EXECUTE FUNCTION noted()",
        "INSERT INTO told VALUES (1)",
    )
    server = Server(postgres18.url, "stores.copy")

    def write() -> None:
        with server.transaction("applying a batch") as cur:
            cur.execute("INSERT INTO public.told VALUES (2)")

    with pytest.raises(OperatorError, match=r'relation "audit" does not exist \(42P01\)') as caught:
        write()
    helps = "function public.noted has to name it with its schema, or to be given a search_path"
    assert (caught.value.hint or "").startswith(helps)
    assert isinstance(caught.value.__cause__, psycopg2.Error)
    assert f"undefined table (42P01): {helps}" in refused_rows.reason(caught.value.__cause__)
    postgres18.execute("ALTER FUNCTION noted() SET search_path = public")
    write()
    server.close()
    assert postgres18.rows("SELECT id FROM audit") == [(1,), (2,)]


@pytest.mark.parametrize(
    ("code", "hint"),
    [("428C9", "another hand"), ("0A000", "another hand"), ("42P10", "another hand"), ("55000", "another hand"),
     ("42501", "grant what is missing"), ("XX001", ""), ("42883", ""), ("54001", "")],
)  # fmt: skip
def test_a_hint_is_given_for_what_it_is_of(code: str, hint: str) -> None:
    """That another hand has altered the table is said only of the errors that mean it."""

    class Cause(psycopg2.errors.lookup(code)):  # type: ignore[misc]
        pgcode = code

    error = Server("postgresql://localhost/d", "stores.copy").translated(Cause())
    assert hint in (error.hint or "")
    assert bool(error.hint) == bool(hint)


def referring(database: Database, waiting: dict[str, list[tuple[int, int, str]]]) -> PostgresStore:
    """Two copies, of which one refers to the other, and events (id, v, op) that wait in them."""
    store = PostgresStore(Server(database.url, "stores.copy"), "shop")
    columns = (("id", Kind("int64")), ("v", Kind("int64")))
    for name in waiting:
        version = Version("shop", "public", name, f"shop.public.{name}", 1, ("id",), columns)
        store.open(projected_table([version], ApplyTable(stores=("copy",))))
    database.execute(
        "ALTER TABLE public.customers ADD CHECK (v <> 13)",
        "ALTER TABLE public.bought ADD FOREIGN KEY (v) REFERENCES public.customers",
    )
    numbers = {str(name): number for name, number in database.rows("SELECT name, number FROM cdc_apply.copies")}
    for name, rows in waiting.items():
        values = [f"({id_}, {v}, '{at + 1:09}', '{op}', 0, {at})" for at, (id_, v, op) in enumerate(rows)]
        database.execute(f"INSERT INTO cdc_apply.waiting_{numbers[name]} VALUES {', '.join(values)}")
    return store


def test_a_foreign_key_blames_no_row_that_comes_first(postgres18: Database) -> None:
    """Of two tables of a batch that both have a refused row: only what asks for that row is refused with it.

    And what is refused for something else, once its foreign key is fine.
    """
    bought = [(1, 7, "c"), (2, 8, "c"), (3, 9, "c"), (3, 7, "d"), (4, 7, "c")]
    store = referring(postgres18, {"bought": bought, "customers": [(7, 0, "c"), (8, 13, "c")]})
    postgres18.execute(
        "CREATE FUNCTION checks() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN IF new.id = 4 THEN RAISE 'after the foreign key'; END IF; RETURN new; END $$",
        "CREATE TRIGGER zz AFTER INSERT ON public.bought FOR EACH ROW EXECUTE FUNCTION checks()",
    )
    told: dict[str, list[Refused]] = {"bought": [], "customers": []}
    shown = {f"public.{name}": Visibility(Mark({}, None), EVERYTHING, refuse=of.extend) for name, of in told.items()}
    store.fold([], shown)
    store.close()
    assert postgres18.rows("SELECT id, v FROM public.bought") == [(1, 7)]
    assert postgres18.rows("SELECT id, v FROM public.customers") == [(7, 0)]
    assert {name: [one.offset for one in of] for name, of in told.items()} == {"bought": [1, 4], "customers": [1]}
    assert "foreign key violation (23503)" in told["bought"][0].reason
    assert "raise exception (P0001)" in told["bought"][1].reason
    assert "check violation (23514)" in told["customers"][0].reason


def test_a_foreign_key_that_refuses_a_whole_table_ends_the_search(
    postgres18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is over where the quarantine is full: to try a hundred thousand rows one by one, and again, takes hours."""
    monkeypatch.setattr(refused_rows, "_AT_ONCE", 5)
    monkeypatch.setattr(row_by_row, "_MOST_BLOCKED", 10)
    store = referring(postgres18, {"bought": [(n, 99, "c") for n in range(500)], "customers": [(7, 0, "c")]})
    attempts, take = list[object](), folding.take

    def counted(*given: Any, **how: Any) -> Applied:
        attempts.append(given)
        return take(*given, **how)

    def full(_: object) -> None:
        raise OperatorError("the quarantine is full")

    monkeypatch.setattr(folding, "take", counted)
    shown = {f"public.{name}": Visibility(Mark({}, None), EVERYTHING, refuse=full) for name in ("bought", "customers")}
    with pytest.raises(CopyError, match="is full") as told:
        store.fold([], shown)
    store.close()
    assert set(told.value.errors) == {"public.bought"}
    assert len(attempts) < 60


def test_a_table_that_refers_to_a_later_one_is_divided_behind_it(
    postgres18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many of its rows ask for new ones of that table: only those that ask for what is refused are refused."""
    monkeypatch.setattr(refused_rows, "_AT_ONCE", 5)
    monkeypatch.setattr(row_by_row, "_MOST_BLOCKED", 10)
    bought = [(n, 7 + (n == 40), "c") for n in range(60)]
    store = referring(postgres18, {"bought": bought, "customers": [(7, 0, "c"), (8, 13, "c")]})
    told: dict[str, list[Refused]] = {"bought": [], "customers": []}
    shown = {f"public.{name}": Visibility(Mark({}, None), EVERYTHING, refuse=of.extend) for name, of in told.items()}
    applied = store.fold([], shown)
    store.close()
    assert {name: [one.offset for one in of] for name, of in told.items()} == {"bought": [40], "customers": [1]}
    assert applied["public.bought"].written == 59
    assert postgres18.rows("SELECT count(*), count(*) FILTER (WHERE v = 7) FROM public.bought") == [(59, 59)]


@pytest.mark.full  # the other one is the quick one
def test_targets_in_postgresql(
    *, apply_spark: SparkSession, kafka: str, postgres18: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that is held, rights that are revoked, a schema that is renamed, a column that is altered."""
    monkeypatch.setattr(session, "_LOCK_MS", 500)
    with user(postgres18) as url:
        setting = Setting(apply_spark, kafka, tmp_path, lambda _: StoreConfig(type="postgres", url=url))
        names = ("fine", "locked", "revoked", "strict", "retyped")
        tables = {name: setting.table(name) for name in names} | {"moved": setting.table("moved", schema="other")}
        publisher = setting.publisher()
        publisher.create(tables.values(), partitions=1)
        records = [r for of in tables.values() for n in (1, 2) for r in of.event("c", order(n), position(10))]
        publisher.stand(Phase.STREAM, 20, tables.values(), records)
        first, config = len(records), setting.config("public.*", "other.*")
        holder = postgres18.connect()
        with setting.running("checkpoints", config) as job:
            until(lambda: job.said("batch 1"), 240)
            until(lambda: all(mark and mark.complete for mark in setting.marks(*tables.values())), 120)
            holder.cursor().execute("BEGIN; LOCK TABLE public.locked IN ACCESS EXCLUSIVE MODE")
            postgres18.execute(
                f"REVOKE ALL ON public.revoked FROM app_{postgres18.name}",
                "ALTER SCHEMA other RENAME TO gone",
                "ALTER TABLE public.strict ADD COLUMN own text NOT NULL DEFAULT 'x'",
                "ALTER TABLE public.strict ALTER COLUMN own DROP DEFAULT",
                "ALTER TABLE public.retyped ALTER COLUMN status TYPE integer USING 1",
            )
            more = [r for of in tables.values() for r in of.event("u", order(1, "x"), position(30))]
            more += [r for of in tables.values() for r in of.event("c", order(3, "y"), position(31))]
            publisher.stand(Phase.STREAM, 40, tables.values(), more)
            records += more
            until(lambda: setting.marks(tables["fine"])[0].complete.position == position(40, 0), 120)
            assert setting.contents(tables["fine"]) == setting.folded(tables["fine"], records)
            until(lambda: len(read_set_aside(config)) == 4)
            told = {of.table.partition(".")[2]: (of.reason, of.hint) for of in read_set_aside(config).values()}
            for name, (why, hint) in {
                "locked": ("another session keeps a table, or rows of it, locked (55P03)", "pg_stat_activity"),
                "revoked": ("permission denied for table revoked (42501)", "grant what is missing"),
                "moved": ("PostgreSQL table other.moved was dropped or recreated", "makes it again"),
                "retyped": ("status", ""),
            }.items():
                assert why in told[name][0], told
                assert hint in (told[name][1] or ""), told
            holder.cursor().execute("ROLLBACK")
            holder.close()
            postgres18.execute(
                f"GRANT ALL ON public.revoked TO app_{postgres18.name}",
                "ALTER TABLE public.strict ALTER COLUMN own DROP NOT NULL",
                "ALTER TABLE public.retyped ALTER COLUMN status TYPE text USING 'new'",
            )
            until(lambda: all(mark and mark.complete for mark in setting.marks(*tables.values())), 120)
            until(lambda: {m.complete.position for m in setting.marks(*tables.values())} == {position(40, 0)}, 120)
            assert job.failure is None
        for name, of in tables.items():
            wanted = records[:first] if name == "strict" else records
            assert setting.contents(of) == setting.folded(of, wanted), name
        entries = read_entries(config).values()
        assert {(of.table, of.key) for of in entries} == {("public.strict", '{"id":1}'), ("public.strict", '{"id":3}')}
        assert all("not null violation (23502), column own" in of.reason for of in entries)
        run_retry(config)
        assert setting.contents(tables["strict"]) == setting.folded(tables["strict"], records)
