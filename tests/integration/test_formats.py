"""Formats on real servers and a real registry: what Confluent's own deserializer reads is what plain JSON says."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from unittest import mock
from urllib.parse import urlsplit

import orjson
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

import cdc
from cdc.dev.servers.process import Server
from cdc.dev.stack import SERVERS
from cdc.formats.typed import SPECIAL
from tests.conftest import Database, MySQLDatabase
from tests.faults.proxy import Proxy
from tests.integration.connector import Connector
from tests.integration.running import Running, eventually
from tests.integration.running import rows as selected
from tests.proto_messages import as_object, message_class

FORMATS: Final = {
    "plain": "json", "avro": "avro", "flat": "flat avro", "connect": "connect-json", "checked": "flat json-schema",
    "proto": "protobuf", "proto_flat": "flat protobuf",
}  # fmt: skip

PACKED: Final = ("avro", "protobuf")

TEXT: Final = ("ints", "texts", "dates")
"""Columns that Arrow has no type for: arrays of any depth."""
COLUMNS: Final = """
    id int PRIMARY KEY, small smallint, big bigint, amount numeric(10,2), whole numeric(20), tiny numeric(3,5),
    round numeric(5,-2), any_number numeric, price money, real4 real, real8 double precision, yes boolean,
    "nam-e" text, nam_e varchar(20), padded char(4), data bytea, doc json, docb jsonb, day date, clock time,
    clock_z timetz, at timestamp, at_ms timestamp(3), at_z timestamptz, span interval, one bit(1), bits bit(5),
    net inet, uid uuid, ints int[], texts text[], dates date[], spread int4range, wide text, mood mood
"""
ONE: Final = (
    "{id}, -5, 9223372036854775807, -1234567.80, 12345678901234567890, 0.00123, 1200, 'NaN', '$1,234.50', 3.3, -0.0,"
    " true, E'a\"\\nä“', 'x', 'ab', '\\xDEAD00', '{{\"a\": 1,  \"a\": 2}}', '[1.50]', '2024-02-29', '24:00:00',"
    " '12:00+02', '2024-03-05 12:34:56.789012', '2024-03-05 12:34:56.789', '2024-03-05 12:34:56.7+02',"
    " '1 mon 2 days 3.5 sec', '1',"
    " '01010', '10.0.0.1', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{{1,NULL}}', '{{\"NULL\",NULL}}', '{{infinity}}',"
    " '[1,3)', {wide}, 'ok'"
)
EDGES: Final = (
    "{id}, NULL, -9223372036854775808, 0, -12345678901234567890, -0.00001, 0, '-Infinity', '-$0.01', 'NaN',"
    " '-Infinity', false, '', NULL, '', '', NULL, '\"x\"', 'infinity', '00:00:00', NULL, 'infinity',"
    " '-infinity', 'infinity',"
    " NULL, '0', NULL, NULL, NULL, '{{{{1,2}},{{3,4}}}}', '[0:1]={{a,b}}', NULL, 'empty', '', NULL"
)
PAST: Final = (
    "{id}, 0, 0, 99999999.99, 0, NULL, -99900, 1e30, 0, 1e-30, 1e308, NULL, NULL, '', NULL, NULL, 'null', '{{}}',"
    " '4713-01-01 BC', NULL, NULL, '0001-01-01 00:00:00 BC', '1969-12-31 23:59:59.999', '4713-01-01 00:00+00 BC',"
    " '-1 sec', NULL, '00000', NULL, NULL, '{{}}', '{{}}', '{{-infinity}}', NULL, NULL, 'sad'"
)


class Reader:
    """Reads records as consumers of each format do, into what plain JSON would have."""

    def __init__(self, connector: Connector, registry: str) -> None:
        self.connector = connector
        client = SchemaRegistryClient({"url": registry})
        self.avro = AvroDeserializer(client)
        self.json = JSONDeserializer(None, schema_registry_client=client)
        self.client = client

    def rows(self, table: str) -> dict[int, Mapping[str, Any]]:
        """Fold the topic: the newest row of each key that is there, by its id."""
        form = FORMATS[table.partition(".")[2]]
        found = {}
        for record in self.connector.records(table):
            found[record.raw_key] = self._row(form, record.topic, record.raw_value)
            assert set(self._read(form, record.topic, record.raw_key, MessageField.KEY)) == {"id"}
        return {row["id"]: row for row in found.values() if row is not None}

    def _read(self, form: str, topic: str, data: bytes, field: str) -> Any:
        if form == "connect-json":
            told = json.loads(data)
            assert [f["field"] for f in told["schema"]["fields"]] == list(told["payload"])
            return told["payload"]
        if form == "json":
            return json.loads(data)
        if form.endswith("protobuf"):
            made = message_class(self.client.get_schema(int.from_bytes(data[1:5], "big")).schema_str or "")
            of = ProtobufDeserializer(made, {"use.deprecated.format": False})  # Apicurio gives no descriptors
            return as_object(of(data, SerializationContext(topic, field)))
        read = self.json if form.endswith("json-schema") else self.avro
        return read(data, SerializationContext(topic, field))

    def _row(self, form: str, topic: str, data: bytes | None) -> Any:
        if data is None:
            return None
        value = self._read(form, topic, data, MessageField.VALUE)
        return value if form.startswith("flat") else value["after"]


def expected(form: str, kind: Mapping[str, Any], value: Any) -> Any:
    """What a format's reader gives for a value of plain JSON."""
    name = kind["kind"]
    if value is None or form == "json" or form.endswith("json-schema"):
        return value
    if name in SPECIAL and isinstance(value, str):
        zero = -2_000_000_000 if name == "date" else -8_000_000_000_000_000_000
        return zero if value.startswith("0000-00-00") else SPECIAL[name][value]
    if name == "array":
        return orjson.dumps(value).decode()
    if not form.endswith(PACKED):
        return value
    if (name == "uint64" and form.endswith("avro")) or (name == "decimal" and "precision" in kind):
        return Decimal(value)
    if name in ("float32", "float64"):
        return repr(float(value))
    if name == "geometry":
        return {**value, "wkb": base64.b64decode(value["wkb"])}
    return base64.b64decode(value) if name == "bytes" else value


