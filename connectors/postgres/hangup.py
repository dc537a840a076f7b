"""Tells whether a server has hung up on a connection from which nothing is read at present.

A server that is shut down ends ordinary sessions first, and then waits for its walsenders: for one whose client reads
nothing it waits for as long as that client answers. Writing tells nothing: libpq takes what is written to a connection
that was lost, because the reason may come with what is read.
"""

from __future__ import annotations

import select
from typing import Final

_ASKED: Final = getattr(select, "POLLRDHUP", 0)
"""Linux tells of an end that stands behind what is not read yet; of errors every system tells unasked."""


def hung_up(descriptor: int) -> bool:
    """Whether the other end is closed, or the connection broken."""
    poll = select.poll()
    poll.register(descriptor, _ASKED)
    return bool(poll.poll(0))
