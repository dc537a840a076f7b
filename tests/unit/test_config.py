"""The user's files: every way to get one wrong says file, line, path, what was found and what belongs there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import yaml
from click.testing import CliRunner

from cdc.cli.ending import files_given
from cdc.cli.inspecting.status import status
from cdc.cli.main import cdc as command_line
from cdc.config.config import ConnectorConfig, load_apply, load_connector
from cdc.config.kafka_config import GUARANTEED, brokers_of
from cdc.config.views import describes_views, load_views
from cdc.model.errors import CdcError, ConfigError
from cdc.model.hints import pasteable
from sinks.client.brokers import Brokers
from sinks.client.connection import ConnectionConfig
from sinks.client.options import python_client

GOOD = """
name: shop
source:
  type: postgres
  url: postgresql://u:${CDC_TEST_SECRET}@db.example/shop
  tables: [public.orders, "public.item*"]
sink:
  bootstrap_servers: broker:9092
"""
SECRET = "s3cr3t-word"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_TEST_SECRET", SECRET)


def _load(folder: Path, text: str) -> ConnectorConfig:
    file = folder / "connector.yaml"
    file.write_text(text, encoding="utf-8")
    return load_connector(file)


def _refused(folder: Path, text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        _load(folder, text)
    assert SECRET not in str(caught.value)
    assert str(folder / "connector.yaml") in caught.value.message
    return caught.value


@pytest.mark.parametrize(
    ("text", "load", "told"),
    [
        (
            "source: {topic_prefix: p}\nstores: {}\n",
            load_connector,
            "the file of an apply job, and that of a connector",
        ),
        ("source: {topic_prefix: p}\nviews: {}\n", load_connector, "the file of a view job, and that of a connector"),
        ("fleet: f\n", load_connector, "the file of a fleet's member, and that of a connector"),
        ("source: {type: postgres}\nsink: {}\n", load_apply, "the file of a connector, and that of an apply job"),
        ("source: {type: postgres}\nsink: {}\n", load_views, "the file of a connector, and that of a view job"),
        ("stores: {}\n", load_views, "the file of an apply job, and that of a view job"),
    ],
)
def test_the_file_of_another_command_is_told_as_that(
    text: str, load: Callable[[Path], object], told: str, tmp_path: Path
) -> None:
    """A key that is right there was said to be unknown, with others in its place."""
    file = tmp_path / "given.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load(file)
    assert refused.value.message == f"{file}: this is {told} is needed here"
    assert "it is for cdc" in str(refused.value.hint)


def test_a_short_file_gets_the_documented_defaults(tmp_path: Path) -> None:
    """What is left out is decided here, once."""
    config = _load(tmp_path, GOOD)
    assert config.source.url == f"postgresql://u:{SECRET}@db.example/shop"
    assert config.source.tables == ("public.orders", "public.item*")
    assert (config.slot, config.publication) == ("cdc_shop", "cdc_shop")
    assert (config.sink.prefix, config.sink.partitions, config.sink.replication_factor) == ("shop", 6, None)
    assert (config.snapshot.workers, config.snapshot.chunk_rows) == (2, 50_000)
    assert config.source.options == config.sink.options == {}


def test_a_table_may_come_with_its_key(tmp_path: Path) -> None:
    """Beside plain names; the names stay together, the keys are found by name, and a copy keeps them."""
    tables = "[public.orders, {table: public.logs, key: [host, no]}]"
    source = _load(tmp_path, GOOD.replace('[public.orders, "public.item*"]', tables)).source
    assert source.tables == ("public.orders", "public.logs")
    assert source.keys == {"public.logs": ("host", "no")}
    assert dataclasses.replace(source, slot="other").keys == source.keys


def test_debeziums_names_are_taken_for_ours(tmp_path: Path) -> None:
    """Where they mean the same."""
    text = GOOD.replace("bootstrap_servers", "bootstrap.servers").replace(
        "  type: postgres\n", "  type: postgres\n  slot.name: mine\n  publication.name: Pub\n"
    )
    config = _load(tmp_path, text + "  topic.prefix: other\n")
    assert (config.slot, config.publication, config.sink.prefix) == ("mine", "Pub", "other")


def test_a_secret_is_never_in_a_repr(tmp_path: Path) -> None:
    """URLs and options: a repr ends in logs and tracebacks."""
    config = _load(tmp_path, GOOD + "  options: {sasl.password: '${CDC_TEST_SECRET}'}\n")
    assert config.sink.options == {"sasl.password": SECRET}
    assert SECRET not in repr(config)
    assert SECRET not in repr(dataclasses.replace(config.source, options={"a": SECRET}))


BAD = {
    "not YAML": ("name: [shop\n", "this is not YAML", None),
    "two documents": (GOOD + "---\nname: x\n", "this is not YAML", None),
    "a tab": ("name:\tshop\n\tx: 1\n", "this is not YAML", None),
    "an alias nobody defined": ("name: *shop\n", "this is not YAML", None),
    "a control character": ("name: \x01\n", "this is not YAML", None),
    "nothing": ("", "the file is empty", "the keys name, source, sink"),
    "a list": ("- name\n", "keys and values are needed here, found a list", None),
    "a word": ("shop\n", "keys and values are needed here, found a single value", None),
    "an unknown key": (GOOD.replace("tables:", "table:"), ":6: source.table: unknown key", "did you mean tables?"),
    "a key like nothing": (GOOD + "zzzzz: 1\n", "zzzzz: unknown key", "allowed here: name, source, sink, snapshot"),
    "a key of another level": (
        GOOD + "  tables: [a.b]\n", ":9: sink.tables: unknown key", "tables is a key of source",
    ),
    "a key twice": (GOOD + "name: again\n", ":9: name: given twice", "keep one of them"),
    "a key by two names": (
        GOOD.replace("  type: postgres\n", "  slot: a\n  slot.name: b\n  type: postgres\n"),
        ":5: source.slot.name: given twice (as slot)",
        "keep one of them",
    ),
    "a key that is a list": ("[a]: 1\n", "a key must be a plain name", None),
    "a missing key": (GOOD.replace("  type: postgres\n", ""), "source.type: this key is missing", "type: …"),
    "a missing section": (
        GOOD.split("sink:", maxsplit=1)[0], "sink: this key is missing", "sink: {bootstrap_servers: …}",
    ),
    "a word for a list": (
        GOOD.replace('[public.orders, "public.item*"]', "public.orders"), "a list is needed", "[a,",
    ),
    "a list for a word": (GOOD.replace("name: shop", "name: [shop]"), "text is needed here, found a list", None),
    "null for a word": (GOOD.replace("name: shop", "name: ~"), "name: text is needed here, found “~”", None),
    "null for a section": (GOOD.replace("  bootstrap_servers: broker:9092", ""), "keys and values are needed", None),
    "text for a number": (GOOD + "  partitions: six\n", "sink.partitions: a whole number is needed here", None),
    "a quoted number": (GOOD + "  partitions: '6'\n", "sink.partitions: a whole number is needed here", None),
    "a fraction": (GOOD + "  partitions: 6.0\n", "a whole number is needed here, found “6.0”", None),
    "a truth": (GOOD + "  partitions: yes\n", "a whole number is needed here, found “yes”", None),
    "a tag of Python": (GOOD + "  partitions: !!python/object/apply:os.getpid []\n", "found a list", None),
    "a value its tag denies": (GOOD + "  partitions: !!int x\n", "cannot be read as int", None),
    "a name no slot can have": (GOOD.replace("name: shop", "name: My Shop"), "“My Shop” is not a name", "lower-case"),
    "a table without its schema": (
        GOOD.replace("public.orders", "orders"), "“orders” is not schema.table", "public.orders, or public.*",
    ),
    "a table of SQLite without its schema": (
        'name: s\nsource: {type: triggers, url: "sqlite:///s.db", tables: [bills]}\nsink: {bootstrap_servers: h:1}\n',
        "“bills” is not schema.table", "main.bills, or main.*",
    ),
    "every table of every schema of SQLite": (
        'name: s\nsource: {type: triggers, url: "sqlite:///s.db", tables: ["*"]}\nsink: {bootstrap_servers: h:1}\n',
        "“*” is not schema.table", "main.orders, or main.*",
    ),
    "no table": (GOOD.replace('[public.orders, "public.item*"]', "[]"), "tables is empty", "tables: [public.orders]"),
    "a key of a pattern": (
        GOOD.replace('"public.item*"', "{table: public.item*, key: [id]}"),
        ":6: source.tables[1]: table: “public.item*” is a pattern",
        "a key is of one table alone",
    ),
    "a key of nothing": (GOOD.replace('"public.item*"', "{table: public.a, key: []}"), "key is empty", "key: [id]"),
    "a key of one column twice": (
        GOOD.replace('"public.item*"', "{table: a.b, key: [x, x]}"), "a column twice", None,
    ),
    "a keyed table without its key": (
        GOOD.replace('"public.item*"', "{table: a.b}"), "tables[1]: key is empty", None,
    ),
    "a prefix in a database": (GOOD.replace('"public.item*"', "{table: a.b, prefix: x}"), "a.b has a prefix", "etcd"),
    "a prefix and a key": (
        GOOD.replace('"public.item*"', "{table: a.b, prefix: x, key: [y]}"), "exclude each other", "keep one",
    ),
    "text without a prefix": (
        GOOD.replace('"public.item*"', "{table: a.b, key: [x], text: true}"), "text means nothing", "leave it out",
    ),
    "a keyed table without a schema": (GOOD.replace('"public.item*"', "{table: b, key: [x]}"), "“b” is not", None),
    "keys apart from their tables": (
        GOOD.replace("  type: p", "  keys: {}\n  type: p"), "source.keys: unknown", None,
    ),
    "an empty URL": (
        GOOD.replace("postgresql://u:${CDC_TEST_SECRET}@db.example/shop", "''"), "url is empty", "url: ",
    ),
    "a prefix with a dot": (GOOD + "  topic_prefix: a.b\n", "“a.b” is not a prefix", "no dot"),
    "no partitions": (GOOD + "  partitions: 0\n", "partitions: 0 is out of range", "1 or more"),
    "another sink": (GOOD + "  type: pulsar\n", "“pulsar” is not a sink", "type: kafka"),
    "a guaranteed property": (GOOD + "  options: {acks: '1'}\n", "acks cannot be set", "leave it out"),
    "no workers": (GOOD + "snapshot: {workers: 0}\n", ":9: snapshot: workers: must be 1 or more", None),
    "no chunks": (GOOD + "snapshot: {chunk_rows: 0}\n", ":9: snapshot: chunk_rows: must be 1 or more", None),
    "an unset variable": (
        GOOD.replace("CDC_TEST_SECRET", "CDC_TEST_UNSET"),
        ":5: source.url: environment variable CDC_TEST_UNSET is not set",
        "export CDC_TEST_UNSET=…",
    ),
    "a reference that is none": (
        GOOD.replace("CDC_TEST_SECRET", "1 2"), "${1 2} is not a reference", "${file:/path}",
    ),
    "a reference without braces": (
        GOOD.replace("${CDC_TEST_SECRET}", "$CDC_TEST_SECRET"), ":5: source.url: $CDC_TEST_SECRET is not a reference",
        "write ${CDC_TEST_SECRET}; where the text $CDC_TEST_SECRET itself is meant, put it into a file: ${file:/path}",
    ),
    "a reference in a default": (
        GOOD.replace("${CDC_TEST_SECRET}", "${CDC_TEST_UNSET:-${CDC_TEST_SECRET}}"), "is not a reference", "${NAME:-",
    ),
    "a file that is not there": (GOOD.replace("CDC_TEST_SECRET", "file:/no/such"), "cannot be read: No such", None),
    "a file that has no name": (
        GOOD.replace("postgresql://u:${CDC_TEST_SECRET}@db.example/shop", '"${file:/a\\0}"'),
        "cannot be read: no file has such a name",
        None,
    ),
    "an alias inside itself": (GOOD + "  options: &o {x: *o}\n", "text is needed here, found keys and values", None),
    "an alias inside itself, in options": (
        GOOD.replace("  type: postgres\n", "  type: postgres\n  options: &o {x: *o}\n"),
        "an alias (*name) stands inside what it names",
        "write it out",
    ),
    "nothing but a comment": ("# name\n---\n", "the file is empty", "name, source"),
    "nothing for a section": (
        GOOD + "snapshot:\n", ":9: snapshot: keys and values are needed here, found nothing", None,
    ),
    "a line of its own": (GOOD + "on_error: on\n", ":9: on_error: “on” is not known", "stop, dead_letter"),
    "a line further down": (
        GOOD + "  formats: {public.x: flat}\n", ":9: sink.formats: “public.x” is not", "source.tables",
    ),
    "an octal number": (
        GOOD + "  partitions: 010\n", ":9: sink.partitions: a whole number is needed", "for 8: write that",
    ),
    "a number of sixties": (
        GOOD + "  transaction_timeout_s: 1:30\n", "a number is needed here, found “1:30”", "for 90",
    ),
    "a unit": (GOOD + "  idle_position_s: 500ms\n", "a number is needed here, found “500ms”", "without a unit"),
    "a quoted truth": (GOOD + "  transaction_metadata: 'true'\n", "true or false is needed", "without quotes"),
    "an octal number in options": (
        GOOD.replace("  type: p", "  options: {n: 010}\n  type: p"), "a number that YAML reads as another", "quotes",
    ),
    "another's key": (
        GOOD.replace("  tables:", "  table.include.list:"), "table.include.list: unknown", "tables: [public.",
    ),
    "Debezium's login": (
        GOOD.replace("  url:", "  database.hostname:"), "source.database.hostname: unknown", "url: postgres",
    ),
    "Connect's file": ('{"name": "a", "config": {"tasks.max": 1}}', ":1: config: unknown key", "docs/start.md"),
    "another spelling": (GOOD + "  topicPrefix: x\n", "sink.topicPrefix: unknown key", "did you mean topic_prefix?"),
    "a merge key": (GOOD.replace("  type: postgres", "  <<: {type: postgres}"), "source.<<: unknown", "alias, *name"),
    "a tag": (
        GOOD.replace('[public.orders, "public.item*"]', "\n    - !a.b"), "begins with ! is a tag", "put it in quotes",
    ),
    "a star": (GOOD.replace('"public.item*"', "*.items"), "this is not YAML", 'quotes: "*.orders"'),
    "a reference in braces": (
        GOOD + "snapshot: {workers: ${CDC_TEST_SECRET}}\n", "this is not YAML", 'quotes: "${NAME}"',
    ),
    "a reference that does not end": (GOOD.replace("SECRET}", "SECRET"), "begins with ${ has no }", "${file:/path}"),
    "an empty secret": (GOOD.replace("CDC_TEST_SECRET", "file:/dev/null"), "${file:/dev/null} is empty", "write the"),
    "a list of brokers": (
        GOOD.replace("broker:9092", "[a:1, b:2]"), "text is needed here, found a list", "one text: host1:",
    ),
    "a sink that nobody made": (
        GOOD + "  type: pulsar\n  path: x\n", "sink: type: “pulsar” is not a sink", "jsonl or duckdb",
    ),
    "more partitions than there are": (GOOD + "  partitions: 99999999999\n", "is out of range", "at most"),
    "more replicas than there are": (
        GOOD + "  replication_factor: 99999\n", "replication_factor: must be 1 or", "default",
    ),
    "the type of another database": (
        GOOD.replace("type: postgres", "type: mysql"), "type is mysql, and url begins with postgresql://",
        "type: postgres",
    ),
    "a port that is none": (
        GOOD.replace("broker:9092", "a:1,b:99999"), "bootstrap_servers: address 2 is not", "host1:",
    ),
    "a protocol that is not Kafka's": (
        GOOD.replace("broker:9092", "http://a:1"), "address 1 is not host:port", "host1:",
    ),
    "a protocol that options do not say": (
        GOOD.replace("broker:9092", "a:1,SASL_SSL://b:2"),
        "bootstrap_servers: address 2 has protocol SASL_SSL, and security.protocol is another",
        "options: {security.protocol: SASL_SSL}",
    ),
    "a character that YAML has not": (
        GOOD.replace("broker", "bro\x01ker"), ":8: this is not YAML: it has the character U+0001", "double quotes",
    ),
    "a port that is a word": (GOOD.replace("broker:9092", "a:b"), "bootstrap_servers: address 1 is not", "host1:"),
    "IPv6 without brackets": (
        GOOD.replace("broker:9092", "::1:9092"), "bootstrap_servers: address 1 is not", "[::1]",
    ),
    "brokers by semicolons": (
        GOOD.replace("broker:9092", "a:1;b:2"), "bootstrap_servers: address 1 is not", "host1:",
    ),
    "lists without end": ("name: " + "[" * 5_000, "nested too deeply", None),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message", "hint"), BAD.values(), ids=BAD)
def test_a_wrong_file_says_where_and_what(tmp_path: Path, text: str, message: str, hint: str | None) -> None:
    """Always a ConfigError, never a value of a reference, and a hint where there is one step to take."""
    error = _refused(tmp_path, text)
    assert message in error.message
    assert (hint or "") in (error.hint or "")
    assert error.exit_code == 2


@pytest.mark.parametrize("name", sorted(GUARANTEED))
def test_no_property_that_carries_a_guarantee_can_be_set(tmp_path: Path, name: str) -> None:
    """Delivery does not depend on a user's file."""
    assert f"{name} cannot be set" in _refused(tmp_path, GOOD + f"  options: {{{name}: 'x'}}\n").message


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    """Missing, a folder, or not text; of what is missing, what is there instead."""
    with pytest.raises(ConfigError, match="No such file") as none:
        load_connector(tmp_path / "none.yaml")
    assert none.value.hint == f"{tmp_path} has no YAML file"
    with pytest.raises(ConfigError, match="No such file") as nowhere:
        load_connector(tmp_path / "no" / "none.yaml")
    assert nowhere.value.hint == f"there is no folder {tmp_path / 'no'}"
    (tmp_path / "connector.yml").touch()
    for written, hint in (
        ("connector.yaml", f"did you mean {tmp_path / 'connector.yml'}?"),
        ("x", "has connector.yml"),
    ):
        with pytest.raises(ConfigError, match="No such file") as lost:
            load_connector(tmp_path / written)
        assert hint in str(lost.value.hint)
    with pytest.raises(ConfigError, match="Is a directory"):
        load_connector(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"name: \xff")
    with pytest.raises(ConfigError, match=r"it is not UTF-8 text\n.*file \S+/binary.yaml tells"):
        load_connector(tmp_path / "binary.yaml")


