"""Rows shaped by apply.yaml: in stores, when events and shapes change, in rebuild, verify and explain."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from cdc.capture.snapshots.published_rows import PublishedRow, PublishedTables, PublishedWindow
from cdc.config.apply_config import ApplyTable, StoreConfig
from cdc.config.config import ApplyConfig
from cdc.model.change import Kind, Table
from cdc.model.errors import ConfigError, OperatorError
from cdc.model.state import Phase, State
from spark_apply.events.expressions import resolved
from spark_apply.events.kafka.schema_topic import schema_versions
from spark_apply.events.projected import project
from spark_apply.events.projection import followed_table, projected_table
from spark_apply.events.validation import misfits
from spark_apply.job.job import run_apply
from spark_apply.model.store import open_store
from spark_apply.model.target_table import TargetTable, Version
from spark_apply.rebuild.rebuild import run_rebuild, run_rollback
from spark_apply.verify.contents import Contents, contents
from spark_apply.verify.explain import explain
from spark_apply.verify.verify import verify
from tests.spark.laws import ORDERS, Setting, order
from tests.spark.records import SourceTable, position

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread

SHAPE: dict[str, Any] = {
    "columns": ("status",),
    "rename": {"id": "number", "status": "state"},
    "where": "status <> 'draft' AND total < 1000",
    "computed": {"cents": "CAST(total * 100 AS INT)", "shout": "upper(status)"},
    "target": "sales",
}
WIDER: dict[str, Any] = {**SHAPE, "columns": ("status", "total"), "computed": {"shout": "upper(status)"}}


def copied(number: int, status: str) -> dict[str, Any]:
    return {"number": number, "state": status, "cents": number * 100 + 50, "shout": status.upper()}


def by_key(*rows: dict[str, Any]) -> Contents:
    return {json.dumps({"number": row["number"]}, separators=(",", ":")): row for row in rows}


class Shaped:
    """A job that shapes one table, and what its copy holds."""

    def __init__(self, setting: Setting, table: SourceTable) -> None:
        self.setting, self.table = setting, table

    def config(self, **settings: Any) -> ApplyConfig:
        plain = self.setting.config()
        return replace(plain, tables={self.table.qualified: ApplyTable(stores=("copy",), **settings)})

    def target(self, **settings: Any) -> TargetTable:
        config = self.config(**settings)
        versions = schema_versions(config.source)[self.table.qualified]
        return resolved(projected_table(versions, config.tables[self.table.qualified]), self.setting.spark)

    def contents(self, **settings: Any) -> Contents:
        config, spark = self.config(**settings), self.setting.spark.newSession()
        store = open_store(config.stores["copy"], name="copy", prefix=self.setting.prefix, spark=spark)
        try:
            return contents(store, self.target(**settings))
        finally:
            store.close()


@pytest.fixture(params=[pytest.param("iceberg", marks=pytest.mark.full), "tantivy"])
def shaped(request: pytest.FixtureRequest, apply_spark: SparkSession, kafka: str, tmp_path: Path) -> Shaped:
    setting = Setting(apply_spark, kafka, tmp_path, lambda path: StoreConfig(type=request.param, path=str(path)))
    table = setting.table()
    setting.publisher().create([table], partitions=1)
    return Shaped(setting, table)


def test_a_copy_holds_shaped_rows_whatever_becomes_of_them(shaped: Shaped) -> None:
    """In and out of `where`, late, deleted, read again; another shape is refused, rebuilt, rolled back."""
    table, publisher = shaped.table, shaped.setting.publisher()
    rows = [(1, "new", 10), (2, "draft", 11), (3, "new", 12), (4, "paid", 13), (5, "new", 14), (5000, "new", 15)]
    publisher.publish([r for number, status, at in rows for r in table.event("c", order(number, status), position(at))])
    run_apply(shaped.config(**SHAPE), once=True)
    assert shaped.contents(**SHAPE) == by_key(
        *(copied(n, s) for n, s in ((1, "new"), (3, "new"), (4, "paid"), (5, "new")))
    )

    changes = [(1, "draft", 20), (2, "new", 21), (3, "paid", 22), (5, "late", 3)]
    records = [r for number, status, at in changes for r in table.event("u", order(number, status), position(at))]
    publisher.publish(records + table.event("d", order(4), position(23)))
    run_apply(shaped.config(**SHAPE), once=True)
    wanted = by_key(copied(2, "new"), copied(3, "paid"), copied(5, "new"))
    assert shaped.contents(**SHAPE) == wanted

    with pytest.raises(OperatorError, match=r"holds public\.orders in another shape") as refused:
        run_apply(shaped.config(**WIDER), once=True)
    assert "cdc rebuild APPLY.yaml --table public.orders" in (refused.value.hint or "")
    assert shaped.contents(**SHAPE) == wanted

    run_rebuild(shaped.config(**WIDER))
    publisher.publish(table.event("u", order(5, "sent"), position(30)))
    again = run_apply(shaped.config(**WIDER), once=True)
    assert again.batches <= 2  # what was due, what is new: not all from the beginning
    wider = {key: {**row, "total": f"{row['number']}.50"} for key, row in wanted.items()}
    wider['{"number":5}'] |= {"state": "sent", "shout": "SENT"}
    for row in wider.values():
        row.pop("cents")
    assert shaped.contents(**WIDER) == wider
    with pytest.raises(OperatorError, match="in another shape"):
        run_apply(shaped.config(**SHAPE), once=True)

    run_rollback(shaped.config(**WIDER))
    run_apply(shaped.config(**SHAPE), once=True)
    assert shaped.contents(**SHAPE) == by_key(copied(2, "new"), copied(3, "paid"), copied(5, "sent"))


class Held:
    """A source whose rows are what a test says: what `PublishedTables` is to a database."""

    def __init__(self, table: SourceTable, rows: Sequence[dict[str, Any]], also: Sequence[SourceTable] = ()) -> None:
        kinds = {"int64": Kind("int64"), "string": Kind("string"), "decimal": Kind("decimal", 10, 2)}
        self.tables: dict[str, Table] = {}
        for of in (table, *also):
            columns = tuple((name, kinds[about["kind"]]) for name, about in of.columns.items())
            self.tables[of.qualified] = cast("Table", _Captured(of.qualified, ("id",), columns))
        self._rows = rows

    def read(self, name: str) -> Iterator[PublishedWindow]:
        yield PublishedWindow(self.tables[name], [_published(row) for row in self._rows], 0)

    def find(self, name: str, keys: Sequence[Any]) -> Iterator[PublishedWindow]:
        wanted = [key for key in keys if key is not None]
        yield PublishedWindow(
            self.tables[name], [_published(row) for row in self._rows if (b"%d" % row["id"],) in wanted], 0
        )

    def event_key(self, _name: str, key: Any) -> bytes:
        return b'{"id":%b}' % key[0]


class _Column:
    def __init__(self, name: str, kind: Kind) -> None:
        self.name, self.kind = name, kind

    @staticmethod
    def encode(text: bytes) -> bytes:
        return text


class _Captured:
    key_indexes = (0,)

    def __init__(self, qualified: str, key: tuple[str, ...], columns: Sequence[tuple[str, Kind]]) -> None:
        self.qualified, self.key = qualified, key
        self.columns = [_Column(*column) for column in columns]


def _published(row: dict[str, Any]) -> PublishedRow:
    event_key = json.dumps({"id": row["id"]}, separators=(",", ":")).encode()
    return PublishedRow((b"%d" % row["id"],), event_key, json.dumps(row).encode())


def test_verify_and_explain_know_the_shape(apply_spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    """What `where` leaves out is not missing; a computed value that is wrong is named, by the copy's names."""
    setting = Setting(apply_spark, kafka, tmp_path, lambda path: StoreConfig(type="tantivy", path=str(path)))
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table], partitions=1)
    there = [order(1, "new"), order(2, "draft"), order(3, "paid"), order(4, "paid")]
    records = [r for number, row in enumerate(there) for r in table.event("c", row, position(10 + number))]
    publisher.stand(Phase.STREAM, 100, [table], records)
    config = Shaped(setting, table).config(**SHAPE)
    run_apply(config, once=True)

    def standing() -> State:
        return State(connector=setting.prefix, identity={}, phase=Phase.STREAM, epoch=1, commit=100)

    (copy,) = verify(config, cast("PublishedTables", Held(table, there)), standing)
    assert (copy.agrees, copy.rows) == (True, 3)

    now = [order(1, "draft"), order(2, "new"), {**order(3, "paid"), "total": "3.51"}, order(4, "paid")]
    (copy,) = verify(config, cast("PublishedTables", Held(table, now)), standing)
    assert [json.loads(one.key) for one in copy.extra] == [{"number": 1}]
    assert [one.text for one in copy.extra] == [(b"1",)]
    assert [json.loads(one.key) for one in copy.missing] == [{"number": 2}]
    assert [(json.loads(one.key), one.columns) for one in copy.differing] == [({"number": 3}, ("cents",))]

    assert [explain(config, table.qualified, key).outcome for key in "12"] == ["row", "left out"]


