"""etcd with the whole pipeline: what happens in the cluster, and what the topics then hold. The broker is the twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import cdc
import cdc.capture.control.commands
import cdc.capture.pipeline
import connectors.etcd.backlog
import connectors.etcd.source
from cdc.capture.control.signals import Command
from cdc.config.findings import Level
from cdc.config.published.column_rules import ColumnRules
from cdc.config.source_config import KeyedTable
from cdc.model.errors import GapError, OperatorError
from cdc.testing import Faults, Killed
from connectors.etcd import check
from tests.etcd_cluster import Etcd, text
from tests.integration.etcd_shop import EtcdShop


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks and commands come at once."""
    monkeypatch.setattr(cdc.capture.pipeline, "RETRY_FIRST_S", 0.0)
    monkeypatch.setattr(cdc.capture.control.commands, "COMMANDS_S", 0.0)


@pytest.fixture(scope="module")
def url(servers: Callable[[str], str]) -> str:
    return servers("etcd")


@pytest.fixture
def shop(url: str) -> EtcdShop:
    """A connector that has read four keys."""
    shop = EtcdShop(url)
    for name in "abcd":
        shop.etcd.put(f"orders/{name}", name.encode())
    shop.run()
    assert [event["op"] for event in shop.events()] == ["r"] * 4
    return shop


class Case(NamedTuple):
    """What an application does, below the case's own prefix, and what the events say of the values."""

    first: Callable[[Etcd], Any]
    then: Callable[[Etcd], Any]
    moves: list[tuple[str, str | None, str | None]]


def _leased(etcd: Etcd) -> str:
    lease = str(etcd.call("lease/grant", {"TTL": 600})["ID"])
    etcd.put("a_lease_that_ends/1", b"leased", lease=lease)
    etcd.put("a_lease_that_ends/2", b"leased too", lease=lease)
    etcd.put("a_lease_that_ends/3", b"stays")
    return lease


def _lease_taken_on(etcd: Etcd) -> None:
    lease = str(etcd.call("lease/grant", {"TTL": 600})["ID"])
    etcd.put("a_lease_given_later/1", b"x", lease=lease)


def _revoke(etcd: Etcd) -> None:
    """Of the key that has one: as when its time is over."""
    (lease,) = {each["lease"] for each in etcd.found("a_lease_that_ends/") if "lease" in each}
    etcd.call("lease/revoke", {"ID": lease})


CASES = {
    "put": Case(
        lambda etcd: etcd.put("put/1", b"old"),
        lambda etcd: [etcd.put("put/1", b"new"), etcd.put("put/2", b"second")],
        [("u", "old", "new"), ("c", None, "second")],
    ),
    "the_same_value": Case(
        lambda etcd: etcd.put("the_same_value/1", b"x"),
        lambda etcd: etcd.put("the_same_value/1", b"x"),
        [("u", "x", "x")],
    ),
    "delete": Case(
        lambda etcd: [etcd.put("delete/1", b"x"), etcd.put("delete/2", b"y")],
        lambda etcd: [etcd.delete("delete/1"), etcd.delete("delete/none")],
        [("d", "x", None)],
    ),
    "made_again": Case(
        lambda etcd: etcd.put("made_again/1", b"x"),
        lambda etcd: [etcd.delete("made_again/1"), etcd.put("made_again/1", b"y"), etcd.put("made_again/1", b"z")],
        [("d", "x", None), ("c", None, "y"), ("u", "y", "z")],
    ),
    "several_keys": Case(
        lambda etcd: etcd.commit({"several_keys/1": b"x", "several_keys/2": b"y"}),
        lambda etcd: etcd.commit({"several_keys/1": None, "several_keys/2": b"z", "several_keys/3": b"new"}),
        [("d", "x", None), ("u", "y", "z"), ("c", None, "new")],
    ),
    "a_range_deleted": Case(
        lambda etcd: etcd.commit({f"a_range_deleted/{number}": b"%d" % number for number in range(4)}),
        lambda etcd: [etcd.delete_all("a_range_deleted/"), etcd.put("a_range_deleted/2", b"back")],
        [*(("d", str(number), None) for number in range(4)), ("c", None, "back")],
    ),
    "a_lease_that_ends": Case(_leased, _revoke, [("d", "leased", None), ("d", "leased too", None)]),
    "a_lease_given_later": Case(
        lambda etcd: etcd.put("a_lease_given_later/1", b"x"), _lease_taken_on, [("u", "x", "x")]
    ),
    "an_empty_value": Case(
        lambda etcd: etcd.put("an_empty_value/", b""), lambda etcd: etcd.put("an_empty_value/1", b""),
        [("c", None, "")],
    ),
    "names_of_every_kind": Case(
        lambda etcd: etcd.put('names_of_every_kind/a b"\\\n☃/', b"{}"),
        lambda etcd: etcd.put('names_of_every_kind/a b"\\\n☃/', b"\x7f\x00"),
        [("u", "{}", "\x7f\x00")],
    ),
    "a_large_value": Case(
        lambda etcd: etcd.put("a_large_value/1", b"x" * 1_400_000),
        lambda etcd: etcd.put("a_large_value/1", b"y" * 1_400_000),
        [("u", "x" * 1_400_000, "y" * 1_400_000)],
    ),
}  # fmt: skip


