"""What holds of triggers on each kind of database, as tests of each call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import cdc.capture.control.commands
import cdc.capture.pipeline
import connectors.triggers.following
from cdc.capture.control.signals import Command
from cdc.config.findings import Level
from cdc.model.errors import ConfigError, GapError, OperatorError
from cdc.testing import Faults, Killed
from connectors.triggers import check, lag, log_end
from connectors.triggers.following import TriggerSource
from connectors.triggers.source import open_source
from tests.integration import in_process
from tests.integration.sqlite_shop import Shop

POINTS = [
    "sink.commit",
    *(pytest.param(f"sink.{p}", marks=pytest.mark.full) for p in ("write", "commit.answer", "commit.delayed")),
]


def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let looks and commands come at once."""
    monkeypatch.setattr(cdc.capture.pipeline, "RETRY_FIRST_S", 0.0)
    monkeypatch.setattr(cdc.capture.control.commands, "COMMANDS_S", 0.0)
    for name in ("LOOK_S", "LOOK_SHARE", "FORGET_S", "NEW_EVERY_S", "_NEW_SHARE"):
        monkeypatch.setattr(connectors.triggers.following, name, 0.0)


@contextmanager
def transaction(shop: Shop, *statements: str) -> Iterator[Any]:
    """One that is open inside the block, unless it is committed there."""
    with closing(shop.connect()) as connection:
        shop.begin(connection)
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            yield cursor
        connection.rollback()


def snapshot_then_changes(shop: Shop, connector: str) -> None:
    """Events have the whole row before and after; a key change is a delete and a create."""
    assert [event["op"] for event in shop.events()] == ["r"] * 4
    shop.do("UPDATE orders SET status = 'paid' WHERE id = 1", "DELETE FROM orders WHERE id = 2",
            "UPDATE orders SET id = 30 WHERE id = 3")  # fmt: skip
    shop.run()
    update, delete, away, there = shop.events()[4:]
    assert (update["before"]["status"], update["after"]["status"]) == ("a", "paid")
    assert (delete["op"], delete["before"]["status"], delete["after"]) == ("d", "b", None)
    assert [(event["op"], (event["after"] or event["before"])["id"]) for event in (away, there)] == [
        ("d", 3), ("c", 30),
    ]  # fmt: skip
    assert update["source"]["connector"] == connector
    assert int(update["source"]["change"]) < int(delete["source"]["change"])
    assert shop.fold() == shop.rows()
    shop.run()


