"""Keeps a connector's database on a MySQL or MariaDB server: change tables, rounds, and triggers on others' tables.

Why nothing that was committed since is missed:

- CREATE TRIGGER waits for all transactions that have used the table and keeps others out meanwhile. So a transaction
  that has written without triggers has ended by then (or was prepared by XA, and is waited for), and a view that is
  taken later sees it.
- What triggers have written is deleted when it is acknowledged, and by nobody else: triggers on the change tables
  refuse it (`kept`). What is gone all the same is missing when a round is read, for the round says how many there were.
- A change that a trigger could not write down is a miss among the changes, and the table is read again (`triggers`).
- How the table, its change table and the triggers stand is noted with the position: their definitions, when triggers
  were made (to a hundredth of a second), and the ids that InnoDB has given to the tables' data. TRUNCATE, a partition
  that is exchanged, a tablespace that is imported give others; and none of them calls a trigger. What was done
  meanwhile is not known, and the table is read again.
- The position has the last round and a token that nobody else can know. A database that was restored does not have it.
- Numbers rise as long as the server's clock, and the last byte of its server_id, do not go back over a restart. A
  round that finds the counter below what was given is a gap.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, cast

from cdc.model.change import Offset
from cdc.model.errors import ChangedError, GapError, OperatorError, RetryableError
from cdc.model.state import State
from connectors.mysql import session
from connectors.mysql.catalog.catalog import Captured, Catalog
from connectors.mysql.catalog.server import Server
from connectors.mysql.values.mapping import quoted_name as quoted
from connectors.triggers.change_tables import CLOSE_THE_GAP
from connectors.triggers.mysql import forgetting, triggers
from connectors.triggers.mysql.looks import Looks
from connectors.triggers.mysql.rights import no_right, not_trusted
from connectors.triggers.mysql.shape import Shape, ShapeColumn, too_wide_rows
from connectors.triggers.mysql.triggers import FORGETS, Names, Trigger, literal, sql_mode

log = logging.getLogger("cdc")

_NEEDED: Final = ("log", "rounds", "shapes")
_MISSED: Final = "missed"
"""Older versions did not make it: where it is not there, all tables are read again."""
_OURS: Final = (*_NEEDED, _MISSED)
_NUMBERED_FROM_S: Final = 1_767_225_600
"""2026-01-01. Shapes are numbered from a time on: triggers that are left of older change tables, where this user may
not see them, do not find theirs, and write nothing."""
ROWS_S: Final = 50
"""How long the lock of a row is waited for: who makes a round holds one."""
_PASSING_S: Final = 1
_BIN_LOGGED: Final = 1419
"""The servers' number for a trigger that may not be made because the binlog is on."""
_TOO_WIDE: Final = (1118, 1117)
_FREE: Final = 200
"""So many bytes of a page's half that are free are more than what a change table has besides."""
_TRIED: Final = 0
"""The number of a change table that is made to be dropped at once."""

_COLUMNS: Final = """
SELECT COLUMN_NAME, COLUMN_TYPE, CHARACTER_SET_NAME, COLLATION_NAME, IS_NULLABLE, EXTRA
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION
"""
_INDEXED: Final = """
SELECT COLUMN_NAME, MAX(INDEX_NAME = 'PRIMARY') FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND INDEX_TYPE IN ('BTREE', 'HASH') GROUP BY COLUMN_NAME
"""
_TABLES: Final = "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s"


def rounds_altered(names: Names, what: str) -> GapError:
    """Return the error of rounds that somebody has deleted or altered."""
    return GapError(f"rounds altered: {names.schema} was written to by somebody: {what}", hint=CLOSE_THE_GAP)


def _is_too_wide(error: OperatorError) -> bool:
    return session.code_of_exception(error.__cause__) in _TOO_WIDE


