"""Views of MariaDB's data beside XA COMMIT, which is in the log before it is visible."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
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
from tests.integration.mysql_user import MysqlUser

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
def test_a_view_waits_for_what_xa_has_prepared(
    mariadb: MySQLDatabase, monkeypatch: pytest.MonkeyPatch, exact: bool
) -> None:
    """Its XA COMMIT may be under way; what a session has left behind is waited for by nobody."""
    monkeypatch.setattr(views, "_CALM_S", 1_000.0)  # XA COMMIT begin all the time
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


@pytest.mark.parametrize("left", [False, True], ids=["held", "left behind"])
def test_what_stays_prepared_holds_no_view_up(
    mariadb: MySQLDatabase, monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    """By a user who may lock no tables: where no XA COMMIT has begun for a second, none is under way."""
    mariadb.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    limited = MySQLDatabase(MysqlUser(mariadb.url).url, mariadb.name)
    with closing(using(limited)) as one:
        holder = using(mariadb)
        prepare(holder, f"{mariadb.name}-stays", 1)
        if left:
            holder.close()
        try:
            assert looked(limited, one)[1] == set()
            with monkeypatch.context() as patch:
                patch.delattr(views, "_wait")  # the second is waited for once
                assert looked(limited, one)[1] == set()
        finally:
            if not left:
                holder.close()
            mariadb.execute(f"XA COMMIT '{mariadb.name}-stays'")
        assert looked(limited, one)[1] == {1}


@pytest.mark.parametrize("exact", [False, True])
def test_no_view_is_taken_before_xa_is_calm(
    mariadb: MySQLDatabase, monkeypatch: pytest.MonkeyPatch, *, exact: bool
) -> None:
    """None could be believed, and each holds up who commits meanwhile."""
    mariadb.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    begun, begin = list[int](), views._begin

    def noted(sessions: Sequence[session.Connection]) -> None:
        begun.append(len(sessions))
        begin(sessions)

    monkeypatch.setattr(views, "_begin", noted)
    with closing(using(mariadb)) as one, closing(using(mariadb)) as holder:
        prepare(holder, f"{mariadb.name}-stays", 1)
        try:
            assert looked(mariadb, one, exact=exact)[1] == set()
        finally:
            do(holder, f"XA ROLLBACK '{mariadb.name}-stays'")
    assert len(begun) < 4


@pytest.mark.full("of the server: no place that it reports lies behind what waits")
@pytest.mark.parametrize("point", ["AFTER_SYNC", "AFTER_COMMIT"])
def test_a_view_beside_what_waits_for_a_replica(
    mariadb: MySQLDatabase, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """An XA COMMIT that began long ago is in the log and not visible until the replica has it."""
    monkeypatch.setattr(views, "_CALM_S", 0.1)
    mariadb.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    with closing(using(mariadb)) as one, closing(using(mariadb)) as holder, ThreadPoolExecutor(1) as pool:
        prepare(holder, f"{mariadb.name}-waits", 1)
        variables = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('rpl_semi_sync_master_wait_point', "
        was = dict(session.texts(one, "testing", f"{variables}'rpl_semi_sync_master_timeout')"))
        try:
            do(
                one,
                f"SET GLOBAL rpl_semi_sync_master_wait_point = '{point}'",
                "SET GLOBAL rpl_semi_sync_master_timeout = 4000",
                "SET GLOBAL rpl_semi_sync_master_enabled = ON",
            )
            logged = server.status(one, server.look(one))[0].commit
            committing = pool.submit(do, holder, f"XA COMMIT '{mariadb.name}-waits'")
            while server.status(one, server.look(one))[0].commit == logged:
                time.sleep(0.02)
            taken, rows = looked(mariadb, one)
            assert rows == {1} or not taken.sees(logged)
            committing.result(30)
        finally:
            do(
                one,
                "SET GLOBAL rpl_semi_sync_master_enabled = OFF",
                f"SET GLOBAL rpl_semi_sync_master_timeout = {was['rpl_semi_sync_master_timeout']}",
                f"SET GLOBAL rpl_semi_sync_master_wait_point = '{was['rpl_semi_sync_master_wait_point']}'",
            )


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
