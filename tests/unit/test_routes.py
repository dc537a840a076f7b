"""Routes: what a file may say of them, and that tables of one topic do not get into each other's way, on the twins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

import cdc.capture.pipeline
import cdc.encode.truncates
from cdc.capture.control.signals import Command
from cdc.capture.pipeline import Pipeline, Settings
from cdc.config.config import load_connector
from cdc.config.published.route import RouteConfig
from cdc.encode.envelope.table_encoder import TableEncoder
from cdc.encode.left_out_values import LeftOutValues
from cdc.encode.table_log import log_of
from cdc.library.described import Described
from cdc.model.change import UNCHANGED, Table
from cdc.model.errors import ConfigError, OperatorError
from cdc.rules.routes import KEY_TABLE, NO_ROUTES, Routes, key_end, owner, without_table
from cdc.testing import (
    At,
    Faults,
    Inline,
    Killed,
    MemoryKafka,
    MemoryLog,
    MemorySink,
    MemorySnapshotter,
    MemorySource,
    Outcome,
    Record,
    delete,
    insert,
    nothing,
    truncate,
    update,
)
from spark_apply.model.target_table import parse_version, target
from tests.text_tables import text_column, text_table

A, B, C = (text_table(f"orders_{name}", ["id", "note"]) for name in "abc")
WIDE = ["id", text_column("note", toastable=True)]
WIDE_A, WIDE_B = (text_table(f"orders_{name}", WIDE) for name in "ab")
TOGETHER = Routes([RouteConfig(tables="s.orders_*", to="orders", key="+source")])
LONG = b"w" * 2_100

FILE = """
name: shop
source: {{type: postgres, url: "postgresql://db/shop", tables: ["public.*", public.orders_1, public.orders_2]}}
sink: {{bootstrap_servers: "127.0.0.1:9092", {sink}}}
"""


@pytest.mark.parametrize(
    ("route", "message"),
    [
        ('{from: "public.orders_*", to: orders}', "route[0]: several tables may go to orders"),
        (
            "{from: public.orders_1, to: orders}, {from: public.orders_2, to: orders}",
            "route[0]: several tables may go to orders",
        ),
        (
            "{from: public.orders_1, to: orders, key: +source}, {from: public.orders_2, to: orders}",
            "route[1]: several tables may go to orders",
        ),
        (
            "{from: public.orders_1, to: a}, {from: public.orders_1, to: b}",
            "“public.orders_1” has two routes, to a and",
        ),
        (
            '{from: "public.o*", to: a, key: +source}, {from: public.orders_1, to: b}',
            "“public.orders_1” has two routes, to a and to b",
        ),
        (
            '{from: public.orders_1, to: b}, {from: "public.o*", to: a, key: +source}',
            "“public.orders_1” has two routes, to b and to a",
        ),
        ("{from: public.orders_1, to: public.orders}", "to: “public.orders” is not a name for a topic"),
        ("{from: public.orders_1, to: größe}", "to: “größe” is not a name for a topic"),
        ('{from: public.orders_1, to: ""}', "to: “” is not a name for a topic"),
        (f"{{from: public.orders_1, to: {'x' * 101}}}", "is not a name for a topic"),
        ("{from: public.orders_1, to: schema}", "to: “schema” is the name of a topic of the connector's own"),
        ("{from: public.orders_1, to: position-shop}", "“position-shop” is the name of a topic of the connector's own"),
        ("{from: public.orders_1, to: Orders}, {from: public.orders_2, to: orders}", "differ by capital letters alone"),
        ("{from: orders_1, to: orders}", "from: “orders_1” is not schema.table"),
        ('{from: "!public.orders_1", to: orders}', "from: “!public.orders_1” is not schema.table"),
        ("{from: other.orders, to: orders}", "sink.route[0].from: “other.orders” is not captured"),
        ("{from: public.orders_1, to: orders, key: id}", "key: “id” is not known"),
        ("{from: public.orders_1}", "sink.route[0].to: this key is missing"),
        ("{to: orders}", "sink.route[0].from: this key is missing"),
        ("{tables: public.orders_1, to: orders}", "sink.route[0].tables: unknown key"),
    ],
)
def test_a_route_that_cannot_be_meant(tmp_path: Path, route: str, message: str) -> None:
    """The file is refused where it is read: nothing is made."""
    path = tmp_path / "connector.yaml"
    path.write_text(FILE.format(sink=f"route: [{route}]"))
    with pytest.raises(ConfigError) as caught:
        load_connector(path)
    assert message in caught.value.message
    if "missing" not in message:
        assert caught.value.hint


def test_routes_that_a_file_may_have(tmp_path: Path) -> None:
    """Of one table without more; of several with their names in the keys; two of them to one topic."""
    path = tmp_path / "connector.yaml"
    routes = '{from: public.orders_1, to: first}, {from: "public.x_*", to: xs, key: +source}, '
    path.write_text(FILE.format(sink=f'route: [{routes}{{from: "public.y_?", to: xs, key: +source}}]'))
    sink = load_connector(path).sink
    found = Routes.of_sink(sink)
    names = {name: found.of(f"public.{name}") for name in ("orders_1", "orders_2", "x_1", "y_1", "y_10")}
    assert {name: of and (of.to, of.of_source) for name, of in names.items()} == {
        "orders_1": ("first", False), "orders_2": None, "x_1": ("xs", True), "y_1": ("xs", True), "y_10": None,
    }  # fmt: skip


def _refusals(routes: Sequence[Mapping[str, str]], *tables: Table, first: bool = True, **more: Any) -> list[str]:
    made = Routes([RouteConfig(tables=of["from"], to=of["to"], key=of.get("key")) for of in routes], **more)
    return [error.message for error in made.refusals(tables, first=first)]


ALL = {"from": "s.orders_*", "to": "orders", "key": "+source"}


def test_what_only_the_tables_show() -> None:
    """A pattern without a table, in the first run alone; two patterns for one table; what a routed topic cannot be."""
    nobody = {"from": "s.Orders_*", "to": "others", "key": "+source"}
    assert _refusals([ALL, nobody], A, B) == ["sink.route[1].from: “s.Orders_*” matches no table that is captured"]
    assert _refusals([ALL, nobody], A, B, first=False) == []
    again = {"from": "s.*_a", "to": "others", "key": "+source"}
    assert _refusals([ALL, again], A, B) == [
        "sink.route: table s.orders_a has two routes, from s.orders_* and from s.*_a"
    ]
    flat = _refusals([ALL], A, B, formats=lambda name: "flat" if name.endswith("b") else "")
    (flat_too,) = flat
    assert flat_too.startswith(
        "sink.route: table s.orders_b goes to orders and has the format flat: a routed topic has"
    )
    logged = _refusals([ALL], A, logged=lambda _: True)
    assert logged == ["sink.route: table s.orders_a goes to orders and has a log: a log is of a table's own topic"]
    taken = text_table("orders_d", [KEY_TABLE, "note"], key=[KEY_TABLE])
    assert "has a key column __dbz__physicalTableIdentifier" in _refusals([ALL], taken)[0]
    assert _refusals([{"from": "s.orders_d", "to": "one"}], taken) == []


@pytest.mark.parametrize("value", ["1", '"', ',"__dbz__physicalTableIdentifier":"s.orders_b"}', "\\", '","x', "ü", "}"])
def test_no_value_can_end_a_key_as_another_table(value: str) -> None:
    """A key is taken apart into what it was, and is one table's alone, whatever its columns hold."""
    encoders = [
        TableEncoder(of, connector="m", prefix="p", database="d", version=1, topic="p.orders", names_source=True)
        for of in (A, B, text_table('or"ders', ["id", "note"]))
    ]
    for encoder in encoders:
        key = encoder.key((value.encode(), b"n"))
        assert key == encoder.key_plainly((value.encode(), b"n"))
        assert orjson.loads(key) == {"id": value, KEY_TABLE: encoder.table.qualified}
        assert without_table(key) == (orjson.dumps({"id": value}), encoder.table.qualified)
        assert orjson.loads(encoder.key_image(key)) == {"id": value}
        assert [owner(of.table.qualified)(key) for of in encoders] == [of is encoder for of in encoders]
        assert key.endswith(key_end(encoder.table.qualified))
    for foreign in (b"", b"{}", b"null", b"\xff", b',"__dbz__physicalTableIdentifier":', orjson.dumps({"id": value})):
        assert without_table(foreign) == (foreign, None)


