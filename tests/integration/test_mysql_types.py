"""Types of MySQL and MariaDB through snapshot, binlog and re-read: one description, the same JSON."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import MySQLDatabase
from tests.integration.mysql_work import connector_of, is_mysql
from tests.integration.nudges import nudged
from tests.integration.running import Running, eventually

COLUMNS = """
 t1 TINYINT, t2 TINYINT(1) UNSIGNED, s SMALLINT, m MEDIUMINT UNSIGNED, i INT(5) ZEROFILL, b BIGINT UNSIGNED,
 d DECIMAL(65,30), f FLOAT, g DOUBLE, c CHAR(5), v VARCHAR(20) CHARACTER SET latin1, w VARCHAR(20) COLLATE utf8mb4_bin,
 x TEXT CHARACTER SET utf16, bi BINARY(4), vb VARBINARY(9), bl BLOB, e ENUM('a', 'b,c'), se SET('x', 'y', 'z'),
 j JSON, b1 BIT(1), b9 BIT(9), da DATE, y YEAR, ti TIME(3), dt DATETIME, dt6 DATETIME(6), ts TIMESTAMP(2) NULL,
 po POINT, virt INT GENERATED ALWAYS AS (id * 2) VIRTUAL, sto INT GENERATED ALWAYS AS (id * 3) STORED
"""
INSERTED = "id, t1, t2, s, m, i, b, d, f, g, c, v, w, x, bi, vb, bl, e, se, j, b1, b9, da, y, ti, dt, dt6, ts, po"
VALUES = """
 -128, 1, -32768, 16777215, 42, 18446744073709551615, -12345678901234567890.000000000000000000000000000001, 3.3, 1e300,
 'ab', 'é', 'Ünï', 'x', 'a', x'00ff00', x'', 'b,c', 'x,z', '{"b": [1, 2.50], "a": "é"}', b'1', b'100000001',
 '2024-02-29', 2024, '-838:59:58.500', '1000-01-01 00:00:00', '2024-02-29 12:34:56.123456',
 '2024-02-29 12:34:56.12', POINT(1, 2)
"""


def test_one_row_by_three_ways(mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    """The snapshot's row, the same row from the binlog, and the same read again."""
    database = mysql_database
    database.execute(
        "SET SESSION sql_mode = ''",
        f"CREATE TABLE a (id INT PRIMARY KEY, {COLUMNS})",
        f"INSERT INTO a ({INSERTED}) VALUES (1, {VALUES}), (2{', NULL' * 28})",
    )
    connector = connector_of(tmp_path, prefix, database, kafka)
    connector.catch_up()
    database.execute(
        "SET SESSION sql_mode = ''",
        "SET SESSION time_zone = '+05:00'",
        f"INSERT INTO a ({INSERTED}) SELECT id + 2, {INSERTED.partition(', ')[2]} FROM a",
    )
    connector.catch_up()
    by = {event["after"]["id"]: event for event in connector.events(f"{database.name}.a")}

    def told(key: int) -> dict[str, object]:
        return {name: value for name, value in by[key]["after"].items() if name not in ("id", "virt", "sto")}

    assert told(1) == told(3)
    assert told(2) == told(4)
    assert [by[key]["op"] for key in (1, 2, 3, 4)] == ["r", "r", "c", "c"]
    assert [by[3]["after"][name] for name in ("virt", "sto")] == [6, 9]
    assert {event["source"]["schema_version"] for event in by.values()} == {1}
    assert is_mysql(database) or told(1)["j"] == '{"b": [1, 2.50], "a": "é"}'
    with nudged(database.url), Running(connector):
        assert connector.here("snapshot", "start", "FILE").returncode == 0
        eventually(lambda: len(connector.events(f"{database.name}.a")) == 8, "read again")
    again = {e["after"]["id"]: e for e in connector.events(f"{database.name}.a") if e["source"]["snapshot"] != "false"}
    assert {key: event["after"] for key, event in again.items()} == {key: event["after"] for key, event in by.items()}
    assert {event["source"]["schema_version"] for event in again.values()} == {1}