def test_expressions_are_spark_s_to_judge(apply_spark: SparkSession) -> None:
    """What cannot be read, found, repeated or kept is refused, in one sentence and without a stack."""
    columns = (("id", Kind("int64")), ("status", Kind("string")), ("at", Kind("timestamptz")))
    version = Version("shop", "public", "orders", "shop.public.orders", 1, ("id",), columns)

    def judged(**settings: Any) -> TargetTable:
        return resolved(projected_table([version], ApplyTable(stores=("lake",), **settings)), apply_spark)

    for settings, said in (
        ({"where": "statu = 'new'"}, "where: A column, variable, or function parameter with name `statu` cannot"),
        ({"where": "status = "}, "where: Syntax error at or near end of input"),
        ({"where": "status"}, "where: it gives string, and has to give true or false"),
        ({"where": "id = (SELECT 1)"}, "where: one value of one row is needed"),
        ({"where": "max(id) = 1"}, "where: one value of one row is needed"),
        ({"where": "row_number() OVER (ORDER BY id) = 1"}, "where: one value of one row is needed"),
        ({"where": "explode(array(true))"}, "where: one value of one row is needed"),
        ({"where": "rand() < 0.5"}, "where: it does not give the same value each time"),
        ({"where": "at > now()"}, "where: it does not give the same value each time"),
        ({"where": "at > 'Yesterday'"}, "where: it does not give the same value each time"),
        ({"where": "status = current_user()"}, "where: it does not give the same value each time"),
        ({"where": "_cdc_key = ''"}, "where: * is of no use here"),
        ({"computed": {"n": "struct(*)"}}, "computed.n: * is of no use here"),
        ({"computed": {"n": "map(id, at)"}}, "computed.n: it gives map<bigint,timestamp>, which copies have no"),
        ({"computed": {"n": "1", "m": "n + 1"}}, "computed.m: A column, variable, or function parameter with"),
        ({"partition_by": ("days(status)",)}, "partition_by: days(status): column status is string"),
    ):
        with pytest.raises(ConfigError) as refused:
            judged(**settings)
        assert refused.value.message.startswith(f"tables.public.orders.{said}")
        assert "\n" not in refused.value.message
    with pytest.raises(ConfigError, match="statu") as refused:
        judged(where="statu = 'new'")
    assert refused.value.hint == "did you mean status?"
    made = judged(columns=("at",), computed={"day": "date(at)", "n": "id % 8S"}, where="status > ''")
    assert [(column.name, column.kind.name) for column in made.columns[2:]] == [("day", "date"), ("n", "int64")]
    assert made.projection is not None
    assert [column.name for column in made.projection.reads.columns] == ["id", "status", "at"]


