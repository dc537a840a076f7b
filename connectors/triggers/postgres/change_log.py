"""Keeps a connector's schema in a PostgreSQL database: change tables, functions, and the triggers that call them.

Why nothing that was committed since is missed:

- CREATE TRIGGER waits for all who have written to the table and keeps others out until it is committed. So a
  transaction that has written without triggers has ended by then, and a view that is taken later sees it.
- What triggers have written is deleted when it is acknowledged, and by nobody else: a trigger on the change tables
  refuses it (`kept`). The row of the last transaction that was given stays, and the position knows when it was written:
  so a database that was restored is found out. The last in number need not be the last that was committed; the one by
  which a round is made safe (`rounds.make_safe`) is behind them all, and a server that does not have it is behind.
- A change that a trigger could not write down is noted as missed, and its table is read again (`triggers`).
- How triggers, functions and change table stand in the catalog is noted with the position (`standing`), with the
  transactions that have made their rows there: what was switched off and on again, or taken away and made again, has
  others. What was written meanwhile is not known, and the table is read again.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg2.extensions

from cdc.model.change import Offset
from cdc.model.errors import ChangedError, GapError, OperatorError, RetryableError
from connectors.postgres.catalog.catalog import Captured, Catalog
from connectors.postgres.session import identifier
from connectors.triggers.change_tables import CLOSE_THE_GAP, too_wide
from connectors.triggers.following import LOCKS_S
from connectors.triggers.postgres import triggers
from connectors.triggers.postgres.looks import FUNCTIONS, SECURITY, TABLES, TRIGGERS, Looks
from connectors.triggers.postgres.sequence import ROOM, TOO_GREAT, too_great, went_back
from connectors.triggers.postgres.shape import Equality, Shape, ShapeColumn, prints_exactly, quoted, stored_as
from connectors.triggers.postgres.triggers import EVENTS, FORGETS, MOST_COLUMNS, Names

_DELETED_AT_ONCE: Final = 10_000
_DELETING_S: Final = 0.5
_PASSING_MS: Final = 100
"""So long is waited for the lock of a change table that is of no use any more: those who write to it wait behind."""

_COLUMNS: Final = """
SELECT a.attname::text, a.atttypid::int8, a.atttypmod
FROM pg_attribute a WHERE a.attrelid = %s::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_KEY: Final = """
SELECT a.attname::text, n.nspname, o.oprname,
       coalesce((SELECT l.collisdeterministic FROM pg_collation l WHERE l.oid = a.attcollation), false)
FROM pg_index i
CROSS JOIN LATERAL unnest(i.indkey, i.indclass) WITH ORDINALITY AS k(attnum, class, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
JOIN pg_opclass c ON c.oid = k.class
JOIN pg_amop m ON m.amopfamily = c.opcfamily AND m.amoplefttype = c.opcintype AND m.amoprighttype = c.opcintype
     AND m.amopstrategy = 3
JOIN pg_operator o ON o.oid = m.amopopr
JOIN pg_namespace n ON n.oid = o.oprnamespace
WHERE i.indrelid = %s::oid AND i.indisprimary AND k.place <= i.indnkeyatts
"""
_TEXTS: Final = ("text", "varchar")


