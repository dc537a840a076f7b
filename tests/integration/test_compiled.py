"""A connector with its hot path compiled, and one without: the same log, the same events, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cdc.encode.built import built
from tests.compiler import has_compiler
from tests.conftest import Database, MySQLDatabase
from tests.integration.connector import Connector

ODD = 'é "quoted" \\ \t\n {NAME} 日本語 😀'
POSTGRES = """
CREATE TABLE t (
    id bigint PRIMARY KEY, small smallint, price numeric(12,3), free numeric, ok boolean, f8 double precision,
    note text, code varchar(20), day date, clock time, at timestamp, at3 timestamp(3), zoned timestamptz, raw bytea,
    ids int[],
    doc jsonb, one uuid, flag bit(1)
);
"""
MYSQL = """
CREATE TABLE t (
    id BIGINT PRIMARY KEY, tiny TINYINT, small SMALLINT UNSIGNED, medium MEDIUMINT, big BIGINT UNSIGNED,
    price DECIMAL(12,3), many DECIMAL(40,20), f8 DOUBLE, f4 FLOAT, note TEXT, code VARCHAR(300), day DATE,
    clock TIME(2), at DATETIME(6), at3 DATETIME(3), zoned TIMESTAMP(2) NULL, raw VARBINARY(20), doc JSON,
        kind ENUM('a', 'b'), y YEAR,
    flag BIT(1), latin VARCHAR(20) CHARACTER SET latin1
) CHARACTER SET utf8mb4
"""
POSTGRES_ROWS = (
    """({n}, -1, 1.500, 'NaN', true, '-0', 'text {odd}', NULL, '2024-02-29', '23:59:59.5', '2024-02-29 12:00:00.25',
        '1969-12-31 23:59:59.5', '2024-01-01 00:00:00+02', '\\x00ff', '{{1,NULL}}', '{{"a": 1}}',
        '123e4567-e89b-12d3-a456-426614174000', '1')""",
    """({n}, NULL, NULL, 1e30, NULL, 'Infinity', '', 'x', 'infinity', '24:00', '0044-03-15 BC', NULL, 'infinity', '',
        '{{}}', NULL, NULL, NULL)""",
)
MYSQL_ROWS = (
    """({n}, -128, 65535, -8388608, 18446744073709551615, -1.500, 12345678901234567890.12345678901234567890, -0.0, 1.1,
        'text {odd}', 'x', '2024-02-29', '-838:59:59', '2024-02-29 12:00:00.25', '1000-01-01 00:00:00',
        '2024-02-29 12:00:00.5', X'00FF', '{{"a": 1}}', 'b', 2024, b'1', 'é')""",
    """({n}, NULL, NULL, NULL, NULL, 0, NULL, 1e300, NULL, '', NULL, NULL, NULL, '1970-01-01 00:00:00', NULL, NULL,
        NULL,
        NULL, NULL, NULL, NULL, NULL)""",
)


def inserts(rows: tuple[str, ...], first: int, count: int, odd: str) -> str:
    made = ", ".join(rows[n % len(rows)].format(n=n, odd=odd) for n in range(first, first + count))
    return f"INSERT INTO t VALUES {made}"


def without_names(event: dict[str, Any], name: str, *, read: bool) -> str:
    """What does not depend on who tells it, and when; of a row that was read, its values."""
    if read:
        return json.dumps([event["op"], event["before"], event["after"]])
    event["source"].pop("name")
    event.pop("ts_ms")
    text = json.dumps(event)
    assert name not in text
    return text


def told(connector: Connector, table: str) -> tuple[dict[int, list[str]], dict[int, list[str]]]:
    """By partition: what was read, which several sessions read side by side, sorted; what the log said, in order."""
    reads: dict[int, list[str]] = {}
    streamed: dict[int, list[str]] = {}
    for record in connector.records(table):
        value = record.value
        read = value is not None and value["op"] == "r"
        text = None if value is None else without_names(value, connector.name, read=read)
        (reads if read else streamed).setdefault(record.partition, []).append(f"{record.raw_key!r} {text}")
    return {partition: sorted(of) for partition, of in reads.items()}, streamed


def compare(kinds: list[Connector], table: str) -> int:
    """Keys, values, order in each partition; how many."""
    fast, plain = (told(connector, table) for connector in kinds)
    assert fast == plain
    return sum(len(of) for kind in fast for of in kind.values())


def pair(tmp_path: Path, prefix: str, url: str, kafka: str, table: str) -> list[Connector]:
    kinds = [Connector(tmp_path, f"{prefix}{kind}", url, kafka, [table]) for kind in ("c", "p")]
    kinds[0].environment["CDC_PURE"] = ""
    kinds[1].environment["CDC_PURE"] = "1"
    return kinds


@pytest.fixture(autouse=True)
def is_compiled() -> None:
    for name in ("cdc.encode", "connectors.postgres.pgoutput", "connectors.mysql.binlog"):
        compiled = built(f"{name}.compiled") is not None
        assert compiled or not has_compiler(), "nothing was compiled: this would compare the same with itself"


def test_postgres(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    odd = ODD.replace("{NAME}", "$1").replace("'", "''")
    postgres18.execute(POSTGRES)
    postgres18.execute(inserts(POSTGRES_ROWS, 0, 500, odd))
    kinds = pair(tmp_path, prefix, postgres18.url, kafka, "public.t")
    for connector in kinds:
        connector.catch_up(process=True)
    postgres18.execute(inserts(POSTGRES_ROWS, 500, 300, odd))
    for n in range(40):
        postgres18.execute(inserts(POSTGRES_ROWS, 1000 + n, 1, odd))
    postgres18.execute("UPDATE t SET note = note || 'more' WHERE id < 20")
    postgres18.execute("UPDATE t SET id = -id WHERE id BETWEEN 30 AND 35")
    postgres18.execute("UPDATE t SET note = repeat('long', 5000) WHERE id = 40")
    postgres18.execute("UPDATE t SET small = 7 WHERE id = 40")
    postgres18.execute("DELETE FROM t WHERE id BETWEEN 50 AND 60")
    postgres18.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    postgres18.execute("UPDATE t SET small = 8 WHERE id BETWEEN 40 AND 49")
    postgres18.execute("UPDATE t SET id = -id WHERE id BETWEEN 61 AND 65")
    postgres18.execute("DELETE FROM t WHERE id BETWEEN 66 AND 68")
    postgres18.execute("ALTER TABLE t ADD added int DEFAULT 3")
    postgres18.execute("UPDATE t SET added = id WHERE id BETWEEN 70 AND 80")
    for connector in kinds:
        connector.catch_up(process=True)
    assert compare(kinds, "public.t") > 800


def test_mysql(mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    odd = ODD.replace("{NAME}", "$1").replace("\\", "\\\\").replace("'", "''")
    mysql_database.execute(MYSQL, inserts(MYSQL_ROWS, 0, 500, odd))
    kinds = pair(tmp_path, prefix, mysql_database.url, kafka, f"{mysql_database.name}.t")
    for connector in kinds:
        connector.catch_up(process=True)
    mysql_database.execute(inserts(MYSQL_ROWS, 500, 300, odd))
    for n in range(40):
        mysql_database.execute(inserts(MYSQL_ROWS, 1000 + n, 1, odd))
    mysql_database.execute(
        "CREATE TABLE others (id INT PRIMARY KEY)",
        "INSERT INTO others VALUES (1), (2)",
        "UPDATE t SET note = CONCAT(note, 'more') WHERE id < 20",
        "UPDATE t SET id = -id WHERE id BETWEEN 30 AND 35",
        "UPDATE t SET note = REPEAT('long', 5000) WHERE id = 40",
        "DELETE FROM t WHERE id BETWEEN 50 AND 60",
        "BEGIN",
        "INSERT INTO others VALUES (3)",
        "UPDATE t SET tiny = 5 WHERE id = 41",
        "COMMIT",
        "ALTER TABLE t ADD added INT DEFAULT 3",
        "UPDATE t SET added = id WHERE id BETWEEN 70 AND 80",
    )
    for connector in kinds:
        connector.catch_up(process=True)
    assert compare(kinds, f"{mysql_database.name}.t") > 800
