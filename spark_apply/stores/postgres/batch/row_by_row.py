"""Folds in a batch of which PostgreSQL refuses something: finds the refused rows one by one, and the refused tables.

Only what fails comes here: the transaction of a whole batch is tried first, and rolled back. Here every step has a
savepoint. A table is folded in whole if it can be. Those that cannot are tried again behind the others, since a foreign
key between two copies asks for an order. What is left is bisected, in the order of the positions, so that the newest
event of a key wins as it does in one statement. Rows that are refused for the sake of other rows are tried again for as
long as one of them is taken: the row that a foreign key asks for may be of a table that came later. Where they are very
many, their table is bisected behind the others instead. So it is with the rows that a topic which was read again has no
more, while others refer to them: to delete them is tried again.

Rows may exchange values that are unique, or move them along, within one transaction. One by one none of them is taken,
so they are also tried together, with the rows of their keys taken out first (`folding.write`): the whole table before
it is bisected, and what was refused behind that, without the rows whose values are others' even so.

A refusal is of a row if its SQLSTATE says so (`refused_rows`), and of the table otherwise. The server's messages are
not repeated, because they quote values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import psycopg2
import psycopg2.extensions
from psycopg2 import sql

from cdc.model.errors import CdcError, OperatorError
from spark_apply.events.typed import OFFSET, PARTITION, POSITION
from spark_apply.model.store import Applied, Batch, CopyError, Refused, Visibility
from spark_apply.stores.postgres.batch import folding
from spark_apply.stores.postgres.batch.copy_text import CopyText
from spark_apply.stores.postgres.batch.refused_rows import (
    FOR_OTHERS,
    TAKEN,
    UndoneError,
    bisect,
    reason,
    refuses_rows,
    savepoint,
)
from spark_apply.stores.postgres.copies import tables
from spark_apply.stores.postgres.copies.altered import may_move
from spark_apply.stores.postgres.copies.tables import COPY_BYTES, Tables
from spark_apply.stores.postgres.session.server import Cursor, is_locked, is_of_one_table, passes, wait_for_locks
from spark_apply.stores.postgres.values.encoding import Letters
from spark_apply.stores.postgres.values.types import pg_type

_MOST_BLOCKED = 300
"""So many rows of a table that are refused for the sake of others are tried again. With more, the table is divided
behind the others. What is refused then is due to the table: to try it again takes time that grows with the square of
its rows, and the quarantine would not end the search."""
_NUMBER = "_cdc_number"

Blocked = tuple[int, psycopg2.Error]
"""The number of a row, and what PostgreSQL says of it."""


@dataclass(slots=True)
class TableFold:
    """A table that is folded in, and what it needs."""

    of: Tables
    batch: Batch | None
    visible: Visibility
    had: folding.CopyState
    applied: Applied = field(default_factory=Applied)
    immediate: bool = False
    """Whether its deferred constraints are looked at row by row."""
    blocked: list[Blocked] = field(default_factory=list)
    """Rows that are refused for the sake of other rows, which may come or go later."""
    kept: psycopg2.Error | None = None
    """Why rows that a topic which was read again does not have are still there: others refer to them, so far."""
    letters: Letters = field(default_factory=Letters)

    @property
    def waiting(self) -> int:
        """Return how much of it is refused for the sake of other rows."""
        return len(self.blocked) + (self.kept is not None)

    def count(self, written: int | None, deleted: int | None) -> None:
        """Count rows that were written and deleted."""
        had = self.applied
        self.applied = replace(
            had, written=(had.written or 0) + (written or 0), deleted=(had.deleted or 0) + (deleted or 0)
        )


class DeferredError(Exception):
    """Deferred constraints refuse something at the end: those of the table at this place, or of an unknown one."""

    def __init__(self, place: tuple[str, str] | None) -> None:
        super().__init__("a deferred constraint refuses something")
        self.place = place


class _ManyBlockedError(UndoneError):
    """More rows of a table are refused for the sake of others than are tried again."""


class _StillTakenError(UndoneError):
    """Some values are others' even where rows move together."""

    def __init__(self, numbers: set[int]) -> None:
        super().__init__(f"{len(numbers)} rows have values of others")
        self.numbers = numbers


