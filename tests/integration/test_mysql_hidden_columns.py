"""What a rule hides is in no topic, whatever DDL does to its column's name and its table's: on real servers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import MySQLDatabase
from tests.integration.connector import Connector

SECRET = "canary-of-a-hidden-column"
LENT = ("ALTER TABLE {0} CHANGE email old_email TEXT", "ALTER TABLE {0} ADD COLUMN email TEXT AFTER id")


def _hiding(folder: Path, prefix: str, database: MySQLDatabase, kafka: str) -> Connector:
    database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, n INT, email TEXT)",
        f"INSERT INTO t VALUES (1, 1, '{SECRET}'), (2, 2, '{SECRET}')",
    )
    table = f"{database.name}.t"
    rules = {"columns": {table: {"exclude": ["email"]}}}
    made = Connector(
        folder, prefix, database.url, kafka, [table], source=rules, sink={"options": {"compression.type": "none"}}
    )
    made.catch_up()
    return made


def _secrets(connector: Connector, database: MySQLDatabase) -> int:
    return sum(SECRET in str(event) for event in connector.events(f"{database.name}.t"))


@pytest.mark.every_server
@pytest.mark.parametrize(
    "statements",
    [
        [s.format("t") for s in LENT],
        [
            "CREATE TABLE _t_gho LIKE t",
            *(s.format("_t_gho") for s in LENT),
            "INSERT INTO _t_gho (id, n, old_email) SELECT id, n, email FROM t",
            "RENAME TABLE t TO _t_del, _t_gho TO t",
        ],
        ["ALTER TABLE t ADD COLUMN x TEXT", "ALTER TABLE t CHANGE x email2 TEXT, CHANGE email x TEXT, ADD email TEXT"],
    ],
    ids=["lent", "cut_over", "by_turns"],
)
def test_a_column_that_lends_its_name(
    statements: Sequence[str], mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """While nobody looks: it is found in the log's text before rows are read again; following the hint leads on."""
    connector = _hiding(tmp_path, prefix, mysql_database, kafka)
    mysql_database.execute(*statements, "UPDATE t SET n = 7 WHERE id = 1")
    told = re.compile(r"its column (\S+) has, or may have, what must not be published")
    names = ["email"]
    while (run := connector.here("run", "FILE", "--until-caught-up")).returncode:
        (seen,) = told.findall(run.stderr)
        assert _secrets(connector, mysql_database) == 0
        connector.file.write_text(connector.file.read_text().replace(json.dumps(names), json.dumps([*names, seen])))
        names.append(seen)
    assert len(names) > 1
    connector.catch_up()
    assert _secrets(connector, mysql_database) == 0
    assert sorted((row["id"], row["n"]) for row in connector.fold(f"{mysql_database.name}.t").values()) == [
        (1, 7), (2, 2),
    ]  # fmt: skip


def test_columns_that_come_stop_nothing(mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    """By ALTER TABLE, and by the way of tools for online DDL; rows have them."""
    connector = _hiding(tmp_path, prefix, mysql_database, kafka)
    mysql_database.execute(
        "ALTER TABLE t ADD COLUMN a INT DEFAULT 3 FIRST",
        "CREATE TABLE _t_gho LIKE t",
        "ALTER TABLE _t_gho ADD COLUMN (b INT DEFAULT 4, c INT)",
        "INSERT INTO _t_gho (a, id, n, email) SELECT a, id, n, email FROM t",
        "RENAME TABLE t TO _t_del, _t_gho TO t",
        "ALTER TABLE t RENAME COLUMN c TO d",
    )
    connector.catch_up()
    mysql_database.execute(f"INSERT INTO t VALUES (5, 5, 5, '{SECRET}', 5, 5)")
    connector.catch_up()
    fold = connector.fold(f"{mysql_database.name}.t")
    assert sorted(map(str, fold.values())) == sorted(
        str({"a": a, "id": n, "n": n, "b": b, "d": d})
        for a, n, b, d in [(3, 1, 4, None), (3, 2, 4, None), (5, 5, 5, 5)]
    )
    assert _secrets(connector, mysql_database) == 0
