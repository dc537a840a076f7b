"""The demo's last part damages two derived rows behind the job's back; `cdc verify` finds and repairs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from cdc.config import registry
from cdc.config.config import ConnectorConfig
from cdc.dev.demos.demo import Demo, Tell
from cdc.model.errors import BugError

TABLE: Final = "public.products"
STATEMENT: Final = "UPDATE warehouse.public.products SET price = 0.01 WHERE id = 107"
CHANGED: Final = '{"id":107}'
TAKEN: Final = '{"id":108}'
_PATIENCE_S: Final = 60.0

Report = Sequence[Mapping[str, Any]]
"""`spark_apply.verify.compared.ComparedCopy.as_json` of each copy of the table."""


@dataclass(frozen=True, slots=True)
class Repair:
    """The results of `cdc verify` before and after the repair."""

    found: Report
    asked: Mapping[str, int]
    """By table, how many rows the connector was asked to publish again."""
    after: Report

    @property
    def wrong(self) -> int:
        """Count damaged rows that were not found, other rows that were, and rows that still differ."""
        expected = {("warehouse", "differing", CHANGED, "price"), ("search", "missing", TAKEN, "")}
        return len(expected ^ _named(self.found)) + len(_named(self.after))


def damage(demo: Demo) -> None:
    """Change one cell of the warehouse and take one document from the index; the apply job must have ended."""
    demo.change_warehouse(STATEMENT)
    demo.take_from_index(TABLE, TAKEN)


Ask = Callable[[ConnectorConfig, Path, Iterable[Any]], dict[str, int]]
"""Asks a connector, by its config and file, for the rows of these copies that differ."""


def repair(demo: Demo, ask: Ask, tell: Tell) -> Repair:
    """Do what `cdc verify --repair`, `cdc apply --once` and `cdc verify` do, one after the other."""
    found = _verify(demo, tell)
    asked = ask(demo.connector_config, demo.connector_file, found)
    _await(lambda: all(_again(demo, key) for key in (CHANGED, TAKEN)))
    demo.finish_apply()
    after = _verify(demo, tell)
    return Repair([copy.as_json() for copy in found], asked, [copy.as_json() for copy in after])


def _verify(demo: Demo, tell: Tell) -> list[Any]:
    with registry.part("cdc.capture.snapshots.published_rows:open_published")(demo.connector_config) as published:
        copies: list[Any] = registry.part("spark_apply.verify.verify:verify")(
            demo.apply_config, published, demo.standing, table=TABLE, progress=tell
        )
    return copies


def _again(demo: Demo, key: str) -> bool:
    event = demo.event(TABLE, key.encode())
    return event is not None and event["source"]["snapshot"] == "incremental"


def _await(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not true():
        if time.monotonic() > deadline:
            raise BugError(f"what verify asked for was not published again within {_PATIENCE_S:.0f} s")
        time.sleep(0.1)


def _named(report: Report) -> set[tuple[str, str, str, str]]:
    """List each row that is wrong: store, what is wrong, key and columns."""
    found = set()
    for copy in report:
        for one in copy["differing"]:
            found.add((copy["store"], "differing", orjson.dumps(one["key"]).decode(), ",".join(one["columns"])))
        for what in ("missing", "extra"):
            found |= {(copy["store"], what, orjson.dumps(key).decode(), "") for key in copy[what]}
    return found
