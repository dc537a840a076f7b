"""Judges how much log a slot holds back, how soon that ends badly, and what holds it up. Pure, except `read`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from connectors.postgres.catalog.catalog import Catalog
from connectors.postgres.slot.invalidation import loss
from connectors.postgres.slot.slot import REASON

_MB: Final = 1024 * 1024

_READ: Final = f"""
SELECT coalesce(wal_status, ''), coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::int8, safe_wal_size,
       (SELECT nullif(setting::int8, -1) FROM pg_settings WHERE name = 'max_slot_wal_keep_size'), {REASON},
       CASE WHEN active THEN 0
            ELSE coalesce(extract(epoch FROM now() - (to_jsonb(s) ->> 'inactive_since')::timestamptz), 0) END::float8,
       (SELECT nullif(setting::float8, 0) * CASE unit WHEN 'min' THEN 60 ELSE 1 END
        FROM pg_settings WHERE name = 'idle_replication_slot_timeout'),
       CASE WHEN (to_jsonb(s) ->> 'failover')::bool THEN
           (SELECT array_agg(btrim(standby)) FROM unnest(string_to_array(
                nullif(current_setting('synchronized_standby_slots', true), ''), ',')) standby
            WHERE NOT EXISTS (SELECT FROM pg_replication_slots o WHERE o.slot_name = btrim(standby) AND o.active)) END
FROM pg_replication_slots s WHERE slot_name = %s
"""  # noqa: S608 - constants
"""Settings and columns that only newer servers have are asked for by their names, and missing in older ones."""

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
    reason: str = ""
    """Why the server has given it up."""
    idle_s: float = 0.0
    """How long nobody has used it; 0 while it is used, and where the server does not tell."""
    idle_limit_s: float | None = None
    """After how long without use the server gives it up (idle_replication_slot_timeout)."""
    standbys: tuple[str, ...] = ()
    """Slots of standbys that are away and for which the server waits before it sends us anything."""


@dataclass(frozen=True, slots=True)
class RetentionWarning:
    """Holds what to tell, and the statement that helps."""

    level: int
    message: str
    hint: str


def read(catalog: Catalog, slot: str) -> Retention | None:
    """Return it as it is now; None where there is no such slot."""
    for wal_status, held, safe, limit_mb, *more in catalog.rows("reading pg_replication_slots", _READ, (slot,)):
        reason, idle_s, idle_limit_s, standbys = more
        limit = None if limit_mb is None else limit_mb * _MB
        return Retention(slot, wal_status, held, safe, limit, reason, idle_s, idle_limit_s, tuple(standbys or ()))
    return None


def judge(found: Retention) -> RetentionWarning | None:
    """Return what is to be said of it, if anything."""
    held = f"slot {found.slot} holds back {_mb(found.held_bytes)} of log"
    if found.wal_status == "lost":
        lost = loss(found.slot, found.reason)
        return RetentionWarning(LAST, lost.message, lost.hint)
    if found.standbys:
        away = ", ".join(found.standbys)
        return RetentionWarning(
            HALF,
            f"slot {found.slot} waits for standbys: {away} in synchronized_standby_slots is away, and until it is back "
            "the server sends nothing that it has not confirmed",
            f"start the standby that uses {away}; or leave it out of synchronized_standby_slots (ALTER SYSTEM SET; "
            "SELECT pg_reload_conf()): should it be promoted later, it may be behind what is in Kafka",
        )
    if found.idle_limit_s is not None and found.idle_s * 2 > found.idle_limit_s:
        return RetentionWarning(
            QUARTER,
            f"slot {found.slot} has not been used for {found.idle_s / 60:.0f} min, and the server gives it up after "
            f"{found.idle_limit_s / 60:.0f} min (idle_replication_slot_timeout)",
            "start the connector; or ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf()",
        )
    if found.limit_bytes is None or found.safe_bytes is None:
        if found.wal_status != "extended":
            return None
        return RetentionWarning(
            HALF,
            f"{held}, more than max_wal_size, and nothing limits it: the server's disk fills if that goes on",
            "is the connector behind (cdc status CONNECTOR.yaml)? is a transaction left open? SELECT pid, xact_start, "
            "query FROM pg_stat_activity WHERE xact_start < now() - interval '10 minutes'",
        )
    hint = (
        f"ALTER SYSTEM SET max_slot_wal_keep_size = '{2 * found.limit_bytes // _MB}MB'; SELECT pg_reload_conf(); "
        "and find what holds the connector back: cdc status CONNECTOR.yaml"
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
