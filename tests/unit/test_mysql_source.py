"""The source between the dump connection and the loop, without a server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from cdc.config.config import ConnectorConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import SourceConfig
from cdc.model.change import Idle, Offset, Transaction
from cdc.model.errors import GapError
from connectors.mysql import source
from connectors.mysql.binlog import events
from connectors.mysql.binlog.positions import BinlogPosition
from connectors.mysql.catalog import server
from connectors.mysql.replication import dumps
from connectors.mysql.replication.claim import Claim
from connectors.mysql.source import MysqlSource
from tests.encoders.mysql import encode, header

DESCRIBED = events.FormatDescription(header(15), 4, "9.7.4", 0, b"\0\x0d\0\x08" * 10, checksum=True)


@pytest.fixture(autouse=True)
def no_idle_moment_but_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is; and no server is asked for a lock."""
    monkeypatch.setattr(source, "_WAIT_S", 3600.0)
    monkeypatch.setattr(Claim, "keep", lambda _: None)


class BusyWithOthers:
    """A server on which transactions of no captured table follow each other without a pause."""

    def __init__(self) -> None:
        self._events = self._all()

    def _all(self) -> Iterator[bytes]:
        yield encode(DESCRIBED._replace(header=header(15)._replace(log_pos=126)))
        for n in itertools.count(1):
            gtid = events.AnonymousGtid(header(34), 0, n, None, None, None)
            made = events.Query(header(2), 1, 0, "d", "CREATE USER somebody", "utf8mb4", None)
            yield encode(gtid._replace(header=gtid.header._replace(log_pos=1000 * n)))
            yield encode(made._replace(header=made.header._replace(log_pos=1000 * n + 500)))

    def read_buffered(self, _read: object) -> None: ...

    def receive(self) -> bytes:
        return next(self._events)


CONFIG = ConnectorConfig(
    name="c",
    source=SourceConfig(type="mysql", url="mysql://localhost", tables=("d.t",)),
    sink=KafkaConfig(bootstrap_servers="localhost:1", topic_prefix="c"),
)