class ChangeLog:
    """Is one connector's schema, through a connection that stays the caller's. `where`: tables with a condition."""

    def __init__(self, connection: psycopg2.extensions.connection, connector: str, where: Collection[str] = ()) -> None:
        self._catalog = Catalog(connection, by_triggers=True)
        self.names = Names(connector)
        self._looks = Looks(self._ask, self.names, where)

    @property
    def catalog(self) -> Catalog:
        return self._catalog

    @property
    def place(self) -> str:
        return f"schema {self.names.schema}"

    def identity(self) -> str | None:
        """Return the id that the schema was given when it was made; None: there is none."""
        schema = self._schema()
        if schema is None:
            return None
        there = {name for _, name in self._ask(TABLES, schema)}
        if not {"changes", "log", "missed", "number", "shapes"} <= there:
            return None
        table, both = triggers.made(self.names)
        rows = self._ask(f"SELECT id FROM {self.names.of('log')} WHERE made IN ({table}, {both})")  # earlier: the table
        return str(rows[0][0]) if rows else None

    def exists(self) -> bool:
        """Whether there is a schema of its name, of whatever kind."""
        return self._schema() is not None

    def _schema(self) -> int | None:
        rows = self._ask("SELECT oid::int8 FROM pg_namespace WHERE nspname = %s", self.names.schema)
        return int(rows[0][0]) if rows else None

    def prepare(self) -> None:
        """Set the session so that it may delete what was read."""
        self._ask("SELECT set_config(%s, %s, false)", FORGETS, self.names.connector)
        self.wait_for_locks(LOCKS_S)

    def wait_for_locks(self, seconds: float) -> None:
        """Set how long statements wait for a lock."""
        self._do(f"SET lock_timeout = {seconds * 1000:.0f}")

    def clock_ms(self) -> int:
        """Return the server's time."""
        ((now_ms,),) = self._ask("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8")
        return int(now_ms)

    def make(self, captured: Sequence[Captured]) -> str:
        """Make the schema and all triggers, in place of any there were; return the schema's id.

        Each table in a transaction of its own, because each waits for those who write to it, and keeps others waiting.
        """
        log = str(uuid.uuid4())
        self._take_triggers_away()
        with self._changing():
            first = self.last() % TOO_GREAT + 1  # what waits for a place in the old one finds it in the new one
            if self.exists():
                self._do(f"DROP SCHEMA {quoted(self.names.schema)} CASCADE")
            for statement in triggers.schema(self.names, log, first):
                self._do(statement)
            for statement in self.wrong():  # of a table that a publication has
                self._do(statement)
        for one in captured:
            with self._changing():
                self._install(one)
        return log

    def _take_triggers_away(self) -> None:
        """Drop all triggers with their functions, each table's in a transaction of its own.

        DROP SCHEMA would lock all captured tables at once, and writers that have some of them would be in a deadlock
        with it, which may end their transactions.
        """
        functions: dict[int, list[str]] = {}
        for name, *_ in self._ask(FUNCTIONS, self._schema()) if self.exists() else ():
            if (oid := self.names.table_of(name)) is not None:
                functions.setdefault(oid, []).append(f"{self.names.of(name)}()")
        for each in functions.values():
            with self._changing():
                self._do(f"DROP FUNCTION IF EXISTS {', '.join(each)} CASCADE")

    def install(self, wanted: Sequence[Captured], captured: Sequence[Captured]) -> None:
        """Make the triggers of tables, in place of theirs; those of tables that are not captured do nothing any more.

        Each table in a transaction of its own, as `make` does.
        """
        for statement in self.wrong():  # each by itself: of several change tables others may hold some
            with self._changing():
                self._do(statement)
        with self._changing():
            self._free([one.oid for one in captured])
        self._drop_old_shapes({one.oid for one in captured})
        for one in wanted:
            with self._changing():
                self._install(one)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        self._do("BEGIN")
        try:
            yield
            self._do("COMMIT")
        except BaseException:
            self._catalog.rows("rolling back", "ROLLBACK")
            raise

    def _install(self, one: Captured) -> None:
        schema, name = one.table.schema, one.table.name
        stub = Shape(one.oid, 0, schema, name, (), (), one.partitioned, (), (), (), "")
        there = {proname for proname, *_ in self._ask(FUNCTIONS, self._schema())}
        for event in EVENTS:
            function = self.names.function(one.oid, event)
            if function not in there:
                self._do(triggers.create_function(self.names, function, triggers.NOTHING))
            self._do(triggers.create_trigger(self.names, stub, event))
        if self._owned([one])[one.oid]:  # or it is the owner's to say
            for event in EVENTS:
                self._do(triggers.call_always(self.names, stub, event))
        shape = self._shape_of(one)  # which nobody alters by now
        ((number,),) = self._ask(f"SELECT coalesce(max(shape), 0) + 1 FROM {self.names.of('shapes')}")
        self._ask(f"INSERT INTO {self.names.of('shapes')} VALUES (%s, %s)", number, shape.to_json())
        for statement in triggers.change_table(self.names, number, shape):
            self._do(statement)
        for statement in self.wrong():  # of one that a publication has; done later it would stand otherwise than noted
            self._do(statement)
        oid = self._change_tables()[number]
        for event, body in triggers.functions(self.names, number, oid, shape).items():
            self._do(triggers.create_function(self.names, self.names.function(one.oid, event), body))

    def _shape_of(self, one: Captured) -> Shape:
        """Describe a table that is locked. Raises RetryableError if it is not the one that was found."""
        table = one.table
        ((now,),) = self._ask(f"SELECT {self.names.of('shape_now')}(%s::oid)", one.oid)
        found = {name: (type_oid, typmod) for name, type_oid, typmod in self._ask(_COLUMNS, one.oid)}
        again = self._catalog.find(table.schema, table.name, {})
        if again is None or again.oid != one.oid or again.table != table:
            raise ChangedError(f"table {table.qualified} was altered while its triggers were made: looking again")
        types = self._catalog.learn_types(type_oid for type_oid, _ in found.values())
        columns = tuple(ShapeColumn(column.name, *found[column.name]) for column in table.columns)
        key = {name: (schema, operator, plain) for name, schema, operator, plain in self._ask(_KEY, one.oid)}
        ((schema_oid,),) = self._ask("SELECT relnamespace::int8 FROM pg_class WHERE oid = %s::oid", one.oid)
        return Shape(
            oid=one.oid,
            schema_oid=schema_oid,
            schema=table.schema,
            name=table.name,
            columns=columns,
            key=table.key,
            partitioned=one.partitioned,
            equalities=tuple(Equality(*key[name][:2]) for name in table.key),
            exact=tuple(
                prints_exactly(found[name][0], types) or (key[name][2] and types[found[name][0]].name in _TEXTS)
                for name in table.key
            ),
            stored=tuple(stored_as(of.type_oid, types) for of in columns),
            now=now,
            marks=table.marks,
            some=self._looks.publishes_some(table.qualified),
        )

    def _free(self, captured: Sequence[int]) -> None:
        """Empty the functions of tables that are not captured any more.

        Who may make a trigger on another's table may not drop it, and dropping it would wait for those who write.
        """
        for name, _, body, *_ in self._ask(FUNCTIONS, self._schema()):
            oid = self.names.table_of(name)
            if oid is not None and oid not in captured and body != triggers.NOTHING:
                self._do(triggers.create_function(self.names, name, triggers.NOTHING))

    def _drop_old_shapes(self, captured: set[int]) -> None:
        """Drop change tables of older shapes that have been read to their end, unless somebody has one locked.

        Who has written to a table that is captured no more, and has not committed, holds up none that is.
        """
        newest: dict[int, int] = {}
        shapes, there = self.shapes(), self._change_tables()
        for number, shape in shapes.items():
            newest[shape.oid] = max(number, newest.get(shape.oid, 0))
        for number, shape in shapes.items():
            if number in there and (newest[shape.oid] != number or shape.oid not in captured):
                with suppress(RetryableError), self._changing():
                    self._drop_if_read(number)

    def _drop_if_read(self, number: int) -> None:
        table = self.names.of(self.names.change_table(number))
        ((some,),) = self._ask(f"SELECT EXISTS (SELECT FROM {table})")
        if not some:
            self._do(f"SET LOCAL lock_timeout = {_PASSING_MS}")
            self._do(f"DROP TABLE {table}")
            self._ask(f"DELETE FROM {self.names.of('missed')} WHERE shape = %s", number)

    def known(self) -> set[str]:
        """Return the names of the tables that have, or have had, a change table."""
        return {shape.qualified for shape in self.shapes().values()} if self.identity() is not None else set()

    def shapes(self) -> dict[int, Shape]:
        """Return all shapes by their numbers."""
        rows = self._ask(f"SELECT shape, described FROM {self.names.of('shapes')}")
        return {number: Shape.from_json(described) for number, described in rows}

    def renamed(self, name: str) -> str | None:
        """Return what a table is called now: it is known by its number."""
        of = {number: shape.oid for number, shape in self.shapes().items() if shape.qualified == name}
        now = self.catalog.names([of[max(of)]]) if of else {}
        return next((".".join(there) for there in now.values()), None)

    def missed(self, number: int) -> bool:
        """Note that changes of a shape are lost; return whether it is of interest: its table has none that is newer."""
        shapes = self.shapes()
        if number not in shapes or any(of.oid == shapes[number].oid and n > number for n, of in shapes.items()):
            return False
        self._ask(f"INSERT INTO {self.names.of('missed')} VALUES (%s)", number)
        return True

    def change_tables(self) -> dict[int, int]:
        """Return the shape's number of each change table, by the table's oid."""
        return {oid: number for number, oid in self._change_tables().items()}

    def _change_tables(self) -> dict[int, int]:
        found = {}
        for oid, name in self._ask(TABLES, self._schema()):
            word, _, number = name.partition("_")
            if word == "changes" and number.isdigit():
                found[int(number)] = oid
        return found

    def last(self) -> int:
        """Return the greatest number that was given to a change; 0: there is no schema."""
        schema = self._schema()
        if schema is None or not any(name == "number" for _, name in self._ask(TABLES, schema)):
            return 0
        ((last, called),) = self._ask(f"SELECT last_value, is_called FROM {self.names.sequence}")
        return int(last) if called else int(last) - 1

    def end(self, seen: str | None = None) -> int:
        """Draw a number and return it as a commit position: see `rounds`; all committed before the call lies below.

        Raises GapError if a change that the snapshot `seen` does not see has a greater number: it was drawn before.
        """
        if self.identity() is None:
            return (self.last() + 2) << ROOM
        greatest = f"SELECT max(seq) FROM {self.names.changes} WHERE xid >= pg_snapshot_xmin(%s::pg_snapshot)"
        ((drawn, unread),) = self._ask(f"SELECT nextval(%s::regclass), ({greatest})", self.names.sequence, seen)
        if unread is not None and unread >= drawn:
            raise went_back(self.names.schema, unread)
        return (int(drawn) + 1) << ROOM

    def now(self) -> tuple[int, int, str]:
        """Return the greatest number there is, then the id of the next transaction, then a snapshot.

        Each is looked at after the one before. Nothing but `age` tells that id: it counts from it, modulo 2**32.
        """
        ((last, called),) = self._ask(f"SELECT last_value, is_called FROM {self.names.sequence}")
        ((age,),) = self._ask("SELECT age('3'::xid)")
        ((seen, ended),) = self._ask(
            "SELECT pg_current_snapshot()::text, pg_snapshot_xmax(pg_current_snapshot())::text::int8"
        )
        above = (int(age) + 3 - int(ended)) % (1 << 32)
        if above >= 1 << 31:  # it ended after that was looked at
            above -= 1 << 32
        return int(last) if called else int(last) - 1, int(ended) + above, str(seen)

    def refusals(self, at: Offset) -> Iterator[OperatorError]:
        """Give why the change tables cannot be followed from a position without a gap."""
        log, names = self.identity(), self.names
        if log is None:
            what = f"change tables missing: schema {names.schema} "
            yield GapError(what + ("is not whole" if self.exists() else "is gone"), hint=CLOSE_THE_GAP)
            return
        if log != at["log"]:
            yield GapError(
                f"change tables made again: schema {names.schema} is not the one that the position is of",
                hint=CLOSE_THE_GAP,
            )
            return
        if self.last() >= TOO_GREAT:
            yield too_great(names.schema)
            return
        seen = str(at.get("round", at["seen"]))
        there = "SELECT pg_snapshot_xmax(%s) > pg_snapshot_xmax(pg_current_snapshot()), xmax::text::int8"
        ((ahead, locked),) = self._ask(f"{there} FROM {names.of('log')}", seen)
        safe = int(at.get("safe", 0))
        lost = safe and locked and (locked - safe) % (1 << 32) >= 1 << 31  # 0: a vacuum has taken it away
        if ahead or lost or int(at["number"]) >> ROOM > self.last() + 1:
            yield GapError(
                "database behind the position: it does not have all transactions that Kafka holds: an older copy was "
                "restored, or a standby promoted that was behind, and the topics have what it does not",
                hint=CLOSE_THE_GAP,
            )
            return
        if "last" in at:
            seq, xid, at_us = str(at["last"]).split(" ")
            rows = self._ask(
                f"SELECT xid::text, (extract(epoch FROM at) * 1000000)::int8 FROM {names.changes} "
                "WHERE xid = %s::xid8 AND seq = %s",
                xid, seq,
            )  # fmt: skip
            if [tuple(row) for row in rows] != [(xid, int(at_us))]:
                yield GapError(
                    f"another database: change {seq} of {names.schema} is not the one that Kafka holds: a copy was "
                    "restored and written to, or changes were deleted",
                    hint=CLOSE_THE_GAP,
                )

    def rights(self, captured: Sequence[Captured]) -> Iterator[OperatorError]:
        """Give what this user may not do that is needed."""
        if not self.exists():
            ((may, database),) = self._ask(
                "SELECT has_database_privilege(current_database(), 'CREATE'), current_database()::text"
            )
            if not may:
                ((user,),) = self._ask("SELECT current_user::text")
                yield OperatorError(
                    f"user {user} may not make a schema in database {database}",
                    hint=f"GRANT CREATE ON DATABASE {identifier(database)} TO {identifier(user)}",
                )
        for one in captured:
            if (width := len(one.table.columns)) > MOST_COLUMNS:
                yield too_wide(one.table.qualified, width, MOST_COLUMNS)
        named = {one.oid: one.table for one in captured}
        for oid, _, _, may, _ in self._ask(SECURITY, list(named)):
            if not may:
                ((user,),) = self._ask("SELECT current_user::text")
                table = named[oid]
                yield OperatorError(
                    f"table {table.qualified}: user {user} may not make triggers on it",
                    hint=f"GRANT TRIGGER ON {identifier(table.schema, table.name)} TO {identifier(user)}",
                )

    def seldom(self, captured: Sequence[Captured]) -> Iterator[str]:
        """Give the tables whose triggers sessions with another `session_replication_role` would not call."""
        owned = self._owned(captured)
        wanted = [self.names.trigger(one.oid, event) for one in captured for event in EVENTS]
        found = self._ask(TRIGGERS, wanted, self._schema() or 0)
        always = {relation for relation, _, enabled, *_ in found if enabled == "A"}
        yield from (one.table.qualified for one in captured if not owned[one.oid] and one.oid not in always)

    def _owned(self, captured: Sequence[Captured]) -> dict[int, bool]:
        """Tell which tables are this user's, who alone may say when their triggers are called."""
        return {oid: owned for oid, *_, owned in self._ask(SECURITY, [one.oid for one in captured])}

    def standing(self, captured: Sequence[Captured]) -> dict[str, str | None]:
        """Return how the triggers of each table stand in the catalog; None: they are not as they were made."""
        schema = self._schema()
        if schema is None or self.identity() is None or self.wrong():
            return {one.table.qualified: None for one in captured}
        return self._looks.standing(schema, captured, self.shapes(), self._change_tables())

    def wrong(self) -> Sequence[str]:
        """Return the statements that set right what all tables share; empty: it is as it was made."""
        schema = self._schema()
        return self._looks.shared(schema).wrong if schema is not None else ()

    def forget(self, at: Offset) -> bool:
        """Delete what a position lies behind, some at a time; return whether all is gone. Nobody who writes waits."""
        seen, anchor = str(at["seen"]), int(str(at.get("last", "0 0 0")).split(" ")[0])
        until_s = time.monotonic() + _DELETING_S
        for number in self._change_tables():
            table = self.names.of(self.names.change_table(number))
            statement = (
                f"WITH gone AS (SELECT ctid FROM ONLY {table} WHERE xid < pg_snapshot_xmax(%s) "
                "AND pg_visible_in_snapshot(xid, %s) AND seq <> %s ORDER BY xid LIMIT %s) "
                f"DELETE FROM ONLY {table} c USING gone WHERE c.ctid = gone.ctid RETURNING 1"
            )
            while len(self._ask(statement, seen, seen, anchor, _DELETED_AT_ONCE)) == _DELETED_AT_ONCE:
                if time.monotonic() > until_s:
                    return False
        return True

    def count(self) -> int:
        """Return how many changes are kept, as the server estimates it."""
        tables = list(self._change_tables().values())
        ((rows,),) = self._ask(
            "SELECT coalesce(sum(greatest(reltuples, 0)), 0)::int8 FROM pg_class WHERE oid = ANY (%s::oid[])", tables
        )
        return int(rows)

    def _do(self, statement: str) -> None:
        self._catalog.rows(f"keeping schema {self.names.schema}", statement)

    def _ask(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        return self._catalog.rows(f"reading schema {self.names.schema}", statement, parameters)
