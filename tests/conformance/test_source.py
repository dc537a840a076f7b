"""What every source promises: the memory twin and the real databases pass the same tests.

Each database is written to once, in a script that has what the loop must not get wrong, and is followed by one
connector; the laws are about what that one was given. See `docs/contributing.md` for a source of your own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from cdc.capture.snapshots.turns import Sizing
from cdc.model.change import (
    UNCHANGED,
    Change,
    Idle,
    Message,
    Offset,
    Op,
    Row,
    Table,
    Transaction,
    TransactionBatch,
    Xid,
)
from cdc.model.errors import GapError, OperatorError
from cdc.model.interfaces import Handover, Snapshotter, Source
from cdc.model.state import Phase, State
from tests.conformance.origins import (
    Drop,
    Empty,
    Etcd,
    Memory,
    MySQL,
    MySQLTriggered,
    Origin,
    Postgres,
    PostgresTriggered,
    Put,
    Rekey,
    SQLite,
    write,
)
from tests.conftest import _database, _mysql_database

ORIGINS = ("memory", "postgres", "mysql", "sqlite by triggers", "postgres by triggers", "mysql by triggers",
           "mariadb by triggers", "etcd")  # fmt: skip


def made(kind: str, servers: Callable[[str], str], folder: Path) -> Generator[Origin, None, None]:
    """An origin of this kind, with what it needs; the rest of the generator takes that back."""
    match kind:
        case "memory":
            yield Memory()
        case "postgres":
            for database in _database(servers("postgres18")):
                yield Postgres(database)
        case "postgres by triggers":
            for database in _database(servers("postgres18")):
                yield PostgresTriggered(database)
        case "mysql":
            for on_mysql in _mysql_database(servers("mysql")):
                yield MySQL(on_mysql)
        case "mysql by triggers" | "mariadb by triggers":
            for on_mysql in _mysql_database(servers(kind.partition(" ")[0])):
                yield MySQLTriggered(on_mysql)
        case "etcd":
            yield Etcd(servers("etcd"))
        case "sqlite by triggers":
            yield SQLite(folder / "shop.db")


@dataclass(frozen=True)
class Given:
    """A transaction as the source gave it, and where it said to resume behind its frame."""

    xid: Xid
    commit: int
    changes: list[Change]
    offset: Offset
    position: int


@dataclass
class Story:
    """What a connector that was new, then stopped in the middle of its snapshot, was given."""

    origin: Origin
    identity: Mapping[str, str] = field(default_factory=dict)
    again: Mapping[str, str] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    state: State | None = None
    folded: dict[str, dict[Row, Row]] = field(default_factory=dict)
    given: list[Given] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """`current` after each part of the script."""
    refused: list[str] = field(default_factory=list)
    """What `unused` said before and after the hold."""
    rows: dict[str, dict[Row, Row]] = field(default_factory=dict)
    later: list[tuple[Op, str, Row | None]] = field(default_factory=list)
    """What was written when the script was over."""
    acknowledged: int = 0
    """Behind this place the log must have everything."""


def follow(source: Source, offset: Offset, until: int) -> list[Given]:
    """Everything from `offset` up to a commit position, which an idle log reaches."""
    given: list[Given] = []
    for frame in (stream := source.stream(offset)):
        batch = frame.transactions if isinstance(frame, TransactionBatch) else [frame]
        read = [(t, list(t.changes)) for t in batch if isinstance(t, Transaction)]
        at, position = source.position()
        given += [
            Given(t.xid, t.commit, [c for c in changes if isinstance(c, Change)], at, position) for t, changes in read
        ]
        if isinstance(frame, Idle | Message) and position >= until:
            break
    cast("Generator[Any, None, None]", stream).close()
    return given


def told(origin: Origin, given: Sequence[Given]) -> list[Given]:
    """What was given, each row as its integer and its text."""

    def shown(row: Row | None) -> Row | None:
        return None if row is None else origin.shown(row)

    return [
        replace(g, changes=[c._replace(before=shown(c.before), after=shown(c.after)) for c in g.changes]) for g in given
    ]


def key_of(table: Table, row: Row) -> Row:
    return tuple(row[index] for index in table.key_indexes)


class Fold:
    """Rows by key, each with the view it was read under; None: of the log."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[Row, tuple[Row, int | None]]] = {"a": {}, "b": {}}

    def apply(self, change: Change, xid: Xid, handover: Handover | None) -> None:
        table, rows = change.table, self.rows[change.table.name]
        if change.op is Op.TRUNCATE:
            kept: dict[Row, tuple[Row, int | None]] = {
                key: (row, view)
                for key, (row, view) in rows.items()
                if view is not None and handover is not None and handover.saw(table, view, xid)
            }
            self.rows[table.name] = kept
            return
        before, after = change.before, change.after
        if before is not None and (after is None or key_of(table, before) != key_of(table, after)):
            gone = Change(Op.DELETE, table, before, None, change.lsn)
            if handover is None or not handover.hides(gone, xid):
                rows.pop(key_of(table, before), None)
        if after is None or (handover is not None and handover.hides(change._replace(before=None), xid)):
            return
        assert UNCHANGED not in after, "no value here is so wide that it is left out"
        rows[key_of(table, after)] = (after, None)

    def plain(self, shown: Callable[[Row], Row]) -> dict[str, dict[Row, Row]]:
        found = {name: [shown(row) for row, _ in rows.values()] for name, rows in self.rows.items()}
        return {name: {row[:1]: row for row in rows} for name, rows in found.items()}


