"""What is published under `source.columns` and `source.where`: whatever happens, the fold is SELECT … WHERE, masked.

The oracle is written by hand for one table; it knows nothing of the rules' code.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import orjson
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from cdc.capture.control.signals import Command
from cdc.capture.pipeline import Pipeline, Settings
from cdc.capture.snapshots.published_rows import PublishedTables
from cdc.config.published.column_rules import ColumnRules, HashRule
from cdc.model.change import UNCHANGED, Change, Column, Kind, Op, Row, Table
from cdc.rules.capture_rules import NO_RULES, CaptureRules
from cdc.rules.changed_values import MASK
from cdc.rules.flat import Formats
from cdc.testing import (
    POINTS,
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
    nothing,
)
from tests.conftest import FULL
from tests.text_tables import text_column

SECRET = b"SECRET"
LONG = b"w" * 2_100
_NUMBER = Column("n", "integer", Kind("int32"), lambda value: value)
_STATUS = Column("status", "text", Kind("string"), text_column("status").encode, equality="exact")
TABLE = Table(
    "s",
    "t",
    (
        text_column("id"),
        text_column("password"),
        _STATUS,
        text_column("email"),
        text_column("phone"),
        text_column("bio", toastable=True),
        _NUMBER,
    ),
    ("id",),
)
COLUMNS = ColumnRules(
    exclude=("password",), mask=("email",), hash=HashRule(columns=("phone",), salt="pepper"), truncate={"bio": 3}
)
WHERE = "status <> 'draft' AND NOT n > 5"


class Ruled(Protocol):
    """Rules, and what they leave of a row by hand."""

    @property
    def made(self) -> CaptureRules: ...
    @property
    def formats(self) -> Formats: ...
    def published(self, row: Row) -> dict[str, object] | None: ...


@dataclass(frozen=True)
class Rules:
    """Rules, and what they leave of a row by hand."""

    columns: bool
    where: bool
    flat: bool = False

    metadata: tuple[str, ...] = ()

    @property
    def formats(self) -> Formats:
        return Formats("flat" if self.flat else "envelope", metadata=self.metadata)

    @property
    def made(self) -> CaptureRules:
        return CaptureRules({"s.t": COLUMNS} if self.columns else {}, {"s.*": WHERE} if self.where else {})

    def published(self, row: Row) -> dict[str, object] | None:
        id_, password, status, email, phone, bio, n = (None if v is None else bytes(v).decode() for v in row)  # type: ignore[arg-type]
        if self.where and (status is None or status == "draft" or n is None or int(n) > 5):
            return None
        number = None if n is None else int(n)
        if not self.columns:
            whole = (id_, password, status, email, phone, bio, number)
            return {column.name: value for column, value in zip(TABLE.columns, whole, strict=True)}
        hashed = phone and hmac.new(b"pepper", phone.encode(), hashlib.sha256).hexdigest()
        masked = email and orjson.loads(MASK)
        return {"id": id_, "status": status, "email": masked, "phone": hashed, "bio": bio and bio[:3], "n": number}


@dataclass(frozen=True)
class Step:
    """What is done to the row of a key, made valid when it is done."""

    what: str
    key: int
    other: int
    status: str | None
    n: int | None
    long: bool
    whole: bool  # the log has the whole old row
    leave_out: bool  # and leaves out what an update did not change


STEPS = st.builds(
    Step,
    st.sampled_from(["put", "put", "put", "move", "delete", "truncate"]),
    st.integers(0, 2),
    st.integers(0, 2),
    st.sampled_from(["draft", "paid", None]),
    st.sampled_from([1, 9, None]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


class World:
    def __init__(self, steps: list[Step], pace: list[int]) -> None:
        self.log, self.kafka = MemoryLog(), MemoryKafka()
        self.steps, self.pace = iter(steps), iter(pace)
        self.values = 0
        self.faults = Faults()
        self.tells = True
        """Whether the source can tell who has written a row last, and so what the log has left out of it."""

    def at(self, point: str) -> None:
        self.faults(point)
        if point in {"source.idle", "source.frame", "snapshot.chunk", "snapshot.window"}:
            self.act(next(self.pace, 0))

    def act(self, most: int | None = None) -> None:
        for step in islice(self.steps, most):
            change = self._change(step)
            if change is not None:
                self.log.commit(change)

    def _change(self, step: Step) -> Change | None:
        rows = self.log.rows(TABLE)
        key, other = (b"%d" % step.key,), (b"%d" % step.other,)
        old = rows.get(key)
        image = old if step.whole or old is None else (old[0], *[UNCHANGED] * (len(old) - 1))
        if step.what == "truncate":
            return Change(Op.TRUNCATE, TABLE, None, None, 0) if step.key == 0 else None
        if step.what == "delete":
            return None if old is None else Change(Op.DELETE, TABLE, image, None, 0)
        self.values += 1
        secret = SECRET + b"%d" % self.values
        bio = b"%03d" % self.values + (LONG + secret if step.long else secret)
        new: Row = (
            key[0], secret, step.status and step.status.encode(), secret, secret, bio,
            None if step.n is None else b"%d" % step.n,
        )  # fmt: skip
        if old is None:
            return Change(Op.CREATE, TABLE, None, new, 0)
        stays = step.leave_out and isinstance(old[5], bytes) and len(old[5]) > len(LONG)
        if stays:
            new = (*new[:5], old[5] if step.whole else UNCHANGED, new[6])
        if step.what == "move" and other not in rows:
            return Change(Op.UPDATE, TABLE, image, (other[0], *new[1:]), 0)
        return Change(Op.UPDATE, TABLE, image if step.whole else None, new, 0)

    def snapshotter(self) -> MemorySnapshotter:
        return MemorySnapshotter(self.log)

    def run(self, rules: Ruled, *, alone: bool = False) -> None:
        """Until all is there; `alone`: nothing more is done meanwhile."""
        at = nothing if alone else self.at
        with contextlib.suppress(Killed):
            self._run(rules, at)
            return
        self.run(rules, alone=alone)

    def _run(self, rules: Ruled, at: At) -> None:
        Pipeline(
            Settings(connector="c", prefix="p", chunk_rows=1, rules=rules.made, formats=rules.formats),
            open_source=lambda: MemorySource(self.log, [TABLE], at=at),
            open_snapshotter=lambda: MemorySnapshotter(self.log, rows_each=1, tells=self.tells, at=at),
            sink=MemorySink(self.kafka, "c", "p", at=self.faults if at != nothing else nothing),
            executor=Inline,
        ).run(until_caught_up=True)

    def ask(self, keys: tuple[tuple[bytes, ...], ...] = ()) -> None:
        key = b"%d" % len(self.kafka.topics["p.signal-c"])
        command = Command(tables=("s.t",), keys=keys).to_bytes(key.decode())
        self.kafka.topics["p.signal-c"].append(Record("p.signal-c", key, command, self.kafka.begin("cli")))
        self.kafka.end("cli", Outcome.COMMITTED)

    def fold(self) -> dict[str, dict[str, object]]:
        last = {r.key: r for r in self.kafka.committed("p.s.t")}
        found = (_row(record) for record in last.values() if record.value is not None)
        return {str(row["id"]): row for row in found}

    def verified(self, rules: Ruled) -> dict[str, dict[str, object]]:
        """What `cdc verify` reads from the source."""
        with PublishedTables([TABLE], MemorySnapshotter(self.log), prefix="p", rules=rules.made) as published:
            read = [orjson.loads(row.after or b"") for part in published.read("s.t") for row in part.rows]
        return {row["id"]: row for row in read}

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """What is committed inside is in no log."""
        carried, self.log.carried = self.log.carried, frozenset()
        yield
        self.log.carried = carried

    def newest(self) -> list[Record]:
        return list({r.key: r for r in self.kafka.committed("p.s.t")}.values())

    def expected(self, rules: Ruled) -> dict[str, dict[str, object]]:
        found = (rules.published(row) for row in self.log.rows(TABLE).values())
        return {str(row["id"]): row for row in found if row is not None}


def _row(record: Record) -> dict[str, object]:
    value: dict[str, object] = orjson.loads(record.value or b"")
    return value if record.headers else value["after"]  # type: ignore[return-value]


RULES = st.builds(Rules, st.booleans(), st.booleans(), st.booleans())


@given(
    steps=st.lists(STEPS, max_size=24),
    seeded=st.integers(0, 6),
    pace=st.lists(st.integers(0, 2), max_size=20),
    runs=st.lists(st.tuples(RULES, st.booleans()), min_size=1, max_size=3),
    tells=st.booleans(),
    faults=st.lists(
        st.tuples(st.sampled_from(POINTS), st.integers(1, 4)), max_size=2, unique_by=lambda fault: fault[0]
    ),
)
@settings(max_examples=150 if FULL else 60)
def test_the_fold_is_what_the_rules_leave(
    steps: list[Step],
    seeded: int,
    pace: list[int],
    runs: list[tuple[Rules, bool]],
    *,
    tells: bool,
    faults: list[tuple[str, int]],
) -> None:
    """By snapshot, stream, re-reads, changed rules, killed at any step; `verify` reads just that from the source."""
    world = World(steps, pace)
    world.tells, world.faults = tells, Faults(*faults, error=Killed)
    world.act(seeded)
    for rules, ask in runs:
        if ask and "p.s.t" in world.kafka.topics:
            world.ask()
        world.run(rules)
        world.act(2)
        world.run(rules, alone=True)
        assert world.fold() == world.expected(rules)
        assert {bool(r.headers) for r in world.newest() if r.value is not None} <= {rules.flat}
    world.act()
    rules = runs[-1][0]
    world.run(rules, alone=True)
    assert world.fold() == world.expected(rules)
    assert world.verified(rules) == world.expected(rules)
    event(f"{len(set(runs))} rules")


@given(
    steps=st.lists(STEPS, min_size=8, max_size=24),
    pace=st.lists(st.integers(0, 2), max_size=20),
    rules=RULES,
    unseen=st.lists(st.integers(0, 4), min_size=1, max_size=4),
)
@settings(max_examples=150 if FULL else 60)
def test_what_verify_finds_a_repair_publishes(
    steps: list[Step], pace: list[int], rules: Rules, unseen: list[int]
) -> None:
    """Rows change behind the log's back; the keys that differ are asked for, and what comes after is right, too.

    Nothing differs where nothing was hidden: a masked column, a hash, a row that `where` leaves out is no difference.
    The source tells of values that the log leaves out, as PostgreSQL does: else an update that comes while its row is
    read would be filled with what the topic has, and the row have to be asked for once more.
    """
    world = World(steps, [])
    world.act(4)
    world.run(rules)
    for many in unseen:
        with world.unseen():
            world.act(many)
        world.act(1)
        world.run(rules, alone=True)
        there, fold = world.verified(rules), world.fold()
        differing = [key for key in there.keys() | fold.keys() if there.get(key) != fold.get(key)]
        assert many or not differing
        event(f"{len(differing)} differ")
        if differing:
            world.pace = iter(pace)
            world.ask(keys=tuple((key.encode(),) for key in differing))
            world.run(rules)
            world.run(rules, alone=True)
        assert world.fold() == world.expected(rules)
    world.act()
    world.run(rules, alone=True)
    assert world.fold() == world.expected(rules)


@given(
    steps=st.lists(STEPS, max_size=20),
    rules=st.builds(
        Rules, st.booleans(), st.booleans(), st.booleans(),
        st.sampled_from([(), ("op",), ("position", "op", "deleted")]),
    ),
)  # fmt: skip
@settings(max_examples=60 if FULL else 30)
def test_the_fast_paths_write_what_the_full_path_writes(steps: list[Step], rules: Rules) -> None:
    """Key, value, headers of every record, byte for byte, but for the time; whatever is cut, masked or flat."""

    def written(*, fast: bool) -> list[tuple[bytes, bytes, object]]:
        world = World(steps, [])
        world.act(3)
        with pytest.MonkeyPatch.context() as patched:
            if not fast:
                at = "cdc.encode.event_writer."
                patched.setattr(at + "fast_path", lambda *_: lambda *_: None)
                patched.setattr("cdc.encode.snapshot_rows.read_fast_path", lambda *_: lambda _, begin, *__: begin)
                patched.setattr(at + "batch_fast_path", lambda *_: None)
            world.run(rules, alone=True)
            world.act()
            world.run(rules, alone=True)
        found = world.kafka.committed("p.s.t")
        return [(r.key, re.sub(rb'"ts_ms":\d+', b"", r.value or b"null"), r.headers) for r in found]

    assert written(fast=True) == written(fast=False)


@given(steps=st.lists(STEPS, max_size=20), pace=st.lists(st.integers(0, 2), max_size=10))
@settings(max_examples=40 if FULL else 20)
def test_no_secret_is_anywhere(steps: list[Step], pace: list[int]) -> None:
    """No record of any topic holds a value of an excluded, masked or hashed column, or what was cut off."""
    world = World(steps, pace)
    world.act(2)
    world.run(Rules(columns=True, where=True))
    world.act()
    world.ask()
    world.run(Rules(columns=True, where=True))
    for topic, records in world.kafka.topics.items():
        for record in records:
            assert SECRET not in record.key + (record.value or b""), topic


@given(st.lists(STEPS, max_size=20))
def test_rows_with_their_old_rows_have_just_the_events_that_readers_see(steps: list[Step]) -> None:
    """Where the log has whole old rows, no event is too many: of each key creates, updates and deletes take turns."""
    rules = Rules(columns=True, where=True)
    world = World([Step(**{**vars_of(step), "whole": True}) for step in steps], [])
    world.run(rules)
    world.act()
    world.run(rules)
    there: set[bytes] = set()
    for record, op in _events(world):
        assert (record.key in there) == (op in "ud"), op
        there ^= {record.key} if op in "cd" else set()


def vars_of(step: Step) -> dict[str, object]:
    return {name: getattr(step, name) for name in Step.__dataclass_fields__}


def _events(world: World) -> Iterator[tuple[Record, str]]:
    for record in world.kafka.committed("p.s.t"):
        if record.value is not None:
            yield record, orjson.loads(record.value)["op"]


def test_a_row_that_stays_unseen_while_its_table_is_read_again_goes() -> None:
    """Its event is noted, so that the deletes at the reading's end leave its key out: it has a delete of its own."""
    drafts = [Step("put", 0, 0, "draft", 1, long=False, whole=True, leave_out=False)] * 2
    world = World(drafts, [])
    world.act(1)
    world.run(Rules(columns=False, where=False))
    assert world.fold().keys() == {"0"}
    passed: list[str] = []

    def at(point: str) -> None:
        if point == "source.idle" and passed.count("snapshot.window") == 2:
            world.act(1)  # behind the last view that its rows were read under
        passed.append(point)

    world.at = at  # type: ignore[method-assign]
    world.run(Rules(columns=False, where=True))
    assert not list(world.steps), "all was done while it was read"
    assert world.fold() == {}


