"""`encrypt`: what is refused, what its texts and its keys say to whom, and what the schema topic tells of them."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

import cdc
from cdc.capture.control import commands
from cdc.capture.control.commands import UserCommands
from cdc.capture.control.signals import Command, parse
from cdc.cli.repairing.erase import erase
from cdc.config import registry
from cdc.config.config import load_connector
from cdc.config.file_connector import load_any
from cdc.config.published.column_rules import ColumnRules
from cdc.config.published.encryption import EncryptRule
from cdc.config.source_config import SourceConfig
from cdc.encode.dead_letters import DeadLetters, PoisonRecord
from cdc.encode.envelope.table_encoder import TableEncoder
from cdc.encode.schema_record import schema_record
from cdc.model.change import UNCHANGED, Column, Kind, Op, Position, Table
from cdc.model.errors import ConfigError, OperatorError
from cdc.rules.capture_rules import CaptureRules
from cdc.rules.encrypted_rows import subject_of
from cdc.rules.encryption import MasterKey, key_of
from cdc.rules.keyring import Keyring
from sinks.erasure.keys import values_of
from sinks.erasure.places import Place
from sinks.erasure.shred import named
from tests.text_tables import text_table

MASTER = "m" * 32
PEOPLE = text_table("people", ["tenant", "id", "email", Column("n", "integer", Kind("int32"), lambda v: v)])
PEOPLE = replace(PEOPLE, key=("tenant", "id"))


def _rules(keys: Keyring | None = None, **rule: Any) -> CaptureRules:
    rules = {"s.people": ColumnRules(encrypt=EncryptRule(**{"columns": ("email", "n"), **rule}))}
    return CaptureRules(rules, {}, keys=keys or Keyring(MasterKey(MASTER)))


def _ring() -> tuple[Keyring, dict[bytes, bytes | None]]:
    ring, written = Keyring(MasterKey(MASTER)), dict[bytes, bytes | None]()
    ring.begin((), written.__setitem__)
    return ring, written


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"columns": ("id",)}, "id is a column of its key"),
        ({"columns": ("absent",)}, "has no column absent"),
        ({"by": "email"}, "encrypt.by is email, which is no column of its key"),
        ({"by": "absent"}, "encrypt.by is absent, which is no column of its key"),
    ],
)
def test_a_rule_that_does_not_fit_the_table_is_refused(rule: dict[str, Any], said: str) -> None:
    (refused,) = _rules(**rule).refusals([PEOPLE], first=True)
    assert said in refused.message


def test_no_repr_has_the_master_key(tmp_path: Path) -> None:
    """Nor may it be short, or missing, or of a connector that has no topics."""
    (tmp_path / "master").write_text(f"{MASTER}\n")
    source = {"type": "postgres", "url": "postgresql://h/d", "tables": ["s.people"]}
    rules = {"columns": {"s.people": {"encrypt": {"columns": ["email"]}}}}
    key = {"master_key": "${file:%s}" % (tmp_path / "master")}
    file = tmp_path / "c.yaml"

    def load(sink: dict[str, str], **more: Any) -> Any:
        file.write_text(orjson.dumps({"name": "c", "source": {**source, **more}, "sink": sink}).decode())
        return load_any(file)

    kafka = {"type": "kafka", "bootstrap_servers": "h:1"}
    config = load(kafka, **rules, **key)
    assert MASTER not in repr(config) + repr(CaptureRules.of_source(config.source).keys)
    assert "key" in load_connector(file).logs
    with pytest.raises(ConfigError, match="master_key is missing"):
        load(kafka, **rules)
    with pytest.raises(ConfigError, match="fewer than 32"):
        load(kafka, **rules, master_key="short")
    with pytest.raises(ConfigError, match="needs a topic for the keys"):
        load({"type": "jsonl", "path": str(tmp_path / "x.jsonl")}, **rules, **key)
    load(kafka)
    with pytest.raises(ConfigError, match=r"cdc\.decrypt: source\.master_key is not in the file"):
        cdc.decrypt(file)


def test_a_text_is_readable_by_its_key_in_its_place_alone() -> None:
    key, record = MasterKey(MASTER).new_key(b"subject")
    text = key.seal(b'"x"', "s.people", "email")
    assert text == key.seal(b'"x"', "s.people", "email") != key.seal(b'"x"', "s.people", "phone")
    again = MasterKey(MASTER).key(b"subject", record)
    assert again is not None
    assert (again.open(text, "s.people", "email"), key_of(text)) == (b'"x"', key.id)
    assert again.open(text, "s.people", "phone") is None
    assert again.open(text, "s.other", "email") is None
    assert again.open(key.seal(b"\xff", "t", "c", json=False), "t", "c") == '"\ufffd"'.encode()
    assert again.open(key.seal(b"", "t", "c"), "t", "c") == b""
    assert MasterKey(MASTER).key(b"another", record) is None
    assert MasterKey("another" * 8).key(b"subject", record) is None
    for damaged in (b"", b"enc1:", b"enc1:!", text[:30], text[:-8] + b"AAAAAAA=", b"x" + text):
        assert again.open(damaged, "s.people", "email") is None


def test_names_share_keys_by_subject() -> None:
    """Tables of one subject name; and a number is the same subject as its digits, as a person writes it."""
    ring, written = _ring()
    encoders = []
    for name in ("people", "orders"):
        table = replace(PEOPLE, name=name)
        rule = ColumnRules(encrypt=EncryptRule(columns=("email",), by="tenant", subject="tenant"))
        rules = CaptureRules({f"s.{name}": rule}, {}, keys=ring).of(f"s.{name}")
        assert rules is not None
        encoders.append(rules.published(table))
    for published in encoders:
        assert published.cut is not None
        (_, _, email, _) = published.cut((b"5", b"1", b"a", b"7"))
        assert isinstance(email, bytes)
    assert list(written) == [subject_of(ring, "tenant", values_of("5", "s.people", ["tenant"]))]
    assert values_of('"5"', "t", ["a"]) == ["5"]
    assert values_of('{"b": 2, "a": "x"}', "t", ["a", "b"]) == ["x", 2]
    assert subject_of(ring, "t", [5, "x"]) == subject_of(ring, "t", ["5", "x"]) != subject_of(ring, "t", ["5x", ""])
    for wrong in ("", "{}", '{"b": 2}', "[1]", '{"a": null, "b": 1}'):
        with pytest.raises(ConfigError, match="--subject: who a row of t is about is said by a, b"):
            values_of(wrong, "t", ["a", "b"])


def test_the_schema_topic_says_what_it_is() -> None:
    rules = _rules().of("s.people")
    assert rules is not None
    published = rules.published(PEOPLE)
    _, value = schema_record(
        PEOPLE, connector="c", source="postgresql", database="d", topic="p.s.people", version=1,
        position=Position(1, 1, 1), published=published,
    )  # fmt: skip
    columns = {column["name"]: column for column in orjson.loads(value)["columns"]}
    assert columns["n"] == {"name": "n", "type": "integer", "kind": "string", "encrypted": True}
    assert "encrypted" not in columns["id"]
    assert orjson.loads(value)["subject"] == {"name": "s.people", "by": ["tenant", "id"]}
    assert published.rules != "" != _rules(by="id").of("s.people").published(PEOPLE).rules != published.rules  # type: ignore[union-attr]


def test_subjects_that_rules_have_called_otherwise() -> None:
    """Keys of another name are erased with those of the one that is asked for; of other columns it is told."""

    def described(table: Table, **rule: str) -> dict[str, Any]:
        of = _rules(**rule).of(table.qualified)
        assert of is not None
        _, value = schema_record(
            table, connector="c", source="postgresql", database="d", topic="p", version=1, position=Position(1, 1, 1),
            published=of.published(table),
        )  # fmt: skip
        found: dict[str, Any] = orjson.loads(value)
        return found

    def told(*records: dict[str, Any], **rule: str) -> tuple[frozenset[str], frozenset[str]]:
        of = named(_rules(**rule), records, "person")
        assert of.tables == {"s.people": ["p"]}
        assert not of.plainly
        assert not of.apart
        return of.names, of.otherwise

    now, whole = described(PEOPLE, by="id", subject="person"), described(PEOPLE, subject="person")
    was = described(PEOPLE, by="id")
    assert told(now, by="id", subject="person") == (frozenset(), frozenset())
    assert told(was, now, by="id", subject="person") == ({"s.people"}, frozenset())
    assert told(whole, now, by="id", subject="person") == (frozenset(), {"s.people"})
    assert told(now, whole, subject="person") == (frozenset(), {"s.people"})
    del now["subject"]
    assert told(now, by="id", subject="person") == (frozenset(), {"s.people"})


def test_a_table_that_has_had_another_name_or_topic() -> None:
    """Its records say what keys its values are under, also without a rule: maybe another table's, before a RENAME."""
    old = replace(PEOPLE, name="old")

    def described(table: Table, topic: str, **rule: str) -> dict[str, Any]:
        rules = CaptureRules(
            {table.qualified: ColumnRules(encrypt=EncryptRule(columns=("email",), **rule))}, {},
            keys=Keyring(MasterKey(MASTER)),
        ).of(table.qualified)  # fmt: skip
        assert rules is not None
        _, value = schema_record(
            table, connector="c", source="postgresql", database="d", topic=topic, version=1,
            position=Position(1, 1, 1), published=rules.published(table),
        )  # fmt: skip
        found: dict[str, Any] = orjson.loads(value)
        return found

    records = [described(old, "p.old"), described(PEOPLE, "p.1"), described(PEOPLE, "p.2")]
    now = named(_rules(), records, "s.people")
    assert (now.tables, now.apart) == ({"s.people": ["p.1", "p.2"]}, {"s.old"})
    was = named(_rules(), records, "s.old")
    assert (was.tables, was.plainly, was.names, was.otherwise) == ({"s.old": ["p.old"]}, set(), set(), set())
    together = [described(old, "p.old", subject="person", by="id"), described(PEOPLE, "p", subject="person", by="id")]
    of_both = named(_rules(by="id", subject="person"), together, "person")
    assert (set(of_both.tables), of_both.apart) == ({"s.old", "s.people"}, set())