class Bench:
    """A log and a broker."""

    def __init__(self) -> None:
        self.log, self.kafka = MemoryLog(), MemoryKafka(largest_bytes=1 << 20)

    def pipeline(self, *tables: Table, routes: Routes = TOGETHER, at: At = nothing, **more: Any) -> Pipeline:
        more = {"logs": frozenset(["transaction", "dead-letter"]), "chunk_rows": 1, **more}
        return Pipeline(
            Settings(connector="c", prefix="p", routes=routes, **more),
            open_source=lambda: MemorySource(self.log, tables, at=at),
            open_snapshotter=lambda: MemorySnapshotter(self.log, rows_each=1, at=at, tells=False),
            sink=MemorySink(self.kafka, "c", "p", routes=routes, at=at),
            executor=Inline,
        )

    def run(self, *tables: Table, **more: Any) -> None:
        self.pipeline(*tables, **more).run(until_caught_up=True)

    def ask(self, *tables: str) -> None:
        """As `cdc snapshot start` does."""
        record = Record("p.signal-c", b"1", Command(tables=tables).to_bytes("1"), self.kafka.begin("cli"))
        self.kafka.topics["p.signal-c"].append(record)
        self.kafka.end("cli", Outcome.COMMITTED)

    def fold(self, topic: str = "p.orders") -> dict[tuple[str | None, str], str]:
        """The rows that a reader of the topic has, by table and id."""
        last = {r.key: r.value for r in self.kafka.committed(topic)}
        found = {}
        for key, value in last.items():
            if value is not None:
                event, (_, table) = orjson.loads(value), without_table(key)
                assert table in (None, f"{event['source']['schema']}.{event['source']['table']}")
                found[table, event["after"]["id"]] = event["after"]["note"]
        return found

    def events(self, topic: str = "p.orders") -> list[Any]:
        return [orjson.loads(r.value) for r in self.kafka.committed(topic) if r.value is not None]

    def is_right(self, *tables: Table, topic: str = "p.orders") -> None:
        assert self.fold(topic) == {
            (table.qualified, (row[0] or b"").decode()): (row[1] or b"").decode()  # type: ignore[union-attr]
            for table in tables
            for row in self.log.rows(table).values()
        }


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(cdc.capture.pipeline, "RETRY_FIRST_S", 0.0)
    return Bench()