def _script(origin: Origin) -> Iterator[None]:
    """What is written while nobody follows."""
    write(origin, Put("a", 20, "twenty", new=True), Put("a", 20, "again"), Put("b", 20, "same", new=True))
    write(origin, Rekey("a", 20, 21), Put("a", 21, "moved"))
    write(origin, Put("a", 20, "another", new=True))
    yield
    first, second = origin.begin(), None
    first.do(Put("a", 30, "first", new=True), Put("a", 31, "first", new=True))
    if origin.waits:
        first.commit()
    second = origin.begin()
    second.do(Put("b", 30, "second", new=True))
    second.commit()
    write(origin, Put("b", 30, "later"))
    if not origin.waits:
        first.do(Put("b", 31, "first", new=True))
        first.commit()  # behind those that began after it
    write(origin, Put("a", 30, "last"))
    yield
    write(origin, Put("b", 40, "gone", new=True), Drop("b", 40), Put("b", 40, "back", new=True))
    write(origin, Empty("b"))
    write(origin, Put("b", 1, "new", new=True))
    yield
    write(origin, *(Put("a", 1_000 + n, "many", new=True) for n in range(50)))
    yield


def _snapshot(origin: Origin, source: Source, reader: Snapshotter, view: str | None, fold: Fold) -> dict[str, Any]:
    """Read the first chunk and write in front of it and behind; then as after a crash, under a new view."""
    progress: Mapping[str, object] = {}
    tables = source.tables()

    def take(chunk: Any) -> None:
        nonlocal progress
        progress = chunk.progress
        for row in chunk.rows:
            fold.rows[chunk.table.name][key_of(chunk.table, row)] = (row, chunk.view)

    chunks = reader.chunks(tables, progress, view)
    take(next(chunks))
    write(origin, Put("a", 1, "read already"), Put("a", 5, "not read"), Drop("a", 2), Drop("a", 6))
    write(origin, Rekey("a", 3, 12), Rekey("a", 7, 0), Put("b", 2, "inserted", new=True))
    cast("Generator[Any, None, None]", chunks).close()
    reader.close()
    source.tend()
    with closing(origin.snapshotter()) as another:
        for chunk in another.chunks(tables, progress, None):
            take(chunk)
            write(origin, Put("a", 1, f"chunk {len(fold.rows['a'])}"))
        return dict(progress)


