"""A frame is what the events of one source transaction, or of one snapshot chunk, have in common. Pure.

Its parts are computed once, as a format (`%`) of an event; `cdc.encode.compiled`, if it is there, does the same in C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import orjson

from cdc.encode.envelope.message_encoder import MessageEncoder
from cdc.encode.envelope.row_codegen import compiled
from cdc.encode.envelope.source_block import literally
from cdc.encode.envelope.table_encoder import TableEncoder
from cdc.model.change import Coordinates, Message, Position, Xid

_NULL: Final = b"null"


def in_wal(xid: int | None) -> bytes:
    """Make PostgreSQL's `Transaction.where`."""
    return b'"txId":%b,"lsn":%%d' % (_NULL if xid is None else b"%d" % xid)


@dataclass(slots=True)
class _Count:
    """Counts the events of one table in a frame, or the messages."""

    name: str
    events: int = 0


class PlainFrame:
    """Holds the parts that the events of one source transaction, or of one snapshot chunk, have in common."""

    def __init__(
        self,
        *,
        epoch: int,
        commit: int,
        at_ms: int,
        made_at_ms: int,
        transaction: tuple[str, Xid] | None,
        where: bytes,
        view: int = 0,
        snapshot: str = "true",
        alone: bool = False,
    ) -> None:
        """`transaction` is the source's (id, xid); None for rows of a snapshot, read under `view`.

        `where` is as a Transaction has it. `snapshot` is Debezium's mark of a snapshot's rows: ``true``, or
        ``incremental`` for rows read while the log is followed.
        `alone`: of the log, but of no transaction.
        """
        self._epoch, self._commit, self._view = epoch, commit, view
        marked = snapshot if transaction is None and not alone else "false"
        self._at = b'%d,"snapshot":"%b"' % (at_ms, marked.encode())
        self._where = b'%b,"position":"%08x.%016x.%%08x' % (where, epoch, commit)
        self._numbered = transaction is not None
        of = b"null"
        if transaction is not None:
            of = b'{"id":%b,"total_order":%%d,"data_collection_order":%%d}' % literally(orjson.dumps(transaction[0]))
        self._end = b'%b,"op":"%%b","ts_ms":%d}' % (of, made_at_ms)
        self._forms: dict[TableEncoder | MessageEncoder, tuple[bytes, _Count]] = {}
        self._counts: dict[str, _Count] = {}
        self.events = 0

    def event(self, encoder: TableEncoder, op: bytes, before: bytes, after: bytes, lsn: Coordinates) -> bytes:
        """Make one event's value. `before` and `after` are JSON."""
        return self._event(encoder, before, after, op, lsn)

    def message(self, encoder: MessageEncoder, message: Message) -> bytes:
        """Make a message's value."""
        return self._event(encoder, encoder.body(message), b"", b"m", message.lsn)

    def _event(
        self, encoder: TableEncoder | MessageEncoder, first: bytes, second: bytes, op: bytes, lsn: Coordinates
    ) -> bytes:
        try:
            form, count = self._forms[encoder]
        except KeyError:
            form, count = self._form(encoder)
        encoder.made[op] += 1
        if not self._numbered:
            at = lsn if isinstance(lsn, tuple) else (lsn,)
            return form % (first, second, *at, self._view, op)
        self.events = number = self.events + 1
        count.events = of_table = count.events + 1
        if type(lsn) is int:
            return form % (first, second, lsn, number, number, of_table, op)
        return form % (first, second, *cast("tuple[int, int]", lsn), number, number, of_table, op)

    def _form(self, encoder: TableEncoder | MessageEncoder) -> tuple[bytes, _Count]:
        """Make the format of all events that `encoder` makes in this frame."""
        name = encoder.table.qualified if isinstance(encoder, TableEncoder) else encoder.topic
        count = self._counts.get(name)
        if count is None:
            count = self._counts[name] = _Count(name)
        form = b"".join(
            (encoder.source_head, self._at, encoder.source_where, self._where, encoder.source_tail, self._end)
        )
        self._forms[encoder] = form, count
        return form, count

    def counts(self) -> list[tuple[str, int]]:
        """Return how many events of each table were made so far, messages under ``message``; sorted."""
        return sorted((of.name, of.events) for of in self._counts.values() if of.events)

    def skip(self) -> None:
        """Count an event that is not written, so that the others keep their numbers when it is."""
        if self._numbered:
            self.events += 1

    def next_position(self) -> str:
        """The position the next event will have."""
        return Position(self._epoch, self._commit, self.events + 1 if self._numbered else self._view).text


if TYPE_CHECKING or compiled is None:  # noqa: SIM108 - type checkers read the branch
    Frame = PlainFrame
else:
    Frame = compiled.Frame


def transaction_records(transaction: str, at_ms: int, counts: list[tuple[str, int]]) -> list[tuple[bytes, bytes]]:
    """Make the records of a transaction's beginning and end, as Debezium has them."""
    key = orjson.dumps({"id": transaction})
    begin = {"status": "BEGIN", "id": transaction, "ts_ms": at_ms, "event_count": None, "data_collections": None}
    end = {
        "status": "END",
        "id": transaction,
        "ts_ms": at_ms,
        "event_count": sum(count for _, count in counts),
        "data_collections": [{"data_collection": name, "event_count": count} for name, count in counts],
    }
    return [(key, orjson.dumps(begin)), (key, orjson.dumps(end))]