def compare(connector: Connector, reader: Reader, database: str, count: int) -> None:
    """Each table's topic, read by its own reader, is the plain one's."""
    plain = reader.rows(f"{database}.plain")
    assert len(plain) == count
    versions = [r.value for r in connector.records_of("schema") if r.value and r.value["table"] == "plain"]
    kinds = {column["name"]: column for column in versions[-1]["columns"]}
    for table, form in FORMATS.items():
        found = reader.rows(f"{database}.{table}")
        assert found.keys() == plain.keys(), table
        for key, row in found.items():
            names = {"nam-e": "nam_u002de"} if form.endswith("avro") else {}
            for name, value in plain[key].items():
                got = row[names.get(name, name)]
                if form.endswith(PACKED) and kinds[name]["kind"] in ("float32", "float64") and got is not None:
                    got = repr(_single(got, kinds[name]["kind"]))
                    assert got == expected(form, kinds[name], value), (table, key, name)
                elif kinds[name]["kind"] == "array" and got is not None and form.endswith((*PACKED, "connect-json")):
                    assert json.loads(got) == value, (table, key, name)
                else:
                    assert got == expected(form, kinds[name], value), (table, key, name)


def _single(number: float, kind: str) -> float:
    """The shortest number that is the same float of 32 bits."""
    if kind == "float64":
        return number
    import struct

    for digits in range(1, 10):
        shorter = float(f"{number:.{digits}g}")
        if struct.pack("<f", shorter) == struct.pack("<f", number):
            return shorter
    return number