def test_tables_with_the_same_keys_in_one_topic(bench: Bench) -> None:
    """By snapshot and by log, keys that move, and what the schema and the transaction topic say of each table."""
    other = text_table("other", ["id", "note"])
    b = text_table("orders_b", ["id", "note", "more"])
    bench.log.commit(insert(A, (b"1", b"a")), insert(b, (b"1", b"b", b"x")), insert(other, (b"1", b"o")))
    bench.run(A, b, other)
    bench.log.commit(
        update(A, (b"2", b"moved"), key=(b"1",)), insert(b, (b"2", b"b2", b"x")), insert(other, (b"2", b"o"))
    )
    bench.log.commit(insert(A, (b"1", b"again")), delete(b, (b"1",)), update(A, (b"1", b"more")))
    bench.run(A, b, other, key_headers=True)
    bench.is_right(A, b)
    assert bench.fold("p.s.other") == {(None, "1"): "o", (None, "2"): "o"}
    assert {r.topic for r in bench.kafka.topics["p.orders"]} == {"p.orders"}
    assert "p.s.orders_a" not in bench.kafka.topics
    described = {of["table"]: of for of in bench.events("p.schema")}
    routed = ("topic", "routed", "key_table", "key")
    assert {name: tuple(of.get(part) for part in routed) for name, of in described.items()} == {
        "orders_a": ("p.orders", True, KEY_TABLE, ["id"]), "orders_b": ("p.orders", True, KEY_TABLE, ["id"]),
        "other": ("p.s.other", None, None, ["id"]),
    }  # fmt: skip
    assert [len(described[name]["columns"]) for name in ("orders_a", "orders_b")] == [2, 3]
    ends = [of for of in bench.events("p.transaction") if of["status"] == "END"]
    assert [{c["data_collection"]: c["event_count"] for c in of["data_collections"]} for of in ends] == [
        {"s.orders_a": 2, "s.orders_b": 1, "s.other": 1}, {"s.orders_a": 2, "s.orders_b": 1},
    ]  # fmt: skip
    orders = [
        (event["source"]["table"], event["transaction"]["data_collection_order"])
        for event in bench.events()
        if event["transaction"] is not None
    ]
    assert orders == [
        ("orders_a", 1),
        ("orders_a", 2),
        ("orders_b", 1),
        ("orders_a", 1),
        ("orders_b", 1),
        ("orders_a", 2),
    ]
    befores = [event["before"] for event in bench.events() if event["op"] == "d"]
    assert befores == [{"id": "1"}, {"id": "1"}]


