"""`cdc.follow` of a database on real servers: programs that are killed, positions that do not fit, what is refused."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import cdc
from tests.conftest import Database
from tests.integration.running import Writer, eventually

HOME = Path(__file__).parents[2]
EXAMPLE = HOME / "examples" / "copy_to_sqlite.py"


def _told(following: Any) -> list[tuple[str, Any]]:
    found = []
    for transaction in following:
        found += [(change.op, change.key and change.key["id"]) for change in transaction]
        transaction.done()
    return found


def _follow(url: str, position: Path, *tables: str, create: bool = True) -> list[tuple[str, Any]]:
    with cdc.follow(
        url, tables=tables or ["public.t"], position=position, create=create, until_caught_up=True
    ) as following:
        return _told(following)


def _example(url: str, path: Path, *more: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, str(EXAMPLE), url, "public.t", str(path), *more]
    environment = {**os.environ, "PYTHONPATH": str(HOME)}
    return subprocess.Popen(words, cwd=path.parent, env=environment, stderr=subprocess.PIPE)


def _copied(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as store:
        try:
            rows = store.execute("SELECT value FROM rows").fetchall()
        except sqlite3.OperationalError:  # it has not begun
            return []
    return sorted((json.loads(value) for (value,) in rows), key=lambda row: row["id"])


def test_the_example_has_every_row_however_often_it_is_killed(postgres18: Database, tmp_path: Path) -> None:
    """By SIGKILL, at any time, while the table is written; a wide value that updates leave out stays."""
    postgres18.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, v text)",
        "ALTER TABLE t ALTER v SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT g, 0, repeat('v', 3000) FROM generate_series(1, 40) g",
    )
    path, at = tmp_path / "copy.db", random.Random(7)
    writer = Writer(postgres18, "t", keys=40)
    writer.start()
    for _ in range(5):
        program = _example(postgres18.url, path)
        if at.random() < 0.6:
            eventually(lambda: _copied(path), "something is copied")
        time.sleep(at.random() / 2)
        program.send_signal(signal.SIGKILL)
        program.wait()
        assert program.stderr is not None
        program.stderr.close()
    writer.stop()
    program = _example(postgres18.url, path, "--once")
    _, said = program.communicate(timeout=120)
    assert program.returncode == 0, said.decode()
    rows = [
        dict(zip(("id", "n", "v"), row, strict=True)) for row in postgres18.rows("SELECT id, n, v FROM t ORDER BY id")
    ]
    assert _copied(path) == rows


def test_what_is_done_is_not_given_again_and_the_slot_is_told_of_no_more(postgres18: Database, tmp_path: Path) -> None:
    position = tmp_path / "some.pos"
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    assert _follow(postgres18.url, position) == [("r", 1)]
    for number in (2, 3, 4):
        postgres18.execute(f"INSERT INTO t VALUES ({number})")
    with cdc.follow(postgres18.url, tables=["public.t"], position=position, until_caught_up=True) as following:
        given = list(following)
        assert [change.key for transaction in given for change in transaction] == [{"id": 2}, {"id": 3}, {"id": 4}]
        given[0].done()
        given[1].done()
        given[0].done()  # which takes nothing back
    ((behind,),) = postgres18.rows(
        "SELECT confirmed_flush_lsn < pg_current_wal_lsn() FROM pg_replication_slots WHERE slot_name = 'cdc_some'"
    )
    assert behind
    assert _follow(postgres18.url, position) == [("c", 4)]
    with pytest.raises(cdc.OperatorError, match="is closed"):
        given[2].done()


def test_a_table_that_is_back_is_told_as_emptied_first(postgres18: Database, tmp_path: Path) -> None:
    position = tmp_path / "back.pos"
    postgres18.execute("CREATE TABLE other (id int PRIMARY KEY)")
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    _follow(postgres18.url, position, "public.t", "public.other")
    postgres18.execute("DELETE FROM t WHERE id = 2")
    assert _follow(postgres18.url, position, "public.other") == []
    told = _follow(postgres18.url, position, "public.t", "public.other")
    assert told[told.index(("t", None)) :] == [("t", None), ("r", 1)]


def test_an_idle_table_holds_no_log(postgres18: Database, tmp_path: Path) -> None:
    """Once all is done the slot goes on with what others write; before that it does not."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE busy (v text)", "INSERT INTO t VALUES (1)")
    slot = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'cdc_idle'"
    write = "INSERT INTO busy SELECT repeat('x', 100) FROM generate_series(1, 2000)"
    with cdc.follow(postgres18.url, tables=["public.t"], position=tmp_path / "idle.pos", create=True) as following:
        transaction = next(following)
        ((held,),) = postgres18.rows(slot)
        postgres18.execute(write)
        ((end,),) = postgres18.rows("SELECT pg_current_wal_lsn()")
        passed = f"SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots WHERE slot_name = 'cdc_idle'"
        time.sleep(1.5)
        assert postgres18.rows(slot) == [(held,)]
        transaction.done()
        postgres18.execute(write)
        eventually(lambda: postgres18.rows(passed) == [(True,)], "the slot is told of what others have written")


