"""Windows of a table, read by a session whose server goes away."""

from __future__ import annotations

from typing import Any

import psycopg2
import psycopg2.extensions
import pytest

from cdc.config.config import ConnectorConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import SourceConfig
from cdc.model.errors import RetryableError
from connectors.postgres import session
from connectors.postgres.catalog.catalog import Catalog
from snapshot.postgres.windows import PostgresWindows
from tests.conftest import Database


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
            windows.read(found.table, None, 10, key=found.table.key_as_text, first=False)
    window = windows.read(found.table, None, 10, key=found.table.key_as_text, first=False)
    windows.close()
    assert window is not None
    assert len(window.rows) == 5
