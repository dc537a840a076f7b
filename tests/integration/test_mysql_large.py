"""One large transaction, and the connector killed while it publishes it: every row once, all at once.

180 MB, in many rows or in fewer and longer ones: what is held whole shows in the memory either way.
"""

from __future__ import annotations

import signal
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from sinks.topics.names import table_topic
from sinks.topics.records.read_back import read_to_end
from tests.conftest import MySQLDatabase
from tests.integration.connector import Connector
from tests.integration.mysql_work import SEQUENCE, Life, connector_of, is_mysql
from tests.integration.running import standing

DEEP = 2_000_000


@dataclass(frozen=True)
class Size:
    """Of the transaction: its rows, how often the words are in each, and the memory that the connector may take."""

    rows: int
    words: int
    memory_mb: int


LONG_ROWS = Size(60_000, 110, memory_mb=200)
A_MILLION = Size(1_000_000, 4, memory_mb=300)
SIZES = pytest.mark.parametrize(
    "size", [pytest.param(LONG_ROWS, id="long"), pytest.param(A_MILLION, id="million", marks=pytest.mark.full)]
)


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
            found.append([consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=60)[1] for p in range(3)])
    return list(zip(*found, strict=True))


@SIZES
def test_killed_in_the_middle_of_many_rows(
    mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path, size: Size
) -> None:
    """Nothing of it is seen before all of it is; memory does not grow with it; a second life begins it again."""
    depth = "cte_max_recursion_depth" if is_mysql(mysql_database) else "max_recursive_iterations"
    connector = connector_of(tmp_path, prefix, mysql_database, kafka, "t")
    killed_in_the_middle(connector, mysql_database, size, f"{depth} = {DEEP}")


@pytest.mark.full  # the one before it, and test_a_large_transaction_that_is_compressed
@SIZES
def test_killed_in_the_middle_of_many_compressed_rows(
    mysql: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path, size: Size
) -> None:
    """As one event of the log, which is never in memory whole once it is taken apart."""
    settings = (f"cte_max_recursion_depth = {DEEP}", "binlog_transaction_compression = ON")
    killed_in_the_middle(connector_of(tmp_path, prefix, mysql, kafka, "t"), mysql, size, *settings)


def killed_in_the_middle(connector: Connector, database: MySQLDatabase, size: Size, *settings: str) -> None:
    database.execute("CREATE TABLE t (id INT PRIMARY KEY, n INT, v VARCHAR(4000))")
    began = connector.here("run", "FILE", "--until-caught-up")  # with nothing in the log behind it
    assert began.returncode == 0, began.stderr
    database.execute(
        *(f"SET SESSION {setting}" for setting in settings),
        f"INSERT INTO t SELECT x, x * 7, CONCAT(REPEAT('a row as long as rows are, ', {size.words}), x) "
        f"FROM {SEQUENCE.format(last=size.rows - 1)}",
    )
    before = standing(connector)

    first = Life(connector, "tests.faults.crashing", "sink.write", str(size.rows * 2 // 5))
    assert first.code == -signal.SIGKILL, first.stderr
    after = standing(connector, settled=True)
    rotated = (1 << 32) * (1 + before.commit // (1 << 32))  # MariaDB 11.7 and newer give it a file of its own
    assert after.commit == before.commit or rotated < after.commit < rotated + size.rows
    assert any(there for _, there in ends(connector, database)), "it was killed before Kafka had anything"
    assert not any(stable for stable, _ in ends(connector, database))

    second = Life(connector, "cdc", "run")
    assert second.code == 0, second.stderr
    found = numbers(connector, database)
    assert sorted(key for of in found.values() for key, _ in of) == list(range(size.rows))
    for of in found.values():  # no marker between them: they became visible at once
        assert of[-1][1] - of[0][1] == len(of) - 1
    assert 0 < first.peak_mb < size.memory_mb, first.peak_mb
    assert 0 < second.peak_mb < size.memory_mb, second.peak_mb
    print(f"memory: {first.peak_mb:.0f} MB, {second.peak_mb:.0f} MB")
    topic = table_topic(connector.name, database.name, "t")
    admin = AdminClient({"bootstrap.servers": connector.kafka})
    admin.delete_topics([topic])[topic].result(30)  # 600 MB