def test_only_a_key_that_is_there_is_erased() -> None:
    """A tombstone for nobody would make a misspelt subject pass for erased."""
    ring, written = _ring()
    for subject in (b"0" * 32, b"1" * 32):
        ring.key(subject, make=subject == b"0" * 32)
        ring.shred(subject)
    assert written == {b"0" * 32: None}


def test_a_subject_of_nobody_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command's end; one whose key is gone is."""
    verdicts = ["cannot be proved", "will be gone"]
    monkeypatch.setattr("cdc.cli.repairing.erase.load_connector", lambda _: None)
    monkeypatch.setattr(registry, "part", lambda _: lambda *_, **__: [Place("topic p.key-c", verdicts.pop(0), "", 1)])
    (tmp_path / "c.yaml").touch()
    ask = partial(
        erase.main, [str(tmp_path / "c.yaml"), "--table", "s.people", "--subject", "5", "--json"], standalone_mode=False
    )
    with pytest.raises(OperatorError, match=r"nobody has, or had, a key of this subject of s\.people"):
        ask()
    ask()


def test_a_row_that_cannot_be_written_is_a_dead_letter_of_texts() -> None:
    """Bytes that are no text are encrypted like others; a row whose key is not has no plain value either."""
    ring, _ = _ring()
    rules = _rules(ring, by="id").of("s.people")
    assert rules is not None
    published = rules.published(PEOPLE)
    encoder = TableEncoder(PEOPLE, connector="m", prefix="p", database="d", version=1, topic="t", published=published)
    row = encoder.cut((b"1", b"2", b"\xffsecret", b"7"))
    assert b"secret" not in encoder.row(row)
    bad = encoder.cut((b"1", b"\xff", b"secret", b"7"))
    assert bad[2:] == (UNCHANGED, UNCHANGED)
    letters: list[bytes] = []

    class Sink:
        def log(self, _name: str, key: bytes, value: bytes) -> None:
            letters.append(key + value)

    dead = DeadLetters(Sink(), {}, on=True)  # type: ignore[arg-type]
    for image in (row, bad):
        dead.add(encoder, PoisonRecord(Op.CREATE, None, image, "1.1.1", 1, 1), ValueError())
    assert b"c2VjcmV0" not in b"".join(letters)
    assert b'"columns":["id"]' in letters[1]


