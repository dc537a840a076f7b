"""`cdc.decrypt`: values that `encrypt` of connector.yaml has encrypted, for who holds the master key."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

import orjson

from cdc.config import registry
from cdc.config.config import ConnectorConfig
from cdc.model.errors import ConfigError, OperatorError
from cdc.rules.encryption import DataKey, MasterKey, identifier_of, key_of

_LOOK_S: Final = 5.0
"""A key that was erased is forgotten so soon, where values are decrypted."""
_READY: Final = 10_000


class Gone(Enum):
    """The type of `ERASED`, so that type checkers can narrow it away."""

    ERASED = "erased"

    def __repr__(self) -> str:
        return "cdc.ERASED"


ERASED: Final = Gone.ERASED
"""A value whose key was erased: nobody can read it any more. Never None, which is a null of the source."""


class Decrypt:
    """Decrypts rows of one connector; for one thread at a time."""

    def __init__(self, config: ConnectorConfig) -> None:
        """Read the key topic. Raises ConfigError without `source.master_key`, OperatorError if it is another one."""
        if config.source.master_key is None:
            raise ConfigError(
                "cdc.decrypt: source.master_key is not in the file",
                hint='master_key: "${file:/run/secrets/master}", the text that the connector has',
            )
        self._config, self._master = config, MasterKey(config.source.master_key)
        self._reader = registry.part("sinks.topics.records.keys:KeyReader")(config.sink, config.name)
        self._descriptions = registry.part("sinks.topics.records.bulk:Descriptions")(config.sink)
        self._records: dict[bytes, bytes] = {}
        """Records of the key topic by subject."""
        self._subjects: dict[bytes, bytes] = {}
        """Subjects by the names of their keys."""
        self._ready = OrderedDict[bytes, DataKey]()
        self._erased: set[bytes] = set()
        """Names of keys that are not there: not more than `_READY`, for texts of others can name any."""
        self._columns: dict[str, frozenset[str]] = {}
        """The encrypted columns of the tables that are described."""
        self._plain: set[tuple[str, str, bytes]] = set()
        """Texts of columns that are not encrypted, which look as if they were."""
        self._looked_s = 0.0
        self._look()

    def __call__(self, table: str, row: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return a row of ``schema.table`` with its values decrypted, as the JSON of docs/values.md has them.

        A value whose key was erased is `cdc.ERASED`; what is not encrypted stays as it is. None stays None.
        """
        return None if row is None else {**row, **self._decrypted(table, row)}

    def event(self, table: str, event: bytes) -> bytes:
        """Decrypt `after` of an event to texts, as its columns are typed; a value whose key was erased is null."""
        read = orjson.loads(event)
        row = read["after"]
        if row is not None:
            found = self._decrypted(table, row)
            row |= found
            for name in (self._columns.get(table, frozenset()) | found.keys()) & row.keys():
                value = row[name]
                row[name] = None if value is ERASED or value is None else _text(value)
        return orjson.dumps({**read, "after": row})

    def _decrypted(self, table: str, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is encrypted of a row.

        A text that opens under its table and column is that, whatever is known of the table: it may have been described
        a moment ago. One that does not is, if its column is.
        """
        found: dict[str, Any] = {}
        for name, value in row.items():
            if isinstance(value, str) and (identifier := key_of(value.encode())) is not None:
                json = self._opened(identifier, value.encode(), table, name)
                if json is not None:
                    found[name] = orjson.loads(json)
                elif self._is_encrypted(table, name, identifier):
                    found[name] = ERASED
        return found

    def _is_encrypted(self, table: str, name: str, identifier: bytes) -> bool:
        """Whether a column is encrypted. Raises ConfigError for a table that nobody has described."""
        if name in self._columns.get(table, ()):
            return True
        if (table, name, identifier) in self._plain:
            return False
        self._look()  # a table is described in the Kafka transaction of its first event
        if name in self._columns.get(table, ()):
            return True
        if table not in self._columns:
            raise ConfigError(
                f"cdc.decrypt: {table} is no table that connector {self._config.name} has described",
                hint="the table's name as the source has it, with its schema: decrypt('public.customers', row)",
            )
        if len(self._plain) >= _READY:
            self._plain.clear()
        self._plain.add((table, name, identifier))
        return False

    def _opened(self, identifier: bytes, text: bytes, table: str, column: str) -> bytes | None:
        if time.monotonic() - self._looked_s > _LOOK_S:
            self._look()
        key = self._key(identifier)
        if key is None and identifier not in self._erased:
            self._look()
            key = self._key(identifier)
            if key is None:  # a key is in the same Kafka transaction as the first value under it: it was there
                if len(self._erased) >= _READY:
                    self._erased.clear()
                self._erased.add(identifier)
        return None if key is None else key.open(text, table, column)

    def _key(self, identifier: bytes) -> DataKey | None:
        found = self._ready.get(identifier)
        subject = self._subjects.get(identifier)
        if found is None and subject is not None and subject in self._records:
            found = self._master.key(subject, self._records[subject])
            if found is not None:
                self._ready[identifier] = found
                if len(self._ready) > _READY:
                    self._ready.popitem(last=False)
        return found if found is not None and found.id == identifier else None

    def _look(self) -> None:
        """Read what has come to the key topic, and how tables are described now."""
        self._looked_s = time.monotonic()
        again = self._reader.begins_again()
        if again is None:
            raise OperatorError(
                f"connector {self._config.name} has no key topic: it has not encrypted anything, or the topic was "
                "deleted, and all keys with it",
                hint="source.columns: encrypt in connector.yaml; cdc run CONNECTOR.yaml",
            )
        if again:  # with other keys, and maybe under another master key
            for known in (self._records, self._subjects, self._ready, self._erased):
                known.clear()
        for subject, record in self._reader.more():
            before = self._records.pop(subject, None)
            if before is not None:
                self._ready.pop(identifier_of(before), None)
            if record is None:
                continue
            if not self._master.has_wrapped(record):
                raise OperatorError(
                    "source.master_key is not the one that the keys in the key topic are wrapped with",
                    hint="the text that the connector has in source.master_key",
                )
            self._records[subject] = record
            self._subjects[identifier_of(record)] = subject
        described = self._descriptions.changed()
        if described is None:
            return
        columns: dict[str, set[str]] = {}
        for record in map(orjson.loads, described):
            named = columns.setdefault(f"{record['schema']}.{record['table']}", set())
            named |= {column["name"] for column in record["columns"] if column.get("encrypted")}
        self._columns = {table: frozenset(names) for table, names in columns.items()}


def _text(value: Any) -> str:  # noqa: ANN401 - JSON
    return value if isinstance(value, str) else orjson.dumps(value).decode()
