"""A batch is planned for its size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame

from spark_apply.job.batch.size import sized
from spark_apply.spark.plans import planned_for_many


@pytest.mark.parametrize(
    ("events", "tasks", "adaptive"),
    [(0, 1, False), (49_999, 1, False), (50_000, 1, True), (100_000, 2, True), (1_000_000, 4, True)],
    ids=str,
)
def test_tasks_grow_with_a_batch_up_to_what_the_job_was_given(events: int, tasks: int, *, adaptive: bool) -> None:
    conf, records = _records()
    sized(records, events, most=4)
    assert (conf["spark.sql.shuffle.partitions"], conf["spark.sql.adaptive.enabled"]) == (tasks, adaptive)


@pytest.mark.parametrize(("events", "alone"), [(0, True), (10_000, True), (10_001, False), (1_000_000, False)], ids=str)
def test_a_small_batch_is_read_by_one_task_without_compiled_code(events: int, *, alone: bool) -> None:
    conf, records = _records()
    assert (sized(records, events, most=4) is not records) == alone
    assert conf["spark.sql.codegen.wholeStage"] == ("false" if alone else "true")


def test_what_reads_a_whole_table_is_compiled_in_a_small_batch_too() -> None:
    conf, records = _records()
    sized(records, 1, most=4)
    small = dict(conf)
    with planned_for_many(records.sparkSession):
        assert {conf[name] for name in conf if ".codegen." in name} == {"true", "FALLBACK"}
    assert conf == small


def _records() -> tuple[dict[str, Any], DataFrame]:
    """A batch, with what is set for it."""
    conf: dict[str, Any] = {}
    session = SimpleNamespace(conf=SimpleNamespace(set=conf.__setitem__, get=conf.__getitem__))
    return conf, cast("DataFrame", SimpleNamespace(sparkSession=session, coalesce=lambda tasks: {1: "one task"}[tasks]))
