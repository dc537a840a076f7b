"""A connector that writes a file of JSON lines: killed at any time, cut, moved, asked for what it does not have."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from cdc.files.position_file import PositionFile
from tests.conftest import Database
from tests.integration import in_process
from tests.integration.file_connector import FileConnector
from tests.integration.running import Writer, eventually


class Lines(FileConnector):
    """A connector's file, and what it has written."""

    def __init__(self, folder: Path, url: str, tables: list[str], name: str = "lines", **sink: Any) -> None:
        kind = "mysql" if url.startswith("mysql:") else "postgres"
        source = {"type": kind, "url": url, "tables": tables}
        super().__init__(folder, source, "changes.jsonl", name, type="jsonl", **sink)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.read_bytes().splitlines()]

    def fold(self) -> list[dict[str, Any]]:
        """The rows that a reader ends with; every event of the log is there once."""
        rows: dict[str, dict[str, Any]] = {}
        seen = set()
        for event in self.events():
            if event["transaction"] is not None:
                at = (event["transaction"]["id"], event["transaction"]["total_order"])
                assert at not in seen
                seen.add(at)
            if event["op"] == "t":
                rows.clear()
            elif event["op"] == "d":
                rows.pop(json.dumps(event["key"]), None)
            else:
                rows[json.dumps(event["key"])] = filled(event["after"], rows.get(json.dumps(event["key"]), {}))
        return sorted(rows.values(), key=lambda row: row["id"])


def filled(row: Mapping[str, Any], was: Mapping[str, Any]) -> dict[str, Any]:
    return {name: was[name] if value == {"__cdc": "unchanged"} else value for name, value in row.items()}


def test_killed_at_any_time_it_has_every_event_once(postgres18: Database, tmp_path: Path) -> None:
    """While the table is written; wide values that updates leave out stay."""
    postgres18.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, v text)",
        "ALTER TABLE t ALTER v SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT g, 0, repeat('v', 3000) FROM generate_series(1, 40) g",
    )
    lines, at = Lines(tmp_path, postgres18.url, ["public.t"]), random.Random(3)
    writer = Writer(postgres18, "t", keys=40)
    writer.start()
    for _ in range(4):
        running = lines.start()
        eventually(lambda: lines.out.exists() and lines.out.stat().st_size, "something is written")
        time.sleep(0.3 + at.random() / 2)
        running.send_signal(signal.SIGKILL)
        running.wait()
    writer.stop()
    with lines.out.open("ab") as torn:
        torn.write(b'{"half of a li')
    lines.catch_up()
    rows = [
        dict(zip(("id", "n", "v"), row, strict=True)) for row in postgres18.rows("SELECT id, n, v FROM t ORDER BY id")
    ]
    assert lines.fold() == rows
    read = sum(event["op"] == "r" for event in lines.events())
    assert duckdb.sql(f"SELECT count(*) FROM read_json('{lines.out}') WHERE op = 'r'").fetchall() == [(read,)]


def test_a_file_that_is_not_as_it_was_left_is_refused(postgres18: Database, tmp_path: Path) -> None:
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    lines = Lines(tmp_path, postgres18.url, ["public.t"])
    lines.out.write_text("somebody's\n")
    done = lines.cdc("run", "FILE", "--until-caught-up")
    assert done.returncode == 4
    assert "changes.jsonl is not as this connector has left it: it was there before" in done.stderr
    assert lines.out.read_text() == "somebody's\n"
    lines.out.unlink()
    lines.catch_up()
    whole = lines.out.read_bytes()
    lines.out.write_bytes(whole[:-5])
    done = lines.cdc("run", "FILE", "--until-caught-up")
    assert (done.returncode, lines.out.read_bytes()) == (4, whole[:-5])
    assert "lines were taken out of it" in done.stderr
    lines.out.write_bytes(whole)
    other = Lines(tmp_path, postgres18.url, ["public.t"], name="other")
    done = other.cdc("run", "FILE", "--until-caught-up")
    assert done.returncode == 4
    assert "is written by connector lines" in done.stderr or "config changed" in done.stderr
    assert lines.out.read_bytes() == whole


