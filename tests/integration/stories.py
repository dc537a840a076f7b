"""Stories: what happens to tables, told in SQL by many tests, captured by one connector that all of a module share.

Starting a connector is what takes time. A test tells its story (before the snapshot, in the stream, after a restart) in
a schema of its own; one connector captures them all by a pattern.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import pytest

from sinks.topics.records.read_back import read_to_end
from tests.conftest import Database, _database
from tests.integration.connector import Connector, Record
from tests.integration.running import Row, ordered, rows

Test = TypeVar("Test", bound=Callable[..., None])

WIDE = "(SELECT string_agg(md5('{0}' || x), '') FROM generate_series(1, 400) x)"  # 12,800 characters, incompressible
SWAP = """
BEGIN;
UPDATE t SET id = -{0} WHERE id = {0}; UPDATE t SET id = {0} WHERE id = {1}; UPDATE t SET id = {1} WHERE id = -{0};
COMMIT
"""


@dataclass(frozen=True)
class Story:
    """SQL by phase, of one module's test.

    Each statement is sent by itself, so `BEGIN; …; COMMIT` in one string is one transaction.
    """

    module: str
    before: tuple[str, ...]
    stream: tuple[str, ...]
    restarted: tuple[str, ...]

    @property
    def phases(self) -> tuple[tuple[str, ...], ...]:
        return self.before, self.stream, self.restarted


STORIES: dict[str, Story] = {}


def story(*before: str, stream: Iterable[str] = (), restarted: Iterable[str] = ()) -> Callable[[Test], Test]:
    """Tell the test's SQL; its `told` fixture then shows what came of it."""

    def told(test: Test) -> Test:
        STORIES[test.__name__] = Story(test.__module__, before, tuple(stream), tuple(restarted))
        return test

    return told


class Settled(Connector):
    """A connector that has ended: what its topics hold is read once."""

    def records(self, table: str) -> list[Record]:
        read: dict[str, list[Record]] = self.__dict__.setdefault("_read", {})
        if table not in read:
            read[table] = super().records(table)
        return read[table]


@pytest.fixture(scope="module", params=["postgres16", "postgres18"])
def run(
    request: pytest.FixtureRequest,
    servers: Callable[[str], str],
    kafka: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Database, Connector]]:
    """All stories through one connector: snapshot, stream, restart, stream."""
    folder = tmp_path_factory.mktemp("capture")
    with contextlib.contextmanager(_database)(servers(request.param)) as database:
        stories = {name: told for name, told in STORIES.items() if told.module == request.module.__name__}
        assert stories
        for name in stories:
            database.execute(f'CREATE SCHEMA "{name}"')
        connector = Connector(folder, f"c{database.name.removeprefix('test_')}", database.url, kafka, ["t?st_*.*"])
        for phase in range(3):
            connection = database.connect()
            with connection.cursor() as cursor:
                for name, told in stories.items():
                    cursor.execute(f'SET search_path = "{name}"')
                    for statement in told.phases[phase]:
                        cursor.execute(statement)
            connection.close()
            connector.catch_up()
        connector.__class__ = Settled
        yield database, connector


@dataclass(frozen=True)
class Told:
    """One story's schema, seen from both ends."""

    schema: str
    database: Database
    connector: Connector

    def records(self, table: str = "t") -> list[Record]:
        return self.connector.records(f"{self.schema}.{table}")

    def events(self, table: str = "t") -> list[Row]:
        return self.connector.events(f"{self.schema}.{table}")

    def moves(self, table: str = "t") -> list[tuple[str, Row | None, Row | None]]:
        """Operation, before and after of each event, in the connector's order; a snapshot's rows by their content."""
        events = self.events(table)
        read = [("r", e["before"], e["after"]) for e in events if e["op"] == "r"]
        streamed = [(e["op"], e["before"], e["after"]) for e in events if e["op"] != "r"]
        return [*sorted(read, key=json.dumps), *streamed]

    def folded(self, table: str = "t") -> list[Row]:
        """The rows a reader ends with."""
        return ordered(self.connector.fold(f"{self.schema}.{table}").values())

    def source(self, select: str = "SELECT * FROM t") -> list[Row]:
        """The rows the server holds now."""
        return ordered(rows(self.database, f'SET search_path = "{self.schema}"; {select}'))

    def versions(self, table: str = "t") -> list[Row]:
        """The table's records in the schema topic."""
        return schemas(self.connector, self.schema, table)


@pytest.fixture
def told(run: tuple[Database, Connector], request: pytest.FixtureRequest) -> Told:
    function: Callable[..., None] = request.function
    return Told(function.__name__, *run)


def schemas(connector: Connector, schema: str, table: str) -> list[Row]:
    topic = f"{connector.name}.schema"
    values = [json.loads(m.value() or b"") for m in read_to_end(connector.kafka, {}, topic, "read_committed")]
    return [v for v in values if (v["schema"], v["table"]) == (schema, table)]


def toasted(told: Told, table: str = "t") -> int:
    """Values stored out of line now: proof that PostgreSQL had something to leave out."""
    ((name,),) = told.database.rows(
        f"SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = '\"{told.schema}\".{table}'::regclass"
    )
    ((count,),) = told.database.rows(f"SELECT count(DISTINCT chunk_id) FROM {name}")
    assert isinstance(count, int)
    return count
