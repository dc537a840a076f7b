"""What a change is to readers who see only the rows for which a table's condition is true (`source.where`).

| before | after | the topic gets |
|---|---|---|
| seen | seen | the change as it is |
| not seen | seen | a create |
| seen | not seen | a delete |
| not seen | not seen | nothing |
| not known | seen | the change as it is: to who folds the topic, an update of a new key is a create |
| not known | not seen | a delete: to who folds the topic, one of a key that it does not have is nothing |
| | not known | nothing: the row is read again by its key, and written or deleted then |

“Not known” is a row of which the log has not sent what decides: the old row without REPLICA IDENTITY FULL, or a large
value that an update did not change. A key of which this session knows that its row is not seen is noted in a file
(`FilteredRows`), so that a row which stays unseen has one delete more than needed, and not one for each update.

While the table is being read by the incremental snapshot, its topic may have rows that were seen by an earlier
condition. A key that the log has told of is not in that snapshot's deletes at its end (`IncrementalSnapshot`, 4), so
its delete is written here, whatever is known. Of an old row that is not known to be seen an event has the key alone.

Each change takes as many numbers in its transaction as it would without a condition, so that positions are the same
when it is written again.
"""

from __future__ import annotations

from typing import Protocol

from cdc.machine.temporary_files import TemporaryDatabase
from cdc.model.change import Change, Op, Row, Unsent


class Encoder(Protocol):
    """`cdc.encode.envelope.table_encoder.TableEncoder`, as far as it is needed here."""

    topic: str

    def publishes(self, row: Row) -> bool | Unsent | None: ...
    def key_only(self, row: Row) -> Row: ...


class FilteredRows:
    """Knows keys whose rows are not seen, as far as the log has told it in this session."""

    def __init__(self) -> None:
        self._file: TemporaryDatabase | None = None

    def halves(
        self,
        of_source: Change,
        change: Change,
        encoder: Encoder,
        old_key: bytes | None,
        key: bytes | None,
        *,
        being_read: bool,
    ) -> list[Change | None]:
        """Return what is to be written, in order; None: a number is taken, and nothing is written.

        `change` is `of_source` with the published columns alone. A READ stands for a row that must be read again. A key
        is None if it cannot be written: no topic has it.
        """
        seen = _seen(encoder, of_source.after)
        was = False if change.op is Op.CREATE else _seen(encoder, of_source.before)
        topic, moved = encoder.topic, change.after is not None and old_key != key
        if was is None and self._knows(topic, old_key):
            was = False
        if was is not True and change.before is not None:
            change = change._replace(before=encoder.key_only(change.before))
        may_be_there = old_key is not None
        deletes = (was is not False and (may_be_there or change.before is not None)) or (being_read and may_be_there)
        if change.after is None:
            self.forget(topic, old_key)
            return [change if deletes else None]
        left = encoder.key_only(change.after) if change.before is None else change.before
        leaves = change._replace(op=Op.DELETE, before=left, after=None) if deletes else None
        if moved:
            self.forget(topic, old_key)
        if seen:
            self.forget(topic, key)
            if was is not False or (moved and being_read):
                return [change]
            create = change._replace(op=Op.CREATE, before=None)
            return [None, create] if moved else [create]
        stays = change._replace(op=Op.READ) if seen is None else None
        if seen is None:
            self.forget(topic, key)
            return [leaves, stays] if moved else [stays]
        self._note(topic, key)
        if moved and being_read and key is not None:
            stays = change._replace(op=Op.DELETE, before=encoder.key_only(change.after), after=None)
        return [leaves, stays] if moved else [leaves]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _note(self, topic: str, key: bytes | None) -> None:
        if key is None:
            return
        if self._file is None:
            self._file = TemporaryDatabase(
                "keys of rows that are not published",
                "CREATE TABLE unseen (topic TEXT, key BLOB, PRIMARY KEY (topic, key)) WITHOUT ROWID; BEGIN",
            )
        self._file.run("INSERT OR IGNORE INTO unseen VALUES (?, ?)", (topic, key))

    def forget(self, topic: str, key: bytes | None) -> None:
        """Note that the topic may have a row under this key."""
        if self._file is not None:
            self._file.run("DELETE FROM unseen WHERE topic = ? AND key = ?", (topic, key))

    def _knows(self, topic: str, key: bytes | None) -> bool:
        found = (topic, key)
        return self._file is not None and any(
            self._file.rows("SELECT 1 FROM unseen WHERE topic = ? AND key = ?", found)
        )


def _seen(encoder: Encoder, row: Row | None) -> bool | None:
    """Whether a row is seen; None: it was not sent, or not what decides."""
    if row is None:
        return None
    found = encoder.publishes(row)
    return False if found is None else found if isinstance(found, bool) else None
