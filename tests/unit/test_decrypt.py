"""`cdc.decrypt` of a reader that runs for long: keys, tables and the key topic itself come and go meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

import cdc
from cdc.config import registry
from cdc.library import decrypt
from cdc.library.decrypt import Decrypt
from cdc.rules.encryption import DataKey, MasterKey

MASTER = "m" * 32
SUBJECT = b"0" * 32


class Topics:
    """The key topic, and what the schema topic has."""

    def __init__(self) -> None:
        self.keys: list[tuple[bytes, bytes | None]] | None = []
        self.made_again = False
        self.described: list[bytes] = []
        self._at = 0

    def begins_again(self) -> bool | None:
        again, self.made_again = self.made_again, False
        self._at = 0 if again else self._at
        return None if self.keys is None else again

    def more(self) -> Iterator[tuple[bytes, bytes | None]]:
        given, self._at = (self.keys or [])[self._at :], len(self.keys or [])
        yield from given

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
    parts: dict[str, Any] = {"KeyReader": lambda *_: found, "descriptions": lambda _: found.described}
    monkeypatch.setattr(registry, "part", lambda name: parts[name.partition(":")[2]])
    return found


def _decrypt(master: str = MASTER) -> Decrypt:
    config: Any = SimpleNamespace(name="c", source=SimpleNamespace(master_key=master), sink=None)
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
