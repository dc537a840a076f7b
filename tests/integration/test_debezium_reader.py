"""A reader that knows Debezium's JSON reads ours: real events against Debezium's documented envelope."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Database
from tests.debezium import validate
from tests.integration.connector import Connector


def test_every_kind_of_event_is_a_debezium_event(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Snapshot read, create, update, delete, key change, truncate, tombstone: each is valid by the written schema."""
    database.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, customer text, total numeric(10,2), at timestamptz, tags text[])",
        "CREATE TABLE audited (a integer, b text, note text, PRIMARY KEY (b, a))",
        "ALTER TABLE audited REPLICA IDENTITY FULL",
        "INSERT INTO orders SELECT g, 'name ' || g, g / 3.0, now(), ARRAY['x'] FROM generate_series(1, 50) g",
        "INSERT INTO audited VALUES (1, 'k', 'before'), (2, 'k', NULL)",
    )
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.*"])
    connector.catch_up()
    database.execute(
        "INSERT INTO orders VALUES (100, 'new', 1.5, '-infinity', NULL)",
        "UPDATE orders SET total = 'NaN', customer = E'a\\n\"\\\\' WHERE id = 1",
        "UPDATE orders SET id = 200 WHERE id = 2",
        "DELETE FROM orders WHERE id = 3",
        "BEGIN; UPDATE audited SET note = 'after' WHERE a = 1; DELETE FROM audited WHERE a = 2; COMMIT",
        "TRUNCATE audited",
    )
    connector.catch_up()
    seen: dict[str, set[str]] = {}
    for table in ("public.orders", "public.audited"):
        for record in connector.records(table):
            validate(record.raw_key, record.raw_value)
            op = record.value["op"] if record.value is not None else "tombstone"
            seen.setdefault(table, set()).add(op)
            if record.value is not None:
                assert record.value["source"]["connector"] == "postgresql"
                assert record.value["source"]["name"] == prefix
                assert (record.value["transaction"] is None) == (op == "r")
    assert seen == {
        "public.orders": {"r", "c", "u", "d", "tombstone"},
        "public.audited": {"r", "u", "d", "tombstone"},
    }
    update = next(e for e in connector.events("public.audited") if e["op"] == "u")
    assert update["before"] == {"a": 1, "b": "k", "note": "before"}
