"""Commit, take a token, wait: then the derived stores hold the whole transaction, however they are interrupted."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc.cli.main import cdc
from cdc.config.config import load_apply
from spark_apply.events.kafka.schema_topic import schema_versions
from spark_apply.model.target_table import TargetTable, target
from spark_apply.stores.tantivy.store import TantivyStore
from tests.conftest import FULL, Database, _database, _mysql_database
from tests.integration.connector import Connector
from tests.integration.running import Running, eventually
from tests.spark.jobs import applying

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread

FOLLOWING = "following the log"
NAMES = ("debits", "credits")


@pytest.fixture(params=["postgres18", pytest.param("mysql", marks=pytest.mark.full)])
def origin(request: pytest.FixtureRequest, servers: Callable[[str], str]) -> Iterator[tuple[Any, str]]:
    """A database with two tables, and the schema they are in."""
    if request.param == "mysql":
        for other in _mysql_database(servers("mysql")):
            yield _with_tables(other), other.name
    else:
        for database in _database(servers("postgres18")):
            yield _with_tables(database), "public"


def _with_tables(database: Any) -> Any:
    for name in NAMES:
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, amount int)")
    return database


def _apply_file(folder: Path, prefix: str, kafka: str, schema: str) -> Path:
    file = folder / "apply.yaml"
    config = {
        "name": "copies",
        "source": {"bootstrap_servers": kafka, "topic_prefix": prefix},
        "stores": {"search": {"type": "tantivy", "path": str(folder / "search")}},
        "tables": {f"{schema}.{name}": {"stores": ["search"]} for name in NAMES},
        "checkpoint": str(folder / "checkpoint"),
    }
    file.write_text(json.dumps(config))
    return file


def _tables(file: Path) -> list[TargetTable]:
    return [target(versions, {}) for _, versions in sorted(schema_versions(load_apply(file).source).items())]


def _command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """A command in this process: Python is up already."""
    capsys.readouterr()
    code = cdc.main([*words], standalone_mode=False)
    out, err = capsys.readouterr()
    return code or 0, out.strip(), err


def _ids(documents: Iterator[str]) -> set[int]:
    return {json.loads(document)["id"] for document in documents}


def test_a_reader_that_waits_sees_both_rows(
    *,
    origin: tuple[Any, str],
    kafka: str,
    prefix: str,
    tmp_path: Path,
    apply_spark: SparkSession,  # the job's own is this one
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Transactions over two tables, one held open beside them, tokens of an idle database, and tokens too early."""
    database, schema = origin
    connector = Connector(tmp_path, prefix, database.url, kafka, [f"{schema}.{name}" for name in NAMES])
    monkeypatch.setenv("TEST_DATABASE_URL", connector.environment["TEST_DATABASE_URL"])
    database.execute("INSERT INTO debits VALUES (0, 0)")
    file = _apply_file(tmp_path, prefix, kafka, schema)
    with Running(connector) as running, closing(database.connect()) as held, closing(database.connect()) as session:
        running.await_line(FOLLOWING)
        database.execute("INSERT INTO credits VALUES (0, 0)")
        eventually(lambda: len(schema_versions(load_apply(file).source)) == 2, "both tables are described")
        _, token, _ = _command(capsys, "token", str(connector.file))
        code, _, error = _command(capsys, "wait", str(file), "--token", token, "--timeout", "300ms")
        assert code == 1
        assert "store search is not complete yet" in error
        with applying(file):
            code, _, error = _command(capsys, "wait", str(file), "--token", token, "--timeout", "170s")
            assert code == 0, error
            debits, credits_ = _tables(file)[::-1]
            assert (debits.name, credits_.name) == NAMES
            with held.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute("INSERT INTO debits VALUES (1000, 1)")
            search = TantivyStore(tmp_path / "search")
            waited = []
            for n in range(1, 21 if FULL and schema == "public" else 6):
                with session.cursor() as cursor:
                    cursor.execute("BEGIN")
                    cursor.execute(f"INSERT INTO debits VALUES ({n}, {n})")
                    cursor.execute(f"INSERT INTO credits VALUES ({n}, {n})")
                    cursor.execute("COMMIT")
                _, token, _ = _command(capsys, "token", str(connector.file))
                begun = time.monotonic()
                code, _, error = _command(capsys, "wait", str(file), "--token", token, "--timeout", "60s")
                assert code == 0, error
                waited.append(time.monotonic() - begun)
                for table in (debits, credits_):
                    found = _ids(row.document for row in search.rows(table))
                    assert n in found, (n, table.name)
                    assert 1000 not in found
            # nobody writes what is captured: others do, and then nobody at all
            database.execute("CREATE TABLE other (id int PRIMARY KEY)", "INSERT INTO other VALUES (1)")
            idle = []
            for _ in range(3):
                _, token, _ = _command(capsys, "token", str(connector.file))
                begun = time.monotonic()
                code, out, error = _command(capsys, "wait", str(file), "--token", token, "--timeout", "20s", "--json")
                assert code == 0, error
                assert json.loads(out)["reached"] is True
                idle.append(time.monotonic() - begun)
            with capsys.disabled():
                print(f"waited {sorted(waited)[len(waited) // 2]:.2f} s, idle {sorted(idle)[1]:.2f} s")
            assert sorted(idle)[1] < 3, idle  # about a second; the machine may be busy
            with held.cursor() as cursor:
                cursor.execute("COMMIT")
            _, token, _ = _command(capsys, "token", str(connector.file))
            assert _command(capsys, "wait", str(file), "--token", token, "--timeout", "60s")[0] == 0
            assert 1000 in _ids(row.document for row in search.rows(debits))
            # a token that is not reached in time: what is complete, and what to look at
            later = token.rsplit(".", 2)[0] + ".7fffffffffffffff.00000000"
            code, _, error = _command(
                capsys, "wait", str(file), "--token", later, "--store", "search", "--timeout", "100ms"
            )
            assert code == 1
            assert "store search is complete up to 00000001." in error
            assert "cdc status" in error
            code, out, _ = _command(capsys, "status", str(file), "--json")
            assert code == 0
            shown = json.loads(out)["stores"]["search"][prefix]
            assert shown["position"] >= token.partition(":")[2]
            assert shown["freshness_seconds"] < 30
            assert (shown["tables"], shown["incomplete"]) == ([table.qualified for table in _tables(file)], [])


