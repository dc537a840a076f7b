"""A job that is stopped leaves nothing to do twice."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.model.errors import OperatorError
from cdc.model.meter import NO_JOB_METER
from spark_apply.job.batch_loop import BatchLoop
from spark_apply.job.checkpoint import files as checkpoints
from spark_apply.job.pace import JobFigures


@pytest.mark.parametrize("then", ["it is noted", "the query has ended", "it cannot be asked"])
def test_spark_has_noted_the_last_batch_before_its_query_is_stopped(monkeypatch: pytest.MonkeyPatch, then: str) -> None:
    """A batch that is not noted is applied again by the next start, ahead of what is new."""
    told: list[str] = []

    def noted(_spark: object, checkpoint: str, batch: int) -> bool:
        told.append(f"{checkpoint} {batch}")
        if len(told) == 4 and then == "it cannot be asked":
            raise OperatorError("the disk is away")
        return len(told) == 4 and then == "it is noted"

    class Query:
        @property
        def isActive(self) -> bool:  # noqa: N802 - Spark's name
            return len(told) < 4

        def stop(self) -> None:
            told.append("stopped")

    monkeypatch.setattr(checkpoints, "is_committed", noted)
    monkeypatch.setattr(BatchLoop, "_begin", lambda *_: Query())
    nothing: Any = SimpleNamespace(
        publish_pending=lambda: None, look=lambda **_: None, found=False, checkpoint="place", routes={}, counts={}
    )
    start: Any = SimpleNamespace(spark=None, tell=told.append, applier=nothing)
    stop = threading.Event()
    stop.set()
    figures = JobFigures(NO_JOB_METER, nothing, nothing, nothing)
    loop = BatchLoop(start, *[nothing] * 6, figures, once=False, stop=stop)
    loop._last = 7
    loop.run([])
    assert told[1:] == ["place 7", "place 7", "place 7", "stopped"]