def tables_that_come_are_taken_up(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, locks: bool
) -> None:
    """While it runs: none of their rows is missing; one that is locked, refused or dropped stops no other."""
    monkeypatch.setattr(connectors.triggers.following, "_NEW_LOCKS_S", 0.05)
    opened, find = threading.Event(), TriggerSource._new
    monkeypatch.setattr(TriggerSource, "_new", lambda source: find(source) if opened.is_set() else [])

    def folds(*names: str) -> bool:
        return all(shop.fold(name) == shop.rows(f"SELECT * FROM {name} ORDER BY id") for name in names)

    with ExitStack() as open_until, shop.running() as running:
        running.eventually(lambda: len(shop.events()) == 4)
        shop.do(*(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, n INT)" for name in ("later", "held", "passing")))
        shop.do("CREATE TABLE keyless (n INT)", "INSERT INTO later VALUES (1, 1), (2, 2)")
        if locks:
            holder = open_until.enter_context(transaction(shop, "INSERT INTO held VALUES (1, 1)"))
        opened.set()
        shop.do("INSERT INTO later VALUES (3, 3)", "UPDATE later SET n = 5 WHERE id = 1")
        running.eventually(lambda: folds("later", "passing"))
        shop.do("INSERT INTO later VALUES (4, 4)", "DELETE FROM later WHERE id = 2", "DELETE FROM orders WHERE id = 1")
        running.eventually(lambda: folds("later", "orders"))
        if locks:
            assert "triggers cannot be made yet" in caplog.text
            assert "held" not in {table.partition(".")[2] for table in shop.state().tables}
            holder.connection.commit()
        shop.do("INSERT INTO held VALUES (2, 2)")
        running.eventually(lambda: folds("held"))
        shop.do("DROP TABLE passing")
        running.eventually(lambda: "passing was dropped" in caplog.text)
        shop.do("CREATE TABLE passing (id INTEGER PRIMARY KEY, n INT)", "INSERT INTO passing VALUES (7, 7)")
        shop.do("UPDATE orders SET n = 3")
        running.eventually(lambda: folds("passing", "orders", "later"))
    assert running.raised is None
    told = [record.getMessage() for record in caplog.records if "keyless" in record.getMessage()]
    assert len(told) < 10, "it is said once by each session"
    assert any("no primary key" in line for line in told)


def what_cannot_be_captured_any_more_stops_no_other(shop: Shop, schema: str, *, away: str, back: str) -> None:
    """A table that loses its key, and one that is dropped, at a start and while it runs, are read once they are right.

    `away` and `back` are statements that take the key of table orders away, and give it back.
    """
    made = "CREATE TABLE third (id INTEGER PRIMARY KEY, n INT)"
    shop.do("CREATE TABLE other (id INTEGER PRIMARY KEY, n INT)", made, "INSERT INTO third VALUES (1, 1), (2, 2)")
    shop.tables = tuple(f"{schema}.{name}" for name in ("orders", "other", "third"))
    shop.run()
    shop.do(*away.split("; "), "DELETE FROM orders WHERE id = 1", "DROP TABLE third", "INSERT INTO other VALUES (1, 1)")
    shop.run()
    assert shop.fold("other") == [{"id": 1, "n": 1}]
    found = {f.about: f.level for f in check.check(shop.config, shop.state()).findings}
    assert {found[f"table {schema}.{name}"] for name in ("orders", "third")} == {Level.WARNING}
    with shop.running() as running:
        shop.do(*back.split("; "), made, "INSERT INTO third VALUES (2, 3)")
        running.eventually(lambda: _folds(shop, "orders", "other", "third"))
        shop.do(*away.split("; "), "DELETE FROM orders WHERE id = 2", "DROP TABLE third")
        shop.do("INSERT INTO other VALUES (2, 2)")
        running.eventually(lambda: _folds(shop, "other"))
        shop.do(*back.split("; "), made)
        running.eventually(lambda: _folds(shop, "orders", "other", "third"))
    assert running.raised is None


def one_that_is_locked_at_a_start_holds_up_no_other(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, alter: str
) -> None:
    """Its triggers are to be made again, and who writes to it is not done: the others go on, and it comes later.

    `alter` alters table other, so that what was written down of it before cannot be read; the tables are orders, other.
    """
    for name in ("LOCKS_S", "_NEW_LOCKS_S", "_ASIDE_EVERY_S", "_ASIDE_TOLD_S"):
        monkeypatch.setattr(connectors.triggers.following, name, 0.05)

    folds, told = partial(_folds, shop), partial(_told_aside, caplog)
    shop.run()
    shop.do(alter)
    with transaction(shop, "DELETE FROM other WHERE id = 1") as holder:
        for n in range(2):  # and a restart meanwhile, with one more
            with shop.running() as running:
                shop.do(f"UPDATE orders SET n = {n + 5}", f"DELETE FROM orders WHERE id = {n + 1}")
                running.eventually(lambda: folds("orders"))
                running.eventually(lambda before=n: told() > before)
                shop.do(f"INSERT INTO orders (id, status) VALUES ({n + 7}, 'new')")
                running.eventually(lambda: folds("orders"))
                if n:
                    running.eventually(lambda: folds("orders", "more"))
                    assert "still set aside" in caplog.text
                    assert shop.schema + ".other" in lag.standing(shop.config, shop.state())["changes"]["set_aside"]
                    holder.connection.commit()
                    running.eventually(lambda: folds("other", "more"))
            assert running.raised is None
            shop.do("CREATE TABLE IF NOT EXISTS more (id INT PRIMARY KEY)", f"INSERT INTO more VALUES ({n})")
            shop.tables = (*shop.tables[:2], f"{shop.schema}.more")
    assert told() == 2
    shop.run()
    assert folds("orders", "other", "more")
    assert lag.standing(shop.config, shop.state())["changes"]["set_aside"] == []


def it_has_not_caught_up_before_it_has_one_that_is_locked(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, alter: str
) -> None:
    """Nor waits for it where it is dropped. `alter` as above."""
    for name in ("LOCKS_S", "_NEW_LOCKS_S", "_ASIDE_EVERY_S"):
        monkeypatch.setattr(connectors.triggers.following, name, 0.05)
    shop.run()
    for time, ends in enumerate(("COMMIT", "ROLLBACK; DROP TABLE other")):
        monkeypatch.setattr(connectors.triggers.following, "_ASIDE_EVERY_S", time * 60.0)
        shop.do(alter)
        with transaction(shop, "DELETE FROM other WHERE id = 2") as holder, ThreadPoolExecutor(1) as thread:
            done = thread.submit(shop.run)
            while _told_aside(caplog) <= time:
                assert not done.done(), "it has not caught up with that table"
            for statement in ends.split("; "):
                holder.execute(statement)
            shop.do("DELETE FROM orders WHERE id = 3")
            done.result()
        assert _folds(shop, *("orders", "other")[: 2 - time])


def _folds(shop: Shop, *names: str) -> bool:
    return all(shop.fold(name) == shop.rows(f"SELECT * FROM {name} ORDER BY id") for name in names)


def _told_aside(caplog: pytest.LogCaptureFixture) -> int:
    return caplog.text.count("other is set aside")


def one_that_is_captured_no_more_and_locked_holds_up_no_other(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has written to it is not done, and what it has is taken away; the tables are orders, other."""
    for name in ("LOCKS_S", "_NEW_LOCKS_S"):
        monkeypatch.setattr(connectors.triggers.following, name, 0.05)
    shop.run()
    with transaction(shop, "DELETE FROM other WHERE id = 1"):
        shop.tables = shop.tables[:1]
        shop.do("UPDATE orders SET n = 5")
        shop.run()
        assert shop.fold() == shop.rows()
    shop.run()


def an_old_transaction_that_changes_a_row_last_comes_last(shop: Shop, horizon: Callable[[], None]) -> None:
    """The younger one has committed between its two statements, and one between their ids is open.

    `horizon` is called once the old one has committed, before anything of the two was given.
    """
    with (
        transaction(shop, "UPDATE orders SET n = 1 WHERE id = 1") as old,
        transaction(shop, "UPDATE orders SET n = 3 WHERE id = 3") as between,
    ):
        shop.do("UPDATE orders SET status = 'younger' WHERE id = 2")
        old.execute("UPDATE orders SET status = 'last' WHERE id = 2")
        old.connection.commit()
        horizon()
        shop.run()
        assert [row["status"] for row in shop.fold() if row["id"] == 2] == ["last"]
        between.connection.commit()
    shop.run()
    assert shop.fold() == shop.rows()
    assert [e["after"]["status"] for e in shop.events() if e["op"] == "u" and e["after"]["id"] == 2] == [
        "younger", "last",
    ]  # fmt: skip


def a_gap_is_to_be_closed(shop: Shop, said: str, *, by_check: bool = True) -> None:
    """It is told, and closed as its hint says: no row is in the topic that the source does not have."""
    with pytest.raises(GapError, match=said) as caught:
        shop.run()
    assert "--after-gap" in (caught.value.hint or "")
    findings = check.check(shop.config, shop.state()).findings
    assert not by_check or any(f.level is Level.ERROR and said in f.what for f in findings)
    shop.ask(Command(after_gap=True, tables=()))
    shop.run()
    assert shop.fold() == shop.rows()


def what_cannot_be_followed_is_a_verdict(shop: Shop, script: str, said: str, *, by_check: bool = True) -> None:
    """With a way out, which is followed: all tables are read again, and what has gone is deleted."""
    shop.do("UPDATE orders SET status = 'x' WHERE id = 1")
    shop.run()
    shop.do("DELETE FROM orders WHERE id = 2", "DELETE FROM orders WHERE id = 3", script)
    a_gap_is_to_be_closed(shop, said, by_check=by_check)
    shop.do("UPDATE orders SET n = 7")
    shop.run()
    assert shop.fold() == shop.rows()
    assert shop.state().epoch == 2


def what_an_older_version_made_is_gone_on_with(shop: Shop, older: str) -> None:
    """And what was written down meanwhile is told. `older` makes it of what is there."""
    shop.do(older, "UPDATE orders SET n = 5 WHERE id = 1", "DELETE FROM orders WHERE id = 2")
    assert not [f for f in check.check(shop.config, shop.state()).findings if f.level is Level.ERROR]
    shop.run()
    assert shop.fold() == shop.rows()
    assert [event["op"] for event in shop.events()].count("d") == 1
    for n in range(2):
        shop.do(f"UPDATE orders SET n = {n}")
        shop.run()
    assert shop.fold() == shop.rows()
    assert not [f for f in check.check(shop.config, shop.state()).findings if f.level is not Level.OK]


def killed_at_any_step(shop: Shop, point: str, runs: Iterable[int], others: Callable[[int], str]) -> None:
    """The application writes between the runs; `others` gives which rows it updates."""
    for time in runs:
        shop.do(f"UPDATE orders SET n = {time} WHERE {others(time)}", f"DELETE FROM orders WHERE id = {time}",
                f"INSERT INTO orders (id, status) VALUES ({time + 100}, 'new')")  # fmt: skip
        try:
            shop.run(Faults((point, time), error=Killed))
        except Killed:
            continue


def each_event_came_once(shop: Shop) -> None:
    """And their fold is the table."""
    shop.run()
    assert shop.fold() == shop.rows()
    changes = [event["source"]["change"] for event in shop.events() if event["transaction"] is not None]
    assert len(changes) == len(set(changes))
    each_event_follows_the_one_before(shop, "orders")


def each_event_follows_the_one_before(shop: Shop, *tables: str) -> None:
    """Nothing is told that was told before: a change begins with the row that is there, and rows are read once."""
    for table in tables:
        rows: dict[Any, dict[str, Any]] = {}
        for event in shop.events(table):
            before, after, op = event["before"], event["after"], event["op"]
            key = (after or before)["id"]
            assert rows.pop(key, None) == before, f"{table} {key} at {event['source']['position']}: {op}"
            if after is not None:
                rows[key] = after
        assert [rows[key] for key in sorted(rows)] == shop.rows(f"SELECT * FROM {table} ORDER BY id")


def two_tables_in_the_order_of_writing(shop: Shop) -> None:
    """Of a transaction of 9,000 rows that has written to one, then to the other, then to the first again."""
    shop.run()
    events = [*shop.events("orders"), *shop.events("other")]
    assert len(events) == 9_000
    assert len({event["transaction"]["id"] for event in events}) == 1
    assert sorted(event["transaction"]["total_order"] for event in events) == list(range(1, 9_001))
    told = sorted(events, key=lambda event: event["transaction"]["total_order"])
    assert [e["source"]["table"] for e in told] == ["orders"] * 3000 + ["other"] * 3000 + ["orders"] * 3000
    assert shop.fold() == shop.rows()


def status_and_token_and_check_of_one_that_has_run(shop: Shop) -> int:
    """Where the changes end, and that a start would go on; returns that end."""
    assert {finding.level for finding in check.check(shop.config, shop.state()).findings} == {Level.OK}
    shop.do("UPDATE orders SET n = 1")
    behind = log_end.end(shop.config, shop.state())
    standing = lag.standing(shop.config, shop.state())
    assert standing["log_end_number"] == behind
    assert shop.state().commit < behind
    shop.run()
    assert shop.state().commit >= behind
    with closing(open_source(shop.config)) as source:
        source.connect()
        with pytest.raises(OperatorError, match="re-made or foreign"):
            source.unused()
    return behind


def a_long_name_is_refused(shop: Shop) -> None:
    """Names of triggers are of the connector's."""
    with pytest.raises(ConfigError, match="too long"):
        open_source(replace(shop.config, name="c" * 40))


@contextmanager
def writing(*writers: Callable[[threading.Event], None]) -> Iterator[None]:
    """Let threads write inside the block; each is called with what is set when it is to end."""
    over = threading.Event()
    threads = [threading.Thread(target=writer, args=(over,)) for writer in writers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


class FileRun:
    """A connector into a file of JSON lines, as a process."""

    def __init__(self, shop: Shop, folder: Path, tables: Sequence[str]) -> None:
        self.out, self._file = folder / "changes.jsonl", folder / "connector.yaml"
        source = {"type": "triggers", "url": shop.url, "tables": [*tables]}
        self._file.write_text(
            json.dumps({"name": "c", "source": source, "sink": {"type": "jsonl", "path": str(self.out)}})
        )

    def killed(self, behind: int) -> None:
        """Run it and kill it, once it has written so many bytes."""
        words = [sys.executable, "-m", "cdc", "run", str(self._file)]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        running = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL)
        size = self.out.stat().st_size if self.out.exists() else 0
        pause = threading.Event()
        while running.poll() is None and (not self.out.exists() or self.out.stat().st_size <= size + behind):
            pause.wait(0.01)
        running.kill()
        running.wait()

    def until_caught_up(self) -> None:
        done = in_process.cdc(["run", str(self._file), "--until-caught-up"], {**os.environ})
        assert done.returncode == 0, done.stderr

    def events(self) -> list[Any]:
        return [json.loads(line) for line in self.out.read_bytes().splitlines()]

    def folded(self) -> dict[str, list[Any]]:
        """Return each table's rows. Each change is in the file once, and there are many."""
        rows, seen = dict[str, dict[int, Any]](), set[tuple[str, Any, str]]()
        for event in self.events():
            table = event["source"]["table"]
            of = rows.setdefault(table, {})
            if event["transaction"] is not None:
                at = (table, event["source"]["change"], event["op"])  # a key change is two
                assert at not in seen
                seen.add(at)
            for image in ("before", "after"):
                if event[image] is not None:
                    of.pop(event[image]["id"], None)
            if event["after"] is not None:
                of[event["after"]["id"]] = event["after"]
        assert len(seen) > 50
        return {table: [of[key] for key in sorted(of)] for table, of in rows.items()}
