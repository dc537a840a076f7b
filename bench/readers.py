"""Prints which readers read what a connector writes, each compared with SELECT: `python -m bench.readers`.

One table for each format has the same rows and the same changes: read, created, updated, deleted, another key, emptied
by TRUNCATE, filled again. A reader folds its topic, or writes it to a store, by means of its own alone. What it ends
with is compared with the source, value by value. A reader that is not installed is listed as not run.
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg2

from bench.measure.meter import Topic
from bench.peers import flink
from bench.peers.debezium import Worker
from cdc.dev import jars, stack
from cdc.model.errors import CdcError
from sinks.topics.records.read_back import read_to_end
from tests.proto_messages import as_object, message_class

FORMATS: Final = {
    "plain": "json", "flat": "flat json", "connect": "connect-json", "avro": "avro", "flat_avro": "flat avro",
    "schema": "flat json-schema", "proto": "protobuf", "flat_proto": "flat protobuf",
}  # fmt: skip
SPARK_AVRO: Final = ("org.apache.spark:spark-avro_2.13:4.0.0",)
_COLUMNS: Final = (
    "id int PRIMARY KEY, big bigint, note text, amount numeric(10,2), yes boolean, ratio double precision, day date,"
    " at timestamp, at_z timestamptz, data bytea, doc jsonb, uid uuid"
)
_ROW: Final = (
    "({id}, 9007199254740993, E'a\"\\nä“', -1234.50, true, 0.1, '2024-02-29', '2024-03-05 12:34:56.789012',"
    " '2024-03-05 12:34:56.5+02', '\\xDEAD00', '{{\"a\": [1, 2.50]}}', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11')"
)
_SPARSE: Final = "({id}, NULL, '', 0, false, -1e300, '1969-12-31', NULL, NULL, '', NULL, NULL)"
_SELECT: Final = (
    "SELECT id, big, note, amount::text, yes, ratio, day::date - '1970-01-01'::date,"
    " (extract(epoch FROM at::timestamp) * 1000000)::bigint,"
    " to_char(at_z::timestamptz AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'),"
    " encode(data::bytea, 'base64'), doc::jsonb::text, uid::text FROM {table} ORDER BY id"
)
_OF_SPARK: Final = (
    "id INT, big BIGINT, note STRING, amount STRING, yes BOOLEAN, ratio DOUBLE, day INT, at BIGINT, at_z STRING,"
    " data STRING, doc STRING, uid STRING"
)
_NAMES: Final = ("id", "big", "note", "amount", "yes", "ratio", "day", "at", "at_z", "data", "doc", "uid")
_WITHIN_S: Final = 90.0

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Line:
    """A line of the table."""

    reader: str
    format: str
    found: str

    @property
    def failed(self) -> bool:
        return self.found.startswith("differs")


class World:
    """A source with its tables, their topics, and where they are."""

    def __init__(self, folder: Path, *, postgres: str, kafka: str, registry: str, prefix: str = "readers") -> None:
        self.folder, self._prefix = folder, prefix
        self.postgres, self.kafka, self.registry = postgres, kafka, registry
        self._connection = psycopg2.connect(self.postgres)
        self._connection.autocommit = True

    def rows(self, table: str) -> list[Row]:
        with self._connection.cursor() as cursor:
            cursor.execute(_SELECT.format(table=table))
            return cursor.fetchall()

    def execute(self, *statements: str) -> None:
        with self._connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def fill(self) -> None:
        """Make the tables and their topics."""
        tables = {f"public.{name}": form for name, form in FORMATS.items()}
        config = {
            "name": self._prefix,
            "source": {"type": "postgres", "url": self.postgres, "tables": list(tables)},
            "sink": {
                "type": "kafka", "bootstrap_servers": self.kafka, "partitions": 2, "formats": tables,
                "before": "topic", "registry": {"url": self.registry},
            },
        }  # fmt: skip
        file = self.folder / "connector.yaml"
        file.write_text(json.dumps(config))
        for name in FORMATS:
            self.execute(f"DROP TABLE IF EXISTS {name}", f"CREATE TABLE {name} ({_COLUMNS})")
            self.execute(f"INSERT INTO {name} VALUES {_ROW.format(id=1)}, {_SPARSE.format(id=2)}")
        self._run(file)
        for name in FORMATS:
            self.execute(
                f"INSERT INTO {name} VALUES {_ROW.format(id=3)}", f"UPDATE {name} SET note = 'b' WHERE id = 1",
                f"UPDATE {name} SET id = 4 WHERE id = 3", f"DELETE FROM {name} WHERE id = 2", f"TRUNCATE {name}",
                f"INSERT INTO {name} VALUES {_ROW.format(id=1)}, {_SPARSE.format(id=5)}, {_SPARSE.format(id=6)}",
                f"UPDATE {name} SET yes = NULL WHERE id = 5", f"UPDATE {name} SET id = 7 WHERE id = 1",
                f"DELETE FROM {name} WHERE id = 6",
            )  # fmt: skip
        self._run(file)

    def _run(self, file: Path) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "cdc", "run", str(file), "--until-caught-up"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])

    def topic(self, table: str) -> str:
        return f"{self._prefix}.public.{table}"

    def records(self, table: str) -> list[tuple[bytes, bytes | None]]:
        messages = read_to_end(self.kafka, {}, self.topic(table), "read_committed")
        return [(message.key() or b"", message.value()) for message in messages]


def _newest(records: Iterable[tuple[bytes, bytes | None]]) -> list[bytes]:
    return [value for value in dict(records).values() if value is not None]


def _as_selected(row: Mapping[str, Any]) -> Row:
    """Give a row of Debezium's values as SELECT gives it."""
    values = [row[name] for name in _NAMES]
    values[3] = str(values[3])
    values[9] = base64.b64encode(values[9]).decode() if isinstance(values[9], bytes) else values[9]
    return tuple(values)


