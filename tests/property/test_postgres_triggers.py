"""Whatever is done to PostgreSQL's tables, what the triggers have written down folds to what SELECT gives.

By several connections at a time, whose commits come late and cross, with rollbacks and savepoints, statements that
fail, cascades within a table, upserts, TRUNCATE, and triggers and functions of the application that change the same
rows again. A connector reads between them, is stopped and goes on from its position.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, cast

import psycopg2
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cdc.config.config import ConnectorConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import SourceConfig
from cdc.model.change import Change, Idle, Offset, Op, Row, Table, Transaction, TransactionBatch
from connectors.triggers.postgres.source import PostgresTriggers
from snapshot.triggers.postgres import open_snapshotter
from tests.conftest import Database, _database

SCHEMA = """
CREATE TABLE plain (id int PRIMARY KEY, u text UNIQUE, v text);
CREATE TABLE tree (id int PRIMARY KEY, up int REFERENCES tree ON UPDATE CASCADE ON DELETE SET NULL, v text);
CREATE TABLE folded (name text PRIMARY KEY, n numeric);
CREATE TABLE amounts (n numeric PRIMARY KEY, v text);
CREATE TABLE parted (id int, p int, v text, PRIMARY KEY (id, p)) PARTITION BY LIST (p);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1);
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES IN (2, 3);
CREATE TABLE "odd ""name"" here" ("a ""quoted"" key" text PRIMARY KEY, "v'" text);
CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.v = 'again' THEN UPDATE plain SET v = 'changed' WHERE id = NEW.id; END IF;
    IF NEW.v = 'away' THEN DELETE FROM plain WHERE id = NEW.id; END IF;
    IF NEW.v = 'others' THEN UPDATE plain SET v = 'by another' WHERE id <> NEW.id; END IF;
    RETURN NULL; END $$;
CREATE FUNCTION back() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF OLD.v = 'back' THEN INSERT INTO plain (id, v) VALUES (OLD.id, 'is back'); END IF;
    RETURN NULL; END $$;
CREATE FUNCTION instead() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    DELETE FROM plain WHERE id = NEW.id; RETURN NEW; END $$;
CREATE FUNCTION poke(k int) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
    UPDATE plain SET v = 'poked' WHERE id <> k; RETURN 'poking'; END $$;
