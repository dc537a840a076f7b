"""The values that PostgreSQL leaves out of an update that did not change them (TOAST), so that no row has a hole.

A value stored out of line is sent as “unchanged” (``u`` in TupleData) by an update that did not write it, and the old
row is sent whole only with REPLICA IDENTITY FULL. But the last record of a key in a compacted topic must hold the whole
row, so the value must be known here: `find` gives it, or says that it is unknown, and never guesses.

What is kept, by topic, key and column, in two layers of a temporary SQLite file, so that memory stays flat:

* layer 0: what the log has said in this session (`keep`, `forget`);
* layer 1: what the topic said before (`_load`), read when something is missing for the first time.

Layer 0 goes before layer 1, and “unknown” is an entry too: it hides what lies below.

Why a value found is the row's value:

1. A left-out value was not changed by its update, so it is the value after the row's previous event. By induction over
   the row's events it is the one in the last event that had it.
2. If that event came in this session, layer 0 has it. `keep` notes every row with a hole (with what was found for it),
   and every whole row that may be stored in `TOAST_FROM` bytes or more. A smaller whole row has nothing out of line, so
   no later update leaves out a value of it. The size is bounded from above by the printed text (`size_bound`).
3. If it came before, it is in the topic: every committed record holds the whole row. Of the topic count only records
   from the `floors` (behind a gap in the log) up to the current event: a record at or behind the event's position is
   from an aborted transaction. Where a snapshot has read the key under a view that saw the event, the topic's row is a
   later one and layer 1 is not asked (`published`). A small record may hold an out-of-line value from the time when
   the row was larger, so the topic is read a second time without the bound if the first time was not enough.
4. A key may have had another row before. A key change takes its values from the old key and gives them to the new one;
   what is unknown of it is noted as unknown, so that the previous owner's value is not found. A row in the dead letters
   is unknown, because the topic has an older state of it. `SchemaVersions.carried` follows columns through DDL.
5. An aborted Kafka transaction ends the session and layer 0 with it. Nothing here must survive: the topic has it all.

https://www.postgresql.org/docs/current/storage-toast.html and
https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html (TupleData)
"""

from __future__ import annotations

import marshal
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias, cast

import orjson

from cdc.config.temporary_files import TemporaryDatabase
from cdc.encode import foreign
from cdc.encode.dead_letters import ReadDeadLetters, Unpublished
from cdc.encode.envelope import TableEncoder
from cdc.encode.row_codegen import size_bound
from cdc.model.change import UNCHANGED, Column, Row, Table

_ROW_HEADER: Final = 24
TOAST_FROM: Final = 2_000
"""A row stored in fewer bytes is never TOASTed (TOAST_TUPLE_THRESHOLD is 2,032 bytes with 8 kB pages)."""
_PLAIN_TEXT: Final = re.compile(r"(?:text|character[^\[]*|json|xml|bytea)$")
"""Types that take no more bytes stored than printed; their arrays do."""
_NUMBERS: Final = re.compile(r"u?int\d\d|float\d\d|boolean|date|time_micros|timestamp.*")
"""Kinds whose values take 8 bytes, and at most 8 more to align."""
_NUMBER_SIZE: Final = 16
_FIXED_SIZE: Final = 64
"""For all other kinds: NAMEDATALEN is the longest type of a fixed length."""
_HEADER: Final = 8
_GROWTH: Final = 8
"""The most bytes that a character of a value's text takes when stored: ``[[],[]]`` as jsonb, ``{1}`` as bigint[]."""

_PAGE: Final = 16 * 1024
"""The file's page size: a value of 20 kB takes two pages instead of five of SQLite's default."""

Records: TypeAlias = Callable[[Table], Iterator[tuple[bytes, bytes | None]]]
Carried: TypeAlias = Callable[[TableEncoder, int], Mapping[str, str]]
"""Columns of an earlier version of a table whose values still hold, and their names now: `SchemaVersions.carried`."""


