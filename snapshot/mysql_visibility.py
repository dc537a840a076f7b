"""What a view of MySQL's data has seen of its binlog. Pure.

By GTIDs, a view is described by a set read *before* it was taken: all of it was visible then, and what else it saw is
taken for unseen. Without them, by the place in the log at which nothing was under way when it was taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from cdc.model.change import Xid
from connectors.mysql.binlog.positions import GtidSet


@dataclass(frozen=True, slots=True)
class BinlogView:
    """Transactions that a read surely saw."""

    before: int | None
    """Those whose commit position lies below this one."""
    gtids: GtidSet | None

    @classmethod
    def parse(cls, text: str) -> BinlogView:
        """From what `text` gave."""
        value = orjson.loads(text)
        gtids = value["gtids"]
        return cls(value["before"], None if gtids is None else GtidSet.parse(gtids))

    @property
    def text(self) -> str:
        """As progress keeps it."""
        gtids = None if self.gtids is None else str(self.gtids)
        return orjson.dumps({"before": self.before, "gtids": gtids}).decode()

    def sees(self, xid: Xid) -> bool:
        """Whether it surely saw the transaction with this GTID, or with this commit position."""
        if isinstance(xid, str):
            return self.gtids is not None and xid in self.gtids
        return self.before is not None and xid < self.before
