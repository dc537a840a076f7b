"""Which version of a table an event is written with: the schema topic's newest, or the next one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import orjson

from cdc.change import Position, Table
from cdc.envelope import TableEncoder, schema_record
from cdc.errors import OperatorError

log = logging.getLogger("cdc")

Publish = Callable[[bytes, bytes], None]


class Versions:
    """Encoders of the tables at hand; publishes a table's description before the first event that needs it."""

    def __init__(self, published: Iterable[bytes], *, connector: str, source: str, prefix: str, database: str) -> None:
        self._connector, self._source, self._prefix, self._database = connector, source, prefix, database
        self._newest: dict[tuple[str, str], tuple[int, tuple[list[str], object] | None]] = {}
        self._encoders: dict[int, TableEncoder] = {}
        for value in published:
            record = orjson.loads(value)
            name = (record["schema"], record["table"])
            if record["version"] > self._newest.get(name, (0, None))[0]:
                self._newest[name] = (record["version"], (record["key"], record["columns"]))

    def known(self, table: Table) -> TableEncoder | None:
        """The encoder of a table met before: this very object, for speed."""
        return self._encoders.get(id(table))

    def add(self, table: Table, topic: str, position: Position, publish: Publish) -> TableEncoder:
        """The encoder of `table`; a description not yet published goes to `publish` first, for the event there.

        Raises OperatorError for a table whose records have another key.
        """
        name = (table.schema, table.name)
        version, content = self._newest.get(name, (0, None))

        def described(at: int) -> tuple[bytes, bytes]:
            return schema_record(
                table, connector=self._connector, source=self._source, database=self._database, topic=topic,
                version=at, position=position,
            )  # fmt: skip

        record = orjson.loads(described(version)[1])
        now = (record["key"], record["columns"])
        if content is not None and content[0] != now[0]:
            raise OperatorError(
                f"key changed: table {table.qualified} has the key ({', '.join(now[0])}), its records in {topic} have "
                f"({', '.join(content[0])}): rows would keep their old records for ever",
                hint="start over under a new connector name and sink.topic_prefix (a fresh snapshot)",
            )
        if now != content:
            _tell_of_rewrites(table, content, position)
            version += 1
            publish(*described(version))
            self._newest[name] = (version, now)
        encoder = TableEncoder(
            table, connector=self._source, prefix=self._prefix, database=self._database, version=version, topic=topic
        )
        self._encoders[id(table)] = encoder  # which keeps the table, and so its id
        return encoder


def _tell_of_rewrites(table: Table, before: tuple[list[str], object] | None, position: Position) -> None:
    """A column of another type may have been rewritten, and no source sends events for what DDL rewrites."""
    columns = before[1] if before is not None and isinstance(before[1], list) else []
    types = {column["name"]: column["type"] for column in columns}
    for column in table.columns:
        was = types.get(column.name, column.type)
        if was != column.type:
            log.warning(
                "table %s, at %s: column %s is %s, it was %s: if that change rewrote values, no events came for them, "
                "and rows not written since keep the old ones in the topic; UPDATE them to send them again",
                table.qualified, position.text, column.name, column.type, was,
            )  # fmt: skip