def test_references_are_replaced_after_parsing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a variable holds is never read as YAML; a default stands where it is unset or empty; $$ escapes."""
    monkeypatch.setenv("CDC_TEST_SECRET", "a: [b] # c\n'")
    monkeypatch.setenv("CDC_TEST_EMPTY", "")
    (tmp_path / "word").write_text("$CDC_TEST_SECRET\n\n", encoding="utf-8")
    options = (
        "  options: {a: '${CDC_TEST_SECRET}', b: '${CDC_TEST_EMPTY:-fallback}', c: '${CDC_TEST_UNSET:-}',"
        f" d: '${{file:{tmp_path / 'word'}}}', e: '$${{HOME}}', f: x$y, g: 007, h: yes}}\n"
    )
    assert _load(tmp_path, GOOD + options).sink.options == {
        "a": "a: [b] # c\n'", "b": "fallback", "c": "", "d": "$CDC_TEST_SECRET",
        "e": "${HOME}", "f": "x$y", "g": "007", "h": "yes",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("held", "url"),
    [
        ("p@ss:w/o#r?d [x]", "postgresql://u:p%40ss:w%2Fo%23r%3Fd%20%5Bx%5D@db.example/shop"),
        ("p%40ss%", "postgresql://u:p%40ss%25@db.example/shop"),
        ("line\r\n", "postgresql://u:line@db.example/shop"),
    ],
)
def test_a_password_that_a_reference_puts_into_a_url_may_have_any_character(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: str, url: str
) -> None:
    """It was taken for a host or a database. What has been percent-encoded stays so; a line's end is nobody's."""
    monkeypatch.setenv("CDC_TEST_SECRET", held)
    assert _load(tmp_path, GOOD).source.url == url
    assert _load(tmp_path, GOOD + "  options: {a: 'x:${CDC_TEST_SECRET}@'}\n").sink.options == {
        "a": f"x:{held.rstrip()}@"
    }


def test_a_number_may_come_from_a_reference_and_its_content_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole number, or an error that does not repeat what was there."""
    monkeypatch.setenv("CDC_TEST_NUMBER", "12")
    assert _load(tmp_path, GOOD + "  partitions: ${CDC_TEST_NUMBER}\n").sink.partitions == 12
    assert _load(tmp_path, GOOD + "  transaction_metadata: ${CDC_TEST_UNSET:-true}\n").sink.transaction_metadata
    error = _refused(tmp_path, GOOD + "  partitions: ${CDC_TEST_SECRET}\n")
    assert "found what the reference holds" in error.message


