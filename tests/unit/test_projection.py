"""The projection of a table is checked before Spark starts: names, targets and partitions of apply.yaml."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cdc.config.apply_config import ApplySource, ApplyTable, StoreConfig
from cdc.config.config import ApplyConfig
from cdc.model.change import Kind
from cdc.model.errors import ConfigError, OperatorError
from spark_apply.events.projection import fingerprint, followed_table, projected_table
from spark_apply.events.selection import fitting, fitting_one
from spark_apply.model.identity import identity_of, stamp
from spark_apply.model.target_table import Partition, TargetTable, Version

COLUMNS = (("id", Kind("int64")), ("status", Kind("string")), ("total", Kind("decimal", 10, 2)))


def shape(table: str = "orders", **settings: Any) -> TargetTable:
    version = Version("shop", "public", table, f"shop.public.{table}", 1, ("id",), COLUMNS)
    return projected_table([version], follow(**settings))


def follow(**settings: Any) -> ApplyTable:
    return ApplyTable(stores=("lake",), **settings)


def test_columns_are_chosen_and_renamed() -> None:
    """The key is always there; a name may change hands; events are still read by the source's names."""
    made = shape(columns=("total",), rename={"id": "total", "total": "id"}, target="sales")
    assert [(column.name, column.source) for column in made.columns] == [("total", "id"), ("id", "total")]
    assert (made.key, made.source_key, made.qualified, made.copy_name) == (
        ("total",),
        ("id",),
        "public.orders",
        "sales",
    )
    assert shape().projection is None


