"""Knows the data key of each subject: those that the key topic has, and the new ones that go there.

Why no event is ever written under a key that nobody keeps. A new key's record is written into the Kafka transaction
that has the first event under it: both are committed, or neither. A session ends with its transaction, and the next
begins with what the topic has then (`begin`), after it has fenced older copies. So a key that was lost with an aborted
transaction is known to nobody.

Why an erased key does not come back. The connector alone writes to the key topic, and it erases a key itself, when it
is asked to (`shred`): from here on the subject has none, and a row of it that comes later gets a new one. Another copy
or a later session reads the tombstone.

Records are kept in a temporary file, wrapped as they are in the topic, so memory stays flat; the keys used last are
kept ready.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

from cdc.machine.temporary_files import TemporaryDatabase
from cdc.model.errors import BugError, OperatorError

if TYPE_CHECKING:
    from cdc.rules.encryption import DataKey, MasterKey

Records: TypeAlias = Iterable[tuple[bytes, bytes | None]]
"""Records of the key topic, in order: who the key is of, and the wrapped key or None."""

_READY: Final = 10_000
"""So many keys are kept unwrapped: a kilobyte or so each."""


class Keyring:
    """Holds the keys of one connector."""

    def __init__(self, master: MasterKey) -> None:
        self.master: Final = master
        self._ready: OrderedDict[bytes, DataKey] = OrderedDict()
        self._file: TemporaryDatabase | None = None
        self._write: Callable[[bytes, bytes | None], None] | None = None
        self._more: Callable[[], Records] = tuple

    def begin(
        self,
        known: Records,
        write: Callable[[bytes, bytes | None], None] | None = None,
        *,
        more: Callable[[], Records] = tuple,
    ) -> None:
        """Begin a session with what the key topic has. Raises OperatorError if another master key has wrapped it.

        `write` takes a record into the open transaction; None: nothing is published, and new keys are for comparing
        alone. `more` gives the records that have come since.
        """
        self.close()
        self._write, self._more = write, more
        self._file = TemporaryDatabase(
            "keys of encrypted values",
            "PRAGMA secure_delete = ON; CREATE TABLE wrapped (subject BLOB PRIMARY KEY, record BLOB) WITHOUT ROWID; "
            "BEGIN",
        )
        self._hear(known)

    def key(self, subject: bytes, *, make: bool) -> DataKey | None:
        """Return the key of a subject; None: it has none, and none is to be made."""
        found = self._ready.get(subject)
        if found is not None:
            self._ready.move_to_end(subject)
            return found
        found = self._unwrapped(subject)
        if found is None and make:
            self._hear(self._more())
            found = self._unwrapped(subject) or self._made(subject)
        if found is not None:
            self._ready[subject] = found
            if len(self._ready) > _READY:
                self._ready.popitem(last=False)
        return found

    def refresh(self) -> None:
        """Hear of the keys that have come since, and of those that were erased: another process writes them."""
        self._hear(self._more())

    def shred(self, subject: bytes) -> None:
        """Erase the key of a subject, in the open transaction; nothing is written for one that has none.

        So a tombstone says that there was a key, and who misspells a subject is not told that it is erased.
        """
        if self._write is None:
            raise BugError("the keys are only read: none can be erased")
        if any(self._db.rows("SELECT 1 FROM wrapped WHERE subject = ?", (subject,))):
            self._forget(subject)
            self._write(subject, None)

    def forget(self) -> None:
        """Forget all keys, and hold those that are heard of from here on: the topic was made again."""
        self._ready.clear()
        self._db.run("DELETE FROM wrapped")

    def close(self) -> None:
        """Forget all keys."""
        self._ready.clear()
        if self._file is not None:
            self._file.close()
        self._file = None

    def _hear(self, records: Records) -> None:
        for subject, record in records:
            if record is None:
                self._forget(subject)
                continue
            if not self.master.has_wrapped(record):
                raise OperatorError(
                    "source.master_key is not the one that the keys in the key topic are wrapped with: nothing that "
                    "is encrypted could be read by those who hold the other",
                    hint="give source.master_key the text that it had; if it is lost, the values are: another name for "
                    "the connector and another sink.topic_prefix begin with a new snapshot",
                )
            self._ready.pop(subject, None)
            self._db.run("REPLACE INTO wrapped VALUES (?, ?)", (subject, record))

    def _forget(self, subject: bytes) -> None:
        self._ready.pop(subject, None)
        self._db.run("DELETE FROM wrapped WHERE subject = ?", (subject,))

    def _unwrapped(self, subject: bytes) -> DataKey | None:
        for (record,) in self._db.rows("SELECT record FROM wrapped WHERE subject = ?", (subject,)):
            found = self.master.key(subject, record)
            if found is None:
                raise OperatorError(
                    "the key topic has a key that cannot be unwrapped: its record was altered",
                    hint="who but the connector may WRITE to the key topic? docs/erasure.md says how it is made again",
                )
            return found
        return None

    def _made(self, subject: bytes) -> DataKey:
        key, record = self.master.new_key(subject)
        if self._write is not None:
            self._write(subject, record)
        self._db.run("REPLACE INTO wrapped VALUES (?, ?)", (subject, record))
        return key

    @property
    def _db(self) -> TemporaryDatabase:
        if self._file is None:
            raise BugError("the keys were not read: no value may be encrypted")
        return self._file
