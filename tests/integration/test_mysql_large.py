"""One transaction of a million rows, and the connector killed while it publishes it: every row once, all at once."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from sinks.topics.names import table_topic
from sinks.topics.read_back import read_to_end
from tests.conftest import MySQLDatabase
from tests.integration.connector import Connector
from tests.integration.mysql_work import SEQUENCE, Life, connector_of, is_mysql
from tests.integration.running import standing

ROWS = 1_000_000
KILLED_AT = 400_000
MEMORY_MB = 300


def numbers(connector: Connector, database: MySQLDatabase) -> dict[int, list[tuple[int, int]]]:
    """Key and offset of every committed record that is an insert into `t`, by partition."""
    topic = table_topic(connector.name, database.name, "t")
    found: dict[int, list[tuple[int, int]]] = {}
    for message in read_to_end(connector.kafka, {}, topic, "read_committed"):
        assert b'"op":"c"' in (message.value() or b""), message.key()
        key = int((message.key() or b"").removeprefix(b'{"id":').removesuffix(b"}"))
        found.setdefault(message.partition() or 0, []).append((key, message.offset() or 0))
    return found


def ends(connector: Connector, database: MySQLDatabase) -> list[tuple[int, int]]:
    """Of each partition of `t` the last stable offset, and the end."""
    topic = table_topic(connector.name, database.name, "t")
    found = []
    for isolation in ("read_committed", "read_uncommitted"):
        consumer = Consumer({"bootstrap.servers": connector.kafka, "group.id": "ends", "isolation.level": isolation})
        with closing(consumer):
            found.append([consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=15)[1] for p in range(3)])
    return list(zip(*found, strict=True))


def test_killed_in_the_middle_of_a_million_rows(
    mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Nothing of it is seen before all of it is; memory does not grow with it; a second life begins it anew."""
    depth = "cte_max_recursion_depth" if is_mysql(mysql_database) else "max_recursive_iterations"
    killed_in_the_middle(
        connector_of(tmp_path, prefix, mysql_database, kafka, "t"), mysql_database, f"{depth} = 2000000"
    )


def test_killed_in_the_middle_of_a_million_compressed_rows(
    mysql: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """As one event of the log, which is never in memory whole once it is taken apart."""
    settings = ("cte_max_recursion_depth = 2000000", "binlog_transaction_compression = ON")
    killed_in_the_middle(connector_of(tmp_path, prefix, mysql, kafka, "t"), mysql, *settings)


def killed_in_the_middle(connector: Connector, database: MySQLDatabase, *settings: str) -> None:
    database.execute("CREATE TABLE t (id INT PRIMARY KEY, n INT, v VARCHAR(150))")
    connector.catch_up()
    database.execute(
        *(f"SET SESSION {setting}" for setting in settings),
        "INSERT INTO t SELECT x, x * 7, CONCAT(REPEAT('a row as long as rows are, ', 4), x) "
        f"FROM {SEQUENCE.format(last=ROWS - 1)}",
    )
    before = standing(connector)

    first = Life(connector, "tests.faults.crashing", "sink.write", str(KILLED_AT))
    assert first.code == -signal.SIGKILL, first.stderr
    assert standing(connector, settled=True).commit == before.commit
    assert any(there for _, there in ends(connector, database)), "it was killed before Kafka had anything"
    assert not any(stable for stable, _ in ends(connector, database))

    second = Life(connector, "cdc", "run")
    assert second.code == 0, second.stderr
    found = numbers(connector, database)
    assert sorted(key for of in found.values() for key, _ in of) == list(range(ROWS))
    for of in found.values():  # no marker between them: they became visible at once
        assert of[-1][1] - of[0][1] == len(of) - 1
    assert 0 < first.peak_mb < MEMORY_MB, first.peak_mb
    assert 0 < second.peak_mb < MEMORY_MB, second.peak_mb
    print(f"memory: {first.peak_mb:.0f} MB, {second.peak_mb:.0f} MB")
    topic = table_topic(connector.name, database.name, "t")
    admin = AdminClient({"bootstrap.servers": connector.kafka})
    admin.delete_topics([topic])[topic].result(30)  # 600 MB
