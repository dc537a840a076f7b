"""Measures how far the server is ahead of a position, and what the slot holds back: for `cdc status`."""

from __future__ import annotations

from cdc.config.config import ConnectorConfig
from cdc.model.state import Phase, State
from connectors.postgres import session
from connectors.postgres.catalog.catalog import Catalog
from connectors.postgres.lsn import lsn_number, lsn_text
from connectors.postgres.slot import retention
from connectors.postgres.slot.claim import is_held, standby_name
from connectors.postgres.slot.left_behind import left_behind


def standing(config: ConnectorConfig, state: State | None) -> dict[str, object]:
    """Describe server and slot now; `lag_bytes` is None without a position.

    `reading`: a snapshot is being read, or the connector is at work without its slot: paused, or before its tables are
    read. `standby`: how many copies stand by. Raises what `session.connect` raises.
    """
    connection = session.connect(session.parameters(config.source.url, f"cdc {config.name} status"))
    try:
        catalog = Catalog(connection)
        ((end,),) = catalog.rows("reading the log's end", "SELECT pg_current_wal_lsn()::text")
        rows = catalog.rows(
            "reading pg_replication_slots",
            "SELECT slot_name, active, wal_status, confirmed_flush_lsn::text, safe_wal_size,"
            " pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::int8,"
            " a.pid, coalesce(host(a.client_addr), 'this machine'), a.application_name,"
            " (extract(epoch FROM a.backend_start) * 1000)::int8"
            " FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid WHERE slot_name = %s",
            (config.slot,),
        )
        ((reading,),) = catalog.rows(
            "reading pg_stat_activity",
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s)",
            (f"cdc {config.name} snapshot",),
        )
        if state is not None and (state.phase is not Phase.STREAM or state.paused_ms):
            reading = reading or is_held(catalog, config.slot)
        ((clock_ms, standby),) = catalog.rows(
            "reading the clock",
            "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8,"
            " (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s)",
            (standby_name(config.name)[:63],),
        )
        held = retention.read(catalog, config.slot)
        beside = list(left_behind(catalog, config))
    finally:
        connection.close()
    names = ("name", "active", "wal_status", "confirmed_flush_lsn", "safe_wal_size_bytes", "retained_wal_bytes")
    slot = dict(zip(names, rows[0], strict=False)) if rows else None
    pid, where, who, since_ms = rows[0][len(names) :] if rows else (None,) * 4
    if slot is not None and held is not None:
        warned = retention.judge(held)
        slot |= {
            "max_slot_wal_keep_bytes": held.limit_bytes,
            "warning": warned.message if warned else None,
            "hint": warned.hint if warned else None,
        }
    behind = None
    if state is not None and "lsn" in state.offset:
        behind = max(0, lsn_number(end) - lsn_number(str(state.offset["lsn"])))
    return {
        "log_end": lsn_text(lsn_number(end)),
        "log_end_number": lsn_number(end),
        "lag_bytes": behind,
        "reading": reading,
        "clock_ms": clock_ms,
        "standby": standby,
        "slot": slot,
        "left_behind": [{"slot": of.about.removeprefix("slot "), "reason": of.what, "hint": of.fix} for of in beside],
        "owner": None if pid is None else {"who": f"{who} (process {pid}) from {where}", "since_ms": since_ms},
    }