def test_the_loop_has_its_turn_while_others_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is pending is committed, a stop is heard, and the position moves, however far behind the connector is."""
    monkeypatch.setattr(source, "_WAIT_S", 0.05)
    made = MysqlSource(CONFIG)
    frames = made._frames(BusyWithOthers(), BinlogPosition("b.000001", 4))  # type: ignore[arg-type]
    assert isinstance(next(frames), Idle)
    first = made.position()[1]
    assert isinstance(next(frames), Idle)
    assert made.position()[1] > first


class Scripted:
    """A dump that gives what it is told to, event by event; None where nothing has come."""

    def __init__(self, *script: events.Event | None) -> None:
        self.asked: object = None
        self._script = iter(script)

    def follow(self, begin: BinlogPosition) -> None:
        self.asked = begin

    def read_buffered(self, _read: object) -> None: ...

    def receive(self) -> bytes | None:
        event = next(self._script)
        return None if event is None else encode(event)

    def wait(self, timeout_s: float) -> None:
        pass


def described(at_s: int) -> events.FormatDescription:
    return DESCRIBED._replace(
        header=header(15)._replace(timestamp_s=at_s, log_pos=126), server_version="10.11.18-MariaDB-log"
    )


def laid(begin: int, *made: events.Event) -> list[events.Event]:
    """Events one behind the other in a file, from an offset on."""
    found, at = [], begin
    for event in made:
        at += len(encode(event))
        found.append(event._replace(header=event.header._replace(log_pos=at)))
    return found


def begun(sequence: int, flags: int, xid: tuple[int, bytes, bytes] | None = None) -> events.Event:
    return events.MariadbGtid(header(162), 0, 42, sequence, flags, None, xid)


def prepared(sequence: int, name: bytes) -> list[events.Event]:
    """A block that XA prepares."""
    return [begun(sequence, 12 | 64, (1, name, b"")), events.XaPrepare(header(38), False, 1, name, b"")]


def alone(sequence: int, statement: str = "CREATE USER somebody") -> list[events.Event]:
    return [begun(sequence, 1), events.Query(header(2), 1, 0, "", statement, "utf8mb4", None)]


def placed(offset: Offset) -> Offset:
    """The place alone, without what it ends with."""
    return {key: value for key, value in offset.items() if key != "last"}


def followed(monkeypatch: pytest.MonkeyPatch, offset: Offset, *script: events.Event | None) -> Iterator[Offset]:
    """The position at each idle moment of a session on a MariaDB."""
    dump = Scripted(*script)
    monkeypatch.setattr(dumps, "follow", lambda *_: dump)
    made = MysqlSource(CONFIG)
    made._server = server.Server("10.11.18-MariaDB", {}, "u@h")
    for frame in made.stream(offset):
        if isinstance(frame, Transaction):
            assert list(frame.changes) == [], "no table is captured"
            continue
        assert isinstance(frame, Idle)
        yield placed(made.position()[0])
    assert dump.asked == BinlogPosition(str(offset["file"]), int(offset["pos"]))


def test_what_is_prepared_is_remembered_through_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is read again from where it begins, also if a session ends before it has come that far; its file's too.

    The file of that position is not the one being read: each has the time at which it was begun.
    """
    start: Offset = {"file": "b.000001", "pos": 4, "made_at": 11, "gtids": "0-42-1"}
    first = laid(300, *prepared(2, b"x"), *alone(3))
    second = laid(300, *alone(4), *alone(5, "XA ROLLBACK X'78',X'',1"))
    reached, ended = second[1].header.log_pos, second[3].header.log_pos
    rotate = events.Rotate(header(4)._replace(log_pos=0), 4, "b.000002")
    script = [described(11), *first, rotate, described(22), *second[:2], None]
    (left,) = itertools.islice(followed(monkeypatch, start, *script), 1)
    assert left == {"file": "b.000001", "pos": 300, "made_at": 11, "done": 2 << 32 | reached, "gtids": "0-42-4"}

    again = [described(11), None, *first[:2], None, *first[2:], None, rotate, described(22), *second[:2], None]
    assert list(itertools.islice(followed(monkeypatch, left, *again), 4)) == [left] * 4
    (over,) = itertools.islice(followed(monkeypatch, left, *filter(None, again), *second[2:], None), 1)
    assert over == {"file": "b.000002", "pos": ended, "made_at": 22, "gtids": "0-42-5"}


def test_what_has_been_seen_of_each_server_is_kept_with_the_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fail-over compares it; a position of an older release has none, and gets none."""
    start: Offset = {"file": "b.000001", "pos": 4, "made_at": 11, "gtids": "0-42-1", "seen": "0-0-1,0-42-1"}
    made = laid(300, *alone(2), *alone(3))
    (left,) = itertools.islice(followed(monkeypatch, start, described(11), *made, None), 1)
    assert (left["gtids"], left["seen"]) == ("0-42-3", "0-0-1,0-42-3")
    del start["seen"]
    (left,) = itertools.islice(followed(monkeypatch, start, described(11), *made, None), 1)
    assert "seen" not in left


def test_what_was_prepared_before_all_that_is_read_again_has_been_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is prepared, then another, then the first is committed, and the log is read again from the other on.

    What is committed later, and nobody has seen prepared, holds nothing up.
    """
    start: Offset = {"file": "b.000001", "pos": 4, "made_at": 11, "gtids": "0-42-1"}
    made = laid(300, *prepared(2, b"x"), *prepared(3, b"y"), *alone(4, "XA COMMIT X'78',X'',1"))
    reached = made[-1].header.log_pos
    (left,) = itertools.islice(followed(monkeypatch, start, described(11), *made, None), 1)
    other = made[1].header.log_pos
    assert left == {"file": "b.000001", "pos": other, "made_at": 11, "done": 1 << 32 | reached, "gtids": "0-42-4"}

    again = [described(11), *made[2:]]
    assert list(itertools.islice(followed(monkeypatch, left, *again, None), 1)) == [left]
    last = laid(reached, *alone(5, "XA COMMIT X'79',X'',1"))
    (over,) = itertools.islice(followed(monkeypatch, left, *again, *last, None), 1)
    assert over == {"file": "b.000001", "pos": last[-1].header.log_pos, "made_at": 11, "gtids": "0-42-5"}

    unknown = laid(reached, *alone(5, "XA COMMIT X'7a',X'',1"))
    (over,) = itertools.islice(followed(monkeypatch, left, *again, *unknown, None), 1)
    assert over == {**left, "gtids": "0-42-5", "done": 1 << 32 | unknown[-1].header.log_pos}


