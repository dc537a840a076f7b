"""Encrypts values under a key of their subject: who erases that key has erased the values, wherever they are. Pure.

    master key (a secret file) ── wraps ──> data key of a subject (random) ── encrypts ──> values of that subject

    value        enc1:base64(12 bytes that name the data key, then AES-256-SIV of the value)
    record key   HMAC-SHA256 of the subject under a key derived from the master key, 16 bytes in hex
    record value {"id": base64, "key": base64(12 bytes of nonce, then AES-256-GCM of the data key), "master": hex}

What is encrypted is a letter and the value: ``j`` and its JSON, or ``b`` and the bytes that the source sent, where they
are not valid text. SIV (RFC 5297, https://www.rfc-editor.org/rfc/rfc5297) is deterministic: the same value of the same
column under the same key is the same text, whether a snapshot, the log or a later reading brings it. The table and the
column are authenticated with it, so a text that is moved to another column is no value there.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Sequence
from typing import Final

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV

BEGIN: Final = b"enc1:"
_ID_BYTES: Final = 12
_NONCE_BYTES: Final = 12
_KEY_BITS: Final = 512
"""AES-256-SIV takes two keys of 256 bits."""
_JSON, _BYTES = b"j", b"b"


class DataKey:
    """Encrypts and decrypts the values of one subject."""

    __slots__ = ("_siv", "id")

    def __init__(self, identifier: bytes, key: bytes) -> None:
        self.id: Final = identifier
        """Stands in each value: a subject whose key was erased and who is back has another."""
        self._siv: Final = AESSIV(key)

    def seal(self, value: bytes, table: str, column: str, *, json: bool = True) -> bytes:
        """Encrypt the JSON of a value, or without `json` its bytes."""
        made = self._siv.encrypt((_JSON if json else _BYTES) + value, [table.encode(), column.encode()])
        return BEGIN + base64.b64encode(self.id + made)

    def open(self, text: bytes, table: str, column: str) -> bytes | None:
        """Decrypt a value to its JSON; None: it is none of this key, table and column.

        Bytes that are not valid text become a JSON string with U+FFFD for each that is not.
        """
        made = _made(text)
        if made is None or made[:_ID_BYTES] != self.id:
            return None
        try:
            found = self._siv.decrypt(made[_ID_BYTES:], [table.encode(), column.encode()])
        except (InvalidTag, ValueError):  # also for fewer bytes than a tag has
            return None
        return found[1:] if found[:1] == _JSON else orjson.dumps(found[1:].decode(errors="replace"))


def key_of(text: bytes) -> bytes | None:
    """Return the name of the data key of an encrypted value; None for what is no such value."""
    made = _made(text)
    return None if made is None else made[:_ID_BYTES]


def _made(text: bytes) -> bytes | None:
    if not text.startswith(BEGIN):
        return None
    try:
        made = base64.b64decode(text[len(BEGIN) :], validate=True)
    except (binascii.Error, ValueError):
        return None
    return made if len(made) > _ID_BYTES else None


class MasterKey:
    """Wraps data keys, and names subjects so that nobody else can tell who they are."""

    __slots__ = ("_naming", "_wrapping", "fingerprint")

    def __init__(self, text: str) -> None:
        """`text` is long and random."""
        self._wrapping: Final = AESGCM(_derived(text, b"wrapping"))
        self._naming: Final = _derived(text, b"naming")
        self.fingerprint: Final = _derived(text, b"fingerprint").hex()[:16]
        """Tells one master key from another, and nothing else about it."""

    def subject(self, name: str, values: Sequence[bytes]) -> bytes:
        """Name a subject: `values` of columns that identify it, as `cdc.rules.changed_values.plain` has them."""
        said = b"".join(b"%d:%b" % (len(part), part) for part in (name.encode(), *values))
        return hmac.digest(self._naming, said, "sha256").hex()[:32].encode()

    def new_key(self, subject: bytes) -> tuple[DataKey, bytes]:
        """Make a data key for a subject; return also the record that keeps it, wrapped."""
        identifier, key, nonce = os.urandom(_ID_BYTES), AESSIV.generate_key(_KEY_BITS), os.urandom(_NONCE_BYTES)
        wrapped = nonce + self._wrapping.encrypt(nonce, key, subject + identifier)
        record = {
            "id": base64.b64encode(identifier).decode(),
            "key": base64.b64encode(wrapped).decode(),
            "master": self.fingerprint,
        }
        return DataKey(identifier, key), orjson.dumps(record)

    def has_wrapped(self, record: bytes) -> bool:
        """Whether a record names this master key as the one that has wrapped its data key."""
        try:
            return bool(orjson.loads(record)["master"] == self.fingerprint)
        except (ValueError, KeyError, TypeError):
            return False

    def key(self, subject: bytes, record: bytes) -> DataKey | None:
        """Unwrap a data key; None: the record is not one of this master key and subject."""
        try:
            of = orjson.loads(record)
            identifier, wrapped = base64.b64decode(of["id"]), base64.b64decode(of["key"])
            nonce, made = wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:]
            return DataKey(identifier, self._wrapping.decrypt(nonce, made, subject + identifier))
        except (InvalidTag, ValueError, KeyError, TypeError):
            return None


def identifier_of(record: bytes) -> bytes:
    """Return the name of a record's data key; empty where it has none."""
    try:
        return base64.b64decode(orjson.loads(record)["id"])
    except (ValueError, KeyError, TypeError):
        return b""


def _derived(text: str, use: bytes) -> bytes:
    """Derive a key for one use of a long random text, as HKDF's second step does (RFC 5869)."""
    return hmac.new(hashlib.sha256(text.encode()).digest(), b"cdc " + use + b"\x01", hashlib.sha256).digest()
