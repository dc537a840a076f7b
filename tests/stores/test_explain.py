"""`cdc explain` on a real topic: committed records of one key, and why the row is as it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.laws import ORDERS, order
from tests.spark.records import Publisher, SourceTable, position


@pytest.fixture
def job(kafka: str, prefix: str, tmp_path: Path) -> Path:
    """A file of a job that follows a table with some history."""
    table = SourceTable(prefix, "orders", ORDERS)
    publisher = Publisher(kafka, prefix)
    publisher.create([table])
    for number, op, status, at in ((5, "r", "new", 10), (5, "u", "paid", 30), (6, "c", "new", 31), (6, "d", "new", 32)):
        publisher.publish(table.event(op, order(number, status), position(at)))
    publisher.publish(table.event("u", order(5, "never"), position(40)), commit=False)
    publisher.publish(table.event("u", order(5, "late"), position(20)))
    file = tmp_path / "apply.yaml"
    job = {
        "name": "explained",
        "source": {"bootstrap_servers": kafka, "topic_prefix": prefix},
        "stores": {"search": {"type": "tantivy", "path": str(tmp_path / "search")}},
        "tables": {"public.orders": {"stores": ["search"]}},
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    file.write_text(json.dumps(job))
    return file


def explain(file: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cdc", "explain", str(file), *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_what_became_of_a_key(job: Path) -> None:
    """Committed records alone, each with its verdict; text for people, JSON for programs, 1 where there is none."""
    done = explain(job, "--table", "public.orders", "--key", "5", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert (found["outcome"], found["key"]) == ("row", {"id": 5})
    assert [(seen["op"], seen["verdict"]) for seen in found["records"]] == [
        ("r", "superseded"),
        ("u", "won"),
        ("u", "late"),
    ]
    assert found["records"][1]["after"]["status"] == "paid"
    assert found["records"][1]["position"] == position(30)

    done = explain(job, "--table", "public.orders", "--key", '{"id": 6}')
    assert done.returncode == 0
    _head, *records, outcome = done.stdout.splitlines()
    assert [line.split()[-1] for line in records[1:]] == ["won", "tombstone"]
    assert "superseded by" in records[0]
    assert outcome == "stores that are up to date do not have this key: its delete won"

    done = explain(job, "--table", "public.orders", "--key", "7")
    assert done.returncode == 1
    assert "has no record of this key" in done.stderr


def test_what_cannot_be_explained(job: Path) -> None:
    for flags, told in (
        (("--table", "public.order", "--key", "5"), "did you mean public.orders?"),
        (("--table", "public.orders", "--key", '{"no": 5}'), "has the key id"),
    ):
        done = explain(job, *flags)
        assert (done.returncode, done.stdout) == (2, "")
        assert told in done.stderr
