"""Tells the transaction that a position ends with from another under its number or in its place. Pure.

A server that was restored from an older copy counts on from where that was: it gives numbers to new transactions that
others had before. What a new one has not is the time at which the other was first committed, in microseconds (MySQL),
which replicas and a replay of the log keep; MariaDB's has seconds.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Self

from cdc.model.change import Offset
from cdc.model.errors import BugError
from connectors.mysql.binlog import events
from connectors.mysql.binlog.positions import LARGEST, BinlogPosition

KEY: Final = "last"
"""Its place in an offset."""
_TEXT: Final = re.compile(r"(?P<at_us>\d+)(?: (?P<gtid>[0-9a-z_:-]+))?(?: in (?P<file>.+):(?P<offset>\d+))?")


class LastTransaction(NamedTuple):
    """Is what a position remembers of the transaction before it."""

    at_us: int
    """When it was first committed, since 1970."""
    gtid: str | None
    begin: BinlogPosition | None
    """Where it is in the server's files; None where they are another server's."""

    @classmethod
    def of(cls, offset: Offset) -> Self | None:
        """Read it from a connector's offset; None where there is none."""
        text = offset.get(KEY)
        if text is None:
            return None
        found = _TEXT.fullmatch(str(text))
        if found is None:
            raise BugError("an offset's last transaction is none")
        file = found["file"]
        begin = None if file is None else BinlogPosition(file, int(found["offset"]))
        return cls(int(found["at_us"]), found["gtid"], begin)

    def __str__(self) -> str:
        gtid = "" if self.gtid is None else f" {self.gtid}"
        begin = "" if self.begin is None or self.begin.offset > LARGEST else f" in {self.begin}"
        return f"{self.at_us}{gtid}{begin}"

    def elsewhere(self) -> LastTransaction:
        """Return it without its place, for files that are not those that it was read from."""
        return self._replace(begin=None)

    def is_the_same(self, other: LastTransaction) -> bool:
        """Tell whether two are one transaction, wherever they are."""
        return (self.at_us, self.gtid) == (other.at_us, other.gtid)


def committed_us(event: events.Gtid | events.AnonymousGtid | events.MariadbGtid) -> int:
    """Return when a transaction was first committed, since 1970: seconds where nobody says more."""
    told = None if isinstance(event, events.MariadbGtid) else event.original_commit_us
    return told or event.header.timestamp_s * 1_000_000