def test_options_of_a_third_partys_source_keep_their_types(tmp_path: Path) -> None:
    """Numbers, lists and keys below keys; references in strings."""
    given = "{n: 1, deep: {list: [1.5, true, '${CDC_TEST_SECRET}', null]}}"
    config = _load(tmp_path, GOOD.replace("  type: postgres\n", f"  type: a.b:c\n  options: {given}\n"))
    assert config.source.options == {"n": 1, "deep": {"list": [1.5, True, SECRET, None]}}


APPLY = """
name: lake
source: {bootstrap_servers: "b:9092", topic_prefix: shop}
stores: {warehouse: {type: iceberg, path: ./w}}
tables: {public.orders: {stores: [warehouse], types: {extra: string}}}
checkpoint: ./c
"""


def test_an_apply_file_is_bound_the_same_way(tmp_path: Path) -> None:
    """Stores and tables by name; a table that names a store nobody made is refused."""
    file = tmp_path / "apply.yaml"
    file.write_text(APPLY)
    config = load_apply(file)
    assert config.tables["public.orders"].stores == ("warehouse",)
    assert config.stores["warehouse"].type == "iceberg"
    assert config.quarantine.limit == 1_000
    wrong = {
        "checkpoint: ./c\n": ("checkpoint: ''\n", ":6: checkpoint is empty"),
        "path: ./w}": ("path: ''}", "stores.warehouse: path is empty"),
        "checkpoint: ./c": ("checkpoint: ./c\nquarantine: {limit: -1}", "limit: -1 is out of range"),
        "stores: [warehouse]": ("stores: [lake]", "there is no store “lake”"),
        "{public.orders:": ("{orders:", "“orders” is not schema.table"),
        "topic_prefix: shop": ("topic_prefix: a.b", "is not a prefix"),
        "name: lake": ("name: lake-AS-r", "“lake-AS-r” is not a name"),  # of a replay
        "{type: iceberg, path: ./w}": ("{}", "stores.warehouse.type: this key is missing"),
    }
    for good, (bad, message) in wrong.items():
        file.write_text(APPLY.replace(good, bad))
        with pytest.raises(CdcError, match=message.replace(".", r"\.")):
            load_apply(file)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("type: mysql, url: x, tables: [d.t], slot: s", "slot means nothing to a source of type mysql"),
        ("type: postgres, url: x, tables: [d.t], server_id: 5", "server_id means nothing to a source of type postgres"),
        ("type: mysql, url: x, tables: [d.t], server_id: 0", "server_id: 0 is out of range"),
    ],
)
def test_what_belongs_to_the_other_kind_of_source(tmp_path: Path, source: str, said: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"name: c\nsource: {{{source}}}\nsink: {{bootstrap_servers: x}}\n")
    with pytest.raises(ConfigError, match=said):
        load_connector(file)