def _told(origin: Origin) -> Story:
    story, fold = Story(origin), Fold()
    write(origin, *(Put("a", n, f"old {n}", new=True) for n in range(1, 10)), Put("b", 1, "old", new=True))
    with closing(origin.source()) as source, closing(origin.snapshotter()) as reader:
        story.identity = source.connect()
        story.tables = source.tables()
        story.refused.append(_refusal(source))
        source.current()  # a run until it has caught up asks before there is anything to follow
        start = source.hold(story.tables)
        assert source.position()[1] <= max(source.current(), start.commit)  # it is asked before anything is followed
        names = tuple(table.qualified for table in story.tables)
        story.state = State(
            connector="c", identity=story.identity, phase=Phase.STREAM, epoch=1, offset=start.offset,
            commit=start.commit, tables=names, carried=source.carried(),
        )  # fmt: skip
        progress = _snapshot(origin, source, reader, start.view, fold)
        story.ends.append(source.current())
        for _ in _script(origin):
            story.ends.append(source.current())
    with closing(origin.source()) as source, closing(origin.snapshotter()) as reader:
        story.again = source.connect()
        story.refused.append(_refusal(source))
        source.tables()
        assert source.verify(story.state) is None
        source.recall({})
        handover = reader.handover(story.tables, progress)
        story.given = follow(source, story.state.offset, story.ends[-1])
        for given in story.given:
            if handover is not None and handover.spent(given.commit):
                handover = None
            for change in given.changes:
                fold.apply(change, given.xid, handover)
    story.folded = fold.plain(origin.shown)
    story.given = told(origin, story.given)
    story.rows = {name: origin.rows(name) for name in ("a", "b")}
    return story


def _refusal(source: Source) -> str:
    try:
        source.unused()
    except OperatorError as exc:
        return exc.message
    return ""


@pytest.fixture(scope="module", params=ORIGINS)
def origin(
    request: pytest.FixtureRequest, servers: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Origin]:
    """Each test runs against the twin, and against real databases: one of each for all of them."""
    for found in made(request.param, servers, tmp_path_factory.mktemp("origin")):
        with closing(found):
            yield found


@pytest.fixture(scope="module")
def story(origin: Origin) -> Story:
    return _told(origin)


def test_the_identity_is_the_same_at_every_start(story: Story) -> None:
    """A position belongs to it."""
    assert story.identity
    assert story.again == story.identity


def test_tables_come_sorted_and_with_their_keys(story: Story) -> None:
    """By name; each as the topics need it."""
    assert [(table.schema, table.name) for table in story.tables] == [
        (story.origin.schema, "a"),
        (story.origin.schema, "b"),
    ]
    assert all(table.key == tuple(story.origin.columns[:1]) for table in story.tables)
    assert [column.name for column in story.tables[0].columns] == list(story.origin.columns)


def test_a_log_that_nobody_holds_is_free(story: Story) -> None:
    """A fresh start is not refused."""
    assert story.refused[0] == ""


def test_snapshot_and_log_fold_to_the_tables(story: Story) -> None:
    """No row lost, none resurrected: by a snapshot that was cut off, written to all the while, and what follows."""
    assert story.folded == story.rows


def test_positions_rise(story: Story) -> None:
    """Each transaction lies behind the one before, and before the place where to resume."""
    assert all(one.commit < other.commit for one, other in pairwise(story.given))
    assert all(one.position <= other.position for one, other in pairwise(story.given))
    assert all(given.commit < given.position for given in story.given)
    assert len(story.given) > 8 or story.origin.in_rounds


