"""`sink.route` on real servers: tables of one topic, each compared with SELECT, whatever is done to one of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

import cdc
from cdc.encode.table_log import log_of
from tests.conftest import Database, MySQLDatabase
from tests.integration.connector import Connector, Record
from tests.integration.running import Running, eventually, ordered, rows

pytestmark = pytest.mark.filterwarnings("ignore:.* is deprecated. Use files:DeprecationWarning")  # kafka-python, 3.11

NAMED = "__dbz__physicalTableIdentifier"
ROUTE = [
    {"from": "public.orders_*", "to": "orders", "key": "+source"},
    {"from": "tenant_?.orders", "to": "tenants", "key": "+source"},
    {"from": "public.other", "to": "renamed"},
]
SHARED = {"orders": ["public.orders_2025", "public.orders_2026"], "tenants": ["tenant_a.orders", "tenant_b.orders"]}
WIDE = 3_000


def _folded(records: list[Record]) -> dict[str, list[dict[str, Any]]]:
    """The rows that a reader of a topic ends with, by the table that their events name, as their keys do."""
    found: dict[str, list[dict[str, Any]]] = {}
    for record in {record.raw_key: record for record in records}.values():
        if record.value is not None and record.value["op"] != "d":
            source = record.value["source"]
            table = f"{source.get('schema', source['db'])}.{source['table']}"
            assert record.key.get(NAMED, table) == table
            assert list(record.key)[-1] == NAMED or NAMED not in record.key
            found.setdefault(table, []).append(record.value["after"])
    return {table: ordered(of) for table, of in found.items()}


def _is_right(connector: Connector, database: Database, **topics: list[str]) -> None:
    for topic, tables in topics.items():
        wanted = {table: ordered(rows(database, f"SELECT * FROM {table}")) for table in tables}
        found = _folded(connector.records_of(topic))
        assert {table: found.get(table, []) for table in tables} == wanted
        assert found.keys() <= wanted.keys()


def _rise(records: list[Record]) -> None:
    """Of each key positions increase: nothing was written twice."""
    last: dict[bytes, str] = {}
    for record in records:
        if record.value is not None:
            position = record.value["source"]["position"]
            assert last.get(record.raw_key, "") < position
            last[record.raw_key] = position


def _refused(connector: Connector, route: list[dict[str, str]], what: str) -> None:
    """A changed file is refused by a run and by a check, and nothing is written."""
    text = connector.file.read_text()
    config = json.loads(text)
    config["sink"]["route"] = route
    before = [len(connector.records_of(topic)) for topic in SHARED]
    connector.file.write_text(json.dumps(config))
    try:
        done = connector.here("run", "FILE", "--until-caught-up")
        assert done.returncode in (1, 4)
        assert what in done.stderr
        assert what in connector.here("check", "FILE").stdout
    finally:
        connector.file.write_text(text)
    assert [len(connector.records_of(topic)) for topic in SHARED] == before


def test_postgres(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshot, log, kill -9, moved keys, TOASTed values; TRUNCATE and reading of one table; tables that come later."""
    postgres18.execute(
        "CREATE TABLE orders_2025 (id int PRIMARY KEY, note text, doc text)",
        "CREATE TABLE orders_2026 (id int PRIMARY KEY, doc text, more int)",
        "ALTER TABLE orders_2025 ALTER doc SET STORAGE EXTERNAL",
        "ALTER TABLE orders_2026 ALTER doc SET STORAGE EXTERNAL",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE SCHEMA tenant_a CREATE TABLE orders (id text PRIMARY KEY, n int)",
        "CREATE SCHEMA tenant_b CREATE TABLE orders (id text PRIMARY KEY, n int)",
        f"INSERT INTO orders_2025 SELECT n, 'n', repeat('a', {WIDE}) || n FROM generate_series(1, 40) n",
        f"INSERT INTO orders_2026 SELECT n, repeat('b', {WIDE}) || n, n FROM generate_series(1, 40) n",
        """INSERT INTO tenant_a.orders VALUES ('"}', 1), (',"x":"y"}', 2)""",
        """INSERT INTO tenant_b.orders VALUES ('"}', 3), (',"x":"y"}', 4)""",
        "INSERT INTO other VALUES (1)",
    )
    tables = ["public.orders_*", "public.other", "tenant_a.orders", "tenant_b.orders"]
    sink = {"route": ROUTE, "headers": ["key_change"], "topic_config": {"file.delete.delay.ms": "500"}}
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, tables, sink=sink)
    connector.catch_up()
    _is_right(connector, postgres18, renamed=["public.other"], **SHARED)
    assert {of["table"]: (of["topic"], of.get("key_table")) for of in connector.descriptions()} == {
        "orders_2025": (f"{prefix}.orders", NAMED), "orders_2026": (f"{prefix}.orders", NAMED),
        "orders": (f"{prefix}.tenants", NAMED), "other": (f"{prefix}.renamed", None),
    }  # fmt: skip

    # killed while all of them are written; updates leave wide values out of the log
    for nth in (1, 2):
        with Running(connector) as run:
            run.await_following()
            for number in range(1, 31):
                postgres18.execute(
                    f"BEGIN; UPDATE orders_2025 SET note = '{nth}' WHERE id = {number}; "
                    f"UPDATE orders_2026 SET more = {nth * 100} WHERE id = {number}; "
                    f"UPDATE orders_2025 SET id = id + {nth * 1000} WHERE id = {number + 5}; "
                    f"UPDATE tenant_a.orders SET n = n + 1; INSERT INTO other VALUES ({nth * 1000 + number}); COMMIT"
                )
            written = len(connector.records_of("renamed"))
            eventually(lambda: len(connector.records_of("renamed")) >= written, "some have come")  # noqa: B023
            run.kill()
    connector.catch_up()
    _is_right(connector, postgres18, renamed=["public.other"], **SHARED)
    for topic in (*SHARED, "renamed"):
        _rise(connector.records_of(topic))

    # what is done to one table
    before = len(connector.records_of("orders"))
    postgres18.execute(
        "TRUNCATE orders_2025", "INSERT INTO orders_2025 VALUES (7, 'after it', 'short')",
        "ALTER TABLE orders_2025 ADD COLUMN late int DEFAULT 5", "INSERT INTO orders_2025 VALUES (8, 'b', 'c', 6)",
    )  # fmt: skip
    connector.catch_up()
    _is_right(connector, postgres18, **SHARED)
    assert {record.key[NAMED] for record in connector.records_of("orders")[before:]} >= {"public.orders_2025"}
    assert len(_folded(connector.records_of("orders"))["public.orders_2026"]) == len(
        rows(postgres18, "SELECT id FROM orders_2026")
    )
    publication = f'"cdc_{prefix.replace("-", "_")}"'
    postgres18.execute(
        f"ALTER PUBLICATION {publication} DROP TABLE orders_2026", "DELETE FROM orders_2026 WHERE id > 10",
        "UPDATE orders_2026 SET more = -1 WHERE id = 1", f"ALTER PUBLICATION {publication} ADD TABLE orders_2026",
    )  # fmt: skip
    said = connector.catch_up()
    assert "public.orders_2026" in said
    asked = connector.here("snapshot", "start", "FILE", "--table", "tenant_a.orders")
    assert asked.returncode == 0, asked.stderr
    connector.catch_up()
    _is_right(connector, postgres18, **SHARED)

    # a table that comes later, with keys that are there already
    postgres18.execute(
        "CREATE TABLE orders_2027 (id int PRIMARY KEY)", "INSERT INTO orders_2027 SELECT generate_series(1, 9)"
    )
    said = connector.catch_up()
    assert "was captured before" not in said
    SHARED_NOW = {**SHARED, "orders": [*SHARED["orders"], "public.orders_2027"]}  # noqa: N806 - as above, and one more
    _is_right(connector, postgres18, **SHARED_NOW)

    # who reads
    monkeypatch.setenv("TEST_DATABASE_URL", connector.environment["TEST_DATABASE_URL"])
    for table in ("public.orders_2025", "public.orders_2027", "tenant_b.orders", "public.other"):
        found = cdc.table(connector.file, table).to_arrow().to_pylist()
        assert ordered(found) == ordered(rows(postgres18, f"SELECT * FROM {table}"))
    followed: dict[tuple[str, str], Any] = {}
    for change in cdc.follow(connector.file, tables=["public.orders_2026", "tenant_b.orders"], until_caught_up=True):
        assert change.key is not None
        followed[change.table, json.dumps(change.key)] = change.after
        assert NAMED not in change.key
    for table in ("public.orders_2026", "tenant_b.orders"):
        left = [after for (of, _), after in followed.items() if of == table and after is not None]
        assert ordered(left) == ordered(rows(postgres18, f"SELECT * FROM {table}"))
    many = sum(1 for r in connector.records_of("tenants") if r.key[NAMED] == "tenant_b.orders")
    tailed = connector.cdc("tail", "FILE", "--table", "tenant_b.orders", "--from-beginning", "--max", str(many))
    assert {json.loads(line)["key"][NAMED] for line in tailed.stdout.splitlines()} == {"tenant_b.orders"}
    assert connector.here("consumers", "FILE", "--json").returncode == 0
    assert connector.here("status", "FILE", "--json").returncode == 0
    checked = connector.here("check", "FILE").stdout
    assert f"topic {prefix}.orders" in checked

    # what would leave rows behind, or put two under one key
    _refused(connector, ROUTE[1:], f"were written to {prefix}.orders, and the file says {prefix}.public.orders_2025")
    changed = [{**ROUTE[0], "to": "elsewhere"}, *ROUTE[1:]]
    _refused(connector, changed, f"were written to {prefix}.orders, and the file says {prefix}.elsewhere")
    _refused(connector, [*ROUTE[:2], {**ROUTE[2], "key": "+source"}], "whose keys do not name their table")

    # another connector of the prefix, whose table has the name of one that is there
    neighbour = Connector(
        tmp_path, f"{prefix}-2", postgres18.url, kafka, ["public.orders_2026"],
        sink={"topic_prefix": prefix, "route": ROUTE[:1]},
    )  # fmt: skip
    neighbour.put_right()
    for done in (neighbour.here("check", "FILE"), neighbour.here("run", "FILE", "--until-caught-up")):
        assert done.returncode in (1, 4)
        assert f"topic owned by another connector: {prefix}.orders is written by {prefix}" in done.stdout + done.stderr

    # erased of one table, and not of the other that has the same key
    postgres18.execute("""DELETE FROM tenant_a.orders WHERE id = '"}'""")
    connector.catch_up()
    wanted = json.dumps({"id": '"}'})
    of_b = connector.here("erase", "FILE", "--table", "tenant_b.orders", "--key", wanted)
    assert "is still in tenant_b.orders" in of_b.stderr
    done = connector.here("erase", "FILE", "--table", "tenant_a.orders", "--key", wanted, "--wait", "--json")
    verdicts = {of["place"]: of["verdict"] for of in json.loads(done.stdout)["places"]}
    assert verdicts[f"topic {prefix}.tenants"] == "gone", done.stderr
    _is_right(connector, postgres18, **SHARED_NOW)

    # more partitions than the keys were spread over
    admin = AdminClient({"bootstrap.servers": kafka})
    for done_so in admin.create_partitions([NewPartitions(f"{prefix}.orders", 4)]).values():
        done_so.result(30)
    eventually(lambda: "a key must stay in its partition" in connector.here("check", "FILE").stdout, "it is told")
    refused = connector.here("run", "FILE", "--until-caught-up")
    assert f"topic {prefix}.orders has 4 partitions, 3 are asked for" in refused.stderr
    assert "give the connector another name" in refused.stderr


