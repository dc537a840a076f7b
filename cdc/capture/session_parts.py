"""Puts together what a session works with: all of it begins and ends with the session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from cdc.capture.across_sessions import AcrossSessions
from cdc.capture.commit_pace import CommitPace
from cdc.capture.control.commands import UserCommands
from cdc.capture.control.rereads import Rereads
from cdc.capture.freshness import Freshness
from cdc.capture.log_writer import LogWriter
from cdc.capture.outbox_writer import OutboxWriter
from cdc.capture.place import Place
from cdc.capture.settings import Settings
from cdc.capture.snapshots.incremental_snapshot import IncrementalSnapshot
from cdc.capture.snapshots.throttle import Throttle
from cdc.capture.starting.descriptions import open_versions
from cdc.capture.window_writer import WindowWriter
from cdc.encode.dead_letters import DeadLetters
from cdc.encode.envelope.cloud_events import CloudEvents
from cdc.encode.event_records import EventRecords
from cdc.encode.event_writer import EventWriter
from cdc.encode.left_out_values import LeftOutValues
from cdc.encode.schema_versions import SchemaVersions
from cdc.encode.topic_contents.toast import ToastValues
from cdc.encode.topic_contents.topic_rows import TopicRows
from cdc.encode.truncates import Truncates
from cdc.model.change import Table
from cdc.model.interfaces import Sink, Snapshotter, Source
from cdc.model.state import EMPTIED


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionParts:
    """What writes, what is asked for, and what says when."""

    letters: DeadLetters
    versions: SchemaVersions
    toast: ToastValues
    incremental: IncrementalSnapshot
    rereads: Rereads
    writer: EventWriter
    commands: UserCommands
    freshness: Freshness
    throttle: Throttle
    pace: CommitPace
    log: LogWriter
    windows: WindowWriter

    def close(self) -> None:
        self.incremental.close()
        self.toast.close()
        self.writer.close()


def open_parts(
    settings: Settings,
    sink: Sink,
    source: Source,
    reader: Snapshotter,
    across: AcrossSessions,
    *,
    tables: Sequence[Table],
    place: Place,
    tend: Callable[[], None],
) -> SessionParts:
    """Open the parts of a session that begins at `place`; `tend` looks after the source where one takes long."""
    state, by_name = place.state, {table.qualified: table for table in tables}
    letters = DeadLetters(sink, across.refused, on="dead-letter" in settings.logs)
    versions = open_versions(settings, sink, source, tables, tend=tend)
    toast = ToastValues(
        across.published,
        sink,
        versions.carried,
        committed=place.committed,
        tend=tend,
        floors={name: str(of["since"]) for name, of in state.reading.items() if of["gap"] and name in by_name},
        letters=sink.dead_letters,
    )
    # Those that have gone since they were emptied: of these, too, what their topics had is deleted.
    emptied = (name for name, of in state.reading.items() if name not in by_name and of.get(EMPTIED))
    gone = {name: table for name in emptied if (table := versions.recalled(name))}
    incremental = IncrementalSnapshot(
        reader,
        by_name,
        {name: of for name, of in state.reading.items() if name in by_name or name in gone},
        gone=gone,
        topic=sink.topic,
        records=partial(sink.records, committed=True),
        version=versions.number,
        rows=settings.chunk_rows,
        executor=across.executor(),
    )
    held = (
        TopicRows(across.held, sink, versions.told, committed=place.committed, tend=tend)
        if settings.before_of_topic
        else None
    )
    rereads = Rereads(incremental, sink, by_name, state, since=place.since, log_end=place.log_end)
    records = EventRecords(sink, held, CloudEvents(settings.formats) if settings.cloud_events else None)
    logged, unsent = incremental.logged, settings.unsent
    writer = EventWriter(
        sink,
        versions,
        toast,
        records,
        left_out=LeftOutValues(
            toast, reader, logged=logged, requests=rereads, letters=letters, not_asked=across.not_asked, unsent=unsent
        ),
        truncates=Truncates(sink, records, logged=logged, requests=rereads, whole=unsent is not None),
        logged=logged,
        requests=rereads,
        letters=letters,
        key_headers=settings.key_headers,
        outbox=OutboxWriter(settings.outbox, sink, letters) if settings.outbox is not None else None,
    )
    commands = UserCommands(
        sink,
        source,
        rereads,
        incremental,
        connector=settings.connector,
        captured=state.tables,
        looked_for=across.looked_for,
        since=place.since,
        paused_ms=state.paused_ms,
        told=across.reload,
        keys=settings.rules.keys,
    )
    freshness, throttle = Freshness(source, state.source_ms), Throttle(settings.rows_per_second)
    pace, marks = CommitPace(settings.idle_position_s), "transaction" in settings.logs
    return SessionParts(
        letters=letters,
        versions=versions,
        toast=toast,
        incremental=incremental,
        rereads=rereads,
        writer=writer,
        commands=commands,
        freshness=freshness,
        throttle=throttle,
        pace=pace,
        log=LogWriter(writer, sink, source, place, freshness=freshness, pace=pace, marks=marks),
        windows=WindowWriter(incremental, rereads, commands, source, place, rows=writer.snapshot, throttle=throttle),
    )
