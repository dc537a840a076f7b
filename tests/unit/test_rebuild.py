"""A rebuild counts differences, selects copies and writes `Due`; tested without Spark."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import pytest

from cdc.config.apply_config import ApplySource, ApplyTable, StoreConfig
from cdc.config.config import ApplyConfig
from cdc.model.change import Kind
from cdc.model.errors import BugError, CdcError, ConfigError, OperatorError
from spark_apply.model.store import Due, Store, StoredRow
from spark_apply.model.target_table import TargetTable, Version, target
from spark_apply.rebuild import rebuild
from spark_apply.rebuild.diff import Differences, compare
from spark_apply.rebuild.rebuild import Rebuilt, _asked_for, _Rebuilding, run_rollback

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


def test_a_copy_that_fails_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither another table's nor another store's; what Spark itself has, or a bug, ends the command."""
    broken: dict[str, Exception] = {"warehouse": OperatorError("it is append-only")}

    def one(_spark: object, _config: object, table: TargetTable, stores: Mapping[str, Store], _tell: object) -> Any:
        for name in stores:
            if name in broken:
                raise broken[name]
        return [Rebuilt(table.qualified, name, 1, Differences()) for name in stores]

    monkeypatch.setattr(rebuild, "_rebuild", one)

    def ended(*names: str) -> list[Rebuilt]:
        made = _Rebuilding(cast("Any", None), CONFIG, lambda _line: None)
        for each in names:
            made.rebuild(ORDERS, {name: cast("Store", None) for name in each.split()})
        return made.ended()

    assert [of.store for of in ended("index", "search index")] == ["index", "search", "index"]
    with pytest.raises(OperatorError, match=r"^it is append-only"):
        ended("warehouse")
    said = "some copies are not rebuilt: public.orders in warehouse: it is append-only. Rebuilt are: "
    with pytest.raises(OperatorError) as refused:
        ended("index warehouse", "search")
    assert refused.value.message == said + "public.orders in index, public.orders in search"
    assert refused.value.hint == "cdc rebuild APPLY.yaml --table public.orders --store warehouse"
    with pytest.raises(OperatorError) as refused:
        ended("warehouse", "warehouse")
    assert refused.value.message.endswith("Rebuilt are: none")
    for bug in (BugError("ours"), ValueError("ours")):
        broken["warehouse"] = bug
        with pytest.raises((CdcError, ValueError), match="ours"):
            ended("index warehouse")


@dataclass
class Kept:
    """As much of a store as is put back."""

    broken: Exception | None = None
    put_back: int = 0

    def previous(self, _table: TargetTable) -> dt.datetime:
        return dt.datetime(2026, 3, 1, tzinfo=dt.UTC)

    def roll_back(self, _table: TargetTable, due: Due) -> None:
        assert due.live_until_ms == self.previous(ORDERS).timestamp() * 1000
        if self.broken is not None:
            raise self.broken
        self.put_back += 1


def test_a_copy_that_cannot_be_put_back_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was put back cannot be once more, so the error names it; where the first one fails, nothing is done."""
    gone = OperatorError("files of the copy before are gone")
    stores, told = {name: Kept() for name in ("index", "lake", "warehouse")}, list[str]()

    @contextlib.contextmanager
    def opened(*_asked: object) -> Iterator[object]:
        yield None, [(ORDERS, stores)], {}

    monkeypatch.setattr(rebuild, "opened", opened)
    monkeypatch.setattr(rebuild, "table_logs", lambda *_asked: {})
    assert [of.store for of in run_rollback(CONFIG)] == ["index", "lake", "warehouse"]
    stores["lake"].broken = gone
    with pytest.raises(OperatorError) as refused:
        run_rollback(CONFIG, progress=told.append)
    said = "some copies are not put back: public.orders in lake: files of the copy before are gone. Put back are: "
    assert refused.value.message == said + "public.orders in index, public.orders in warehouse"
    assert refused.value.hint == "cdc rebuild APPLY.yaml --table public.orders --store lake --rollback"
    assert told[-1].startswith("warning: public.orders in lake is not put back, the others go on: ")
    assert [of.put_back for of in stores.values()] == [2, 1, 2]
    stores["index"].broken = gone
    with pytest.raises(OperatorError, match=r"^files of the copy before are gone"):
        run_rollback(CONFIG)
    stores["index"].broken, stores["lake"].broken = None, ValueError("ours")
    with pytest.raises(ValueError, match="ours"):
        run_rollback(CONFIG, progress=told.append)
    assert told[-1] == "warning: put back are public.orders in index; the others are not"
    assert [of.put_back for of in stores.values()] == [3, 1, 2]
