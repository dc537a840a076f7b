"""The JSON of etcd's gateway: requests, keys, events, what it refuses. Pure.

Bytes are base64, 64-bit numbers are strings, and what is zero or empty is left out:
https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/ and https://etcd.io/docs/v3.5/learning/api/
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64, crc32
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cdc.model.errors import ProtocolError

DELETE: Final = "DELETE"
_ALL: Final = b"\0"
"""As a key it is the first one, as a range's end it is behind all."""
_LAST_BYTE: Final = 0xFF


def written(value: bytes) -> str:
    """Write bytes as the gateway does."""
    return b2a_base64(value, newline=False).decode()


def first_of(prefix: bytes) -> bytes:
    """Return the key that a range of a prefix begins with."""
    return prefix or _ALL


def end_of(prefix: bytes) -> bytes:
    """Return the first key behind all that begin with a prefix."""
    kept = prefix.rstrip(bytes([_LAST_BYTE]))
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else _ALL


@dataclass(frozen=True, slots=True)
class Header:
    """Tells from which cluster an answer is, and from when."""

    cluster: str
    revision: int
    term: int

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Header:
        header = answer.get("header", {})
        return cls(f"{int(header.get('cluster_id', 0)):x}", number(header, "revision"), number(header, "raft_term"))


@dataclass(frozen=True, slots=True)
class KeyValue:
    """Is a key with its value at one revision."""

    key: bytes
    value: bytes
    version: int
    created: int
    modified: int
    lease: int

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> KeyValue:
        try:
            key, value = a2b_base64(given.get("key", "")), a2b_base64(given.get("value", ""))
        except ValueError as exc:
            raise ProtocolError(0, "a key or value that is no base64") from exc
        return cls(
            key, value, number(given, "version"), number(given, "create_revision"), number(given, "mod_revision"),
            number(given, "lease"),
        )  # fmt: skip

    @property
    def mark(self) -> str:
        """Return what tells this version of the key from those of another history."""
        return f"{self.created} {self.modified} {self.version} {crc32(self.value):08x}"


@dataclass(frozen=True, slots=True)
class Event:
    """Is what one revision did to one key."""

    now: KeyValue | None
    """None: the key was deleted, or its lease has expired."""
    key: bytes
    before: KeyValue | None
    """None also where etcd has compacted it away by now."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Event:
        now = KeyValue.of(given.get("kv", {}))
        before = KeyValue.of(given["prev_kv"]) if "prev_kv" in given else None
        return cls(None if given.get("type") == DELETE else now, now.key, before)


def number(given: Mapping[str, Any], name: str) -> int:
    """Read a 64-bit number. Raises ProtocolError."""
    try:
        return int(given.get(name, 0))
    except (TypeError, ValueError) as exc:
        raise ProtocolError(0, f"{name} is no number") from exc