@pytest.mark.full  # PostgreSQL's, above
def test_mysql(mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    """The same of one binlog, through librdkafka: kill -9, moved keys, TRUNCATE and reading of one table."""
    name = mysql_database.name
    for number in (1, 2, 3):
        mysql_database.execute(
            f"CREATE TABLE orders_{number} (id int PRIMARY KEY, note varchar(50))",
            f"INSERT INTO orders_{number} VALUES (1, 'a{number}'), (2, 'b{number}'), (3, 'c{number}')",
        )
    route = [{"from": f"{name}.orders_?", "to": "orders", "key": "+source"}]
    sink = {"route": route, "producer": "librdkafka"}
    connector = Connector(tmp_path, prefix, mysql_database.url, kafka, [f"{name}.orders_*"], sink=sink)
    connector.catch_up()

    def is_right() -> None:
        found = _folded(connector.records_of("orders"))
        for number in (1, 2, 3):
            wanted = [{"id": id_, "note": note} for id_, note in mysql_database.rows(f"SELECT * FROM orders_{number}")]
            assert found.get(f"{name}.orders_{number}", []) == ordered(wanted)

    is_right()
    with Running(connector) as run:
        run.await_following()
        for number in range(40):
            mysql_database.execute(
                "BEGIN", f"UPDATE orders_1 SET note = '{number}' WHERE id = 1",
                f"INSERT INTO orders_2 VALUES ({100 + number}, 'n')",
                f"UPDATE orders_3 SET id = {200 + number} WHERE id > 2", "COMMIT",
            )  # fmt: skip
        run.kill()
    connector.catch_up()
    is_right()
    mysql_database.execute("TRUNCATE orders_2", "INSERT INTO orders_2 VALUES (1, 'after')")
    mysql_database.execute("DELETE FROM orders_1 WHERE id = 2")
    connector.catch_up()
    is_right()
    mysql_database.execute("SET SESSION sql_log_bin = 0", "DELETE FROM orders_1 WHERE id = 3")
    asked = connector.here("snapshot", "start", "FILE", "--table", f"{name}.orders_1")
    assert asked.returncode == 0, asked.stderr
    connector.catch_up()
    is_right()
    _rise(connector.records_of("orders"))


def test_a_table_that_goes_elsewhere_has_left_its_events(
    database: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Its former topic keeps what it has: who erases a row is told, for no command removes it there."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    database.execute("INSERT INTO t VALUES (1), (2)")
    log = {"tables": ["public.t"], "retention": "forever"}
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t", "public.u"], sink={"log": log})
    connector.catch_up()

    def change(tables: list[str], **sink: Any) -> None:
        config = json.loads(connector.file.read_text())
        config["source"]["tables"] = tables
        config["sink"] = {name: of for name, of in {**config["sink"], **sink}.items() if of is not None}
        connector.file.write_text(json.dumps(config))
        connector.catch_up()

    change(["public.u"], log=None)
    change(["public.t", "public.u"], route=[{"from": "public.t", "to": "moved"}])
    database.execute("DELETE FROM t WHERE id = 1")
    connector.catch_up()
    assert _folded(connector.records_of("moved")) == {"public.t": [{"id": 2}]}
    done = connector.here("erase", "FILE", "--table", "public.t", "--key", "1", "--json")
    verdicts = {of["place"]: of["verdict"] for of in json.loads(done.stdout)["places"]}
    assert verdicts[f"topic {prefix}.moved"] in ("gone", "will be gone"), done.stderr
    assert verdicts[f"topic {prefix}.public.t"] == "kept"
    assert verdicts[f"topic {log_of(f'{prefix}.public.t')}"] == "kept"
    assert done.returncode == 1