def confluent_avro(world: World, table: str) -> list[Row]:
    """confluent-kafka, AvroDeserializer."""
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    read = AvroDeserializer(SchemaRegistryClient({"url": world.registry}))
    of = SerializationContext(world.topic(table), MessageField.VALUE)
    values = [read(value, of) for value in _newest(world.records(table))]
    return [_as_selected(value if table.startswith("flat") else value["after"]) for value in values]


def confluent_json(world: World, table: str) -> list[Row]:
    """confluent-kafka, JSONDeserializer."""
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    read = JSONDeserializer(None, schema_registry_client=SchemaRegistryClient({"url": world.registry}))
    of = SerializationContext(world.topic(table), MessageField.VALUE)
    return [_as_selected(read(value, of)) for value in _newest(world.records(table))]


def confluent_protobuf(world: World, table: str) -> list[Row]:
    """confluent-kafka, ProtobufDeserializer."""
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    client = SchemaRegistryClient({"url": world.registry})
    of = SerializationContext(world.topic(table), MessageField.VALUE)
    rows = []
    for value in _newest(world.records(table)):
        made = message_class(client.get_schema(int.from_bytes(value[1:5], "big")).schema_str or "")
        found = as_object(ProtobufDeserializer(made, {"use.deprecated.format": False})(value, of))
        rows.append(_as_selected(found if table.startswith("flat") else found["after"]))
    return rows


def _in_file(world: World, table: str) -> Path:
    """Write a topic's records to a file, in order."""
    file = world.folder / f"{table}.jsonl"
    lines = (
        json.dumps({"n": n, "key": key.decode(), "value": None if value is None else value.decode()})
        for n, (key, value) in enumerate(world.records(table))
    )
    file.write_text("\n".join(lines))
    return file


def _from_texts(rows: Iterable[Sequence[Any]]) -> list[Row]:
    """Give rows of the texts of JSON's values as SELECT gives them."""
    casts: Sequence[Callable[[str], Any]] = (
        int, int, str, str, "true".__eq__, float, int, int, str, str, str, str,
    )  # fmt: skip
    return [tuple(None if v is None else cast(v) for cast, v in zip(casts, row, strict=True)) for row in rows]


def duckdb(world: World, table: str) -> list[Row]:
    """DuckDB, read_json of the records in order."""
    import duckdb as engine

    path = "" if table == "flat" else ".after"
    members = ", ".join(f"value->>'${path}.{name}'" for name in _NAMES)
    with engine.connect() as connection:
        found = connection.execute(
            f"SELECT {members} FROM (SELECT key, arg_max(struct_pack(v := value), n).v AS value FROM"
            f" read_json(?, columns={{n: 'BIGINT', key: 'VARCHAR', value: 'VARCHAR'}}) GROUP BY key)"
            " WHERE value IS NOT NULL",
            [str(_in_file(world, table))],
        ).fetchall()
    return _from_texts(found)


