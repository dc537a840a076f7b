"""What `cdc view status` shows people: what is in Kafka and what the job has noted, whether or not the job runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import spark_apply.views.publishing.status
from cdc.cli.main import cdc

FILE = """
name: shop-views
source: {bootstrap_servers: "127.0.0.1:9092", topic_prefix: shop}
state: ./state
views: {a: {sql: "SELECT id FROM public.t", key: [id]}}
"""
NOTHING = dict.fromkeys(("generation", "rows", "quarantined", "late", "computed", "stopped"))


@pytest.mark.parametrize(
    ("found", "cells"),
    [
        ({"published": False}, ["-", "-", "-", "-", "-", "not published yet"]),
        (
            {"published": True, "generation": 2, "rows": 1000, "quarantined": 0, "late": 3, "computed": "units"},
            ["2", "1,000", "0", "3", "by units", "published"],
        ),
        ({"published": True, "generation": 1, "stopped": "why"}, ["1", "-", "-", "-", "-", "stopped: why"]),
    ],
)
def test_what_people_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: dict[str, object], cells: list[str]
) -> None:
    status = {
        "name": "shop-views", "position": None, "freshness_seconds": None, "engine": "duckdb", "streams": {},
        "views": {"a": {"topic": "shop.view.a", **NOTHING, **found}},
    }  # fmt: skip
    monkeypatch.setattr(spark_apply.views.publishing.status, "view_status", lambda _config: status)
    file = tmp_path / "views.yaml"
    file.write_text(FILE)
    shown = CliRunner().invoke(cdc, ["view", "status", str(file)], catch_exceptions=False).stdout
    assert re.split(r"\s{2,}", shown.splitlines()[-1].strip()) == ["a", "shop.view.a", *cells]
