"""The meter of an apply job: its figures for Prometheus, and whether it lives."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from cdc.config.config import ApplyConfig
from cdc.config.views import ViewsConfig
from cdc.model.errors import CdcError
from cdc.model.meter import JobState, StoreStanding
from cdc.telemetry.figures import Figures, Labels, Tables, Values
from cdc.telemetry.health import Pulse, Verdict
from cdc.telemetry.json_log import Place
from cdc.telemetry.metrics import APPLY

_OF_STORES: Final[Mapping[str, Callable[[StoreStanding], float | None]]] = {
    "cdc_apply_tables": lambda of: of.tables,
    "cdc_apply_incomplete_tables": lambda of: of.incomplete,
    "cdc_apply_aside_tables": lambda of: of.aside,
    "cdc_apply_quarantined_events": lambda of: of.quarantined,
    "cdc_apply_deletes_retention_seconds": lambda of: None if of.deletes_kept_ms is None else of.deletes_kept_ms / 1000,
    "cdc_apply_fresh_timestamp_seconds": lambda of: None if of.source_ms is None else of.source_ms / 1000,
}


class ApplyMeter:
    """Is told by the job's threads, and asked by others."""

    wanted = True

    def __init__(self, config: ApplyConfig | ViewsConfig, place: Place) -> None:
        """`place` is told the newest position, for the log."""
        self._place = place
        self.figures = Figures(APPLY, {"apply": config.name, "connector": config.source.topic_prefix})
        self._state = JobState.STARTING
        self._pulse = Pulse()
        self._pulse.waits()  # Spark starts, copies are opened
        self._started = False
        self._tables = Tables()
        self._stores: Mapping[str, StoreStanding] = {}
        self.figures.ask("cdc_apply_state", lambda: {(s.value,): float(s is self._state) for s in JobState})
        self.figures.ask("cdc_apply_moved_timestamp_seconds", lambda: {(): time.time() - self._pulse.still_s()})
        self.figures.ask("cdc_apply_freshness_seconds", self._freshness)
        self.figures.ask("cdc_apply_deletes_headroom_seconds", self._headroom)
        self.figures.add("cdc_apply_batches_total", 0)

    def moves(self) -> None:
        self._pulse.moves()

    def waits(self) -> None:
        self._pulse.waits()

    def becomes(self, state: JobState) -> None:
        self._state = state
        self._started = self._started or state is JobState.FOLLOWING

    def applied(self, *, took_s: float, position: str, rows: Mapping[tuple[str, str, str], int]) -> None:
        self._place.stands_at(position)
        figures = self.figures
        figures.add("cdc_apply_batches_total", 1)
        figures.set("cdc_apply_batch_timestamp_seconds", time.time())
        figures.histogram("cdc_apply_batch_duration_seconds").observe_one(took_s)
        events: dict[Labels, float] = {}
        outcomes: dict[Labels, float] = {}
        for (store, table, outcome), many in rows.items():
            label = self._tables.label(table)
            to, at = (events, (store, label)) if outcome == "events" else (outcomes, (store, label, outcome))
            to[at] = to.get(at, 0) + many
        figures.replace("cdc_apply_events_total", events)
        figures.replace("cdc_apply_rows_total", outcomes)

    def stands(self, stores: Mapping[str, StoreStanding]) -> None:
        self._stores = stores
        figures = self.figures
        for name, value in _OF_STORES.items():
            figures.replace(name, {(store,): v for store, of in stores.items() if (v := value(of)) is not None})

    def _freshness(self) -> Values:
        now_ms = time.time_ns() // 1_000_000
        known = {store: of.source_ms for store, of in self._stores.items() if of.source_ms is not None}
        return {(store,): max(0.0, (now_ms - source_ms) / 1000) for store, source_ms in known.items()}

    def _headroom(self) -> Values:
        now_ms = time.time_ns() // 1_000_000
        return {
            (store,): (of.deletes_kept_ms - max(0, now_ms - (of.behind_since_ms or now_ms))) / 1000
            for store, of in self._stores.items()
            if of.deletes_kept_ms is not None
        }

    def retries(self, error: CdcError) -> None:
        self._state = JobState.STARTING
        self.figures.add("cdc_apply_errors_total", 1, type(error).__name__)

    def fails(self, error: CdcError) -> None:
        """Note the error that ends the job."""
        self._state = JobState.FAILED
        self.figures.add("cdc_apply_errors_total", 1, type(error).__name__)

    def looks(self) -> None:
        self._pulse.looks()

    def live(self) -> Verdict:
        return self._pulse.verdict()

    def ready(self) -> Verdict:
        return Verdict(ok=self._state is JobState.FOLLOWING, said=self._state.value)

    def started(self) -> Verdict:
        return Verdict(ok=self._started, said=self._state.value)
