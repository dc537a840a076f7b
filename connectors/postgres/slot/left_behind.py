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

_MB: Final = 1024 * 1024
_UNREAD: Final = """
SELECT s.slot_name::text, coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn), 0)::int8,
       quote_literal(s.slot_name),
       array_agg(p.schemaname || '.' || p.tablename ORDER BY p.schemaname COLLATE "C", p.tablename COLLATE "C")
FROM pg_replication_slots s JOIN pg_publication_tables p ON p.pubname = s.slot_name
WHERE s.database = current_database() AND s.plugin = 'pgoutput' AND NOT s.active AND NOT s.temporary
  AND coalesce(s.wal_status, '') <> 'lost' AND starts_with(s.slot_name, 'cdc_') AND s.slot_name <> %s
GROUP BY 1, 2, 3 ORDER BY 1
"""
"""By their names, slots that connectors have made, with the publications beside them; a lost one holds nothing back."""

_LOOK: Final = "SELECT slot_name, active, restart_lsn FROM pg_replication_slots WHERE slot_name = {}"
_THEN: Final = (
    "; a connector of that name that is only stopped can be started again; docs/operations.md, “Another name”, says "
    "what to do about one that was renamed"
)


def left_behind(catalog: Catalog, config: ConnectorConfig) -> Iterator[Finding]:
    """Give slots of this database that nobody reads, and that were made for tables that this connector captures."""
    for slot, held, literal, tables in catalog.rows("reading pg_replication_slots", _UNREAD, (config.slot,)):
        both = list(filter(config.source.captures, tables))
        if both:
            yield Finding(
                Level.WARNING,
                f"slot {slot}",
                f"slot {slot}: it holds back {held // _MB:,} MB of log, and nobody reads it; its publication carries "
                f"{', '.join(both)}, as this connector does: was `name` in the file changed?",
                _LOOK.format(literal) + _THEN,
            )