def clickhouse(world: World, table: str) -> list[Row]:
    """ClickHouse (chdb), JSONEachRow of the records in order."""
    import chdb

    of = "value" if table == "flat" else "JSONExtractRaw(value, 'after')"
    raw = [f"JSONExtractRaw({of}, '{name}')" for name in _NAMES]
    texts = [
        f"if(startsWith({r}, '\"'), JSONExtractString({of}, '{n}'), {r})" for r, n in zip(raw, _NAMES, strict=True)
    ]
    members = ", ".join(f"if({r} = 'null', NULL, {t}) AS {n}_" for r, t, n in zip(raw, texts, _NAMES, strict=True))
    answer = chdb.query(
        f"SELECT {members} FROM (SELECT argMax(tuple(value), n).1 AS value FROM file('{_in_file(world, table)}',"
        " JSONEachRow, 'n Int64, key String, value Nullable(String)') GROUP BY key) WHERE value IS NOT NULL",
        "JSONCompactEachRow",
    )
    return _from_texts([json.loads(line) for line in str(answer).splitlines() if line])


def spark(world: World, table: str) -> list[Row]:
    """Spark, its Kafka source with from_json or from_avro."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f
    from pyspark.sql.avro.functions import from_avro

    files = [*jars.of_spark(), *(jar for jar in jars.fetch("spark-avro", SPARK_AVRO) if "spark-avro" in jar.name)]
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", ",".join(map(str, files)))
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    options = {
        "kafka.bootstrap.servers": world.kafka, "subscribe": world.topic(table), "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
    }  # fmt: skip
    records = session.read.format("kafka").options(**options).load()
    newest = records.groupBy("key").agg(f.expr("max_by(struct(value), offset)").alias("last")).select("last.value")
    if "avro" in table:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        text = SchemaRegistryClient({"url": world.registry}).get_latest_version(f"{world.topic(table)}-value")
        schema = text.schema.schema_str if text.schema is not None else ""
        row = from_avro(f.expr("substring(value, 6)"), schema or "")
    else:
        form = _OF_SPARK if table == "flat" else f"after STRUCT<{_OF_SPARK}>"
        row = f.from_json(f.col("value").cast("string"), form)
    path = "row" if table.startswith("flat") else "row.after"
    found = newest.where("value IS NOT NULL").select(row.alias("row")).select(f"{path}.*").collect()
    made = [
        _as_selected({**of.asDict(), "data": bytes(d) if isinstance(d := of["data"], bytearray) else d}) for of in found
    ]
    session.stop()
    return made


def debezium_sink(world: World, table: str, *, unwrapped: bool = False) -> list[Row]:
    """Kafka Connect, Debezium's JDBC sink, of the envelope."""
    at = psycopg2.extensions.parse_dsn(world.postgres)
    name = "unwrapped" if unwrapped else "enveloped"
    config = {
        "name": name,
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "tasks.max": "1",
        "topics": world.topic(table),
        "connection.url": f"jdbc:postgresql://{at['host']}:{at['port']}/{at['dbname']}",
        "connection.username": at["user"],
        "connection.password": at.get("password", ""),
        "insert.mode": "upsert",
        "delete.enabled": "true",
        "primary.key.mode": "record_key",
        "schema.evolution": "basic",
        "collection.name.format": name,
        "consumer.override.isolation.level": "read_committed",
        **{
            f"{side}.converter{key}": value
            for side in ("key", "value")
            for key, value in (
                ("", "org.apache.kafka.connect.json.JsonConverter"),
                (".schemas.enable", "true"),
            )
        },
    }
    if unwrapped:
        config |= {
            "transforms": "unwrap",
            "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
            "transforms.unwrap.delete.tombstone.handling.mode": "tombstone",
        }
    world.execute(f"DROP TABLE IF EXISTS {name}")
    expected, found = world.rows(table), list[Row]()
    with Worker(world.folder / f"connect-{name}", "jdbc", world.kafka, jvm=("-Xmx512m", "-XX:+UseSerialGC")) as worker:
        worker.start(config)
        until = time.monotonic() + _WITHIN_S
        while time.monotonic() < until and found != expected:
            time.sleep(0.5)
            why = worker.failure(name)
            if why is not None:
                raise RuntimeError(why)
            try:
                found = world.rows(name)
            except psycopg2.Error:
                found = []  # it has not made its table, or has not all columns yet
    return found


def debezium_unwrapped(world: World, table: str) -> list[Row]:
    """Kafka Connect, Debezium's unwrap SMT and JDBC sink."""
    return debezium_sink(world, table, unwrapped=True)


def flink_changes(world: World, table: str) -> list[Row]:
    """Flink SQL, debezium-json."""
    return _by_flink(world, table, "'connector' = 'kafka', 'format' = 'debezium-json', {}")


def flink_rows(world: World, table: str) -> list[Row]:
    """Flink SQL, upsert-kafka."""
    return _by_flink(world, table, "'connector' = 'upsert-kafka', 'key.format' = 'json', 'value.format' = 'json', {}")


