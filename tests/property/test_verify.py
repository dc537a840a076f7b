"""Verify runs beside a source that is written, a connector that publishes and a job that applies, in any order.

No server: a log whose commits may be invisible for a while, a topic, a copy that lags. Keys that nobody writes are
damaged in the copy; keys that are written must never be reported.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from typing import Any

import orjson
import pytest

from cdc.capture.snapshots.published_rows import PublishedTables
from cdc.config.apply_config import ApplySource
from cdc.model.change import Change, Kind, Op
from cdc.model.errors import CdcError, OperatorError, RetryableError
from cdc.model.state import Phase, State
from cdc.testing import MemoryLog, MemorySnapshotter, delete, insert, update
from cdc.testing.log import key_of
from spark_apply.events.kafka.records import keys_between
from spark_apply.events.set_aside import SetAside
from spark_apply.model.completeness import Mark
from spark_apply.model.store import StoredRow
from spark_apply.model.target_table import TargetColumn, TargetTable
from spark_apply.verify import recheck, verify
from spark_apply.verify.canonical_row import CanonicalForm
from spark_apply.verify.compared import ComparedCopy, ComparedTable, Context
from spark_apply.verify.verify import _compare
from tests.text_tables import text_table

TABLE = text_table("t", ["id", "v"])
TEXT = Kind("string")
TARGET = TargetTable(
    "c", "s", "t", "p.s.t", ("id",), tuple(TargetColumn(name, TEXT, ((TEXT, (1,)),)) for name in ("id", "v")), 1
)
FORM = CanonicalForm(TARGET, {"id": TEXT, "v": TEXT})
QUIET, BUSY = ("changed", "gone", "kept", "left"), ("a", "b", "c", "d")
LIVES = 400


class World:
    """A source, a topic and a copy; each turn some of them go on."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.log = MemoryLog()
        self.log.carried = frozenset({TABLE.qualified})
        self.topic: list[tuple[bytes, str | None]] = []
        self.published = self.applied = self.values = 0
        self.copy: dict[str, str] = {}
        self.log.commit(*(insert(TABLE, (name.encode(), b"0")) for name in QUIET))
        self.go_on()
        while self.applied < len(self.topic):
            self.go_on()
        self.copy[_key("changed")] = _document("changed", "damaged")
        self.copy.pop(_key("gone"))
        self.copy[_key("extra")] = _document("extra", "0")
        self.busy = self.chance.random()

    def turn(self, _point: str = "") -> None:
        for _ in range(self.chance.randrange(5)):
            what = self.chance.random()
            if what < self.busy * 0.5:
                self.write()
            elif what < 0.6:
                self.log.reveal(range(1, self.chance.randrange(len(self.log.transactions) + 1)))
            else:
                self.go_on()

    def write(self) -> None:
        name = self.chance.choice(BUSY).encode()
        held = self.log.rows(TABLE)
        self.values += 1
        row = (name, b"%d" % (self.values % 3))
        change = update(TABLE, row) if (name,) in held else insert(TABLE, row)
        if (name,) in held and self.chance.random() < 0.5:
            change = delete(TABLE, (name,))
        self.log.commit(change, visible=self.chance.random() < 0.7)

    def go_on(self) -> None:
        """The connector publishes a transaction, the job applies some events."""
        if self.published < len(self.log.transactions):
            for change in self.log.transactions[self.published].changes:
                assert isinstance(change, Change)
                row = change.after if change.after is not None else change.before
                assert row is not None
                name = key_of(TABLE, row)[0].decode()
                value = None if change.op is Op.DELETE else _document(name, row[1].decode())  # type: ignore[union-attr]
                self.topic.append((_key(name).encode(), value))
            self.published += 1
        for key, value in self.topic[self.applied : self.applied + self.chance.randrange(1, 4)]:
            self.applied += 1
            if value is None:
                self.copy.pop(key.decode(), None)
            else:
                self.copy[key.decode()] = value

    def standing(self) -> State:
        self.go_on()
        commit = self.log.transactions[self.published - 1].end
        return State(connector="c", identity={}, phase=Phase.STREAM, epoch=1, commit=commit, sequence=self.published)

    def ends(self, _source: ApplySource, _topic: str) -> dict[int, int]:
        self.turn()
        return {0: len(self.topic)}

    def told(self, _source: ApplySource, _topic: str, begins: dict[int, int], ends: dict[int, int]) -> Iterator[bytes]:
        return (key for key, _ in self.topic[begins[0] : ends[0]])

    # of a store

    def rows(self, _table: TargetTable, ids: Collection[str] | None = None) -> Iterator[StoredRow]:
        self.turn()
        return iter([StoredRow(id_, row) for id_, row in self.copy.items() if ids is None or id_ in ids])

    def id_of(self, event_key: str, document_key: str) -> str:
        assert orjson.loads(event_key) == orjson.loads(document_key)
        return event_key

    def mark(self, _table: TargetTable) -> Mark:
        self.turn()
        self.go_on()
        return Mark({0: self.applied}, None)


