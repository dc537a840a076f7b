"""A table of so many partitions that a server which is set as ever cannot read it by one statement."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
from psycopg2 import errors

from cdc.dev.servers import postgres as dev_postgres
from cdc.dev.servers.process import Server
from tests.conftest import Database
from tests.integration.connector import Connector
from tests.integration.running import same

_SOME = (
    "DO $$ BEGIN FOR i IN {}..{} LOOP EXECUTE format('CREATE TABLE p_%1$s PARTITION OF p FOR VALUES IN (%1$s)', i);"
    " EXECUTE format('INSERT INTO p VALUES (%1$s, 1)', i); END LOOP; END $$"
)


@pytest.mark.full  # what is judged: tests/unit/test_postgres_lock_room.py
def test_a_table_of_more_partitions_than_locks(kafka: str, prefix: str, tmp_path: Path) -> None:
    """Its first snapshot says so at once, with the number that is enough: followed, the table is read."""
    server = Server("alone", tmp_path / "alone", partial(dev_postgres.prepare, major=18))

    def restarted() -> Database:
        server.stop()
        return Database(server.start(), "postgres")

    try:
        database = Database(server.start(), "postgres")
        for name, value in (("max_locks_per_transaction", 10), ("max_connections", 25), ("autovacuum_worker_slots", 3)):
            database.execute(f"ALTER SYSTEM SET {name} = {value}")
        database = restarted()
        database.execute("CREATE TABLE p (id int, n int, PRIMARY KEY (id), UNIQUE (id, n)) PARTITION BY LIST (id)")
        database.execute(*(_SOME.format(at, at + 29) for at in range(0, 2100, 30)))
        connector = Connector(tmp_path, prefix, database.url, kafka, ["public.p"])
        with pytest.raises(errors.OutOfMemory):  # nobody is stopped for no need
            database.rows("EXPLAIN SELECT FROM p")
        refused = connector.here("run", "FILE", "--until-caught-up")
        assert refused.returncode == 1
        said = "table public.p: a snapshot locks its 2100 partitions and their indexes, 6303 relations"
        assert said in refused.stderr
        checked = connector.here("check", "FILE")
        assert checked.returncode == 1
        assert f"error    server: {said}" in checked.stdout
        (statement,) = re.findall("ALTER SYSTEM SET max_locks_per_transaction = [0-9]+", refused.stderr)
        database.execute(statement)
        database = restarted()
        connector.moved(database.url)
        connector.catch_up()
        same(connector, database, "public.p")
    finally:
        server.stop()