def test_nothing_is_made_without_create(postgres18: Database, tmp_path: Path) -> None:
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with pytest.raises(cdc.OperatorError, match=r"no\.pos has no position.*create=True") as told:
        _follow(postgres18.url, tmp_path / "no.pos", create=False)
    assert "makes publication cdc_no and slot cdc_no" in str(told.value)
    assert postgres18.rows("SELECT 1 FROM pg_replication_slots WHERE slot_name = 'cdc_no'") == []
    assert postgres18.rows("SELECT 1 FROM pg_publication WHERE pubname = 'cdc_no'") == []
    assert not (tmp_path / "no.pos").exists()


def test_a_position_of_something_else_is_refused(postgres18: Database, tmp_path: Path) -> None:
    """Another slot, another database, another text; and one that is in use."""
    position = tmp_path / "mine.pos"
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE DATABASE other_of_mine")
    _follow(postgres18.url, position)
    kept = position.read_bytes()
    other = postgres18.url.rsplit("/", 1)[0] + "/other_of_mine"
    Database(other, "other_of_mine").execute("CREATE TABLE t (id int PRIMARY KEY)")
    try:
        with pytest.raises(cdc.OperatorError, match=r"another source: .* stands at a position of database"):
            _follow(other, position)
    finally:
        postgres18.execute("DROP DATABASE other_of_mine WITH (FORCE)")
    for _ in range(2):  # it lets go of the file
        with pytest.raises(cdc.OperatorError, match=r"under the name mine, not yours\n.*name=\"mine\""):
            cdc.follow(postgres18.url, tables=["public.t"], position=position, name="yours")
    assert position.read_bytes() == kept
    with (
        cdc.follow(postgres18.url, tables=["public.t"], position=position),
        pytest.raises(cdc.OperatorError, match="is in use"),
    ):
        cdc.follow(postgres18.url, tables=["public.t"], position=position)
    for text in (kept[:100], b"", b"{}", kept.replace(b'"through": ""', b'"through": "0"')):
        position.write_bytes(text)
        with pytest.raises(cdc.OperatorError, match="is no position file, or it is damaged"):
            _follow(postgres18.url, position)
        assert position.read_bytes() == text


def test_a_slot_that_is_lost_is_a_gap(postgres18: Database, tmp_path: Path) -> None:
    position = tmp_path / "lost.pos"
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)")
    _follow(postgres18.url, position)
    postgres18.execute("SELECT pg_drop_replication_slot('cdc_lost')", "INSERT INTO t VALUES (1)")
    with pytest.raises(cdc.GapError) as told:
        _follow(postgres18.url, position)
    assert "a position file of another name, with create=True" in str(told.value)
    assert _follow(postgres18.url, tmp_path / "found.pos") == [("r", 1)]


