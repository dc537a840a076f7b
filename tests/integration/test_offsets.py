"""Positions are exported and imported on real servers: what a server still has, and what it has not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Database, MySQLDatabase
from tests.integration.connector import Connector
from tests.integration.mysql_work import connector_of
from tests.integration.running import Running, standing


def _export(connector: Connector, to: Path) -> dict[str, Any]:
    done = connector.here("offsets", "export", "FILE")
    assert done.returncode == 0, done.stderr
    to.write_text(done.stdout)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_slot_has_let_go_of_it(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """PostgreSQL would begin behind it in silence; and one that runs is not touched."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    assert "has never run" in connector.here("offsets", "show", "FILE").stderr
    connector.catch_up()
    before, now = tmp_path / "before.json", tmp_path / "now.json"
    _export(connector, before)
    postgres18.execute("INSERT INTO t VALUES (2)")
    connector.catch_up()
    assert _export(connector, now)["offset"] == standing(connector).offset
    assert f"lsn {standing(connector).offset['lsn']}" in connector.here("offsets", "show", "FILE").stdout
    place = standing(connector)
    done = connector.here("offsets", "import", "FILE", str(before), "--force")
    assert done.returncode == 1
    assert "cannot be followed from" in done.stderr
    assert "the connector stands at" in done.stderr, "that the slot has let go is no fault of it"
    assert f"cdc snapshot start {connector.file} " in done.stderr
    assert standing(connector) == place
    done = connector.here("offsets", "import", "FILE", str(now), "--json")
    assert (done.returncode, json.loads(done.stdout)["did"]) == (0, "same")
    with Running(connector) as running:
        running.await_following()
        done = connector.here("offsets", "import", "FILE", str(now), "--force")
        assert done.returncode == 1
        assert "is at work" in done.stderr
        assert running.process.poll() is None
    assert connector.here("offsets", "import", "FILE", str(tmp_path / "none.json")).returncode == 2


@pytest.mark.full  # test_a_slot_has_let_go_of_it, and tests/unit/test_mysql_offsets.py
def test_a_binlog_still_has_it(mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Back: the same events once more. Forward again: refused too, since what lies between would not be published."""
    mysql_database.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    connector, topic = connector_of(tmp_path, prefix, mysql_database, kafka, "t"), f"{mysql_database.name}.t"
    connector.catch_up()
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    _export(connector, before)
    mysql_database.execute("INSERT INTO t VALUES (2)", "DELETE FROM t WHERE id = 1")
    connector.catch_up()
    events = connector.events(topic)
    done = connector.here("offsets", "import", "FILE", str(before))
    assert done.returncode == 1
    assert "would be published again" in done.stderr
    done = connector.here("offsets", "import", "FILE", str(before), "--force", "--json")
    assert json.loads(done.stdout)["did"] == "repeat", done.stderr
    connector.catch_up()
    again = connector.events(topic)
    assert [event["source"]["position"] for event in again] == sorted(
        [event["source"]["position"] for event in events] + [event["source"]["position"] for event in events[1:]]
    )
    _export(connector, after)
    assert connector.here("offsets", "import", "FILE", str(before), "--force").returncode == 0
    done = connector.here("offsets", "import", "FILE", str(after))
    assert done.returncode == 1
    assert "would never be published" in done.stderr
    done = connector.here("offsets", "import", "FILE", str(after), "--force")
    assert done.returncode == 0, done.stderr
    assert "cdc snapshot start" in done.stderr
    acts = json.loads(connector.here("audit", "FILE", "--json").stdout)["acts"]
    assert [(act["action"], act["about"]["meant"]) for act in acts] == [
        ("offsets import", meant) for meant in ("repeat", "repeat", "skip")
    ]
    mysql_database.execute("INSERT INTO t VALUES (3)")
    assert connector.here("snapshot", "start", "FILE").returncode == 0
    connector.catch_up()
    rows = [key for (key,) in mysql_database.rows("SELECT id FROM t ORDER BY id")]
    assert sorted(row["id"] for row in connector.fold(topic).values()) == rows
