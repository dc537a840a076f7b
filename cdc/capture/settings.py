"""What a pipeline is told by a connector's file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cdc.config.published.outbox import OutboxConfig
from cdc.model.interfaces import Log
from cdc.model.wire import Wires
from cdc.rules.capture_rules import NO_RULES, CaptureRules
from cdc.rules.flat import ENVELOPES, Formats
from cdc.rules.routes import NO_ROUTES, Routes


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a pipeline."""

    connector: str
    prefix: str
    chunk_rows: int = 50_000
    rows_per_second: int | None = None
    """How many rows snapshots read a second, on average; None: there is no bound."""
    logs: frozenset[Log] = frozenset()
    """The topics written beside the tables' own. Without dead letters, a poison record stops the connector."""
    config: Mapping[str, str] = field(default_factory=dict)
    """The settings that a position depends on: `ConnectorConfig.binding`."""
    wait_s: float | None = None
    """How long servers that are not up yet are waited for before the connector has run once; None: not at all."""
    rules: CaptureRules = NO_RULES
    """What of the tables is published."""
    outbox: OutboxConfig | None = None
    """The captured table that is an outbox."""
    formats: Formats = ENVELOPES
    """The format of each table's records."""
    routes: Routes = NO_ROUTES
    """The tables whose events go to a topic of another name."""
    wires: Wires | None = None
    """What makes formats that are not plain JSON."""
    key_headers: bool = False
    """Whether the records of a key change name the other key in a header."""
    cloud_events: bool = False
    """Whether records have CloudEvents' attributes in headers."""
    before_of_topic: bool = False
    """Whether `before` is the row that the topic holds, where the log does not have the whole old row."""
    idle_position_s: float = 10.0
    """How often the position is committed where nothing happens: it tells how fresh the topics are."""
    by_pattern: Callable[[str], bool] = lambda _table: False
    """Whether the file does not name a table, as ``schema.table``, and just a pattern brings it."""
    take_over: bool = False
    """Whether another copy that is at work is fenced at once, not waited for."""
    take_over_within_s: float = math.inf
    """For how long after the start of the process that holds: what is started by itself may be held up meanwhile."""
    unsent: bytes | None = None
    """The JSON of a value that the log leaves out and nobody knows, for a sink that keeps no rows.

    Such a sink is told a TRUNCATE as an event, for it has no keys to delete. None: the sink's topics hold the rows.
    """
