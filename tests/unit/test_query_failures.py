"""What Spark is told of a batch that has failed: its log is no place for rows, and a long text ends its thread."""

from __future__ import annotations

import traceback

import pytest

from spark_apply.spark.query_failures import BatchFailedError, recorded


def test_spark_gets_few_words_and_we_keep_the_exception() -> None:
    failures: list[Exception] = []
    with pytest.raises(BatchFailedError, match=r"^ValueError$") as caught, recorded(failures):
        _fail("Ada")
    told = "".join(traceback.format_exception(caught.value))
    assert [str(failure) for failure in failures] == ["a row of Ada"]
    assert "Ada" not in told.replace('_fail("Ada")', "")
    assert "KeyError" not in told


def _fail(value: str) -> None:
    try:
        raise KeyError(value)
    except KeyError as exc:
        msg = f"a row of {value}"
        raise ValueError(msg) from exc