def test_a_position_of_mysql_depends_on_no_slot(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("name: c\nsource: {type: mysql, url: x, tables: [d.t]}\nsink: {bootstrap_servers: x}\n")
    assert load_connector(file).binding == {"source.type": "mysql"}


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("{tables: [public.orders]}", "sink.log.retention: this key is missing"),
        ("{tables: [public.orders], retention: 30}", "retention: “30” is no time"),
        ("{tables: [orders], retention: 1d}", "“orders” is not schema.table"),
        ("{tables: [], retention: 1d}", "sink.log: tables is empty"),
        ("{tables: [public.order], retention: 1d}", "sink.log.tables: “public.order” is not captured"),
    ],
)
def test_a_log_that_cannot_be(tmp_path: Path, log: str, said: str) -> None:
    """Among others one of a table that the connector does not follow: nobody would miss it before it is needed."""
    assert said in _refused(tmp_path, GOOD + f"  log: {log}\n").message


def test_a_log_is_of_the_tables_it_names(tmp_path: Path) -> None:
    """Names and patterns; kept as long as the file says."""
    assert _load(tmp_path, GOOD).sink.log is None
    for retention, ms in (("30d", 2_592_000_000), ("12h", 43_200_000), ("90m", 5_400_000), ("forever", -1)):
        log = _load(tmp_path, GOOD + f"  log: {{tables: ['public.item*'], retention: {retention}}}\n").sink.log
        assert log is not None
        assert (log.retention_ms, log.has("public.items"), log.has("public.orders")) == (ms, True, False)