def test_a_log_behind_a_look_is_behind_its_end(story: Story) -> None:
    """All that was committed before `current` was asked is given before its answer is reached."""
    assert sorted(story.ends) == story.ends
    for keys, end in (((b"21",), 1), ((b"30", b"31"), 2), ((b"1049",), 4)):
        of = [g for g in story.given if any(c.after is not None and c.after[0] in keys for c in g.changes)]
        assert of
        places = {given.position for given in story.given if given.position < of[-1].position}
        assert all(place < story.ends[end] for place in places)


def test_transactions_are_whole(story: Story) -> None:
    """All that one transaction has changed comes in one frame, in its order."""
    (many,) = [g for g in story.given if any(c.after is not None and c.after[0] == b"1000" for c in g.changes)]
    assert [c.after[0] for c in many.changes if c.after is not None and c.after[1] == b"many"] == [
        b"%d" % (1_000 + n) for n in range(50)
    ]
    of_two = [g for g in story.given if any(c.after is not None and c.after[1] == b"same" for c in g.changes)]
    assert len(of_two) == 1
    of_20 = [c.after for c in of_two[0].changes if c.table.name == "a" and c.after is not None and c.after[0] == b"20"]
    assert of_20[:2] == [(b"20", b"twenty"), (b"20", b"again")][story.origin.by_key :]


def test_a_key_change_names_both_keys(story: Story) -> None:
    """In one change, or as a delete and a create."""
    of = [c for g in story.given for c in g.changes if c.after is not None and c.after[:1] == (b"12",)]
    olds = [c.before[0] for g in story.given for c in g.changes if c.before is not None]
    assert of
    assert b"3" in olds


def test_a_transaction_is_given_once(story: Story) -> None:
    """However it was cut into frames, each change is there once."""
    inserted = [c.after[0] for g in story.given for c in g.changes if c.op is Op.CREATE and c.after is not None
                if c.table.name == "a"]  # fmt: skip
    assert inserted.count(b"1007") == 1
    assert inserted.count(b"21") == story.origin.by_key
    assert inserted.count(b"31") == 1


def _flat(given: Sequence[Given]) -> list[tuple[Op, str, Row | None]]:
    return [(c.op, c.table.name, c.after) for g in given for c in g.changes]