class Ran(NamedTuple):
    """A connector that has followed all cases at once, and one that has read what they have come to."""

    streamed: EtcdShop
    read: EtcdShop


@pytest.fixture(scope="module")
def ran(url: str) -> Ran:
    shop = EtcdShop(url, tables=tuple(f"s.{name}" for name in CASES))
    for case in CASES.values():
        case.first(shop.etcd)
    shop.run()
    for case in CASES.values():
        case.then(shop.etcd)
    shop.run()
    again = EtcdShop(url, tables=shop.tables, root=shop.etcd.root)
    again.run()
    return Ran(shop, again)


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, ran: Ran) -> None:
    """The fold of what was told is the range, and the same as a second snapshot."""
    assert ran.streamed.fold(name) == ran.streamed.there(name) == ran.read.fold(name)
    assert ran.streamed.moves(name) == CASES[name].moves


def test_events_say_where_they_are_from(shop: EtcdShop) -> None:
    """The revision is the place, and the transaction's id; the connector's name is etcd."""
    revision = shop.etcd.put("orders/a", b"new")
    shop.run()
    (event,) = shop.events()[4:]
    assert event["source"]["connector"] == "etcd"
    assert (event["source"]["db"], event["source"]["table"]) == ("s", "orders")
    assert event["source"]["revision"] == revision == event["after"]["mod_revision"]
    assert event["transaction"]["id"] == str(revision)


