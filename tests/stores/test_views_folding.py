"""Streams, histories and streams of others on executors: the rows are the same, wherever their events are folded."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812 - the name everyone uses

from spark_apply.spark.names import quoted as spark_quoted
from spark_apply.views.cluster.kept_rows import Kept
from spark_apply.views.cluster.lake import Lake
from spark_apply.views.cluster.state import ClusterState
from spark_apply.views.cluster.step import ClusterStep
from spark_apply.views.cluster.step_parts import Running
from spark_apply.views.cluster.values import frame, schema_of
from spark_apply.views.cluster.waiting_events import wait
from spark_apply.views.embedded.fold import SourceTable
from spark_apply.views.embedded.state import KEY, OP, POSITION, SOURCE_MS, ViewState, place
from spark_apply.views.embedded.step import Step
from spark_apply.views.model.uses import TableUse, Way
from spark_apply.views.model.values import quoted
from tests.pushes import some_each_push
from tests.views.bench import most_over
from tests.views.reading import (
    COLUMNS,
    EPOCH,
    HISTORY,
    KEEP,
    STREAM,
    Event,
    committed,
    instant,
    position,
    positions,
    streamed,
    versions,
)

pytest_plugins = ["tests.spark.fixtures"]
_KEPT = TableUse("public.s", Way.STREAM, "at", KEEP * 60_000)
_OTHERS = TableUse("stream.s", Way.EVENTS, "at", KEEP * 60_000)
_TEXTS = [T.StructField(name, T.StringType()) for name in (KEY, POSITION, OP)]
_SCHEMA = T.StructType([*_TEXTS, T.StructField(SOURCE_MS, T.LongType()), *schema_of(COLUMNS)])
_ENDS = (90, 91, 200, 300)


def _events() -> list[Event]:
    rng = random.Random(11)
    return [
        Event(
            rng.choice("crudr"), rng.randint(1, 40), rng.choice((None, -2, 1, 6, 14, 22)), rng.randint(1, 2),
            rng.choice((0, 0, 0, 0, 1)),
        )
        for _ in range(300)
    ]  # fmt: skip


def _waiting(use: TableUse) -> list[tuple[Any, ...]]:
    """The events as they wait; a stream of others has no deletes, and no order but that of its positions."""
    events = _events()
    found = []
    alone = [position(number) for number, _ in enumerate(events)]
    places = alone if use.way is Way.EVENTS else positions(events)
    for event, at, its in zip(events, committed(events), places, strict=True):
        op = "c" if use.way is Way.EVENTS else event.op
        time = None if event.time is None or op == "d" else instant(event.time)
        ours = (str(event.key), its, op, (instant(at) - EPOCH) // dt.timedelta(milliseconds=1))
        found.append((*ours, event.key, time, *((None, None) if op == "d" else (event.value, 0))))
    if use.way is Way.EVENTS:
        random.Random(5).shuffle(found)
    return found


def _insert(state: ViewState, table: SourceTable, rows: Sequence[tuple[Any, ...]]) -> None:
    for row in rows:
        state.execute(f"INSERT INTO {place('pending', table.relation)} VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [*row])


def _parts(rows: Sequence[tuple[Any, ...]]) -> list[tuple[str, Sequence[tuple[Any, ...]]]]:
    """What comes before each step, and where the step ends: some comes too early, some of that again."""
    found, begin = [], 0
    for end in _ENDS:
        found.append((position(end), [*rows[max(begin - 10, 0) : begin], *rows[begin : end + 20]]))
        begin = end + 20
    return found


def _embedded(folder: Path, table: SourceTable) -> tuple[set[Any], int]:
    """The rows that the other engine has, and how many events were late."""
    state = ViewState(folder, memory="200MB")
    with state.transaction():
        state.prepare_table(table.relation, COLUMNS, table.use.hidden, table.row_key)
    for limit, rows in _parts(_waiting(table.use)):
        _insert(state, table, rows)
        with state.transaction():
            step = Step(state, limit, None, None, ())
            step.fold(table, reload=False)
            step.apply([table], [])
    listed = [name for name, _ in (*COLUMNS, *table.use.hidden)]
    found = set(state.rows(f"SELECT {', '.join(map(quoted, listed))} FROM {place('before', table.relation)}"))
    ((late,),) = state.rows("SELECT coalesce(sum(events), 0) FROM late")
    state.close()
    return found, int(late)


@pytest.mark.parametrize("many", some_each_push([False, True], True), ids=["few", "many"])
@pytest.mark.parametrize(
    "use",
    some_each_push([STREAM, _KEPT, HISTORY, _OTHERS], _KEPT, HISTORY),
    ids=["arrival", "stream", "history", "others"],
)
def test_driver_and_executors_fold_by_the_same_rules(
    apply_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: TableUse, many: bool
) -> None:
    """By the driver's statements, with the rows asked for, or all on executors: from events that wait in the lake."""
    most_over(monkeypatch, 0)
    if not many:
        monkeypatch.setattr("spark_apply.views.cluster.folding.MOST_OVER", 50_000)
    table = SourceTable(use, COLUMNS, ("id",))
    state, lake = ClusterState(tmp_path / "cluster", memory="200MB"), Lake(apply_spark, str(tmp_path / "tables"))
    with state.transaction():
        state.prepare_table(table.relation, COLUMNS, use.hidden, table.row_key)
    kept: dict[str, Kept] = {}
    for number, (limit, rows) in enumerate(_parts(_waiting(use))):
        with state.transaction():
            _insert(state, table, rows)
            if many and number % 2:  # the others wait in the file
                found = state.arrow(f"SELECT * FROM {place('pending', table.relation)}")
                wait(lake, state, table.relation, frame(apply_spark, found, _SCHEMA), COLUMNS)
                state.execute(f"DELETE FROM {place('pending', table.relation)}")
        step = ClusterStep(Running(apply_spark, lake, state, limit), None, None, (), kept)
        with state.transaction():
            step.fold(table, reload=False)
            step.apply([table], [])
        step.end()
        kept |= step.relations
    listed = [spark_quoted(name) for name, _ in (*COLUMNS, *use.hidden)]
    rows = kept[table.relation].frame(apply_spark).select(*listed).collect()
    found, ((late,),) = {tuple(row) for row in rows}, state.rows("SELECT coalesce(sum(events), 0) FROM late")
    assert len(found) == len(rows) == kept[table.relation].number
    assert (found, late) == _embedded(tmp_path / "embedded", table)
    if use.way is Way.HISTORY:
        assert found == versions(_events())
    elif use.way is Way.STREAM:
        assert {row[:4] for row in found} == {row[:4] for row in streamed(_events())}
        assert late > 10
    state.close()