def fold_carefully(cur: Cursor, folds: Sequence[TableFold], translated: Callable[[psycopg2.Error], CdcError]) -> None:
    """Fold the tables in. Raises CopyError for all that cannot go on, DeferredError to be called again with that."""
    failed: dict[str, CdcError] = {}

    def each(some: Sequence[TableFold], step: Callable[[TableFold], object]) -> list[TableFold]:
        """Take a step for each table that goes on; return those of which it says False."""
        left = []
        for one in some:
            if one.of.table.qualified not in failed:
                with _of_table(cur, one, translated, failed):
                    if step(one) is False:
                        left.append(one)
        return left

    each(folds, lambda one: _stage(cur, one))
    left, tried = [one for one in folds if one.of.table.qualified not in failed], len(folds) + 1
    left.sort(key=lambda one: one.immediate)
    while left and len(left) < tried:
        tried, left = len(left), each(left, lambda one: _whole(cur, one))
    if failed:  # nothing of this is kept, and rows that are refused without another table may be taken with it
        raise CopyError(failed)
    several = len(left) > 1
    later = each(left, lambda one: _by_halves(cur, one, may_wait=several))
    each(later, lambda one: _by_halves(cur, one))
    tried = sum(one.waiting for one in left) + 1
    while not failed and 0 < (now := sum(one.waiting for one in left)) < tried:
        tried = now
        each(left, lambda one: _blocked_again(cur, one))
    if not failed:
        each(left, _require_gone)
    if not failed:
        each(left, lambda one: _refuse(cur, one, one.blocked))
    if failed:
        raise CopyError(failed)
    try:
        cur.execute("SET CONSTRAINTS ALL IMMEDIATE")
    except psycopg2.Error as exc:
        if not (refuses_rows(exc) or is_of_one_table(exc)):
            raise
        place = (exc.diag.schema_name, exc.diag.table_name)
        raise DeferredError(place if all(place) else None) from exc  # type: ignore[arg-type]


@contextmanager
def _of_table(
    cur: Cursor, one: TableFold, translated: Callable[[psycopg2.Error], CdcError], failed: dict[str, CdcError]
) -> Iterator[None]:
    """Note a table that cannot go on in `failed`, and go on with the next one: all are found out in one pass."""
    try:
        with savepoint(cur):
            yield
    except psycopg2.Error as exc:
        if passes(exc) and not is_of_one_table(exc):
            raise
        failed[one.of.table.qualified] = translated(exc)
        if is_locked(exc):
            wait_for_locks(cur, again=True)
    except CdcError as exc:
        failed[one.of.table.qualified] = exc


def _whole(cur: Cursor, one: TableFold) -> bool:
    """Fold a table in as a whole; return False if rows of it are refused."""
    try:
        with savepoint(cur):
            taken = _taken(cur, one, _ALL, removing=one.had.reload)
    except psycopg2.Error as exc:
        if not refuses_rows(exc):
            raise
        if exc.pgcode not in TAKEN or not may_move(cur, one.of):
            return False
        try:
            with savepoint(cur):
                taken = _taken(cur, one, _ALL, removing=one.had.reload, moving=True)
        except psycopg2.Error as again:
            if passes(again):
                raise
            return False
    one.count(taken.written, taken.deleted)
    return True


def _by_halves(cur: Cursor, one: TableFold, *, may_wait: bool = False) -> bool:
    """Fold in all rows of a table but those that are refused, which go into quarantine.

    With `may_wait` nothing is done, and False returned, if a foreign key refuses very many: they may ask for rows of
    tables that come later.
    """
    before = one.applied
    try:
        with savepoint(cur):
            _divided(cur, one, may_wait=may_wait)
    except _ManyBlockedError:
        one.blocked, one.applied = [], before
        return False
    return True


def _divided(cur: Cursor, one: TableFold, *, may_wait: bool) -> None:
    if one.had.reload:
        _remove_others(cur, one)

    def attempt(low: int, high: int) -> None:
        among = sql.SQL("{} BETWEEN {} AND {}").format(sql.Identifier(_NUMBER), sql.Literal(low), sql.Literal(high))
        taken = _taken(cur, one, among)
        one.count(taken.written, taken.deleted)

    def refused(found: Sequence[Blocked]) -> None:
        if len(one.blocked) < _MOST_BLOCKED:
            one.blocked += [each for each in found if each[1].pgcode in FOR_OTHERS]
            found = [each for each in found if each[1].pgcode not in FOR_OTHERS]
        if may_wait and len(one.blocked) >= _MOST_BLOCKED:
            raise _ManyBlockedError
        _refuse(cur, one, found)

    cur.execute(sql.SQL("SELECT count(*) FROM {}").format(_suspects(one.of)))
    ((rows,),) = cur.fetchall()
    bisect(cur, int(rows), attempt, refused)