@pytest.mark.parametrize("in_memory", [0, 16 << 20])
def test_a_transaction_of_several_prefixes_is_whole(url: str, in_memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However far apart the watchers of its prefixes are, and wherever what they have sent is kept."""
    monkeypatch.setattr(connectors.etcd.backlog, "IN_MEMORY", in_memory)
    monkeypatch.setattr(connectors.etcd.source, "_SMALL", 30)
    shop = EtcdShop(url, tables=("s.one", "s.two", "s.quiet"))
    shop.run()
    with shop.running() as running:
        for number in range(40):
            shop.etcd.commit({f"one/{number}": b"x", f"two/{number}": b"x", f"two/{number + 100}": b"x"})
        shop.etcd.delete_all("two/")
        running.eventually(lambda: shop.fold("one") == shop.there("one") and shop.fold("two") == [])
    assert running.raised is None
    shop.etcd.commit({"one/1": b"y", "two/1": b"y", "quiet/1": b"y"})
    for number in range(20):
        shop.etcd.commit({f"one/{number}": b"z", f"two/{number}": b"z"})
    shop.etcd.delete_all("one/")
    shop.run()
    places: dict[str, list[tuple[str, int]]] = {}
    for table in ("one", "two", "quiet"):
        assert shop.fold(table) == shop.there(table)
        for event in shop.events(table):
            at = event["transaction"]
            places.setdefault(at["id"], []).append((table, at["total_order"]))
    for orders in places.values():
        assert sorted(order for _, order in orders) == list(range(1, len(orders) + 1))


def test_bytes_are_base64(url: str) -> None:
    """Keys and values of a table that is not text: any bytes, by snapshot and stream the same."""
    shop = EtcdShop(url)
    shop.items = (shop.etcd.item("s.orders"),)
    for number in range(0, 256, 5):
        key = shop.etcd.key("orders/") + bytes([number, 255])
        shop.etcd.call("kv/put", {"key": text(key), "value": text(bytes([number, 0, 128]))})
    shop.run()
    assert shop.fold() == shop.there(text=False)
    for number in range(0, 256, 7):
        key = shop.etcd.key("orders/") + bytes([number, 255])
        shop.etcd.call("kv/put", {"key": text(key), "value": text(bytes([255, number]))})
    shop.run()
    assert shop.fold() == shop.there(text=False)


def test_what_is_no_text_is_a_poison_record(url: str) -> None:
    """It stops a connector, or becomes a dead letter, and never is another value."""
    shop = EtcdShop(url)
    shop.etcd.put("orders/good", b"x")
    shop.run()
    shop.etcd.put("orders/bad", b"\xff")
    shop.etcd.put("orders/good", b"y")
    with pytest.raises(OperatorError, match="the value of value cannot be written"):
        shop.run()
    shop.more = {"logs": frozenset({"dead-letter"})}
    shop.run()
    assert [row["value"] for row in shop.fold()] == ["y"]
    assert shop.state().dead_letters == 1


def test_hidden_and_masked_columns_and_rules_for_rows(url: str) -> None:
    """They apply where rows become JSON, as for every source."""
    shop = EtcdShop(url)
    shop.rules = {
        "columns": {"s.orders": ColumnRules(exclude=("lease", "version"), mask=("value",))},
        "where": {"s.orders": "mod_revision > 0"},
    }
    shop.etcd.put("orders/a", b"secret")
    shop.run()
    shop.etcd.put("orders/a", b"secret too")
    shop.run()
    assert [set(row) for row in shop.fold()] == [{"key", "value", "create_revision", "mod_revision"}]
    assert all(b"secret" not in (record.value or b"") for record in shop.kafka.committed("p.s.orders"))


def test_what_is_compacted_while_it_stands_is_a_gap(shop: EtcdShop) -> None:
    """Never passed over; all keys are read again, and what has gone is deleted."""
    shop.etcd.delete("orders/a")
    shop.etcd.put("orders/b", b"new")
    shop.etcd.compact(shop.etcd.put("orders/e", b"new"))
    with pytest.raises(GapError, match="history compacted") as caught:
        shop.run()
    assert "--after-gap" in (caught.value.hint or "")
    (finding,) = [f for f in check.check(shop.config, shop.state()).findings if f.level is Level.ERROR]
    assert "history compacted" in finding.what
    shop.ask(Command(after_gap=True, tables=()))
    shop.run()
    assert shop.fold() == shop.there()
    shop.etcd.delete("orders/b")
    shop.run()
    assert shop.fold() == shop.there()
    assert shop.state().epoch == 2


def test_a_delete_at_the_revision_that_is_compacted_is_never_passed_over(shop: EtcdShop) -> None:
    """There are releases that compact the deletes of that revision too, and let a watch begin there."""
    shop.etcd.compact(shop.etcd.delete("orders/a"))
    with pytest.raises(GapError, match="history compacted"):
        shop.run()


def test_what_was_read_may_be_compacted(shop: EtcdShop) -> None:
    """Up to the position, which an idle cluster's is at the cluster's revision."""
    shop.etcd.put("elsewhere", b"x")
    revision = shop.etcd.put("elsewhere", b"y")
    shop.run()
    assert shop.state().offset["revision"] == revision
    shop.etcd.compact(revision)
    shop.etcd.delete("orders/a")
    shop.run()
    assert shop.fold() == shop.there()


def test_compacted_while_the_snapshot_is_read(shop: EtcdShop) -> None:
    """The history behind the snapshot's revision is gone too: a gap, which is closed by reading in windows."""
    other = EtcdShop(shop.url, root=shop.etcd.root)
    for number in range(20):
        shop.etcd.put(f"orders/{number:03}", b"x")

    def compacting(point: str) -> None:
        if point == "sink.commit" and other.events() and not other.etcd.found("done/"):
            other.etcd.put("done/", b"")
            other.etcd.compact(other.etcd.revision())

    with pytest.raises(GapError, match="history compacted"):
        other.run(compacting)
    other.ask(Command(after_gap=True, tables=()))
    other.run()
    assert other.fold() == other.there()


@pytest.mark.parametrize("point", ["sink.write", "sink.commit", "sink.commit.answer", "sink.commit.delayed"])
def test_killed_at_any_step_each_event_comes_once(url: str, point: str) -> None:
    """And the application writes meanwhile: in the snapshot, between its chunks, behind it."""
    shop = EtcdShop(url, tables=("s.orders", "s.items"))
    for name in "abcdefg":
        shop.etcd.commit({f"orders/{name}": b"old", f"items/{name}": b"old"})
    for time in range(1, 7):
        shop.etcd.commit({f"orders/{'abcdefg'[time]}": None, "orders/a": b"%d" % time, f"items/{time}": b"new"})
        try:
            shop.run(Faults((point, time), error=Killed))
        except Killed:
            continue
    shop.run()
    for table in ("orders", "items"):
        assert shop.fold(table) == shop.there(table)
        streamed = [event for event in shop.events(table) if event["op"] != "r"]
        told = [(event["source"]["revision"], (event["after"] or event["before"])["key"]) for event in streamed]
        assert len(told) == len(set(told))


def test_a_prefix_that_is_another_now_is_read_again(shop: EtcdShop) -> None:
    """Keys of the old one become deletes, all that the last transaction has written too."""
    shop.etcd.commit({"others/1": b"x", **{f"orders/{name}": b"y" for name in "abcd"}})
    shop.run()
    shop.items = (replace(shop.etcd.item("s.others", text=True), table="s.orders"),)
    warned = [f.about for f in check.check(shop.config, shop.state()).findings if f.level is Level.WARNING]
    assert warned == ["table s.orders"]
    shop.run()
    assert shop.fold() == shop.there("others")


def test_tables_are_added_and_left_out(shop: EtcdShop) -> None:
    """One that is added is read while the other is followed; of one that is left out the topic stays."""
    shop.etcd.put("items/1", b"x")
    shop.tables = ("s.orders", "s.items")
    shop.etcd.put("orders/a", b"new")
    shop.run()
    shop.etcd.commit({"orders/b": None, "items/1": b"y", "items/2": b"z"})
    shop.run()
    assert (shop.fold(), shop.fold("items")) == (shop.there(), shop.there("items"))
    before = shop.fold()
    shop.tables = ("s.items",)
    shop.etcd.commit({"orders/c": None, "items/1": None})
    shop.run()
    shop.run()
    assert (shop.fold(), shop.fold("items")) == (before, shop.there("items"))


def test_a_table_that_is_added_and_stays_quiet_is_no_other_history(shop: EtcdShop) -> None:
    """Its keys were written behind all that was told of the others; and so those of a prefix that is wider now."""
    shop.etcd.put("items/1", b"x")
    shop.run()
    shop.tables = ("s.orders", "s.items")
    for _ in range(2):
        shop.run()
    assert shop.fold("items") == shop.there("items")
    shop.items = (KeyedTable(table="s.orders", prefix=shop.etcd.root, text=True),)
    for _ in range(2):
        shop.run()
    assert shop.fold() == shop.there("items") + shop.there()


def test_tables_are_read_again_while_it_runs(shop: EtcdShop) -> None:
    """By a signal; the application goes on writing."""
    with shop.running() as running:
        running.eventually(lambda: shop.state().phase == "stream")
        before = len(shop.events())
        shop.ask(Command(tables=("s.orders",)))
        shop.etcd.put("orders/x", b"meanwhile")
        running.eventually(lambda: len(shop.events()) >= before + 5 and not shop.state().reading)
        running.eventually(lambda: shop.fold() == shop.there())
    assert running.raised is None


def test_a_program_follows_it(url: str, tmp_path: Path) -> None:
    """Without Kafka, by its URL; nothing is made in the cluster for it."""
    etcd = Etcd(url)
    etcd.put("orders/a", b"x")
    table = {"table": "s.orders", "prefix": f"{etcd.root}orders/", "text": True}

    def told() -> list[Any]:
        with cdc.follow(url, tables=[table], position=tmp_path / "at", create=True, until_caught_up=True) as following:
            found = []
            for transaction in following:
                found += [(change.op, change.after and change.after["value"]) for change in transaction]
                transaction.done()
        return found

    assert told() == [("r", "x")]
    etcd.commit({"orders/a": None, "orders/b": b"y"})
    assert told() == [("d", None), ("c", "y")]


def test_an_older_term_is_another_history(shop: EtcdShop) -> None:
    """A cluster's Raft term never goes back."""
    offset = shop.state().offset
    found = check.check(shop.config, shop.state().next(offset={**offset, "term": int(offset["term"]) + 1})).findings
    assert ["another history: the cluster's Raft term" in f.what for f in found if f.level is Level.ERROR] == [True]


def test_endpoints_are_tried_in_turn(shop: EtcdShop, url: str) -> None:
    """One that is away is told by `cdc check`, and does not stop a run."""
    free = "127.0.0.1:1"
    shop.login = f"etcd://{free},{url.removeprefix('etcd://')}"
    shop.etcd.put("orders/a", b"newer")
    shop.run()
    assert shop.fold() == shop.there()
    findings = check.check(shop.config, shop.state()).findings
    assert [f.level for f in findings if f.about == f"etcd at {free}"] == [Level.WARNING]
    assert not [f for f in findings if f.level is Level.ERROR]


def test_status_and_check_say_where_it_stands(shop: EtcdShop) -> None:
    """An idle connector's lag is none."""
    shop.run()
    found = check.standing(shop.config, shop.state())
    assert (found["lag_bytes"], found["revisions_behind"]) == (0, 0)
    shop.etcd.put("orders/a", b"new")
    found = check.standing(shop.config, shop.state())
    assert (found["lag_bytes"], found["revisions_behind"]) == (None, 1)
    assert check.end(shop.config, shop.state()) == shop.etcd.revision() + 1
    said = {finding.about: finding for finding in check.check(shop.config, shop.state()).findings}
    assert all(finding.level is Level.OK for finding in said.values())
    assert said["table s.orders"].what == "4 keys, whose values are text"
    assert "version 3." in said["etcd at " + shop.url.removeprefix("etcd://")].what