def test_a_route_of_one_table_is_another_name(bench: Bench) -> None:
    """Keys are as they were."""
    routes = Routes([RouteConfig(tables="s.orders_a", to="renamed")])
    bench.log.commit(insert(A, (b"1", b"a")))
    bench.run(A, B, routes=routes)
    bench.log.commit(insert(A, (b"2", b"a")), truncate(A), insert(A, (b"3", b"a")))
    bench.run(A, B, routes=routes)
    assert bench.fold("p.renamed") == {(None, "3"): "a"}
    described = next(of for of in bench.events("p.schema") if of["table"] == "orders_a")
    assert (described["topic"], described["routed"], "key_table" in described) == ("p.renamed", True, False)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_truncate_deletes_the_rows_of_its_table_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, at_once: bool
) -> None:
    """Also where it is done in parts, by a reading of the table."""
    monkeypatch.setattr(cdc.encode.truncates, "TRUNCATED_AT_ONCE", 100 if at_once else 0)
    bench.log.commit(*(insert(table, (key, b"n")) for table in (A, B, C) for key in (b"1", b"2")))
    bench.run(A, B, C)
    bench.log.commit(truncate(B), insert(B, (b"2", b"new")))
    bench.run(A, B, C)
    bench.is_right(A, B, C)
    deleted = [event["source"]["table"] for event in bench.events() if event["op"] == "d"]
    assert set(deleted) == {"orders_b"}
    assert len(bench.fold()) == 5


def test_a_table_is_read_again_and_no_other(bench: Bench) -> None:
    """Rows that the source lost without an event get deletes; those of the others stay, and are not written again."""
    bench.log.commit(*(insert(table, (key, b"n")) for table in (A, B) for key in (b"1", b"2", b"3")))
    bench.run(A, B)
    bench.log.carried = frozenset(["s.orders_b"])  # what happens to A now, no log tells
    bench.log.commit(delete(A, (b"1",)), update(A, (b"2", b"new")))
    bench.log.carried = frozenset(["s.orders_a", "s.orders_b"])
    before = len(bench.kafka.topics["p.orders"])
    bench.ask("s.orders_a")
    bench.run(A, B)
    bench.is_right(A, B)
    written = bench.kafka.committed("p.orders")[before:]
    assert {without_table(record.key)[1] for record in written} == {"s.orders_a"}


