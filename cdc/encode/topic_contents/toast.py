"""The values that PostgreSQL leaves out of an update that did not change them (TOAST), so that no row has a hole.

A value stored out of line is sent as “unchanged” (``u`` in TupleData) by an update that did not write it, and the old
row is sent whole only with REPLICA IDENTITY FULL. But the last record of a key in a compacted topic must hold the whole
row, so the value must be known here: `find` gives it, or says that it is unknown, and never guesses.

There are three places where it may be known, asked in this order, and “unknown” is an answer too: it hides the others.

* what the log has said in this session (`keep`, `forget`), in a temporary SQLite file, so that memory stays flat;
* the source, for the first few that are asked of it (`ask`): it answers at once, where the topic must be read first;
* what the topic said before, read on a thread and kept across sessions
  (`cdc.encode.topic_contents.published_values`). The loop waits for it, but tends its source meanwhile.

Why a value found is the row's value:

1. A left-out value was not changed by its update, so it is the value after the row's previous event. By induction over
   the row's events it is the one in the last event that had it.
2. If that event came in this session, the file has it. `keep` notes every row with a hole (with what was found for it),
   and every whole row that may be stored in `TOAST_FROM` bytes or more. A smaller whole row has nothing out of line, so
   no later update leaves out a value of it. The size is bounded from above by the printed text (`size_bound`). A row
   that was read may be small and have a value out of line from the time when it was larger: what has been read of the
   topic does not have it then, so it is read on (`read_again`).
3. If it came before, it is in the topic: every committed record holds the whole row. Only records from the `floors`
   (behind a gap in the log) count. Where a snapshot has read the key under a view that saw the event, the topic's row
   is a later one and is not asked for (`published`). A small record may hold an out-of-line value from the time when
   the row was larger, so the topic is read a second time without the bound if the first time was not enough.
4. The source says what it has now, which may be later. It counts only where the transaction at hand has written the row
   last. So no later transaction has. And the events of this transaction that follow are watched: one that writes the
   key otherwise than by leaving out the same values takes the answer back, and the session with it
   (`cdc.encode.left_out_values`).
5. A key may have had another row before. A key change takes its values from the old key and gives them to the new one;
   what is unknown of it is noted as unknown, so that the previous owner's value is not found. A row in the dead letters
   is unknown, because the topic has an older state of it. `SchemaVersions.carried` follows columns through DDL.
6. An aborted Kafka transaction ends the session, and its file with it. What is kept across sessions was committed.

https://www.postgresql.org/docs/current/storage-toast.html and
https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html (TupleData)
"""

from __future__ import annotations

import marshal
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Final, TypeAlias, TypeVar, cast

from cdc.encode.envelope.row_codegen import size_bound
from cdc.encode.envelope.table_encoder import TableEncoder
from cdc.encode.topic_contents.newest_letters import ReadDeadLetters, newest_letters
from cdc.encode.topic_contents.published_values import PAGE, Kept, Part, PublishedValues, Topics, await_reading
from cdc.machine.temporary_files import TemporaryDatabase
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

_ASKED_ALONE: Final = 100
"""So many values of a topic are asked of the source in a session before reading the topic begins as well."""

Ask: TypeAlias = Callable[[], Row | None]
"""Asks the source for the row at hand; None: its last writer is another, or it is not known."""
Carried: TypeAlias = Callable[[TableEncoder, int], Mapping[str, str]]
"""Columns of an earlier version of a table whose values still hold, and their names now: `SchemaVersions.carried`."""


_Value = TypeVar("_Value", bytes, bytes | None)