@pytest.mark.parametrize(("was", "now", "goes_on"), [
    (Kind("date"), Kind("timestamp_micros"), False),
    (Kind("int32"), Kind("float64"), False),
    (Kind("int32"), Kind("string"), False),
    (Kind("int32"), Kind("int64"), True),
    (Kind("decimal", 10, 2), Kind("decimal", 12, 4), True),
    (Kind("string"), Kind("uuid"), True),
])  # fmt: skip
def test_no_expression_reads_a_column_that_only_a_text_holds(
    was: Kind,
    now: Kind,
    goes_on: bool,
    apply_spark: SparkSession,
) -> None:
    """As a text, 9.5 is more than 10.0, and no timestamp is of this year: each row would leave the copy in silence."""
    versions = [
        Version("shop", "public", "orders", "t", number, ("id",), (("id", Kind("int64")), ("a", kind)))
        for number, kind in ((1, was), (2, now))
    ]
    for shape in ({"where": "a >= '2024'", "columns": ("id",)}, {"computed": {"b": "a > '7'"}}):

        def made(of: TargetTable) -> TargetTable:
            return resolved(of, apply_spark)

        if goes_on:
            assert followed_table(versions, ApplyTable(stores=("lake",), **shape), made).version == 2
            continue
        with pytest.raises(OperatorError, match=r"only a text holds .* has changed since version 1") as refused:
            followed_table(versions, ApplyTable(stores=("lake",), **shape), made)
        assert refused.value.hint == "types: {a: string} under tables.public.orders, and an expression over its text"
        settings = ApplyTable(stores=("lake",), types={"a": "string"}, **shape)
        assert followed_table(versions, settings, made).version == 2, "who says so means the text"


