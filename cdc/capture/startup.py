"""Starts a session: checks the position against the servers, makes the slot, adds tables, goes on behind gaps."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cdc.capture import signals, verdicts
from cdc.capture.incremental_snapshot import IncrementalProgress
from cdc.encode.schema_versions import SchemaVersions
from cdc.model.change import Position, Table
from cdc.model.errors import GapError, raise_first
from cdc.model.interfaces import LINEAGE, Log, Sink, Source
from cdc.model.state import Phase, State

log = logging.getLogger("cdc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a pipeline."""

    connector: str
    prefix: str
    chunk_rows: int = 50_000
    logs: frozenset[Log] = frozenset()
    """The topics written beside the tables' own. Without dead letters, a poison record stops the connector."""
    config: Mapping[str, str] = field(default_factory=dict)
    """The settings that a position depends on: `ConnectorConfig.binding`."""


class Startup:
    """Starts every session of one connector."""

    def __init__(self, settings: Settings, sink: Sink) -> None:
        self._settings = settings
        self._sink = sink

    def state(
        self,
        source: Source,
        identity: Mapping[str, str],
        tables: Sequence[Table],
        state: State | None,
        *,
        gap: GapError | None = None,
    ) -> tuple[State, str | None]:
        """Give the state to go on from, with its log held, and the exported view if the hold is new.

        `gap` is the gap that the last session found while it followed the log.
        """
        names = tuple(table.qualified for table in tables)
        if state is None:
            self.refuse_neighbours(identity, tables)
            source.unused()
            self._refuse_occupied(tables)
            state = State(
                connector=self._settings.connector,
                identity=identity,
                phase=Phase.CREATING,
                epoch=1,
                config=self._settings.config,
            )
            self._sink.commit(state)
        raise_first(verdicts.of_config(state, self._settings.config))
        raise_first(verdicts.of_source(state, identity))
        if state.phase is Phase.CREATING:
            start = source.hold(tables)
            state = state.next(
                phase=Phase.SNAPSHOT,
                identity=identity,
                offset=start.offset,
                commit=start.commit,
                tables=names,
                unread=names,
                snapshot={},
                carried=source.carried(),
            )
            self._sink.commit(state)
            return state, start.view
        still = _still_captured(state, names)
        try:
            moved = source.verify(still)
            if gap is not None:
                raise gap
        except GapError:
            again = signals.after_gap(self._sink.commands())
            if not again:
                raise
            self._refuse_others(identity, tables, still)
            return self._over_the_gap(source, replace(still, identity=identity), tables, again), None
        if moved is not None:
            log.warning(
                "connector %s: the source has failed over from timeline %s to %s, which continues it without a gap",
                state.connector, state.identity.get(LINEAGE), identity.get(LINEAGE),
            )  # fmt: skip
            offset, commit = moved
            still = replace(still, identity=identity, epoch=still.epoch + 1, offset=offset, commit=commit)
        added = self._refuse_others(identity, tables, still)
        if added:
            source.extend(tables)
            since = Position(still.epoch, still.commit - 1, still.windows + 1).text
            reading = {**still.reading, **{table.qualified: IncrementalProgress(since).to_json() for table in added}}
            still = replace(still, tables=names, reading=reading, carried=source.carried())
        stale = {name: reason for name, reason in source.stale().items() if name in still.tables}
        if stale:
            since = Position(still.epoch, still.commit - 1, still.windows + 1).text
            reading = {name: IncrementalProgress(since, gap=True).to_json() for name in stale}
            still = replace(still, reading={**still.reading, **reading}, carried=source.carried())
            for name, reason in stale.items():
                log.warning("table %s: %s: its rows are read again", name, reason)
        if still is not state:
            state = still.next()
            self._sink.commit(state)
        return state, None

    def _over_the_gap(self, source: Source, state: State, tables: Sequence[Table], asked: Sequence[bytes]) -> State:
        """Begin a new hold and a new epoch: all tables are read again, and rows that are gone get deletes."""
        start = source.hold(tables)
        log.warning("the log has a gap before %s: all tables are read again, as asked", start.offset)
        epoch, names = state.epoch + 1, tuple(table.qualified for table in tables)
        since = Position(epoch, 0, 0).text
        state = state.next(
            phase=Phase.STREAM, epoch=epoch, offset=start.offset, commit=start.commit, tables=names, unread=(),
            snapshot={}, reading={name: IncrementalProgress(since, gap=True).to_json() for name in names}, windows=0,
            carried=source.carried(),
        )  # fmt: skip
        for key in asked:
            self._sink.answered(key)
        self._sink.commit(state)
        return state

    def refuse_neighbours(self, identity: Mapping[str, str], tables: Sequence[Table]) -> None:
        """Raise OperatorError if a topic is another connector's, or this one has run under another prefix."""
        of = self._settings
        found, topics = self._sink.neighbours(), {table.qualified: self._sink.topic(table) for table in tables}
        raise_first(
            verdicts.of_neighbours(found, connector=of.connector, prefix=of.prefix, identity=identity, topics=topics)
        )

    def _refuse_others(self, identity: Mapping[str, str], tables: Sequence[Table], state: State) -> list[Table]:
        """Find the tables that `state` does not know; raises OperatorError if their topics are another connector's."""
        added = [table for table in tables if table.qualified not in state.tables]
        if added:
            self.refuse_neighbours(identity, added)
            self._refuse_occupied(added)
        return added

    def _refuse_occupied(self, tables: Sequence[Table]) -> None:
        occupied = self._sink.occupied(tables)
        raise_first(verdicts.of_records(occupied, self._sink.schemas(), self._settings.connector))


def _still_captured(state: State, names: Sequence[str]) -> State:
    """Drop the tables no longer captured from `state`: their changes pass unread, so they are new if they come back."""
    tables = tuple(name for name in state.tables if name in names)
    if tables == state.tables:
        return state
    progress = state.snapshot.get("tables")
    left = {name: at for name, at in progress.items() if name in tables} if isinstance(progress, dict) else progress
    snapshot = {**state.snapshot, "tables": left} if progress is not None else state.snapshot
    unread = tuple(name for name in state.unread if name in names)
    reading = {name: at for name, at in state.reading.items() if name in names}
    return replace(state, tables=tables, unread=unread, snapshot=snapshot, reading=reading)


def unless_rekeyed(state: State, tables: Sequence[Table], versions: SchemaVersions) -> State:
    """Drop the progress of tables that have another key now from `state`: its ranges are of the old key."""
    of = {table.qualified: (table, versions.newest(table)) for table in tables}
    rekeyed = {name for name, (table, was) in of.items() if was is not None and was.key != table.key}
    progress = state.snapshot.get("tables")
    if not isinstance(progress, dict) or not rekeyed & progress.keys():
        return state
    left = {name: at for name, at in progress.items() if name not in rekeyed}
    return replace(state, snapshot={**state.snapshot, "tables": left})