class ToastValues:
    """Keeps the JSON of toastable columns of rows that may have been TOASTed, by topic and key."""

    def __init__(
        self,
        records: Records,
        carried: Carried,
        *,
        floors: Mapping[str, str] | None = None,
        letters: ReadDeadLetters = lambda: iter(()),
    ) -> None:
        """`floors`: in these topics no record before a position counts, because the log had a gap there."""
        self._floors = floors or {}
        self._records = records
        self._carried = carried
        self._letters = letters
        self._db = TemporaryDatabase(
            "what the log leaves out of updates",
            f"PRAGMA page_size = {_PAGE};"
            # not WITHOUT ROWID: values would be in the tree that keys are looked for in
            "CREATE TABLE wide (layer INT, topic TEXT, key BLOB, version INT, columns BLOB,"
            " PRIMARY KEY (topic, key, layer))",
        )
        self._loaded: set[tuple[str, bool]] = set()
        self._columns: dict[int, tuple[Table, frozenset[str], Callable[[Row], int]]] = {}

    def keep(
        self,
        encoder: TableEncoder,
        key: bytes,
        row: Row,
        fragments: Mapping[str, bytes],
        *,
        unknown: frozenset[str] = frozenset(),
    ) -> None:
        """Note a row of the log, if any of it may have been TOASTed.

        A row that is not published because a snapshot has it is noted too: a key change may carry its values to another
        key. Columns that are `unknown` stay unknown: what was known under this key may have been of another row.
        """
        names, stored = self._of(encoder.table)
        if encoder.has_holes(row) or stored(row) >= TOAST_FROM:
            columns = {**encoder.fragments(row, names), **fragments, **dict.fromkeys(unknown)}
            self._put(0, encoder.topic, key, encoder.version, columns)

    def stored(self, encoder: TableEncoder) -> Callable[[Row], int] | None:
        """Give the function that bounds the bytes of a stored whole row; None: no column of the table is toastable.

        `keep` has nothing to do for a row that takes less than `TOAST_FROM`. The function raises for a row with a hole.
        """
        return self._of(encoder.table)[1] if encoder.toastable else None

    def forget(self, encoder: TableEncoder, key: bytes) -> None:
        """Make the row's toastable values unknown from here on: its event could not be written."""
        names, _ = self._of(encoder.table)
        self._put(0, encoder.topic, key, encoder.version, dict.fromkeys(names))

    def find(
        self, encoder: TableEncoder, key: bytes, row: Row, before: str, *, published: bool = True
    ) -> dict[str, bytes]:
        """Find the JSON of the columns that are UNCHANGED in `row`, as far as it is known; the row's old key was `key`.

        `before` is the position of the current event: the topic's records of later ones were aborted. Not `published`:
        a snapshot read the topic's row of `key` later than this event, and it may be another row.
        """
        wanted = [c.name for c, value in zip(encoder.table.columns, row, strict=True) if value is UNCHANGED]
        known = self._get(encoder, key, published=published)
        for everything in (False, True):
            if not published or known.keys() >= set(wanted) or (encoder.topic, everything) in self._loaded:
                continue
            self._load(encoder, before, everything=everything)
            known = self._get(encoder, key, published=True)
        return {name: known[name] for name in wanted if name in known}

    def close(self) -> None:
        self._db.close()

    def _of(self, table: Table) -> tuple[frozenset[str], Callable[[Row], int]]:
        """The names of the toastable columns, and the function that bounds the bytes of a stored whole row."""
        found = self._columns.get(id(table))
        if found is None:
            wide = {index: column for index, column in enumerate(table.columns) if column.toastable}
            growth = {index: 1 if _PLAIN_TEXT.match(column.type) else _GROWTH for index, column in wide.items()}
            least = _ROW_HEADER + len(wide) * _HEADER + sum(_fixed_size(c) for c in table.columns if not c.toastable)
            names = frozenset(column.name for column in wide.values())
            found = self._columns[id(table)] = (table, names, size_bound(least, growth))
        return found[1], found[2]

    def _load(self, encoder: TableEncoder, before: str, *, everything: bool) -> None:
        """Read the topic; `everything`: also small rows, whose values may be out of line since the row was larger."""
        names, _ = self._of(encoder.table)
        floor = self._floors.get(encoder.topic, "")
        unpublished = Unpublished(self._letters, encoder, before)
        for key, value in self._records(encoder.table):
            if value is None:
                continue
            event = foreign.event_of(value)
            if event is None:
                foreign.tell(encoder.topic, encoder.table.qualified)
                continue
            if not floor <= event["source"]["position"] < before:
                continue
            unpublished.published(key, event["source"]["position"])
            if event["after"] is None:
                continue
            version, after = event["source"]["schema_version"], event["after"]
            kept = {
                then: orjson.dumps(after[then])
                for then, now in self._carried(encoder, version).items()
                if now in names and then in after
            }
            stored = sum(map(len, kept.values())) * _GROWTH + len(encoder.table.columns) * _FIXED_SIZE
            if everything or stored >= TOAST_FROM:
                self._put(1, encoder.topic, key, version, kept)
        for key in unpublished:
            self._put(1, encoder.topic, key, encoder.version, dict.fromkeys(names))
        self._loaded.add((encoder.topic, everything))

    def _put(self, layer: int, topic: str, key: bytes, version: int, columns: Mapping[str, bytes | None]) -> None:
        row = (layer, topic, key, version, marshal.dumps(dict(columns)))
        self._db.run("REPLACE INTO wide VALUES (?, ?, ?, ?, ?)", row)

    def _get(self, encoder: TableEncoder, key: bytes, *, published: bool) -> dict[str, bytes]:
        """Merge layer 0 over layer 1 for one row, by the columns' names of now."""
        known: dict[str, bytes | None] = {}
        for version, columns in self._db.rows(
            "SELECT version, columns FROM wide WHERE topic = ? AND key = ? AND layer <= ? ORDER BY layer DESC",
            (encoder.topic, key, int(published)),
        ):
            found = cast("dict[str, bytes | None]", marshal.loads(columns))  # noqa: S302 - our own file
            if version != encoder.version:
                names = self._carried(encoder, version)
                found = {names[then]: value for then, value in found.items() if then in names}
            known |= found
        return {name: value for name, value in known.items() if value is not None}


def _fixed_size(column: Column) -> int:
    return _NUMBER_SIZE if _NUMBERS.fullmatch(column.kind.name) else _FIXED_SIZE
