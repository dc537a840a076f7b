"""Says why a server has given up a slot, and what keeps it from doing so again: in the same words everywhere. Pure.

https://www.postgresql.org/docs/current/view-pg-replication-slots.html (invalidation_reason)
"""

from __future__ import annotations

from typing import Final, NamedTuple

from connectors.postgres.slot.timeline import CLOSE_THE_GAP


class Loss(NamedTuple):
    """Is told of a slot that can be followed no more."""

    message: str
    hint: str


_REASONS: Final = {
    "wal_removed": (
        "the server removed log that {slot} still needed (max_slot_wal_keep_size)",
        "set max_slot_wal_keep_size to more than is written while the connector is stopped, or first reads its tables",
    ),
    "rows_removed": (
        "the server removed rows of its catalog that {slot} still needed (rows_removed)",
        "hot_standby_feedback = on, and a physical slot for the standby",
    ),
    "wal_level_insufficient": (
        "the server's wal_level was below logical for a time, and {slot} was given up (wal_level_insufficient)",
        "wal_level = logical, on the primary too",
    ),
    "idle_timeout": (
        "{slot} was not used for longer than idle_replication_slot_timeout, and the server gave it up",
        "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf()",
    ),
}
_UNKNOWN: Final = ("the server has given up {slot} ({reason})", "the server's log says why")


def loss(slot: str, reason: str) -> Loss:
    """Say it of a slot whose `wal_status` is lost; an older server gives no reason, and has only one."""
    what, prevention = _REASONS.get(reason or "wal_removed", _UNKNOWN)
    return Loss(
        f"slot lost: {what.format(slot=slot, reason=reason)}",
        f"{CLOSE_THE_GAP}; so that it is not lost again: {prevention}",
    )
