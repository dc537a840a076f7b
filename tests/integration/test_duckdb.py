"""A connector that keeps a DuckDB file: killed at any time, on each kind of source, asked for what it does not have."""

from __future__ import annotations

import datetime as dt
import random
import resource
import signal
import sqlite3
import subprocess
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.conftest import FULL, Database
from tests.integration import in_process
from tests.integration.copies import Copy, killed, postgres
from tests.integration.nudges import nudged
from tests.integration.running import Writer

KILLS = 12 if FULL else 3


def test_killed_at_any_time_its_tables_are_the_source_s(postgres18: Database, tmp_path: Path) -> None:
    """While they are written, with wide values that updates leave out, and get another column."""
    postgres18.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, v text)",
        "ALTER TABLE t ALTER v SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT g, 0, repeat('v', 3000) FROM generate_series(1, 40) g",
    )
    copy, at = Copy(tmp_path, postgres(postgres18, "public.t")), random.Random(3)
    writer = Writer(postgres18, "t", keys=40)
    writer.start()
    for number in range(KILLS):
        killed(copy, at)
        if number == 1:
            postgres18.execute("ALTER TABLE t ADD more text DEFAULT 'filled'")
    writer.stop()
    copy.catch_up()
    assert copy.sql("FROM public.t ORDER BY id") == postgres18.rows("SELECT * FROM t ORDER BY id")


def test_types_names_and_commands(postgres18: Database, tmp_path: Path) -> None:
    """Values as DuckDB gives them to Python; a row that makes a column text; a TRUNCATE; quoted names; a condition."""
    postgres18.execute(
        "CREATE TABLE t (id int PRIMARY KEY, total numeric(10,2), any_size numeric, at timestamptz, day date, of time,"
        " tags text[], data bytea, doc jsonb)",
        "INSERT INTO t VALUES (1, 99.90, 1e40, '2024-02-29 12:34:56.1Z', '2024-02-29', '24:00', '{a,NULL}', '\\x00ff',"
        " '{\"a\": 1}'), (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        'CREATE TABLE "T ""x" ("select" int PRIMARY KEY, "rowid" text)',
        """INSERT INTO "T ""x" VALUES (1, 'r')""",
        "CREATE TABLE gone (id int PRIMARY KEY)",
        "INSERT INTO gone SELECT generate_series(1, 5)",
        "CREATE TABLE opened (id int PRIMARY KEY, status text, v text)",
        "ALTER TABLE opened ALTER v SET STORAGE EXTERNAL",
        "INSERT INTO opened SELECT g, 'closed', repeat('v', 3000) FROM generate_series(1, 3) g",
    )
    where = {"public.opened": "status = 'open'"}
    copy = Copy(tmp_path, {**postgres(postgres18, "public.*"), "where": where})
    copy.catch_up()
    utc = dt.datetime(2024, 2, 29, 12, 34, 56, 100000, tzinfo=dt.UTC)
    columns = """id, total, any_size, "at", day, "of", tags, data, doc->>'a'"""
    assert copy.sql(f"SELECT {columns} FROM public.t ORDER BY id") == [
        (1, Decimal("99.90"), "1" + "0" * 40, utc, dt.date(2024, 2, 29), dt.timedelta(days=1), ["a", None], b"\x00\xff",
         "1"),
        (2, *[None] * 8),
    ]  # fmt: skip
    postgres18.execute(
        "INSERT INTO t (id, total, day, tags) VALUES (3, 'NaN', 'infinity', '{{a},{b}}')",
        'UPDATE "T ""x" SET "select" = 2',
        "UPDATE opened SET status = 'open' WHERE id < 3",
        "UPDATE opened SET status = 'closed' WHERE id = 1",
        "BEGIN; INSERT INTO gone VALUES (6); TRUNCATE gone; INSERT INTO gone VALUES (7); COMMIT",
    )
    copy.catch_up()
    assert copy.sql("SELECT total, tags, isinf(day) FROM public.t ORDER BY id") == [
        ("99.90", '["a",null]', False), (None, None, None), ("NaN", '[["a"],["b"]]', True),
    ]  # fmt: skip
    assert copy.sql('FROM public."T ""x"') == [(2, "r")]
    assert copy.sql("FROM public.gone") == [(7,)]
    assert copy.sql("FROM public.opened") == [(2, "open", "v" * 3000)]
    for words in (["status", "FILE"], ["tail", "FILE"], ["pause", "FILE"]):
        done = copy.cdc(*words)
        assert done.returncode == 2
        assert "sink.type is duckdb: this connector has no topics" in done.stderr
    done = copy.cdc("check", "FILE")
    assert done.returncode == 0, done.stdout
    assert "copy.duckdb is there, and is gone on with" in done.stdout