def _by_flink(world: World, table: str, form: str) -> list[Row]:
    """Have Flink write what it reads to a topic of its own, in its own JSON."""
    columns = ", ".join(f"`{of.split()[0]}` {of.split()[1]}" for of in _OF_SPARK.split(", "))
    made = Topic(world.kafka, f"flink.{table}.{time.time_ns()}", 1)
    made.create()
    at = "'topic' = '{}', 'properties.bootstrap.servers' = '" + world.kafka + "'"
    read = (
        f"{at.format(world.topic(table))}, 'scan.bounded.mode' = 'latest-offset', 'properties.group.id' = 'flink', "
        "'properties.isolation.level' = 'read_committed'"
    )
    read = form.format(read if "upsert" in form else f"{read}, 'scan.startup.mode' = 'earliest-offset'")
    written = f"'connector' = 'upsert-kafka', 'key.format' = 'json', 'value.format' = 'json', {at.format(made.name)}"
    tables = [
        f"CREATE TABLE {name} ({columns}, PRIMARY KEY (id) NOT ENFORCED) WITH ({with_})"
        for name, with_ in (("source_", read), ("sink_", written))
    ]
    with flink.Cluster(world.folder / made.name, flink.KAFKA) as cluster:
        cluster.submit(tables, ["INSERT INTO sink_ SELECT * FROM source_"])
        cluster.finished(_WITHIN_S)
    messages = read_to_end(world.kafka, {}, made.name, "read_committed")
    newest = _newest((message.key() or b"", message.value()) for message in messages)
    return [_as_selected(json.loads(value)) for value in newest]


READERS: Final[Sequence[tuple[Callable[[World, str], list[Row]], str]]] = (
    (confluent_avro, "avro"),
    (confluent_avro, "flat_avro"),
    (confluent_json, "schema"),
    (confluent_protobuf, "proto"),
    (confluent_protobuf, "flat_proto"),
    (duckdb, "flat"),
    (duckdb, "plain"),
    (clickhouse, "flat"),
    (clickhouse, "plain"),
    (spark, "plain"),
    (spark, "flat"),
    (spark, "avro"),
    (spark, "flat_avro"),
    (debezium_sink, "connect"),
    (debezium_unwrapped, "connect"),
    (flink_changes, "plain"),
    (flink_rows, "flat"),
)
LEFT: Final = (
    "Iceberg's sink for Kafka Connect", "Hudi's sources",
    "OpenSearch's sink for Kafka Connect",
)  # fmt: skip
"""Readers that are not tried: their packages are not among those that are installed here."""


def tried(world: World, read: Callable[[World, str], list[Row]], table: str) -> Line:
    """Run one reader and compare."""
    name, form = (read.__doc__ or "").rstrip("."), FORMATS[table]
    expected = world.rows(table)
    try:
        found = sorted(read(world, table))
    except ImportError as exc:
        return Line(name, form, f"not run: {exc}")
    except (CdcError, OSError) as exc:
        return Line(name, form, f"not run: {str(exc).splitlines()[0]}")
    except Exception as exc:  # noqa: BLE001 - a reader may fail in any way, and the others are run
        return Line(name, form, f"differs: {type(exc).__name__}: {' '.join(str(exc).split())[:700]}")
    if found == expected:
        return Line(name, form, f"as SELECT: {len(found)} rows")
    columns = [
        f"{of}: {a!r} for {b!r}"
        for one, other in zip(found, expected, strict=False)
        for of, a, b in zip(_NAMES, one, other, strict=True)
        if a != b
    ]
    return Line(name, form, f"differs: {len(found)} rows for {len(expected)}; {'; '.join(columns[:4])}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, help="folder of servers that run, of `cdc dev up postgres kafka registry`")
    parser.add_argument("--only", default="", help="readers whose name has this in it")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="readers-") as scratch:
        folder = Path(scratch)
        with stack.DevServers(options.dir or folder / "servers", servers=["postgres18", "kafka", "registry"]) as dev:
            urls = dev.urls
            world = World(
                folder, postgres=urls.postgres_url or "", kafka=urls.kafka or "", registry=urls.registry_url or ""
            )
            world.fill()
            lines = []
            for read, table in READERS:
                if options.only.lower() in (read.__doc__ or "").lower():
                    lines.append(tried(world, read, table))
                    print(f"{lines[-1].reader:<52} {lines[-1].format:<18} {lines[-1].found}", flush=True)
    for name in LEFT:
        print(f"{name:<52} {'':<18} not run")
    return int(any(line.failed for line in lines))


if __name__ == "__main__":
    sys.exit(main())
