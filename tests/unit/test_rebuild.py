"""A rebuild counts differences, selects copies and writes `Due`; tested without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest

from cdc.config.apply_config import ApplySource, ApplyTable, StoreConfig
from cdc.config.config import ApplyConfig
from cdc.model.change import Kind
from cdc.model.errors import ConfigError
from spark_apply.model.store import Due, Store, StoredRow
from spark_apply.model.target_table import TargetTable, Version, target
from spark_apply.rebuild.diff import Differences, compare
from spark_apply.rebuild.rebuild import _asked_for

ORDERS = target(
    [Version("c", "public", "orders", "t", 1, ("id",), (("id", Kind("int64")), ("status", Kind("string"))))], {}
)
KNOWN = {"public.items": ("index",), "public.orders": ("index", "warehouse")}
CONFIG = ApplyConfig(
    name="shop",
    source=ApplySource(bootstrap_servers="nobody:1", topic_prefix="shop"),
    stores={name: StoreConfig(type="tantivy", path=name) for name in ("index", "warehouse", "unused")},
    tables={"public.*": ApplyTable(stores=("index",))},
    checkpoint="checkpoints",
)


@dataclass
class Rows:
    """As much of a store as is compared."""

    there: list[dict[str, Any]]

    def rows(self, _table: TargetTable) -> Iterator[StoredRow]:
        return (StoredRow("", json.dumps(row)) for row in self.there)


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ([], [], Differences()),
        ([(1, "a"), (2, "b")], [(2, "b"), (1, "a")], Differences(rows=2)),
        ([(1, "a"), (2, "b"), (9, "x")], [(1, "A"), (2, "b"), (3, "c")], Differences(3, 1, 1, 1)),
        ([(1, "a"), (1, "a")], [(1, "a")], Differences(rows=1, only_old=1)),  # a key that is there twice
    ],
)
def test_rows_are_compared_by_key(old: list[tuple[int, str]], new: list[tuple[int, str]], found: Differences) -> None:
    live, beside = (Rows([{"status": status, "id": key} for key, status in rows]) for rows in (old, new))
    assert compare(cast("Store", live), cast("Store", beside), ORDERS) == found


def test_a_column_that_is_missing_in_a_document_is_null() -> None:
    live, beside = Rows([{"id": 1}]), Rows([{"id": 1, "status": None}])
    assert compare(cast("Store", live), cast("Store", beside), ORDERS) == Differences(rows=1)


def test_what_is_asked_for() -> None:
    assert _asked_for(KNOWN, CONFIG, None, None) == KNOWN
    assert _asked_for(KNOWN, CONFIG, "warehouse", None) == {"public.orders": ("warehouse",)}
    assert _asked_for(KNOWN, CONFIG, "index", "public.items") == {"public.items": ("index",)}


@pytest.mark.parametrize(
    ("store", "table", "said", "hint"),
    [
        ("wharehouse", None, "--store wharehouse: there is no such store", "did you mean warehouse?"),
        ("x", None, "--store x: there is no such store", "there are index, unused, warehouse"),
        (None, "public.order", "--table public.order: the job follows no such table", "did you mean public.orders?"),
        ("warehouse", "public.items", "table public.items is not in store warehouse", "public.items: index; "),
        ("unused", None, "no table asked for has store unused", "public.orders: index, warehouse"),
    ],
)
def test_what_there_is_not(store: str | None, table: str | None, said: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _asked_for(KNOWN, CONFIG, store, table)
    assert caught.value.message == said
    assert hint in (caught.value.hint or "")


def test_what_is_due_is_written_down_and_read() -> None:
    due = Due("a", {0: 12, 3: 2**40})
    assert Due.from_json(due.to_json()) == due