def test_a_gap_says_how_to_begin_anew(postgres18: Database, tmp_path: Path) -> None:
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    copy = Copy(tmp_path, postgres(postgres18, "public.t"))
    copy.catch_up()
    postgres18.execute("SELECT pg_drop_replication_slot('cdc_copied')")
    done = copy.cdc("run", "FILE", "--until-caught-up")
    assert done.returncode == 4
    assert "another sink.path and another name begin with a new snapshot" in done.stderr
    assert copy.sql("FROM public.t") == [(1,)]


def test_what_is_in_the_way_is_told_and_passes(postgres18: Database, tmp_path: Path) -> None:
    """A second connector, a reader that has the file, and a disk that is full: nothing is lost, and it goes on."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a')")
    copy = Copy(tmp_path, postgres(postgres18, "public.t"))
    copy.catch_up()
    other = Copy(tmp_path, postgres(postgres18, "public.t"), name="other")
    done = other.cdc("run", "FILE", "--until-caught-up")
    assert done.returncode == 4
    assert "is written by connector copied" in done.stderr or "config changed" in done.stderr
    with duckdb.connect(copy.out, read_only=True):
        with copy.start(stderr=subprocess.PIPE) as running:
            _, said = running.communicate(timeout=60)
        assert running.returncode == 1
        assert "copy.duckdb is in use by " in said
    postgres18.execute(
        "INSERT INTO t SELECT g, md5(g::text) || repeat(md5((g*7)::text), 20) FROM generate_series(2, 5000) g"
    )
    most = copy.out.stat().st_size + 100_000

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    with nudged(postgres18.url), copy.start(stderr=subprocess.PIPE, preexec_fn=small) as running:
        _, said = running.communicate(timeout=120)
    assert running.returncode == 1, said
    assert "copy.duckdb cannot be written: File too large" in said
    copy.catch_up()
    assert copy.sql("SELECT count(*), count(DISTINCT v) FROM public.t") == [(5_000, 5_000)]


def test_sqlite_without_a_server(tmp_path: Path) -> None:
    """By triggers, into a file of DuckDB's: killed as it goes, and a table that changes."""
    path = tmp_path / "shop.db"
    copy = Copy(tmp_path, {"type": "triggers", "url": f"sqlite:///{path}", "tables": ["main.orders"]})
    with closing(sqlite3.connect(path, isolation_level=None)) as shop:
        shop.executescript(
            "PRAGMA journal_mode = WAL; CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT, n INT)"
        )
        shop.executemany("INSERT INTO orders VALUES (?, 'new', 0)", [(number,) for number in range(1, 300)])
        killed(copy, random.Random(1))
        shop.executescript(
            "UPDATE orders SET n = id; DELETE FROM orders WHERE id % 3 = 0; "
            "ALTER TABLE orders ADD COLUMN more TEXT; UPDATE orders SET more = 'm' WHERE id = 1"
        )
        killed(copy, random.Random(2))
        shop.execute("INSERT INTO orders VALUES (1000, 'late', 1, 'x')")
        copy.catch_up()
        assert copy.sql("FROM main.orders ORDER BY id") == shop.execute("SELECT * FROM orders ORDER BY id").fetchall()


@pytest.mark.parametrize(
    ("sink", "what"),
    [
        ({"path": "./"}, "path: “./” is no file"),
        ({"format": "flat"}, "unknown key"),
        ({"bootstrap_servers": "x"}, "unknown key"),
    ],
)
def test_what_such_a_file_cannot_say(sink: dict[str, Any], what: str, tmp_path: Path) -> None:
    source = {"type": "postgres", "url": "postgresql://127.0.0.1:1/x", "tables": ["public.t"]}
    copy = Copy(tmp_path, source, **sink)
    done = in_process.cdc(["run", str(copy.file)], copy.environment)
    assert done.returncode == 2
    assert what in done.stderr
