"""Fills in the values that the log has left out of a row, so that a row with a hole is never published.

They are known from the log or the topic (`cdc.encode.topic_contents.toast`), or the source is asked for them; where it
has lost them too, the row or its table is read again.
"""

from __future__ import annotations

from cdc.encode.dead_letters import DeadLetters, UnwritableError
from cdc.encode.envelope.table_encoder import TableEncoder
from cdc.encode.topic_contents.toast import Ask, ToastValues
from cdc.encode.window_keys import LoggedKeys, Requests
from cdc.model.change import UNCHANGED, Change, Row, Xid
from cdc.model.errors import ChangedError
from cdc.model.interfaces import Handover, LastWritten, Snapshotter


class LeftOutValues:
    """Finds them, or has them read; holds the source to what it has answered within a transaction."""

    def __init__(
        self,
        toast: ToastValues,
        reader: Snapshotter,
        *,
        logged: LoggedKeys,
        requests: Requests,
        letters: DeadLetters,
        not_asked: set[str],
        unsent: bytes | None,
    ) -> None:
        """The source is not asked about the tables `not_asked`, to which tables are added.

        `unsent`: the sink keeps no rows; this JSON stands for values that are not known.
        """
        self._toast, self._reader, self._logged, self._letters = toast, reader, logged, letters
        self._last_written = reader if isinstance(reader, LastWritten) else None  # too slow to ask for each row
        self._requests, self._not_asked, self._unsent = requests, not_asked, unsent
        self._resnapshot_requested: set[tuple[str, int]] = set()
        self.answered: dict[tuple[str, bytes], frozenset[str]] = {}
        """By table and key, the columns that the source has answered for in the transaction at hand."""

    def fill(
        self,
        encoder: TableEncoder,
        row: Row,
        old_key: bytes,
        key: bytes,
        xid: Xid,
        *,
        handover: Handover | None,
        hidden: bool,
        left: bool,
    ) -> tuple[dict[str, bytes], bool]:
        """Return the JSON of the values left out of `row`, and whether the source has it no more.

        `hidden`: its event is not written; `left`: what the topic has of `old_key` may be of another row.
        """
        judged = encoder.published is not None and encoder.published.judge is not None
        holes = left_out(encoder, row)
        ask = self._ask(encoder, key, row, xid) if handover is None else None
        fragments, answered = self._toast.find(encoder, old_key, row, published=not left and not judged, ask=ask)
        if answered:
            self.answered[encoder.table.qualified, key] = holes
        found = fragments
        stale = encoder.published.stale(row, found) if encoder.published is not None else frozenset()
        fragments = {name: json for name, json in found.items() if name not in stale}
        missing = frozenset() if hidden else holes - fragments.keys()
        # what is stale stays known as such: the next event that leaves it out is no reason to read the table again
        self._toast.keep(encoder, key, row, found, unknown=missing - stale)
        if not missing:
            return fragments, False
        asked = self._completed(encoder, row, missing, fragments, moved=old_key != key, judged=judged)
        gone = asked and not missing <= fragments.keys()
        expected = missing <= stale
        if asked and (handover is None or gone) and not (self._letters.on or self._unsent or judged or expected):
            self._request_resnapshot(encoder, missing)
        return fragments, gone

    def hold(self, encoder: TableEncoder, change: Change, old_key: bytes, key: bytes) -> None:
        """Raise ChangedError if the source has answered for a row that its transaction has written once more.

        The answer was the row as the transaction has left it, and not as the event that it was taken for. Nothing of
        this transaction is committed; the topic tells in the next session.
        """
        for at in {old_key, key}:
            columns = self.answered.get((encoder.table.qualified, at))
            if columns is None:
                continue
            stays = change.after is not None and old_key == key and columns <= left_out(encoder, change.after)
            if not stays:
                self._not_asked.add(encoder.table.qualified)
                raise ChangedError(
                    f"table {encoder.table.qualified}: a transaction writes a row again whose left-out values the "
                    "source was asked for: they are read from the topic instead"
                )

    def hold_all(self, encoder: TableEncoder, change: Change) -> None:
        """Raise ChangedError if the source has answered for any row of a table that is truncated."""
        for table, key in self.answered:
            if table == encoder.table.qualified:
                self.hold(encoder, change, key, key)

    def _completed(
        self,
        encoder: TableEncoder,
        row: Row,
        missing: frozenset[str],
        fragments: dict[str, bytes],
        *,
        moved: bool,
        judged: bool,
    ) -> bool:
        """Add what stands for the `missing` values to `fragments`, or ask for the row; False: the mark stands for them.

        A reader who keeps rows has the values under the old key, and so not those of a row that has `moved`. Nor may
        it have those of a table with a condition (`judged`): the row may be one that it sees only from now on.
        """
        if self._unsent is not None and not moved and not judged:
            fragments |= dict.fromkeys(missing, self._unsent)
            if encoder.table.qualified == self._logged.table:  # it may leave this row out, as one that is known
                self._requests.add(encoder.source, tuple(encoder.key_parts(row)))
            return False
        if judged:
            self._requests.add(encoder.source, tuple(encoder.key_parts(row)))
        else:
            self._fill_from_source(encoder, row, missing, fragments)
        return True

    def _ask(self, encoder: TableEncoder, key: bytes, row: Row, xid: Xid) -> Ask | None:
        """Return how the source is asked for the row at hand, if it is to be: it has left out values of it."""
        reader = self._last_written
        if reader is None or encoder.table.qualified in self._not_asked:
            return None
        if (encoder.table.qualified, key) in self.answered:
            return None
        parts = encoder.key_parts(row)

        def ask() -> Row | None:
            found = reader.row_written_last(encoder.source, parts, xid)
            return None if found is None else encoder.cut(found)

        return ask

    def _fill_from_source(
        self, encoder: TableEncoder, row: Row, missing: frozenset[str], fragments: dict[str, bytes]
    ) -> None:
        """Add the `missing` values of `row` to `fragments`, from the source as it is now, unless it has lost them.

        Two cases need it: a table that DDL rewrote; and, between snapshot and stream, a row that moved from a key not
        yet read to a key read before, so that no view saw it and its value was neither read nor logged. The source may
        give a later value than the event's, which the log's later events correct. It may give no row: it is gone, or
        its commit is logged and not visible yet, as where a standby is waited for. So it is asked for once more. The
        value is not kept: the key may be another row's by now.
        """
        now = self._reader.row(encoder.source, encoder.key_parts(row))
        if now is None:
            self._requests.add(encoder.source, tuple(encoder.key_parts(row)))
        else:
            now = encoder.cut(now)
            try:
                fragments |= encoder.fragments(now, missing)
            except ValueError as exc:
                columns = tuple(name for name in encoder.blame(now) if name in missing)
                raise UnwritableError(
                    f"the unchanged value of {', '.join(columns)} cannot be written as JSON", columns
                ) from exc

    def _request_resnapshot(self, encoder: TableEncoder, missing: frozenset[str]) -> None:
        """Request a re-snapshot once for each version: rows without events keep the values they had before it."""
        at = (encoder.table.qualified, encoder.version)
        if at not in self._resnapshot_requested:
            self._resnapshot_requested.add(at)
            names = ", ".join(sorted(missing))
            self._requests.resnapshot(encoder.table, f"unchanged values of {names} came that the topic does not have")


def left_out(encoder: TableEncoder, row: Row) -> frozenset[str]:
    """Name the columns that the log has left out of a row."""
    return frozenset(c.name for c, value in zip(encoder.table.columns, row, strict=True) if value is UNCHANGED)
