"""Positions and servers: what can be followed, and what each gap is called."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from cdc.model.errors import ChangedError, FencedError, GapError, OperatorError, RetryableError
from cdc.model.interfaces import LINEAGE
from cdc.model.state import Phase, State
from connectors.mysql.binlog.last_transaction import LastTransaction
from connectors.mysql.binlog.positions import BinlogPosition, GtidSet, GtidState
from connectors.mysql.catalog import server
from connectors.mysql.replication.continuity import ServerLog, by_hand, end_of_log, moved, refusals, require_log
from connectors.mysql.replication.dump_stream import CLOSE_THE_GAP, refused_by_server
from connectors.mysql.replication.mariadb_history import History
from snapshot.mysql.visibility import BinlogView

A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"
FILES = {"b.000003": 300, "b.000004": 400}
END = BinlogPosition("b.000004", 900)


def made_at(position: BinlogPosition) -> int:
    if position.file not in FILES:
        raise GapError("binlog purged: no such file", hint=CLOSE_THE_GAP)
    return FILES[position.file]


def finds_all(last: LastTransaction, _known: GtidSet | None) -> LastTransaction:
    return last


def view(offset: int, gtids: str | None = None) -> dict[str, Any]:
    """As a snapshot keeps one that saw the log up to an offset of the file that is written."""
    return {"snapshot": BinlogView(None, None if gtids is None else GtidSet.parse(gtids)).text, "end": 3 << 32 | offset}


def state(lineage: str = A, *, views: bool = False, **offset: Any) -> State:
    return State(
        connector="c",
        identity={"server": "mysql", LINEAGE: lineage},
        phase=Phase.STREAM,
        epoch=1,
        offset={"file": "b.000003", "pos": 100, "made_at": 300, **offset},
        snapshot={"views": {"1": view(100)}} if views else {},
    )


def here(lineage: str = A, executed: Any = None, purged: str | None = None, end: BinlogPosition = END) -> ServerLog:
    return ServerLog(lineage, end, "b.000003", executed, None if purged is None else GtidSet.parse(purged))


def gtids(text: str) -> GtidSet:
    return GtidSet.parse(text)


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (state(), here()),
        (state(), here(executed=gtids(f"{A}:1-9"), purged="")),
        (state(gtids=f"{A}:1-5"), here(executed=gtids(f"{A}:1-9"), purged=f"{A}:1-5")),
        (state(gtids=f"{A}:1-5"), here(executed=gtids(f"{A}:1-9,{B}:1-3"), purged=f"{A}:1-5,{B}:1-3")),  # by hand
        (state(gtids=f"{A}:1-5"), here(B, executed=gtids(f"{A}:1-5,{B}:1"), purged="")),
        (state("7", gtids="0-7-5"), here("8", executed=GtidState.parse("0-7-5,0-8-6"))),
        (state("8", gtids="0-7-5", made_at=0), here("8", executed=GtidState.parse("0-7-5,0-8-6"))),
        (state("7", gtids="0-7-5"), here("7", executed=GtidState.parse("0-7-5"))),
        (state("7", gtids="0-7-5,3-7-9"), here("7", executed=GtidState.parse("0-7-6"))),  # DELETE_DOMAIN_ID = (3)
    ],
)
def test_what_can_be_followed(then: State, now: ServerLog) -> None:
    assert list(refusals(then, now, made_at, finds_all)) == []


def test_what_is_set_by_hand_is_read_again_once() -> None:
    then, now = state(gtids=f"{A}:1-5"), here(executed=gtids(f"{A}:1-9,{B}:1-3"), purged=f"{A}:1-5,{B}:1-3")
    assert str(by_hand(then, now, stops=False)) == f"{A}:1-5,{B}:1-3"
    assert by_hand(state(gtids=f"{A}:1-5,{B}:1-3"), now, stops=False) is None
    with pytest.raises(GapError, match="gtid_purged was set by hand"):
        by_hand(then, now, stops=True)


@pytest.mark.parametrize(("oldest", "gone"), [("b.000004", False), ("b.000005", True), ("b.000001", False)])
def test_a_log_that_goes_before_its_turn(oldest: str, *, gone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """While tables are read, nobody follows the log: that it is gone is told then, and not once all are read."""
    monkeypatch.setattr(server, "status", lambda *_: (BinlogPosition("b.000009", 4), ""))
    monkeypatch.setattr(server, "files", lambda _: [(oldest, 100), ("b.000009", 4)])
    with pytest.raises(GapError, match="binlog purged") if gone else nullcontext():
        require_log(cast("Any", None), cast("Any", None), BinlogPosition("b.000004", 800))


@pytest.mark.parametrize(
    ("purged", "file", "logs", "noticed"),
    [
        (f"{A}:1-5,{B}:1-3", END.file, "ON", True),
        (f"{A}:1-5,{B}:1-3", "b.000003", "ON", False),  # another file may be read still: it is in that one, maybe
        (f"{A}:1-5", END.file, "ON", False),
        (f"{A}:1-6", END.file, "ON", False),  # of its own numbers: nobody can set them
        (f"{A}:1-5,{B}:1-3", END.file, "OFF", False),  # what it replicates goes there by itself
    ],
)
def test_what_is_set_by_hand_while_the_log_is_followed(
    purged: str, file: str, logs: str, *, noticed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "global_text", lambda *_: purged)
    monkeypatch.setattr(server, "status", lambda *_: (END, ""))
    variables = {"gtid_mode": "ON", "server_uuid": A, "log_replica_updates": logs}
    found, sql = server.Server("MySQL 9.7.0", variables, "u@h"), cast("Any", None)
    with pytest.raises(ChangedError, match="gtid_purged was set by hand") if noticed else nullcontext():
        assert end_of_log(sql, found, BinlogPosition(file, 800), gtids(f"{A}:1-5")) == END


@pytest.mark.parametrize(
    ("then", "now", "verdict"),
    [
        (state(file="b.000002"), here(), "binlog purged"),
        (state(gtids=f"{A}:1-5"), here(executed=gtids(f"{A}:1-9"), purged=f"{A}:1-6"), "binlog purged"),
        (
            state(made_at=299, gtids=f"{A}:1-5"),
            here(executed=gtids(f"{A}:1-9,{B}:1-3"), purged=f"{B}:1-3"),
            "binlog purged",
        ),
        (state(file="b.000009"), here(), "binlog reset"),
        (state(made_at=299), here(), "binlog reset"),
        # nobody can tell whether there were transactions without a GTID in it
        (
            state(file="b.000002", gtids=f"{A}:1-5"),
            here(executed=gtids(f"{A}:1-5"), purged=f"{A}:1-5"),
            "binlog purged",
        ),
        (state("7", gtids="0-7-5"), here("7", executed=GtidState.parse("")), "binlog reset"),
        (state("8", gtids="0-7-5,3-7-9"), here("7", executed=GtidState.parse("0-7-6")), "another server under"),
        (state(gtids=f"{A}:1-5"), here(executed=gtids(f"{A}:1-4"), purged=""), "binlog reset"),
        (state("7", gtids="0-7-5"), here("7", executed=GtidState.parse("0-7-4")), "binlog reset"),
        (state(B), here(), "another server under the same name"),
        (state(B, gtids=f"{B}:1-5"), here(executed=gtids(f"{A}:1-9"), purged=""), "another server under the same name"),
        (
            state("7", gtids="0-7-5"),
            here("8", executed=GtidState.parse("0-7-4")),
            "another server under the same name",
        ),
        (  # promoted before it had the fifth, it wrote a fifth and a sixth of its own
            state("7", gtids="0-7-5"),
            here("8", executed=GtidState.parse("0-7-4,0-8-6")),
            "another server under the same name",
        ),
        (
            state(B, gtids=f"{B}:1", views=True),
            here(executed=gtids(f"{B}:1"), purged=""),
            "fail-over during the snapshot",
        ),
    ],
)
def test_verdicts(then: State, now: ServerLog, verdict: str) -> None:
    (found,) = refusals(then, now, made_at, finds_all)
    assert isinstance(found, GapError)
    assert found.message.startswith(verdict)
    assert "--after-gap" in str(found.hint)


@pytest.mark.parametrize(
    ("before", "found_us", "verdict"),
    [
        ("0-7-5", 9, None),
        ("0-7-5,0-6-2", 9, None),  # from before the connector's time, as the primary knew by its copy
        ("0-7-5,1-8-9", 9, None),  # of a domain that Kafka has nothing of: it is sent
        ("0-7-5,0-8-4", 9, "another server under the same name: before 0-7-5.*logged up to 0-8-4"),
        ("0-7-5", 8, "binlog rewritten: transaction 0-7-5"),
        (None, 9, None),
    ],
)
def test_what_another_mariadb_has_before_the_position(
    before: str | None, found_us: int, verdict: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """It sends nothing of that: neither another transaction of the same number, nor what it wrote for itself."""
    seen = str(GtidState.begun("0-7-2", "0-6-3"))
    then = state("7", gtids="0-7-5", made_at=0, last="9 0-7-5", seen=f"{seen},0-7-5".replace("0-7-2,", ""))

    def trace(gtid: tuple[int, int, int]) -> History | None:
        assert gtid == (0, 7, 5)
        return None if before is None else History(LastTransaction(found_us, "0-7-5", None), GtidState.parse(before))

    found = list(refusals(then, here("8", executed=GtidState.parse("0-7-5,0-8-6")), made_at, finds_all, trace))
    if verdict is None:
        assert found == []
    else:
        (gap,) = found
        assert re.match(verdict, gap.message)
        assert "--after-gap" in str(gap.hint)
    assert ("cannot be compared" in caplog.text) == (before is None)
    assert list(refusals(then, here("7", executed=GtidState.parse("0-7-5,0-8-4")), made_at, finds_all, trace)) == []


def test_when_the_order_of_positions_begins_again() -> None:
    """A fail-over, and a server that continues by GTIDs but renumbers its files; not where files are removed."""
    with_gtids = state(gtids=f"{A}:1-5")
    whole = gtids(f"{A}:1-9,{B}:1")
    assert not moved(with_gtids, here(executed=whole), made_at)
    assert moved(with_gtids, here(B, executed=whole), made_at)
    assert moved(state(gtids=f"{A}:1-5", made_at=299), here(executed=whole), made_at)
    assert moved(with_gtids, here(executed=whole, end=BinlogPosition("b.000001", 9)), made_at)
    assert not moved(state(gtids=f"{A}:1-5", file="b.000001"), here(executed=whole), made_at)


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        ("Could not find first log file name in binary log index file", GapError, "binlog purged"),
        (
            "Cannot replicate because the source purged required binary logs. Replicate the missing transactions",
            GapError,
            "binlog purged",
        ),
        ("Client requested source to start replication from position > file size", GapError, "server behind"),
        ("Client requested master to start replication from impossible position", GapError, "server behind"),
        ("could not find next log; the first event 'binlog.000003' at 4", GapError, "binlog reset"),
        ("Replica has more GTIDs than the source has, using the source's SERVER_UUID", GapError, "server behind"),
        (
            "A replica with the same server_uuid/server_id as this replica has connected to the source",
            FencedError,
            "duplicate server_id",
        ),
        ("bogus data in log event; the first event 'b.000001' at 263", GapError, "binlog damaged"),
        (
            "log event entry exceeded max_allowed_packet; Increase max_allowed_packet on source; the first event",
            GapError,
            "binlog damaged",
        ),
        ("binlog truncated in the middle of event; consider out of disk space on master", GapError, "binlog damaged"),
        ("corrupted data in log event", GapError, "binlog damaged"),
        ("Event crc check failed! Most likely there is event corruption.", GapError, "binlog damaged"),
        ("Could not open log file", GapError, "binlog damaged"),
        ("File './b.000001' not found (Errcode: 2 \"No such file or directory\")", GapError, "binlog damaged"),
        (
            "Cannot read the encryption information in log file header, please check if keyring",
            GapError,
            "binlog damaged",
        ),
        ("Could not decrypt binlog: encryption key error", GapError, "binlog damaged"),
        ("Error reading Gtid_list_log_event while searching for old-style position", GapError, "binlog damaged"),
        ("The binlog on the master is missing the GTID 0-1-7 requested by the slave (even though", GapError, "another"),
        ("Binary log is not open", OperatorError, "binlog off"),
        (
            "Cannot replicate anonymous transaction when @@GLOBAL.GTID_MODE = ON, at file b.000007, position 158.",
            GapError,
            "gtid_mode was switched before all was read",
        ),
        (
            "Cannot replicate GTID-transaction when @@GLOBAL.GTID_MODE = OFF, at file b.000003, position 158.",
            GapError,
            "gtid_mode was switched before all was read",
        ),
        ("Misconfigured master - server_id was not set", OperatorError, "MySQL at x does not send its log"),
        ("something new", OperatorError, "MySQL at x does not send its log"),
    ],
)
def test_what_the_servers_one_error_stands_for(words: str, kind: type[Exception], said: str) -> None:
    found = refused_by_server("MySQL at x", words, server_id=7, connector="shop")
    assert isinstance(found, kind)
    assert not isinstance(found, RetryableError)
    assert said in found.message
    assert found.hint


def test_a_dump_by_gtids_that_the_server_ends_as_its_mode_changes_is_begun_again() -> None:
    """The position that it has reached is one of this server's files."""
    for words in (
        "Cannot replicate anonymous transaction when AUTO_POSITION = 1, at file b.000007, position 158.",
        "The replication sender thread cannot start in AUTO_POSITION mode: this server has GTID_MODE = OFF",
    ):
        assert isinstance(refused_by_server("MySQL at x", words, server_id=7, connector="shop"), RetryableError)


