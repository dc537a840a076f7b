"""The position record: read back whole, or an operator's step. Never a fresh start."""

from __future__ import annotations

import orjson
import pytest

from cdc.capture.snapshots.incremental_progress import IncrementalProgress
from cdc.model.errors import OperatorError
from cdc.model.state import UNLOGGED, VERSION, Phase, State, checksum_of
from cdc.model.state_records import StateReader, StateWriter, table_key

STATE = State(
    connector="shop",
    identity={"system_identifier": "7", "slot": "cdc_shop"},
    phase=Phase.SNAPSHOT,
    epoch=1,
    offset={"lsn": "0/16B3748"},
    commit=2**63,
    tables=("public.orders", "public.ünï"),
    snapshot={"tables": {"public.orders": {"rows": 2, "done": False}}, "views": {}},
    config={"source.slot": "cdc_shop"},
    sequence=41,
)


def test_a_record_reads_back_equal() -> None:
    """from_bytes∘to_bytes is the identity."""
    assert State.from_bytes(STATE.to_bytes(), where="topic t") == STATE


def test_a_pause_is_in_the_record_and_only_then_is_it_of_a_new_version() -> None:
    """A release that knows no pause refuses to follow, by its version, and reads what is not paused."""
    paused = STATE.next(paused_ms=1_795_212_301_102)
    assert State.from_bytes(paused.to_bytes(), where="topic t") == paused
    assert orjson.loads(paused.to_bytes())["version"] == 3
    going_on = paused.next(paused_ms=0).to_bytes()
    assert orjson.loads(going_on)["version"] == 2
    assert "paused_ms" not in orjson.loads(going_on)


@pytest.mark.parametrize(
    "owes",
    [
        {"offset": {**STATE.offset, UNLOGGED: 1}},
        {"reading": {"public.orders": IncrementalProgress("1.2.3", emptied=True).to_json()}},
    ],
)
def test_what_older_releases_pass_over_is_of_a_version_that_they_refuse(owes: dict[str, object]) -> None:
    """They would go on behind a gap of the log, or keep rows that are gone. What is done is for them again."""
    owing = STATE.next(**owes)
    writer = StateWriter(StateReader("shop"))
    tables, record = writer.records(owing)
    assert orjson.loads(owing.to_bytes())["version"] == orjson.loads(record)["version"] == VERSION
    reader = StateReader("shop")
    for name, value in tables:
        reader.hear(table_key("shop", name), value)
    reader.hear(b"shop", record)
    assert reader.state(where="topic t") == owing
    assert orjson.loads(writer.records(owing.next(offset=STATE.offset, reading={}))[1])["version"] == 2


def test_each_record_counts_one_more() -> None:
    """`next` changes what it is told, and the sequence."""
    later = STATE.next(phase=Phase.STREAM, snapshot={})
    assert (later.sequence, later.phase, later.snapshot, later.offset) == (42, Phase.STREAM, {}, STATE.offset)


def test_a_record_with_any_byte_changed_is_damaged_or_equal() -> None:
    """One flipped bit anywhere never gives another position."""
    record = STATE.to_bytes()
    for at in range(len(record)):
        for bit in (1, 32):
            changed = bytearray(record)
            changed[at] ^= bit
            try:
                read = State.from_bytes(bytes(changed), where="topic t")
            except OperatorError:
                continue
            assert read == STATE, f"byte {at}"


@pytest.mark.parametrize("cut", [b"", b"{}", b"[]", b"null", b"7", b'"x"', STATE.to_bytes()[:-1], b"\xff"])
def test_a_record_that_is_not_one_stops_with_what_to_do(cut: bytes) -> None:
    """The message says where it stands, the hint what to do."""
    with pytest.raises(OperatorError, match="topic t: the position record is damaged") as caught:
        State.from_bytes(cut, where="topic t")
    assert "new connector name" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "change",
    [{"phase": "resting"}, {"tables": None}, {"extra": 1}, {"checksum": None}, {"epoch": 2}, {"version": "1"}],
)
def test_a_record_with_a_field_changed_is_damaged(change: dict[str, object]) -> None:
    """The checksum covers every field."""
    body = {**orjson.loads(STATE.to_bytes()), **change}
    with pytest.raises(OperatorError, match="damaged"):
        State.from_bytes(orjson.dumps(body), where="topic t")


def test_a_field_missing_is_damage_even_with_a_checksum_that_fits() -> None:
    """A record is all of it."""
    body = orjson.loads(STATE.to_bytes())
    del body["checksum"], body["epoch"]
    with pytest.raises(OperatorError, match="damaged"):
        State.from_bytes(orjson.dumps({**body, "checksum": checksum_of(body)}), where="topic t")


def test_a_newer_releases_record_is_not_guessed_at() -> None:
    """Whatever else it holds, the version decides, and the message says it."""
    record = orjson.dumps({"version": VERSION + 1, "checksum": "of another kind", "position": "elsewhere"})
    with pytest.raises(OperatorError, match=rf"newer release \(record version {VERSION + 1}\)"):
        State.from_bytes(record, where="topic t")


def test_what_a_newer_release_has_added_is_no_damage() -> None:
    """Whole as it is, it asks for that release, and for no new snapshot: of the position, a table, and its reading."""
    body = orjson.loads(STATE.to_bytes())
    del body["checksum"]
    body["colour"] = "red"
    with pytest.raises(OperatorError, match="topic t: the position was written by a newer release") as caught:
        State.from_bytes(orjson.dumps({**body, "checksum": checksum_of(body)}), where="topic t")
    assert "run that release" in (caught.value.hint or "")
    tables = StateReader("shop")
    tables.hear(table_key("shop", "public.orders"), b'{"table":1,"colour":"red"}')
    tables.hear(b"shop", None)
    with pytest.raises(OperatorError, match=r"public\.orders: .* newer release \(with colour\)"):
        StateWriter(tables)
    with pytest.raises(OperatorError, match=r"newer release \(with colour\)"):
        IncrementalProgress.from_json({**IncrementalProgress("1.2.3").to_json(), "colour": "red"})
