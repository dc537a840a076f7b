"""`cdc.decrypt` of a reader that runs for long: keys, tables and the key topic itself come and go meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

import cdc
from cdc.capture.snapshots.published_rows import keys_since
from cdc.config import registry
from cdc.config.kafka_config import KafkaConfig
from cdc.library import decrypt
from cdc.library.decrypt import Decrypt
from cdc.model.ledger import TopicFacts
from cdc.rules.encryption import DataKey, MasterKey
from cdc.rules.keyring import Keyring
from sinks.topics.records import bulk, keys

MASTER = "m" * 32
SUBJECT = b"0" * 32
SINK = KafkaConfig(bootstrap_servers="x:1", topic_prefix="p")


class Topics:
    """The key topic, and what the schema topic has."""

    def __init__(self) -> None:
        self.keys: list[tuple[bytes, bytes | None]] | None = []
        self.made_again = False
        self.described: list[bytes] = []
        self.reads = 0
        self._at = 0

    def begins_again(self) -> bool | None:
        again, self.made_again = self.made_again, False
        self._at = 0 if again else self._at
        return None if self.keys is None else again

    def more(self) -> Iterator[tuple[bytes, bytes | None]]:
        given, self._at = (self.keys or [])[self._at :], len(self.keys or [])
        yield from given

    def descriptions(self) -> list[bytes]:
        self.reads += 1
        return self.described

    def describe(self, table: str, **columns: bool) -> None:
        named = [{"name": name, **({"encrypted": True} if of else {})} for name, of in columns.items()]
        self.described.append(orjson.dumps({"schema": "s", "table": table, "columns": named}))

    def make_key(self, master: str = MASTER) -> DataKey:
        key, record = MasterKey(master).new_key(SUBJECT)
        assert self.keys is not None
        self.keys.append((SUBJECT, record))
        return key


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> Topics:
    found = Topics()
    parts: dict[str, Any] = {"KeyReader": lambda *_: found, "Descriptions": bulk.Descriptions}
    monkeypatch.setattr(registry, "part", lambda name: parts[name.partition(":")[2]])
    facts = SimpleNamespace(facts=lambda _: {"p.schema": TopicFacts(partitions=1, ends=(len(found.described),))})
    monkeypatch.setattr(bulk, "Topics", lambda *_: nullcontext(facts))
    monkeypatch.setattr(bulk, "descriptions", lambda _: found.descriptions())
    return found


def _decrypt(master: str = MASTER) -> Decrypt:
    config: Any = SimpleNamespace(name="c", source=SimpleNamespace(master_key=master), sink=SINK)
    return Decrypt(config)


def _row(key: DataKey, table: str = "s.a", **more: object) -> dict[str, object]:
    return {"id": 1, "email": key.seal(b'"me"', table, "email").decode(), **more}


def test_a_table_that_is_encrypted_later(topics: Topics) -> None:
    """Its values are decrypted from the first row on, and those whose key is erased are told."""
    topics.describe("a", id=False, email=True)
    key, found = topics.make_key(), _decrypt()
    topics.describe("b", id=False, email=True)
    assert found("s.b", _row(key, "s.b")) == {"id": 1, "email": "me"}
    assert orjson.loads(found.event("s.b", orjson.dumps({"after": _row(key, "s.b")})))["after"]["email"] == "me"
    topics.describe("c", id=False, email=True)
    unknown, _ = MasterKey(MASTER).new_key(SUBJECT)
    assert found("s.c", _row(unknown, "s.c")) == {"id": 1, "email": cdc.ERASED}
    assert orjson.loads(found.event("s.c", orjson.dumps({"after": _row(unknown, "s.c")})))["after"]["email"] is None


def test_a_text_that_only_looks_so_stays(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a column that is not encrypted; the schema topic is read for it once."""
    topics.describe("a", id=False, email=True, note=False)
    key, found = topics.make_key(), _decrypt()
    row = _row(key, note=_row(key)["email"])
    assert found("s.a", row) == {"id": 1, "email": "me", "note": row["note"]}
    monkeypatch.setattr(found, "_look", None)
    assert found("s.a", row) == {"id": 1, "email": "me", "note": row["note"]}
    assert found("s.a", None) is None


