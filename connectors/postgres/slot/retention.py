"""Judges how much log a slot holds back, and how soon that ends badly. Pure, except `read`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from connectors.postgres.catalog.catalog import Catalog
from connectors.postgres.slot.timeline import CLOSE_THE_GAP

_MB: Final = 1024 * 1024

QUIET, HALF, QUARTER, LAST = range(4)
"""How urgent: nothing to say, half or a quarter of the room left, none."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Holds what pg_replication_slots says of the log a slot holds; sizes are None where the server sets no limit."""

    slot: str
    wal_status: str
    held_bytes: int
    safe_bytes: int | None
    limit_bytes: int | None


@dataclass(frozen=True, slots=True)
class RetentionWarning:
    """Holds what to tell, and the statement that helps."""

    level: int
    message: str
    hint: str


def read(catalog: Catalog, slot: str) -> Retention | None:
    """Return it as it is now; None where there is no such slot."""
    rows = catalog.rows(
        "reading pg_replication_slots",
        "SELECT coalesce(wal_status, ''), coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::int8,"
        " safe_wal_size, (SELECT nullif(setting::int8, -1) FROM pg_settings WHERE name = 'max_slot_wal_keep_size')"
        " FROM pg_replication_slots WHERE slot_name = %s",
        (slot,),
    )
    for wal_status, held, safe, limit_mb in rows:
        return Retention(slot, wal_status, held, safe, None if limit_mb is None else limit_mb * _MB)
    return None


def judge(found: Retention) -> RetentionWarning | None:
    """Return what is to be said of it, if anything."""
    held = f"slot {found.slot} holds back {_mb(found.held_bytes)} of log"
    if found.wal_status == "lost":
        return RetentionWarning(
            LAST,
            f"slot {found.slot} is lost: the server has removed log that it needed",
            CLOSE_THE_GAP,
        )
    if found.limit_bytes is None or found.safe_bytes is None:
        if found.wal_status != "extended":
            return None
        return RetentionWarning(
            HALF,
            f"{held}, more than max_wal_size, and nothing limits it: the server's disk fills if that goes on",
            "is the connector behind (cdc status)? is a transaction left open? SELECT pid, xact_start, query FROM "
            "pg_stat_activity WHERE xact_start < now() - interval '10 minutes'",
        )
    hint = (
        f"ALTER SYSTEM SET max_slot_wal_keep_size = '{2 * found.limit_bytes // _MB}MB'; SELECT pg_reload_conf(); "
        "and find what holds the connector back: cdc status"
    )
    limit = f"max_slot_wal_keep_size is {_mb(found.limit_bytes)}"
    if found.wal_status == "unreserved" or found.safe_bytes <= 0:
        return RetentionWarning(
            LAST, f"{held}, {limit}: the next checkpoint may remove it, and the slot is lost then", hint
        )
    for level, part, words in ((QUARTER, 4, "a quarter"), (HALF, 2, "half")):
        if found.safe_bytes < found.limit_bytes // part:
            left = f"{_mb(found.safe_bytes)} are left, less than {words}"
            return RetentionWarning(level, f"{held}, {limit}: {left}, then the slot is lost", hint)
    return None


def _mb(size: int) -> str:
    return f"{size // _MB:,} MB"
