"""Knows which transactions of the binlog a view of MySQL's data certainly saw. Pure.

With GTIDs, a view is described by a set that was read *before* it was taken: all of the set was visible then, and other
transactions count as unseen. Without GTIDs, it is described by a place in the log at which no transaction was open.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from cdc.model.change import Xid
from connectors.mysql.binlog.positions import GtidSet


@dataclass(frozen=True, slots=True)
class BinlogView:
    """The transactions that a read certainly saw."""

    before: int | None
    """All transactions whose commit position lies below this one."""
    gtids: GtidSet | None

    @classmethod
    def parse(cls, text: str) -> BinlogView:
        """Parse what `text` gave."""
        value = orjson.loads(text)
        gtids = value["gtids"]
        return cls(value["before"], None if gtids is None else GtidSet.parse(gtids))

    @property
    def text(self) -> str:
        """The text that progress keeps."""
        gtids = None if self.gtids is None else str(self.gtids)
        return orjson.dumps({"before": self.before, "gtids": gtids}).decode()

    def sees(self, xid: Xid) -> bool:
        """Whether the read certainly saw the transaction with this GTID, or with this commit position."""
        if isinstance(xid, str):
            return self.gtids is not None and xid in self.gtids
        return self.before is not None and xid < self.before
