"""Writes the Grafana dashboard, of one list of panels.

python -m cdc.telemetry.dashboard > deploy/grafana/cdc.json
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any, Final

_WIDTH: Final = 24
_ACROSS: Final = 3
_HEIGHT: Final = 7


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph: its title, unit, and expressions with the text of their legends."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    text: str = ""
    kind: str = "timeseries"


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]


_OF: Final = 'connector=~"$connector"'
_STORES: Final = 'apply=~"$apply"'


def _quantile(part: float, histogram: str, of: str, *, by: str = "connector") -> str:
    return f"histogram_quantile({part}, sum by ({by}, le) (rate({histogram}_bucket{{{of}}}[$__rate_interval])))"


ROWS: Final = (
    Row("Connectors", (
        Panel("State", "none", ((f"cdc_connector_state{{{_OF}}} == 1", "{{connector}} {{state}}"),),
              "What each copy does now.", "stat"),
        Panel("Lag", "s", ((f"cdc_source_lag_seconds{{{_OF}}}", "{{connector}}"),),
              "How long ago it was that all that was committed at the source is in Kafka."),
        Panel("Lag in the log", "bytes", ((f"cdc_source_lag_bytes{{{_OF}}}", "{{connector}}"),)),
        Panel("Events", "cps", ((f"sum by (connector, op) (rate(cdc_source_events_total{{{_OF}}}[$__rate_interval]))",
                                 "{{connector}} {{op}}"),)),
        Panel("Events by table", "cps", ((
            f"topk(10, sum by (table) (rate(cdc_source_events_total{{{_OF}}}[$__rate_interval])))", "{{table}}"),)),
        Panel("Source transactions", "cps", ((f"rate(cdc_source_transactions_total{{{_OF}}}[$__rate_interval])",
                                              "{{connector}}"),)),
        Panel("From commit to Kafka", "s", (
            (_quantile(0.5, "cdc_source_delay_seconds", _OF), "{{connector}} half"),
            (_quantile(0.99, "cdc_source_delay_seconds", _OF), "{{connector}} 99 of 100"),
        )),
        Panel("Commits to Kafka", "s", ((_quantile(0.95, "cdc_sink_commit_duration_seconds", _OF),
                                         "{{connector}} 95 of 100"),)),
        Panel("Kafka transactions", "cps", ((
            f"sum by (connector, outcome) (rate(cdc_sink_transactions_total{{{_OF}}}[$__rate_interval]))",
            "{{connector}} {{outcome}}"),)),
        Panel("Errors and sessions", "none", (
            (f"sum by (connector, kind) (increase(cdc_connector_errors_total{{{_OF}}}[10m]))",
             "{{connector}} {{kind}}"),
            (f"increase(cdc_connector_sessions_total{{{_OF}}}[10m])", "{{connector}} sessions"),
            (f"changes(cdc_start_timestamp_seconds{{{_OF}}}[10m])", "{{connector}} processes"),
        )),
        Panel("Not committed yet", "bytes", ((f"cdc_sink_pending_bytes{{{_OF}}}", "{{connector}}"),)),
        Panel("Temporary files", "bytes", ((f"cdc_temporary_bytes{{{_OF}}}", "{{connector}} {{apply}}"),)),
        Panel("Dead letters", "none", ((f"cdc_dead_letters_total{{{_OF}}}", "{{connector}}"),)),
        Panel("Tables left out", "none", ((f"cdc_connector_tables_left_out{{{_OF}}}", "{{connector}}"),)),
    )),
    Row("The server's log", (
        Panel("Slots in use", "none", ((f"cdc_slot_active{{{_OF}}}", "{{connector}}"),)),
        Panel("Log kept for slots", "bytes", ((f"cdc_slot_retained_bytes{{{_OF}}}", "{{connector}}"),)),
        Panel("Log until a slot is lost", "bytes", ((f"cdc_slot_safe_bytes{{{_OF}}}", "{{connector}}"),),
              "Where max_slot_wal_keep_size is set."),
        Panel("Binlog headroom", "s", ((f"cdc_binlog_headroom_seconds{{{_OF}}}", "{{connector}}"),
                                       (f"cdc_binlog_retention_seconds{{{_OF}}}", "{{connector}} kept")),
              "How long until binlog is removed that was not read."),
    )),
    Row("Snapshots", (
        Panel("Tables", "none", ((f"cdc_snapshot_tables{{{_OF}}}", "{{connector}} {{state}}"),)),
        Panel("Rows read", "none", (
            (f"cdc_snapshot_rows{{{_OF}}}", "{{table}}"), (f"cdc_snapshot_estimated_rows{{{_OF}}}", "{{table}} in all"),
        )),
        Panel("Time left", "s", ((f"cdc_snapshot_remaining_seconds{{{_OF}}}", "{{connector}}"),)),
    )),
    Row("Stores", (
        Panel("Freshness", "s", ((f"cdc_apply_freshness_seconds{{{_STORES}}}", "{{apply}} {{store}}"),),
              "How far the copies are behind the source."),
        Panel("Rows by outcome", "cps", ((
            f"sum by (apply, store, outcome) (rate(cdc_apply_rows_total{{{_STORES}}}[$__rate_interval]))",
            "{{apply}} {{store}} {{outcome}}"),)),
        Panel("Batches", "s", ((
            _quantile(0.95, "cdc_apply_batch_duration_seconds", _STORES, by="apply"), "{{apply}} 95 of 100"),)),
        Panel("Tables not complete or set aside", "none", (
            (f"cdc_apply_incomplete_tables{{{_STORES}}}", "{{apply}} {{store}} not complete"),
            (f"cdc_apply_aside_tables{{{_STORES}}}", "{{apply}} {{store}} set aside"),
        )),
        Panel("Until deletes may be forgotten", "s", (
            (f"cdc_apply_deletes_headroom_seconds{{{_STORES}}}", "{{apply}} {{store}}"),
            (f"cdc_apply_deletes_retention_seconds{{{_STORES}}}", "{{apply}} {{store}} kept"),
        )),
        Panel("Quarantine", "none", ((f"cdc_apply_quarantined_events{{{_STORES}}}", "{{apply}} {{store}}"),)),
    )),
    Row("Fleets", (
        Panel("Members", "none", (("cdc_fleet_members", "{{fleet}} by {{member}}"),
                                  ("cdc_fleet_joined", "{{fleet}} {{member}} is in"))),
        Panel("Connectors by state", "none", ((
            "max by (fleet, state) (cdc_fleet_connectors) > 0", "{{fleet}} {{state}}"),)),
        Panel("Connectors that do not answer", "none", (("cdc_fleet_connector_up == 0", "{{fleet}} {{connector}}"),)),
        Panel("Rebalances", "cps", ((
            "sum by (fleet) (rate(cdc_fleet_rebalances_total[$__rate_interval]))", "{{fleet}}"),)),
        Panel("Ends that nobody had asked for", "cps", ((
            "sum by (fleet, reason) (rate(cdc_fleet_ends_total[$__rate_interval]))", "{{fleet}} {{reason}}"),)),
        Panel("Brokers heard", "s", ((
            "time() - cdc_fleet_coordinator_timestamp_seconds", "{{fleet}} {{member}}"),), "How long ago."),
    )),
    Row("Seen from outside (cdc monitor)", (
        Panel("Connectors that somebody runs", "none", ((f"cdc_monitor_connector_running{{{_OF}}}", "{{connector}}"),)),
        Panel("Consumers: records unread", "none", ((f"cdc_consumer_lag_records{{{_OF}}}", "{{group}} {{topic}}"),)),
        Panel("Consumers: age of what is unread", "s", ((
            f"cdc_consumer_lag_seconds{{{_OF}}}", "{{group}} {{topic}}"),), "Since the commit at the source."),
        Panel("Consumers: status", "none", ((
            f"cdc_consumer_status{{{_OF}}} == 1", "{{group}} {{topic}} {{status}}"),)),
        Panel("Rows that differed when verified", "none", ((
            f"cdc_verify_differing_rows{{{_OF}}}", "{{apply}} {{store}}"),)),
        Panel("Verified", "s", ((
            f"time() - cdc_verify_timestamp_seconds{{{_OF}}}", "{{apply}} {{store}}"),), "How long ago."),
    )),
)  # fmt: skip
"""The dashboard."""

_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def dashboard() -> dict[str, Any]:
    """Make the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row in ROWS:
        panels.append({"type": "row", "title": row.title, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": 1}})  # fmt: skip
        y += 1
        for at, panel in enumerate(row.panels):
            x, down = at % _ACROSS * (_WIDTH // _ACROSS), at // _ACROSS * _HEIGHT
            panels.append(_panel(panel, {"x": x, "y": y + down, "w": _WIDTH // _ACROSS, "h": _HEIGHT}))
        y += -(-len(row.panels) // _ACROSS) * _HEIGHT
    return {
        "uid": "cdc",
        "title": "Change data capture",
        "tags": ["cdc"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
                _variable("connector", "label_values(cdc_connector_info, connector)", "Connector"),
                _variable("apply", "label_values(cdc_apply_state, apply)", "Apply job"),
            ]
        },
        "panels": [{"id": number, **panel} for number, panel in enumerate(panels, 1)],
    }


def _variable(name: str, query: str, label: str) -> dict[str, Any]:
    return {
        "name": name, "label": label, "type": "query", "datasource": _SOURCE, "query": query, "definition": query,
        "refresh": 2, "multi": True, "includeAll": True, "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def _panel(panel: Panel, at: dict[str, int]) -> dict[str, Any]:
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": at,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"textMode": "name"} if panel.kind == "stat" else {"legend": {"showLegend": True}},
        "targets": [
            {"refId": chr(ord("A") + n), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
            for n, (expression, legend) in enumerate(panel.queries)
        ],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dashboard(), indent=1) + "\n")