def test_a_command_names_nobody() -> None:
    command = Command(shred=b"ab12", by="me", asked_ms=5)
    assert parse(command.to_bytes("x")) == command
    assert command.asks
    assert command.act(b"x").about == {}
    assert parse(b'{"type": "erase-key", "data": {}}') == Command()


def test_a_key_that_is_to_be_erased_asks_for_the_end_of_the_log_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By triggers that looks through all unread changes, and they are many where the command has to wait."""
    monkeypatch.setattr(commands, "COMMANDS_S", 0.0)
    asked: list[int] = []
    erased: list[bytes] = []
    source: Any = SimpleNamespace(current=lambda: asked.append(1) or 10)
    command = Command(shred=b"subject").to_bytes("x")
    sink: Any = SimpleNamespace(commands=lambda: [(b"key", command)], answered=lambda _: None, log=lambda *_: None)
    rereads: Any = SimpleNamespace(look_for=lambda _: None)
    nothing: Any = None
    keys: Any = SimpleNamespace(shred=erased.append)
    user = UserCommands(
        sink, source, rereads, nothing, connector="c", captured=(), looked_for=set(), since=str, paused_ms=0,
        told=threading.Event(), keys=keys,
    )  # fmt: skip
    for _ in range(3):
        assert user.look(lambda: 9, lambda: None)
    assert (erased, len(asked)) == ([], 1)
    assert not user.look(lambda: 10, lambda: None)
    assert (erased, len(asked)) == ([b"subject"], 1)


def test_keys_of_another_master_are_refused_and_so_are_altered_ones() -> None:
    subject = b"0" * 32
    _, record = MasterKey("another" * 8).new_key(subject)
    with pytest.raises(OperatorError, match="master_key is not the one"):
        Keyring(MasterKey(MASTER)).begin([(subject, record)])
    key, record = MasterKey(MASTER).new_key(subject)
    ring = Keyring(MasterKey(MASTER))
    ring.begin([(b"1" * 32, record), (subject, record), (subject, None)])
    assert ring.key(subject, make=False) is None
    with pytest.raises(OperatorError, match="cannot be unwrapped"):
        ring.key(b"1" * 32, make=True)
    ring.begin([(subject, record)])
    found = ring.key(subject, make=True)
    assert found is not None
    assert found.id == key.id
    ring.close()


def test_it_is_of_the_source_alone() -> None:
    with pytest.raises(ConfigError, match="master_key is missing"):
        SourceConfig(
            type="postgres", url="postgresql://h/d", tables=("s.people",),
            columns={"s.people": ColumnRules(encrypt=EncryptRule(columns=("email",)))},
        )  # fmt: skip
