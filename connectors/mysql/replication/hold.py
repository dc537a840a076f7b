"""Says where a log that was never followed is followed from: nothing is held, as the server keeps it by itself."""

from __future__ import annotations

from collections.abc import Callable

from cdc.model.change import Offset
from connectors.mysql import session
from connectors.mysql.binlog.positions import FIRST, SEEN, BinlogPosition, GtidState
from connectors.mysql.catalog import server


def begin(
    sql: session.Connection, found: server.Server, made_at: Callable[[BinlogPosition], int]
) -> tuple[Offset, BinlogPosition]:
    """Return the offset to follow the log from, and where the log ends now."""
    end, executed = server.status(sql, found)
    offset: Offset = {"file": end.file, "pos": end.offset, "made_at": made_at(end)}
    if found.gtids:  # what is logged but not yet in the set is sent again, and hidden from no view
        offset |= {"pos": FIRST, "gtids": executed, "sift": end.commit}
    elif found.mariadb:
        statement = f"SELECT BINLOG_GTID_POS(%s, {end.offset})"
        told = session.texts(sql, "reading the log's end", statement, (end.file,))
        state, applied = (server.global_text(sql, name) for name in ("gtid_binlog_state", "gtid_slave_pos"))
        offset |= {"gtids": told[0][0], SEEN: str(GtidState.begun(state, applied))}
    return offset, end