def test_a_truncate_of_one_table_while_another_is_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no event of the rows that are read: they are written, and what the source has lost is deleted."""
    monkeypatch.setattr(cdc.encode.truncates, "TRUNCATED_AT_ONCE", 100)
    bench.log.commit(*(insert(table, (key, b"n")) for table in (A, B) for key in (b"1", b"2", b"3")))
    bench.run(A, B)
    bench.log.carried = frozenset(["s.orders_b"])
    bench.log.commit(delete(A, (b"1",)), update(A, (b"2", b"new")))
    bench.log.carried = frozenset(["s.orders_a", "s.orders_b"])
    came: list[int] = []

    def at(point: str) -> None:
        if point == "snapshot.window" and len(came) < 4:
            came.append(bench.log.commit(truncate(B), insert(B, (b"%d" % len(came), b"n")), visible=False))

    bench.ask("s.orders_a")
    bench.run(A, B, at=at)
    bench.log.reveal(came)
    bench.run(A, B)
    assert came
    bench.is_right(A, B)


@pytest.mark.parametrize("kept", ["log", "topic"])
def test_values_that_the_log_leaves_out_are_those_of_the_table(bench: Bench, kept: str) -> None:
    """After a restart each is read from the topic under its own key, also by the second table that asks."""
    bench.log.commit(insert(WIDE_A, (b"1", LONG + b"a")), insert(WIDE_B, (b"1", LONG + b"b")))
    bench.run(WIDE_A, WIDE_B)
    bench.log.commit(
        update(WIDE_A, (b"2", UNCHANGED), key=(b"1",)), update(WIDE_B, (b"3", UNCHANGED), key=(b"1",)),
    )  # fmt: skip
    bench.run(WIDE_A, WIDE_B, before_of_topic=kept == "topic")
    bench.is_right(WIDE_A, WIDE_B)
    if kept == "topic":
        befores = [event["before"] for event in bench.events() if event["op"] == "d"]
        assert befores == [{"id": "1", "note": (LONG + b"a").decode()}, {"id": "1", "note": (LONG + b"b").decode()}]


def test_dead_letters_are_of_the_table(bench: Bench) -> None:
    """A value whose newest row is in the dead letters is not taken from the topic, whichever table has asked first."""
    too_wide = b"x" * (1 << 20)
    bench.log.commit(insert(WIDE_A, (b"1", LONG)), insert(WIDE_B, (b"1", LONG)))
    bench.run(WIDE_A, WIDE_B)
    bench.log.commit(update(WIDE_B, (b"1", too_wide)))
    bench.run(WIDE_A, WIDE_B)
    bench.log.commit(update(WIDE_A, (b"1", UNCHANGED)), update(WIDE_B, (b"1", UNCHANGED)))
    bench.run(WIDE_A, WIDE_B)
    letters = bench.events("p.dead-letter-c")
    assert {(letter["table"], letter["key"]["id"]) for letter in letters} == {("orders_b", "1")}
    assert len(letters) > 1
    assert bench.fold() == {("s.orders_a", "1"): LONG.decode(), ("s.orders_b", "1"): LONG.decode()}


@pytest.mark.parametrize("how", ["deleted", "made again", "emptied"])
def test_a_topic_that_is_lost_has_all_its_tables_read_again(bench: Bench, how: str) -> None:
    """And no other."""
    other = text_table("other", ["id", "note"])
    bench.log.commit(*(insert(table, (key, b"n")) for table in (A, B, other) for key in (b"1", b"2")))
    bench.run(A, B, other)
    if how == "emptied":
        bench.kafka.delete_records("p.orders")
    else:
        bench.kafka.delete("p.orders")
        if how == "made again":
            bench.kafka.create("p.orders")
    bench.log.commit(delete(A, (b"1",)))
    of_other = len(bench.kafka.topics["p.s.other"])
    bench.run(A, B, other)
    bench.is_right(A, B)
    assert len(bench.kafka.topics["p.s.other"]) == of_other


def test_a_table_that_comes_later(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """It is read into the topic, and was not captured before, though the topic is there; the next time it was."""
    bench.log.commit(*(insert(table, (b"1", b"n")) for table in (A, B, C)))
    bench.run(A)
    bench.run(A, B)
    bench.is_right(A, B)
    assert "was captured before" not in caplog.text
    bench.run(A)
    bench.log.commit(delete(B, (b"1",)), insert(B, (b"2", b"n")))
    bench.run(A, B, C)
    assert caplog.text.count("was captured before") == 1
    bench.is_right(A, B, C)


def test_killed_at_each_point(bench: Bench) -> None:
    """Each table's rows once, whatever was under way."""
    bench.log.commit(*(insert(table, (key, b"n")) for table in (A, B) for key in (b"1", b"2")))
    for point in ("snapshot.chunk", "sink.commit", "sink.commit.answer", "sink.write", "source.acknowledge"):
        for nth in (1, 2, 3):
            try:
                bench.run(A, B, at=Faults((point, nth), error=Killed))
            except Killed:
                bench.log.commit(update(A, (b"1", point.encode())), truncate(B), insert(B, (b"1", b"%d" % nth)))
    bench.run(A, B)
    bench.is_right(A, B)