def test_a_file_of_views_is_known_by_its_keys(tmp_path: Path) -> None:
    file = tmp_path / "views.yaml"
    file.write_text("name: v\nviews: {}\n")
    assert describes_views(file)
    done = CliRunner().invoke(status, [str(file)])
    assert isinstance(done.exception, ConfigError)
    shown = pasteable(done.exception.hint or "", files_given(command_line, ["status", str(file)]))
    assert shown == f"cdc view status {file}"


@pytest.mark.parametrize(
    ("without", "hint"),
    [
        ("stores", "stores: {NAME: {type: …}}"),
        ("tables", "tables: {NAME: {stores: …}}"),
        ("source", "source: {bootstrap_servers: …, topic_prefix: …}"),
    ],
)
def test_a_section_that_is_missing_is_shown_with_the_names_that_it_has(tmp_path: Path, without: str, hint: str) -> None:
    whole = yaml.safe_load(APPLY)
    del whole[without]
    file = tmp_path / "apply.yaml"
    file.write_text(yaml.safe_dump(whole))
    with pytest.raises(ConfigError, match=f"{without}: this key is missing") as refused:
        load_apply(file)
    assert refused.value.hint == hint


TWO: Final = (
    "{type: mysql, url: x, tables: [s.a, {table: s.b, key: [k]}], columns: {s.b: {exclude: [v]}}, where: {s.b: v = 1}}",
    '{type: etcd, url: "etcd://h", tables: [{table: s.a, prefix: /a}, {table: s.b, prefix: /b}]}',
)