GIB = 1 << 30


def in_32_bits(made: list[events.Event]) -> list[events.Event]:
    """As headers have offsets."""
    return [event._replace(header=event.header._replace(log_pos=event.header.log_pos % (4 * GIB))) for event in made]


@pytest.mark.parametrize("crossing", [2, 3, 4, 5])
def test_positions_go_on_past_4_gib_of_a_file(monkeypatch: pytest.MonkeyPatch, crossing: int) -> None:
    """Wherever among the events the headers' offsets begin again; and a session that is resumed there goes on."""
    made = laid(0, *alone(2), *alone(3), *alone(4))
    begin = 4 * GIB - made[crossing].header.log_pos + 1
    there = laid(begin, *alone(2), *alone(3), *alone(4))
    start: Offset = {"file": "b.000001", "pos": begin, "made_at": 11, "gtids": "0-42-1"}
    script = [described(11), *in_32_bits(there[:2]), None, *in_32_bits(there[2:4]), None, *in_32_bits(there[4:]), None]
    passed = list(itertools.islice(followed(monkeypatch, start, *script), 3))
    assert [offset["pos"] for offset in passed] == [there[i].header.log_pos for i in (1, 3, 5)]
    assert passed[-1]["gtids"] == "0-42-4"


def test_a_position_past_4_gib_is_found_again_from_the_files_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request has 32 bits for it: what comes before it is read, and not published again."""
    reached = laid(5 * GIB - 2000, *alone(2), *alone(3))
    start: Offset = {"file": "b.000001", "pos": reached[1].header.log_pos, "made_at": 11, "gtids": "0-42-2"}
    before = [one for at in range(GIB, 5 * GIB - 3000, GIB // 2) for one in laid(at, *alone(1))]
    script = [described(11), *in_32_bits([*before, *reached[:2]]), None, *in_32_bits(reached[2:]), None]
    dump = Scripted(*script)
    monkeypatch.setattr(dumps, "follow", lambda *_: dump)
    made = MysqlSource(CONFIG)
    made._server = server.Server("10.11.18-MariaDB", {}, "u@h")
    frames = made.stream(start)
    next(frames)
    assert dump.asked == BinlogPosition("b.000001", 4)
    assert made.position()[0] == start
    next(frames)
    assert placed(made.position()[0]) == start | {"pos": reached[3].header.log_pos, "gtids": "0-42-3"}


def test_a_log_that_goes_back_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    start: Offset = {"file": "b.000001", "pos": 300, "made_at": 11, "gtids": "0-42-1"}
    first = laid(300, *alone(2), *alone(3))
    with pytest.raises(GapError, match=r"the log goes back: in b\.000001, GTID_EVENT") as caught:
        list(followed(monkeypatch, start, described(11), *first, *laid(380, *alone(4))))
    assert "--after-gap" in str(caught.value.hint)


UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def by_gtid(number: int) -> list[events.Event]:
    return [
        events.Gtid(header(33), UUID, "", number, 0, 0, None, None, None),
        events.Query(header(2), 1, 0, "", "CREATE USER somebody", "utf8mb4", None),
    ]


def anonymous() -> list[events.Event]:
    return [
        events.AnonymousGtid(header(34), 0, 0, None, None, None),
        events.Query(header(2), 1, 0, "", "DROP USER somebody", "utf8mb4", None),
    ]


def on_mysql(monkeypatch: pytest.MonkeyPatch, mode: str, offset: Offset, *script: events.Event | None) -> Offset:
    """The position at the first idle moment; of a server in this gtid_mode."""
    dump = Scripted(*script)
    monkeypatch.setattr(dumps, "follow", lambda *_: dump)
    made = MysqlSource(CONFIG)
    made._server = server.Server("9.7.4", {"gtid_mode": mode}, "u@h")
    next(frame for frame in made.stream(offset) if isinstance(frame, Idle))
    assert dump.asked == BinlogPosition(str(offset["file"]), int(offset["pos"]))
    return placed(made.position()[0])


def head(at_s: int) -> events.Event:
    return DESCRIBED._replace(header=header(15)._replace(timestamp_s=at_s, log_pos=126))


def test_the_same_mysql_is_followed_by_file_and_transactions_without_gtids_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In each mode: the set stays beside the position, for another server to go on by."""
    start: Offset = {"file": "b.000001", "pos": 300, "made_at": 11, "gtids": f"{UUID}:1"}
    made = laid(300, *by_gtid(2), *anonymous(), *by_gtid(3), *anonymous())
    for mode in ("ON", "ON_PERMISSIVE", "OFF_PERMISSIVE", "OFF"):
        left = on_mysql(monkeypatch, mode, start, head(11), *made, None)
        assert left == start | {"pos": made[-1].header.log_pos, "gtids": f"{UUID}:1-3"}


