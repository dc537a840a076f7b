"""The benchmark that needs no server still runs: it goes past the connectors' own ways in."""

from __future__ import annotations

import pytest

from bench.capture.hotpath import measure


@pytest.mark.parametrize("per_transaction", [1, 100])
@pytest.mark.parametrize("source", ["postgres", "mysql"])
def test_each_stage_is_gone_through(source: str, per_transaction: int) -> None:
    """Received, decoded, written, in both formats: each has cost something."""
    found = measure(source, 1_000, per_transaction, 1, None)
    assert list(found) == ["received", "decoded", "written", "as flat"]
    assert found["written"] > 0