@pytest.mark.parametrize("source", TWO)
def test_what_a_run_goes_on_without_may_be_named_anywhere(tmp_path: Path, source: str) -> None:
    """For a while: what the file says of it is there when it is back."""
    file = tmp_path / "c.yaml"
    file.write_text(
        f"name: c\nsource: {source}\nsink:\n  bootstrap_servers: x\n  log: {{tables: [s.b], retention: 1d}}\n"
        "  route: [{from: s.b, to: elsewhere}]\n  formats: {s.b: envelope}\n"
    )
    config = load_connector(file)
    without = config.without({"s.b"})
    assert (config.source.captures("s.b"), without.source.captures("s.b")) == (True, False)
    assert without.source.captures("s.a")
    assert dataclasses.replace(without, source=config.source) == config


def test_brokers_as_listeners_name_them(tmp_path: Path) -> None:
    """Kafka's own clients take a protocol before an address, and commas too many; each of ours is given none of it."""
    found = _load(tmp_path, GOOD.replace("broker:9092", '"PLAINTEXT://a:1, [::1]:2,, plaintext://b,"')).sink
    assert brokers_of(found.bootstrap_servers) == ["a:1", "[::1]:2", "b"]
    assert python_client(found.bootstrap_servers, {})["bootstrap_servers"] == ["a:1", "[::1]:2", "b"]
    config = ConnectionConfig(client_id="cdc", answer_s=1.0, options={})
    assert Brokers(found.bootstrap_servers, config)._bootstrap == [("a", 1), ("::1", 2), ("b", 9092)]