def test_postgres(postgres18: Database, kafka: str, registry: str, prefix: str, tmp_path: Path) -> None:
    """All types by snapshot and stream; key change, delete, left-out values, TRUNCATE, DDL, re-read, restart."""
    postgres18.execute("CREATE TYPE mood AS ENUM ('ok', 'sad')")
    wide = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 400) n)"

    def all_tables(*statements: str) -> None:
        for name in FORMATS:
            postgres18.execute(*(s.replace("TABLE_", name) for s in statements))

    all_tables(
        f"CREATE TABLE TABLE_ ({COLUMNS})",
        *(f"INSERT INTO TABLE_ VALUES ({row.format(id=n, wide=wide)})" for n, row in enumerate((ONE, EDGES, PAST), 1)),
    )
    connector = Connector(
        tmp_path, prefix, postgres18.url, kafka, ["public.*"],
        sink={"formats": {f"public.{name}": form for name, form in FORMATS.items()}, "registry": {"url": registry}},
    )  # fmt: skip
    reader = Reader(connector, registry)
    connector.catch_up()
    compare(connector, reader, "public", 3)
    all_tables(
        *(f"INSERT INTO TABLE_ VALUES ({row.format(id=n, wide=wide)})" for n, row in enumerate((ONE, EDGES, PAST), 11)),
        "UPDATE TABLE_ SET small = 7 WHERE id IN (1, 11)",
        "UPDATE TABLE_ SET id = 21 WHERE id = 1",
        "UPDATE TABLE_ SET small = 8 WHERE id = 21",
        "DELETE FROM TABLE_ WHERE id = 2",
        "ALTER TABLE TABLE_ ADD COLUMN more int NOT NULL DEFAULT 5",
        f"INSERT INTO TABLE_ VALUES ({ONE.format(id=31, wide=wide)}, 6)",
    )
    connector.catch_up()
    compare(connector, reader, "public", 6)
    for name in FORMATS:
        connector.here("snapshot", "start", "FILE", "--table", f"public.{name}")
    connector.catch_up()
    compare(connector, reader, "public", 6)
    _library(connector, "public", 6, text=TEXT)
    all_tables("TRUNCATE TABLE_", f"INSERT INTO TABLE_ VALUES ({PAST.format(id=41)})")
    connector.catch_up()
    compare(connector, reader, "public", 1)
    told = connector.here("tail", "FILE", "--table", "public.avro", "--from-beginning", "--max", "3", "--json")
    shown = [json.loads(line) for line in told.stdout.splitlines()]
    assert len(shown) == 3
    assert all(set(of["key"]) == {"id"} and of["value"]["source"]["schema_version"] for of in shown if of["value"])
    subjects = set(SchemaRegistryClient({"url": registry}).get_subjects())
    assert {f"{prefix}.public.{name}-key" for name in ("avro", "flat", "checked")} <= subjects
    versions = SchemaRegistryClient({"url": registry}).get_versions(f"{prefix}.public.avro-key")
    assert len(versions) == 1  # another column changes no key
    _columns_that_go_and_come(connector, postgres18, registry, prefix)
    _foretold(connector, postgres18, registry, prefix)


def _foretold(connector: Connector, database: Database, registry: str, prefix: str) -> None:
    """`cdc check` tells what the registry would refuse, and leaves it as it was."""
    client = SchemaRegistryClient({"url": registry})
    before = {subject: client.get_versions(subject) for subject in client.get_subjects()}
    client.set_compatibility(f"{prefix}.public.avro-value", "BACKWARD")
    for changed in (False, True):
        if changed:
            database.execute("ALTER TABLE avro ALTER COLUMN small TYPE text")
        done = connector.here("check", "FILE", "--json")
        told = [of for of in json.loads(done.stdout)["findings"] if "does not take the table's schema" in of["message"]]
        subject = f"table public.avro: schema registry at {registry}: subject {prefix}.public.avro-value"
        assert [(of["level"], of["message"].startswith(subject)) for of in told] == [("warning", True)] * changed
        assert done.returncode == 0, done.stdout
    assert {subject: client.get_versions(subject) for subject in client.get_subjects()} == before


