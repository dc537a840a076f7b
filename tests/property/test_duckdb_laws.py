"""The sink that is a DuckDB file, under any workload and any fault: its tables are the source's, value by value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import hypothesis
import orjson
import pytest
from hypothesis import given

from cdc.files.position_file import Contents
from cdc.model.state import State
from sinks.duckdb.sink import DuckdbSink
from tests.conftest import FULL
from tests.property.test_follow_laws import caught_up
from tests.property.test_pipeline_laws import (
    CONNECTOR,
    TABLES,
    Scenario,
    World,
    _json,
    holds,
    scenarios,
)

FEW = hypothesis.settings(
    max_examples=150 if FULL else 6, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
)


class Unsteady(DuckdbSink):
    """Fails before a commit, between the rows and their position, and behind it."""

    def __init__(self, path: Path, world: World) -> None:
        super().__init__(path, CONNECTOR)
        self._world = world

    def commit(self, state: State) -> None:
        self._world.at("sink.commit")
        assert self._file is not None
        commit = self._file.commit

        def then(contents: Contents, tables: Any) -> None:
            self._world.at("sink.commit.delayed")
            commit(contents, tables)

        self._file.commit = then  # type: ignore[method-assign]
        super().commit(state)
        self._file.commit = commit  # type: ignore[method-assign]
        self._world.at("sink.commit.answer")


def written(scenario: Scenario, path: Path) -> World:
    return caught_up(scenario, lambda world: Unsteady(path, world))


def compare(world: World, path: Path) -> None:
    with duckdb.connect(path, read_only=True) as found:
        there = {name for (name,) in found.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
        for of in TABLES:
            expected = [_json(of, row) for row in world.log.rows(of).values()]
            rows: list[dict[str, Any]] = []
            if of.name in there:
                rows = found.sql(f"SELECT * FROM {of.qualified}").to_arrow_table().to_pylist()
            same = sorted(rows, key=orjson.dumps) == sorted(expected, key=orjson.dumps)
            holds(same, f"{of.qualified} is not the table")


@FEW
@given(scenarios(early=False))
def test_the_tables_of_a_file_are_the_source_s(tmp_path_factory: pytest.TempPathFactory, scenario: Scenario) -> None:
    path = tmp_path_factory.mktemp("duckdb") / "copy.duckdb"
    compare(written(scenario, path), path)


@FEW
@given(scenarios(early=True))
def test_also_where_the_snapshot_was_interrupted(tmp_path_factory: pytest.TempPathFactory, scenario: Scenario) -> None:
    path = tmp_path_factory.mktemp("duckdb") / "copy.duckdb"
    compare(written(scenario, path), path)
