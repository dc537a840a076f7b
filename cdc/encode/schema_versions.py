"""Decides which version of a table an event is written with: the schema topic's newest, or the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import orjson

from cdc.encode.envelope.message_encoder import MessageEncoder
from cdc.encode.envelope.table_encoder import TableEncoder
from cdc.encode.schema_record import kind_of, schema_record
from cdc.model.change import Column, Kind, Position, Table
from cdc.model.errors import OperatorError, raise_first
from cdc.model.table_schema import Description, carried, rewritten, stale_reason, told
from cdc.model.tended import await_tended
from cdc.model.wire import Wire, Wires
from cdc.rules.capture_rules import (
    CHANGED,
    NO_RULES,
    CaptureRules,
    Published,
    TableRules,
    refuse_lent,
    refuse_renamed,
    refuse_strange,
    refuse_unknown,
    stand_in,
)
from cdc.rules.changed_values import without_labels
from cdc.rules.flat import CHANGED as FORMAT_CHANGED
from cdc.rules.flat import ENVELOPES, Formats
from cdc.rules.routes import NO_ROUTES, Routes

T = TypeVar("T")
Publish: TypeAlias = Callable[[bytes, bytes], None]
KEY_FORM: Final = "the schema of its key is another, and so are the keys of its records"
VALUE_FORM: Final = (
    "the registry has another id for its schema: what is written with the old one may be readable to nobody"
)
_FORMS: Final = ("key_form", "value_form")
_ROUTED: Final = ("topic", "routed", "key_table")
_COMPARED: Final = (*_ROUTED, "key", "columns", "deferred_key", "rules", "left_out", "format", *_FORMS, "numbers")
Resnapshot: TypeAlias = Callable[[Table, str], None]
"""Requests an incremental snapshot of a table; with the reason, for the log."""


class KeptNumbers:
    """What the schema topic has of numbers that the fields of tables have for good: see `cdc.model.wire`."""

    def __init__(self, published: Iterable[bytes] = ()) -> None:
        self._newest: dict[tuple[str, str], tuple[int, Mapping[str, Any]]] = {}
        for value in published:
            self.note(orjson.loads(value))

    def note(self, record: Mapping[str, Any]) -> None:
        name, version = (record["schema"], record["table"]), record["version"]
        if "numbers" in record and version > self._newest.get(name, (0, {}))[0]:
            self._newest[name] = version, record["numbers"]

    def of(self, table: Table) -> Mapping[str, Any] | None:
        """Return the newest, also where later versions have another format."""
        found = self._newest.get((table.schema, table.name))
        return None if found is None else found[1]


def newest_of(published: Iterable[bytes]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return the newest of the schema topic's records of each table, by schema and name."""
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for record in map(orjson.loads, published):
        name = (record["schema"], record["table"])
        if record["version"] > found.get(name, {"version": 0})["version"]:
            found[name] = record
    return found


def is_described(table: Table, newest: Mapping[str, Any] | None) -> bool:
    """Whether a table is as its newest description says, or has none."""
    return newest is None or (
        [(column["name"], column["type"]) for column in newest["columns"]] == [(c.name, c.type) for c in table.columns]
        and tuple(newest["key"]) == table.key
    )


def _rules_of(record: Mapping[str, Any]) -> str:
    """What `Description.rules` is of a record: the rules' fingerprint, and the format where it is flat."""
    return f"{record.get('rules', '')} {record.get('format', '')}".rstrip()