def _columns_that_go_and_come(connector: Connector, database: Database, registry: str, prefix: str) -> None:
    """Protobuf's numbers are for good, and so a subject of FULL takes each version."""
    client = SchemaRegistryClient({"url": registry})
    subjects = [f"{prefix}.public.{name}-value" for name in ("proto", "proto_flat")]
    for subject in subjects:
        client.set_compatibility(subject, "FULL")
    for change in (
        "ADD COLUMN extra text DEFAULT 'x'", "DROP COLUMN more", "ADD COLUMN later int", "DROP COLUMN extra",
        "ADD COLUMN more int DEFAULT 9",
    ):  # fmt: skip
        for name in ("proto", "proto_flat"):
            database.execute(f"ALTER TABLE {name} {change}", f"UPDATE {name} SET small = 3")
    connector.catch_up()
    for subject, name in zip(subjects, ("proto", "proto_flat"), strict=True):
        files = [client.get_version(subject, of).schema.schema_str or "" for of in client.get_versions(subject)]
        found = [dict(re.findall(r"(more|extra|later|small) = (\d+)", file)) for file in files]
        for column in ("more", "extra", "later", "small"):
            assert len({of[column] for of in found if column in of}) == 1, (name, column)
        assert len(set(found[-1].values())) == 4
        assert re.search(r"extra = \d+ \[deprecated = true\]", files[-1])
        row = Reader(connector, registry).rows(f"public.{name}")[41]
        assert (row["more"], row["later"], row["small"]) == (9, None, 3)


MYSQL_COLUMNS: Final = """
    id int PRIMARY KEY, small tinyint, big bigint unsigned, amount decimal(10,2), whole decimal(30,0), real4 float,
    real8 double, one bit(1), bits bit(64), `nam-e` text, nam_e varchar(20) CHARACTER SET latin1, padded binary(4),
    data blob, doc json, day date, of_year year, clock time(6), at datetime(6), at_ms datetime(3), at_s datetime,
    at_z timestamp(6) NULL, mood enum('ok', 'sad'), moods set('a', 'b'), place point,
    zero_day date NOT NULL, zero_at datetime(6) NOT NULL
"""
MYSQL_ONE: Final = (
    "{id}, -5, 18446744073709551615, -1234567.80, 123456789012345678901234567890, 3.3, 0.1, b'1', ~0,"
    " 'ä“\\n\"', 'ä', 'ab',"
    " x'DEAD00', '{{\"a\": [1, 2.50]}}', '2024-02-29', 2024, '-12:34:56.5', '2024-03-05 12:34:56.789012',"
    " '2024-03-05 12:34:56.789', '2024-03-05 12:34:56', '2024-03-05 12:34:56.7', 'ok', 'a,b', POINT(1, 2),"
    " '2024-01-01', '2024-01-01'"
)
MYSQL_EDGES: Final = (
    "{id}, NULL, 9223372036854775808, 0, -1, 1e30, -1e308, b'0', 0, '', NULL, '', '', NULL, '0018-01-01', 0,"
    " '838:59:58',"
    " '1000-01-01', '1969-12-31 23:59:59.999', NULL, NULL, NULL, '', NULL, '0000-00-00', '0000-00-00'"
)