"""
TRIGGERS = """
CREATE TRIGGER "!again" AFTER INSERT OR UPDATE ON plain FOR EACH ROW EXECUTE FUNCTION again();
CREATE TRIGGER zback AFTER DELETE ON plain FOR EACH ROW EXECUTE FUNCTION back();
CREATE TRIGGER instead BEFORE INSERT ON plain FOR EACH ROW WHEN (NEW.v = 'instead') EXECUTE FUNCTION instead();
"""
TABLES = ("amounts", "folded", 'odd "name" here', "parted", "plain", "tree")
KEYS = st.integers(1, 4)
NAMES = st.sampled_from(["a", "A", "b", "ä", "it's", "tab\tback\\", ""])
VALUES = st.sampled_from(["x", "again", "away", "back", "others", "instead", "it's, 'so'", "", None])
NUMBERS = st.sampled_from(["1", "1.0", "1.00", "2", "2.50"])
Statement = tuple[str, tuple[object, ...]]
STATEMENTS: st.SearchStrategy[Statement] = st.one_of(
    st.tuples(
        st.sampled_from(["", " ON CONFLICT DO NOTHING", " ON CONFLICT (u) DO UPDATE SET id = EXCLUDED.id + 4"]).map(
            lambda conflict: f"INSERT INTO plain (id, u, v) VALUES (%s, %s, %s){conflict}"
        ),
        st.tuples(KEYS, NAMES, VALUES),
    ),
    st.tuples(st.just("UPDATE plain SET v = %s WHERE id >= %s"), st.tuples(VALUES, KEYS)),
    st.tuples(st.just("UPDATE plain SET id = id + 1 WHERE id >= %s"), st.tuples(KEYS)),
    st.tuples(st.just("UPDATE plain SET id = %s WHERE id = %s"), st.tuples(KEYS, KEYS)),
    st.tuples(st.just("UPDATE plain SET v = poke(id) WHERE id = %s"), st.tuples(KEYS)),
    st.tuples(st.just("DELETE FROM plain WHERE id <= %s"), st.tuples(KEYS)),
    st.tuples(st.just("INSERT INTO tree VALUES (%s, (SELECT max(id) FROM tree), %s)"), st.tuples(KEYS, VALUES)),
    st.tuples(st.just("UPDATE tree SET id = id + 10"), st.just(())),
    st.tuples(st.just("UPDATE tree SET id = id - 10 WHERE id > 10"), st.just(())),
    st.tuples(st.just("DELETE FROM tree WHERE id >= %s"), st.tuples(KEYS)),
    st.tuples(st.just("INSERT INTO folded VALUES (%s, %s) ON CONFLICT DO NOTHING"), st.tuples(NAMES, NUMBERS)),
    st.tuples(st.just("UPDATE folded SET name = upper(name), n = %s"), st.tuples(NUMBERS)),
    st.tuples(st.just("DELETE FROM folded WHERE name = %s"), st.tuples(NAMES)),
    st.tuples(st.just("INSERT INTO amounts VALUES (%s, %s)"), st.tuples(NUMBERS, VALUES)),
    st.tuples(st.just("UPDATE amounts SET n = %s WHERE n = %s"), st.tuples(NUMBERS, NUMBERS)),
    st.tuples(st.just("INSERT INTO parted VALUES (%s, %s, %s)"), st.tuples(KEYS, st.integers(1, 3), VALUES)),
    st.tuples(st.just("UPDATE parted SET p = %s WHERE id = %s"), st.tuples(st.integers(1, 3), KEYS)),
    st.tuples(st.just("DELETE FROM parted WHERE p = %s"), st.tuples(st.integers(1, 3))),
    st.tuples(st.just('INSERT INTO "odd ""name"" here" VALUES (%s, %s)'), st.tuples(NAMES, VALUES)),
    st.tuples(st.sampled_from(["TRUNCATE plain", "TRUNCATE folded, parted", "TRUNCATE tree"]), st.just(())),
    st.tuples(st.sampled_from(["SAVEPOINT s", "ROLLBACK TO s", "RELEASE s"]), st.just(())),
    st.tuples(st.sampled_from(["COMMIT", "ROLLBACK", "COMMIT"]), st.just(())),
)
STEPS = st.one_of(st.tuples(st.integers(0, 2), STATEMENTS), st.just("read"))
Step = tuple[int, Statement] | str


@pytest.fixture(scope="module")
def shared(servers: Callable[[str], str]) -> Iterator[Database]:
    with contextmanager(_database)(servers("postgres18")) as database:
        yield database


def config(database: Database) -> ConnectorConfig:
    return ConnectorConfig(
        name="c",
        source=SourceConfig(type="triggers", url=database.url, tables=tuple(f"public.{name}" for name in TABLES)),
        sink=KafkaConfig(bootstrap_servers="none", topic_prefix="c"),
    )


class Reader:
    """Folds what the connector is given."""

    def __init__(self, source: PostgresTriggers, at: Offset) -> None:
        self._source, self._at = source, at
        self.rows: dict[str, dict[Row, Row]] = {name: {} for name in TABLES}
        self._last = -1

    def read(self) -> None:
        """Up to now, from its position, as after a restart."""
        until = self._source.current()
        for frame in (stream := self._source.stream(self._at)):
            for transaction in frame.transactions if isinstance(frame, TransactionBatch) else [frame]:
                if isinstance(transaction, Transaction):
                    assert self._last < transaction.commit
                    self._last = transaction.commit
                    self._apply(transaction)
            self._at, position = self._source.position()
            assert self._last < position
            if isinstance(frame, Idle) and position >= until:
                break
        cast("Generator[Any, None, None]", stream).close()

    def _apply(self, transaction: Transaction) -> None:
        for change in transaction.changes:
            assert isinstance(change, Change)
            table, before, after = change.table, change.before, change.after
            rows = self.rows[table.name]
            if change.op is Op.TRUNCATE:
                rows.clear()
            if before is not None:
                rows.pop(key_of(table, before), None)
            if after is not None:
                rows[key_of(table, after)] = after


def key_of(table: Table, row: Row) -> Row:
    return tuple(row[index] for index in table.key_indexes)


def execute(cursor: Any, statement: Statement) -> None:
    """As an application does: what fails is rolled back, and who waits for another's lock gives up."""
    if cursor.connection.status == psycopg2.extensions.STATUS_READY and statement[0].split()[0] in (
        "SAVEPOINT", "ROLLBACK", "RELEASE", "COMMIT",
    ):  # fmt: skip
        return
    try:
        cursor.execute(*statement)
    except psycopg2.Error:
        with suppress(psycopg2.Error):
            cursor.connection.rollback()


