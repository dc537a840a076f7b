"""Keeps a transactional warehouse: a PostgreSQL table for each source table, all consistent with each other.

    stores:
      warehouse: {type: postgres, url: "postgresql://user:${PASSWORD}@host/warehouse"}

    <schema>.<table>              the live copy: the source's columns, its key, and _cdc_position
    cdc_apply.copies              of each copy: identity, position, mark, due
    cdc_apply.waiting_<number>    events of source transactions that are not whole yet
    cdc_apply.gone_<number>       deleted keys, if the connector publishes no position
    cdc_apply.copy_<number>       a copy beside the live one, or the previous one

A micro-batch is one transaction over all tables: COPY to staging tables; then the events before each table's limit are
folded in with one statement, guarded by position, and the events behind it are added to the waiting ones. Positions and
consumed offsets are in the same transaction. So a reader sees whole source transactions in all tables alike, and events
that come again after a crash are known by their offsets. Events before the position up to which a copy is complete are
late, also those of deleted rows, and are left out (rows of an incremental snapshot have the position just before the
next commit, and are not late).

While a topic is read from its beginning again, its copy shows what it had, until the topic is complete; then one
transaction writes its rows over, and removes those that the topic does not have.

A history (`batch.history`) works the same, but it takes late events too, and nothing is replaced when its log is read
again: each event adds to it once, and the log may no longer have all that it has, or that waits.

See https://www.postgresql.org/docs/current/sql-insert.html#SQL-ON-CONFLICT.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from psycopg2 import sql
from pyspark.sql import SparkSession

from cdc.config.apply_config import StoreConfig
from cdc.model.errors import BugError, CdcError, ConfigError, OperatorError, RetryableError
from spark_apply.events.kafka.topic_identity import difference
from spark_apply.model.altered import AlteredError, put_back, retyped
from spark_apply.model.completeness import LOST, NEW, Mark, moved_on
from spark_apply.model.foresight import Foreseen
from spark_apply.model.identity import has_key, identity_of, stamp
from spark_apply.model.lost_columns import known
from spark_apply.model.store import (
    EVERYTHING,
    Applied,
    Batch,
    CopyError,
    Due,
    Offsets,
    StoredRow,
    Visibility,
    only_options,
)
from spark_apply.model.target_table import TargetTable
from spark_apply.spark.failures import StoreAwayError
from spark_apply.stores.postgres.batch import folding
from spark_apply.stores.postgres.batch.row_by_row import DeferredError, TableFold, fold_carefully
from spark_apply.stores.postgres.copies import tables
from spark_apply.stores.postgres.copies.altered import lost, refuse_altered, refuse_dependents, refuse_to_drop
from spark_apply.stores.postgres.copies.attached import attached, put_on, take_off
from spark_apply.stores.postgres.copies.catalog import BESIDE, LIVE, PREVIOUS, Copies, Copy
from spark_apply.stores.postgres.copies.tables import OURS, Tables, columns_of
from spark_apply.stores.postgres.rows import rows_of
from spark_apply.stores.postgres.session.locks import lock_exclusively
from spark_apply.stores.postgres.session.server import Cursor, LockedError, Server, ShortageError, wait_for_locks
from spark_apply.stores.postgres.values.encoding import Letters


def open_store(config: StoreConfig, *, name: str, prefix: str, spark: SparkSession | None) -> PostgresStore:
    """Connect to the database at the url of `config`; create nothing. Raises OperatorError when it does not answer."""
    del spark
    only_options(config, name, ())
    if config.url is None:
        raise ConfigError(f"stores.{name}: url is missing", hint="url: postgresql://user:${PASSWORD}@host/warehouse")
    return PostgresStore(Server(config.url, f"stores.{name}"), prefix)


class PostgresStore:
    """A `spark_apply.model.store.WholeStore`."""

    whole = True

    def __init__(self, server: Server, prefix: str, role: str = LIVE) -> None:
        self._server = server
        self.patience = server.patience
        self._copies = Copies(prefix)
        self._role = role
        self._tables: dict[str, TargetTable] = {}
        self._staged: dict[str, tuple[int, int, int]] = {}
        self._besides: list[PostgresStore] = []
        self._letters = Letters()
        self._locked: set[str] = set()
        """Tables that another session kept locked: they are waited for no more, until they are free."""
        self._columns: dict[str, tuple[int | None, dict[str, int | str]]] = {}
        """By table, a hash of the columns that its copy had when they were looked at last, and their numbers."""
        self._reached: dict[str, Offsets] = {}
        """By table, the offsets up to which its copy was written when this job has opened or written it last."""
        self._behind: set[str] = set()
        """Tables whose copies have not what was written, which was told: they go on from what they have once opened."""

    def foresee(self, table: TargetTable) -> Foreseen:
        with self._server.transaction(f"looking at {table.qualified}") as cur:
            copy = self._copies.known(cur, table, self._role)
            there = columns_of(cur, sql.Identifier(table.schema, table.copy_name))
            if copy is None and there:
                raise self._copies.foreign(table)
            if copy is None or not there:
                return Foreseen(None)
            identity = identity_of(copy.identity, table, f"PostgreSQL table {table.schema}.{table.copy_name}")
            refuse_altered(cur, table, copy, self._copies.tables(table, copy, self._role))
            return Foreseen(
                identity, tuple(told for told, _ in tables.changes(cur, self._copies.tables(table, copy, self._role)))
            )

    def open(self, table: TargetTable) -> str:
        self._claim_writer(table)
        with self._server.transaction(f"opening {table.qualified}") as cur:
            self._copies.prepare(cur)
            wait_for_locks(cur)  # a reader of it may stay for hours
            copy = self._copies.find(cur, table, self._role)
            there = columns_of(cur, sql.Identifier(table.schema, table.copy_name))
            if table.qualified not in self._behind:
                self._require_line(table, copy)
            if copy is None or (copy.relation is None and not there):
                copy = self._copies.create(cur, table)
            elif tables.make_ours(cur, self._copies.tables(table, copy, self._role)) or copy.relation is None:
                # another hand has dropped what waits in them; or the database, or this table, was restored from a dump
                self._copies.adopt(cur, table, copy.number)
                copy = self._copies.required(cur, table, self._role)
            identity = identity_of(copy.identity, table, f"PostgreSQL table {table.schema}.{table.copy_name}")
            refuse_altered(cur, table, copy, self._copies.tables(table, copy, self._role))
            tables.evolve(cur, self._copies.tables(table, copy, self._role))
            self._fits(table, self._copies.required(cur, table, self._role))
            self._staged.pop(table.qualified, None)
            self._reached[table.qualified] = copy.mark.ends if copy.mark else {}
            self._behind.discard(table.qualified)
        self._tables[table.qualified] = table
        return identity

    def apply(self, batch: Batch) -> Applied:
        raise BugError(f"{batch.table.qualified}: a whole store takes whole batches")

    def fold(self, batches: Collection[Batch], visibility: Mapping[str, Visibility]) -> dict[str, Applied]:
        try:
            return self._fold_all(batches, visibility)
        except StoreAwayError:  # which was waited for
            raise
        except RetryableError:  # if it was committed, the offsets show it, and nothing is done twice
            return self._fold_all(batches, visibility)

    def _fold_all(self, batches: Collection[Batch], visibility: Mapping[str, Visibility]) -> dict[str, Applied]:
        try:
            return self._fold_at_once(batches, visibility)
        except (OperatorError, LockedError, ShortageError, AlteredError) as exc:
            # of a row, of a table, or of all: that is found out
            return self._fold_carefully(batches, visibility, waited=isinstance(exc, LockedError))

    def _fold_at_once(self, batches: Collection[Batch], visibility: Mapping[str, Visibility]) -> dict[str, Applied]:
        by_table, done = {batch.table.qualified: batch for batch in batches}, {}
        reached = dict[str, Offsets]()
        try:
            with self._server.transaction("applying a batch") as cur:
                opened = {
                    name: self._opened(cur, name, by_table.get(name), visible)
                    for name, visible in sorted(visibility.items())
                }
                wait_for_locks(cur, again=not self._locked.isdisjoint(opened))
                for name, (one, copy) in opened.items():
                    staged = (self._server.session, copy.number, one.of.table.version)
                    if self._staged.get(name) != staged:
                        tables.make_stage(cur, one.of)
                        self._staged[name] = staged
                    done[name] = folding.fold(cur, one.of, one.batch, one.visible.limit, one.had)
                    reached[name] = self._note_fold(cur, copy, one)
        except BaseException:
            self._staged.clear()  # staging tables that it created are rolled back
            raise
        self._locked -= done.keys()
        self._reached |= reached
        return done

    def _fold_carefully(
        self, batches: Collection[Batch], visibility: Mapping[str, Visibility], *, waited: bool
    ) -> dict[str, Applied]:
        """Do what `_fold_at_once` does, without the rows that PostgreSQL refuses. Raises CopyError for tables.

        `waited`: a lock was waited for in vain.
        """
        by_table, immediate = {batch.table.qualified: batch for batch in batches}, set[str]()
        while True:
            try:
                with self._server.transaction("applying a batch") as cur:
                    opened: dict[str, tuple[TableFold, Copy]] = {}
                    failed: dict[str, CdcError] = {}
                    for name, visible in sorted(visibility.items()):
                        try:
                            opened[name] = self._opened(cur, name, by_table.get(name), visible)
                        except CdcError as exc:
                            failed[name] = exc
                        else:
                            opened[name][0].immediate = name in immediate
                    wait_for_locks(cur, again=waited or not self._locked.isdisjoint(opened))
                    self._fold_each(cur, [one for one, _ in opened.values()], failed)
                    reached = {name: self._note_fold(cur, copy, one) for name, (one, copy) in opened.items()}
                self._locked -= opened.keys()
                self._reached |= reached
                return {name: one.applied for name, (one, _) in opened.items()}
            except DeferredError as exc:
                found = {name for name, (one, _) in opened.items() if exc.place in (None, one.of.place)} or set(opened)
                if found <= immediate:
                    raise BugError("a deferred constraint refuses what it took row by row") from exc
                immediate |= found
            finally:
                self._staged.clear()

    def _fold_each(self, cur: Cursor, folds: Sequence[TableFold], failed: dict[str, CdcError]) -> None:
        """Fold the tables in. Raises CopyError for those that have `failed` already and those that do now."""
        try:
            fold_carefully(cur, folds, self._server.translated)
        except CopyError as exc:
            failed |= exc.errors
        self._locked |= {name for name, error in failed.items() if isinstance(error, LockedError)}
        if failed:
            raise CopyError(failed)

    def _opened(self, cur: Cursor, name: str, batch: Batch | None, visible: Visibility) -> tuple[TableFold, Copy]:
        """Lock a copy, and return what folding into it needs."""
        table = batch.table if batch is not None else self._tables[name]
        self._lock(cur, table)
        copy = self._copies.find(cur, table, self._role)
        if copy is None or copy.relation is None:
            self._behind.add(table.qualified)
            msg = f"PostgreSQL table {table.schema}.{table.copy_name} was dropped or recreated while the job wrote it"
            hint = "a job that runs makes it again, and fills it; so does cdc apply APPLY.yaml --reset-checkpoint"
            raise OperatorError(msg, hint=hint)
        if self._role == LIVE:  # a rebuild may have swapped in another shape
            identity_of(copy.identity, table, f"PostgreSQL table {table.schema}.{table.copy_name}")
            self._require_line(table, copy)
            self._require_types(cur, table, copy)
        before = copy.mark.complete if copy.mark else None
        late = before.late_before if before and not copy.reload and not table.history else ""
        ends = copy.mark.ends if copy.mark else {}
        had = folding.CopyState({}, "", reload=False) if visible.again else folding.CopyState(ends, late, copy.reload)
        of = self._copies.tables(table, copy, self._role)
        return TableFold(of, batch, visible, had, letters=self._letters), copy

    def _require_line(self, table: TargetTable, copy: Copy | None) -> None:
        """Raise CdcError where the server has lost what this job has committed, or a swap, as by a fail-over."""
        mark = (copy and copy.mark) or NEW
        if not (copy and copy.due) and not mark.holds(self._reached.get(table.qualified, {})):
            self._behind.add(table.qualified)
            raise put_back(f"PostgreSQL table {table.schema}.{table.copy_name}")

    def _require_types(self, cur: Cursor, table: TargetTable, copy: Copy) -> None:
        """Raise CdcError where another hand has given columns other types: PostgreSQL would round or cut off values."""
        if self._columns.get(table.qualified, (None,))[0] == copy.columns:
            return
        of = self._copies.tables(table, copy, self._role)
        refuse_altered(cur, table, copy, of)
        if tables.changes(cur, of):
            raise retyped(f"PostgreSQL table {table.schema}.{table.copy_name}")
        self._fits(table, copy)

    def _fits(self, table: TargetTable, copy: Copy) -> None:
        self._columns[table.qualified] = copy.columns, known(copy.numbers)

    def _note_fold(self, cur: Cursor, copy: Copy, one: TableFold) -> Offsets:
        """Set the mark of a copy that has the batch; return what it has reached once that is committed."""
        batch, visible = one.batch, one.visible
        ends = moved_on(copy.mark.ends if copy.mark else {}, visible.mark.ends)
        mark = self._marked(one.of.table, copy, replace(visible.mark, ends=ends))
        position = max(copy.position or "", batch.position if batch is not None else "") or None
        reload = copy.reload and visible.limit == ""
        self._copies.write(cur, copy.number, mark, position=position, reload=reload)
        return ends

    def position(self, table: TargetTable) -> str | None:
        copy = self._read(table)
        return copy.position if copy else None

    def mark(self, table: TargetTable) -> Mark | None:
        copy = self._read(table)
        return None if copy is None or copy.relation is None or copy.due else copy.mark

    def set_mark(self, table: TargetTable, mark: Mark) -> None:
        with self._server.transaction("setting a mark") as cur:
            copy = self._copies.required(cur, table, self._role)
            from_start = not mark.ends  # the topic is read from its beginning
            if from_start:
                tables.forget_topic(cur, self._copies.tables(table, copy, self._role))
            mark = self._marked(table, copy, mark)
            self._copies.write(cur, copy.number, mark, reload=True if from_start else None)
        self._reached[table.qualified] = mark.ends

    def _marked(self, table: TargetTable, copy: Copy, mark: Mark) -> Mark:
        """Return a mark that has the numbers of a copy's columns; those of before where they may be others now."""
        seen, numbers = self._columns.get(table.qualified, (None, {}))
        had = copy.mark.columns if copy.mark else {}
        return replace(mark, columns=numbers if seen == copy.columns else had)

    def rows(self, table: TargetTable, ids: Collection[str] | None = None) -> Iterator[StoredRow]:
        copy = self._read(table)
        if copy is None or copy.relation is None:
            msg = f"PostgreSQL table {table.schema}.{table.copy_name} cannot be read"
            raise OperatorError(msg, hint="has the apply job made it? cdc apply APPLY.yaml")
        of = self._copies.tables(table, copy, self._role)
        with self._server.reading(f"reading {table.qualified}") as (cur, many):
            yield from rows_of(cur, many, of, self._letters, ids)

    def id_of(self, event_key: str, document_key: str) -> str:
        del event_key
        return document_key

    def beside(self, table: TargetTable) -> PostgresStore:
        with self._server.transaction(f"making a copy beside {table.qualified}") as cur:
            self._lock(cur, table)
            live = self._copies.required(cur, table, self._role)
            of = self._copies.tables(table, live, self._role)
            if live.reload:
                msg = (
                    f"PostgreSQL table {table.schema}.{table.copy_name} is being filled from the beginning of its topic"
                )
                raise OperatorError(msg, hint="wait until cdc status APPLY.yaml shows a position for it")
            refuse_dependents(cur, of)
            kept = self._copies.find(cur, table, PREVIOUS)
            if kept is not None:
                refuse_to_drop(cur, self._copies.tables(table, kept, PREVIOUS))
            if lost(table, live):  # should the rebuild not end, the live copy has empty ones
                self._copies.write(cur, live.number, live.mark and replace(live.mark, version=LOST))
            tables.evolve(cur, of, but=tables.others(cur, of, of.rows))
            self._copies.remove(cur, table, BESIDE)
            shown = live.mark.complete if live.mark and has_key(live.identity, table) else None  # else of other rows
            mark = Mark({}, shown)
            number = self._copies.note(cur, table, BESIDE, stamp(table, live.identity), mark)
            made = Tables(table, number, (OURS, f"copy_{number}"))
            tables.create(cur, made, like=of.rows)
        copy = PostgresStore(self._server.another(), self._copies.prefix, BESIDE)
        self._besides.append(copy)
        return copy

    def hold(self, table: TargetTable) -> None:
        """Lock the live copy against writers until `swap` or `close`."""
        cur = self._server.begin("swapping")
        self._lock(cur, table)

    def swap(self, table: TargetTable, due: Due) -> None:
        with self._server.transaction("swapping") as cur:
            self._lock(cur, table)
            live, made = self._copies.required(cur, table, self._role), self._copies.find(cur, table, BESIDE)
            if made is None:
                msg = f"PostgreSQL table {table.schema}.{table.copy_name}: another rebuild has taken this one's place"
                raise OperatorError(msg, hint="the live table is as it was; let one rebuild run at a time")
            had = live.mark if live.mark and not difference(live.mark.topic, due.topic) else None  # else other offsets
            missing = [n for n, end in (had.ends if had else {}).items() if due.begin.get(n, 0) < end]
            if missing:
                raise BugError(f"{table.qualified}: a copy is swapped in that misses what the live one has")
            complete = had.complete if had else None
            new = self._copies.tables(table, made, BESIDE)
            tables.make_stage(cur, new)
            limit = complete.position if complete else EVERYTHING
            folding.fold(cur, new, None, limit, folding.CopyState(due.begin, "", reload=made.reload))
            self._copies.write(cur, made.number, made.mark, reload=False)
            kept, mark = self._copies.find(cur, table, PREVIOUS), Mark(due.begin, complete, due.topic)

            def exchange() -> None:
                self._copies.remove(cur, table, PREVIOUS)
                self._exchange(cur, live, made, table, role=PREVIOUS, mark=mark, due=None)

            self._lock_exclusively(cur, table, (live, kept), "swapping", exchange)
            self._staged.clear()

    def _exchange(
        self, cur: Cursor, live: Copy, other: Copy, of: TargetTable, *, role: str, mark: Mark | None, due: Due | None
    ) -> None:
        """Give the live copy `role`, and its name, with what others have attached to it, to the other one."""
        had = self._copies.tables(of, live, self._role)
        refuse_dependents(cur, had)
        pairs, beside = attached(cur, had.rows), self._copies.tables(of, other, role)
        take_off(cur, had.rows)
        take_off(cur, beside.rows)
        self._copies.set_aside(cur, of, live, role)
        self._copies.put_in_place(cur, of, other, mark, due)
        put_on(cur, pairs)

    def previous(self, table: TargetTable) -> dt.datetime | None:
        copy = self._read(table, PREVIOUS)
        return copy.replaced_at if copy else None

    def roll_back(self, table: TargetTable, due: Due) -> None:
        with self._server.transaction("rolling back") as cur:
            self._lock(cur, table)
            live, kept = self._copies.required(cur, table, self._role), self._copies.find(cur, table, PREVIOUS)
            if kept is None:
                raise OperatorError(f"{table.qualified}: there is no earlier copy", hint="a rollback uses it up")

            def exchange() -> None:
                self._copies.remove(cur, table, BESIDE)
                self._exchange(cur, live, kept, table, role=BESIDE, mark=kept.mark, due=_since(due, kept.mark))
                self._copies.remove(cur, table, BESIDE)

            self._lock_exclusively(cur, table, (live, kept), "rolling back", exchange)

    def due(self, table: TargetTable) -> Due | None:
        copy = self._read(table)
        return copy.due if copy else None

    def caught_up(self, table: TargetTable, due: Due) -> None:
        with self._server.transaction("catching up") as cur:
            self._copies.caught_up(cur, self._copies.required(cur, table).number, due)

    def close(self) -> None:
        for copy in self._besides:
            copy.close()
        self._server.close()
        self._tables.clear()

    def _claim_writer(self, table: TargetTable) -> None:
        """Raise OperatorError if another job writes this copy."""
        name = json.dumps(["writer", table.schema, table.copy_name])
        if table.qualified not in self._tables and not self._server.lock(name):
            msg = f"PostgreSQL table {table.schema}.{table.copy_name} has a writer already"
            raise OperatorError(msg, hint="stop the apply job that writes it: SELECT * FROM pg_stat_activity shows it")

    def _lock(self, cur: Cursor, table: TargetTable) -> None:
        """Lock the live copy against other writers until the transaction ends; a copy beside has one writer."""
        if self._role == LIVE:
            name = json.dumps(["copies", table.schema, table.copy_name])
            cur.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (name,))

    def _lock_exclusively(
        self, cur: Cursor, table: TargetTable, both: tuple[Copy, Copy | None], doing: str, then: Callable[[], None]
    ) -> None:
        """Wait for the readers of the live copy and of the previous one, which older transactions may still read.

        Raises OperatorError if that does not end.
        """
        roles = zip(both, (self._role, PREVIOUS), strict=True)
        copies = [self._copies.tables(table, copy, role) for copy, role in roles if copy is not None]
        lock_exclusively(cur, [copy.rows for copy in copies], f"{table.qualified}: {doing}", then)

    def _read(self, table: TargetTable, role: str | None = None) -> Copy | None:
        with self._server.transaction("reading how far a copy is") as cur:
            return self._copies.known(cur, table, role or self._role)


def _since(due: Due, mark: Mark | None) -> Due:
    return replace(due, begin=mark.ends, topic=mark.topic) if mark else replace(due, begin={})