@pytest.mark.full  # test_postgres; kinds of values of both are in tests/property and tests/unit
def test_mysql(mysql: MySQLDatabase, kafka: str, registry: str, prefix: str, tmp_path: Path) -> None:
    """All types by snapshot and stream, zero dates too; key change, delete, DDL, TRUNCATE."""

    def all_tables(*statements: str) -> None:
        for name in FORMATS:
            mysql.execute("SET sql_mode = ''", *(s.replace("TABLE_", name) for s in statements))

    rows = [f"INSERT INTO TABLE_ VALUES ({row})" for row in (MYSQL_ONE, MYSQL_EDGES)]
    all_tables(f"CREATE TABLE TABLE_ ({MYSQL_COLUMNS})", *(row.format(id=n) for n, row in enumerate(rows, 1)))
    formats = {f"{mysql.name}.{name}": form for name, form in FORMATS.items()}
    connector = Connector(
        tmp_path, prefix, mysql.url, kafka, [f"{mysql.name}.*"],
        sink={"formats": formats, "registry": {"url": registry}},
    )  # fmt: skip
    reader = Reader(connector, registry)
    connector.catch_up()
    compare(connector, reader, mysql.name, 2)
    all_tables(
        *(row.format(id=n) for n, row in enumerate(rows, 11)),
        "UPDATE TABLE_ SET small = 7 WHERE id IN (1, 11)",
        "UPDATE TABLE_ SET id = 21 WHERE id = 1",
        "DELETE FROM TABLE_ WHERE id = 2",
        "ALTER TABLE TABLE_ ADD COLUMN more int NOT NULL DEFAULT 5",
        "UPDATE TABLE_ SET more = 6 WHERE id = 12",
    )
    connector.catch_up()
    compare(connector, reader, mysql.name, 3)
    _library(connector, mysql.name, 3, text=["zero_day", "zero_at"])
    all_tables("TRUNCATE TABLE_", "INSERT INTO TABLE_ SET id = 41, zero_day = '2024-01-01', zero_at = '2024-01-01'")
    connector.catch_up()
    compare(connector, reader, mysql.name, 1)


def _library(connector: Connector, database: str, count: int, *, text: Sequence[str] = ()) -> None:
    """`cdc.table` and `cdc.follow` give the same rows of each format."""
    with mock.patch.dict(os.environ, connector.environment):
        tables = {
            name: cdc.table(connector.file, f"{database}.{name}", text=text).to_arrow().sort_by("id")
            for name in FORMATS
        }
        last = {
            name: {
                c.key["id"]: c.after
                for c in cdc.follow(connector.file, tables=[f"{database}.{name}"], until_caught_up=True)
            }
            for name in FORMATS
        }
    assert tables["plain"].num_rows == count
    for name in FORMATS:
        for column in tables["plain"].column_names:
            assert str(tables[name][column]) == str(tables["plain"][column]), (name, column)  # NaN is like NaN
        live = [{key: repr(row) for key, row in last[of].items() if row is not None} for of in (name, "plain")]
        assert live[0] == live[1], name


@pytest.mark.full  # test_before_is_what_a_reader_has
def test_before_is_the_row_of_the_topic(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """A table of the default identity: each event's `before` is what a reader has by then, values left out too."""
    wide = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 400) n)"
    postgres18.execute(
        "CREATE TABLE kept (id int PRIMARY KEY, note text, amount numeric(10,2), data bytea, wide text)",
        f"INSERT INTO kept SELECT n, 'a', n / 3.0, '\\xDEAD', {wide} FROM generate_series(1, 4) n",
    )
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.kept"], sink={"before": "topic"})
    connector.catch_up()
    postgres18.execute(
        "UPDATE kept SET note = 'b' WHERE id < 3",
        "BEGIN; UPDATE kept SET note = 'c' WHERE id = 1; UPDATE kept SET id = 11 WHERE id = 1; COMMIT",
        "INSERT INTO kept VALUES (5)",
    )
    connector.catch_up()
    postgres18.execute("UPDATE kept SET amount = 7 WHERE id <> 3", "DELETE FROM kept WHERE id = 2")
    connector.here("snapshot", "start", "FILE", "--table", "public.kept")
    connector.catch_up()
    postgres18.execute("UPDATE kept SET note = NULL", "TRUNCATE kept", "INSERT INTO kept VALUES (4)")
    connector.catch_up()
    held: dict[bytes, Any] = {}
    taken = 0
    for record in connector.records("public.kept"):
        if record.value is None:
            held.pop(record.raw_key)
            continue
        if record.value["op"] in ("u", "d"):
            assert record.value["before"] == held[record.raw_key]
            assert set(record.value["before"]) == {"id", "note", "amount", "data", "wide"}
            taken += 1
        held[record.raw_key] = record.value["after"]
    assert taken == 3 + 1 + 4 + 1 + 4 + 4
    assert [row["id"] for row in held.values()] == [4]