def test_an_expression_that_fails_for_a_row_stops_the_job_without_its_value(apply_spark: SparkSession) -> None:
    version = Version("shop", "public", "orders", "t", 1, ("id",), (("id", Kind("int64")), ("status", Kind("string"))))
    event = ('{"id":1}', position(10), "c", 0, 7, 1, 0, '{"id":1,"status":"secret"}')
    columns = "key string, position string, op string, partition int, offset bigint, schema_version int,"
    columns += " source_ms bigint, after string"
    for expression, condition in (("1 / (id - 1)", "DIVIDE_BY_ZERO"), ("CAST(status AS INT)", "CAST_INVALID_INPUT")):
        settings = ApplyTable(stores=("lake",), computed={"n": expression})
        made = resolved(projected_table([version], settings), apply_spark)
        rows = project(apply_spark.createDataFrame([event], columns), made).persist()
        with pytest.raises(OperatorError, match=r"public\.orders: where or computed fails for a row") as refused:
            misfits(rows, made, 1)
        rows.unpersist()
        assert condition in refused.value.message
        assert "secret" not in str(refused.value)
    kept = resolved(projected_table([version], replace(settings, where="status <> 'secret'")), apply_spark)
    (row,) = project(apply_spark.createDataFrame([event], columns), kept).collect()
    assert (row["_cdc_op"], row["id"], row["status"], row["n"]) == ("d", 1, None, None)


def test_an_iceberg_table_is_partitioned_and_so_again(apply_spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    """Also by what changes: a row that moves to another partition is in one alone. New partitions come in place.

    A partition's field has a name of its own, and a value need not be the name of a folder.
    """
    setting = Setting(apply_spark, kafka, tmp_path, lambda path: StoreConfig(type="iceberg", path=str(path)))
    table, publisher = (
        setting.table(columns={**ORDERS, "at": {"kind": "timestamptz"}, "at_day": {"kind": "string"}}),
        setting.publisher(),
    )
    publisher.create([table], partitions=1)
    job = Shaped(setting, table)

    def write(op: str, number: int, status: str, at: int) -> None:
        row = {**order(number, status), "at": f"2026-01-{number + 10}T00:00:00Z", "at_day": "Sunday"}
        publisher.publish(table.event(op, row, position(at)))

    def partitions() -> set[str]:
        return {str(path.parent.relative_to(setting.folder / "copy/public/orders/data")) for path in files()}

    def files() -> list[Path]:
        return list((setting.folder / "copy/public/orders/data").rglob("*.parquet"))

    write("c", 1, "new", 10)
    run_apply(job.config(partition_by=("status", "days(at)")), once=True)
    assert partitions() == {"status=new/at_day_=2026-01-11"}
    write("u", 1, "paid", 11)
    run_apply(job.config(partition_by=("status", "days(at)")), once=True)
    assert "status=paid/at_day_=2026-01-11" in partitions()
    write("u", 1, "sent", 12)
    run_apply(job.config(partition_by=("bucket(4, id)",)), once=True)
    assert any("id_bucket" in name for name in partitions())
    (row,) = job.contents().values()
    assert row["status"] == "sent"
    write("u", 1, "long" * 99, 13)
    assert not run_apply(job.config(partition_by=("status", "days(at)")), once=True).aside
    (row,) = job.contents().values()
    assert (row["status"], row["at_day"]) == ("long" * 99, "Sunday")
    publisher.versions([setting.table(columns={**table.columns, "id_bucket_4": {"kind": "int64"}}, version=2)])
    with pytest.raises(OperatorError, match="column id_bucket_4: a field of its partitions has this name") as told:
        run_apply(job.config(), once=True)
    assert "rename: {id_bucket_4: …} under tables.public.orders" in (told.value.hint or "")