def _blocked_again(cur: Cursor, one: TableFold) -> None:
    """Try the rows again that were refused for the sake of others, now that these have come or gone."""
    blocked, one.blocked = one.blocked, []
    if one.kept is not None:
        _remove_others(cur, one)
    for number, _ in blocked:
        if not one.of.table.history and _has_newer(cur, one, number):
            continue  # the key's newest event is what counts, and an older one could bring a row back
        try:
            with savepoint(cur):
                taken = _taken(cur, one, _among([number]))
        except psycopg2.Error as again:
            if not refuses_rows(again):
                raise
            one.blocked.append((number, again))
        else:
            one.count(taken.written, taken.deleted)
    _move_together(cur, one)


def _require_gone(one: TableFold) -> None:
    if one.kept is not None:
        raise one.kept


def _move_together(cur: Cursor, one: TableFold) -> None:
    """Write all rows at once whose values are others' that are among them; the others stay blocked."""
    numbers = {number for number, exc in one.blocked if exc.pgcode in TAKEN}
    while len(numbers) > 1 and may_move(cur, one.of):
        try:
            with savepoint(cur):
                _choose(cur, one, _among(numbers))
                newest = folding.newest_of(one.of, one.visible.limit, distinct=True)
                how = folding.How(replacing=one.had.reload, moving=True)
                written = folding.write(cur, one.of, newest, one.visible.limit, how)
                if still := _not_written(cur, one, numbers):
                    raise _StillTakenError(still)
                if one.immediate:
                    cur.execute("SET CONSTRAINTS ALL IMMEDIATE")
        except _StillTakenError as exc:
            numbers -= exc.numbers
        except psycopg2.Error as exc:
            if passes(exc):
                raise
            return
        else:
            one.blocked = [each for each in one.blocked if each[0] not in numbers]
            one.count(written, 0)
            return


def _not_written(cur: Cursor, one: TableFold, numbers: Collection[int]) -> set[int]:
    missing = sql.SQL(
        "SELECT {n} FROM {} s WHERE {} AND NOT EXISTS (SELECT FROM {} t WHERE {} AND t.{p} >= s.{p})"
    ).format(
        _suspects(one.of),
        _among(numbers),
        one.of.own_rows,
        one.of.same_key("t", "s"),
        n=sql.Identifier(_NUMBER),
        p=sql.Identifier(POSITION),
    )
    cur.execute(missing)
    return {int(number) for (number,) in cur.fetchall()}


def _has_newer(cur: Cursor, one: TableFold, number: int) -> bool:
    same = sql.SQL(
        "SELECT EXISTS (SELECT FROM {s} a JOIN {s} b ON {key} WHERE a.{n} = {number} AND b.{n} > a.{n})"
    ).format(
        s=_suspects(one.of),
        key=one.of.same_key("a", "b"),
        n=sql.Identifier(_NUMBER),
        number=sql.Literal(number),
    )
    cur.execute(same)
    ((found,),) = cur.fetchall()
    return bool(found)


def _refuse(cur: Cursor, one: TableFold, found: Sequence[Blocked]) -> None:
    if found:
        one.visible.refuse([_place(cur, one, number, exc) for number, exc in found])


_ALL = sql.SQL("true")


def _among(numbers: Collection[int]) -> sql.Composed:
    return sql.SQL("{} = ANY ({})").format(sql.Identifier(_NUMBER), sql.Literal(list(numbers)))


def _choose(cur: Cursor, one: TableFold, some: sql.Composable) -> None:
    """Have the stage hold these of the rows that are folded in."""
    cur.execute(sql.SQL("DELETE FROM {}").format(one.of.stage))
    statement = sql.SQL("INSERT INTO {} ({n}) SELECT {n} FROM {} WHERE {}")
    cur.execute(statement.format(one.of.stage, _suspects(one.of), some, n=one.of.event))


def _remove_others(cur: Cursor, one: TableFold) -> None:
    """Delete the rows that a topic which was read again does not have, unless rows that may yet go refer to them."""
    one.kept = None
    try:
        with savepoint(cur):
            _choose(cur, one, _ALL)
            removed = folding.remove_others(cur, one.of, one.visible.limit)
            if one.immediate:
                cur.execute("SET CONSTRAINTS ALL IMMEDIATE")
    except psycopg2.Error as exc:
        if exc.pgcode not in FOR_OTHERS:
            raise
        one.kept = exc
    else:
        one.count(0, removed)