class ToastValues:
    """Keeps the JSON of toastable columns of rows that may have been TOASTed, by topic and key."""

    def __init__(
        self,
        values: PublishedValues,
        topics: Topics,
        carried: Carried,
        *,
        committed: Callable[[], str],
        tend: Callable[[], None] = lambda: None,
        floors: Mapping[str, str] | None = None,
        letters: ReadDeadLetters = lambda: iter(()),
    ) -> None:
        """`committed` gives a position before which all is committed, and `tend` keeps the source while the loop waits.

        `floors`: of these tables no record before a position counts, because the log had a gap there.
        """
        self._values, self._topics = values, topics
        self._floors = floors or {}
        self._carried = carried
        self._committed, self._tend = committed, tend
        self._letters = letters
        self._unpublished: dict[str, Mapping[bytes, str]] = {}
        self._db = TemporaryDatabase(
            "what the log leaves out of updates",
            f"PRAGMA page_size = {PAGE};"
            # not WITHOUT ROWID: values would be in the tree that keys are looked for in
            "CREATE TABLE wide (topic TEXT, key BLOB, version INT, columns BLOB, PRIMARY KEY (topic, key))",
        )
        self._read: set[Part] = set()
        """What has been read on in this session."""
        self._asked: Counter[str] = Counter()
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
        names, stored = self._of(encoder)
        if encoder.has_holes(row) or stored(row) >= TOAST_FROM:
            columns = {**encoder.fragments(row, names), **fragments, **dict.fromkeys(unknown)}
            self._put(encoder.topic, key, encoder.version, columns)

    def stored(self, encoder: TableEncoder) -> Callable[[Row], int] | None:
        """Give the function that bounds the bytes of a stored whole row; None: no column of the table is toastable.

        `keep` has nothing to do for a row that takes less than `TOAST_FROM`. The function raises for a row with a hole.
        """
        return self._of(encoder)[1] if encoder.toastable else None

    def forget(self, encoder: TableEncoder, key: bytes) -> None:
        """Make the row's toastable values unknown from here on: its event could not be written."""
        names, _ = self._of(encoder)
        self._put(encoder.topic, key, encoder.version, dict.fromkeys(names))

    def read_again(self, table: str) -> None:
        """Note that rows were written that the log has not told: what was read of the topic does not have them."""
        self._read = {part for part in self._read if part.table != table}

    def find(
        self, encoder: TableEncoder, key: bytes, row: Row, *, published: bool = True, ask: Ask | None = None
    ) -> tuple[dict[str, bytes], bool]:
        """Find the JSON of the columns that are UNCHANGED in `row`, as far as it is known; the row's old key was `key`.

        Not `published`: the topic is not asked, because its row of `key` may be another one: a snapshot read it later
        than this event, or the row was not published meanwhile.
        Returns also whether the source was asked and has answered.
        """
        wanted = {c.name for c, value in zip(encoder.table.columns, row, strict=True) if value is UNCHANGED}
        said = self._said(encoder, key)
        known = _known(said)
        if wanted <= said.keys() or (not published and ask is None):
            return {name: known[name] for name in wanted if name in known}, False
        if not published and ask is not None:
            answer = self._fragments(encoder, ask, frozenset(wanted - said.keys()))
            both = {**(answer or {}), **known}
            return {name: value for name, value in both.items() if name in wanted}, answer is not None
        part = self._part(encoder, key, everything=False)
        if ask is not None and (answer := self._answer(encoder, part, ask, frozenset(wanted - said.keys()))):
            return {name: value for name, value in {**answer, **known}.items() if name in wanted}, True
        for everything in (False, True):
            found = self._published(encoder, key, part._replace(everything=everything))
            known = _known({**found, **said})
            if wanted <= known.keys():
                break
        return {name: known[name] for name in wanted if name in known}, False

    def _answer(self, encoder: TableEncoder, part: Part, ask: Ask, missing: frozenset[str]) -> dict[str, bytes] | None:
        """Ask the source, if that is quicker than the topic."""
        if part in self._read:
            return None
        self._asked[encoder.topic] += 1
        if self._asked[encoder.topic] == _ASKED_ALONE:
            self._begin(encoder, part)
        return self._fragments(encoder, ask, missing)

    def _fragments(self, encoder: TableEncoder, ask: Ask, missing: frozenset[str]) -> dict[str, bytes] | None:
        row = ask()
        self._tend()
        try:
            return None if row is None else encoder.fragments(row, missing)
        except ValueError:  # it cannot be written: as one that the topic does not have
            return None

    def _part(self, encoder: TableEncoder, key: bytes, *, everything: bool) -> Part:
        identity, number = self._topics.partition(encoder.table, key)
        return Part(encoder.table.qualified, encoder.topic, identity, number, everything)

    def _begin(self, encoder: TableEncoder, part: Part) -> Future[None]:
        names, _ = self._of(encoder)

        def least(values: Mapping[str, bytes], columns: int) -> bool:
            return part.everything or sum(map(len, values.values())) * _GROWTH + columns * _FIXED_SIZE >= TOAST_FROM

        kept = Kept(encoder.version, names, least)
        return self._values.read_on(self._topics, encoder.table, part, kept, self._committed())

    def _published(self, encoder: TableEncoder, key: bytes, part: Part) -> dict[str, bytes | None]:
        """Find what the topic has of a key, by the columns' names of now; reads the topic on first."""
        if part not in self._read:
            what = f"table {encoder.table.qualified}"
            while (begun := self._values.reading(part)) is not None:  # by a former session, which knew less
                await_reading(begun, self._tend, what)
            await_reading(self._begin(encoder, part), self._tend, what)
            self._read.add(part)
        found = self._values.find(part, key)
        if found is None or found.position < self._floors.get(encoder.table.qualified, ""):
            return {}
        name = encoder.table.qualified
        if name not in self._unpublished:
            self._unpublished[name] = newest_letters(self._letters, encoder.table)
        if self._unpublished[name].get(key, "") > found.position:
            return {}
        return dict(self._names_now(encoder, found.version, found.values))

    def _names_now(
        self, encoder: TableEncoder, version: int, values: Mapping[str, _Value]
    ) -> Iterator[tuple[str, _Value]]:
        names = self._carried(encoder, version)
        wide, _ = self._of(encoder)
        return ((names[then], value) for then, value in values.items() if names.get(then) in wide)

    def close(self) -> None:
        self._db.close()

    def _of(self, encoder: TableEncoder) -> tuple[frozenset[str], Callable[[Row], int]]:
        """The names of the toastable columns, and the function that bounds the bytes of a stored whole row.

        Where columns are left out, what they take is not known, and any row may be large.
        """
        table = encoder.table
        found = self._columns.get(id(table))
        if found is None:
            wide = {index: column for index, column in enumerate(table.columns) if column.toastable}
            growth = {index: 1 if _PLAIN_TEXT.match(column.type) else _GROWTH for index, column in wide.items()}
            least = _ROW_HEADER + len(wide) * _HEADER + sum(_fixed_size(c) for c in table.columns if not c.toastable)
            if encoder.published is not None and encoder.published.left_out:
                least = TOAST_FROM
            names = frozenset(column.name for column in wide.values())
            found = self._columns[id(table)] = (table, names, size_bound(least, growth))
        return found[1], found[2]

    def _put(self, topic: str, key: bytes, version: int, columns: Mapping[str, bytes | None]) -> None:
        self._db.run("REPLACE INTO wide VALUES (?, ?, ?, ?)", (topic, key, version, marshal.dumps(dict(columns))))

    def _said(self, encoder: TableEncoder, key: bytes) -> dict[str, bytes | None]:
        """Return what the log has said in this session, by the columns' names of now; None: that it is unknown."""
        for version, columns in self._db.rows(
            "SELECT version, columns FROM wide WHERE topic = ? AND key = ?", (encoder.topic, key)
        ):
            found = cast("dict[str, bytes | None]", marshal.loads(columns))  # noqa: S302 - our own file
            return found if version == encoder.version else dict(self._names_now(encoder, version, found))
        return {}


def _known(values: Mapping[str, bytes | None]) -> dict[str, bytes]:
    return {name: value for name, value in values.items() if value is not None}


def _fixed_size(column: Column) -> int:
    return _NUMBER_SIZE if _NUMBERS.fullmatch(column.kind.name) else _FIXED_SIZE
