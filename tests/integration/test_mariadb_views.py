"""Views of MariaDB's data beside XA COMMIT, which is in the log before it is visible."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from cdc.model.change import Table
from connectors.mysql import session
from connectors.mysql.binlog.positions import BinlogPosition
from connectors.mysql.catalog import server
from snapshot.mysql import views
from tests.conftest import MySQLDatabase

WRITERS = 5
LOOKING_S = 8


def connected(database: MySQLDatabase) -> session.Connection:
    return session.connect(session.address(f"{database.url}?ssl_mode=disabled"))


def using(database: MySQLDatabase) -> session.Connection:
    connection = connected(database)
    do(connection, f"USE {database.name}")
    return connection


def do(connection: session.Connection, *statements: str) -> None:
    for statement in statements:
        session.rows(connection, "testing", statement)


def prepare(connection: session.Connection, name: str, row: int) -> None:
    """Have XA prepare a row of `t`."""
    do(connection, f"XA START '{name}'", f"INSERT INTO t VALUES ({row})", f"XA END '{name}'", f"XA PREPARE '{name}'")


def looked(database: MySQLDatabase, connection: session.Connection, *, exact: bool = False) -> tuple[Any, set[int]]:
    """A view, and what it saw."""
    table = Table(database.name, "t", (), ())
    connect = partial(connected, database)
    taken, _ = views.take_view([connection], [table], connect, over=lambda: False, exact=exact)
    rows = session.texts(connection, "testing", "SELECT id FROM t")
    views.end_view(connection)
    return taken, {int(of) for (of,) in rows}


@pytest.mark.parametrize("exact", [False, pytest.param(True, marks=pytest.mark.full("the same lock, sooner"))])
def test_a_view_waits_for_what_xa_has_prepared(mariadb: MySQLDatabase, exact: bool) -> None:
    """Its XA COMMIT may be under way; what a session has left behind is waited for by nobody."""
    mariadb.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    with closing(using(mariadb)) as one, ThreadPoolExecutor(1) as pool:
        with closing(using(mariadb)) as holder:
            prepare(holder, f"{mariadb.name}-held", 1)
            looking = pool.submit(looked, mariadb, one, exact=exact)
            try:
                time.sleep(1)
                assert not looking.done()
            finally:
                do(holder, f"XA COMMIT '{mariadb.name}-held'")
            assert looking.result(30)[1] == {1}
            prepare(holder, f"{mariadb.name}-left", 2)
        try:
            assert looked(mariadb, one, exact=exact)[1] == {1}
        finally:
            mariadb.execute(f"XA COMMIT '{mariadb.name}-left'")


def test_who_may_not_lock_tables_reads_beside_what_was_left_prepared(
    mariadb: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is of another application, perhaps, and nobody ends it: no XA COMMIT has begun for long."""
    monkeypatch.setattr(views, "_SETTLED_S", 1.0)
    user = f"cdc_capture_{mariadb.name}"
    mariadb.execute(
        "CREATE TABLE t (id INT PRIMARY KEY)",
        f"CREATE USER '{user}'@'%' IDENTIFIED BY 'pw'",
        f"GRANT BINLOG MONITOR ON *.* TO '{user}'@'%'",
        f"GRANT SELECT ON {mariadb.name}.* TO '{user}'@'%'",
    )
    with closing(using(mariadb)) as holder:
        prepare(holder, f"{mariadb.name}-left", 1)
    try:
        monkeypatch.setattr(mariadb, "url", re.sub("//.*@", f"//{user}:pw@", mariadb.url))
        with closing(using(mariadb)) as one:
            assert looked(mariadb, one)[1] == set()
    finally:
        monkeypatch.undo()
        mariadb.execute(f"XA COMMIT '{mariadb.name}-left'")


@pytest.mark.full("the server's own gap, of milliseconds, which the test above knows of")
def test_what_lies_before_a_view_s_place_is_seen(mariadb: MySQLDatabase) -> None:
    """Sessions prepare and commit without a pause; the log tells where each one's end lies."""
    mariadb.execute("CREATE TABLE t (id INT PRIMARY KEY)", "FLUSH BINARY LOGS")
    over = threading.Event()

    def write(writer: int) -> None:
        row = writer * 1_000_000
        with closing(using(mariadb)) as connection:
            while not over.is_set():
                row += 1
                prepare(connection, f"{mariadb.name}-{row}", row)
                do(connection, f"XA COMMIT '{mariadb.name}-{row}'")

    taken = []
    with closing(using(mariadb)) as connection, ThreadPoolExecutor(WRITERS) as pool:
        writing = [pool.submit(write, writer) for writer in range(WRITERS)]
        until_s = time.monotonic() + LOOKING_S
        try:
            while time.monotonic() < until_s:
                taken.append(looked(mariadb, connection))
        finally:
            over.set()
        for one in writing:
            one.result()
        ends = {}
        (file, _) = server.files(connection)[-1]
        for *_, end, info in session.texts(connection, "testing", f"SHOW BINLOG EVENTS IN '{file}'"):
            if found := re.match(r"XA COMMIT X'([0-9a-f]+)'", info):
                row = bytes.fromhex(found[1]).decode().rpartition("-")[2]
                ends[int(row)] = BinlogPosition(file, int(end)).commit
    assert len(ends) > 50
    assert taken
    hidden = [{row for row, end in ends.items() if view.sees(end - 1)} - rows for view, rows in taken]
    assert [rows for rows in hidden if rows] == []