def test_a_program_that_goes_away_leaves_nothing_behind(postgres18: Database, tmp_path: Path) -> None:
    """A loop that is left: the slot is free again, and the same process may go on."""
    position = tmp_path / "left.pos"
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    for _ in cdc.follow(postgres18.url, tables=["public.t"], position=position, create=True):
        break
    slot = "SELECT active FROM pg_replication_slots WHERE slot_name = 'cdc_left'"
    eventually(lambda: postgres18.rows(slot) in ([], [(False,)]), "nobody has the slot")
    assert sorted(_follow(postgres18.url, position)) == [("r", 1), ("r", 2)]


def test_a_table_without_a_key_is_given_one(postgres18: Database, tmp_path: Path) -> None:
    """As in a connector's file."""
    postgres18.execute("CREATE TABLE t (id int NOT NULL, v int)", "INSERT INTO t VALUES (1, 1)")
    with pytest.raises(cdc.OperatorError, match="has no primary key"):
        _follow(postgres18.url, tmp_path / "keyless.pos", "public.t")
    postgres18.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    keyed = {"table": "public.t", "key": ["id"]}
    with cdc.follow(
        postgres18.url, tables=[keyed], position=tmp_path / "keyed.pos", create=True, until_caught_up=True
    ) as following:
        assert [change.key for transaction in following for change in transaction] == [{"id": 1}]


@pytest.mark.full
def test_a_program_may_be_slower_than_the_server_s_patience(postgres18: Database, tmp_path: Path) -> None:
    """While it looks at a transaction the server is answered for it."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    impatient = f"{postgres18.url}?options=-c%20wal_sender_timeout%3D4s"
    with cdc.follow(impatient, tables=["public.t"], position=tmp_path / "slow.pos", create=True) as following:
        assert [change.key for change in next(following)] == [{"id": 1}]
        for number in (2, 3, 4):
            postgres18.execute(f"INSERT INTO t VALUES ({number})", "SELECT pg_sleep(0.3)")
        found = []
        while len(found) < 3:
            found += [change.key for change in next(following)]
            time.sleep(6)
        assert found == [{"id": 2}, {"id": 3}, {"id": 4}]


def test_a_copy_of_the_process_does_not_wait_for_ever(postgres18: Database, tmp_path: Path) -> None:
    """A worker made by fork has no thread that follows: it is told so, and the other goes on."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with cdc.follow(postgres18.url, tables=["public.t"], position=tmp_path / "t.pos", create=True) as following:
        next(following).done()
        told, tell = os.pipe()
        copy = os.fork()
        if copy == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(10)
            try:
                next(following)
            except cdc.OperatorError as exc:
                os.write(tell, exc.message.encode())
            following.close()
            os._exit(0)
        os.close(tell)
        assert b"begun in another process" in os.read(told, 1000)
        os.close(told)
        assert os.waitpid(copy, 0)[1] == 0
        postgres18.execute("INSERT INTO t VALUES (2)")
        assert [change.key for change in next(following)] == [{"id": 2}]


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"source": "postgresql://here/db", "tables": "a.b", "position": "1.pos"}, "cannot be named after"),
        ({"source": "redis://here", "tables": ["a.b"], "position": "x.pos"}, "neither a database's URL nor"),
        (
            {"source": "postgresql://here/db", "tables": ["a.b"], "position": "x.pos", "name": "a b"},
            "^name: “a b” is not",
        ),
        ({"source": "postgresql://here/db", "tables": ["a.b"]}, "needs tables and position"),
        ({"source": "connector.yaml", "position": "x.pos"}, "for a database's URL, not for a connector's file"),
        ({"source": "connector.yaml", "since": "yesterday"}, "is no instant|cannot be read"),
    ],
)
def test_what_makes_no_sense(given: dict[str, Any], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = given.pop("source")
    with pytest.raises(cdc.ConfigError, match=what):
        cdc.follow(source, **given)