MOVES: list[tuple[str, Routes, Routes]] = [
    ("a route that is new", NO_ROUTES, TOGETHER),
    ("a route that is gone", TOGETHER, NO_ROUTES),
    ("another topic", TOGETHER, Routes([RouteConfig(tables="s.orders_*", to="others", key="+source")])),
]


@pytest.mark.parametrize(("how", "before", "after"), MOVES, ids=[move[0] for move in MOVES])
def test_another_topic_for_what_was_written_is_refused(bench: Bench, how: str, before: Routes, after: Routes) -> None:
    """The rows in the former topic would stay there, stale. What the hint says is a way: a start without the tables."""
    assert how
    other = text_table("other", ["id", "note"])
    bench.log.commit(insert(A, (b"1", b"a")), insert(B, (b"1", b"b")))
    bench.run(A, B, other, routes=before)
    records = {topic: len(of) for topic, of in bench.kafka.topics.items() if of}
    with pytest.raises(OperatorError, match=r"the events of table s\.orders_a were written to p\.") as caught:
        bench.run(A, B, other, routes=after)
    assert "leave the table out of source.tables for one start" in (caught.value.hint or "")
    assert {topic: len(of) for topic, of in bench.kafka.topics.items() if of} == records
    bench.run(other, routes=after)
    bench.log.commit(delete(A, (b"1",)), insert(A, (b"2", b"a")))
    bench.run(A, B, other, routes=after)
    now = {of["table"]: of["topic"] for of in bench.events("p.schema")}
    rows = {table.name: bench.fold(now[table.name]) for table in (A, B)}
    names = [table.qualified if after.names_source(table.qualified) else None for table in (A, B)]
    assert rows["orders_a"].items() >= {(names[0], "2"): "a"}.items()
    assert (names[0], "1") not in rows["orders_a"]
    assert rows["orders_b"].items() >= {(names[1], "1"): "b"}.items()


def test_a_topic_of_one_table_is_not_given_to_others(bench: Bench) -> None:
    """Its keys do not name their table: rows of another would take their place."""
    one = Routes([RouteConfig(tables="s.orders_a", to="orders")])
    bench.log.commit(insert(A, (b"1", b"a")), insert(B, (b"1", b"b")))
    bench.run(A, C, routes=one)
    for routes in (
        TOGETHER,
        Routes([RouteConfig(tables="s.orders_b", to="orders")]),
    ):
        with pytest.raises(OperatorError, match=r"two rows might have one key"):
            bench.run(B, C, routes=routes)
    assert bench.fold() == {(None, "1"): "a"}
    with pytest.raises(OperatorError, match=r"table s\.orders_a cannot go to p\.orders"):
        bench.run(A, C, routes=TOGETHER)


def test_a_topic_of_another_connector_is_not_shared(bench: Bench) -> None:
    """Both may have tables of one name. It is refused at the first start, also where the topic has no record yet."""
    bench.run(A, C)
    other = MemorySink(bench.kafka, "d", "p", routes=TOGETHER)
    settings = Settings(connector="d", prefix="p", routes=TOGETHER)
    log = MemoryLog()
    neighbour = Pipeline(
        settings,
        open_source=lambda: MemorySource(log, [B]),
        open_snapshotter=lambda: MemorySnapshotter(log),
        sink=other,
        executor=Inline,
    )
    log.commit(insert(B, (b"1", b"b")))
    with pytest.raises(OperatorError, match=r"topic owned by another connector: p\.orders is written by c"):
        neighbour.run(until_caught_up=True)
    assert bench.fold() == {}
    assert bench.kafka.state("p", "d") is None