def test_a_row_stays_where_its_key_gets_another_form(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Records under keys of the former format are deleted: for `cdc.follow` that took the rows, which are there."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 9)")
    for form in ("json", "connect-json", "flat"):
        connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"], sink={"format": form})
        connector.catch_up()
        postgres18.execute("DELETE FROM t WHERE id = (SELECT max(id) FROM t)")
    connector.catch_up()
    there = dict[int, bool]()
    with mock.patch.dict(os.environ, connector.environment):
        for change in cdc.follow(connector.file, until_caught_up=True):
            assert change.key is not None
            there[change.key["id"]] = change.op != "d"
        batches = [of.to_pydict() for of in cdc.follow(connector.file, until_caught_up=True).arrow()]
        assert cdc.table(connector.file, "public.t").to_arrow().sort_by("id")["id"].to_pylist() == [1, 2, 3, 4, 5, 6]
    told = {key: op for of in batches for key, op in zip(of["id"], of["__op"], strict=True)}
    assert {key for key, is_there in there.items() if is_there} == {*range(1, 7)}
    assert {key for key, op in told.items() if op != "d"} == {*range(1, 7)}


@pytest.mark.full  # tests/unit/test_schema_registry.py
def test_a_registry_that_was_made_again_while_it_runs(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """It gives old ids to other schemas; a table changes, one does not: a reader has all rows of both soon after."""
    postgres18.execute(
        "CREATE TABLE plain (id int PRIMARY KEY, note text)", "INSERT INTO plain VALUES (1, 'a'), (2, 'b')",
        "CREATE TABLE avro (id int PRIMARY KEY, note text)", "INSERT INTO avro VALUES (1, 'a')",
    )  # fmt: skip
    servers = [Server("registry", tmp_path / of, SERVERS["registry"]) for of in ("first", "second")]
    with Proxy(kafka=False) as proxy:
        url = ""

        def start(server: Server) -> None:
            nonlocal url
            server.start()
            found = urlsplit(server.url)
            proxy.lead_to(found.port or 0)
            url = f"http://127.0.0.1:{proxy.port}{found.path}"

        def newest(table: str) -> list[Any]:
            """Return the rows as a consumer reads them that has just begun; … for a record that it cannot read."""
            reader, last = Reader(connector, url), dict[bytes, Any]()
            for record in connector.records(table):
                last[record.raw_key] = record
            found = list[Any]()
            for record in last.values():
                try:
                    if record.raw_value is not None:
                        reader.avro(record.raw_key, SerializationContext(record.topic, MessageField.KEY))
                        value: Any = reader.avro(
                            record.raw_value, SerializationContext(record.topic, MessageField.VALUE)
                        )
                        found.append(value["after"])
                except Exception:  # noqa: BLE001 - whatever a deserializer says of bytes of another schema
                    found.append(...)
            return sorted(found, key=lambda row: -1 if row is ... else row["id"])

        try:
            start(servers[0])
            connector = Connector(
                tmp_path, prefix, postgres18.url, kafka, ["public.*"],
                sink={"format": "avro", "registry": {"url": url}},
            )  # fmt: skip
            connector.catch_up()
            with Running(connector) as run:
                run.await_following()
                servers[0].stop()
                start(servers[1])
                others = SchemaRegistryClient({"url": url})
                others.register_schema(
                    "acme-value", Schema('{"type":"record","name":"Acme","fields":[{"name":"q","type":"string"}]}')
                )
                postgres18.execute("ALTER TABLE plain ADD COLUMN more int", "INSERT INTO plain VALUES (3, 'c', 3)")
                wanted = {
                    name: sorted(selected(postgres18, f"SELECT * FROM {name}"), key=lambda row: row["id"])
                    for name in ("plain", "avro")
                }
                eventually(
                    lambda: all(newest(f"public.{name}") == rows for name, rows in wanted.items()),
                    "every record has its schema",
                )
        finally:
            for server in servers:
                server.stop()