def test_many_texts_that_only_look_so_do_not_read_the_schema_topic_each(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may write a column that is not encrypted would stop every reader; nor does memory grow with them."""
    monkeypatch.setattr(decrypt, "_READY", 8)
    topics.describe("a", id=False, email=True, note=False)
    key, found = topics.make_key(), _decrypt()
    notes = [_row(MasterKey(MASTER).new_key(SUBJECT)[0])["email"] for _ in range(30)]
    assert [found("s.a", _row(key, note=note)) for note in notes] == [
        {"id": 1, "email": "me", "note": note} for note in notes
    ]
    assert topics.reads == 1
    assert len(found._erased) <= 8
    topics.describe("a", id=False, email=True, note=True)
    assert found("s.a", _row(key, note=_row(MasterKey(MASTER).new_key(SUBJECT)[0])["email"])) == {
        "id": 1, "email": "me", "note": cdc.ERASED,
    }  # fmt: skip
    assert topics.reads == 2


@pytest.mark.parametrize(
    ("now", "idle_s", "again"),
    [
        (TopicFacts(identity="a", partitions=1), 10, False),
        (TopicFacts(identity="b", partitions=1), 10, True),
        (TopicFacts(identity="a", partitions=1, forgotten=7), 10, True),
        (TopicFacts(identity="a", partitions=1), 90_000, True),
        (None, 10, None),
    ],
    ids=["as it was", "made again", "records deleted", "away longer than a tombstone stays", "gone"],
)
def test_when_all_keys_are_read_again(
    monkeypatch: pytest.MonkeyPatch, now: TopicFacts | None, idle_s: float, again: bool | None
) -> None:
    """Else a key that was erased is kept, for its tombstone was not seen."""
    found: list[TopicFacts | None] = [TopicFacts(identity="a", partitions=1), now]
    at_s = [1e9, 1e9 + idle_s]
    facts = SimpleNamespace(facts=lambda names: {name: of for name in names if (of := found.pop(0)) is not None})
    monkeypatch.setattr(keys, "Topics", lambda *_: nullcontext(facts))
    monkeypatch.setattr(keys.time, "time", lambda: at_s.pop(0))
    reader = keys.KeyReader(SINK, "c")
    assert reader.begins_again() is False
    assert reader.begins_again() is again


def test_a_comparison_whose_key_topic_is_made_again(topics: Topics) -> None:
    """`cdc verify` would compare with keys of before, and find every row wrong."""
    ring = Keyring(MasterKey(MASTER))
    topics.make_key()
    ring.begin((), more=partial(keys_since, ring, topics))
    ring.refresh()
    assert ring.key(SUBJECT, make=False) is not None
    topics.keys, topics.made_again = [], True
    key = topics.make_key()
    ring.refresh()
    assert (found := ring.key(SUBJECT, make=False)) is not None
    assert found.id == key.id
    topics.keys = None
    ring.refresh()
    assert ring.key(SUBJECT, make=False) is None
    ring.close()


def test_a_table_that_nobody_has_described(topics: Topics) -> None:
    """The texts would pass for its values."""
    topics.describe("a", id=False, email=True)
    key, found = topics.make_key(), _decrypt()
    with pytest.raises(cdc.ConfigError, match="customers is no table that connector c has described"):
        found("customers", _row(key))


def test_a_key_topic_that_is_made_again(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys are read from its beginning; without one, and under another master key, nothing passes for erased."""
    monkeypatch.setattr(decrypt, "_LOOK_S", 0.0)
    topics.describe("a", id=False, email=True)
    before, found = topics.make_key(), _decrypt()
    assert found("s.a", _row(before))["email"] == "me"  # type: ignore[index]
    topics.keys = None
    with pytest.raises(cdc.OperatorError, match="connector c has no key topic"):
        found("s.a", _row(before))
    topics.keys, topics.made_again = [], True
    key = topics.make_key()
    assert found("s.a", _row(key))["email"] == "me"  # type: ignore[index]
    assert found("s.a", _row(before))["email"] is cdc.ERASED  # type: ignore[index]
    topics.keys, topics.made_again = [], True
    other = topics.make_key("another" * 8)
    with pytest.raises(cdc.OperatorError, match="master_key is not the one"):
        found("s.a", _row(other))