class Ledger(threading.Thread):
    """Transactions that write one row of each table, one after the other; some are held open for a while."""

    def __init__(self, database: Database) -> None:
        super().__init__(daemon=True)
        self._connections = [database.connect(), database.connect()]
        self._over = threading.Event()
        self.written = 0

    def run(self) -> None:
        rng, (one, other) = random.Random(5), self._connections
        while not self._over.wait(rng.uniform(0, 0.06)):
            self.written += 2
            with one.cursor() as cursor, other.cursor() as overlapping:
                overlapping.execute(f"BEGIN; INSERT INTO debits VALUES ({self.written}, 1)")
                cursor.execute(
                    f"BEGIN; INSERT INTO debits VALUES ({self.written - 1}, 1);"
                    f"INSERT INTO credits VALUES ({self.written - 1}, 1); COMMIT"
                )
                overlapping.execute(f"INSERT INTO credits VALUES ({self.written}, 1); COMMIT")

    def stop(self) -> None:
        self._over.set()
        self.join()
        for connection in self._connections:
            connection.close()


@pytest.mark.full  # test_kills.py has the same of every store, from records made by hand
def test_a_job_that_is_killed_never_says_more_than_it_has_done(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """At every position that is ever published, the index holds all of the source's transactions below it."""
    _with_tables(postgres18)
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, [f"public.{name}" for name in NAMES])
    file = _apply_file(tmp_path, prefix, kafka, "public")
    postgres18.execute(*(f"INSERT INTO {name} VALUES (0, 0)" for name in NAMES))
    ledger, samples = Ledger(postgres18), dict[str, dict[str, set[int]]]()
    rng = random.Random(3)
    with Running(connector) as running:
        running.await_line(FOLLOWING)
        eventually(lambda: len(schema_versions(load_apply(file).source)) == 2, "both tables are described")
        tables = _tables(file)
        ledger.start()
        for kill in range(2):
            job = subprocess.Popen([sys.executable, "-m", "cdc", "apply", str(file)], env=os.environ)
            try:
                until, begun = None, len(samples)
                while until is None or time.monotonic() < until:
                    assert job.poll() is None
                    time.sleep(0.02)
                    _sample(tmp_path / "search", tables, samples)
                    if until is None and len(samples) > begun + 1:
                        until = time.monotonic() + rng.uniform(0.2, 2.5)
                if kill == 1:
                    ledger.stop()
            finally:
                job.send_signal(signal.SIGKILL)
                job.wait()
        events = {name: connector.events(f"public.{name}") for name in NAMES}
    assert ledger.written > 50
    assert len(samples) > 3
    for position, found in samples.items():
        for name in NAMES:
            below = {e["after"]["id"] for e in events[name] if e["source"]["position"] < position}
            assert below <= found[name], f"{position} was published without {len(below - found[name])} rows of {name}"
    assert any(len(found["debits"]) < ledger.written for found in samples.values()), "all was there from the start"


def _sample(path: Path, tables: list[TargetTable], samples: dict[str, dict[str, set[int]]]) -> None:
    """Note what is there at the position that is published now: first the position, then the contents."""
    store = TantivyStore(path)
    marks = [store.mark(table) for table in tables]
    complete = [mark.complete for mark in marks if mark is not None and mark.complete is not None]
    if len(complete) < len(tables):
        return
    position = min(one.position for one in complete)
    if position not in samples:
        samples[position] = {table.name: _ids(row.document for row in store.rows(table)) for table in tables}
