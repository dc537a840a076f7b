"""All metrics: name, type, labels, meaning. docs/metrics.md, alerts and the dashboard are compared with this list.

Every one has the label ``connector``: a connector's name; of an apply job's own figures the prefix of its topics, which
is the connector's name unless connector.yaml says otherwise. Those of apply jobs have ``apply`` too, the job's name.
Those of a fleet's member have ``fleet`` and ``member`` in place of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["gauge", "counter", "histogram"]

MOST_TABLES: Final = 200
"""So many tables have a label of their own; all further ones are ``other`` together."""
OTHER: Final = "other"

DELAYS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 14400.0)
COMMITS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BATCHES_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    name: str
    """Of a counter with ``_total``."""
    kind: Kind
    labels: tuple[str, ...]
    """Those besides the constant ones."""
    help: str
    bounds: tuple[float, ...] = ()
    """Of a histogram."""


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, "gauge", labels, text)


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, "counter", labels, text)


PROCESS: Final = (
    _gauge("cdc_build_info", "The release that runs; always 1.", "version", "python"),
    _gauge("cdc_start_timestamp_seconds", "When the process began."),
    _gauge("cdc_temporary_bytes", "Disk that temporary files of the process take: what is too large for its memory."),
)

CONNECTOR: Final = (
    *PROCESS,
    _gauge("cdc_connector_info", "The connector's source type and the prefix of its topics; always 1.", "source",
           "topic_prefix"),
    _gauge("cdc_connector_state", "1 for what the connector does now, 0 for all other states.", "state"),
    _gauge("cdc_connector_moved_timestamp_seconds", "When the loop was last seen to move: what /livez judges."),
    _counter("cdc_connector_sessions_total", "Sessions begun: each goes on from the position in Kafka."),
    _counter("cdc_connector_errors_total", "Errors that ended a session, by class.", "kind"),
    _counter("cdc_connector_retries_total", "Sessions that are begun again because of an error, by its class.", "kind"),
    _gauge("cdc_connector_tables", "Captured tables."),
    _gauge("cdc_connector_tables_left_out", "Tables that the connector goes on without, though the file asks for them:"
           " `left_out` of `cdc status` has the reason of each."),
    _gauge("cdc_source_lag_seconds", "How long ago, by the source's clock, it was that all that was committed there is"
           " in Kafka: `lag_seconds` of `cdc status`."),
    _gauge("cdc_source_fresh_timestamp_seconds", "The time of the source's clock up to which all that was committed"
           " there is in Kafka: `source_at` of `cdc status`."),
    _gauge("cdc_source_lag_bytes", "How far the log's end is ahead of the committed position: `lag_bytes` of `cdc"
           " status`."),
    _gauge("cdc_source_reachable", "1 if the server answered when its log was last looked at, every 15 s. What it says"
           " is shown for a minute after its last answer, then it is not known."),
    _gauge("cdc_source_standby_copies", "Copies of the connector that stand by, where the server tells."),
    _counter("cdc_source_events_total", "Events committed to Kafka, by table and op (c, u, d, r; m for messages, whose"
             " table is empty); without tombstones.", "table", "op"),
    _counter("cdc_source_transactions_total", "Source transactions committed to Kafka."),
    Metric("cdc_source_delay_seconds", "histogram", (), "From the commit at the source to the commit in Kafka, of each"
           " source transaction.", DELAYS_S),
    _counter("cdc_sink_transactions_total", "Kafka transactions, by outcome: committed, or failed with an error, after"
             " which it may have been committed all the same.", "outcome"),
    Metric("cdc_sink_commit_duration_seconds", "histogram", (), "How long commits of Kafka transactions took.",
           COMMITS_S),
    _gauge("cdc_sink_commit_timestamp_seconds", "When a position was last committed; of an idle connector every 10 s."),
    _counter("cdc_sink_records_total", "Records committed, tombstones and all that is kept beside events included."),
    _counter("cdc_sink_bytes_total", "Bytes of keys and values of those records."),
    _gauge("cdc_sink_pending_records", "Records in the open Kafka transaction."),
    _gauge("cdc_sink_pending_bytes", "Bytes of keys and values of those records."),
    _counter("cdc_sink_epochs_total", "Epochs that the producer has begun, each of which fences the ones before: one"
             " for each session, and one after each interrupted commit."),
    _counter("cdc_dead_letters_total", "Events that went to the dead-letter topic, ever."),
    _counter("cdc_rereads_total", "How often rows were read again because the log did not say what changed, ever."),
    _gauge("cdc_snapshot_tables", "Tables of the first snapshot and of incremental ones, by state: waiting, reading,"
           " done.", "state"),
    _gauge("cdc_snapshot_rows", "Rows read so far of a table that is being read.", "table"),
    _gauge("cdc_snapshot_estimated_rows", "About how many rows such a table has, where that is known.", "table"),
    _gauge("cdc_snapshot_remaining_seconds", "How long the rest of the first snapshot takes at its present pace."),
    _gauge("cdc_slot_active", "1 if the replication slot is in use (PostgreSQL)."),
    _gauge("cdc_slot_state", "1 for the slot's wal_status: reserved, extended, unreserved, lost; else 0.", "state"),
    _gauge("cdc_slot_retained_bytes", "Log that the server keeps for the slot."),
    _gauge("cdc_slot_safe_bytes", "Log that may still be written before the slot may be lost; none without"
           " max_slot_wal_keep_size."),
    _gauge("cdc_binlog_headroom_seconds", "How much older the server's binlog may become than the committed position is"
           " now, by binlog_expire_logs_seconds; none where it is kept for ever (MySQL, MariaDB)."),
    _gauge("cdc_binlog_retention_seconds", "How long the server keeps binlog, by the same setting."),
)  # fmt: skip

APPLY: Final = (
    *PROCESS,
    _gauge("cdc_apply_state", "1 for what the job does now (starting, following, failed), 0 for the others.", "state"),
    _gauge("cdc_apply_moved_timestamp_seconds", "When the job's loop was last seen to move: what /livez judges."),
    _counter("cdc_apply_errors_total", "Errors that ended the job, or for which it waits, by class.", "kind"),
    _counter("cdc_apply_batches_total", "Batches applied."),
    Metric("cdc_apply_batch_duration_seconds", "histogram", (), "How long batches took.", BATCHES_S),
    _gauge("cdc_apply_batch_timestamp_seconds", "When the last batch was applied."),
    _counter("cdc_apply_events_total", "Events read for a table and a store.", "store", "table"),
    _counter("cdc_apply_rows_total", "Rows handed to a store, by outcome: written, deleted, stale, duplicate,"
             " quarantined; a store that does not count has quarantined alone.", "store", "table", "outcome"),
    _gauge("cdc_apply_freshness_seconds", "How far behind the source the store's copies are together:"
           " `freshness_seconds` of `cdc status`.", "store"),
    _gauge("cdc_apply_fresh_timestamp_seconds", "The time of the source's clock up to which they hold everything.",
           "store"),
    _gauge("cdc_apply_tables", "Tables that the store follows.", "store"),
    _gauge("cdc_apply_incomplete_tables", "Those of them that are not complete up to any position yet.", "store"),
    _gauge("cdc_apply_aside_tables", "Those of them that are set aside.", "store"),
    _gauge("cdc_apply_quarantined_events", "Events in quarantine.", "store"),
    _gauge("cdc_apply_deletes_headroom_seconds", "How long the topics certainly keep what the store's copies have not"
           " read of deletes, by delete.retention.ms and the copy that is behind, or set aside, for the longest time.",
           "store"),
    _gauge("cdc_apply_deletes_retention_seconds", "The least delete.retention.ms of the job's topics.", "store"),
)  # fmt: skip

FLEET: Final = (
    *PROCESS,
    _gauge("cdc_fleet_members", "Members of the fleet's group, as its coordinator said last."),
    _gauge("cdc_fleet_coordinator_timestamp_seconds", "When the group's coordinator last answered this member, which"
           " asks it every 15 s."),
    _gauge("cdc_fleet_joined", "1 while this member is in the group, 0 before and while it is out of it."),
    _gauge("cdc_fleet_connectors", "Connectors of the whole fleet by state, as `cdc fleet status` tells; each member"
           " shows the same.", "state"),
    _gauge("cdc_fleet_connector_up", "1 for a connector of this member whose process answers, 0 for one that has none"
           " or does not answer.", "connector"),
    _counter("cdc_fleet_rebalances_total", "How often the group has given places to this member, or wanted some back."),
    _counter("cdc_fleet_losses_total", "How often this member was out of the group, or could not hear it."),
    _counter("cdc_fleet_starts_total", "Connectors' processes started here; take_over: in place of another member's"
             " copy (yes), or again (no).", "take_over"),
    _counter("cdc_fleet_ends_total", "Ends of connectors' processes that nobody had asked for, by what follows: failed"
             " or fenced, and started again after a pause; stopped until somebody decides.", "reason"),
    _gauge("cdc_fleet_moved_timestamp_seconds", "When the member's loop was last seen to move: what /livez judges."),
)  # fmt: skip

SEEN: Final = (
    _gauge("cdc_monitor_connector_running", "1 if somebody follows the source's log as this connector, as its server"
           " tells; of a server that does not tell, if a position was committed lately."),
    _gauge("cdc_consumer_lag_records", "Records of the topic that the group has not read, counted without markers and"
           " holes; of very many the most that there may be.", "group", "topic"),
    _gauge("cdc_consumer_lag_seconds", "How long ago the oldest event that the group has not read was committed at the"
           " source; 0 where it has read everything.", "group", "topic"),
    _gauge("cdc_consumer_status", "1 for how the group does with the topic, by its last commits: ok, unknown, slow,"
           " rewound, stalled, stopped; else 0.", "group", "topic", "status"),
)  # fmt: skip

VERIFIED: Final = (
    _gauge("cdc_verify_timestamp_seconds", "When `cdc verify` looked at the store's copies last; of several the"
           " earliest.", "store"),
    _gauge("cdc_verify_agreed_timestamp_seconds", "When all of them last agreed with the source.", "store"),
    _gauge("cdc_verify_differing_rows", "Rows that differed then.", "store"),
)  # fmt: skip

EVERY: Final = tuple({metric.name: metric for metric in (*CONNECTOR, *APPLY, *FLEET, *SEEN, *VERIFIED)}.values())