def test_a_routed_topic_has_no_log_that_could_be_a_table() -> None:
    """What is lost of the topic of a table `log.orders` is not taken for the lost log of a route to `orders`."""
    assert log_of("p.s.orders") == "p.log.s.orders"
    assert log_of("p.orders").count(".") == 3
    names = [log_of(f"p.{name}") for name in ("orders", "s.orders", "log.orders", "orders.orders")]
    assert len(set(names)) == len(names)
    assert "p.log.orders" not in names


def test_a_reading_is_asked_for_by_each_table() -> None:
    """The request of one is not taken for the other's, which has the same version and topic."""
    asked: list[str] = []
    nobody: Any = None
    values = LeftOutValues(
        nobody, nobody, logged=nobody, letters=nobody, not_asked=set(), unsent=None,
        requests=SimpleNamespace(resnapshot=lambda table, _: asked.append(table.qualified)),  # type: ignore[arg-type]
    )  # fmt: skip
    for table in (A, B, A):
        of = TableEncoder(table, connector="m", prefix="p", database="d", version=1, topic="p.orders")
        values._request_resnapshot(of, frozenset(["note"]))
    assert asked == ["s.orders_a", "s.orders_b"]


def test_a_reader_finds_a_table_where_it_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the topic that it had before; a record of a table that is not asked for is of nobody."""
    path = tmp_path / "connector.yaml"
    path.write_text(FILE.format(sink='route: [{from: "public.orders_*", to: orders, key: +source}]'))
    shared = {"topic": "shop.orders", "routed": True, "key_table": KEY_TABLE}
    records = [
        {"schema": "public", "table": table, "version": version, "key": ["id"], "columns": [], **where}
        for table, version, where in [
            ("orders_1", 1, {"topic": "shop.public.orders_1"}), ("orders_1", 2, shared), ("orders_2", 1, shared),
            ("other", 1, {"topic": "shop.public.other"}),
        ]
    ]  # fmt: skip
    monkeypatch.setattr(
        "sinks.topics.records.bulk.descriptions", lambda _: [orjson.dumps(record) for record in records]
    )
    config = load_connector(path)
    one = Described(config, ["public.orders_1"])
    (place,) = one.places()
    assert (one.look(), one.shares) == (["shop.orders"], True)
    assert [one.record(place, version)["topic"] for version in (1, 2)] == ["shop.public.orders_1", "shop.orders"]
    assert [one.place("shop.orders", table) for table in ("public.orders_1", "public.orders_2")] == [place, None]
    assert one.place("shop.orders", None) == place
    all_of_them = Described(config, None)
    assert sorted(all_of_them.look()) == ["shop.orders", "shop.public.other"]
    assert len({all_of_them.place("shop.orders", f"public.orders_{n}") for n in (1, 2)}) == 2
    assert all_of_them.place("shop.public.other", None) == "shop.public.other"


def test_a_key_that_comes_to_have_the_member_stops(bench: Bench) -> None:
    """DDL while the log is followed: a key would have two members of one name."""
    bench.log.commit(insert(A, (b"1", b"a")))
    bench.run(A)
    renamed = text_table("orders_a", [KEY_TABLE, "note"], key=[KEY_TABLE])
    bench.log.commit(insert(renamed, (b"2", b"a")))
    with pytest.raises(OperatorError, match="has a key column __dbz__physicalTableIdentifier"):
        bench.run(A)
    assert bench.fold() == {("s.orders_a", "1"): "a"}


def test_what_runs_on_spark_refuses_a_topic_of_several_tables(bench: Bench) -> None:
    """It would take the rows of all for the rows of one. A topic of another name is read as any other."""
    bench.log.commit(insert(A, (b"1", b"a")))
    bench.run(A)
    (record,) = bench.kafka.committed("p.schema")
    with pytest.raises(
        OperatorError, match=r"table s\.orders_a: its events are in p\.orders, a topic that tables share"
    ):
        target([parse_version(record.value or b"")], {})
    one = Bench()
    one.log.commit(insert(A, (b"1", b"a")))
    one.run(A, routes=Routes([RouteConfig(tables="s.orders_a", to="renamed")]))
    (record,) = one.kafka.committed("p.schema")
    assert target([parse_version(record.value or b"")], {}).topic == "p.renamed"