def test_a_set_begins_with_the_first_file_after_gtids_are_switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    start: Offset = {"file": "b.000001", "pos": 300, "made_at": 11}
    intervals = events.GtidIntervals(UUID, "", ((1, 4),))
    rotate = events.Rotate(header(4)._replace(log_pos=0), 4, "b.000002")
    previous, *then = laid(126, events.PreviousGtids(header(35), (intervals,)), *by_gtid(5))
    script = [head(11), *laid(300, *anonymous()), rotate, head(22), previous, *then, None]
    place: Offset = {"file": "b.000002", "pos": then[-1].header.log_pos, "made_at": 22}
    assert on_mysql(monkeypatch, "ON", start, *script) == place | {"gtids": f"{UUID}:1-5"}
    assert on_mysql(monkeypatch, "OFF_PERMISSIVE", start, *script) == place


def test_what_a_first_start_has_seen_is_sifted_out_until_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that was logged, and not in the set yet, is between others that were."""
    poison = events.Query(header(2), 1, 0, "d", "UPDATE t SET a = 1", "utf8mb4", None)  # binlog_format = STATEMENT
    begin = poison._replace(statement="BEGIN")
    known = [by_gtid(1)[0], begin, poison, *by_gtid(2)[1:]]
    size = sum(len(encode(event)) for event in known) + 3  # the length takes three bytes more than none
    known[0] = events.Gtid(header(33), UUID, "", 1, 0, 0, 10**15, 10**15, size)
    size = sum(len(encode(event)) for event in known)
    known[0] = known[0]._replace(transaction_length=size)
    again = [one._replace(gno=2) if isinstance(one, events.Gtid) else one for one in known]
    made = laid(126, *known, *by_gtid(3), *again, *by_gtid(4))
    end = 1 << 32 | made[9].header.log_pos
    start: Offset = {"file": "b.000001", "pos": 4, "made_at": 11, "gtids": f"{UUID}:1-2", "sift": end}
    left = on_mysql(monkeypatch, "ON", start, head(11), *made[:6], None)
    assert left == start | {"pos": made[5].header.log_pos, "gtids": f"{UUID}:1-3"}
    left = on_mysql(monkeypatch, "ON", start, head(11), *made[:9], None)  # in the midst of what is passed over
    assert left == start | {"pos": made[5].header.log_pos, "gtids": f"{UUID}:1-3"}
    left = on_mysql(monkeypatch, "ON", start, head(11), *made, None)
    assert left == {"file": "b.000001", "pos": made[-1].header.log_pos, "made_at": 11, "gtids": f"{UUID}:1-4"}


def ended_with(monkeypatch: pytest.MonkeyPatch, offset: Offset, *script: events.Event | None) -> Offset:
    """The position at the first idle moment, with the last transaction that was read."""
    monkeypatch.setattr(dumps, "follow", lambda *_: Scripted(*script))
    made = MysqlSource(CONFIG)
    made._server = server.Server("9.7.4", {"gtid_mode": "ON"}, "u@h")
    next(frame for frame in made.stream(offset) if isinstance(frame, Idle))
    return made.position()[0]


def test_a_position_names_the_transaction_that_it_ends_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that nobody wants; the first commit's time, wherever that was; never one that was read before."""
    start: Offset = {"file": "b.000001", "pos": 300, "made_at": 11, "gtids": f"{UUID}:1"}
    replicated = events.Gtid(header(33), UUID, "", 2, 0, 0, 10**15 + 7, 10**15, None)
    made = laid(300, replicated, *by_gtid(2)[1:])
    left = ended_with(monkeypatch, start, head(11), *made, None)
    assert left["last"] == f"{10**15} {UUID}:2 in b.000001:300"
    assert ended_with(monkeypatch, left, head(11), None)["last"] == left["last"]

    again = laid(100, *by_gtid(1), *by_gtid(2))
    behind = left | {"pos": 100, "done": 1 << 32 | again[-1].header.log_pos}
    assert ended_with(monkeypatch, behind, head(11), *again, None)["last"] == left["last"]
    more = laid(again[-1].header.log_pos, *anonymous())
    at = f"in b.000001:{again[-1].header.log_pos}"
    assert str(ended_with(monkeypatch, behind, head(11), *again, *more, None)["last"]).endswith(f"000000 {at}")


