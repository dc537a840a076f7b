"""What is published under `encrypt`: whatever happens, the fold, decrypted, is SELECT; an erased key stays erased.

The source, its steps and the faults are those of `source.columns` (`test_capture_rules`).
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from cdc.capture.control.signals import Command
from cdc.capture.snapshots.published_rows import PublishedTables
from cdc.config.published.column_rules import ColumnRules
from cdc.config.published.encryption import EncryptRule
from cdc.model.change import Row
from cdc.model.errors import OperatorError
from cdc.rules.capture_rules import CaptureRules
from cdc.rules.encrypted_rows import subject_of
from cdc.rules.encryption import DataKey, MasterKey, key_of
from cdc.rules.flat import Formats
from cdc.rules.keyring import Keyring
from cdc.testing import POINTS, Faults, Killed, Outcome, Record
from tests.conftest import FULL
from tests.property.test_capture_rules import LONG, SECRET, STEPS, TABLE, WHERE, Step, World, vars_of

MASTER = MasterKey("m" * 32)
KEYS = "p.key-c"
COLUMNS = ("password", "email", "phone", "bio")


@dataclass(frozen=True)
class Encrypted:
    """Rules that encrypt, and what they leave of a row by hand, decrypted."""

    where: bool = False
    flat: bool = False
    master: str = "m" * 32

    @property
    def formats(self) -> Formats:
        return Formats("flat" if self.flat else "envelope")

    @property
    def made(self) -> CaptureRules:
        columns = {"s.t": ColumnRules(encrypt=EncryptRule(columns=COLUMNS))}
        return CaptureRules(columns, {"s.*": WHERE} if self.where else {}, keys=Keyring(MasterKey(self.master)))

    def published(self, row: Row) -> dict[str, object] | None:
        values: list[str | None] = [None if v is None else bytes(v).decode() for v in row]  # type: ignore[arg-type]
        *_, n = values
        if self.where and (values[2] in (None, "draft") or n is None or int(n) > 5):
            return None
        return {c.name: v for c, v in zip(TABLE.columns, values, strict=True)} | {"n": None if n is None else int(n)}


def _keys(world: World, master: MasterKey = MASTER) -> dict[bytes, DataKey]:
    newest = {r.key: r.value for r in world.kafka.committed(KEYS)}
    found = [master.key(subject, record) for subject, record in newest.items() if record is not None]
    return {key.id: key for key in found if key is not None}


def _decrypted(keys: dict[bytes, DataKey], row: dict[str, object]) -> dict[str, object]:
    """Decrypt a row; a value that nobody can read is …"""
    read = dict(row)
    for name in COLUMNS:
        if (value := row.get(name)) is None:
            continue
        text = str(value).encode()
        key = keys.get(key_of(text) or b"")
        json = None if key is None else key.open(text, "s.t", name)
        read[name] = ... if json is None else orjson.loads(json)
    return read


def _fold(world: World, master: MasterKey = MASTER) -> dict[str, dict[str, object]]:
    keys = _keys(world, master)
    return {key: _decrypted(keys, row) for key, row in world.fold().items()}


def _shred(world: World, key: int) -> bytes:
    subject = subject_of(Keyring(MASTER), "s.t", [str(key)])
    name = b"shred%d" % len(world.kafka.topics["p.signal-c"])
    command = Command(shred=subject).to_bytes(name.decode())
    world.kafka.topics["p.signal-c"].append(Record("p.signal-c", name, command, world.kafka.begin("cli")))
    world.kafka.end("cli", Outcome.COMMITTED)
    return subject


RUNS = st.tuples(st.builds(Encrypted, st.booleans(), st.booleans()), st.sampled_from([None, None, 0, 1, 2]))


@given(
    steps=st.lists(STEPS, max_size=24),
    seeded=st.integers(0, 6),
    pace=st.lists(st.integers(0, 2), max_size=20),
    runs=st.lists(RUNS, min_size=1, max_size=3),
    tells=st.booleans(),
    faults=st.lists(
        st.tuples(st.sampled_from(POINTS), st.integers(1, 4)), max_size=2, unique_by=lambda fault: fault[0]
    ),
)
@settings(max_examples=40 if FULL else 20)
def test_the_decrypted_fold_is_select(
    steps: list[Step],
    seeded: int,
    pace: list[int],
    runs: list[tuple[Encrypted, int | None]],
    *,
    tells: bool,
    faults: list[tuple[str, int]],
) -> None:
    """By snapshot, stream, key changes, left-out values, re-reads, killed at any step, with keys erased meanwhile.

    The same value of the same subject is the same text; nothing of it is readable in any topic.
    """
    world = World(steps, pace)
    world.tells, world.faults = tells, Faults(*faults, error=Killed)
    world.act(seeded)
    erased: set[bytes] = set()
    for rules, shred in runs:
        if shred is not None and KEYS in world.kafka.topics:
            before = {r.key: r.value for r in world.kafka.committed(KEYS)}.get(_shred(world, shred))
            erased |= {before} if before is not None else set()
        world.run(rules)
        world.act(2)
        world.run(rules, alone=True)
        expected = world.expected(rules)
        for key, row in _fold(world).items():  # what was not written since its key was erased is gone
            assert row == {name: ... if row[name] is ... else value for name, value in expected.pop(key).items()}
            assert shred is not None or ... not in row.values()
        assert not expected
        world.ask()
        world.run(rules, alone=True)
        assert _fold(world) == world.expected(rules)
    assert not erased & {r.value for r in {r.key: r for r in world.kafka.committed(KEYS)}.values()}
    keys, texts = _keys(world), dict[object, object]()
    for topic, records in world.kafka.topics.items():
        for record in records:
            assert SECRET not in record.key + (record.value or b""), topic
    for record in world.kafka.committed("p.s.t"):
        row = orjson.loads(record.value or b"{}")
        for name in COLUMNS:
            text = str((row.get("after") or row).get(name)).encode()
            if (key := keys.get(key_of(text) or b"")) is not None:
                assert texts.setdefault((key.id, name, key.open(text, "s.t", name)), text) == text
    reading = runs[-1][0].made
    assert reading.keys is not None
    reading.keys.begin([(r.key, r.value) for r in world.kafka.committed(KEYS)])
    with PublishedTables([TABLE], world.snapshotter(), prefix="p", rules=reading) as published:
        read = [orjson.loads(row.after or b"") for part in published.read("s.t") for row in part.rows]
    assert {row["id"]: row for row in read} == world.fold(), "verify compares what was published"
    event(f"{len(erased)} erased")


@given(steps=st.lists(STEPS, max_size=12), where=st.booleans())
@settings(max_examples=15)
def test_no_key_is_made_for_rows_that_are_not_published(steps: list[Step], *, where: bool) -> None:
    """Of old rows and of rows that the condition leaves out nobody keeps even whose they are."""
    rules = Encrypted(where=where)
    world = World([Step(**{**vars_of(step), "leave_out": False}) for step in steps], [])
    world.run(rules)
    world.act()
    world.run(rules)
    published = {
        subject_of(Keyring(MASTER), "s.t", [orjson.loads(r.key)["id"]])
        for r in world.kafka.committed("p.s.t")
        if r.value is not None and orjson.loads(r.value)["after"] is not None
    }
    assert {r.key for r in world.kafka.committed(KEYS)} == published


PUT = Step("put", 0, 0, "paid", 1, long=True, whole=False, leave_out=False)


@pytest.mark.parametrize("tells", [True, False])
def test_a_left_out_value_is_not_carried_from_an_erased_key_or_to_another_subject(
    caplog: pytest.LogCaptureFixture, *, tells: bool
) -> None:
    """The topic has a text that nobody could read in the new row: the value comes from the source."""
    left_out, moved, stays = (
        Step(what, key, 1, "open", 1, long=True, whole=False, leave_out=True)
        for what, key in (("put", 0), ("move", 0), ("put", 1))
    )
    world, rules = World([PUT, left_out, moved, stays, stays], []), Encrypted()
    world.tells = tells
    world.act(1)
    world.run(rules)
    _shred(world, 0)
    world.run(rules)
    assert _fold(world)["0"]["bio"] is ...
    for key, steps in (("0", 1), ("1", 3)):
        world.act(steps)
        world.run(rules)
        assert "read again" not in caplog.text
        assert _fold(world) == world.expected(rules)
        assert str(_fold(world)[key]["bio"]).endswith((LONG + SECRET + b"1").decode())


def test_what_the_source_had_when_a_key_was_to_be_erased_is_published_under_that_key() -> None:
    """A connector that lags would make a new key for a row that is deleted already, and keep it for ever."""
    gone = Step("delete", 0, 0, None, None, long=False, whole=False, leave_out=False)
    world, rules = World([PUT, PUT, gone], []), Encrypted()
    world.act(1)
    world.run(rules)
    world.act()
    subject = _shred(world, 0)
    world.run(rules)
    assert [r.value for r in world.kafka.committed(KEYS) if r.key == subject][1:] == [None]
    assert _fold(world) == {}


def test_keys_that_change_while_copies_are_compared() -> None:
    """A key is made, or erased and made again, behind the first look: what is looked at again is under the new one."""
    other = Step("put", 1, 0, "paid", 1, long=True, whole=False, leave_out=False)
    world, rules, reading = World([PUT, other, other], []), Encrypted(), Encrypted().made
    world.act(1)
    world.run(rules)
    assert reading.keys is not None
    known = [(r.key, r.value) for r in world.kafka.committed(KEYS)]
    reading.keys.begin(known, more=lambda: [(r.key, r.value) for r in world.kafka.committed(KEYS)])
    with PublishedTables([TABLE], world.snapshotter(), prefix="p", rules=reading) as published:

        def found() -> list[object]:
            return [orjson.loads(row.after or b"") for part in published.find("s.t", [(b"1",)]) for row in part.rows]

        world.act(1)
        assert found() != [world.fold().get("1")]
        world.run(rules)
        assert found() == [world.fold()["1"]]
        _shred(world, 1)
        world.run(rules)
        world.act(1)
        world.run(rules)
        assert found() == [world.fold()["1"]]


def test_another_master_key_is_refused_before_anything_is_written() -> None:
    """Who holds the one could not read what comes, or what was."""
    world = World([PUT, PUT], [])
    world.act(1)
    world.run(Encrypted())
    world.act(1)
    before = {topic: len(records) for topic, records in world.kafka.topics.items()}
    with pytest.raises(OperatorError, match="master_key is not the one"):
        world.run(Encrypted(master="another" * 8))
    assert {topic: len(records) for topic, records in world.kafka.topics.items()} == before
    world.run(Encrypted())
    assert _fold(world) == world.expected(Encrypted())


def test_keys_that_the_topic_has_lost_are_made_again_with_their_values() -> None:
    """Nobody could decrypt the rows: their tables are read again, which is all that can be done."""
    world, rules = World([PUT], []), Encrypted()
    world.act(1)
    world.run(rules)
    for master in ("m" * 32, "another" * 8, "m" * 32):  # so a master key is changed, too
        world.kafka.delete(KEYS)
        world.run(Encrypted(master=master))
        world.run(Encrypted(master=master))
        assert _fold(world, MasterKey(master)) == world.expected(rules)


@pytest.mark.parametrize(
    ("point", "times"), [("sink.write", 1), ("sink.write", 2), ("sink.commit", 3), ("sink.commit.answer", 3)]
)
def test_a_key_of_an_aborted_transaction_is_not_used_again(point: str, times: int) -> None:
    """The process goes on in a new session: what it knew is what the topic has, and no more."""
    world, rules = World([PUT], []), Encrypted()
    world.faults = Faults((point, times))
    world.act(1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("cdc.capture.pipeline.RETRY_FIRST_S", 0.0)
        world.run(rules)
    assert world.faults.fired
    assert _fold(world) == world.expected(rules)
