"""Reads in a MariaDB's log what stands before one of its transactions: what is sent behind it says nothing of that.

A position of MariaDB names the last transaction of each domain. A server that is asked for what follows sends nothing
of what it logged before: neither that it has another transaction under the same number, since an older copy was
restored, nor what it has written for itself while it was a replica.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from cdc.model.errors import OperatorError, ProtocolError, RetryableError
from connectors.mysql.binlog import events, parser
from connectors.mysql.binlog.last_transaction import LastTransaction, committed_us
from connectors.mysql.binlog.positions import FIRST, BinlogPosition, GtidState
from connectors.mysql.binlog.spill import close_file
from connectors.mysql.replication.dump_stream import BinlogDump, LogEndedError

_SILENT_S: Final = 60.0
_TYPE_AT: Final = 4
_DESCRIPTION, _GTID, _GTID_LIST = 15, 162, 163

Gtid: TypeAlias = tuple[int, int, int]
"""Domain, server, sequence."""


class History(NamedTuple):
    """Is what a server has logged under a GTID, and before it."""

    found: LastTransaction
    before: GtidState
    """The last of each domain and server up to it, with itself."""


Trace: TypeAlias = Callable[[Gtid], History | None]
"""Looks a transaction up; None: the server's files do not have it any more."""


def trace(connect: Callable[[], BinlogDump], files: Sequence[str], gtid: Gtid) -> History | None:
    """Ask a server, whose `files` are given oldest first; see `Trace`. Raises RetryableError."""
    first, behind = 0, len(files)
    while first < behind:  # the first of the files that begin with it
        middle = (first + behind) // 2
        if gtid in _head(connect, files[middle]):
            behind = middle
        else:
            first = middle + 1
    return None if first == 0 else _read(connect, files[first - 1], gtid)


def _head(connect: Callable[[], BinlogDump], file: str) -> GtidState:
    """Return what was logged before a file."""
    dump = connect()
    described: events.FormatDescription | None = None
    try:
        dump.follow(BinlogPosition(file, FIRST))
        while True:
            event = parser.parse(dump.read(_SILENT_S), described)
            if isinstance(event, events.FormatDescription):
                described = event
            elif isinstance(event, events.MariadbGtidList):
                return GtidState({(domain, server): n for domain, server, n in event.gtids})
            elif isinstance(event, events.MariadbGtid):
                return GtidState()
    except LogEndedError:
        return GtidState()  # nothing stands in it, and nothing did before
    finally:
        dump.close()


def _read(connect: Callable[[], BinlogDump], file: str, gtid: Gtid) -> History | None:
    dump = connect()
    described: events.FormatDescription | None = None
    before: dict[tuple[int, int], int] = {}
    heard_s = time.monotonic()
    try:
        dump.follow(BinlogPosition(file, FIRST))
        while True:
            raw = dump.receive()
            if raw is None:
                if time.monotonic() - heard_s > _SILENT_S:
                    raise RetryableError(f"the server does not send its file {file}, in {_SILENT_S:.0f} s")
                dump.wait(0.2)
                continue
            heard_s = time.monotonic()
            if not isinstance(raw, bytes):
                close_file(raw)
                continue
            if raw[_TYPE_AT] not in (_DESCRIPTION, _GTID, _GTID_LIST):
                continue
            event = parser.parse(raw, described)
            if isinstance(event, events.FormatDescription):
                described = event
            elif isinstance(event, events.MariadbGtidList) and not before:
                before = {(domain, server): n for domain, server, n in event.gtids}
            elif isinstance(event, events.MariadbGtid):
                domain, server, n = (int(part) for part in event.gtid.split("-"))
                before[domain, server] = n
                if (domain, server, n) == gtid:
                    return History(LastTransaction(committed_us(event), event.gtid, None), GtidState(before))
                if domain == gtid[0] and server == gtid[1] and n > gtid[2]:
                    return None
    except ProtocolError as exc:
        raise OperatorError(f"the server's file {file} cannot be read: {exc}", hint="is it damaged?") from exc
    finally:
        dump.close()
