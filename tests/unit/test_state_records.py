"""A state as records: a small position, and of the tables only what has changed; read back whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.model.errors import OperatorError
from cdc.model.state import Phase, State, checksum_of
from cdc.model.state_records import StateReader, StateWriter, table_key

SMALL: Final = 2_000
MANY: Final = 10_000

Record = tuple[bytes, bytes | None]


def written(writer: StateWriter, state: State) -> list[Record]:
    """What a commit adds to the topic."""
    tables, position = writer.records(state)
    return [*((table_key("shop", name), value) for name, value in tables), (b"shop", position)]


def reader(records: Iterable[Record]) -> StateReader:
    found = StateReader("shop")
    for key, value in records:
        found.hear(key, value)
    return found


def read(records: Iterable[Record]) -> State | None:
    return reader(records).state(where="topic t")


def size(records: Iterable[Record]) -> int:
    return sum(len(key) + len(value or b"") for key, value in records)


def large(phase: Phase) -> State:
    """Ten thousand tables, each with as much as PostgreSQL's ledger and a snapshot that is done have of it."""
    names = tuple(f"inventory.table_with_a_name_{number}" for number in range(MANY))
    done = {"done": True, "rows": 3, "estimate": 3, "order": [["id", True]], "ranges": [{"upto": None, "view": 0}]}
    reading = {"phase": "waiting", "since": "0000000001.0000000000016b3748.0000000000000001", "gap": True}
    return State(
        connector="shop",
        identity={"system_identifier": "7", "slot": "cdc_shop", "database": "shop", "timeline": "1"},
        phase=phase,
        epoch=1,
        offset={"lsn": "0/16B3748"},
        commit=2**40,
        tables=names,
        carried={name: f"{16384 + number} 1:2 700 " + "x" * 110 for number, name in enumerate(names)},
        unread=names if phase is Phase.SNAPSHOT else (),
        snapshot={"tables": dict.fromkeys(names, done), "views": {}} if phase is Phase.SNAPSHOT else {},
        reading=dict.fromkeys(names, reading),
        config={"source.slot": "cdc_shop"},
    )


@pytest.mark.parametrize("phase", [Phase.SNAPSHOT, Phase.STREAM])
def test_a_commit_that_changes_no_table_is_small(phase: Phase) -> None:
    """However many tables there are, from the second commit on, and after a restart from the first."""
    state, writer = large(phase), StateWriter(StateReader("shop"))
    records = written(writer, state)
    assert size(records) > 100 * MANY
    for _ in range(3):
        state = state.next(commit=state.commit + 8, carried=dict(state.carried), reading=dict(state.reading))
        more = written(writer, state)
        records += more
        assert size(more) <= SMALL, size(more)
    assert read(records) == state
    state = state.next(commit=state.commit + 8)
    assert size(written(StateWriter(reader(records)), state)) <= SMALL


def test_one_table_that_changes_is_one_record() -> None:
    """Also the first of those that wait to be read, when it is done: the others keep their turns."""
    state, writer = large(Phase.STREAM), StateWriter(StateReader("shop"))
    records = written(writer, state)
    first, *_, last = state.tables
    state = state.next(
        carried={**state.carried, last: "another"},
        reading={name: of for name, of in state.reading.items() if name != first},
    )
    more = written(writer, state)
    assert [key for key, _ in more] == [table_key("shop", first), table_key("shop", last), b"shop"]
    found = read([*records, *more])
    assert found == state
    assert list(found.reading) == list(state.reading)


def test_the_record_of_an_older_release_is_read_and_followed_by_new_ones() -> None:
    """It had all its tables itself, and no member `beside`."""
    state = large(Phase.STREAM)
    body = orjson.loads(state.to_bytes())
    del body["beside"], body["checksum"]
    old = _with_checksum({**body, "version": 1})
    records: list[Record] = [(b"shop", old)]
    assert read(records) == state
    records += written(StateWriter(reader(records)), state.next())
    assert read(records) == state.next()


def _with_checksum(body: dict[str, object]) -> bytes:
    return orjson.dumps({**body, "checksum": checksum_of(body)})


names = st.sampled_from(["s.a", "s.b", "s.ü", "t.a"])
states = st.builds(
    State,
    connector=st.just("shop"),
    identity=st.just({"slot": "s"}),
    phase=st.sampled_from(Phase),
    epoch=st.just(1),
    tables=st.lists(names, unique=True).map(tuple),
    carried=st.dictionaries(names, st.sampled_from(["", "1 a", "2 b"])),
    unread=st.lists(names, unique=True).map(tuple),
    snapshot=st.one_of(
        st.just({}), st.fixed_dictionaries({"views": st.just({}), "tables": st.dictionaries(names, st.just({"n": 1}))})
    ),
    reading=st.dictionaries(names, st.sampled_from([{"rows": 1}, {"rows": 2}])),
)


@given(st.lists(states, min_size=1, max_size=6), st.data())
def test_what_is_read_is_what_was_written(history: list[State], data: st.DataObject) -> None:
    """After each commit, by a reader of all and of what compaction leaves; a writer may begin again at any commit."""
    writer, records, follower = StateWriter(StateReader("shop")), list[Record](), StateReader("shop")
    for state in history:
        if data.draw(st.booleans()):
            writer = StateWriter(reader(records))
        more = written(writer, state)
        records += more
        *tables, (key, position) = more
        assert not any(follower.hear(*one) for one in tables)  # before the position nothing of them shows
        assert follower.hear(key, position)
        last = {key: at for at, (key, _) in enumerate(records)}
        compacted = [records[at] for at in sorted(last.values())]
        for found in (follower.state(where="t"), read(records), read(compacted)):
            assert found == state
            assert (found.tables, found.unread, list(found.reading)) == (
                state.tables, state.unread, list(state.reading),
            )  # fmt: skip


def test_a_table_that_is_missing_damaged_or_of_another_time_is_damage() -> None:
    """It is never read as a table that has nothing."""
    writer = StateWriter(StateReader("shop"))
    state = State(
        connector="shop", identity={}, phase=Phase.STREAM, epoch=1, tables=("s.a", "s.b"), carried={"s.a": "1"}
    )
    (_, a), (key, b), position = written(writer, state)
    *_, later = written(writer, state.next(carried={"s.a": "2"}))
    of_a = (table_key("shop", "s.a"), a)
    for records in (
        [of_a, position],
        [of_a, (key, (b or b"")[:-1]), position],
        [of_a, (key, b), later],
        [of_a, (key, b), (table_key("shop", "s.c"), b"{}"), position],
    ):
        with pytest.raises(OperatorError, match="topic t: the position record is damaged"):
            read(records)
    assert read([of_a, (key, b), position]) == state