def _taken(
    cur: Cursor, one: TableFold, some: sql.Composable, *, removing: bool = False, moving: bool = False
) -> Applied:
    """Fold these of the staged rows in."""
    _choose(cur, one, some)
    how = folding.How(one.had.reload, removing, moving)
    taken = folding.take(cur, one.of, one.visible.limit, came=True, distinct=True, how=how)
    if one.immediate:
        cur.execute("SET CONSTRAINTS ALL IMMEDIATE")
    return taken


def _place(cur: Cursor, one: TableFold, number: int, exc: psycopg2.Error) -> Refused:
    places = sql.SQL("SELECT {}, {} FROM {} WHERE {} = {}").format(
        *map(sql.Identifier, (PARTITION, OFFSET)), _suspects(one.of), sql.Identifier(_NUMBER), sql.Literal(number)
    )
    cur.execute(places)
    ((partition, offset),) = cur.fetchall()
    if offset is None:
        msg = f"an event that waited since an earlier release is refused. {reason(exc)}"
        raise OperatorError(msg, hint="correct the row at the source, or change the constraint, then start again")
    return Refused(partition, offset, reason(exc))


def _suspects(of: Tables) -> sql.Identifier:
    return sql.Identifier("pg_temp", f"cdc_suspects_{of.number}")


def _stage(cur: Cursor, one: TableFold) -> None:
    """Give all rows that are to be folded in a number, by position; refuse those that do not fit their types."""
    of = one.of
    tables.make_stage(cur, of)
    known = (0, 0)
    if one.batch is not None:
        _load(cur, one, one.batch)
        known = folding.drop_known(cur, of, one.had)
    folding.move_waiting(cur, of, one.visible.limit)
    if one.had.reload:
        folding.forget_deletes(cur, of, one.visible.limit)
    one.applied = Applied(0, 0, known[1], known[0])
    order = sql.SQL("SELECT *, row_number() OVER (ORDER BY {}, {}) AS {} FROM {}").format(
        *map(sql.Identifier, (POSITION, OFFSET, _NUMBER)), of.stage
    )
    cur.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(_suspects(of)))
    made = sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS {}")
    cur.execute(made.format(sql.Identifier(f"cdc_suspects_{of.number}"), order))


def _load(cur: Cursor, one: TableFold, batch: Batch) -> None:
    """Copy a batch to the stage as text first, since COPY ends at the first value that does not fit."""
    of, text = one.of, CopyText(batch, partial(one.letters.missing, cur))
    types = {
        **{column.name: pg_type(column) for column in of.table.columns},
        **{name: tables.OWN_TYPES[name] for name in (POSITION, *of.said)},
        PARTITION: "integer",
        OFFSET: "bigint",
    }
    name = sql.Identifier("pg_temp", f"cdc_text_{of.number}")
    cells = sql.SQL(", ").join(sql.SQL("{} text").format(sql.Identifier(column)) for column in types)
    cur.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(name))
    cur.execute(
        sql.SQL("CREATE TEMPORARY TABLE {} ({} bigint GENERATED ALWAYS AS IDENTITY, {}) ON COMMIT DROP").format(
            sql.Identifier(f"cdc_text_{of.number}"), sql.Identifier(_NUMBER), cells
        )
    )
    copy = sql.SQL("COPY {} ({}) FROM STDIN").format(name, of.event)
    for part in text.parts():
        cur.copy_expert(copy, part, COPY_BYTES)
    if text.refused:
        one.visible.refuse(text.refused)
    typed = sql.SQL(", ").join(
        sql.SQL("{}::{}").format(sql.Identifier(column), sql.SQL(kind.removesuffix(' COLLATE "C"')))
        for column, kind in types.items()
    )
    listed = tables.listed(types)

    def attempt(low: int, high: int) -> None:
        statement = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} WHERE {} BETWEEN {} AND {}")
        bounds = sql.Identifier(_NUMBER), sql.Literal(low), sql.Literal(high)
        cur.execute(statement.format(of.stage, listed, typed, name, *bounds))

    def refused(found: Sequence[tuple[int, psycopg2.Error]]) -> None:
        told = []
        for number, exc in found:
            places = map(sql.Identifier, (PARTITION, OFFSET))
            at = sql.SQL("SELECT {}::integer, {}::bigint FROM {} WHERE {} = {}")
            cur.execute(at.format(*places, name, sql.Identifier(_NUMBER), sql.Literal(number)))
            ((partition, offset),) = cur.fetchall()
            told.append(Refused(partition, offset, reason(exc)))
        one.visible.refuse(told)

    cur.execute(sql.SQL("SELECT count(*) FROM {}").format(name))
    ((rows,),) = cur.fetchall()
    bisect(cur, int(rows), attempt, refused)
