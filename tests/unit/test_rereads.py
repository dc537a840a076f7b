"""What asks for rows and tables to be read again: kept, counted, and noticed when it is gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from cdc.capture.control import rereads, signals
from cdc.capture.control.rereads import MOST_KEYS, Rereads
from cdc.encode.window_keys import RequestedRows
from cdc.model.change import Column, Kind, Table
from cdc.model.state import Phase, State

ID = Column("id", "int", Kind("int32"), lambda value: value)
T, U = (Table("s", name, (ID,), ("id",)) for name in "tu")


class Incremental:
    """An incremental snapshot that notes what it is asked for."""

    def __init__(self, *, takes: bool = True, restart: bool = False) -> None:
        self.tables: list[str] = []
        self.keys: dict[bytes, tuple[str, Any, bool]] = {}
        self._takes, self._restart = takes, restart

    def add(self, name: str, since: str, *, required: bool, restart: bool) -> bool:
        assert (since, required, restart) == ("end", True, self._restart)
        self.tables.append(name)
        return True

    def is_reading(self, name: str) -> bool:
        return name in self.tables

    def add_again(self, name: str, since: str) -> None:
        assert since == "now"
        self.tables.append(name)

    def request(self, command: bytes, name: str, keys: Any, *, first: bool) -> bool:
        if self._takes:
            self.keys[command] = name, keys, first
        return self._takes

    def pending(self, name: str) -> int:
        return sum(len(keys) for of, keys, _ in self.keys.values() if of == name)

    def requested(self, beginning: bytes) -> tuple[str, ...]:
        return tuple(sorted({name for key, (name, _, _) in self.keys.items() if key.startswith(beginning)}))

    def is_requested(self, command: bytes) -> bool:
        return command in self.keys


def made(incremental: Incremental, *, asked: tuple[str, ...] = ()) -> tuple[Rereads, list[tuple[bytes, bytes]]]:
    written: list[tuple[bytes, bytes]] = []
    sink: Any = SimpleNamespace(ask=lambda key, value: written.append((key, value)))
    state = State(connector="c", identity={}, phase=Phase.STREAM, epoch=1, asked=asked, rereads=5)
    tables = {table.qualified: table for table in (T, U)}
    return Rereads(incremental, sink, tables, state, since=lambda: "now", log_end=lambda: "end"), written  # type: ignore[arg-type]


def test_keys_are_a_command_that_is_committed_with_the_position() -> None:
    """Each once; under a view that sees what the log has told."""
    incremental = Incremental()
    of, written = made(incremental)
    for key in (b"1", b"2", b"1"):
        of.add(T, (key,))
    assert of
    assert of.commit() == (6, ("s.t",))
    assert not of
    ((identifier, value),) = written
    command = signals.parse(value)
    assert (command.tables, command.keys) == (("s.t",), ((b"1",), (b"2",)))
    assert incremental.keys == {identifier: ("s.t", [(b"1",), (b"2",)], True)}
    assert of.commit() == (6, ("s.t",))


def test_a_table_is_asked_for_at_once_and_counted_once() -> None:
    incremental = Incremental()
    of, written = made(incremental)
    of.add(U, (b"1",))
    of.add(U, None)
    of.add(U, None)
    assert (of.commit(), incremental.tables, written) == ((6, ()), ["s.u", "s.u"], [])


def test_why_a_table_is_read_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A start finds a change that the log tells of again, before the table is read."""
    incremental = Incremental()
    of, _ = made(incremental)
    for reason in ("rewritten", "rewritten", "renamed"):
        of.resnapshot(T, reason)
    assert incremental.tables == ["s.t"] * 3
    incremental.tables.clear()  # it has been read
    of.resnapshot(T, "renamed")
    assert [record.args for record in caplog.records] == [("s.t", of) for of in ("rewritten", "renamed", "renamed")]


@pytest.mark.parametrize("others", [False, True])
def test_what_a_start_has_told_is_not_told_again(caplog: pytest.LogCaptureFixture, *, others: bool) -> None:
    """Its reason alone, whichever it is: another table, or another reason, is told."""
    incremental = Incremental(restart=True)
    of, _ = made(incremental)
    incremental.tables += ("s.t", "s.u")  # the start has asked for them
    of.told.update({"s.t": "added with a default"})
    of.resnapshot(U if others else T, "added with a default", at_start=True)
    of.resnapshot(T, "rewritten" if others else "added with a default", at_start=True)
    told = [("s.u", "added with a default"), ("s.t", "rewritten")]
    assert [record.args for record in caplog.records] == (told if others else [])


def test_many_keys_are_a_table() -> None:
    """In one transaction, and with those that wait."""
    incremental = Incremental()
    of, written = made(incremental)
    for number in range(MOST_KEYS + 1):
        of.add(T, (b"%d" % number,))
    of.add(U, (b"1",))
    of.commit()
    assert (incremental.tables, len(written)) == (["s.t"], 1)
    for number in range(MOST_KEYS):
        of.add(U, (b"%d" % number,))
    of.commit()
    assert (incremental.tables, len(written)) == (["s.t", "s.u"], 1)


def test_keys_of_another_key_are_a_table() -> None:
    """The log has rows of before, or of behind, a change of the primary key."""
    incremental = Incremental(takes=False)
    of, _ = made(incremental)
    of.add(Table("s", "t", (ID, ID), ("id", "id")), (b"1", b"2"))
    assert incremental.tables == ["s.t"]
    of.add(T, (b"1",))
    of.commit()
    assert incremental.tables == ["s.t", "s.t"]
    assert not of.request(b"of a user", "s.t", [(b"1",)])
    assert incremental.tables == ["s.t", "s.t"]


def test_rows_that_could_not_be_read_are_a_table() -> None:
    incremental = Incremental()
    of, written = made(incremental)
    of.add(T, (b"1",))
    of.commit()
    of.wrote(RequestedRows(written[0][0], "s.t", [(b"1",)]))
    of.wrote(RequestedRows(b"of a user", "s.u", [(b"1",)]))
    assert incremental.tables == ["s.t"]


def test_commands_that_are_gone_are_noticed() -> None:
    """Somebody has deleted the topic: the tables are read again."""
    incremental = Incremental()
    of, _ = made(incremental, asked=("s.t", "s.u", "s.dropped"))
    left = signals.Command(tables=("s.u",), keys=((b"1",),)).to_bytes("x")
    of.look_for([(b"reread-x", left), (b"y", signals.Command(tables=("s.t",)).to_bytes("y"))])
    of.look_for([])
    assert incremental.tables == ["s.t"]


def test_a_command_is_never_too_large_for_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rereads, "_COMMAND_BYTES", 1000)
    of, written = made(Incremental())
    for number in range(100):
        of.add(T, (b"%0100d" % number,))
    of.commit()
    assert 5 < len(written) < 20
    assert all(len(value) < 3000 for _, value in written)
    assert sum(len(orjson.loads(value)["data"]["keys"]) for _, value in written) == 100
