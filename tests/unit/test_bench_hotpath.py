"""The benchmark that needs no server still runs: it goes past the connectors' own ways in."""

from __future__ import annotations

import pytest

from bench.capture import metering
from bench.capture.hotpath import measure
from tests.pushes import some_each_push


@pytest.mark.parametrize("per_transaction", some_each_push([1, 100], 100))
@pytest.mark.parametrize("source", ["postgres", "mysql"])
def test_each_stage_is_gone_through(source: str, per_transaction: int) -> None:
    """Received, decoded, written, in both formats: each has cost something."""
    found = measure(source, 1_000, per_transaction, 1, None)
    assert list(found) == [
        "received",
        "decoded",
        "written",
        "as flat",
        "as avro",
        "flat avro",
        "as protobuf",
        "flat protobuf",
    ]
    assert found["written"] > 0


@pytest.mark.parametrize("source", some_each_push(["postgres", "mysql"], "postgres"))
def test_what_metrics_cost_is_measured(source: str) -> None:
    """With and without, and inside the meter; `/metrics` of many tables is scraped."""
    without, with_meter, inside = metering.measure(source, 1_000, 1, 1)
    assert min(without, with_meter) > inside > 0
    assert len(metering.scrapes_ms("text/plain")) > 1
