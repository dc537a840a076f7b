"""A server whose packets are smaller than what is in its tables: nothing is read as less than it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.mysql_servers import own_server
from tests.integration.mysql_work import connector_of, is_mysql, same

LARGE = "SET GLOBAL max_allowed_packet = 67108864"
SMALL = "SET GLOBAL max_allowed_packet = 1048576"
ROW = """INSERT INTO a SELECT {}, REPEAT('é', 1100000), REPEAT('日', 400000),
         CONCAT('[', REPEAT('true,', 190000), '"é"]')"""  # it came in one packet; its text has blanks besides


@pytest.mark.parametrize("kind", ["mysql", pytest.param("mariadb", marks=pytest.mark.full)])
def test_values_that_are_longer_than_a_packet(kind: str, kafka: str, prefix: str, tmp_path: Path) -> None:
    """They come whole, but for those that the server itself cuts: MySQL's text of a document. There it stops."""
    with own_server(kind, tmp_path) as own:
        database = own.database
        database.execute(LARGE)
        database.execute(
            "CREATE TABLE a (id INT PRIMARY KEY, l LONGTEXT CHARACTER SET latin1, "
            "w LONGTEXT CHARACTER SET utf16, j JSON)",
            ROW.format(1),
        )
        database.execute(
            "CREATE TABLE b (id INT PRIMARY KEY, n INT, g LONGTEXT AS (REPEAT('x', n)) VIRTUAL)",
            "INSERT INTO b (id, n) VALUES (1, 3), (2, 2000000)",
        )
        connector = connector_of(tmp_path, prefix, database, kafka, "a")
        other = connector_of(tmp_path, f"{prefix}o", database, kafka, "b")
        database.execute(SMALL)
        run = other.here("run", "FILE", "--until-caught-up")
        assert run.returncode == 1
        assert "reading table dev.b: a value is longer than the server's max_allowed_packet" in run.stderr
        if is_mysql(database):
            run = connector.here("run", "FILE", "--until-caught-up")
            assert run.returncode == 1
            assert "reading table dev.a: a value is longer than the server's max_allowed_packet" in run.stderr
            database.execute("SET GLOBAL max_allowed_packet = 1073741824")
        connector.catch_up()
        same(connector, database, "a")
        database.execute(LARGE)
        database.execute(ROW.format(2), SMALL)
        connector.catch_up()
        database.execute(LARGE)
        same(connector, database, "a")
