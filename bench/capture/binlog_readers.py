"""Compares the cost of reading the binlog, without rows, with mysql-replication's reader over the same log."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import XidEvent

from cdc.dev.stack import DevServers
from connectors.mysql import session
from connectors.mysql.binlog import events
from connectors.mysql.binlog.parser import parse
from connectors.mysql.binlog.positions import FIRST, BinlogPosition
from connectors.mysql.catalog import server
from connectors.mysql.replication.dump_stream import BinlogDump
from connectors.mysql.rows.transactions import Grouper

ROWS = 5
SERVER_ID = 1_900_000_001
UUID = "6f0c6f5e-1c1e-4a53-a5a8-3d7f6f6a6b12"


def login(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "host": parts.hostname,
        "port": parts.port,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
    }


def fill(url: str, transactions: int) -> None:
    """Write transactions of a few statements of one row each."""
    database = urlsplit(url).path.removeprefix("/")
    with closing(pymysql.connect(**login(url), database=database)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, n INT, v VARCHAR(80))")
        for n in range(transactions):
            for row in range(ROWS):
                cursor.execute("INSERT INTO t VALUES (%s, %s, %s)", (n * ROWS + row, n, "a value of some length"))
            connection.commit()


def ours(url: str, first: BinlogPosition, end: BinlogPosition, *, mariadb: bool) -> int:
    """Read to the end, parse and group events into transactions; return their number."""
    at = session.address(url)
    dump = BinlogDump(at, server_id=SERVER_ID, connector="bench", uuid=UUID, mariadb=mariadb)
    described, file, seen = None, first.file, 0
    grouper = Grouper(lambda _: False)
    try:
        dump.follow(first)
        while True:
            raw = dump.read(10)
            event = parse(raw, described)
            seen += 1
            if isinstance(event, events.Rotate):
                file = event.file
            elif isinstance(event, events.FormatDescription):
                described = event
                grouper.reset(event)
            elif not isinstance(event, events.Heartbeat):
                grouper.feed(event, raw, file)
            if file == end.file and event.header.log_pos >= end.offset:
                return seen
    finally:
        dump.close()


def theirs(url: str, first: BinlogPosition) -> None:
    """Read to the end; the reader returns only the ends of transactions."""
    reader = BinLogStreamReader(
        connection_settings=login(url), server_id=SERVER_ID + 1, log_file=first.file, log_pos=first.offset,
        resume_stream=True, blocking=False, only_events=[XidEvent],
    )  # fmt: skip
    try:
        for _ in reader:
            pass
    finally:
        reader.close()


def cpu_s(run: Callable[[], object], runs: int) -> float:
    taken = []
    for _ in range(runs):
        begun = time.process_time()
        run()
        taken.append(time.process_time() - begun)
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=8_000)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    print(f"events of the binlog a second of CPU, no row looked at (median of {given.runs})")
    for name in ("mysql", "mariadb"):
        with (
            tempfile.TemporaryDirectory(prefix="cdc-bench-") as folder,
            DevServers(Path(folder), servers=(name,)) as servers,
        ):
            url = servers[name].url
            with closing(session.connect(session.address(url))) as sql:
                found = server.look(sql)
                first = BinlogPosition(server.status(sql, found)[0].file, FIRST)
                fill(url, given.transactions)
                end = server.status(sql, found)[0]
            many = ours(url, first, end, mariadb=found.mariadb)
            mine = cpu_s(lambda: ours(url, first, end, mariadb=found.mariadb), given.runs)  # noqa: B023 - run at once
            other = cpu_s(lambda: theirs(url, first), given.runs)  # noqa: B023
            print(f"  {found.shown:<36}{many:>8,} events  ours {many / mine:>8,.0f}", end="")
            print(f"  mysql-replication's reader {many / other:>8,.0f}  ratio {other / mine:.1f}", flush=True)


if __name__ == "__main__":
    main()
