"""Keeps a view job's captured tables, as a store of the apply job: each batch that completes a position is a step.

The apply job reads, types and checks rows as for any store, and says up to where source transactions are whole. Rows
behind that wait in the state. When the position or the clock moves on, the views are computed and published.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NoReturn, cast

import orjson
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from cdc.config.apply_config import StoreConfig
from cdc.model.audit import Act
from cdc.model.errors import BugError, OperatorError
from spark_apply.events import typed
from spark_apply.events.latest import not_again
from spark_apply.model.completeness import Mark, TakenIn
from spark_apply.model.store import EVERYTHING, Applied, Batch, Due, Store, StoredRow, Visibility
from spark_apply.model.target_table import TargetTable
from spark_apply.spark import names
from spark_apply.views.embedded.containment import Search
from spark_apply.views.embedded.fold import SourceTable
from spark_apply.views.embedded.held import is_held
from spark_apply.views.embedded.state import ViewState, place
from spark_apply.views.embedded.step import Step, UnitsError, ViewError
from spark_apply.views.model.kept_columns import kept_columns
from spark_apply.views.model.uses import TableUse, Way
from spark_apply.views.model.values import engine_type, quoted
from spark_apply.views.planning.followable import refuse_rekeyed
from spark_apply.views.planning.planned import Changed
from spark_apply.views.planning.view import View
from spark_apply.views.publishing.output import ViewOutput, outbox_note
from spark_apply.views.publishing.status import note_status
from spark_apply.views.running.clock import ViewClock
from spark_apply.views.running.running_views import FOR_GOOD, RunningViews
from spark_apply.views.running.step import StepOfViews
from spark_apply.views.running.stream_reader import StreamReader
from spark_apply.views.running.table_marks import TableMarks


def open_store(config: StoreConfig, *, name: str, prefix: str, spark: SparkSession | None) -> Store:
    """Return the store that `spark_apply.views.job` has made."""
    del name, prefix, spark
    return cast("Store", config.options["store"])


@dataclass(slots=True)
class ViewStore:
    """A `spark_apply.model.store.WholeStore`, from which rows cannot be read: views are published, not stored."""

    state: ViewState
    output: ViewOutput
    views: tuple[View, ...]
    uses: tuple[TableUse, ...]
    """How the views read captured tables, and streams of others."""
    folder: Path
    """Where others find what is known of the views."""
    streams: StreamReader
    compare: Callable[[View, Mapping[str, TargetTable]], Changed]
    """Compares a view with tables as they are."""
    whole: bool = True
    rebuilt: set[str] = field(default_factory=set)
    """Views that are to be computed whole, and published as a whole with the step that does it."""
    answers: tuple[Act, ...] = ()
    """The commands that have asked for it."""
    refused: str | None = None
    """Why they cannot be: nothing of them is published."""
    turn: Callable[[], None] = lambda: None
    """Ends this run, for another one at once: called once they are refused, or a new plan follows what a table is."""
    steps: int = 0
    way_out: str = ""
    """What to do where a topic of a table is another one than was read."""
    reached: str | None = None
    """The position that the state is at; None before the first step of this run."""
    _tables: dict[str, TargetTable] = field(default_factory=dict)
    _limits: dict[str, str] = field(default_factory=dict)
    _running: RunningViews = field(init=False)
    _marks: TableMarks = field(init=False)
    _clock: ViewClock = field(init=False)
    _asked_before: str | None = None
    """That all topics are to be read again, as it was asked for before this start, which does it."""
    computed: dict[str, str] = field(default_factory=dict)
    """By view, how it was computed when it was touched last: ``whole``, or by ``units``."""
    _search: Search = field(default_factory=Search)
    """What the attempts of a step have found out of units that cannot be computed."""
    _left_out: dict[str, int] = field(default_factory=dict)
    """By view, how many of its units could not be computed, as it was told last; 0: it has none."""
    engine: ClassVar[str] = "duckdb"

    def __post_init__(self) -> None:
        self._running = RunningViews(self.views, self.uses, self.output.tell)
        self._marks, self._clock = TableMarks(self.state), ViewClock(self.output.tell)

    @property
    def tables(self) -> frozenset[str]:
        """The captured tables that the views read."""
        return frozenset(use.table for use in self.uses if use.way is not Way.EVENTS)

    @property
    def every_event_of(self) -> frozenset[str]:
        """The tables of which the newest event of each key is not enough."""
        return frozenset(use.table for use in self.uses if use.needs_every_event and use.way is not Way.EVENTS)

    @property
    def stopped(self) -> dict[str, str]:
        """Why views are stopped, by view."""
        return self._running.reasons

    @property
    def reading(self) -> frozenset[str]:
        """Tables that are being read again."""
        return frozenset(self._running.reading)

    def begin(self) -> None:
        """Publish what a killed job has left, and find out which views are to be computed whole."""
        known = dict(self.state.rows("SELECT name, fingerprint FROM views"))
        fit = {view.name for view in self.views if known.get(view.name) == view.fingerprint} - self.output.lost
        self._running.stale = {view.name for view in self.views} - fit | self.rebuilt
        for name in known.keys() - fit:  # what tells so is sent or dropped next, and this start may end at any time
            self.state.execute("DELETE FROM views WHERE name = ?", [name])
        self.output.flush()
        self._keep_tables()
        self._asked_before = self.state.get("again")
        again = self.streams.open()
        self._running.stale |= {view.name for view in self.views if again & set(view.plan.reads)}

    def _keep_tables(self) -> None:
        """Forget rows of tables that no view reads as they were read: what happens from now on is not among them.

        Where a view reads a table so again, or in a new way, its topic is read from the beginning: under an identity
        that no checkpoint knows, as an older one may be of the very same tables.
        """
        used = {use.relation: use for use in self.uses if use.way is not Way.EVENTS}
        with self.state.transaction():
            for relation in self.state.kept_tables():
                if relation not in used:
                    self.state.forget_table(relation)
            known = self._marks.known()
            if any(use.table in known and not self.state.has(relation) for relation, use in used.items()):
                self.state.read_again()

    def read_again(self) -> None:
        with self.state.transaction():
            self.state.read_again()
            self._marks.forget_all()
        self._asked_before = self.state.get("again")

    def open(self, table: TargetTable) -> str:
        refuse_rekeyed(table)
        columns = kept_columns(table)
        with self.state.transaction():
            self._marks.add(table)
            for use in self._running.uses_of(table.qualified):
                if not self.state.has(use.relation):  # its topic is read again, from the beginning
                    self._marks.forget(table)
                self.state.prepare_table(use.relation, columns, use.hidden, use.key(table.key))
        opened = self._tables.get(table.qualified)
        self._tables[table.qualified] = table
        if self._marks.lags(table):
            self._running.note_reading(table.qualified, reading=True)  # perhaps: the next mark says so
        if self._tables.keys() >= self.tables - self._running.left_out:
            found = {view.name: self.compare(view, self._tables) for view in self._running.over(self._tables)}
            more = opened is not None and (table.is_wider_than(opened) or any(of.more for of in found.values()))
            turns = more and self._running.is_to_be_planned(table.qualified)
            cannot_read = {name: of.cannot_read for name, of in found.items()}
            self._running.compare(table.qualified, cannot_read, told=not turns)
            if turns:
                self.turn()
        if self._tables.keys() == self.tables and (self.streams.take_in() or self._running.stale):
            self._begin_views()
        relations = sorted(use.relation for use in self._running.uses_of(table.qualified))
        return "/".join([self.state.get("identity") or "", *relations])

    def _begin_views(self) -> None:
        """Compute views that are new or changed at the position where the state is, whether or not events follow."""
        position, clock_ms = self._position(), self._kept_ms()
        marks = map(self._known, self._tables)
        behind = any(not of or not of.complete or again or of.complete.position < position for of, again in marks)
        if not position or behind or self.state.is_to_be_read_again:
            return  # rows of some tables are still to come, or none of one that is left out: the next fold knows
        self._step(position, clock_ms, clock_ms)
        self._running.try_soon()  # events that are there already may put it right
        self.output.flush()
        self._note_status()

    def apply(self, batch: Batch) -> Applied:
        raise BugError(f"{batch.table.qualified}: a whole store takes whole batches")

    def fold(self, batches: Collection[Batch], visibility: Mapping[str, Visibility]) -> dict[str, Applied]:
        self.output.flush()
        before = self._position()
        with self.state.transaction():
            for batch in batches:
                self._take_in(batch)
            for name, visible in visibility.items():
                self._limits[name] = visible.limit
                self._marks.note(self._tables[name], visible)
                self._running.note_reading(name, reading=visible.reading)
                if visible.gone:
                    self.leave_out(name, visible.gone)
                elif visible.limit >= before and self._running.take_back(name):
                    self.turn()
        self._go_on()
        return {batch.table.qualified: Applied() for batch in batches}

    def leave_out(self, table: str, why: str) -> None:
        self._running.leave_out(table, why)
        for name in sorted(self.rebuilt & self.stopped.keys()):  # else who has asked for it waits as long
            self._refuse_rebuild(ViewError(name, self.stopped[name]))

    def _not_again(self, batch: Batch) -> DataFrame:
        """Return a batch's events without those that were taken in before."""
        mark, reload = self._known(batch.table.qualified)
        if mark is None:
            return batch.rows
        before = mark.complete.late_before if mark.complete is not None and not reload else ""
        return not_again(batch.rows, TakenIn(before, mark.ends))

    def _take_in(self, batch: Batch) -> None:
        """Add events to those that wait."""
        name = batch.table.qualified
        columns, rows = kept_columns(batch.table), self._not_again(batch)
        ours = (typed.KEY, typed.POSITION, typed.OP, typed.SOURCE_MS)
        arrow = rows.select(*ours, *(F.col(names.quoted(c)) for c, _ in columns)).toArrow()
        listed = ", ".join(quoted(column) for column in (*ours, *(c for c, _ in columns)))
        read = ", ".join(
            [*ours, *(f"CAST({quoted(column)} AS {engine_type(kind)}) AS {quoted(column)}" for column, kind in columns)]
        )
        with self.state.registered("incoming", arrow):
            for use in self._running.uses_of(name):
                waiting = place("pending", use.relation)
                self.state.execute(f"INSERT INTO {waiting} ({listed}) SELECT {read} FROM incoming")
        self._marks.take_in(batch.table, batch.position)

    def _go_on(self) -> None:
        """Go to the position and the clock that all tables allow, if that is further than where the state is."""
        going_on = self._tables.keys() - self._running.left_out
        if not going_on or not going_on <= self._limits.keys():
            return
        limit, before, before_ms = min(self._limits[name] for name in going_on), self._position(), self._kept_ms()
        if not limit or limit == EVERYTHING or self.output.is_ahead_of(limit) or limit < before:
            return
        clock_ms = self._clock.next(self._source_ms(), before_ms, moved=limit > max(before, self.output.position))
        if before_ms is not None and clock_ms is not None and clock_ms < before_ms:
            self._running.stale |= {view.name for view in self.views if view.plan.uses_clock}
        again = self._running.is_due(clock_ms) | self.streams.take_in()
        if (limit, clock_ms) == (before, before_ms) and not again:
            return
        self._step(limit, before_ms, clock_ms)
        self.output.flush()
        self._note_status()

    def has_more(self) -> bool:
        """Whether events of streams have come, or a view is to be tried again, while the connector says nothing.

        The position and the clock stay as they are: what is published is right at it, and no deadline passes.
        """
        kept_ms = self._kept_ms()  # or the source's, as the fold takes it where none is kept
        return self._running.is_due(self._source_ms() if kept_ms is None else kept_ms) or self.streams.have_more()

    def _position(self) -> str:
        return self.state.get("position") or ""

    def _kept_ms(self) -> int | None:
        kept = self.state.get("clock_ms")
        return int(kept) if kept is not None else None

    def _source_ms(self) -> int | None:
        """Return the time of the source that all tables are complete up to, or None."""
        marks = [self._known(name)[0] for name in self._tables.keys() - self._running.left_out]
        times = [mark.complete.source_ms if mark and mark.complete else None for mark in marks]
        known = [at for at in times if at is not None]
        return min(known) if len(known) == len(times) and known else None

    def _step(self, limit: str, before_ms: int | None, clock_ms: int | None) -> None:
        """Take the state to a position, with all views that can be computed; the others wait, and are told."""
        loaded, self._search = set[str](), self._new_search()
        while True:
            views = self._running.going_on(clock_ms)
            stale = {view.name for view in views} & self._running.stale
            for view in views:
                if view.name in stale - loaded:
                    self.output.load(view)
            loaded |= stale
            try:
                step = self._new_step(limit, before_ms, clock_ms, stale)
                with self.state.transaction():
                    self._compute(step, views)
            except UnitsError:
                pass  # the step is taken again, and tells the units apart
            except ViewError as exc:
                self._running.stop(exc)
                self._refuse_rebuild(exc)
            else:
                break
        self.steps += 1
        self.reached = limit
        self.computed |= step.computed
        self._tell_left_out(step)
        if self.rebuilt and self.rebuilt <= {view.name for view in views}:
            self.output.answers, self.rebuilt = self.answers, set()
        for use in self.uses:
            if late := step.late.get(use.relation):
                self.output.tell(f"warning: {late:,} events of {use.table} came later than keep: they are left out")
        self._running.computed(views)

    def _tell_left_out(self, step: StepOfViews) -> None:
        """Tell of units that cannot be computed, once while they are the same, and when all are right again."""
        for name, (why, units) in step.left_out.items():
            if self._left_out.get(name) != units:
                held = f"units in quarantine: {units:,}" if units else "it has no units, so all of it is in quarantine"
                self.output.tell(f"warning: view {name}: {why}; {held}, with the rows it had; the others go on")
        self._left_out |= {name: units for name, (_, units) in step.left_out.items()}
        for name in [view.name for view in self.views if view.name in self._left_out and not is_held(self.state, view)]:
            del self._left_out[name]
            self.output.tell(f"view {name}: no unit is in quarantine any more")

    def _refuse_rebuild(self, error: ViewError) -> None:
        """Leave views out that cannot be computed by the definition that was asked for, or that break one of them."""
        if error.view not in self._running.readers_of(self.rebuilt):
            return
        self.refused = error.message
        while self.rebuilt:
            self._running.stop(ViewError(self.rebuilt.pop(), error.message), FOR_GOOD)
        self.turn()

    def _new_step(self, limit: str, before_ms: int | None, clock_ms: int | None, stale: set[str]) -> StepOfViews:
        return Step(self.state, limit, before_ms, clock_ms, stale, search=self._search)

    def _new_search(self) -> Search:
        return Search()

    def _compute(self, step: StepOfViews, views: list[View]) -> None:
        tables = [
            SourceTable(use, kept_columns(table), table.key)
            for table in self._tables.values()
            if table.qualified not in self._running.left_out
            for use in self._running.uses_of(table.qualified)
        ]
        tables += [SourceTable(s.use, s.columns, s.config.key) for s in self.streams.streams.values()]
        for table in tables:
            step.fold(table, reload=self._known(table.use.table)[1])
        for view in views:
            step.compute(view)
        step.apply(tables, views)
        # a view that the step leaves out, or that the file has no more, is not at this position: it is computed whole
        self.state.execute("DELETE FROM views")
        for view in views:
            self.state.execute("INSERT INTO views VALUES (?, ?)", [view.name, view.fingerprint])
        for name in self._tables.keys() - self._running.left_out:
            self._marks.reload(self._tables[name], due=False)
        ((last,),) = self.state.rows("SELECT max(seq) FROM outbox")
        seq = int(last if last is not None else self.state.get("seq") or 0)
        number = int(self.state.get("step") or 0) + 1
        note = outbox_note(
            step=number, seq=seq, position=step.limit, clock_ms=step.clock_after_ms, streams=self.streams.offsets(),
            tokens=(token := uuid.uuid4().hex, self.state.get("token")),
        )  # fmt: skip
        self.state.put(position=step.limit, clock_ms=step.clock_after_ms, seq=seq, step=number, token=token)
        self.state.put(outbox=orjson.dumps(note).decode())

    def _note_status(self) -> None:
        there = {row[0] for row in self.state.rows("SELECT name FROM views")}
        held = dict(self.state.rows("SELECT view, count(*) FROM quarantine GROUP BY view"))
        late = dict(self.state.rows("SELECT relation, events FROM late"))
        noted, stopped = {}, self.stopped
        for view in self.views:
            noted[view.name] = {
                "rows": self._count(view) if view.name in there else None,
                "computed": self.computed.get(view.name),
                "quarantined": held.get(view.name, 0),
                "late": sum(late.get(use.relation, 0) for use in view.uses.values()),
                "stopped": stopped.get(view.name),
            }
        note_status(self.folder, noted, self.streams.unreadable(), engine=self.engine)

    def _count(self, view: View) -> int:
        return self.state.count(view.relation)

    def _known(self, name: str) -> tuple[Mark | None, bool]:
        table = self._tables.get(name)
        return self._marks.of(table) if table is not None else (None, False)

    def position(self, table: TargetTable) -> str | None:
        return self._marks.position(table)

    def mark(self, table: TargetTable) -> Mark | None:
        return self._marks.of(table)[0]

    def set_mark(self, table: TargetTable, mark: Mark) -> None:
        with self.state.transaction():
            if not mark.ends:  # the topic is read from its beginning
                for use in self._running.uses_of(table.qualified):
                    self.state.clear_waiting(use.relation)
                    self.state.execute("DELETE FROM late WHERE relation = ?", [use.relation])  # they come again
                self._marks.reload(table, due=True)
                if self.state.get("again") == self._asked_before:
                    self.state.put(again=None)
                self._limits[table.qualified] = ""
            self._marks.write(table, mark)

    def rows(self, table: TargetTable, ids: Collection[str] | None = None) -> Iterator[StoredRow]:
        del ids
        _refuse(table)

    def id_of(self, event_key: str, document_key: str) -> str:
        del event_key
        return document_key

    def beside(self, table: TargetTable) -> NoReturn:
        _refuse(table)

    def swap(self, table: TargetTable, due: Due) -> None:
        del due
        _refuse(table)

    def hold(self, table: TargetTable) -> None:
        _refuse(table)

    def previous(self, table: TargetTable) -> dt.datetime | None:
        del table
        return None

    def roll_back(self, table: TargetTable, due: Due) -> None:
        del due
        _refuse(table)

    def due(self, table: TargetTable) -> Due | None:
        del table
        return None

    def caught_up(self, table: TargetTable, due: Due) -> None:
        del table, due

    def close(self) -> None:
        self.output.sink.close()
        self.state.close()


def _refuse(table: TargetTable) -> NoReturn:
    hint = "cdc view status VIEWS.yaml says where it stands; read a view from its topic, or from a copy of it"
    raise OperatorError(f"{table.qualified}: the state of a view job is no copy of it", hint=hint)
