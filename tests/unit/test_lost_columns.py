"""A column that a copy had and has no more is never made again empty; one that is new is added."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc.config.apply_config import ApplyTable
from cdc.model.change import Kind
from cdc.model.errors import BugError, OperatorError
from spark_apply.events.projection import projected_table
from spark_apply.model.completeness import LOST, Mark
from spark_apply.model.lost_columns import lost_columns, refuse_lost
from spark_apply.model.target_table import TargetTable, Version, target
from spark_apply.stores.delta.store import DeltaStore
from spark_apply.stores.iceberg.store import IcebergStore
from spark_apply.stores.iceberg.tables import IcebergTables

TEXT = Kind("string")


def _table(*versions: tuple[str, ...]) -> TargetTable:
    made = [
        Version("shop", "public", "orders", "shop.public.orders", number, ("id",), tuple((n, TEXT) for n in columns))
        for number, columns in enumerate(versions, 1)
    ]
    return target(made, {})


TABLE = _table(("id", "status"), ("id", "status", "note"))
WANTED = ("id", "status", "note", "_cdc_position")


@pytest.mark.parametrize(
    ("version", "there", "lost"),
    [
        (1, ("id", "status", "_cdc_position"), []),  # the column is newer than the copy
        (1, ("id", "state", "_cdc_position"), ["status"]),  # renamed there
        (2, ("id", "status", "_cdc_position"), ["note"]),
        (2, WANTED, []),
        (2, ("id", "status", "note"), ["_cdc_position"]),  # without it an older event would win
        (0, ("id",), []),  # made by an earlier release: nobody knows what it had
        (LOST, ("id", "status", "_cdc_position"), ["note"]),
    ],
)
def test_what_a_copy_had_and_has_no_more(version: int, there: tuple[str, ...], lost: list[str]) -> None:
    mark = Mark({}, None, version=version)
    assert lost_columns(TABLE, WANTED, dict.fromkeys(there), mark) == lost
    assert Mark.from_json(mark.to_json()) == mark


def test_a_copy_without_its_columns_is_refused_until_it_is_made_again() -> None:
    """Also where a rebuild has given it empty ones, and was killed before the swap."""
    all_there: dict[str, int | str | None] = dict.fromkeys(WANTED)
    refuse_lost(TABLE, WANTED, all_there, Mark({}, None, version=2), "table t")
    refuse_lost(TABLE, WANTED, {}, None, "table t")
    with pytest.raises(OperatorError, match="table t has no column status any more") as refused:
        refuse_lost(TABLE, WANTED, dict.fromkeys(("id", "note", "_cdc_position")), Mark({}, None, version=2), "table t")
    assert str(refused.value.hint).startswith("cdc rebuild APPLY.yaml --table public.orders")
    with pytest.raises(OperatorError, match="table t has columns without the values of its rows"):
        refuse_lost(TABLE, WANTED, all_there, Mark({}, None, version=LOST), "table t")


@pytest.mark.parametrize(
    ("had", "has", "lost"),
    [
        ({"id": 1, "status": 2, "note": 3}, {"id": 1, "status": 2, "note": 3}, []),
        ({"id": 1, "status": 2, "note": 3}, {"id": 1, "status": 3, "note": 2}, ["status", "note"]),  # swapped
        ({"id": 1, "status": 2}, {"id": 1, "status": 4, "note": 3}, ["status"]),  # dropped and added
        ({}, {"id": 1, "status": 4, "note": 3}, []),  # marked by an earlier release
        ({"id": 1}, {"id": None, "status": None, "note": None}, []),  # a store that numbers none any more
        ({"status": "col-1"}, {"id": "id", "status": "status", "note": "note"}, []),  # which Delta writes as names
        ({"status": "status", "note": "note"}, {"id": "id", "status": "note", "note": "col-2"}, ["status", "note"]),
    ],
)
def test_another_column_of_a_name_has_not_its_values(
    had: dict[str, int | str], has: dict[str, int | str | None], lost: list[str]
) -> None:
    mark = Mark({}, None, version=2, columns=had)
    assert lost_columns(TABLE, ("id", "status", "note"), has, mark) == lost
    assert Mark.from_json(mark.to_json()).columns == had
    assert replace(mark, columns={}) == mark, "else each start would write it once more"
    if lost:
        with pytest.raises(OperatorError, match=f"table t has another column {', '.join(lost)} than it had: "):
            refuse_lost(TABLE, ("id", "status", "note"), has, mark, "table t")


def test_a_column_that_the_source_dropped_and_made_again_is_no_new_one() -> None:
    table = _table(("id", "status"), ("id",), ("id", "status"))
    assert lost_columns(table, ("id", "status"), {"id": None}, Mark({}, None, version=2)) == ["status"]


@pytest.mark.parametrize(
    ("store", "name"),
    [
        ("iceberg", "_deleted"),
        ("iceberg", "_file"),
        ("delta", "_file_name_"),
        ("delta", "_metadata"),
        ("delta", "_row_id_"),
    ],
)
def test_a_name_that_a_table_format_has_for_itself_is_refused_before_anything_is_made(
    store: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first load would pass; then no row could be changed, or none be read. A copy that can be written goes on."""
    if name == "_deleted":
        monkeypatch.setattr(IcebergTables, "is_there", lambda *_: True)
        with pytest.raises(BugError, match="marks alone"):  # behind the refusal
            IcebergStore("lake", None).open(_table(("id", name)))
        monkeypatch.setattr(IcebergTables, "is_there", lambda *_: False)
    stores = {"iceberg": IcebergStore("lake", None), "delta": DeltaStore("/lake", None)}
    with pytest.raises(OperatorError, match=f"column {name}: a column of the format's own has this name") as told:
        stores[store].open(_table(("id", name)))
    assert f"rename: {{{name}: …}} under tables.public.orders" in str(told.value.hint)
    renamed = projected_table([VERSION_OF_FILE], ApplyTable(stores=("lake",), rename={"_file": "file"}))
    with pytest.raises(BugError, match="marks alone"):  # behind the refusal
        stores[store].open(renamed)


VERSION_OF_FILE = Version("shop", "public", "orders", "shop.public.orders", 1, ("id",), (("id", TEXT), ("_file", TEXT)))
