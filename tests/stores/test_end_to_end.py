"""The main job: source = topic folded = Iceberg table = search index, whole contents, through SIGKILLs."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.config.config import load_apply, load_connector
from cdc.dev.demos.shop import difference
from cdc.model.state import Phase
from sinks.topics.records.positions import read_standing
from spark_apply.events.kafka.schema_topic import schema_versions
from spark_apply.job.job import run_apply
from spark_apply.model.store import connect
from spark_apply.model.target_table import target
from spark_apply.verify.contents import contents, expected
from tests.conftest import FULL, _database, _mysql_database
from tests.integration.connector import Connector, Record
from tests.integration.mysql_workload import MysqlWorkload
from tests.integration.workload import PostgresWorkload, Workload, as_stored

ROWS, CHANGES, KILLS = (40_000, 20_000, 5) if FULL else (6_000, 2_500, 3)
SEED = 20_261_120


@pytest.fixture(params=["postgres16", "postgres18", pytest.param("mysql", marks=pytest.mark.full), "mariadb"])
def source(request: pytest.FixtureRequest, servers: Callable[[str], str]) -> Iterator[tuple[str, Workload]]:
    """The owner's url of a new database on a server, and what writes it."""
    if request.param.startswith("postgres"):
        for database in _database(servers(request.param)):
            yield database.url, PostgresWorkload(database.url, rows=ROWS, seed=SEED)
    else:
        for other in _mysql_database(servers(request.param)):
            yield other.url, MysqlWorkload(other, rows=ROWS, seed=SEED)


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def _kill(process: subprocess.Popen[str]) -> None:
    assert process.poll() is None, process.communicate()[1]
    process.kill()
    process.communicate()


@pytest.mark.full  # test_a_crash_at_every_step, test_a_kill_at_every_step, the soaks
@pytest.mark.timeout(900)
def test_source_topic_table_and_index_are_equal_after_kills(
    source: tuple[str, Workload], kafka: str, prefix: str, tmp_path: Path, killed: list[subprocess.Popen[str]]
) -> None:
    """A random workload runs through snapshot and stream while the connector is killed: all copies end equal."""
    url, workload = source
    tables = workload.tables
    connector = Connector(tmp_path, prefix, url, kafka, list(tables), snapshot={"chunk_rows": ROWS // 20})
    config = load_connector_with(connector, url)
    chance = random.Random(SEED)
    workload.start()
    phases = []
    for kill in range(KILLS):
        process = connector.start("--verbose")
        killed.append(process)
        if kill < 2:  # in the snapshot
            await_commits(process, chance.randint(2, 4) if kill == 0 else chance.randint(5, 9))
        else:
            await_phase(config, process, Phase.STREAM)
            time.sleep(chance.uniform(0.5, 2.5))
        _kill(process)
        state = read_standing(config.sink, config.name).state
        assert state is not None
        phases.append(state.phase)
    assert phases[:2] == [Phase.SNAPSHOT, Phase.SNAPSHOT], "the first two kills hit the snapshot"
    assert phases[-1] is Phase.STREAM

    apply_file = tmp_path / "apply.yaml"
    apply_file.write_text(
        json.dumps(
            {
                "name": "warehouse",
                "source": {"bootstrap_servers": kafka, "topic_prefix": prefix},
                "stores": {
                    "warehouse": {"type": "iceberg", "path": str(tmp_path / "warehouse")},
                    "search": {"type": "tantivy", "path": str(tmp_path / "search")},
                },
                "tables": {table: {"stores": ["warehouse", "search"]} for table in tables},
                "checkpoint": str(tmp_path / "checkpoint"),
            }
        )
    )
    jobs = load_apply(apply_file)
    with workload.paused():
        run_apply(jobs, once=True)  # in the middle: a fold of a part, then of the rest
    process = connector.start()
    killed.append(process)
    before = workload.changes
    deadline = time.monotonic() + 120
    while workload.changes < max(CHANGES, before + CHANGES // 4):
        assert time.monotonic() < deadline, f"{workload.changes} changes"
        time.sleep(0.1)
    _kill(process)
    workload.stop()
    connector.catch_up()
    run_apply(jobs, once=True)

    _spark, stores = connect(jobs)
    versions = schema_versions(jobs.source)
    for table in tables:
        made = target(versions[table], {})
        there = workload.contents(table)
        last: dict[bytes, Record] = {}
        newest: dict[bytes, str] = {}
        for record in connector.records(table):
            last[record.raw_key] = record
            if record.raw_value is not None:
                position = record.value["source"]["position"]
                assert newest.get(record.raw_key, "") < position, f"{table}: the positions of a key increase"
                newest[record.raw_key] = position
        events = {key.decode(): record.value for key, record in last.items() if record.value is not None}
        folded = {
            key: as_stored(expected(made, event["after"], event["source"]["schema_version"]))
            for key, event in events.items()
            if event["after"] is not None
        }
        assert len(there) > ROWS // 40
        nothing = difference(there, there)
        assert difference(there, folded) == nothing, f"{table}: topic"
        for name, store in stores.items():
            copy = {key: as_stored(row) for key, row in contents(store, made).items()}
            found = difference(there, copy)
            shown = [(there[key], copy[key]) for key in found.changed[:2]]
            assert found == nothing, f"{table}: {name}: {shown}"


def load_connector_with(connector: Connector, url: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_DATABASE_URL", url)
        return load_connector(connector.file)


def await_phase(config: Any, process: subprocess.Popen[str], phase: Phase, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[1]
        state = _state(config)
        if state is not None and state.phase is phase:
            return
        time.sleep(0.05)
    pytest.fail(f"the connector did not reach the phase {phase}")


def await_commits(process: subprocess.Popen[str], commits: int) -> None:
    """Return after some commits, as its log tells them."""
    assert process.stderr is not None
    seen = 0
    for line in process.stderr:
        seen += "committed at" in line or "reading the tables" in line
        if seen >= commits:
            return
    pytest.fail("the connector ended")


def _state(config: Any) -> Any:
    try:
        return read_standing(config.sink, config.name).state
    except Exception:  # noqa: BLE001 - its topic is not made yet
        return None
