"""Looks a transaction up in a server's log: by its place there, or by its GTID."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeAlias

from cdc.model.errors import OperatorError, ProtocolError, RetryableError
from connectors.mysql.binlog import events, parser
from connectors.mysql.binlog.last_transaction import LastTransaction, committed_us
from connectors.mysql.binlog.positions import BinlogPosition, GtidSet
from connectors.mysql.binlog.spill import close_file
from connectors.mysql.replication.dump_stream import BinlogDump

Find: TypeAlias = Callable[[LastTransaction, GtidSet | None], LastTransaction | None]
"""Gives what the log has in the place of a transaction, or, given the set of all that is known, under its GTID."""

_LOOK_S: Final = 60.0
_OF_FILES: Final = (events.FormatDescription, events.PreviousGtids, events.MariadbGtidList, events.StartEncryption)
_GTIDS: Final = (33, 42)
_DESCRIPTION: Final = 15
_TYPE_AT: Final = 4


def find(connect: Callable[[], BinlogDump], last: LastTransaction, known: GtidSet | None) -> LastTransaction | None:
    """Ask a server; see `Find`. Raises RetryableError."""
    dump = connect()
    try:
        if known is not None and last.gtid is not None:
            return _under(dump, known.without([last.gtid]), last.gtid)
        return None if last.begin is None else _at(dump, last.begin)
    finally:
        dump.close()


def _at(dump: BinlogDump, begin: BinlogPosition) -> LastTransaction | None:
    """Return what begins there; None: no transaction does."""
    deadline = time.monotonic() + _LOOK_S
    described: events.FormatDescription | None = None
    try:
        dump.follow(begin)
        while True:
            event = parser.parse(dump.read(max(0.1, deadline - time.monotonic())), described)
            if isinstance(event, events.FormatDescription):
                described = event
            if isinstance(event, (events.Gtid, events.AnonymousGtid, events.MariadbGtid)):
                return _told(event, begin)
            if not (event.header.artificial or isinstance(event, (events.Rotate, events.Heartbeat, *_OF_FILES))):
                return None
    except RetryableError:
        raise
    except (OperatorError, ProtocolError):  # the place is inside of something else, or behind the end
        return None


def _under(dump: BinlogDump, known: GtidSet, gtid: str) -> LastTransaction:
    """Return what is logged under a GTID, which the server has: it sends what is not in the set, in its log's order."""
    deadline = time.monotonic() + _LOOK_S
    described: events.FormatDescription | None = None
    dump.follow_gtids(known)
    while True:
        raw = dump.receive()
        if raw is None:
            if time.monotonic() > deadline:
                raise RetryableError(f"the server does not send {gtid}, which it has, in {_LOOK_S:.0f} s")
            dump.wait(0.2)
        elif not isinstance(raw, bytes):
            close_file(raw)
        elif raw[_TYPE_AT] == _DESCRIPTION or raw[_TYPE_AT] in _GTIDS:
            event = parser.parse(raw, described)
            if isinstance(event, events.FormatDescription):
                described = event
            elif isinstance(event, events.Gtid) and event.gtid == gtid:
                return _told(event, None)


def _told(
    event: events.Gtid | events.AnonymousGtid | events.MariadbGtid, begin: BinlogPosition | None
) -> LastTransaction:
    gtid = None if isinstance(event, events.AnonymousGtid) else event.gtid
    return LastTransaction(committed_us(event), gtid, begin)
