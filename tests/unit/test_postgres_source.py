"""The stream of one slot: what is yielded, dropped and refused, and where the position stands, without a server."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, cast

import pytest

from cdc.config.config import ConnectorConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.published.column_rules import ColumnRules
from cdc.config.source_config import SourceConfig
from cdc.model.change import Idle, Op, Transaction, TransactionBatch
from cdc.model.change import Message as PublishedMessage
from cdc.model.errors import BugError, CdcError, ChangedError, GapError, OperatorError, RetryableError
from connectors.postgres.catalog.catalog import Captured, Catalog
from connectors.postgres.catalog.relations import Followed
from connectors.postgres.pgoutput.changes import Assembler
from connectors.postgres.pgoutput.fast_path import Received
from connectors.postgres.pgoutput.messages import (
    POSTGRES_EPOCH_US,
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Relation,
    RelationColumn,
    Truncate,
    Update,
)
from connectors.postgres.reliance import ledger
from connectors.postgres.reliance.reliance import Reliance
from connectors.postgres.slot import afresh
from connectors.postgres.source import PostgresSource
from snapshot.postgres import snapshotter as reading
from tests.encoders.pgoutput import encode
from tests.text_tables import text_table

ORDERS = text_table("orders", ["id", "note"])
RELATION = Relation(7, "s", "orders", "d", (RelationColumn("id", 25, -1, True), RelationColumn("note", 25, -1, False)))
START = 0x100


def _data(message: Message, lsn: int = 1) -> bytes:
    return b"w" + struct.pack(">qqq", lsn, lsn, 0) + encode(message)


def _keepalive(end: int, *, reply: bool = False) -> bytes:
    return b"k" + struct.pack(">qqB", end, 0, reply)


def _transaction(commit: int, end: int, *messages: Message) -> list[bytes]:
    begin = Begin(commit, POSTGRES_EPOCH_US, commit)
    return [_data(begin), *(_data(m, lsn=commit - 1) for m in messages), _data(Commit(commit, end))]


class Walsender:
    """Sends what it was given, then nothing."""

    def __init__(self, *messages: bytes) -> None:
        self._messages = list(messages)
        self.flushed_to: list[int] = []
        self.answered = self.kept = 0

    def start(self, *_: Any, messages: bool, flushed: int | None) -> None: ...
    def wait(self, _timeout_s: float) -> None: ...
    def written(self, _lsn: int) -> None: ...
    def close(self) -> None: ...

    def receive(self) -> bytes | None:
        return self._messages.pop(0) if self._messages else None

    def receive_transactions(self, read: Any, after: int, most: int) -> Received:
        return Received(*read(self.get_copy_data, lambda: None, after, most))

    def receive_changes(self, read: Any, most: int) -> Any:
        return read(self.get_copy_data, most)[:2]

    def get_copy_data(self, _async: int) -> tuple[int, memoryview]:
        message = self.receive() or b""
        return len(message), memoryview(message)

    def flushed(self, lsn: int) -> None:
        self.flushed_to.append(lsn)

    def status(self, **options: Any) -> None:
        self.answered += options == {"every_s": 0}


class TheCatalog:
    """Knows one table, which has the name it had."""

    def table(self, relation: Relation, *_: Any, commit: int | None) -> Any:
        return text_table(relation.name, ["id", "note"])

    now: ClassVar[dict[int, tuple[str, str]]] = {7: ("s", "orders")}

    def names(self, _oids: Any) -> dict[int, tuple[str, str]]:
        return self.now

    def places(self, oids: Any) -> dict[int, tuple[tuple[str, str], None]]:
        return {oid: (self.now[oid], None) for oid in oids if oid in self.now}

    def exists(self, *name: str) -> bool:
        return name in self.now.values()

    def rows(self, doing: str, *_: Any) -> list[tuple[Any, ...]]:
        return [(180000,)] if doing == "reading the version" else []

    def printed(self, _columns: Any) -> dict[tuple[int, int], str]:
        return {}

    def had_rows(self, _oids: Any) -> set[int]:
        return set()


class NothingDue:
    """An upkeep that has nothing to do."""

    def follows(self, _lsn: int) -> None: ...
    def tend(self, *, following: bool) -> None: ...
    def asking(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def _source(*messages: bytes) -> tuple[PostgresSource, Walsender, Iterator[Any]]:
    source = PostgresSource(
        ConnectorConfig(
            name="c",
            source=SourceConfig(type="postgres", url="postgresql://localhost/d", tables=("s.orders",)),
            sink=KafkaConfig(bootstrap_servers="b:9092", topic_prefix="p"),
        )
    )
    walsender = Walsender(*messages)
    source._replication = walsender  # type: ignore[assignment]
    source._upkeep = NothingDue()  # type: ignore[assignment]
    source._catalog = TheCatalog  # type: ignore[method-assign,assignment]
    source._captured = (Captured(7, ORDERS, partitioned=False),)
    _follow(source, source._config)
    return source, walsender, source.stream({"lsn": "0/100"})


def _follow(source: PostgresSource, config: ConnectorConfig) -> None:
    """Follow the tables by what this configuration says, as a session does once it is connected."""
    source._followed = Followed(config, source._captured)
    catalog, joining = cast("Catalog", TheCatalog()), source._joining
    source._relied = Reliance(config, catalog, source._captured, source._followed, joining)


def _read(frames: Iterator[Any]) -> list[tuple[str, list[Op]]]:
    """Transactions up to the first Idle."""
    found = []
    for frame in frames:
        if isinstance(frame, Idle):
            break
        for transaction in frame.transactions if isinstance(frame, TransactionBatch) else [frame]:
            found.append((transaction.id, [change.op for change in transaction.changes]))
    return found


def test_another_walsender_goes_on_where_one_was_and_confirms_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read may not be in Kafka yet: the server keeps it for the next start."""
    row = Insert(7, (b"1", b"x"))
    source, first, frames = _source(*_transaction(0x110, 0x118, RELATION, row))
    first.kept, started = START, []
    another = Walsender(*_transaction(0x120, 0x128, RELATION, row))
    monkeypatch.setattr(another, "start", lambda *of, messages, flushed: started.append((of[-1], flushed, messages)))
    monkeypatch.setattr("connectors.postgres.source.ReplicationConnection", lambda _: another)
    monkeypatch.setattr("connectors.postgres.slot.proving.await_free", lambda *_: None)
    assert _read(frames) == [("272:272", [Op.CREATE])]
    monkeypatch.setitem(afresh._asked, source._log_key, 0x118)
    assert _read(frames) == [("288:288", [Op.CREATE])]
    assert started == [(0x118, START, True)]
    assert not afresh.is_due(source._log_key, 2**62)


