"""The positions that a start goes on from: each made of the one before and of what was found, and none is committed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cdc.capture.snapshots.incremental_progress import IncrementalProgress
from cdc.model.change import WINDOWS, Offset, Position
from cdc.model.interfaces import LINEAGE, Source
from cdc.model.state import EMPTIED, UNLOGGED, State

log = logging.getLogger("cdc")


def unlogged(state: State) -> State:
    """Note that the server was found to write no log."""
    return replace(state, offset={**state.offset, UNLOGGED: 1})


def failed_over(state: State, identity: Mapping[str, str], source: Source, offset: Offset, commit: int) -> State:
    """Go on in the log of the server that took over, in an epoch of its own: positions there may be lower.

    A reading that begins at a place of the log that is not read yet has written nothing, and begins at a place of this
    one: events before that do not say that a row is still there.
    """
    log.warning(
        "connector %s: the source has failed over from timeline %s to %s, which continues it without a gap",
        state.connector, state.identity.get(LINEAGE), identity.get(LINEAGE),
    )  # fmt: skip
    read = Position(state.epoch, state.commit, 0).text
    state = replace(state, identity=identity, epoch=state.epoch + 1, offset=offset, commit=commit)
    since = log_end(state, source)
    reading = {name: {**of, "since": since} if str(of["since"]) > read else of for name, of in state.reading.items()}
    return with_readings(state, reading)


def with_readings(state: State, reading: Mapping[str, Mapping[str, object]]) -> State:
    """Let tables be read that begin at `log_end`, by an earlier release, too: as `Place` has it."""
    return replace(state, reading=reading, windows=max(state.windows, WINDOWS) if reading else state.windows)


def log_end(state: State, source: Source) -> str:
    """Return a position behind all that is in the log by now, and before all that is read from now on.

    Rows may have gone without events at any place of the log that is still to be followed: an event before its end
    does not say that a row is there, which a view that is taken later does.
    """
    return Position(state.epoch, max(state.commit, source.current()) - 1, Position.window(state.windows)).text


def read_again(state: State, tables: Iterable[str], source: Source) -> State:
    """Let tables be read again whose topics may have rows that are gone at the source."""
    since = log_end(state, source)
    reading = {name: IncrementalProgress(since, gap=True).to_json() for name in tables}
    return with_readings(state, {**state.reading, **reading})


def still_captured(state: State, names: Sequence[str]) -> State:
    """Drop the tables no longer captured from `state`: their changes pass unread, so they are new if they come back."""
    tables = tuple(name for name in state.tables if name in names)
    if tables == state.tables:
        return state
    progress = state.snapshot.get("tables")
    left = {name: at for name, at in progress.items() if name in tables} if isinstance(progress, dict) else progress
    snapshot = {**state.snapshot, "tables": left} if progress is not None else state.snapshot
    unread = tuple(name for name in state.unread if name in names)
    reading = {name: at for name, at in state.reading.items() if name in names or at.get(EMPTIED)}
    return replace(state, tables=tables, unread=unread, snapshot=snapshot, reading=reading)
