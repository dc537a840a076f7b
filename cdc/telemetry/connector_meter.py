"""The meter of a connector: its figures for Prometheus, and whether it lives."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any, Final

from cdc.capture.snapshots.snapshot_progress import snapshot_progress, tables_being_read
from cdc.config.config import ConnectorConfig
from cdc.model.errors import BugError, CdcError, OperatorError, RetryableError
from cdc.model.meter import Commit, RunState
from cdc.model.state import Phase, State
from cdc.telemetry.figures import Figures, Labels, Tables, Values
from cdc.telemetry.health import Pulse, Verdict
from cdc.telemetry.metrics import CONNECTOR, DELAYS_S

_READY: Final = frozenset({RunState.SNAPSHOT, RunState.STREAMING})
_STARTED: Final = _READY | {RunState.CREATING, RunState.PAUSED, RunState.STANDBY}
"""A slot is made when every transaction that is open has ended: a process that is started again waits as long."""
_SLOT_STATES: Final = ("reserved", "extended", "unreserved", "lost")
KNOWN_S: Final = 60.0
"""So long what a server has said is shown while it answers no more: one look that fails is no news, four are."""
_DELAYS_MS: Final = tuple(int(bound * 1000) for bound in DELAYS_S)


class ConnectorMeter:
    """Is told by the loop's thread, and asked by others."""

    wanted = True

    def __init__(self, config: ConnectorConfig) -> None:
        self.figures = Figures(CONNECTOR, {"connector": config.name})
        self._state = RunState.STARTING
        self._started = False
        self._of: State | None = None
        """The committed state."""
        self._pending: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._pulse = Pulse(self._not_committed)
        self._fresh_ms = self._ahead_ms = 0
        self._reached: bool | None = None
        """Whether the server answered the last look; None: it was not looked at yet."""
        self._said: Mapping[str, Any] = {}
        """What it said last."""
        self._said_s = time.monotonic()
        self._tables = Tables()
        figures = self.figures
        figures.set("cdc_connector_info", 1, config.source.type, config.sink.prefix)
        asked: dict[str, Callable[[], Values]] = {
            "cdc_connector_state": self._states,
            "cdc_connector_moved_timestamp_seconds": lambda: {(): time.time() - self._pulse.still_s()},
            "cdc_source_lag_seconds": self._lag,
            "cdc_source_fresh_timestamp_seconds": self._fresh,
            "cdc_sink_pending_records": lambda: {(): self._pending()[0]},
            "cdc_sink_pending_bytes": lambda: {(): self._pending()[1]},
            "cdc_connector_tables": lambda: {(): len(self._of.tables)} if self._of else {},
            "cdc_snapshot_tables": self._snapshot_tables,
            "cdc_snapshot_rows": lambda: self._by_table(estimated=False),
            "cdc_snapshot_estimated_rows": lambda: self._by_table(estimated=True),
            "cdc_snapshot_remaining_seconds": self._remaining,
            "cdc_source_reachable": self._reachable,
            "cdc_source_lag_bytes": lambda: self._of_server(lambda said: said.get("lag_bytes")),
            "cdc_source_standby_copies": lambda: self._of_server(lambda said: said.get("standby")),
            "cdc_slot_active": lambda: self._of_slot(lambda slot: float(slot["active"])),
            "cdc_slot_state": self._slot_states,
            "cdc_slot_retained_bytes": lambda: self._of_slot(lambda slot: slot["retained_wal_bytes"] or 0),
            "cdc_slot_safe_bytes": lambda: self._of_slot(lambda slot: slot["safe_wal_size_bytes"]),
            "cdc_binlog_headroom_seconds": self._headroom,
            "cdc_binlog_retention_seconds": self._retention,
        }
        for name, values in asked.items():
            figures.ask(name, values)
        for name in ("cdc_connector_sessions_total", "cdc_source_transactions_total", "cdc_sink_epochs_total",
                     "cdc_sink_records_total", "cdc_sink_bytes_total"):  # fmt: skip
            figures.add(name, 0)
        for error in (RetryableError, OperatorError, BugError):  # a rate is told of what was 0 before
            figures.add("cdc_connector_errors_total", 0, error.__name__)
        figures.add("cdc_connector_retries_total", 0, RetryableError.__name__)
        for outcome in ("committed", "failed"):
            figures.add("cdc_sink_transactions_total", 0, outcome)

    # --- What the loop says -------------------------------------------------------------------------------------------

    def moves(self) -> None:
        self._pulse.moves()

    def waits(self) -> None:
        self._pulse.waits()

    def becomes(self, state: RunState) -> None:
        self._pulse.moves()
        self._state = state
        self._started = self._started or state in _STARTED

    def opened(self, state: State, pending: Callable[[], tuple[int, int]]) -> None:
        self._pulse.moves()
        self._goes_on_from(state)
        self._pending = pending
        self.figures.add("cdc_connector_sessions_total", 1)
        if state.phase is Phase.STREAM:
            self._fresh_ms = max(self._fresh_ms, state.source_ms)

    def committed(self, commit: Commit) -> None:
        self._pulse.moves()
        self._goes_on_from(commit.state)
        figures, label = self.figures, self._tables.label
        for (table, op), many in commit.events.items():
            figures.add("cdc_source_events_total", many, label(table), op)
        if commit.transactions:
            self._delayed(list(commit.transactions))
        figures.add("cdc_sink_transactions_total", 1, "committed")
        figures.add("cdc_sink_records_total", commit.records)
        figures.add("cdc_sink_bytes_total", commit.size_bytes)
        figures.set("cdc_sink_epochs_total", commit.epochs)
        figures.set("cdc_sink_commit_timestamp_seconds", time.time())
        figures.histogram("cdc_sink_commit_duration_seconds").observe_one(commit.took_s)

    def _goes_on_from(self, state: State) -> None:
        """Count on: the position's own counts fall where an older one was imported, or restored, meanwhile."""
        before = self._of
        for name, now, last in (
            ("cdc_dead_letters_total", state.dead_letters, before.dead_letters if before else 0),
            ("cdc_rereads_total", state.rereads, before.rereads if before else 0),
        ):
            self.figures.add(name, max(0, now - last))
        self._of = state

    def _delayed(self, at_ms: list[int]) -> None:
        """Count when source transactions were committed, which is nearly in order."""
        at_ms.sort()
        now_ms, count = time.time_ns() // 1_000_000 + self._ahead_ms, len(at_ms)
        up_to = [count - bisect_left(at_ms, now_ms - bound) for bound in _DELAYS_MS]
        total_s = max(0, now_ms * count - sum(at_ms)) / 1000
        self.figures.histogram("cdc_source_delay_seconds").observe(up_to, count, total_s)
        self.figures.add("cdc_source_transactions_total", count)

    def leaves_out(self, tables: int) -> None:
        self.figures.set("cdc_connector_tables_left_out", tables)

    def is_fresh(self, source_ms: int, ahead_ms: int) -> None:
        self._fresh_ms, self._ahead_ms = source_ms, ahead_ms

    def aborted(self) -> None:
        self.figures.add("cdc_sink_transactions_total", 1, "failed")

    def fails(self, error: CdcError) -> None:
        self._pulse.moves()
        self.figures.add("cdc_connector_errors_total", 1, type(error).__name__)

    def retries(self, error: CdcError) -> None:
        self.figures.add("cdc_connector_retries_total", 1, type(error).__name__)
        self.becomes(RunState.RETRYING)

    # --- What a look at the server says -------------------------------------------------------------------------------

    def committed_state(self) -> State | None:
        """Return the state that this copy has committed or gone on from last."""
        return self._of

    def looked(self, found: Mapping[str, Any] | None) -> None:
        """Take what the source's `standing` says; None: the server did not answer."""
        self._reached = found is not None
        if found is not None:
            self._said, self._said_s = found, time.monotonic()

    def _reachable(self) -> Values:
        """Tell of the last look; one that nobody answers for long, also not with an error, was not answered."""
        late = time.monotonic() - self._said_s > KNOWN_S
        return {} if self._reached is None and not late else {(): float(bool(self._reached) and not late)}

    def _of_server(self, value: Callable[[Mapping[str, Any]], float | None]) -> Values:
        found = value(self._said) if time.monotonic() - self._said_s <= KNOWN_S else None
        return {} if found is None else {(): found}

    def _of_slot(self, value: Callable[[Mapping[str, Any]], float | None]) -> Values:
        return self._of_server(lambda said: value(said["slot"]) if said.get("slot") else None)

    def _slot_states(self) -> Values:
        known = self._of_slot(lambda slot: _SLOT_STATES.index(slot["wal_status"]) if slot["wal_status"] in _SLOT_STATES
                              else -1)  # fmt: skip
        return {(state,): float(number == known[()]) for number, state in enumerate(_SLOT_STATES)} if known else {}

    def _headroom(self) -> Values:
        """Tell from the setting as it was said last: while the server is away, binlog grows old all the same."""
        kept_s = self._retention().get(())
        if kept_s is None:
            return {}
        if self._fresh_ms or self._of is None or not self._of.source_ms:
            return {(): kept_s - self._lag().get((), 0.0)}
        # before all tables are read the position stays where the snapshot began, which is known
        return {(): kept_s - (time.time_ns() // 1_000_000 + self._ahead_ms - self._of.source_ms) / 1000}

    def _retention(self) -> Values:
        kept_s = (self._said.get("binlog") or {}).get("kept_for_seconds")
        return {} if kept_s is None else {(): kept_s}

    def _not_committed(self) -> tuple[int, int]:
        return self._pending()

    # --- What is told at a scrape -------------------------------------------------------------------------------------

    def _states(self) -> Values:
        return {(state.value,): float(state is self._state) for state in RunState}

    def _lag(self) -> Values:
        if not self._fresh_ms:
            return {}
        return {(): max(0.0, (time.time_ns() // 1_000_000 + self._ahead_ms - self._fresh_ms) / 1000)}

    def _fresh(self) -> Values:
        return {(): self._fresh_ms / 1000} if self._fresh_ms else {}

    def _snapshot_tables(self) -> Values:
        if self._of is None:
            return {}
        found = {"waiting": 0, "reading": 0, "done": 0}
        initial = snapshot_progress(self._of.snapshot, 0).tables
        for table in initial.values():
            found["done" if table.done else "reading" if table.rows else "waiting"] += 1
        for table_read in tables_being_read(self._of, 0).values():
            if table_read.phase != "initial":
                found["waiting" if table_read.phase == "waiting" else "reading"] += 1
        return {(state,): many for state, many in found.items()}

    def _by_table(self, *, estimated: bool) -> Values:
        found: dict[Labels, float] = {}
        for name, table in tables_being_read(self._of, 0).items() if self._of else ():
            value = table.estimate if estimated else table.rows
            if value is not None:
                at = (self._tables.label(name),)
                found[at] = found.get(at, 0) + value
        return found

    def _remaining(self) -> Values:
        if self._of is None or self._of.phase is not Phase.SNAPSHOT:
            return {}
        left_s = snapshot_progress(self._of.snapshot, time.time_ns() // 1_000_000).eta_s
        return {} if left_s is None else {(): left_s}

    # --- Health -------------------------------------------------------------------------------------------------------

    def looks(self) -> None:
        self._pulse.looks()

    def live(self) -> Verdict:
        return self._pulse.verdict(kafka=self._state is RunState.STARTING or self._pending()[0] > 0)

    def ready(self) -> Verdict:
        return Verdict(ok=self._state in _READY, said=self._state.value)

    def started(self) -> Verdict:
        return Verdict(ok=self._started, said=self._state.value)
