"""A disk that is full, and a checkpoint that two jobs have, are told with the place, and by no other error."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JError

from cdc.model.errors import OperatorError
from spark_apply.job.copies.set_aside import told
from spark_apply.spark.query_failures import raise_failure
from spark_apply.stores.tantivy.store import TantivyStore

FULL = Py4JError("java.io.IOException: No space left on device")


def test_a_checkpoint_is_named() -> None:
    query: Any = SimpleNamespace(exception=lambda: FULL)
    with pytest.raises(OperatorError, match=r"^checkpoint /c/1: Spark stopped: .*: its disk is full\n"):
        raise_failure(query, [], recovery="", checkpoint="/c/1")


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (None, "its query was stopped by another hand in this process: another job with this checkpoint, or q.stop() "),
        (
            Py4JError("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log."),
            "another job has begun to use it\n",
        ),
    ],
)
def test_of_two_jobs_with_one_checkpoint_the_one_that_ends_says_so(failure: Exception | None, said: str) -> None:
    """Spark does not tell the first of one JVM from a query that somebody stops. tests/stores/test_checkpoint.py."""
    query: Any = SimpleNamespace(exception=lambda: failure)
    with pytest.raises(OperatorError, match=f"^checkpoint /c/1: {re.escape(said)}"):
        raise_failure(query, [], recovery="", checkpoint="/c/1")


def test_a_copy_is_named() -> None:
    assert told(FULL, "public.orders", "lake").message.startswith("public.orders in lake: its disk is full. ")


@pytest.mark.parametrize(
    "failure",
    [
        "java.io.IOException: Disk quota exceeded",
        "org.apache.hadoop.hdfs.protocol.NSQuotaExceededException: The NameSpace quota of directory /lake is exceeded",
        "org.apache.hadoop.hdfs.protocol.DSQuotaExceededException: The DiskSpace quota of /lake is exceeded",
    ],
)
def test_a_quota_is_named(failure: str) -> None:
    error = told(Py4JError(failure), "public.orders", "lake")
    assert error.message.startswith("public.orders in lake: the quota there is used up. ")


def test_an_index_whose_writer_has_failed_is_closed(tmp_path: Path) -> None:
    """What it could not write was told by the commit; its error here would hide that one, and keep others open."""
    closed: list[str] = []

    def opened(table: str, exc: Exception | None) -> Any:
        def close() -> None:
            closed.append(table)
            if exc is not None:
                raise exc

        return SimpleNamespace(writer=SimpleNamespace(wait_merging_threads=close))

    store = TantivyStore(tmp_path)
    held = cast("dict[str, Any]", store._open)
    held |= {
        "public.full": opened("public.full", ValueError("worker thread failed")),
        "public.b": opened("public.b", None),
    }
    store.close()
    store.close()
    assert closed == ["public.full", "public.b"]
