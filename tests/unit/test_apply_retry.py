"""A job retries a batch as often as copies were swapped under it; with real rebuilds this cannot be provoked twice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from cdc.model.errors import OperatorError
from spark_apply.job import retry
from spark_apply.spark.failures import waited_for_kafka


class ConflictError(Exception):
    """Stands for Spark's error when the table was swapped meanwhile."""


def _applied(monkeypatch: pytest.MonkeyPatch, errors: list[Exception], swapped: list[bool]) -> int:
    """Return how often the batch was applied if `errors` come first; `swapped` says whether a swap follows each."""
    monkeypatch.setattr(retry, "sized", lambda records, *_, **__: records)
    tried: list[object] = []

    def applier(records: object, *_: object) -> None:
        tried.append(records)
        if len(tried) <= len(errors):
            raise errors[len(tried) - 1]

    conf = SimpleNamespace(get=lambda _: "2")
    looks = iter([False, *swapped])
    swaps: Any = SimpleNamespace(look=lambda **_: next(looks), spark=SimpleNamespace(conf=conf))
    publisher: Any = SimpleNamespace(unread=lambda _: 0, visibility=lambda _: {}, taken_in=dict, claim=lambda _: None)
    given: Any = applier
    records: Any = "records"
    retry.fold_batch(given, swaps, records, publisher, {})
    return len(tried)


def test_a_batch_under_which_copies_of_several_stores_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _applied(monkeypatch, [ConflictError(), ConflictError(), ConflictError()], [True, True, True]) == 4
    assert _applied(monkeypatch, [OperatorError("refused", hint="")], [True]) == 2


def test_a_store_that_is_away_when_copies_are_looked_at_is_contained(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look before a batch sets its copies aside, as one between two batches does; the batch is tried twice."""
    monkeypatch.setattr(retry, "sized", lambda records, *_, **__: records)
    asides: Any = SimpleNamespace(containing=True, over=False)
    contained: list[bool] = []

    def look(**_: object) -> bool:
        contained.append(asides.containing)
        return False

    def applier(*_: object) -> None:
        contained.append(asides.containing)
        if len(contained) == 2:
            raise OperatorError("refused", hint="")

    publisher: Any = SimpleNamespace(unread=lambda _: 0, visibility=lambda _: {}, taken_in=dict, claim=lambda _: None)
    swaps: Any = SimpleNamespace(look=look, spark=SimpleNamespace(conf=SimpleNamespace(get=lambda _: "2")))
    given, records = (applier, "records")
    retry.fold_batch(given, swaps, records, publisher, {}, asides=asides)  # type: ignore[arg-type]
    assert contained == [True, False, True, True]


@pytest.mark.parametrize(
    ("said", "away"),
    [
        ("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment", True),
        ("java.util.concurrent.TimeoutException: Cannot fetch record for offset 7 in 120000 milliseconds", True),
        ("org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized to access topics: [t]", False),
        ("java.util.concurrent.TimeoutException: Futures timed out", False),
    ],
)
def test_a_broker_that_does_not_answer_spark_is_known(said: str, *, away: bool) -> None:
    """What follows: tests/unit/test_kafka_waited_for.py, tests/stores/test_kafka_away.py."""
    assert waited_for_kafka(PySparkException(said)) is away


def test_what_no_swap_explains_is_tried_once_more_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _applied(monkeypatch, [ConflictError()], [False]) == 2
    with pytest.raises(ConflictError):
        _applied(monkeypatch, [ConflictError(), ConflictError()], [False, False])
    with pytest.raises(OperatorError):
        _applied(monkeypatch, [OperatorError("refused", hint="")], [False])
    with pytest.raises(ConflictError):
        _applied(monkeypatch, [ConflictError()] * 100, [True] * 100)
