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
from typing import Final, cast

import orjson

from cdc.change import UNCHANGED, Row, Table
from cdc.envelope import TableEncoder
from cdc.errors import OperatorError

_TOAST_FROM: Final = 2_000
"""A row stored in fewer bytes is never TOASTed (TOAST_TUPLE_THRESHOLD is 2,032 with 8 kB pages)."""
_PLAIN_TEXT: Final = re.compile(r"(?:text|character[^\[]*|json|xml|bytea)$")
"""Types that take no more room stored than printed; their arrays do."""
_FIXED_SIZE: Final = 64
_HEADER: Final = 8
_GROWTH: Final = 8
"""Bytes that a character of a value's text takes when stored, at most: ``[[],[]]`` as jsonb, ``{1}`` as bigint[]."""

Records = Callable[[Table], Iterator[tuple[bytes, bytes | None]]]


class WideValues:
    """JSON of the wide columns of rows that may have been TOASTed, by topic and key."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._db = sqlite3.connect("", isolation_level=None)
        self._db.executescript(
            "PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF;"
            "CREATE TABLE wide (layer INT, topic TEXT, key BLOB, columns BLOB, PRIMARY KEY (topic, key, layer))"
            " WITHOUT ROWID"
        )
        self._loaded: set[tuple[str, bool]] = set()
        self._columns: dict[int, tuple[Table, frozenset[str], tuple[int, ...]]] = {}

    def keep(self, encoder: TableEncoder, key: bytes, row: Row, fragments: Mapping[str, bytes]) -> None:
        """Note a row of the log, if any of it may have been TOASTed.

        Also one that is not published because a snapshot has it: a key change may carry its values elsewhere.
        """
        names, growth = self._of(encoder.table)
        stored = 24
        for value, factor in zip(row, growth, strict=True):
            if value is UNCHANGED:
                stored = _TOAST_FROM
            elif value is not None:
                stored += len(value) * factor + _HEADER if factor else _FIXED_SIZE
        if stored >= _TOAST_FROM:
            self._put(0, encoder.topic, key, {**encoder.fragments(row, names), **fragments})

    def find(
        self, encoder: TableEncoder, key: bytes, row: Row, before: str, *, published: bool = True, needed: bool = True
    ) -> dict[str, bytes]:
        """The JSON of the columns that are UNCHANGED in `row`, whose key was `key`.

        `before` is the position of the event in hand: what the topic holds of later ones was aborted. Not `published`:
        what the topic has under `key` was read by a snapshot later than this event, and may be another row. Raises
        OperatorError for a value that nothing knows, if it is `needed`.
        """
        wanted = [c.name for c, value in zip(encoder.table.columns, row, strict=True) if value is UNCHANGED]
        known = self._get(encoder.topic, key, published=published)
        for everything in (False, True):
            if not published or known.keys() >= set(wanted) or (encoder.topic, everything) in self._loaded:
                continue
            self._load(encoder, before, everything=everything)
            known = self._get(encoder.topic, key, published=True)
        missing = [name for name in wanted if name not in known]
        if missing and needed:
            raise OperatorError(
                f"table {encoder.table.qualified}, event {before}: the unchanged value of {', '.join(missing)} was "
                "never published, and a row with a hole is not written",
                hint=f"ALTER TABLE {encoder.table.qualified} REPLICA IDENTITY FULL, and start over under a new "
                "connector name",
            )
        return {name: known[name] for name in wanted if name in known}

    def close(self) -> None:
        self._db.close()

    def _of(self, table: Table) -> tuple[frozenset[str], tuple[int, ...]]:
        """Names of the wide columns, and each column's growth (0: of fixed size)."""
        found = self._columns.get(id(table))
        if found is None:
            names = frozenset(c.name for c in table.columns if c.wide)
            growth = tuple((1 if _PLAIN_TEXT.match(c.type) else _GROWTH) if c.wide else 0 for c in table.columns)
            found = self._columns[id(table)] = (table, names, growth)
        return found[1], found[2]

    def _load(self, encoder: TableEncoder, before: str, *, everything: bool) -> None:
        """Read the topic; `everything`: also rows too small to be TOASTed, whose values may be so from wider times."""
        names, _ = self._of(encoder.table)
        for key, value in self._records(encoder.table):
            if value is None:
                continue
            event = orjson.loads(value)
            if event["source"]["position"] >= before or event["after"] is None:
                continue
            kept = {name: orjson.dumps(event["after"][name]) for name in names if name in event["after"]}
            stored = sum(map(len, kept.values())) * _GROWTH + len(encoder.table.columns) * _FIXED_SIZE
            if everything or stored >= _TOAST_FROM:
                self._put(1, encoder.topic, key, kept)
        self._loaded.add((encoder.topic, everything))

    def _put(self, layer: int, topic: str, key: bytes, columns: Mapping[str, bytes]) -> None:
        self._db.execute("REPLACE INTO wide VALUES (?, ?, ?, ?)", (layer, topic, key, marshal.dumps(dict(columns))))

    def _get(self, topic: str, key: bytes, *, published: bool) -> dict[str, bytes]:
        """What the log has said of a row here, over what the topic says."""
        known: dict[str, bytes] = {}
        for (columns,) in self._db.execute(
            "SELECT columns FROM wide WHERE topic = ? AND key = ? AND layer <= ? ORDER BY layer DESC",
            (topic, key, int(published)),
        ):
            known |= cast("dict[str, bytes]", marshal.loads(columns))  # noqa: S302 - our own file
        return known