def _script(*statements: str) -> list[Step]:
    return [(0, (statement, ())) for statement in statements]


@given(steps=st.lists(STEPS, min_size=1, max_size=25), first=st.booleans())
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(steps=_script("INSERT INTO plain (id, v) VALUES (1, 'again')", "COMMIT"), first=True)
@example(steps=_script("INSERT INTO plain VALUES (1), (2)", "UPDATE plain SET v = 'others'", "COMMIT"), first=False)
@example(
    steps=_script("INSERT INTO plain (id, v) VALUES (1, 'back')", "DELETE FROM plain", "COMMIT"),
    first=True,
)
@example(
    steps=_script("INSERT INTO plain VALUES (1)", "INSERT INTO plain (id, v) VALUES (1, 'instead')", "COMMIT"),
    first=True,
)
@example(
    steps=_script("INSERT INTO tree VALUES (1), (2)", "UPDATE tree SET up = 1 WHERE id = 2",
                  "UPDATE tree SET id = id + 10", "COMMIT"), first=True,
)  # fmt: skip
@example(steps=_script("INSERT INTO amounts VALUES ('1.0')", "UPDATE amounts SET n = '1.00'", "COMMIT"), first=True)
@example(
    steps=_script("INSERT INTO plain VALUES (1), (2)", "UPDATE plain SET v = poke(id) WHERE id = 2", "COMMIT"),
    first=True,
)
@example(
    steps=[
        (0, ("INSERT INTO folded VALUES ('old', 1)", ())), (1, ("INSERT INTO folded VALUES ('between', 1)", ())),
        (2, ("INSERT INTO plain (id, v) VALUES (2, 'younger')", ())), (2, ("COMMIT", ())),
        (0, ("UPDATE plain SET v = 'last' WHERE id = 2", ())), (0, ("COMMIT", ())), "read", (1, ("COMMIT", ())),
    ],
    first=True,
)  # fmt: skip
def test_what_is_written_down_folds_to_the_tables(shared: Database, steps: list[Step], *, first: bool) -> None:
    """And a snapshot, which the same server prints, gives the same bytes."""
    shared.execute("DROP SCHEMA public CASCADE; DROP SCHEMA IF EXISTS cdc_c CASCADE; CREATE SCHEMA public", SCHEMA)
    if not first:
        shared.execute(TRIGGERS)
    with closing(PostgresTriggers(config(shared))) as source:
        source.connect()
        start = source.hold(source.tables())
        if first:
            shared.execute(TRIGGERS)
        reader = Reader(source, start.offset)
        connections = [shared.connect() for _ in range(3)]
        for connection in connections:
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = '20ms'; SET synchronous_commit = off")
            connection.autocommit = False
        cursors = [connection.cursor() for connection in connections]
        for step in steps:
            if isinstance(step, str):
                reader.read()
                source.acknowledge(source.position()[0])
            else:
                execute(cursors[step[0]], step[1])
        for connection in connections:
            connection.commit()
            connection.close()
        reader.read()
        tables = source.tables()
    snapshot: dict[str, dict[Row, Row]] = {name: {} for name in TABLES}
    with closing(open_snapshotter(config(shared))) as snapshotter:
        for chunk in snapshotter.chunks(tables, {}, None):
            snapshot[chunk.table.name].update({key_of(chunk.table, row): row for row in chunk.rows})
    assert reader.rows == snapshot
