"""Wide values: what PostgreSQL leaves out of an update that did not change it (TOAST), kept so that no row has a hole.

Two layers in a temporary SQLite file, so that memory stays flat: what this process has published, and, read from the
table's topic the first time something is missing, what was published before. Nothing here must survive: the topic
has it all.
"""

from __future__ import annotations

import marshal
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias, cast

import orjson

from cdc.encode.dead_letters import ReadDeadLetters, Unpublished
from cdc.encode.envelope import TableEncoder
from cdc.encode.row_codegen import size_bound
from cdc.model.change import UNCHANGED, Column, Row, Table

_ROW_HEADER: Final = 24
TOAST_FROM: Final = 2_000
"""A row stored in fewer bytes is never TOASTed (TOAST_TUPLE_THRESHOLD is 2,032 with 8 kB pages)."""
_PLAIN_TEXT: Final = re.compile(r"(?:text|character[^\[]*|json|xml|bytea)$")
"""Types that take no more room stored than printed; their arrays do."""
_NUMBERS: Final = re.compile(r"u?int\d\d|float\d\d|boolean|date|time_micros|timestamp.*")
"""Kinds whose values take 8 bytes, and as many at most to align."""
_NUMBER_SIZE: Final = 16
_FIXED_SIZE: Final = 64
"""Of what is left: NAMEDATALEN is the longest type of a fixed length."""
_HEADER: Final = 8
_GROWTH: Final = 8
"""Bytes that a character of a value's text takes when stored, at most: ``[[],[]]`` as jsonb, ``{1}`` as bigint[]."""

_PAGE: Final = 16 * 1024
"""Of the file: a value of 20 kB takes two, where it would take five of SQLite's own."""

Records: TypeAlias = Callable[[Table], Iterator[tuple[bytes, bytes | None]]]
Carried: TypeAlias = Callable[[TableEncoder, int], Mapping[str, str]]
"""Columns of an earlier version of a table whose values still hold, and their names now: `SchemaVersions.carried`."""


class ToastValues:
    """JSON of the wide columns of rows that may have been TOASTed, by topic and key."""

    def __init__(
        self,
        records: Records,
        carried: Carried,
        *,
        floors: Mapping[str, str] | None = None,
        letters: ReadDeadLetters = lambda: iter(()),
    ) -> None:
        """`floors`: of these topics nothing counts that was said before a position: the log had a gap there."""
        self._floors = floors or {}
        self._records = records
        self._carried = carried
        self._letters = letters
        self._db = sqlite3.connect("", isolation_level=None)
        self._db.executescript(
            f"PRAGMA page_size = {_PAGE}; PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF;"
            # not WITHOUT ROWID: values would be in the tree that keys are looked for in
            "CREATE TABLE wide (layer INT, topic TEXT, key BLOB, version INT, columns BLOB,"
            " PRIMARY KEY (topic, key, layer))"
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

        Also one that is not published because a snapshot has it: a key change may carry its values elsewhere. Columns
        that are `unknown` stay so, whatever was said under this key before: it may have been of another row.
        """
        names, stored = self._of(encoder.table)
        if encoder.has_holes(row) or stored(row) >= TOAST_FROM:
            columns = {**encoder.fragments(row, names), **fragments, **dict.fromkeys(unknown)}
            self._put(0, encoder.topic, key, encoder.version, columns)

    def stored(self, encoder: TableEncoder) -> Callable[[Row], int] | None:
        """How many bytes a whole row takes when stored, at most; None: none of its columns is wide.

        `keep` has nothing to do for a row that takes less than `TOAST_FROM`. Raises for a row that is not whole.
        """
        return self._of(encoder.table)[1] if encoder.toastable else None

    def forget(self, encoder: TableEncoder, key: bytes) -> None:
        """Nothing is known of the row's wide values from here on: its event could not be written."""
        names, _ = self._of(encoder.table)
        self._put(0, encoder.topic, key, encoder.version, dict.fromkeys(names))

    def find(
        self, encoder: TableEncoder, key: bytes, row: Row, before: str, *, published: bool = True
    ) -> dict[str, bytes]:
        """What is known of the columns that are UNCHANGED in `row`, whose key was `key`: their JSON.

        `before` is the position of the event in hand: what the topic holds of later ones was aborted. Not `published`:
        what the topic has under `key` was read by a snapshot later than this event, and may be another row.
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
        """Names of the wide columns, and how many bytes a whole row takes when stored, at most."""
        found = self._columns.get(id(table))
        if found is None:
            wide = {index: column for index, column in enumerate(table.columns) if column.toastable}
            growth = {index: 1 if _PLAIN_TEXT.match(column.type) else _GROWTH for index, column in wide.items()}
            least = _ROW_HEADER + len(wide) * _HEADER + sum(_fixed_size(c) for c in table.columns if not c.toastable)
            names = frozenset(column.name for column in wide.values())
            found = self._columns[id(table)] = (table, names, size_bound(least, growth))
        return found[1], found[2]

    def _load(self, encoder: TableEncoder, before: str, *, everything: bool) -> None:
        """Read the topic; `everything`: also rows too small to be TOASTed, whose values may be so from wider times."""
        names, _ = self._of(encoder.table)
        floor = self._floors.get(encoder.topic, "")
        unpublished = Unpublished(self._letters, encoder, before)
        for key, value in self._records(encoder.table):
            if value is None:
                continue
            event = orjson.loads(value)
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
        self._db.execute("REPLACE INTO wide VALUES (?, ?, ?, ?, ?)", row)

    def _get(self, encoder: TableEncoder, key: bytes, *, published: bool) -> dict[str, bytes]:
        """What the log has said of a row here, over what the topic says; by the names of now."""
        known: dict[str, bytes | None] = {}
        for version, columns in self._db.execute(
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
