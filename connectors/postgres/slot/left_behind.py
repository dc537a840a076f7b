"""Finds slots that a connector may have left when its name was changed: they hold back the server's log for nobody.

Another name is another connector, with another slot; what the former one made stays. It cannot be told from a
connector that is only stopped for a while, so it is told and no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cdc.config.config import ConnectorConfig
from cdc.config.findings import Finding, Level
from connectors.postgres.catalog.catalog import Catalog
from connectors.postgres.slot import slot

_MB: Final = 1024 * 1024
_UNREAD: Final = """
SELECT slot_name::text, coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::int8, quote_literal(slot_name)
FROM pg_replication_slots
WHERE database = current_database() AND plugin = 'pgoutput' AND NOT active AND NOT temporary
  AND coalesce(wal_status, '') <> 'lost' AND starts_with(slot_name, 'cdc_') AND slot_name <> %s
ORDER BY 1
"""
"""By their names, slots that connectors have made; a lost one holds nothing back."""

_LOOK: Final = "SELECT slot_name, active, restart_lsn FROM pg_replication_slots WHERE slot_name = {}"
_THEN: Final = (
    "; a connector of that name that is only stopped can be started again; docs/operations.md, “Another name”, says "
    "what to do about one that was renamed"
)


def left_behind(catalog: Catalog, config: ConnectorConfig) -> Iterator[Finding]:
    """Give slots of this database that nobody reads, and that were made for tables that this connector captures."""
    for name, held, literal in catalog.rows("reading pg_replication_slots", _UNREAD, (config.slot,)):
        tables = (f"{schema}.{table}" for schema, table in slot.carried(catalog, name))
        both = sorted(filter(config.source.captures, tables))
        if both:
            yield Finding(
                Level.WARNING,
                f"slot {name}",
                f"slot {name}: it holds back {held // _MB:,} MB of log, and nobody reads it; its publication carries "
                f"{', '.join(both)}, as this connector does: was `name` in the file changed?",
                _LOOK.format(literal) + _THEN,
            )