@dataclass
class Rewritten:
    """A log that has something else in the place of the last transaction, or under its GTID; notes what was asked."""

    asked: list[str] = field(default_factory=list)
    has: LastTransaction | None = None

    def __call__(self, last: LastTransaction, known: GtidSet | None) -> LastTransaction | None:
        self.asked.append("by place" if known is None else f"not in {known.without([last.gtid or ''])}")
        return self.has


LAST = f"77 {A}:5 in b.000003:90"
SAME, LATER = (LastTransaction(at_us, f"{A}:5", None) for at_us in (77, 78))
WHOLE, MARIA = gtids(f"{A}:1-9,{B}:1"), GtidState.parse("0-7-9")


@pytest.mark.parametrize(
    ("then", "now", "asked"),
    [
        (state(last="77 in b.000003:90"), here(), "by place"),
        (state(last=LAST, gtids=f"{A}:1-5"), here(executed=WHOLE, purged=""), "by place"),
        (state("7", last="77 0-7-5 in b.000003:90", gtids="0-7-5"), here("7", executed=MARIA), "by place"),
        # by its GTID: at another server, where the files have other numbers, and where the place was another server's
        (state(last=LAST, gtids=f"{A}:1-5"), here(B, executed=WHOLE, purged=""), f"not in {A}:1-4"),
        (state(last=LAST, gtids=f"{A}:1-5", made_at=299), here(executed=WHOLE, purged=f"{A}:1-4"), f"not in {A}:1-4"),
        (state(last=f"77 {A}:5", gtids=f"{A}:1-5", made_at=0), here(executed=WHOLE, purged=""), f"not in {A}:1-4"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("has", [None, LATER])
def test_a_server_that_gave_the_numbers_out_again(
    then: State, now: ServerLog, asked: str, has: LastTransaction | None
) -> None:
    """An older copy was restored, and has grown past the position: nothing else tells it from the one that was."""
    rewritten = Rewritten(has=has)
    (found,) = refusals(then, now, made_at, rewritten)
    assert isinstance(found, GapError)
    assert found.message.startswith("binlog rewritten: ")
    assert "--after-gap" in str(found.hint)
    assert rewritten.asked == [asked]


@pytest.mark.parametrize(
    "last",
    [
        LastTransaction(77, f"{A}:tag_1:5", BinlogPosition("my log in 1:2.000003", 90)),
        LastTransaction(77, "0-7-5", BinlogPosition("b.1000003", 4)),
        LastTransaction(77, None, BinlogPosition("b.000003", 90)),
        LastTransaction(77, f"{A}:5", None),
    ],
)
def test_what_a_position_ends_with_is_read_as_it_was_written(last: LastTransaction) -> None:
    assert LastTransaction.of({"last": str(last)}) == last


def test_members_of_a_group_that_each_have_a_time_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    """Galera's nodes give one number to a transaction, and no time: that is said, and stops nothing."""
    then, now = state("c", last=LAST, gtids=f"{A}:1-5"), here("d", executed=WHOLE, purged="")
    assert list(refusals(then, now, made_at, Rewritten(has=LATER))) == []
    assert "Galera" in caplog.text
    caplog.clear()
    assert list(refusals(then, now, made_at, Rewritten(has=SAME))) == []
    assert not caplog.text


@pytest.mark.parametrize(
    ("then", "now", "asked"),
    [
        (state(last=LAST, gtids=f"{A}:1-5"), here(executed=WHOLE, purged=""), 1),
        (state(last=LAST, gtids=f"{A}:1-5"), here(B, executed=WHOLE, purged=""), 1),
        # its file is gone, the set does not have it, the log of the other server begins behind it
        (state(last=f"77 {A}:5 in b.000002:90", gtids=f"{A}:1-5"), here(executed=WHOLE, purged=""), 0),
        (state(last=f"77 {A}:5 in b.000003:90", gtids=f"{A}:1-4"), here(B, executed=gtids(f"{A}:1-4,{B}:1")), 0),
        (state(last=LAST, gtids=f"{A}:1-5"), here(B, executed=WHOLE, purged=f"{A}:1-5"), 0),
        (state("7", last="77 0-7-5 in b.000003:90", gtids="0-7-5"), here("8", executed=MARIA), 0),
    ],
)
def test_the_last_transaction_is_there_or_cannot_be(
    then: State, now: ServerLog, asked: int, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be told is said; what is gone in time is not."""
    log = Rewritten(has=SAME)
    assert list(refusals(then, now, made_at, log)) == []
    assert len(log.asked) == asked
    assert ("cannot be told" in caplog.text) == (now.purged is not None and f"{A}:5" in now.purged)


@pytest.mark.parametrize(
    ("seen", "whole"),
    [
        (view(500), True),
        (view(501), False),  # the file of the copy that was restored ends before it, and the server was started
        (view(400, f"{A}:1-9"), True),
        (view(400, f"{A}:1-10"), False),
    ],
)
def test_a_copy_of_before_rows_that_a_first_snapshot_has_read(seen: dict[str, Any], *, whole: bool) -> None:
    then = state(gtids=f"{A}:1-5") if "1-" in seen["snapshot"] else state()
    then = replace(then, snapshot={"views": {"1": view(100), "2": seen}})
    now = replace(here(executed=gtids(f"{A}:1-9"), purged=""), ends={3: 3 << 32 | 500, 4: 4 << 32 | 157})
    found = [str(refusal) for refusal in refusals(then, now, made_at, finds_all)]
    assert (
        [text.startswith("binlog reset: the first snapshot has read rows") for text in found] == [] if whole else [True]
    )
