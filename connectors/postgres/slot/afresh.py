"""Has an older server's log read by a new walsender, once those that it may have learned a table from are behind it.

Minor releases before May 2025 let a walsender take a table, or a type, as an open transaction saw it, for all that
follows: where the table has joined the publication since, nothing of it is sent any more, until something else makes
the walsender forget. So there a table's rows are read only once a new one sends the log from a place behind every
transaction that began before. The reader of rows asks for that, the reader of the log does it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from cdc.model.errors import RetryableError
from connectors.postgres.catalog.catalog import Catalog
from connectors.postgres.lsn import at_record_end

_REPAIRED: Final = {14: 140018, 15: 150013, 16: 160009, 17: 170005}
_ASKED_EVERY_S: Final = 0.05

_asked: dict[tuple[str, str], int] = {}
"""By URL and slot: the position that the log is to be read up to before."""


def await_new(catalog: Catalog, log: tuple[str, str], *, over: Callable[[], bool]) -> None:
    """Return once the log is sent by a walsender that began after this call; at once where that changes nothing."""
    ((version,),) = catalog.rows("reading the version", "SELECT current_setting('server_version_num')::int")
    if version >= _REPAIRED.get(version // 10_000, 0):
        return
    _asked[log] = at_record_end(catalog.end())
    while log in _asked:
        if over():
            raise RetryableError("reading was ended")
        time.sleep(_ASKED_EVERY_S)


def is_due(log: tuple[str, str], read_to: int) -> bool:
    """Tell whether a new walsender is asked for, and the log is read up to where it may begin."""
    return bool(_asked) and _asked.get(log, read_to + 1) <= read_to


def has_begun(log: tuple[str, str], at: int) -> None:
    """Let the reader of rows go on, if it has not asked again meanwhile for one that begins later."""
    if is_due(log, at):
        del _asked[log]
