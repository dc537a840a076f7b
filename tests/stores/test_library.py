"""`import cdc` on real servers: the page's examples, every type through every way, versions, flat topics, refusals."""

from __future__ import annotations

import contextlib
import datetime as dt
import doctest
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import cdc
from cdc.config.config import load_apply
from spark_apply.job.copies.chosen import choose_usable
from spark_apply.job.job import run_apply
from spark_apply.model.store import connect
from spark_apply.model.target_table import target
from spark_apply.verify.contents import contents
from tests.conftest import Database, _database
from tests.integration.connector import Connector

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread

PAGE: Final = Path(__file__).parents[2] / "docs" / "library.md"

_TYPES: Final = (
    "id bigint PRIMARY KEY, b boolean, s smallint, i integer, r real, d double precision, n numeric(10,2), f numeric,"
    " t text, j jsonb, y bytea, a date, w time, l timestamp(3), m timestamp, z timestamptz, v interval, u uuid,"
    " e varbit, xs integer[], ts text[], ns numeric(10,2)[], ds date[]"
)
_FULL: Final = (
    "1, true, -32768, 2147483647, 3.3, 1e20, 99.90, 22.2200, E'a\"\\\\\\n', '{\"a\": 1.00}', '\\x00ff10', '2024-02-29',"
    " '12:34:56.5', '2024-02-29 12:34:56.1', '2024-02-29 12:34:56.123456', '2024-02-29 12:34:56+01', '1 year -3 days',"
    " 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '0010', '{1,NULL,3}', '{NULL,\"NULL\"}', '{1.10}', '{2024-02-29}'"
)


_ROUTE = [
    {"from": "public.shard_?", "to": "shards", "key": "+source"},
    {"from": "public.named", "to": "renamed"},
]


@dataclass(frozen=True)
class Shop:
    """A connector that has captured everything."""

    database: Database
    connector: Connector

    @property
    def file(self) -> Path:
        return self.connector.file

    @property
    def url(self) -> str:
        return self.database.url


@pytest.fixture(scope="module")
def shop(servers: Callable[[str], str], kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with contextlib.contextmanager(_database)(servers("postgres18")) as database:
        database.execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, customer text, status text, total numeric(10,2))",
            "INSERT INTO orders VALUES (1001, 'Sally Thomas', 'new', 99.90), (1002, 'George Bailey', 'new', 12.50)",
            f"CREATE TABLE every ({_TYPES})",
            f"INSERT INTO every VALUES ({_FULL})",
            "CREATE TABLE odd (id int PRIMARY KEY, after text, n numeric(5,1), at timestamptz, valid boolean)",
            "ALTER TABLE odd REPLICA IDENTITY FULL",
            "CREATE TABLE flat (id int PRIMARY KEY, v text)",
            "INSERT INTO flat SELECT g, 'v' || g FROM generate_series(1, 5) g",
            "CREATE TABLE shard_1 (id int PRIMARY KEY, v text)",
            "CREATE TABLE shard_2 (id int PRIMARY KEY, v text, more int)",
            "CREATE TABLE named (id int PRIMARY KEY, v text)",
            "INSERT INTO shard_1 VALUES (1, 'a'), (2, 'b')",
            "INSERT INTO shard_2 VALUES (1, 'c', 1), (3, 'd', 2)",
            "INSERT INTO named VALUES (1, 'e'), (2, 'f')",
        )
        folder = tmp_path_factory.mktemp("library")
        name = database.name.removeprefix("test_")
        connector = Connector(
            folder, f"lib{name}", database.url, kafka, ["public.*"],
            sink={"formats": {"public.flat": "flat"}, "route": _ROUTE},
        )  # fmt: skip
        connector.catch_up()
        database.execute(
            "INSERT INTO every (id) VALUES (2)",
            "UPDATE every SET n = 7, d = 'NaN', a = 'infinity', z = '0044-03-15 00:00+00 BC' WHERE id = 2",
            "INSERT INTO odd VALUES (1, 'a,\"after\":{}', 1.5, '2024-01-01'), (2, 'b', 2.5, 'infinity')",
            "INSERT INTO odd VALUES (3, 'c', 3, NULL)",
            "UPDATE odd SET id = 9 WHERE id = 1",
            "DELETE FROM odd WHERE id = 3",
            "ALTER TABLE odd ADD COLUMN more int",
            "UPDATE odd SET more = 4 WHERE id = 2",
            "UPDATE flat SET v = 'changed' WHERE id = 2",
            "DELETE FROM flat WHERE id = 3",
            "UPDATE shard_2 SET v = 'changed' WHERE id = 1",
            "DELETE FROM shard_1 WHERE id = 1",
            "DELETE FROM named WHERE id = 2",
        )
        connector.catch_up()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TEST_DATABASE_URL", connector.environment["TEST_DATABASE_URL"])
            yield Shop(database, connector)


