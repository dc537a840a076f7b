"""A state as records of the position topic: a small one, and one of each table beside it, written only when it changes.

A state has something of every table: that it is captured, since when the log carries it, how far it is read. Written
whole with each commit, that is a megabyte a commit at thousands of tables. So the record of the position has what is
no table's, and each table has a record of its own under a key of its own (`table_key`).

Why what is read is what was written:

- Changed tables and the position that goes with them are in one Kafka transaction, the position last. Who reads
  committed records takes up the tables' records with the position that follows them, never before (`StateReader`).
- Compaction keeps the newest record of each key. So of positions that are not the newest the tables may be missing:
  a state is made of the newest one only, when it is asked for.
- The position has a sum over all tables' records. A table's record that is missing, damaged, or of another time is
  found by it, and stops the start as a damaged position does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final, cast

import orjson

from cdc.model.state import State, damaged, of_newer_release

_SUM: Final = 1 << 64
_TABLES: Final = "tables"

_Fields = Mapping[str, Mapping[str, object]]
"""By field of a table's record: its values by table."""


def table_key(connector: str, table: str) -> bytes:
    """Return the key of what the state has of a table."""
    return f"{connector}/table/{table}".encode()


class _Sum:
    """Sums up records in any order."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        self._total = 0

    def note(self, name: str, value: bytes | None) -> None:
        """Take a table's newest record in place of the one before; None: it has none any more."""
        self._total -= self._of.pop(name, 0)
        if value is not None:
            of = int.from_bytes(blake2b(name.encode() + b"\0" + value, digest_size=8).digest())
            self._of[name] = of
            self._total += of
        self._total %= _SUM

    @property
    def text(self) -> str:
        return f"{len(self._of)}:{self._total:016x}"


class StateReader:
    """Makes states of the records of a position topic, given in order."""

    def __init__(self, connector: str) -> None:
        self._position_key, self._begin = connector.encode(), table_key(connector, "")
        self._position: bytes | None = None
        self._tables: dict[str, bytes] = {}
        self._sum = _Sum()
        self._of_tables: _Fields | None = None
        self._waiting: list[tuple[str, bytes | None]] = []
        """What belongs to the position that follows."""

    def hear(self, key: bytes | None, value: bytes | None) -> bool:
        """Take a committed record; True: it is a position, and `state` is another one now."""
        if key is not None and key.startswith(self._begin):
            self._waiting.append((key.removeprefix(self._begin).decode(errors="replace"), value))
        if key != self._position_key:
            return False
        for name, of in self._waiting:
            self._sum.note(name, of)
            if of is None:
                self._tables.pop(name, None)
            else:
                self._tables[name] = of
        if self._waiting:
            self._of_tables = None
        self._waiting.clear()
        self._position = value
        return True

    def state(self, *, where: str) -> State | None:
        """Return the state at the newest position, if there is one. Raises OperatorError for what is damaged."""
        if self._position is None:
            return None
        state = State.from_bytes(self._position, where=where)
        if not state.beside:
            return state
        if self._sum.text != state.beside:
            raise damaged(where)
        try:
            return self._whole(state)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise damaged(where) from exc

    def tables(self) -> Mapping[str, bytes]:
        """Return the tables' records that belong to the newest position."""
        return self._tables

    def _whole(self, state: State) -> State:
        if self._of_tables is None:
            self._of_tables = _fields(self._tables)
        of = self._of_tables
        return replace(
            state,
            tables=_in_order(of["table"]),
            carried=cast("Mapping[str, str]", of["carried"]),
            unread=_in_order(of["unread"]),
            snapshot={**state.snapshot, _TABLES: of["snapshot"]} if _of_snapshot(state) is not None else state.snapshot,
            reading={name: cast("Mapping[str, object]", of["reading"][name]) for name in _in_order(of["turn"])},
            beside="",
        )


class StateWriter:
    """Writes states after those that a reader has read: of the tables only what has changed since the last one."""

    def __init__(self, read: StateReader) -> None:
        self._sum = _Sum()
        for name, value in read.tables().items():
            self._sum.note(name, value)
        self._fields: _Fields = _fields(read.tables())
        self._last: State | None = None

    def records(self, state: State) -> tuple[list[tuple[str, bytes | None]], bytes]:
        """Return the changed tables' records by table, and the record of the position, which belongs behind them."""
        changed = []
        for name in sorted(self._changed(state)):
            of = {field: values[name] for field, values in self._fields.items() if name in values}
            value = orjson.dumps(of) if of else None
            self._sum.note(name, value)
            changed.append((name, value))
        rest = {**state.snapshot, _TABLES: {}} if _of_snapshot(state) is not None else state.snapshot
        position = replace(
            state, tables=(), carried={}, unread=(), snapshot=rest, reading={}, beside=self._sum.text
        ).to_bytes(state.version)
        return changed, position

    def _changed(self, state: State) -> set[str]:
        then, last = self._fields, self._last
        tables = then["table"] if last and state.tables is last.tables else _turns(then["table"], state.tables)
        unread = then["unread"] if last and state.unread is last.unread else _turns(then["unread"], state.unread)
        now: _Fields = {
            "table": tables,
            "carried": state.carried,
            "unread": unread,
            "snapshot": _of_snapshot(state) or {},
            "reading": state.reading,
            "turn": _turns(then["turn"], state.reading),
        }
        self._fields, self._last = now, state
        return {name for field, of in now.items() for name in _differing(then[field], of)}


def _of_snapshot(state: State) -> Mapping[str, object] | None:
    """Return the progress of each table; None where a snapshotter of somebody else's has none of that form."""
    tables = state.snapshot.get(_TABLES)
    return tables if isinstance(tables, dict) else None


def _differing(then: Mapping[str, object], now: Mapping[str, object]) -> set[str]:
    if then is now:
        return set()
    changed = {name for name, value in now.items() if name not in then or then[name] != value}
    return changed | (then.keys() - now.keys())


def _turns(then: Mapping[str, object], names: Iterable[str]) -> dict[str, object]:
    """Number names in their order; they keep their numbers as long as these tell the order."""
    turns: dict[str, object] = {}
    last = 0
    for name in names:
        turn = cast("int", then.get(name, last + 1))
        if turn <= last:
            return {name: number for number, name in enumerate(names, 1)}
        turns[name] = last = turn
    return turns


def _in_order(turns: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(sorted(turns, key=lambda name: cast("int", turns[name])))


def _fields(tables: Mapping[str, bytes]) -> _Fields:
    fields: dict[str, dict[str, Any]] = {
        field: {} for field in ("table", "carried", "unread", "snapshot", "reading", "turn")
    }
    for name, value in tables.items():
        found = orjson.loads(value)
        if unknown := found.keys() - fields:
            raise of_newer_release(f"record of table {name}", f"with {', '.join(sorted(unknown))}")
        for field, of in found.items():
            fields[field][name] = of
    return fields