def test_truncates_messages_and_other_commands(postgres18: Database, tmp_path: Path) -> None:
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    lines = Lines(tmp_path, postgres18.url, ["public.t"])
    lines.catch_up()
    postgres18.execute(
        "BEGIN; INSERT INTO t VALUES (2); SELECT pg_logical_emit_message(true, 'said', 'x'); TRUNCATE t; COMMIT",
        "INSERT INTO t VALUES (3)",
    )
    lines.catch_up()
    told = [(event["op"], event["key"]) for event in lines.events()]
    want = [("r", {"id": 1}), ("c", {"id": 2}), ("m", {"prefix": "said"}), ("t", None), ("c", {"id": 3})]
    assert told == want
    for words in (["status", "FILE"], ["tail", "FILE"], ["pause", "FILE"]):
        done = lines.cdc(*words)
        assert done.returncode == 2
        assert "sink.type is jsonl: this connector has no topics" in done.stderr


def test_what_it_needs_can_be_asked_for(postgres18: Database, tmp_path: Path) -> None:
    """`cdc check` asks the database and looks at the file, as `cdc run` finds them; it makes nothing."""

    def checked() -> tuple[int, str]:
        done = lines.cdc("check", "FILE")
        assert not done.stderr
        return done.returncode, done.stdout

    postgres18.execute("CREATE TABLE t (id int)")
    lines = Lines(tmp_path, postgres18.url, ["public.t"])
    code, said = checked()
    assert code == 1
    assert "table public.t has no primary key" in said
    postgres18.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
    code, said = checked()
    assert code == 0, said
    assert f"file {lines.out} will be made" in said
    assert list(tmp_path.iterdir()) == [lines.file]
    assert not postgres18.rows("SELECT FROM pg_replication_slots WHERE slot_name = 'cdc_lines'")
    lines.out.write_text("somebody's\n")
    assert f"file {lines.out} is not as this connector has left it: it was there before" in checked()[1]
    lines.out.unlink()
    postgres18.execute("INSERT INTO t VALUES (1)")
    lines.catch_up()
    code, said = checked()
    assert code == 0, said
    assert f"file {lines.out} is there, and is gone on with" in said
    assert "the log can be followed from" in said
    held = lines.out.read_bytes()
    lines.out.unlink()
    code, said = checked()
    assert code == 1
    assert f"file {lines.out} is not as this connector has left it: lines were taken out of it" in said
    lines.out.write_bytes(held)
    file = lines.file.read_text()
    lines.file.write_text(file.replace("lines", "others"))
    code, said = checked()
    assert code == 1
    assert f"file {lines.out} is written by connector lines" in said
    assert "slot missing" not in said, "that it has none is no gap"
    lines.file.write_text(file)
    postgres18.execute("SELECT pg_drop_replication_slot('cdc_lines')")
    code, said = checked()
    assert code == 1
    assert "slot missing: cdc_lines is gone" in said
    assert "another sink.path and another name begin with a new snapshot" in said
    assert "cdc snapshot start" not in said, "it refuses a connector without topics"
    position = PositionFile(lines.out.with_name("changes.jsonl.pos"))
    contents = position.read()
    assert contents.state is not None
    identity = {**contents.state.identity, "system_identifier": "7000000000000000001"}
    position.write(replace(contents, state=replace(contents.state, identity=identity)))
    position.close()
    for said in (checked()[1], lines.cdc("run", "FILE", "--until-caught-up").stderr):
        assert "another source: connector lines stands at a position of system identifier 7000000000000000001" in said
        assert "this one has taken its place (a new major version, a migration): another sink.path and" in said
        assert "cdc snapshot start" not in said
    lines = Lines(tmp_path, postgres18.url, ["public.t"], path=str(tmp_path / "no" / "changes.jsonl"))
    assert "changes.jsonl cannot be written: its folder is not there" in checked()[1]


@pytest.mark.parametrize(
    ("sink", "what"),
    [
        ({"path": "./"}, "path: “./” is no file"),
        ({"format": "flat"}, "unknown key"),
        ({"bootstrap_servers": "x"}, "unknown key"),
    ],
)
def test_what_such_a_file_cannot_say(sink: dict[str, Any], what: str, tmp_path: Path) -> None:
    lines = Lines(tmp_path, "postgresql://127.0.0.1:1/x", ["public.t"], **sink)
    done = in_process.cdc(["run", str(lines.file)], lines.environment)
    assert done.returncode == 2
    assert what in done.stderr