def test_transactions_come_whole_and_the_position_follows() -> None:
    """Each with its changes; the position stands behind the last one's commit."""
    row = (b"1", b"x")
    source, walsender, frames = _source(
        *_transaction(0x110, 0x118, RELATION, Insert(7, row), Update(7, None, old_is_key=False, new=row)),
        *_transaction(0x120, 0x128, Delete(7, (b"1", None), old_is_key=True), Truncate((7,))),
    )
    assert _read(frames) == [("272:272", [Op.CREATE, Op.UPDATE]), ("288:288", [Op.DELETE, Op.TRUNCATE])]
    offset, commit = source.position()
    assert (offset["lsn"], commit) == ("0/128", 0x128)
    assert str(offset["last"]).startswith("0/120 ")
    assert walsender.flushed_to == []
    source.acknowledge({"lsn": "0/118"})
    assert walsender.flushed_to == [0x118]


def test_what_lies_before_the_position_is_dropped() -> None:
    """A slot resends from what was acknowledged, which may be less than what Kafka holds."""
    source, _, frames = _source(
        *_transaction(0xF0, 0xF8, RELATION, Insert(7, (b"1", b"x"))),
        *_transaction(0x100, 0x108, Insert(7, (b"2", b"x"))),
    )
    assert _read(frames) == [("256:256", [Op.CREATE])]
    assert source.position()[1] == 0x108


def test_a_keepalive_moves_the_position_between_transactions_only() -> None:
    """Inside one, the server's end may lie behind a commit not yet sent; an answer is given where it is wanted."""
    begin, *rest = _transaction(0x110, 0x118, RELATION, Insert(7, (b"1", b"x")))
    source, walsender, frames = _source(_keepalive(0x108), begin, _keepalive(0x900, reply=True), *rest)
    frame = next(frames)
    assert isinstance(frame, Transaction)
    assert source.position()[1] == 0x108
    assert len(list(frame.changes)) == 1
    assert source.position()[1] == 0x118
    assert walsender.answered == 1
    walsender._messages = [_keepalive(0x200), _keepalive(0x150)]
    assert isinstance(next(frames), Idle)
    assert source.position()[1] == 0x200
    assert walsender.flushed_to == []


@pytest.mark.parametrize("stood_at", [0x108, 0x110])
def test_a_transaction_left_early_is_a_bug(stood_at: int) -> None:
    """Also where the position stood exactly at its commit: half a transaction must never count as read."""
    _, _, frames = _source(_keepalive(stood_at), *_transaction(0x110, 0x118, RELATION, Insert(7, (b"1", b"x"))))
    next(frames)
    with pytest.raises(BugError, match="left before its end"):
        next(frames)


