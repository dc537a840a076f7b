"""Blocks of the log: what is committed, once, whole; nothing of what is rolled back; XA's rows at its commit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from cdc.change import Op
from cdc.errors import OperatorError
from connectors.mysql import events
from connectors.mysql.events import Header
from connectors.mysql.grouping import Committed, Grouper, Held, Passed

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
    return [type(event).__name__ for event, _ in done.rows.held.read(lambda raw: pytest.fail("in memory"))]


@pytest.mark.parametrize("ending", ["xid", "commit"])
def test_a_transaction(ending: str) -> None:
    """Its place is that of its last event; it resumes behind it."""
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


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda log: [log.gtid(), log.query("BEGIN"), log.query("INSERT INTO t VALUES (1)")], "binlog_format"),
        (lambda log: [log.gtid(), log.query("XA COMMIT X'79',X'',1")], "prepared before the log was followed"),
        (
            lambda log: [
                log.gtid(), log.query("BEGIN"), log.map(), log.rows(), log.query("ROLLBACK TO `s`"), log.xid()
            ],
            "rolled back in part",
        ),
        (lambda log: [events.PartialUpdateRows(log.header(39), 1)], "PARTIAL_JSON"),
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
    log, held = Log(), Held(limit_bytes=250)
    made = [log.rows() for _ in range(5)]
    for n, event in enumerate(made):
        held.add(event, b"%d" % n * 100, n)
    parsed = list(held.read(lambda raw: events.Xid(made[0].header, int(raw[:1]))))
    assert [(event.xid, offset) for event, offset in parsed] == [(n, n) for n in range(5)]  # type: ignore[union-attr]
    assert len(list(held.read(lambda _: made[0]))) == 5
    held.close()
