"""Windows of a table, read by a session whose server goes away, and of a table whose key gets another order."""

from __future__ import annotations

from typing import Any

import psycopg2
import psycopg2.extensions
import pytest

from cdc.config import registry
from cdc.config.config import ConnectorConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import SourceConfig
from cdc.model.errors import ChangedError, RetryableError
from connectors.postgres import session
from connectors.postgres.catalog.catalog import Catalog
from snapshot.postgres.windows import PostgresWindows
from tests.conftest import Database, MySQLDatabase
from tests.pushes import some_each_push


class Cut(psycopg2.extensions.connection):
    """A session that the server ends just before its first commit."""

    admin: Database

    def commit(self) -> None:
        self.admin.execute(f"SELECT pg_terminate_backend({self.info.backend_pid}, 10000)")
        super().commit()


def test_a_server_that_goes_away_as_a_view_ends_is_asked_again(
    postgres18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 5)")
    config = ConnectorConfig(
        name="windows",
        source=SourceConfig(type="postgres", url=postgres18.url, tables=("public.t",)),
        sink=KafkaConfig(bootstrap_servers="127.0.0.1:9", topic_prefix="windows"),
    )
    connection = session.connect(session.parameters(postgres18.url, "windows"))
    found = Catalog(connection).find("public", "t", config.source.keys)
    connection.close()
    assert found is not None
    windows = PostgresWindows(config)

    def cut(params: dict[str, Any]) -> psycopg2.extensions.connection:
        Cut.admin = postgres18
        made = psycopg2.connect(**params, connection_factory=Cut)
        made.autocommit = True
        return made

    with monkeypatch.context() as patch:
        patch.setattr(session, "connect", cut)
        with pytest.raises(RetryableError, match=r"reading table public\.t"):
            windows.read(found.table, None, 10, key=found.table.key_order, first=False)
    window = windows.read(found.table, None, 10, key=found.table.key_order, first=False)
    windows.close()
    assert window is not None
    assert len(window.rows) == 5


_ORDERS = {  # PostgreSQL's is of the same order here, where it has no other collation: that is not relied on
    "postgres18": ("text", 'ALTER TABLE t ALTER id TYPE text COLLATE "C"'),
    "mysql": ("varchar(9) COLLATE utf8mb4_general_ci", "ALTER TABLE t MODIFY id varchar(9) COLLATE utf8mb4_bin"),
    "mariadb": ("varchar(9) COLLATE utf8mb4_general_ci", "ALTER TABLE t MODIFY id varchar(9) COLLATE utf8mb4_bin"),
}


@pytest.mark.parametrize("server", some_each_push(_ORDERS, "postgres18"))
def test_behind_a_key_of_another_order_a_table_is_read_from_its_beginning(
    server: str, request: pytest.FixtureRequest
) -> None:
    """A row that was not read yet may stand before that key now."""
    database: Database | MySQLDatabase = request.getfixturevalue(server)
    type_, alter = _ORDERS[server]
    kind, schema = ("postgres", "public") if server == "postgres18" else ("mysql", database.name)
    database.execute(f"CREATE TABLE t (id {type_} PRIMARY KEY)", "INSERT INTO t VALUES ('a'), ('B'), ('c'), ('D')")
    config = ConnectorConfig(
        name="windows",
        source=SourceConfig(type=kind, url=database.url, tables=(f"{schema}.t",)),
        sink=KafkaConfig(bootstrap_servers="127.0.0.1:9", topic_prefix="windows"),
    )
    source, reader = registry.source(config)(), registry.snapshotter(config)()
    source.connect()
    (table,) = source.tables()
    first = reader.window(table, None, 3, key=table.key_order, first=False)
    assert first is not None
    assert [id_ for (id_,) in first.rows] == ([b"B", b"D", b"a"] if kind == "postgres" else [b"a", b"B", b"c"])
    database.execute(alter)
    if kind == "postgres":  # it is compared first
        with pytest.raises(ChangedError, match="was altered before it was read"):
            reader.window(table, first.after, 3, key=first.table.key_order, first=False)
        source.close()
        source.connect()
        (table,) = source.tables()
    source.close()
    read = reader.window(table, first.after, 3, key=first.table.key_order, first=False)
    reader.close()
    assert read is not None
    assert [id_ for (id_,) in read.rows] == [b"B", b"D", b"a"]
