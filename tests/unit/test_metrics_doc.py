"""docs/metrics.md has every metric with its type, labels and meaning, and no other; names follow the conventions."""

from __future__ import annotations

import re
from pathlib import Path

from cdc.telemetry import metrics

DOCS = Path(__file__).parents[2] / "docs"


def test_every_metric_has_its_line() -> None:
    text = (DOCS / "metrics.md").read_text()
    rows = re.findall(r"^\| `(cdc_\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", text, re.MULTILINE)
    told = [(name, kind, tuple(re.findall(r"`(\w+)`", labels)), said) for name, kind, labels, said in rows]
    assert told == [(one.name, one.kind, one.labels, one.help) for one in metrics.EVERY]


def test_names_follow_prometheus_conventions() -> None:
    """Base units, `_total` of counters alone, times as `_timestamp_seconds`; no label that Prometheus sets itself."""
    for one in metrics.EVERY:
        assert re.fullmatch(r"cdc_[a-z]+(_[a-z]+)*", one.name)
        assert (one.kind == "counter") == one.name.endswith("_total"), one.name
        assert not re.search(r"_(ms|millis|minutes|hours|mb|kb|percent)(_|$)", one.name)
        assert "timestamp" not in one.name or one.name.endswith("_timestamp_seconds")
        set_already = {"job", "instance", *(("fleet", "member") if one in metrics.FLEET else ("connector", "apply"))}
        assert not set_already & set(one.labels)
        assert (one.kind == "histogram") == bool(one.bounds)
        assert one.help.endswith(".")