@pytest.mark.parametrize(
    ("messages", "error", "what"),
    [
        ([_data(Insert(7, (b"1", b"x")))], GapError, "Insert outside a transaction"),
        ([_data(Commit(1, 2))], GapError, "Commit outside a transaction"),
        ([b"x"], GapError, "unknown type 0x78"),
        ([b"k\0"], GapError, "a keepalive of another length"),
        ([b"w\0"], GapError, "a data message that ends early"),
        (_transaction(0x110, 0x118, Insert(9, (b"1",))), BugError, "relation 9, which the log has not described"),
        (_transaction(0x110, 0x118, Begin(1, POSTGRES_EPOCH_US, 1)), GapError, "Begin inside a transaction"),
        (_transaction(0x110, 0x118, Commit(0x109, 0x10A)), GapError, "the commit of another transaction"),
    ],
)
def test_a_stream_out_of_order_is_refused(messages: list[bytes], error: type[CdcError], what: str) -> None:
    """Nothing is guessed, and who says so may go on behind it."""
    _, _, frames = _source(*messages)
    with pytest.raises(error, match=what) as refused:
        _read(frames)
    assert ("--after-gap" in str(refused.value.hint)) is (error is GapError)


OLDER = RELATION._replace(name="before")
NEWER = RELATION._replace(name="after")


def test_rows_from_before_a_rename_are_the_tables_rows() -> None:
    """The log is older than the catalog: the number says which table it is, the name of now where its rows go."""
    _, _, frames = _source(*_transaction(0x110, 0x118, OLDER, Insert(7, (b"1", b"x"))))
    for frame in frames:
        assert isinstance(frame, Transaction)
        (change,) = frame.changes
        assert change.table.qualified == "s.orders"
        break


@pytest.mark.parametrize("seen", ["by a row", "while idle"])
def test_a_table_renamed_while_it_is_followed(monkeypatch: pytest.MonkeyPatch, seen: str) -> None:
    """Both names are said, and what can be done; nothing of the new name goes into the old one's topic."""
    monkeypatch.setattr(TheCatalog, "now", {7: ("s", "after")})
    messages = _transaction(0x110, 0x118, NEWER, Insert(7, (b"1", b"x"))) if seen == "by a row" else []
    source, _, frames = _source(*messages)
    with pytest.raises(OperatorError, match=r"table renamed: s\.orders is s\.after now") as caught:
        _read(frames)
    for word in ("source.tables", "s.after", "s.orders", "RENAME TO orders", "ADD TABLE ONLY s.orders"):
        assert word in (caught.value.hint or "")
    assert source.position()[1] == 0x100


def test_a_table_renamed_to_a_name_that_is_captured_is_taken_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern matches it: the next session finds it as a table added."""
    monkeypatch.setattr(TheCatalog, "now", {7: ("s", "orders_2024")})
    source, _, frames = _source()
    source._config = replace(source._config, source=replace(source._config.source, tables=("s.orders*",)))
    _follow(source, source._config)
    with pytest.raises(RetryableError, match=r"s\.orders is s\.orders_2024 now"):
        _read(frames)


@pytest.mark.parametrize("seen", ["followed", "started"])
def test_a_table_renamed_to_a_captured_name_without_its_rule(monkeypatch: pytest.MonkeyPatch, seen: str) -> None:
    """Is not taken up, also where another table has its name by now: what the rule hides would be published."""
    monkeypatch.setattr(TheCatalog, "now", {7: ("s", "orders_2024"), 9: ("s", "orders")})
    source, _, _ = _source()
    rules = {"s.orders": ColumnRules(exclude=("note",))}
    of = replace(source._config.source, tables=("s.orders*",), columns=rules)
    if seen == "started":
        newer = text_table("orders_2024", ["id", "note"])
        source._captured = (Captured(7, newer, partitioned=False), Captured(9, ORDERS, partitioned=False))
    _follow(source, replace(source._config, source=of))
    look = source._followed.look if seen == "followed" else partial(source._followed.compare, {"s.orders": 7}, owed={})
    with pytest.raises(OperatorError, match=r"s\.orders is s\.orders_2024 now, which source.tables names, and"):
        look(catalog=source._catalog())


def test_what_a_commit_carries_is_made_once() -> None:
    """Also where a table with rules is captured no more: each commit compares it with the last by its identity."""
    source, _, _ = _source()
    reliance = Reliance(source._config, source._catalog(), (), source._followed, cast("Any", None))
    reliance._aside = {"=9": "9=s.users"}
    reliance.begin()
    assert reliance.carried() is reliance.carried()
    assert reliance.carried() == {"=9": "9=s.users"}


def test_a_table_made_again_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number is another: the publication may not carry it, and no row would ever say so."""
    monkeypatch.setattr(TheCatalog, "now", {9: ("s", "orders")})
    _, _, frames = _source()
    with pytest.raises(RetryableError, match="dropped and made again"):
        _read(frames)