@pytest.mark.parametrize("use", some_each_push([_KEPT, HISTORY], _KEPT), ids=["stream", "history"])
def test_a_step_reads_the_parts_alone_that_may_have_its_keys(
    apply_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: TableUse
) -> None:
    """Of rows that are too old to change nothing is read: their file may be gone."""
    most_over(monkeypatch, 0)
    monkeypatch.setattr("spark_apply.views.cluster.folding.MOST_OVER", 50_000)
    table = SourceTable(use, COLUMNS, ("id",))
    state, lake = ClusterState(tmp_path / "state", memory="200MB"), Lake(apply_spark, str(tmp_path / "tables"))
    with state.transaction():
        state.prepare_table(table.relation, COLUMNS, use.hidden, table.row_key)
    now = (instant(0) - EPOCH) // dt.timedelta(milliseconds=1)
    kept: dict[str, Kept] = {}

    def step(number: int, *ids: int) -> None:
        rows = [(str(id_), position(number), "c", now, id_, instant(0), number, 0) for id_ in ids]
        _insert(state, table, [(key, f"{at}.{n}", *rest) for n, (key, at, *rest) in enumerate(rows)])
        made = ClusterStep(Running(apply_spark, lake, state, position(number + 1)), None, None, (), kept)
        with state.transaction():
            made.fold(table, reload=False)
            if number == 1:
                made.apply([table], [])
        made.end()
        kept.update(made.relations)

    step(1, *range(500))
    files = {path: _ids(apply_spark, path) for path in (tmp_path / "tables").rglob("*.parquet")}
    old = min(files, key=lambda path: max(files[path]))
    assert len(files) > 1
    old.unlink()
    step(2, max(files[old]) + 1, 1_000)
    over = kept[table.relation].over
    assert over is not None
    assert set(over.column("id").to_pylist()) == {max(files[old]) + 1, 1_000}
    state.close()


def _ids(spark: SparkSession, path: Path) -> list[int]:
    return [row[0] for row in spark.read.parquet(str(path)).select("id").collect()]