class SchemaVersions:
    """Keeps the encoders of tables, and publishes a table's description before the first event that needs it."""

    def __init__(
        self,
        published: Iterable[bytes],
        *,
        connector: str,
        source: str,
        prefix: str,
        database: str,
        rules: CaptureRules = NO_RULES,
        formats: Formats = ENVELOPES,
        wires: Wires | None = None,
        routes: Routes = NO_ROUTES,
        tend: Callable[[], None] = lambda: None,
        tables: Sequence[Table] = (),
    ) -> None:
        """`published` are the schema topic's records, `tables` the captured ones as they are now.

        Raises OperatorError for a rule that names a column which is not there and never was.
        """
        self._rules, self._formats, self._wires, self._tend = rules, formats, wires, tend
        self._routes = routes
        self._now = {table.qualified: table for table in tables}
        self._left_out: dict[tuple[str, str, int], Sequence[tuple[int, str, str]]] = {}
        self._connector, self._source, self._prefix, self._database = connector, source, prefix, database
        self.messages = MessageEncoder(connector=source, prefix=prefix, database=database)
        self._newest: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._described: dict[tuple[str, str], dict[int, Description]] = {}
        self._encoders: dict[int, TableEncoder] = {}
        self._last: dict[str, TableEncoder] = {}
        self._numbers = KeptNumbers()
        self._carried: dict[tuple[object, str, str, int, int], Mapping[str, str]] = {}
        for value in published:
            self._note(orjson.loads(value))
        raise_first(self.refusals(tables))

    def refusals(self, tables: Iterable[Table]) -> Iterator[OperatorError]:
        """Give why tables as they are now cannot have their rules, by what was said of them before."""
        for table in tables:
            try:
                of = self._rules.of(table.qualified)
                if of is not None:
                    refuse_unknown(of, table, partial(self._was_known, table))
                    if (table.schema, table.name) in self._described:
                        refuse_renamed(of, table, partial(self._was_known, table))
                        self._refuse_lent(of, table)
            except OperatorError as exc:
                yield exc

    def _note(self, record: Mapping[str, Any]) -> None:
        name = (record["schema"], record["table"])
        if record["version"] > self._newest.get(name, {"version": 0})["version"]:
            self._newest[name] = record
        self._numbers.note(record)
        columns = tuple((column["name"], column["type"]) for column in record["columns"])
        described = Description(
            columns,
            tuple(record["key"]),
            tuple(record.get("marks", ())),
            bool(record.get("deferred_key")),
            _rules_of(record),
        )
        self._described.setdefault(name, {})[record["version"]] = described
        if "left_out" in record:
            self._left_out[*name, record["version"]] = [(at, alias, type_) for at, alias, type_ in record["left_out"]]

    def described(self) -> Mapping[tuple[str, str], Sequence[Description]]:
        """All descriptions of each table as the source had it, by schema and name, oldest first."""
        return {
            name: [self._whole(*name, version, of[version]) for version in sorted(of)]
            for name, of in self._described.items()
        }

    def _whole(self, schema: str, name: str, version: int, described: Description) -> Description:
        """Describe a table with the columns that are not published.

        The name of one that is gone is not known; of a table that is gone those are that its rules name.
        """
        left_out = self._left_out.get((schema, name, version), ())
        now = self._now.get(f"{schema}.{name}")
        there = {c.name: c for c in now.columns} if now is not None else {}
        named = [c for rules in self._rules.each(f"{schema}.{name}") for c in rules.named] if now is None else there
        names = {stand_in(f"{schema}.{name}", column): column for column in named}
        columns = list(described.columns)
        for at, alias, type_ in left_out:
            columns.insert(at, (names.get(alias, alias), type_))
        columns = [
            (column, there[column].type if column in there and without_labels(there[column].type) == type_ else type_)
            for column, type_ in columns
        ]
        return replace(described, columns=tuple(columns), rules="")

    def _was_known(self, table: Table, column: str) -> bool:
        """Whether an earlier description of a table had a column, published or not."""
        at = (table.schema, table.name)
        alias = stand_in(table.qualified, column)
        return any(column in dict(of.columns) for of in self._described.get(at, {}).values()) or any(
            alias == left for (*of, _), items in self._left_out.items() if tuple(of) == at for _, left, _ in items
        )

    def _changed(self, before: Description | None, table: Table, published: Published | None) -> str | None:
        """Why the topic's rows are not as the file says, though they are the source's; None where they are."""
        now = {
            "rules": published.rules if published is not None else "",
            "format": self._formats.text(table.qualified),
        }
        if before is None or before.rules == _rules_of(now):
            return None
        return FORMAT_CHANGED if before.rules.partition(" ")[0] == now["rules"] else CHANGED

    def _unknown(self, table: Table) -> str | None:
        """Why values may be published in another form than rows that are read: a type that nobody knows any more."""
        now = self._now.get(table.qualified)
        there = {column.name for column in now.columns} if now is not None else set[str]()
        names = [column.name for column in table.columns if column.unknown and column.name in there]
        return f"the type that column {', '.join(names)} had was dropped before its events were read" if names else None

    def _as_logged(self, rules: TableRules, table: Table) -> Published:
        """What the rules leave of a table of the log, which may be older than the rules, or newer than the file."""
        now = self._now.get(table.qualified)
        names = {column.name for column in now.columns} if now is not None else set()

        def known(name: str) -> bool:
            return name in names or self._was_known(table, name)

        refuse_renamed(rules, table, names.__contains__)  # also for what an earlier rule left out under its old name
        self._refuse_lent(rules, table)
        return rules.published(table, older=all(known(column.name) for column in table.columns))

    def _refuse_lent(self, rules: TableRules, table: Table) -> None:
        """Look at a table beside its newest description: see `refuse_lent`."""
        of = self._described.get((table.schema, table.name))
        if of:
            newest = max(of)
            left_out = self._left_out.get((table.schema, table.name, newest), ())
            refuse_lent(rules, table, [(n, without_labels(t)) for n, t in of[newest].columns],
                        [(at, alias, without_labels(type_)) for at, alias, type_ in left_out])  # fmt: skip

    def refuse_strange(self, table: Table) -> None:
        """Raise OperatorError for rows that were read and have a column of which no statement in the log has told.

        Such rows are written when the log has been followed to the place at which they were read.
        """
        rules = self._rules.of(table.qualified) if self._rules else None
        if rules is not None and (table.schema, table.name) in self._described:
            refuse_strange(rules, table, partial(self._was_known, table))

    def _published(self, table: Table) -> Published | None:
        """What the rules leave of a table; None: all of it, as it is."""
        of = self._rules.of(table.qualified) if self._rules else None
        return of.published(table) if of is not None else None

    def newest(self, table: Table) -> Description | None:
        """The newest description of a table of this name."""
        of = self._described.get((table.schema, table.name))
        return of[max(of)] if of else None

    def stale(self, table: Table) -> str | None:
        """Why the topic's rows are stale though no event says so; None where they are not.

        A source whose tables have no marks tells it in its log. Of another key `rekeyed` tells.
        """
        before = self.newest(table)
        published = self._published(table)
        changed = self._changed(before, table, published)
        if changed is not None:
            return changed
        table = published.table if published is not None else table
        if (lost := self._lost_form(before, table)) is not None:
            return lost
        if before is None or not table.marks or _rekeyed(before, table):
            return None
        return stale_reason(before, table)

    def rekeyed(self, table: Table) -> str | None:
        """Say that a table has another key than its newest description; None where it has not, or the log tells it.

        Its rows are not to be read before all is written that the log has up to now: events under the old key may be in
        it, which a reading that began before them would keep.
        """
        before, published = self.newest(table), self._published(table)
        table = published.table if published is not None else table
        return stale_reason(before, table) if before is not None and _rekeyed(before, table) else None

    def _lost_form(self, before: Description | None, table: Table) -> str | None:
        """Why records are not of the form that the registry has now for a table that is as it was; None: they are."""
        last, wires = self._newest.get((table.schema, table.name)), self._wires
        if before is None or last is None or wires is None:
            return None
        if not is_described(table, last):  # its schema is not registered yet: the log may tell of others before it
            lost = bool(last.get("value_form")) and self._asked(table.qualified, lambda: wires.lost(last))
            return VALUE_FORM if lost else None
        wire = self._wire(wires, table, last["topic"])
        if wire is None:
            return None
        if last.get("key_form", wire.key_form) != wire.key_form:
            return KEY_FORM
        return VALUE_FORM if last.get("value_form", wire.value_form) != wire.value_form else None

    def _forgotten(self, wires: Wires, last: Mapping[str, Any], wire: Wire) -> bool:
        """Whether the registry has other schemas now under the ids that a table's last version was written with."""
        if not last.get("value_form") or not wire.value_form:
            return False
        if last["value_form"] == wire.value_form and "value_print" in last:
            return bool(last["value_print"] != wire.value_print)
        return self._asked(last["table"], lambda: wires.lost(last))

    def rewritten(self, table: Table) -> str | None:
        """The same if all rows may have been rewritten, so that the description must be published again."""
        before = self.newest(table)
        return stale_reason(before, table) if before is not None and rewritten(before.marks, table.marks) else None

    def carried(self, encoder: TableEncoder, version: int) -> Mapping[str, str]:
        """Columns of `version` whose values still hold where no event changed them: name then, name now."""
        return self._kept(encoder, version, carried)

    def told(self, encoder: TableEncoder, version: int) -> Mapping[str, str]:
        """Columns of `version` whose values can be told as they were published: name then, name now."""
        return self._kept(encoder, version, told)

    def _kept(
        self, encoder: TableEncoder, version: int, keep: Callable[[Description, Description], dict[str, str]]
    ) -> Mapping[str, str]:
        table, now = encoder.table, encoder.version
        at = (keep, table.schema, table.name, version, now)
        if at not in self._carried:
            of = self._described[table.schema, table.name]
            steps = range(version, now)
            known = version <= now and all(step in of and step + 1 in of for step in steps)
            names = {name: name for name, _ in of[version].columns} if known else {}
            for step in steps if known else ():
                kept = keep(of[step], of[step + 1]) if of[step].rules == of[step + 1].rules else {}
                names = {then: kept[name] for then, name in names.items() if name in kept}
            self._carried[at] = names
        return self._carried[at]

    def known(self, table: Table) -> TableEncoder | None:
        """The encoder of a table met before. It is found by the object's identity, for speed."""
        return self._encoders.get(id(table))

    def last(self, table: Table) -> TableEncoder | None:
        """The encoder of a table of this name as it was met last; None: it has not been met since the start."""
        return self._last.get(table.qualified)

    def taken(self) -> dict[tuple[str, str], int]:
        """Return how many events of each table and op were made since the last call; messages are of no table."""
        found: dict[tuple[str, str], int] = {}
        taken = [(encoder.table.qualified, encoder.taken()) for encoder in self._encoders.values()]
        for name, of in (*taken, ("", self.messages.taken())):
            for op, many in of.items():
                if many:
                    found[name, op] = found.get((name, op), 0) + many
        return found

    def recalled(self, name: str) -> Table | None:
        """Return a table as it was described last: enough to delete rows in its topic. None: it never was."""
        for (schema, table), of in self._described.items():
            if f"{schema}.{table}" == name:
                kinds = {column["name"]: kind_of(column) for column in self._newest[schema, table]["columns"]}
                whole = self._whole(schema, table, max(of), of[max(of)])
                columns = (Column(c, type_, kinds.get(c, Kind("string")), bytes) for c, type_ in whole.columns)
                return Table(schema, table, tuple(columns), whole.key, whole.marks, whole.deferred_key)
        return None

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
        rules = self._rules.of(table.qualified) if self._rules else None
        published = self._as_logged(rules, table) if rules is not None else None
        shown = published.table if published is not None else table
        raise_first(self._formats.refusals([shown], lambda _: topic))
        raise_first(self._routes.refusals([table], first=False))
        last = self._newest.get((table.schema, table.name))
        version = last["version"] if last else 0
        wire = self._wire(self._wires, shown, topic) if self._wires is not None else None
        key, value = self._record(table, topic, position, version + 1, published=published, wire=wire)
        new = orjson.loads(value)
        before = self.newest(table)
        other = {part for part in _COMPARED if last is not None and last.get(part) != new.get(part)}
        same = last is not None and not other
        if not same or self.rewritten(shown):
            version += 1
            publish(key, value)
            self._note(new)
            reason = stale_reason(before, shown) if before is not None else None
            reason = self._changed(before, table, published) or reason or self._unknown(table)
            if last is not None and "key_form" in last and last["key_form"] != new.get("key_form"):
                reason = reason or KEY_FORM
            if last is not None and "value_form" in last and "value_form" in other and other <= set(_FORMS):
                reason = reason or VALUE_FORM
            if reason is None and last is not None and wire is not None and self._wires is not None:
                reason = VALUE_FORM if self._forgotten(self._wires, last, wire) else None
            if reason is not None:
                resnapshot(table, reason)
        encoder = TableEncoder(
            table, connector=self._source, prefix=self._prefix, database=self._database, version=version, topic=topic,
            published=published, flat=self._formats.of(table.qualified), wire=wire,
            names_source=self._routes.names_source(table.qualified),
        )  # fmt: skip
        self._encoders[id(table)] = self._last[table.qualified] = encoder  # which keeps the table, and so its id
        return encoder

    def _wire(self, wires: Wires, table: Table, topic: str) -> Wire | None:
        """Return a table's format."""
        return self._asked(table.qualified, lambda: wires.of(table, topic, self._numbers.of(table)))

    def _asked(self, name: str, ask: Callable[[], T]) -> T:
        """Ask a registry; the source is tended while it is slow, for a transaction is open."""
        asking = ThreadPoolExecutor(1, "cdc-registry")
        try:
            return await_tended(asking.submit(ask), self._tend, f"{name}: asking the schema registry")
        finally:
            asking.shutdown(wait=False)

    def _record(
        self,
        table: Table,
        topic: str,
        position: Position,
        version: int,
        *,
        published: Published | None,
        wire: Wire | None,
    ) -> tuple[bytes, bytes]:
        return schema_record(
            table, connector=self._connector, source=self._source, database=self._database, topic=topic,
            version=version, position=position, published=published, format_=self._formats.text(table.qualified),
            wire=wire, routed=self._routes.of(table.qualified) is not None,
            names_source=self._routes.names_source(table.qualified),
        )  # fmt: skip


def _rekeyed(before: Description, table: Table) -> bool:
    """Whether a table of a source with marks has another key, and no other rows: those are read again at once."""
    return bool(table.marks) and before.key != table.key and not rewritten(before.marks, table.marks)