def test_a_table_dropped_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once."""
    monkeypatch.setattr(TheCatalog, "now", {})
    source, _, frames = _source()
    _read(frames)
    source._followed.look(source._catalog())
    (told,) = caplog.records
    assert "s.orders: it was dropped" in told.getMessage()
    monkeypatch.setattr(TheCatalog, "now", {9: ("s", "orders")})
    with pytest.raises(RetryableError, match="dropped and made again"):
        source._followed.look(source._catalog())


def test_a_table_not_captured_is_read_over() -> None:
    """The publication may carry more than is asked for."""
    other = RELATION._replace(id=8, name="other")
    _, _, frames = _source(*_transaction(0x110, 0x118, other, Insert(8, (b"1", b"x")), Truncate((8,))))
    assert _read(frames) == [("272:272", [])]


def test_a_table_described_again_stays_the_same_object() -> None:
    """After each VACUUM the log describes it again: encoders hang on the object, and would pile up."""
    assembler = Assembler()
    assembler.learn(RELATION, ORDERS)
    assembler.learn(RELATION, text_table("orders", ["id", "note"]))
    assert assembler.table(7) is ORDERS
    changed = text_table("orders", ["id", "note", "more"])
    assembler.learn(RELATION._replace(columns=(*RELATION.columns, RELATION.columns[1])), changed)
    assert assembler.table(7) is changed
    assembler.learn(RELATION, None)
    assert assembler.table(7) is None


@pytest.mark.parametrize("view", [None, "00000003-1"])
def test_a_new_view_waits_for_commits_held_back(monkeypatch: pytest.MonkeyPatch, view: str | None) -> None:
    """The slot's own view needs no waiting: it was made from the log."""

    class Reached(Exception):  # noqa: N818 - the test's end
        pass

    class Connection:
        def get_parameter_status(self, _: str) -> str:
            return "UTF8"

        def set_session(self, **_: Any) -> None:
            raise Reached

        def close(self) -> None: ...

    waited: list[str] = []
    monkeypatch.setattr("connectors.postgres.same_server.beside", lambda _: Connection())
    monkeypatch.setattr(reading, "await_older_transactions", lambda *_: waited.append("waited"))
    source, _, _ = _source()
    snapshotter = reading.PostgresSnapshotter(source._config)
    with pytest.raises(Reached):
        next(snapshotter.chunks([ORDERS], {}, view))
    assert waited == (["waited"] if view is None else [])


def test_messages_of_the_log_have_their_place() -> None:
    """Of no transaction: by itself, once, and the position follows; in one: among its changes. Ours are read over."""
    source, _, frames = _source(
        _data(LogicalMessage(False, START, "app", b"before the position")),
        _data(LogicalMessage(False, START + 8, "app", b"alone")),
        _data(LogicalMessage(False, START + 16, "cdc.heartbeat", b"")),
        *_transaction(
            0x200, 0x208, LogicalMessage(True, 0x1F0, "app", b"in"), LogicalMessage(True, 0x1F8, "cdc.x", b"ours")
        ),
    )
    assert next(frames) == PublishedMessage("app", b"alone", START + 8)
    assert source.position() == ({"lsn": "0/108"}, START + 8)
    transaction = next(frames)
    assert source.position()[1] == START + 16
    assert isinstance(transaction, Transaction)
    assert list(transaction.changes) == [PublishedMessage("app", b"in", 0x1F0)]
    assert isinstance(next(frames), Idle)


def test_a_table_that_was_out_of_the_publication_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two statements of one look: its entry keeps how it was in it, and the next look finds that it was out."""
    source, _, _ = _source()
    facts = ledger.Facts(oid=7, paths=("1:2",), changed="9", made="m", columns={}, parts=[], types={})
    reliance = source._reliance()
    reliance._records = ledger.records({"s.orders": facts})
    looks = iter([(), ("1:3",)])
    monkeypatch.setattr(ledger, "look", lambda *_: {"s.orders": replace(facts, paths=next(looks))})
    monkeypatch.setattr("connectors.postgres.slot.slot.left", lambda *_: [])
    monkeypatch.setattr("connectors.postgres.slot.slot.publication_refusals", lambda *_: [])
    monkeypatch.setattr(source._followed, "look", lambda _: None)
    monkeypatch.setattr(source._joining, "look", lambda _: None)
    assert not source.settled()
    with pytest.raises(ChangedError, match="did not carry it all the time"):
        reliance.look()
