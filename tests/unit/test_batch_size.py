"""A batch is planned for its size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from spark_apply.job import _size


@pytest.mark.parametrize(
    ("events", "tasks", "adaptive"),
    [(0, 1, False), (49_999, 1, False), (50_000, 1, True), (100_000, 2, True), (1_000_000, 4, True)],
    ids=str,
)
def test_tasks_grow_with_a_batch_up_to_what_the_job_was_given(events: int, tasks: int, *, adaptive: bool) -> None:
    conf: dict[str, Any] = {}
    session = SimpleNamespace(conf=SimpleNamespace(set=conf.__setitem__))
    _size(cast("SparkSession", session), events, most=4)
    assert list(conf.values()) == [tasks, adaptive]
