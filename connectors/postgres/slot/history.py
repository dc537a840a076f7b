"""Proves, where it must be doubted, that a server's log before a position is the one that was followed. Pure.

A server that is put back as a copy of its files (a snapshot of its disk, a volume) has everything by which it could be
told from itself: identity, timeline, slot. Once it has been written to beyond the position, its log goes on there, and
what it has before it, in the place of what was published, would be passed over in silence.

The slot tells. Let C be where it is confirmed, P the position, L where the copy was made. The copy has the slot as it
was then, so C is at or before L. If L is at or behind P, the copy has all that was followed, and nothing is lost by
going on from P. If L is before P, so is C. So only where C is before P is there a doubt, which is so after a crash, and
never after an orderly stop. The server still has all between C and P, and sends it when it is asked from C on. What it
sends is a function of its log, which has the publication as it was then, and of what is asked for. So, where the log is
the one that was followed,

1. the last transaction that came before P, which the position names, comes again if it was committed behind C (or the
   position says that none ever came); and
2. none comes behind it that was committed before P.

A copy that was written to before P breaks one of the two, or has written nothing that the publication has: then nothing
is lost. That it has a transaction of the same number at the same place, of the same millisecond, is left out.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, Self

from cdc.model.errors import GapError
from connectors.postgres.lsn import lsn_number, lsn_text
from connectors.postgres.pgoutput.messages import Begin
from connectors.postgres.slot.timeline import CLOSE_THE_GAP

_DIGITS: Final = 8
_MESSAGES: Final = "m"


@dataclass(frozen=True, slots=True)
class LastTransaction:
    """The last transaction that came."""

    commit_lsn: int
    mark: str
    """Tells it from another at that place: a hash of its number, its time, and whether messages were asked for."""

    @classmethod
    def of(cls, commit_lsn: int, xid: object, at_ms: int, *, messages: bool) -> Self:
        """Take down a transaction."""
        digits = hashlib.sha256(f"{xid} {at_ms}".encode()).hexdigest()[:_DIGITS]
        return cls(commit_lsn, f"{digits}{_MESSAGES if messages else ''}")

    @classmethod
    def none_yet(cls, *, messages: bool) -> Self:
        """Note that none has come since the slot was made."""
        return cls(0, _MESSAGES if messages else "")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` wrote. Raises ValueError."""
        lsn, _, mark = text.partition(" ")
        return cls(lsn_number(lsn), mark)

    @property
    def messages(self) -> bool:
        """Whether applications' messages were asked for: without them, a transaction of nothing else never comes."""
        return self.mark.endswith(_MESSAGES)

    def __str__(self) -> str:
        return f"{lsn_text(self.commit_lsn)} {self.mark}"


class Proof:
    """Is told what the server sends from the slot's confirmed LSN on, and is over at the position.

    Raises GapError where that is not what was followed.
    """

    def __init__(self, last: LastTransaction, *, confirmed: int, position: int) -> None:
        self._last, self._position = last, position
        self._missing = last.commit_lsn >= confirmed
        """The last transaction should come, and has not."""
        self.is_over = False

    def begin(self, begin: Begin) -> None:
        """Take a transaction's beginning."""
        lsn = begin.commit_lsn
        if lsn >= self._position:
            self.reach(lsn)
        elif lsn > self._last.commit_lsn:
            raise self._other(f"it has a transaction at {lsn_text(lsn)} that was never followed")
        elif lsn == self._last.commit_lsn:
            at_ms = begin.committed_at_us // 1000
            came = LastTransaction.of(lsn, begin.xid, at_ms, messages=self._last.messages)
            self._missing = came != self._last

    def reach(self, end: int) -> None:
        """Take that all that was committed before `end` has come."""
        if end < self._position:
            return
        self.is_over = True
        if self._missing:
            at = lsn_text(self._last.commit_lsn)
            raise self._other(f"the transaction that was committed at {at}, the last that was followed, is not in it")

    def _other(self, why: str) -> GapError:
        return GapError(
            f"another history: the server's log before the position {lsn_text(self._position)} is not the one that was "
            f"followed: {why}; an older copy of the server was restored and written to since",
            hint=CLOSE_THE_GAP,
        )