@pytest.mark.parametrize(
    ("settings", "said", "hint"),
    [
        ({"columns": ("statu",)}, "columns: statu: the table has no such column", "did you mean status"),
        ({"rename": {"statu": "s"}}, "rename.statu: the table has no such column", "did you mean status"),
        (
            {"columns": ("total",), "rename": {"status": "s"}},
            "rename.status: `columns` leaves this",
            "columns: id, tot",
        ),
        ({"rename": {"status": "total"}}, "column total and column status would both be total", "another name"),
        ({"computed": {"id": "1"}}, "computed.id and column id would both be id", "another name"),
        ({"computed": {"_cdc_x": "1"}}, "column _cdc_x: names that begin with _cdc_ are ours", "choose another"),
        ({"target": "_cdc_x"}, "target: names that begin with _cdc_ are ours", "choose another"),
        ({"partition_by": ("dayz(total)",)}, "dayz(total): this is no way to partition", "did you mean days"),
        ({"partition_by": ("bucket(id)",)}, "bucket(id): this is no way to partition", "bucket(16, id)"),
        ({"partition_by": ("days(at)",)}, "days(at): the copy has no column at", "columns: id, status, total"),
        ({"rename": {"id": "no"}, "partition_by": ("id",)}, "id: the copy has no such column", "columns: no"),
    ],
)
def test_what_no_table_can_look_like(settings: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        shape(**settings)
    assert refused.value.message.startswith("tables.public.orders")
    assert said in refused.value.message
    assert hint in (refused.value.hint or "")


@pytest.mark.parametrize(
    "settings",
    [{"columns": ("id", "id")}, {"where": " "}, {"target": ""}, {"computed": {"n": ""}}, {"rename": {"id": ""}}],
)
def test_what_no_file_can_say(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        follow(**settings)


def test_partitions_are_columns_or_functions_of_one() -> None:
    made = shape(partition_by=("status", "bucket(16, id)", "truncate( 4 ,status )", "n"), computed={"n": "1"})
    assert made.partition_by == (
        Partition("status"),
        Partition("id", "bucket", 16),
        Partition("status", "truncate", 4),
        Partition("n"),
    )


def known(*names: str) -> dict[str, list[Version]]:
    """As the schema topic has them: in the order in which they came."""
    return {f"public.{name}": [Version("shop", "public", name, f"t.{name}", 1, ("id",), COLUMNS)] for name in names}


def job(kind: str = "iceberg", **tables: ApplyTable) -> ApplyConfig:
    source, path = ApplySource(bootstrap_servers="nowhere:1", topic_prefix="t"), "/tmp/unused"
    shapes = {f"public.{name}": of for name, of in tables.items()}
    stores = {"lake": StoreConfig(type=kind, path=path)}
    return ApplyConfig(name="job", source=source, stores=stores, tables=shapes, checkpoint="/checkpoints")


def test_two_tables_have_two_places_in_a_store_and_partitions_only_where_there_are_any() -> None:
    places = {"orders": follow(), "items": follow(target="orders")}
    with pytest.raises(ConfigError, match=r"both would be public\.orders in store lake"):
        fitting(job(**places), known("orders", "items"))
    assert list(fitting(job(**places), known("orders", "items"), but=("public.items",)).made) == ["public.orders"]
    parted = {"orders": follow(partition_by=("id",))}
    assert fitting(job(**parted), known("orders")).errors == {}
    with pytest.raises(ConfigError, match="store lake, of type tantivy, has no partitions"):
        fitting(job("tantivy", **parted), known("orders"))


@pytest.mark.parametrize(
    ("tables", "left"),
    [
        ({"*": {"target": "one"}}, {"b": "both would be public.one", "a": "both would be public.one"}),
        ({"*": {"target": "one"}, "b": {"target": "one"}}, {"z": "tables.public.b", "a": "tables.public.b"}),
        ({"*": {}, "b": {"target": "a"}}, {"a": "both would be public.a"}),
        ({"z": {"target": "a"}, "*": {"rename": {"no": "x"}}}, {"b": "rename.no", "a": "public.z: both would be"}),
        ({"b*": {"columns": ("no",), "target": "a"}, "*": {}}, {"b": "columns: no"}),
    ],
)
def test_what_a_pattern_brings_stops_no_other(tables: dict[str, Any], left: dict[str, str]) -> None:
    """A name has a place before a pattern, and of two patterns' tables the one that came first."""
    judged = fitting(job(**{name: follow(**of) for name, of in tables.items()}), known("z", "b", "a"))
    assert {name.removeprefix("public.") for name in judged.errors} == set(left)
    assert set(judged.made) == set(judged.settings) - set(judged.errors)
    for name, said in left.items():
        assert said in judged.errors[f"public.{name}"].message
    for name in judged.settings:
        alone = fitting_one(job(**{name: follow(**of) for name, of in tables.items()}), known("z", "b", "a"), name)
        assert (name in alone.errors) == (name in judged.errors)


def test_a_table_that_cannot_go_on_keeps_its_place() -> None:
    """Another one would write into its copy."""
    versions = known("z", "a")
    more = (*COLUMNS, ("state", Kind("string")))
    versions["public.z"].append(replace(versions["public.z"][0], number=2, columns=more))
    both = job(**{"*": follow(rename={"status": "state"}, target="one")})
    judged = fitting(both, versions)
    assert "since version 1" in judged.errors["public.z"].message
    assert "both would be public.one" in judged.errors["public.a"].message


def test_a_copy_is_known_by_its_shape_but_not_by_its_place() -> None:
    """Another shape is refused with the command for it; the identity stays, so the checkpoint stays valid."""
    plain, moved, shaped = shape(), shape(target="sales", partition_by=("id",)), shape(where="total > 0")
    made = stamp(plain)
    assert identity_of(made, moved, "copy") == made
    with pytest.raises(OperatorError, match=r"copy holds public\.orders in another shape") as refused:
        identity_of(made, shaped, "copy")
    assert "cdc rebuild APPLY.yaml --table public.orders" in (refused.value.hint or "")
    assert identity_of(stamp(shaped, made), shaped, "copy") == made
    assert stamp(plain, stamp(shaped, made)) == made
    assert fingerprint(follow(columns=("id", "total"))) == fingerprint(follow(columns=("total", "id")))


def _versions(*tables: tuple[tuple[str, ...], tuple[str, ...]]) -> list[Version]:
    """Versions of a table with these keys and further columns."""
    return [
        Version("shop", "public", "t", "shop.public.t", n, key, (*COLUMNS, *((name, Kind("string")) for name in more)))
        for n, (key, more) in enumerate(tables, 1)
    ]


def test_a_copy_is_known_by_the_key_that_its_rows_are_under() -> None:
    """One of the first key has no mark, as those of earlier releases; with a shape, too; a key that came back is it."""
    old, new = (("id",), ()), (("id", "status"), ())
    before, after, back = (projected_table(_versions(*of), follow()) for of in ([old], [old, new], [old, new, old]))
    made = stamp(before)
    assert stamp(after, made) != made
    assert identity_of(stamp(after, made), after, "copy") == made
    assert identity_of(made, back, "copy") == made
    for stamped, table, key in ((made, after, r"\(id, status\)"), (stamp(after, made), back, r"\(id\)")):
        with pytest.raises(OperatorError, match=rf"copy has the rows .* under another key .* {key}") as refused:
            identity_of(stamped, table, "copy")
        assert "cdc rebuild APPLY.yaml --table public.t" in (refused.value.hint or "")
    shaped = projected_table(_versions(old, new), follow(rename={"id": "number"}))
    assert identity_of(stamp(shaped, made), shaped, "copy") == made
    with pytest.raises(OperatorError, match="in another shape"):
        identity_of(stamp(after, made), shaped, "copy")
    history = projected_table(_versions(old, new), follow(mode="history"))
    with pytest.raises(OperatorError, match="under another key") as refused:
        identity_of(made, history, "copy")
    assert "target: t_history_2" in (refused.value.hint or "")


def test_what_fitted_an_earlier_version_is_of_that_table_alone() -> None:
    settings = follow(rename={"status": "state"})
    plain, clash = (("id",), ()), (("id",), ("state",))
    with pytest.raises(OperatorError, match=r"would both be state in the copy: .* has changed since version 1") as told:
        followed_table(_versions(plain, clash), settings)
    assert "choose another name" in (told.value.hint or "")
    with pytest.raises(ConfigError, match="would both be state"):
        followed_table(_versions(clash, clash), settings)
    assert followed_table(_versions(clash, clash), follow()).key == ("id",)
