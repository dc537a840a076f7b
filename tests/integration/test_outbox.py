"""`source.outbox` on real servers: messages as Debezium's outbox event router has them, each once, also when killed."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sinks.topics.records.read_back import read_to_end
from tests.conftest import Database, MySQLDatabase
from tests.integration.connector import Connector
from tests.integration.running import Running, eventually

pytestmark = pytest.mark.filterwarnings("ignore:.* is deprecated. Use files:DeprecationWarning")  # kafka-python, 3.11


def _messages(connector: Connector, topic: str) -> list[tuple[bytes, bytes | None, dict[str, bytes]]]:
    """Key, value and headers, in order within each partition, and so for each key."""
    with closing(read_to_end(connector.kafka, {}, topic, "read_committed")) as found:
        return [(m.key() or b"", m.value(), dict(m.headers() or [])) for m in found]


def _source(table: str, prefix: str) -> dict[str, Any]:
    return {"outbox": {"table": table, "topic_prefix": f"outbox.{prefix}"}}


def test_postgres(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Topics that come with their first message; deletes, also in the transaction of the insert; a kill -9."""
    postgres18.execute(
        "CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype varchar(255) NOT NULL,"
        " aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb, at timestamptz DEFAULT now())",
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('order', '0', 'Early', '0')",
    )
    connector = Connector(
        tmp_path, prefix, postgres18.url, kafka, ["public.*"], source=_source("public.outbox", prefix)
    )
    connector.catch_up()
    insert = "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES"
    postgres18.execute(
        f"""BEGIN; INSERT INTO orders VALUES (1); {insert} ('order', '1', 'Created', '{{"id": 1}}'); DELETE FROM outbox;
        {insert} ('Bill/ü', '1', 'Made', NULL); COMMIT""",
        f"""BEGIN; {insert} ('order', '1', 'Lost', '1'); ROLLBACK""",
        f"""{insert} ('order', '2', 'Created', '[{"1," * 3000}1]')""",
        "TRUNCATE outbox",
    )
    connector.catch_up()
    topic = f"outbox.{prefix}.order"
    found = {key: (value, headers) for key, value, headers in _messages(connector, topic)}
    assert found.keys() == {b"1", b"2"}
    assert found[b"1"][0] == b'{"id": 1}'
    assert json.loads(found[b"2"][0] or b"") == [1] * 3001
    assert found[b"1"][1].keys() == {"id", "eventType"}
    assert found[b"1"][1]["eventType"] == b"Created"
    assert len(found[b"1"][1]["id"]) == 36
    assert [(key, value) for key, value, _ in _messages(connector, f"outbox.{prefix}.Bill_u002f_u00fc")] == [
        (b"1", None)
    ]
    assert not connector.records("public.outbox")
    assert [e["op"] for e in connector.events("public.orders")] == ["c"]
    for begin in (100, 200, 300):
        with Running(connector) as run:
            run.await_following()
            for number in range(begin, begin + 40):
                postgres18.execute(f"{insert} ('order', 'k{number % 3}', '{number}', '{number}'); DELETE FROM outbox")
            eventually(lambda: len(_messages(connector, topic)) > begin // 10, "some have come")  # noqa: B023
            run.kill()
    connector.catch_up()
    for key in (b"k0", b"k1", b"k2"):
        of = [int(headers["eventType"]) for k, _, headers in _messages(connector, topic) if k == key]
        assert of == [n for begin in (100, 200, 300) for n in range(begin, begin + 40) if b"k%d" % (n % 3) == key]


def test_one_that_is_in_no_log_ends_the_run(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """No reading brings its messages: those that are in the log are published once it is back.

    An update that moves a row to another partition, which is a delete and an insert in the log, is no new message where
    the log has the old row whole.
    """
    columns = "id int, aggregatetype text, aggregateid text, type text, payload text, done int, PRIMARY KEY (id, done)"
    postgres18.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        f"CREATE TABLE outbox ({columns}) PARTITION BY LIST (done)",
        *(f"CREATE TABLE outbox_{n} PARTITION OF outbox FOR VALUES IN ({n})" for n in range(2)),
        *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in ("outbox", "outbox_0", "outbox_1")),
    )
    of = _source("public.outbox", prefix)
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.*"], as_owner=True, source=of)
    connector.catch_up()
    postgres18.execute(
        "ALTER TABLE outbox_1 SET UNLOGGED",
        "INSERT INTO outbox VALUES (1, 'order', '1', 'Created', '1', 0), (11, 'order', '11', 'Created', '11', 1)",
    )
    for command in (["run", "FILE", "--until-caught-up"], ["check", "FILE"]):
        done = connector.here(*command)
        assert done.returncode == 1, done.stdout
        assert "ALTER TABLE public.outbox_1 SET LOGGED" in done.stderr + done.stdout
    postgres18.execute("ALTER TABLE outbox_1 SET LOGGED")
    assert "messages that were inserted meanwhile may be in no log" in connector.catch_up()
    postgres18.execute("UPDATE outbox SET done = 1 WHERE done = 0")
    assert "an update is not published" in connector.catch_up()
    assert [key for key, _, _ in _messages(connector, f"outbox.{prefix}.order")] == [b"1"]


@pytest.mark.full  # test_postgres, and tests/unit/test_outbox.py
def test_mysql(mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    """A payload of bytes, one of JSON; through librdkafka; a table that is not an outbox is refused first."""
    columns = "id int PRIMARY KEY AUTO_INCREMENT, aggregatetype varchar(50), aggregateid varchar(50), type varchar(50)"
    mysql_database.execute(f"CREATE TABLE outbox ({columns}, body json)")
    table = f"{mysql_database.name}.outbox"
    connector = Connector(
        tmp_path,
        prefix,
        mysql_database.url,
        kafka,
        [table],
        source=_source(table, prefix),
        sink={"producer": "librdkafka"},
    )
    refused = connector.here("run", "FILE", "--until-caught-up")
    assert refused.returncode == 1
    assert f"source.outbox: table {table} has no column payload" in refused.stderr
    assert "has no column payload" in connector.here("check", "FILE").stdout
    mysql_database.execute("ALTER TABLE outbox CHANGE body payload blob")
    connector.catch_up()
    mysql_database.execute(
        "INSERT INTO outbox VALUES (1, 'a', 'x', 't', x'00ff')",
        "DELETE FROM outbox",
        "ALTER TABLE outbox DROP COLUMN payload, ADD COLUMN payload json",
        """INSERT INTO outbox VALUES (2, 'a', 'x', NULL, '{"a": "ü"}')""",
        "UPDATE outbox SET type = 'u'",
    )
    said = connector.catch_up()
    assert "an update is not published" in said
    first, second = _messages(connector, f"outbox.{prefix}.a")
    assert first == (b"x", b"\0\xff", {"id": b"1", "eventType": b"t"})
    assert (second[0], json.loads(second[1] or b""), second[2]) == (b"x", {"a": "ü"}, {"id": b"2", "eventType": b""})