class ChangeLog:
    """Is one connector's database, through a connection that stays the caller's."""

    def __init__(self, connection: session.Connection, connector: str, server: Server) -> None:
        self._connection, self._server = connection, server
        self.names = Names(connector)
        self.catalog = Catalog(connection, by_triggers=True)
        self._looks = Looks(self._ask, self.names, server)
        self._judged: dict[Shape, OperatorError | None] = {}

    @property
    def place(self) -> str:
        return f"database {self.names.schema}"

    def identity(self) -> str | None:
        """Return the id that the change tables were given when they were made; None: there are none, or not all."""
        if not self._tables().issuperset(_NEEDED):
            return None
        rows = self._ask(f"SELECT id FROM {self.names.of('log')}")
        return rows[0][0] if rows else None

    def exists(self) -> bool:
        """Whether anything of it is there."""
        return any(name in _OURS or name.startswith("changes_") for name in self._tables())

    def _tables(self) -> set[str]:
        return {name for (name,) in self._ask(_TABLES, self.names.schema)}

    def prepare(self) -> None:
        """Set the session so that it may delete what was read, and locks no more of it than the rows themselves."""
        self._do(f"SET {FORGETS} = {literal(self.names.connector)}")
        self._do(f"SET SESSION innodb_lock_wait_timeout = {ROWS_S}")
        self._do("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")

    def make(self, captured: Sequence[Captured]) -> Offset:
        """Make change tables and triggers, in place of any there were; return where they begin.

        The servers commit each of these statements by itself. A table's change table is there before its triggers are,
        and triggers that were there are gone before what they write to.
        """
        log, token, before = str(uuid.uuid4()), str(uuid.uuid4()), self.last()
        for trigger in self._found(one.table.schema for one in captured):
            self._drop(trigger)
        for name in self._tables():
            if name in _OURS or name.startswith("changes_"):
                self._do(f"DROP TABLE {self.names.of(name)}")
        first = max(1, int(time.time()) - _NUMBERED_FROM_S)
        for statement in triggers.schema(self.names, first):
            self._do(statement)
        begin = before + 1  # what waits for a place in the old ones finds it in the new ones
        self._ask(f"INSERT INTO {self.names.of('rounds')} VALUES (%s, %s, 0, 0, '{{}}', '')", begin, token)
        self._ask(f"INSERT INTO {self.names.of('log')} VALUES (1, %s, %s)", log, begin)
        for one in captured:
            self._install(one)
        return {"log": log, "round": begin, "token": token}

    def install(self, wanted: Sequence[Captured], captured: Sequence[Captured]) -> None:
        """Make the triggers of tables, in place of theirs; drop those of tables that are not captured any more.

        Unless others hold a lock on one that is not of `wanted`: that holds up no other, and the next start finds it.
        """
        self._do(triggers.missed_table(self.names))
        kept = {(one.table.schema, one.table.name) for one in captured}
        again = {(one.table.schema, one.table.name) for one in wanted}
        shapes = self.shapes()
        schemas = {one.table.schema for one in captured} | {shape.schema for shape in shapes.values()}
        newest, locked = self._newest(shapes), set[tuple[str, str]]()
        for trigger in self._found(schemas):
            number = int(trigger.name.split(":")[2])
            at = (trigger.schema, trigger.table)
            current = number in shapes and newest.get(shapes[number].qualified) == number
            if at in again:
                self._drop(trigger)
            elif at in locked:
                continue
            elif at not in kept or not current or (shapes[number].schema, shapes[number].name) != at:
                try:
                    self._drop(trigger)
                except RetryableError as exc:
                    log.warning("table %s: the triggers that connector %s has no use for stay: %s", ".".join(at),
                                self.names.connector, exc.message)  # fmt: skip
                    locked.add(at)
        for one in wanted:
            self._install(one)
        self._drop_old_shapes({one.table.qualified for one in captured} | {".".join(at) for at in locked})
        if numbers := ", ".join(map(str, self._newest(self.shapes()).values())):  # nobody looks at others' misses
            with suppress(RetryableError):  # nor waits for who has not committed one
                self._do(f"SET SESSION innodb_lock_wait_timeout = {_PASSING_S}")
                self._ask(f"DELETE FROM {self.names.of('missed')} WHERE shape NOT IN ({numbers})")
            self._do(f"SET SESSION innodb_lock_wait_timeout = {ROWS_S}")

    def _drop(self, trigger: Trigger) -> None:
        self._do(f"DROP TRIGGER IF EXISTS {quoted(trigger.schema)}.{quoted(trigger.name)}")

    def _install(self, one: Captured) -> None:
        shape = self._shape_of(one)
        self._ask(f"INSERT INTO {self.names.of('shapes')} (described) VALUES (%s)", shape.to_json())
        ((text,),) = self._ask("SELECT LAST_INSERT_ID()")
        number = int(text)
        try:
            self._do(triggers.change_table(self.names, number, shape))
        except OperatorError as exc:
            raise too_wide_rows(shape, exc) if _is_too_wide(exc) else exc from exc.__cause__
        try:
            self._lay(one, number, shape)
        except RetryableError:  # it is locked: what was made for it is of no use, and it may be tried often
            if self._connection.open:
                self._do(f"DROP TABLE {self.names.of(self.names.change_table(number))}")
                self._ask(f"DELETE FROM {self.names.of('shapes')} WHERE shape = %s", number)
            raise

    def too_wide(self, one: Captured) -> OperatorError | None:
        """Return why a table can have no change table; the server alone knows, and is asked where it is near."""
        shape = self._shape_of(one)
        if shape.least_free > _FREE:
            return None
        if shape not in self._judged:
            self._do(triggers.create_database(self.names))
            self._judged[shape] = None
            try:
                self._do(triggers.change_table(self.names, _TRIED, shape, temporary=True))
            except OperatorError as exc:
                if _is_too_wide(exc):
                    self._judged[shape] = too_wide_rows(shape, exc)
            else:
                self._do(f"DROP TEMPORARY TABLE {self.names.of(self.names.change_table(_TRIED))}")
        return self._judged[shape]

    def _lay(self, one: Captured, number: int, shape: Shape) -> None:
        """Make the triggers of a change table that is there."""
        made = self._looks.defined(self.names.schema, self.names.change_table(number)) or ""
        self._ask(f"UPDATE {self.names.of('shapes')} SET made = %s WHERE shape = %s", made, number)
        self._do(f"SET SESSION sql_mode = '{sql_mode(mariadb=self._server.mariadb)}'")
        try:
            for trigger in (*triggers.guards(self.names, number), *triggers.triggers(self.names, number, shape)):
                self._create(trigger)
        except OperatorError:
            self._still(one, shape)
            raise
        finally:
            self._do("SET SESSION sql_mode = ''")
        self._still(one, shape)

    def _still(self, one: Captured, shape: Shape) -> None:
        """Raise ChangedError if a table is not what its triggers were written for: the server may have refused them."""
        if self._shape_of(one) != shape:
            raise ChangedError(f"table {shape.qualified} was altered while its triggers were made: looking again")

    def _create(self, trigger: Trigger) -> None:
        try:
            self._do(trigger.statement)
        except OperatorError as exc:
            code = session.code_of_exception(exc.__cause__)
            if code == _BIN_LOGGED:
                raise not_trusted(self._server) from exc
            if session.is_denied(exc):
                raise no_right(self._server, trigger.schema, trigger.table) from exc
            raise

    def _shape_of(self, one: Captured) -> Shape:
        """Describe a table as it is now. Raises ChangedError if it is not the one that was found."""
        table = one.table
        found = self._ask(_COLUMNS, table.schema, table.name)
        described = {of.name: of for of in table.columns}
        if [name for name, *_ in found] != [of.name for of in table.columns]:
            raise ChangedError(f"table {table.qualified} was altered while the catalog was read")
        columns = tuple(
            ShapeColumn(
                name, type_, charset or None, collation or None, null == "YES", "INVISIBLE" not in extra.upper(),
                described[name].equality, described[name].filled,
            )
            for name, type_, charset, collation, null, extra in found
        )  # fmt: skip
        of_index = dict(self._ask(_INDEXED, table.schema, table.name)) if self._server.mariadb else {}
        indexed = tuple(of.name for of in columns if of.name in of_index)
        shape = Shape(
            table.schema, table.name, columns, table.key, self._looks.defined(table.schema, table.name) or "",
            table.marks, primary=tuple(name for name in indexed if of_index[name] == "1"), indexed=indexed,
        )  # fmt: skip
        told = shape.table
        if (told.columns, told.key) != (table.columns, table.key) or not shape.now:
            raise ChangedError(f"table {table.qualified} was altered while the catalog was read")
        return shape

    def _drop_old_shapes(self, captured: set[str]) -> None:
        """Drop change tables of older shapes that have been read to their end: no trigger writes to them any more."""
        shapes = self.shapes()
        newest, there = self._newest(shapes), self._tables()
        for number, shape in shapes.items():
            table = self.names.change_table(number)
            if table not in there or (newest[shape.qualified] == number and shape.qualified in captured):
                continue
            if not self._ask(f"SELECT 1 FROM {self.names.of(table)} LIMIT 1"):
                with suppress(RetryableError):  # somebody has it locked
                    self._do(f"DROP TABLE {self.names.of(table)}")

    def known(self) -> set[str]:
        """Return the names of the tables that have, or have had, a change table."""
        try:
            return {shape.qualified for shape in self.shapes().values()} if self.identity() is not None else set()
        except GapError:  # which `refusals` tell, unless all are to be made again
            return set()

    def shapes(self) -> dict[int, Shape]:
        """Return all shapes by their numbers."""
        rows = self._ask(f"SELECT shape, described FROM {self.names.of('shapes')}")
        try:
            return {int(number): Shape.from_json(described) for number, described in rows}
        except (ValueError, KeyError, TypeError) as exc:
            raise GapError(f"{self.place} was altered: its table shapes", hint=CLOSE_THE_GAP) from exc

    def change_tables(self) -> list[int]:
        """Return the shapes whose change tables are there."""
        found = (name.partition("_") for name in self._tables())
        return sorted(int(number) for word, _, number in found if word == "changes" and number.isdigit())

    @staticmethod
    def _newest(shapes: Mapping[int, Shape]) -> dict[str, int]:
        return {shape.qualified: number for number, shape in sorted(shapes.items())}

    def missed(self, number: int) -> bool:
        """Note that a shape's triggers have missed a change; return whether it is of interest: none is newer."""
        shapes = self.shapes()
        if number not in shapes or self._newest(shapes)[shapes[number].qualified] != number:
            return False
        self._ask(f"UPDATE {self.names.of('shapes')} SET missed = 1 WHERE shape = %s", number)
        return True

    def last(self) -> int:
        """Return the last round there is; 0: there are no change tables."""
        if "log" not in self._tables():
            return 0
        rows = self._ask(f"SELECT round FROM {self.names.of('log')}")
        return int(rows[0][0]) if rows else 0

    def refusals(self, at: Offset) -> Iterator[OperatorError]:
        """Give why the change tables cannot be followed from a position without a gap."""
        log, names = self.identity(), self.names
        if log is None:
            what = f"change tables missing: database {names.schema} "
            yield GapError(what + ("is not whole" if self.exists() else "is gone, or empty"), hint=CLOSE_THE_GAP)
            return
        if log != at["log"]:
            yield GapError(
                f"change tables made again: database {names.schema} is not the one that the position is of",
                hint=CLOSE_THE_GAP,
            )
            return
        if self.last() < int(at["round"]):
            yield GapError(
                "database behind the position: its rounds end before those that Kafka holds: an older copy was "
                "restored, and the topics have what it does not",
                hint=CLOSE_THE_GAP,
            )
            return
        if self.token(int(at["round"])) != at["token"]:
            yield GapError(
                f"another database: round {at['round']} of {names.schema} is not the one that Kafka holds: a copy was "
                "restored and written to, or rounds were deleted",
                hint=CLOSE_THE_GAP,
            )
            return
        ((there, last),) = self._ask(  # by one view: somebody may make a round now
            f"SELECT (SELECT COUNT(*) FROM {names.of('rounds')} WHERE round > %s), round FROM {names.of('log')}",
            int(at["round"]),
        )
        if (counted := int(last) - int(at["round"])) != int(there):
            yield rounds_altered(names, f"behind round {at['round']} it counts {counted}, and has {there}")
        try:
            self.shapes()
        except GapError as exc:
            yield exc
        if (greatest := self._greatest()) >= int(self._ask("SELECT UUID_SHORT()")[0][0]):
            yield GapError(
                f"numbers went back: UUID_SHORT() is not above {greatest}, which {names.schema} has: the server "
                "was started with a clock, or a server_id, that is lower: changes cannot be put in order",
                hint=CLOSE_THE_GAP,
            )

    def token(self, number: int) -> str:
        """Return the token of a round; an empty one of a round that is not there."""
        rows = self._ask(f"SELECT token FROM {self.names.of('rounds')} WHERE round = %s", number)
        return str(rows[0][0]) if rows else ""

    def _greatest(self) -> int:
        """Return the greatest number that a change has, or had when a round was made."""
        tables = [self.names.of(self.names.change_table(number)) for number in self.change_tables()]
        each = [f"SELECT MAX(seq) AS most FROM {table}" for table in tables]
        each.append(f"SELECT MAX(greatest) AS most FROM {self.names.of('rounds')}")
        ((most,),) = self._ask(f"SELECT COALESCE(MAX(most), 0) FROM ({' UNION ALL '.join(reversed(each))}) AS t")
        return int(most)

    def standing(self, captured: Sequence[Captured]) -> dict[str, str | None]:
        """Return in a word how each table, its change table and its triggers stand; None: not as they were made."""
        if self.identity() is None or _MISSED not in self._tables():
            return {one.table.qualified: None for one in captured}
        newest = self._newest(shapes := self.shapes())
        whole = dict(self._ask(f"SELECT shape, made FROM {self.names.of('shapes')} WHERE missed = 0"))
        missed = {text for (text,) in self._ask(f"SELECT DISTINCT shape FROM {self.names.of('missed')}")}
        there = {number: whole[str(number)] for number in self.change_tables() if str(number) in whole.keys() - missed}
        return self._looks.standing(captured, shapes, newest, there)

    def stores(self) -> dict[str, str]:
        """Return the ids that InnoDB has given to the data of tables, by their names there, in small letters."""
        return self._looks.stores()

    def renamed(self, name: str) -> str | None:
        """Return what a table that is gone is called now: its triggers went with it."""
        newest = self._newest(shapes := self.shapes()).get(name)
        for trigger in self._found([shapes[newest].schema]) if newest is not None else ():
            if int(trigger.name.split(":")[2]) == newest:
                return f"{trigger.schema}.{trigger.table}"
        return None

    def _found(self, schemas: Iterable[str]) -> list[Trigger]:
        """Return all of our triggers on others' tables in these databases."""
        made = self._looks.triggers(schemas)
        return [
            Trigger(schema, name, timing, event, table, body)
            for (schema, name), (timing, event, table, body, *_) in made.items()
            if name.startswith(self.names.triggers) and schema != self.names.schema
        ]

    def forget(self, upto: int) -> bool:
        """Delete what the rounds before and up to one have given; return whether all is gone."""
        return forgetting.forget(self._ask, self.names, upto, self.change_tables())

    def count(self) -> int:
        """Return how many changes are kept, as the server estimates it."""
        statement = (
            "SELECT COALESCE(SUM(TABLE_ROWS), 0) FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s "
            "AND TABLE_NAME LIKE 'changes\\_%%'"
        )
        ((rows,),) = self._ask(statement, self.names.schema)
        return int(rows)

    def _do(self, statement: str) -> None:
        session.rows(self._connection, f"keeping database {self.names.schema}", statement)

    def _ask(self, statement: str, *parameters: object) -> list[list[str]]:
        given = tuple(map(str, parameters))  # the driver is told to convert nothing
        return session.texts(self._connection, f"reading database {self.names.schema}", statement, given)


def with_views(state: State) -> Offset:
    """Return a position as that of all that was published: a first snapshot may have read rows behind later rounds."""
    at = state.offset
    for view in cast("Mapping[str, Mapping[str, str]]", state.snapshot.get("views", {})).values():
        number, _, token = view["snapshot"].partition(" ")
        if token and int(number) > int(at["round"]):
            at = {**at, "round": int(number), "token": token}
    return at
