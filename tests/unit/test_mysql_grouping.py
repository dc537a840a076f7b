"""Blocks of the log: what is committed, once, whole; nothing of what is rolled back; XA's rows at its commit."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cdc.model.change import Op
from cdc.model.errors import OperatorError, RetryableError
from connectors.mysql.binlog import events, parser
from connectors.mysql.binlog.events import Header
from connectors.mysql.rows.transactions import Committed, Grouper, Passed, TransactionBuffer
from tests.encoders.mysql import encode, header

XID = (1, b"x", b"")


class Log:
    """Events one behind the other in a file, 100 bytes each."""

    def __init__(self) -> None:
        self.end = 4

    def header(self, type_: int) -> Header:
        self.end += 100
        return Header(1_700_000_000, type_, 7, 100, self.end, 0)

    def gtid(self, gno: int = 1) -> Any:
        return events.Gtid(self.header(33), "u", "", gno, 0, 0, 1_700_000_000_123_456, None, None)

    def mariadb(self, *, standalone: bool = False) -> Any:
        return events.MariadbGtid(self.header(162), 0, 7, 5, 1 if standalone else 0, None, None)

    def query(self, statement: str) -> Any:
        return events.Query(self.header(2), 1, 0, "d", statement, "utf8mb4", None)

    def map(self, table: str = "t") -> Any:
        return events.TableMap(self.header(19), 1, 0, "d", table, (), None)

    def rows(self) -> Any:
        return events.Rows(self.header(30), Op.CREATE, 1, 1, 0, b"", b"", b"")

    def xid(self) -> Any:
        return events.Xid(self.header(16), 9)

    def prepare(self, *, one_phase: bool = False) -> Any:
        return events.XaPrepare(self.header(38), one_phase, *XID)


def grouper() -> Grouper:
    return Grouper(lambda told: told.table == "t")


def fed(group: Grouper, made: Iterable[Any]) -> list[Committed | Passed]:
    return [done for event in made if (done := group.feed(event, b"x" * 100, "b.000001"))]


def names(done: Committed) -> list[str]:
    return [type(event).__name__ for event, _ in done.rows.buffer.read(lambda raw: pytest.fail("in memory"))]


@pytest.mark.parametrize("ending", ["xid", "commit"])
def test_a_transaction(ending: str) -> None:
    """Its commit position is that of its last event; reading resumes behind it."""
    log, group = Log(), grouper()
    made = [log.gtid(), log.query("BEGIN"), log.map(), log.rows(), log.rows()]
    made.append(log.xid() if ending == "xid" else log.query("COMMIT"))
    (done,) = fed(group, made)
    assert isinstance(done, Committed)
    assert names(done) == ["TableMap", "Rows", "Rows"]
    block = done.block
    assert (block.begin.offset, block.last, block.end) == (4, 504, 604)
    assert block.commit == 1 << 32 | 504
    assert (block.gtid, block.at_ms) == ("u:1", 1_700_000_000_123)
    assert group.between


@pytest.mark.parametrize(
    "statements",
    [("BEGIN", "rows", "ROLLBACK"), ("BEGIN", "COMMIT"), ("BEGIN", "others", "COMMIT"), ("FLUSH TABLES",)],
)
def test_nothing_is_published_of(statements: tuple[str, ...]) -> None:
    log, group = Log(), grouper()
    made = [log.gtid()]
    for statement in statements:
        if statement in ("rows", "others"):
            made += [log.map("t" if statement == "rows" else "other"), log.rows()]
        else:
            made.append(log.query(statement))
    (done,) = fed(group, made)
    assert isinstance(done, Passed)
    assert done.block.end == log.end


def test_a_statement_alone_is_a_block_and_one_inside_is_not() -> None:
    """CREATE TABLE … AS SELECT stands in one transaction with its rows."""
    log, group = Log(), grouper()
    alone = [log.gtid(), log.query("TRUNCATE TABLE t")]
    inside = [log.gtid(2), log.query("BEGIN"), log.query("CREATE TABLE t (id INT)"), log.map(), log.rows(), log.xid()]
    one, two = fed(group, [*alone, *inside])
    assert isinstance(one, Committed)
    assert names(one) == ["Query"]
    assert isinstance(two, Committed)
    assert names(two) == ["Query", "TableMap", "Rows"]


def test_mariadb_has_no_begin_and_says_what_stands_alone() -> None:
    log, group = Log(), grouper()
    one, two = fed(
        group,
        [log.mariadb(), log.map(), log.rows(), log.xid(), log.mariadb(standalone=True), log.query("DROP TABLE t")],
    )
    assert isinstance(one, Committed)
    assert one.block.gtid == "0-7-5"
    assert isinstance(two, Committed)


def test_prepared_rows_come_with_their_commit() -> None:
    log, group = Log(), grouper()
    prepare = [log.gtid(1), log.query("XA START X'78',X'',1"), log.map(), log.rows(), log.query("XA END X'78',X'',1")]
    (passed,) = fed(group, [*prepare, log.prepare()])
    assert isinstance(passed, Passed)
    assert list(group.prepared) == [XID]
    between = fed(group, [log.gtid(2), log.query("BEGIN"), log.map(), log.rows(), log.xid()])
    (done,) = fed(group, [log.gtid(3), log.query("XA COMMIT X'78',X'',1")])
    assert isinstance(between[0], Committed)
    assert isinstance(done, Committed)
    assert done.block.gtid == "u:3"
    assert names(done) == ["TableMap", "Rows"]
    assert done.rows.begin.offset == 4
    assert not group.prepared


def test_prepared_rows_rolled_back_and_committed_in_one_phase() -> None:
    log, group = Log(), grouper()
    start, rows = log.query("XA START X'78',X'',1"), [log.map(), log.rows()]
    _, rolled = fed(
        group, [log.gtid(1), start, *rows, log.prepare(), log.gtid(2), log.query("XA ROLLBACK X'78',X'',1")]
    )
    assert isinstance(rolled, Passed)
    (one_phase,) = fed(group, [log.gtid(3), start, *rows, log.prepare(one_phase=True)])
    assert isinstance(one_phase, Committed)


def test_what_does_not_say_which_rows_it_changed_is_held_with_the_rest() -> None:
    """Statements in the place of rows, and parts of rows: whose tables they concern is for the one who knows them."""
    log, group = Log(), grouper()
    begin, part = [log.gtid(), log.query("BEGIN"), log.map()], events.PartialUpdateRows(log.header(39), 1, 1, 1, *"xyz")
    statements = ["INSERT INTO t VALUES (1)", "CALL p()", "SET STATEMENT x = 1 FOR UPDATE t SET v = 1", "SAVEPOINT `s`"]
    (done,) = fed(group, [*begin, part, *map(log.query, statements), log.xid()])
    assert isinstance(done, Committed)
    assert names(done) == ["TableMap", "PartialUpdateRows", "Query", "Query", "Query"]
    assert not done.block.uncertain


def test_a_part_that_was_rolled_back_makes_the_rest_uncertain() -> None:
    log, group = Log(), grouper()
    made = [log.gtid(), log.query("BEGIN"), log.map(), log.rows(), log.query("ROLLBACK TO `s`"), log.xid()]
    (done,) = fed(group, made)
    assert isinstance(done, Committed)
    assert done.block.uncertain


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda log: [events.Unknown(log.header(99))], "type 99 .* at b.000001:4"),
        (lambda log: [log.map(), log.rows()], "outside a transaction"),
        (lambda log: [log.gtid(), log.gtid(2)], "has no end"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_stops_with_its_place(made: Any, said: str) -> None:
    with pytest.raises(OperatorError, match=said) as caught:
        fed(grouper(), made(Log()))
    assert "b.000001" in caught.value.message
    assert caught.value.hint


def test_a_crash_in_a_transaction_ends_it() -> None:
    log, group = Log(), grouper()
    assert fed(group, [log.gtid(), log.query("BEGIN"), log.map(), log.rows()]) == []
    group.reset(events.FormatDescription(log.header(15), 4, "9", 0, b"", checksum=True))
    assert group.between


def test_a_large_transaction_is_held_in_a_file() -> None:
    """In order, each with its offset; read again as often as asked."""
    log, held = Log(), TransactionBuffer(limit_bytes=250)
    made = [log.rows() for _ in range(5)]
    for n, event in enumerate(made):
        held.add(event, b"%d" % n * 100, n)
    parsed = list(held.read(lambda raw: events.Xid(made[0].header, int(raw[:1]))))
    assert [(event.xid, offset) for event, offset in parsed] == [(n, n) for n in range(5)]  # type: ignore[union-attr]
    assert len(list(held.read(lambda _: made[0]))) == 5
    held.close()


DESCRIBED = events.FormatDescription(header(15), 4, "9.7.4", 0, b"\0\x0d\0\x08" * 10, checksum=True)
BEGIN = events.Query(header(2), 1, 0, "d", "BEGIN", "utf8mb4", None)
COLUMN = events.TableColumn("id", 3, 0, nullable=False, unsigned=False, visible=True)
ROWS = events.Rows(header(30), Op.CREATE, 1, 1, 1, b"", b"\x01", b"\0\1\0\0\0")


def mapped(table: str = "t") -> events.TableMap:
    return events.TableMap(header(19), 1, 1, "d", table, (COLUMN,), ((0, 0),))


def packed(log: Log, *inner: events.Event) -> list[Any]:
    """A compressed transaction: what `binlog_transaction_compression` makes of the events."""
    plain = b"".join(encode(event, checksum=False) for event in inner)
    return [log.gtid(), events.TransactionPayload(log.header(40), 255, len(plain), plain)]


def unpacking() -> Grouper:
    group = grouper()
    group.reset(DESCRIBED)
    return group


def test_a_compressed_transaction_is_what_is_in_it() -> None:
    """Rows of tables that are of no interest are not held; what is, can be read again from its bytes."""
    log, group = Log(), unpacking()
    xid = events.Xid(header(16), 5)
    (done,) = fed(group, packed(log, BEGIN, mapped("other"), ROWS, mapped(), ROWS, xid))
    assert isinstance(done, Committed)
    assert names(done) == ["TableMap", "Rows"]
    assert done.block.described is not None
    assert not done.block.described.checksum
    assert (done.block.last, done.block.end) == (104, 204)
    (passed,) = fed(group, packed(log, BEGIN, mapped("other"), ROWS, xid))
    assert isinstance(passed, Passed)


def test_what_is_prepared_and_compressed_comes_at_its_commit() -> None:
    """Its end is XA PREPARE, inside: nothing is committed yet, and may never be."""
    log, group = Log(), unpacking()
    start, end = BEGIN._replace(statement="XA START X'78',X'',1"), BEGIN._replace(statement="XA END X'78',X'',1")
    (passed,) = fed(group, packed(log, start, mapped(), ROWS, end, events.XaPrepare(header(38), False, *XID)))
    assert isinstance(passed, Passed)
    (done,) = fed(group, [log.gtid(2), log.query("XA COMMIT X'78',X'',1")])
    assert isinstance(done, Committed)
    assert names(done) == ["TableMap", "Rows"]
    assert [event.header.type for event, _ in done.rows.buffer.read(lambda raw: parser.parse(raw, done.rows.described))]


@pytest.mark.parametrize(
    ("inner", "said"),
    [
        ([mapped(), events.Unknown(header(99))], "type 99"),
        ([mapped(), ROWS], "has no end"),
        ([mapped(), ROWS, events.Xid(header(16), 5), mapped()], "behind its end"),
    ],
)
def test_what_is_compressed_is_judged_as_if_it_were_not(inner: list[events.Event], said: str) -> None:
    with pytest.raises(OperatorError, match=said) as caught:
        fed(unpacking(), packed(Log(), BEGIN, *inner))
    assert "b.000001" in caught.value.message


def test_a_full_disk_is_told_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the folder, and what to set; it is tried again, for room may be made."""
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: Path("/dev/full").open("w+b", buffering=0))  # noqa: SIM115
    log, held = Log(), TransactionBuffer(limit_bytes=250)
    held.add(log.rows(), b"x" * 200, 4)
    with pytest.raises(RetryableError, match=f"does not fit into {tempfile.gettempdir()}") as caught:
        held.add(log.rows(), b"x" * 100, 204)
    assert "TMPDIR" in (caught.value.hint or "")
    held.close()