def test_a_row_that_was_read_again_is_not_taken_for_unseen() -> None:
    """It has changed without an event; the next one, without its old row, has to delete it."""
    world = World([], [])
    row: Row = (b"1", b"p", b"draft", b"e", b"f", b"b", b"1")
    paid: Row = (*row[:2], b"paid", *row[3:])
    world.log.commit(Change(Op.CREATE, TABLE, None, row, 0))
    rules = Rules(columns=True, where=True)
    world.run(rules)
    done = list[str]()

    def at(point: str) -> None:
        if not done:
            world.log.commit(Change(Op.UPDATE, TABLE, None, row, 0))
            world.ask(keys=((b"9",),))
            done.append("not seen")
        elif done[-1] == "not seen" and point == "source.idle":
            with world.unseen():
                world.log.commit(Change(Op.UPDATE, TABLE, None, paid, 0))
            world.ask(keys=((b"1",),))
            done.append("asked for")
        elif done[-1] == "asked for" and world.fold():
            world.log.commit(Change(Op.UPDATE, TABLE, None, row, 0))
            world.ask(keys=((b"8",),))
            done.append("gone")

    world.at = at  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("cdc.capture.control.commands.COMMANDS_S", 0.0)
        world.run(rules)
    assert done[-1] == "gone"
    assert world.fold() == {}


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("tells", [True, False])
def test_a_value_that_changed_while_its_row_was_unseen_is_not_taken_from_the_topic(*, tells: bool, flat: bool) -> None:
    """The topic has what the row had when it was last seen; the source has what it has."""
    rules = Rules(columns=True, where=True, flat=flat)
    seen, unseen, again = (
        Step("put", 0, 0, status, 1, long=True, whole=False, leave_out=last)
        for status, last in (("paid", False), ("draft", False), ("paid", True))
    )
    world = World([seen, unseen, again], [])
    world.tells = tells
    world.run(rules)
    for _ in range(3):
        world.act(1)
        world.run(rules)
    assert world.fold() == world.expected(rules)
    assert world.fold()["0"]["bio"] == "002"


def test_without_rules_tables_are_published_as_they_are() -> None:
    """No rules: not even a look at the table."""
    assert NO_RULES.of("s.t") is None
    assert not NO_RULES
