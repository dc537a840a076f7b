"""Decides which version of a table an event is written with: the schema topic's newest, or the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import orjson

from cdc.encode.envelope import MessageEncoder, TableEncoder, schema_record
from cdc.model.change import Position, Table
from cdc.model.table_schema import Description, carried, rewritten, stale_reason

Publish: TypeAlias = Callable[[bytes, bytes], None]
Resnapshot: TypeAlias = Callable[[Table, str], None]
"""Requests an incremental snapshot of a table; with the reason, for the log."""


class SchemaVersions:
    """Keeps the encoders of tables, and publishes a table's description before the first event that needs it."""

    def __init__(self, published: Iterable[bytes], *, connector: str, source: str, prefix: str, database: str) -> None:
        self._connector, self._source, self._prefix, self._database = connector, source, prefix, database
        self.messages = MessageEncoder(connector=source, prefix=prefix, database=database)
        self._newest: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._described: dict[tuple[str, str], dict[int, Description]] = {}
        self._encoders: dict[int, TableEncoder] = {}
        self._carried: dict[tuple[str, str, int, int], Mapping[str, str]] = {}
        for value in published:
            self._note(orjson.loads(value))

    def _note(self, record: Mapping[str, Any]) -> None:
        name = (record["schema"], record["table"])
        if record["version"] > self._newest.get(name, {"version": 0})["version"]:
            self._newest[name] = record
        columns = tuple((column["name"], column["type"]) for column in record["columns"])
        described = Description(
            columns, tuple(record["key"]), tuple(record.get("marks", ())), bool(record.get("deferred_key"))
        )
        self._described.setdefault(name, {})[record["version"]] = described

    def described(self) -> Mapping[tuple[str, str], Sequence[Description]]:
        """All descriptions of each table, by schema and name, oldest first."""
        return {name: [of[version] for version in sorted(of)] for name, of in self._described.items()}

    def newest(self, table: Table) -> Description | None:
        """The newest description of a table of this name."""
        of = self._described.get((table.schema, table.name))
        return of[max(of)] if of else None

    def stale(self, table: Table) -> str | None:
        """Why the topic's rows are stale though no event says so; None where they are not.

        A source whose tables have no marks tells it in its log. Another key waits for its first event: until then the
        log may have events under the old one, which a reading that began before them would keep.
        """
        before = self.newest(table)
        if before is None or not table.marks or (before.key != table.key and not rewritten(before.marks, table.marks)):
            return None
        return stale_reason(before, table)

    def rewritten(self, table: Table) -> str | None:
        """The same if all rows may have been rewritten, so that the description must be published again."""
        before = self.newest(table)
        return stale_reason(before, table) if before is not None and rewritten(before.marks, table.marks) else None

    def carried(self, encoder: TableEncoder, version: int) -> Mapping[str, str]:
        """Columns of `version` whose values still hold where no event changed them: name then, name now."""
        table, now = encoder.table, encoder.version
        at = (table.schema, table.name, version, now)
        if at not in self._carried:
            of = self._described[table.schema, table.name]
            steps = range(version, now)
            known = version <= now and all(step in of and step + 1 in of for step in steps)
            names = {name: name for name, _ in of[version].columns} if known else {}
            for step in steps if known else ():
                kept = carried(of[step], of[step + 1])
                names = {then: kept[name] for then, name in names.items() if name in kept}
            self._carried[at] = names
        return self._carried[at]

    def known(self, table: Table) -> TableEncoder | None:
        """The encoder of a table met before. It is found by the object's identity, for speed."""
        return self._encoders.get(id(table))

    def taken(self) -> dict[tuple[str, str], int]:
        """Return how many events of each table and op were made since the last call; messages are of no table."""
        found: dict[tuple[str, str], int] = {}
        taken = [(encoder.table.qualified, encoder.taken()) for encoder in self._encoders.values()]
        for name, of in (*taken, ("", self.messages.taken())):
            for op, many in of.items():
                if many:
                    found[name, op] = found.get((name, op), 0) + many
        return found

    def number(self, table: Table) -> int:
        """The newest version's number of a table of this name; 0 before the first."""
        last = self._newest.get((table.schema, table.name))
        return int(last["version"]) if last else 0

    def add(
        self, table: Table, topic: str, position: Position, publish: Publish, resnapshot: Resnapshot
    ) -> TableEncoder:
        """Make the encoder of `table`; a new description goes to `publish`, ahead of the event that needs it.

        `resnapshot` is called if rows have changed without events since the last description.
        """
        last = self._newest.get((table.schema, table.name))
        version = last["version"] if last else 0
        key, value = self._record(table, topic, position, version + 1)
        new = orjson.loads(value)
        before = self.newest(table)
        same = last is not None and all(last.get(part) == new.get(part) for part in ("key", "columns", "deferred_key"))
        if not same or self.rewritten(table):
            version += 1
            publish(key, value)
            self._note(new)
            reason = stale_reason(before, table) if before is not None else None
            if reason is not None:
                resnapshot(table, reason)
        encoder = TableEncoder(
            table, connector=self._source, prefix=self._prefix, database=self._database, version=version, topic=topic
        )
        self._encoders[id(table)] = encoder  # which keeps the table, and so its id
        return encoder

    def _record(self, table: Table, topic: str, position: Position, version: int) -> tuple[bytes, bytes]:
        return schema_record(
            table, connector=self._connector, source=self._source, database=self._database, topic=topic,
            version=version, position=position,
        )  # fmt: skip