def test_the_examples_of_the_page(
    shop: Shop, apply_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "connector.yaml").write_text(shop.file.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOP_POSTGRES_URL", shop.url)
    monkeypatch.setenv("SHOP_KAFKA", shop.connector.kafka)
    admin = AdminClient({"bootstrap.servers": shop.connector.kafka})
    admin.create_topics([NewTopic("outbox.event.order", 1, 1)])["outbox.event.order"].result(30)
    producer = Producer({"bootstrap.servers": shop.connector.kafka})
    for number in (b"1001", b"1002"):
        producer.produce("outbox.event.order", b"{}", number, headers=[("id", number), ("eventType", b"OrderCreated")])
    assert producer.flush(30) == 0
    known = {"spark": apply_spark, "Decimal": Decimal}
    examples = doctest.DocTestParser().get_doctest(PAGE.read_text(encoding="utf-8"), known, "library.md", str(PAGE), 0)
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(examples, out=said.append)
    assert result.attempted > 8
    assert not result.failed, "".join(said)


def _expected(database: Database) -> list[dict[str, Any]]:
    """The rows as psycopg2 reads them, by types of Python that are ours too."""
    connection = database.connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute("SET timezone = 'UTC'")
            cursor.execute(
                "SELECT id, b, s, i, r, d, n, f, t, j::text j, y, a, w - time '00:00' w, l, m, z, u::text u, e::text e,"
                " xs, ts, ns, ds FROM every WHERE id = 1"
            )
            names = [column.name for column in cursor.description or ()]
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    finally:
        connection.close()
    return [{name: bytes(v) if isinstance(v, memoryview) else v for name, v in row.items()} for row in rows]


def test_every_type_by_every_way(shop: Shop, tmp_path: Path, apply_spark: SparkSession) -> None:
    """Another driver's values are ours: from the database, from the topics, in Arrow; and Spark's are the same."""
    (expected,) = _expected(shop.database)
    with cdc.follow(
        shop.url, tables=["public.every"], position=tmp_path / "every.pos", create=True, until_caught_up=True
    ) as following:
        told = {change.key["id"]: change for transaction in following for change in transaction if change.key}
    assert told[1].after is not None
    assert {name: told[1].after[name] for name in expected} == expected
    assert told[1].after["v"] == "P1Y-3D"
    topics = cdc.follow(shop.file, tables=["public.every"], until_caught_up=True)
    last = {change.key["id"]: change for change in topics if change.key}
    assert last[1].after == told[1].after
    assert last[2].after is not None
    odd = {name: last[2].after[name] for name in ("n", "a", "z", "t")}
    assert odd == {"n": Decimal("7.00"), "a": "infinity", "z": "-0043-03-15T00:00:00Z", "t": None}
    table = cdc.table(shop.file, "public.every").to_arrow()
    instants = dict(zip(table["id"].to_pylist(), table["z"].cast("int64").to_pylist(), strict=True))
    assert instants == {1: round(expected["z"].timestamp() * 1e6), 2: -63517824000000000}
    arrow = {row["id"]: row for row in table.drop_columns(["z"]).to_pylist()}  # datetime has no such year
    exact = {name: value for name, value in expected.items() if name not in ("r", "f", "z")}
    assert {name: arrow[1][name] for name in exact} == exact
    assert arrow[1]["f"] == "22.2200"
    assert arrow[2]["a"] == dt.date(9999, 12, 31)
    assert arrow[2]["d"] != arrow[2]["d"]
    same = ("id", "b", "i", "d", "n", "f", "t", "j", "y", "a", "l", "m", "xs", "ts", "ns", "ds")
    rows = [
        row.asDict() for row in cdc.spark(apply_spark, shop.file, "public.every").select(*same).sort("id").collect()
    ]
    assert rows[0] == {name: arrow[1][name] for name in same}
    assert rows[1]["a"] == dt.date(9999, 12, 31)


def test_versions_keys_and_deletes_in_batches(shop: Shop) -> None:
    """A batch is of one version; a delete has its key; a column named `after` and an infinity are no obstacle."""
    batches = list(cdc.follow(shop.file, tables=["public.odd"], until_caught_up=True).arrow(rows=3))
    assert all(batch.num_rows <= 3 for batch in batches)
    versions = {batch.schema.metadata[b"version"]: "more" in batch.schema.names for batch in batches}
    assert versions == {b"1": False, b"2": True}
    rows: dict[int, dict[str, Any] | None] = {}
    for batch in batches:
        for row in batch.to_pylist():
            rows[row["id"]] = None if row.pop("__op") == "d" else row
    assert rows[1] is rows[3] is None
    assert rows[9] is not None
    assert (rows[9]["after"], rows[9]["n"]) == ('a,"after":{}', Decimal("1.5"))
    assert rows[2] is not None
    assert rows[2]["more"] == 4
    assert rows[2]["at"].year == 9999
    table = cdc.table(shop.file, "public.odd").to_arrow()
    assert table.schema.names == ["id", "after", "n", "at", "valid", "more"]
    assert sorted((row["id"], row["more"]) for row in table.to_pylist()) == [(2, 4), (9, None)]
    kept = cdc.table(shop.file, "public.odd", text="more").to_arrow()
    assert sorted((row["id"], row["more"]) for row in kept.to_pylist()) == [(2, "4"), (9, None)]


def test_flat_topics_are_read_too(shop: Shop, apply_spark: SparkSession) -> None:
    want = [(1, "v1"), (2, "changed"), (4, "v4"), (5, "v5")]
    table = cdc.table(shop.file, "public.flat").to_arrow()
    assert sorted((row["id"], row["v"]) for row in table.to_pylist()) == want
    fold: dict[int, Any] = {}
    for change in cdc.follow(shop.file, tables=["public.flat"], until_caught_up=True):
        assert change.key is not None
        fold[change.key["id"]] = change.after and change.after["v"]
    assert sorted((key, value) for key, value in fold.items() if value is not None) == want
    ops = [
        op
        for b in cdc.follow(shop.file, tables=["public.flat"], until_caught_up=True).arrow()
        for op in b["__op"].to_pylist()
    ]
    assert ops.count("d") == 1
    with pytest.raises(cdc.OperatorError, match="its topic is flat"):
        cdc.spark(apply_spark, shop.file, "public.flat")


def test_tables_of_one_topic_are_read_one_by_one(shop: Shop, apply_spark: SparkSession, tmp_path: Path) -> None:
    """Batches too are of one table; Spark and jobs refuse such a table by name, and read a topic of another name."""
    columns = {"shard_1": ["id", "v"], "shard_2": ["id", "v", "more"]}
    for name, names in columns.items():
        found = cdc.table(shop.file, f"public.{name}").to_arrow()
        assert found.schema.names == names
        assert sorted(found.to_pylist(), key=lambda row: row["id"]) == [
            dict(zip(names, row, strict=True)) for row in shop.database.rows(f"SELECT * FROM {name} ORDER BY id")
        ]
    told: dict[str, list[Any]] = {}
    routed = ["public.shard_1", "public.shard_2", "public.named"]
    for batch in cdc.follow(shop.file, tables=routed, until_caught_up=True).arrow():
        told.setdefault(batch.schema.metadata[b"table"].decode(), []).extend(batch.to_pylist())
    for name in columns:
        ids = [(row["__op"], row["id"]) for row in told[f"public.{name}"]]
        changes = cdc.follow(shop.file, tables=[f"public.{name}"], until_caught_up=True)
        alone = [(change.op, change.key["id"]) for change in changes if change.key]
        assert sorted(ids) == sorted(alone)
        assert len(ids) == 3
        with pytest.raises(cdc.OperatorError, match=rf"table public\.{name}: .* a topic that tables share"):
            cdc.spark(apply_spark, shop.file, f"public.{name}")
    assert [tuple(row) for row in cdc.spark(apply_spark, shop.file, "public.named").collect()] == [(1, "e")]
    job = tmp_path / "apply.yaml"
    tables = {"public.named": {"stores": ["index"]}, "public.shard_?": {"stores": ["index"]}}
    job.write_text(json.dumps({
        "name": f"apply-{shop.connector.name}",
        "source": {"bootstrap_servers": shop.connector.kafka, "topic_prefix": shop.connector.name},
        "stores": {"index": {"type": "tantivy", "path": str(tmp_path / "index")}},
        "tables": tables, "checkpoint": str(tmp_path / "checkpoint"),
    }))  # fmt: skip
    config = load_apply(job)
    chosen, unusable = choose_usable(config)
    assert [*chosen] == ["public.named"]
    assert {name: "a topic that tables share" in str(of.error) for name, of in unusable.items()} == {
        "public.shard_1": True, "public.shard_2": True,
    }  # fmt: skip
    run_apply(config, once=True)
    _, versions = chosen["public.named"]
    _, stores = connect(config)
    assert [*contents(stores["index"], target(versions, {})).values()] == [{"id": 1, "v": "e"}]


def test_since(shop: Shop) -> None:
    """From the first record that was written then; nothing is older in a topic that was written later."""
    now = dt.datetime.now(dt.UTC)
    assert list(cdc.follow(shop.file, since=now, until_caught_up=True)) == []
    hour_ago = (now - dt.timedelta(hours=1)).isoformat()
    tables = {change.table for change in cdc.follow(shop.file, since=hour_ago, until_caught_up=True)}
    assert tables >= {"public.orders", "public.every", "public.odd", "public.flat"}
    whole = len(list(cdc.follow(shop.file, until_caught_up=True)))
    for long_ago in ("1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.997Z", dt.datetime.min.replace(tzinfo=dt.UTC)):
        assert len(list(cdc.follow(shop.file, since=long_ago, until_caught_up=True))) == whole, long_ago
    for none in (dt.date(2026, 11, 24), 1_795_000_000, b"2026-11-24T00:00Z"):
        with pytest.raises(cdc.ConfigError, match="is no instant"):
            cdc.follow(shop.file, since=none)  # type: ignore[arg-type]


def test_names_that_stand_alone(shop: Shop) -> None:
    """A name is not its letters, and one that is nowhere is not left out without a word."""
    assert cdc.table(shop.file, "public.orders", text="id").to_arrow().schema.field("id").type == pa.string()
    following = cdc.follow(shop.file, tables="public.orders", until_caught_up=True)
    assert {batch.schema.field("id").type for batch in following.arrow(text={"public.orders": "id"})} == {pa.string()}
    with pytest.raises(cdc.OperatorError, match=r"has not described public\.ordres"):
        following.arrow(text={"public.ordres": ["id"]})
    for misspelt in ("public.ordres", "orders", "public.Orders"):
        with pytest.raises(cdc.OperatorError, match=r"did you mean public\.orders\?"):
            cdc.table(shop.file, misspelt)
        with pytest.raises(cdc.OperatorError, match=r"did you mean public\.orders\?"):
            cdc.follow(shop.file, tables=[misspelt])


def test_a_stream_of_spark(shop: Shop, apply_spark: SparkSession, tmp_path: Path) -> None:
    """Typed changes, deletes among them; the table may have a column that is called as one of ours was."""
    stream = cdc.spark(apply_spark, shop.file, "public.odd", streaming=True)
    assert stream.isStreaming
    query = stream.writeStream.format("memory").queryName("odd_changes").option("checkpointLocation", str(tmp_path))
    query.trigger(availableNow=True).start().awaitTermination()
    rows = apply_spark.sql("SELECT * FROM odd_changes ORDER BY _cdc_position").collect()
    assert [row["_cdc_op"] for row in rows] == ["c", "c", "c", "d", "c", "d", "u"]
    assert [row["id"] for row in rows] == [1, 2, 3, 1, 9, 3, 2]
    assert str(rows[0]["n"]) == "1.5"
    assert [row["valid"] for row in cdc.spark(apply_spark, shop.file, "public.odd").collect()] == [None, None]


def test_spark_is_refused_what_would_be_other_rows(shop: Shop, apply_spark: SparkSession) -> None:
    session = apply_spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    with pytest.raises(cdc.OperatorError, match=r"timeZone = Europe/Berlin.*\n.*spark.conf.set"):
        cdc.spark(session, shop.file, "public.orders")
    with pytest.raises(cdc.OperatorError, match=r"has not described public\.absent"):
        cdc.spark(apply_spark, shop.file, "public.absent")
    with pytest.raises(cdc.OperatorError, match=r"did you mean public\.orders\?"):
        cdc.spark(apply_spark, shop.file, "public.order")
    shop.database.execute(
        "CREATE TABLE misfits (id int PRIMARY KEY, n numeric(5,1))", "INSERT INTO misfits VALUES (1, 'NaN')"
    )
    shop.connector.catch_up()
    frame = cdc.spark(apply_spark, shop.file, "public.misfits")
    with pytest.raises(PySparkException, match=r"a value does not fit: n\. Keep such a column"):
        frame.count()
    kept = cdc.spark(apply_spark, shop.file, "public.misfits", types={"n": "string"})
    assert [row["n"] for row in kept.collect()] == ["NaN"]
    with pytest.raises(cdc.OperatorError, match=r"public\.misfits: a value of column n does not fit"):
        cdc.table(shop.file, "public.misfits").to_arrow()
    assert cdc.table(shop.file, "public.misfits", text=["n"]).to_arrow()["n"].to_pylist() == ["NaN"]


def test_records_of_others_are_no_rows(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """They are left out, which is said; and a column that has another type now has it in all rows."""
    shop.database.execute("CREATE TABLE theirs (id int PRIMARY KEY, n int)", "INSERT INTO theirs VALUES (1, 7), (2, 8)")
    shop.connector.catch_up()
    shop.database.execute("ALTER TABLE theirs ALTER n TYPE bigint", "INSERT INTO theirs VALUES (3, 9)")
    shop.connector.catch_up()
    producer = Producer({"bootstrap.servers": shop.connector.kafka})
    topic = f"{shop.connector.name}.public.theirs"
    for key, value in (
        (b"k", b"{"),
        (b'{"id":2}', b'{"id":2,"n":5}'),
        (b"j", b'{"op":"c","after":null,"source":null}'),
    ):
        producer.produce(topic, key=key, value=value)
    producer.flush()
    changes = list(cdc.follow(shop.file, tables=["public.theirs"], until_caught_up=True))
    assert {change.key["id"] for change in changes if change.key} == {1, 2, 3}
    batches = list(cdc.follow(shop.file, tables=["public.theirs"], until_caught_up=True).arrow())
    assert sum(batch.num_rows for batch in batches) == len(changes)
    table = cdc.table(shop.file, "public.theirs").to_arrow()
    assert str(table.schema.field("n").type) == "int64"
    assert sorted(table["id"].to_pylist()) == [1, 3]  # the other's record stands where the row was
    assert sum("no connector has written" in record.message for record in caplog.records) == 1


def test_pandas_and_polars(shop: Shop) -> None:
    """Where they are installed they are given the rows; else what is missing is said."""
    table = cdc.table(shop.file, "public.orders")
    for package, make in (("pandas", table.to_pandas), ("polars", table.to_polars)):
        try:
            __import__(package)
        except ImportError:
            with pytest.raises(cdc.ConfigError, match=f"this needs {package}") as told:
                make()
            assert f"pip install {package}" in str(told.value)
        else:
            assert len(make()) == 2


def test_names_that_are_not_there(shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(cdc.OperatorError, match=r"has not described public\.absent"):
        cdc.table(shop.file, "public.absent")
    with pytest.raises(cdc.OperatorError, match=r"has not described public\.absent"):
        cdc.follow(shop.file, tables=["public.absent", "public.orders"])
    never = tmp_path / "never.yaml"
    never.write_text(json.dumps({**json.loads(shop.file.read_text()), "name": "never"}))
    for ask in (lambda: cdc.table(never, "public.orders"), lambda: cdc.follow(never)):
        with pytest.raises(cdc.OperatorError, match=r"has no topic never\.schema: no connector .* has run there"):
            ask()
    assert "TEST_DATABASE_URL" in os.environ