def test_a_member_of_a_group_comes_or_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes nothing, and each member logs it by itself: the position goes on, and ends with what was before."""
    start: Offset = {"file": "b.000001", "pos": 300, "made_at": 11, "gtids": f"{UUID}:1"}
    begin, commit = (events.Query(header(2), 1, 0, "", said, "utf8mb4", None) for said in ("BEGIN", "COMMIT"))
    changed = [by_gtid(3)[0], begin, events.ViewChange(header(37)), commit]
    made = laid(300, *by_gtid(2), *changed)
    left = ended_with(monkeypatch, start, head(11), *made, None)
    assert (left["pos"], left["gtids"]) == (made[-1].header.log_pos, f"{UUID}:1-3")
    assert f"{UUID}:2 in" in str(left["last"])


@pytest.mark.parametrize("garbled", [0, 3])
def test_an_event_that_is_garbled_is_a_gap(monkeypatch: pytest.MonkeyPatch, garbled: int) -> None:
    """One that another start may read; and behind which one may begin, if not."""
    made = [head(11), *laid(300, *by_gtid(2), *by_gtid(3))]

    class Garbled(Scripted):
        def receive(self) -> bytes | None:
            raw = super().receive()
            assert raw is not None
            self.given = getattr(self, "given", -1) + 1
            return raw[:-6] + bytes([raw[-6] ^ 1]) + raw[-5:] if self.given == garbled else raw

    monkeypatch.setattr(dumps, "follow", lambda *_: Garbled(*made))
    source_ = MysqlSource(CONFIG)
    source_._server = server.Server("9.7.4", {"gtid_mode": "ON"}, "u@h")
    start: Offset = {"file": "b.000001", "pos": 300, "made_at": 11, "gtids": f"{UUID}:1"}
    with pytest.raises(GapError, match=r"the log cannot be read behind b\.000001:\d+: \w+ does not match") as caught:
        list(source_.stream(start))
    assert "start the connector again" in str(caught.value.hint)
    assert "--after-gap" in str(caught.value.hint)