def _key(name: str) -> str:
    return f'{{"id":"{name}"}}'


def _document(name: str, value: str) -> str:
    return f'{{"id":"{name}","v":"{value}"}}'


ASIDE = SetAside("aside", TABLE.qualified, "p.s.t", "a column has another type", "cdc rebuild APPLY.yaml", 0)


class Unmoved:
    """A store whose copies are as they were, and behind; or that says what is wrong with it."""

    def __init__(self, error: CdcError | None = None) -> None:
        self._error = error

    def rows(self, _table: TargetTable, _ids: Collection[str] | None = None) -> Iterator[StoredRow]:
        if self._error is not None:
            raise self._error
        yield StoredRow(_key("kept"), _document("kept", "of long ago"))

    def id_of(self, event_key: str, _document_key: str) -> str:
        return event_key

    def mark(self, _table: TargetTable) -> Mark:
        return Mark({0: 0}, None)


def verified(
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    others: dict[str, Unmoved] | None = None,
    errors: dict[tuple[str, str], CdcError] | None = None,
) -> ComparedCopy:
    world = World(seed)
    with monkeypatch.context() as patch:
        patch.setattr(recheck, "_LOOK_S", 0)
        patch.setattr(verify, "AT_ONCE", world.chance.randrange(1, 6))
        patch.setattr(recheck, "committed_ends", world.ends)
        patch.setattr(recheck, "written_ends", world.ends)
        if recheck.keys_between is keys_between:
            patch.setattr(recheck, "keys_between", world.told)
        reader = MemorySnapshotter(world.log, at=world.turn)
        with PublishedTables([TABLE], reader, prefix="p") as published:
            topics = ApplySource(bootstrap_servers="nowhere", topic_prefix="p")
            context = Context(topics, published, world.standing, lambda _line: None, tuple, lambda: [ASIDE])
            spark: Any = None  # the table has no expressions
            stores: Any = {**(others or {}), "copy": world}
            (copy,) = _compare(
                context, ComparedTable(TABLE, TARGET, FORM, stores, spark), {} if errors is None else errors
            )
    return copy


def right(copy: ComparedCopy) -> bool:
    """Exactly the damage is reported."""
    return (
        [(one.key, one.columns) for one in copy.differing] == [(_key("changed"), ("v",))]
        and [one.key for one in copy.missing] == [_key("gone")]
        and [one.key for one in copy.extra] == [_key("extra")]
        and all(orjson.loads(key)["id"] in BUSY for key in copy.undecided)
    )


def test_exactly_what_is_damaged_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    settled = 0
    for seed in range(LIVES):
        copy = verified(seed, monkeypatch)
        assert right(copy), (seed, copy)
        settled += not copy.undecided
    assert settled > LIVES / 2


def test_what_cannot_be_compared_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that was never made, a server that is away, a copy that is set aside: told, and not waited for."""
    gone, away = OperatorError("there is no such table", hint="x"), RetryableError("nobody answers")
    errors: dict[tuple[str, str], CdcError] = {}
    copy = verified(7, monkeypatch, {"gone": Unmoved(gone), "aside": Unmoved(), "away": Unmoved(away)}, errors)
    assert right(copy)
    assert {store: error.message for (_, store), error in errors.items()} == {
        "gone": gone.message,
        "aside": f"its rows differ, and it is set aside: {ASIDE.reason}",
        "away": away.message,
    }


def wrong(monkeypatch: pytest.MonkeyPatch) -> bool:
    return any(not right(verified(seed, monkeypatch)) for seed in range(LIVES))


def test_control_keys_that_changed_meanwhile_are_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recheck, "keys_between", lambda *_: iter(()))
    assert wrong(monkeypatch)


def test_control_a_view_that_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the topic told may not be visible yet."""
    read = MemorySnapshotter.rows
    monkeypatch.setattr(MemorySnapshotter, "rows", lambda *a, first: read(*a, first=False))
    assert wrong(monkeypatch)


def test_control_a_store_that_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recheck.Recheck, "_await", lambda *_: None)
    assert wrong(monkeypatch)