def test_resuming_gives_exactly_what_came_after(story: Story) -> None:
    """From every place that a connector may have committed: nothing twice, nothing left out."""
    assert story.state is not None
    places = {given.position: given.offset for given in story.given if given.position >= story.acknowledged}
    chosen = [*sorted(places)[:: max(1, len(places) // 3)], max(places)]
    for position in dict.fromkeys(chosen):
        with closing(story.origin.source()) as source:
            source.connect()
            source.tables()
            assert source.verify(_at(story, places[position], position)) is None
            source.recall({})
            found = told(story.origin, follow(source, places[position], story.ends[-1]))
        _require_rest(story, found, position)
        assert not found or found[0].commit >= position


def _require_rest(story: Story, found: list[Given], position: int) -> None:
    """All that was told behind a position, and behind that what another test may have written since."""
    rest, given = _flat([given for given in story.given if given.position > position]), _flat(found)
    assert given[: len(rest)] == rest
    assert given[len(rest) :] == story.later[: len(given) - len(rest)]


def _at(story: Story, offset: Offset, commit: int) -> State:
    assert story.state is not None
    return story.state.next(offset=offset, commit=commit)


def test_what_is_acknowledged_may_go_and_no_more(story: Story) -> None:
    """From the place that was acknowledged on all is there; from an earlier one too, or it is refused as a gap."""
    assert story.state is not None
    middle, earlier = story.given[len(story.given) // 2], story.given[0]
    story.acknowledged = max(story.acknowledged, middle.position)
    with closing(story.origin.source()) as source:
        source.connect()
        source.verify(_at(story, middle.offset, middle.position))
        source.recall({})
        stream = source.stream(middle.offset)
        next(iter(stream))
        source.acknowledge(middle.offset)
        source.acknowledge(earlier.offset)  # never goes back
        cast("Generator[Any, None, None]", stream).close()
    for at in (middle, earlier):
        with closing(story.origin.source()) as source:
            source.connect()
            source.tables()
            try:
                source.verify(_at(story, at.offset, at.position))
            except GapError:
                assert at is earlier
                continue
            source.recall({})
            _require_rest(story, told(story.origin, follow(source, at.offset, story.ends[-1])), at.position)


def test_a_place_that_the_log_never_reached_is_refused(story: Story) -> None:
    """Another server, or one restored from before: to wait for it to get there would lose what is written meanwhile."""
    last = story.given[-1]
    with closing(story.origin.source()) as source:
        source.connect()
        source.tables()
        with pytest.raises(OperatorError) as caught:
            source.verify(_at(story, story.origin.beyond(last.offset), last.position + 1_000_000))
    assert caught.value.hint


def test_a_snapshotter_may_tell_how_large_the_tables_are(story: Story) -> None:
    """Of each that is there, without reading it; on the connection of windows, which are read behind it."""
    origin, last = story.origin, story.given[-1]
    with closing(origin.source()) as source, closing(origin.snapshotter()) as reader:
        source.connect()
        table, *_ = tables = source.tables()
        source.verify(_at(story, last.offset, last.position))
        if not isinstance(reader, Sizing):
            return  # its tables are read as they are asked for
        told = reader.sizes([*tables, replace(table, name="gone")])
        assert {each.qualified for each in tables} <= told.keys()
        assert all(isinstance(rows, int) and rows >= 0 for rows in told.values())
        assert reader.window(table, None, 1_000, key=table.key_order, first=False) is not None


def test_windows_agree_with_the_log(story: Story) -> None:
    """Rows read while the log is followed: what the view saw lies before its end, and what it did not is behind it.

    An open transaction is not seen; and a row has its last event's values, if the view saw that.
    """
    origin, last = story.origin, story.given[-1]
    with closing(origin.source()) as source, closing(origin.snapshotter()) as reader:
        source.connect()
        table, *_ = source.tables()
        source.verify(_at(story, last.offset, last.position))
        source.recall({})
        before = origin.begin()
        before.do(Put("a", 30, "open"))
        if origin.waits:
            before.commit()
        window = reader.window(table, None, 1_000, key=table.key_order, first=False)
        found = reader.rows(table, [origin.key("a", 30), origin.key("a", 999)], first=False)
        single = reader.row(table, origin.key("a", 30))
        if not origin.waits:
            before.commit()
        current = source.current()
        write(origin, Put("a", 31, "behind"))
        given = told(origin, follow(source, last.offset, source.current()))
    assert window is not None
    assert found is not None
    assert single is not None
    assert window.after is None
    value = b"open" if origin.waits else b"last"
    rows = {row[0]: row for row in map(origin.shown, window.rows)}
    assert rows.keys() == {key[0] for key in origin.rows("a")}
    assert (rows[b"30"], rows[b"31"]) == ((b"30", value), (b"31", b"first"))
    assert [origin.shown(row) for row in found.rows] == [(b"30", value)]
    assert origin.shown(single) == (b"30", value)
    story.later = _flat(given)
    (of_30,) = [g for g in given if any(c.after == (b"30", b"open") for c in g.changes)]
    (of_31,) = [g for g in given if any(c.after == (b"31", b"behind") for c in g.changes)]
    assert of_30.commit < current <= of_31.commit
    assert window.sees(of_30.xid) <= origin.waits
    assert not window.sees(of_31.xid)
    assert all(g.commit < window.end for g in given if window.sees(g.xid))


def test_closing_twice_is_safe(story: Story) -> None:
    """And so is closing what was never connected."""
    source, reader = story.origin.source(), story.origin.snapshotter()
    reader.close()
    source.close()
    source = story.origin.source()
    source.connect()
    for closed in (source, source, reader):
        closed.close()
