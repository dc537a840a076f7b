"""What a table's topic holds of a key: the row that its readers have by now, for the `before` of its next event.

A log need not have the old row: PostgreSQL's does not, unless the table has REPLICA IDENTITY FULL. But the topic is
compacted, so it has the row of each key, and that is what a reader has to take back. Two places are asked in this
order, and “no row” is an answer too:

* what was written in this session (`note`), in a temporary SQLite file, so that memory stays flat;
* what the topic held before, read on a thread and kept across sessions (`PublishedValues`). The loop waits for it, and
  tends its source meanwhile.

Why that is the row: each event that this session writes is noted as it is written, so behind a key's first event the
file has it. Before that the topic's last committed record of the key is of an earlier session, or of the snapshot's
rows, which are written without a note while nothing is followed; and all that is read. An aborted transaction ends the
session and its file.

A row of an earlier version of its table has those of its columns that are as they were, and its key; the others are
left out, as those that a log does not send are. That the table was rewritten since, or emptied, changes nothing of
what its topic holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import orjson

from cdc.encode.envelope.table_encoder import TableEncoder
from cdc.encode.topic_contents.published_values import PAGE, Kept, Part, PublishedValues, Topics, await_reading
from cdc.encode.topic_contents.toast import Carried
from cdc.machine.temporary_files import TemporaryDatabase

_NULL: Final = b"null"


class TopicRows:
    """Finds the JSON of rows in topics by their keys."""

    def __init__(
        self,
        values: PublishedValues,
        topics: Topics,
        told: Carried,
        *,
        committed: Callable[[], str],
        tend: Callable[[], None] = lambda: None,
    ) -> None:
        """`committed` gives a position before which all is committed; `tend` keeps the source while the loop waits."""
        self._values, self._topics, self._told = values, topics, told
        self._committed, self._tend = committed, tend
        self._db = TemporaryDatabase(
            "the rows that were published",
            f"PRAGMA page_size = {PAGE};"
            "CREATE TABLE held (topic TEXT, key BLOB, version INT, held BLOB, PRIMARY KEY (topic, key))",
        )
        self._read: set[Part] = set()
        """What has been read on in this session."""

    def note(self, encoder: TableEncoder, key: bytes, row: bytes) -> None:
        """Note the row's JSON that is written under a key; ``null``: it is deleted."""
        held = None if row == _NULL else row
        self._db.run("REPLACE INTO held VALUES (?, ?, ?, ?)", (encoder.topic, key, encoder.version, held))

    def find(self, encoder: TableEncoder, key: bytes) -> bytes | None:
        """Return the row's JSON, by the columns' names of now; None: the topic holds no row of the key."""
        for version, held in self._db.rows(
            "SELECT version, held FROM held WHERE topic = ? AND key = ?", (encoder.topic, key)
        ):
            if held is None or version == encoder.version:
                return None if held is None else bytes(held)
            return self._now(encoder, key, version, _values(held))
        part = self._read_on(encoder, key)
        found = self._values.find(part, key)
        return None if found is None or not found.values else self._now(encoder, key, found.version, found.values)

    def _read_on(self, encoder: TableEncoder, key: bytes) -> Part:
        identity, number = self._topics.partition(encoder.table, key)
        part = Part(encoder.table.qualified, encoder.topic, identity, number, everything=True)
        if part not in self._read:
            what = f"table {encoder.table.qualified}"
            while (begun := self._values.reading(part)) is not None:  # by a former session, which knew less
                await_reading(begun, self._tend, what)
            names = frozenset(column.name for column in encoder.table.columns)
            kept = Kept(encoder.version, names, lambda *_: True, deletes=True)
            begun = self._values.read_on(self._topics, encoder.table, part, kept, self._committed())
            await_reading(begun, self._tend, what)
            self._read.add(part)
        return part

    def _now(self, encoder: TableEncoder, key: bytes, version: int, values: Mapping[str, bytes]) -> bytes:
        """Make the row of its values; they stand in the order of the table's columns."""
        if version != encoder.version:
            names = self._told(encoder, version)
            held = {names[then]: value for then, value in values.items() if then in names}
            values = _values(encoder.key_image(key)) | held
        told = ((column.name, values.get(column.name)) for column in encoder.table.columns)
        return b"{" + b",".join(orjson.dumps(name) + b":" + value for name, value in told if value is not None) + b"}"

    def close(self) -> None:
        self._db.close()


def _values(row: bytes) -> dict[str, bytes]:
    return {name: orjson.dumps(of) for name, of in (orjson.loads(row) or {}).items()}
