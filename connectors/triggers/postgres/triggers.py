"""Writes the functions and triggers of one table as SQL. Pure.

**What is written down** is typed: a column of the change table has the type of the table's, and the server prints the
value when the connector reads it, under the connector's settings. So DateStyle, TimeZone and all else that the writing
session may have set decide nothing, and need not be set for each row, which would cost more than the rest.

**A trigger reads the row by its key** and writes that, not what it was told. A statement may be nested in another one
of the same transaction (a foreign key's cascade, a trigger or function of the application's) and change the same row;
its triggers are called first, and those of the outer one afterwards with what the outer one made of the row. Why the
last image that is written down of a key in a transaction is still the right one: each change of a key is followed by a
call of ours, which reads the key's state at that moment. The call that follows the last change reads the final state;
calls that come later, for changes that came earlier, read the same. A delete is written down only if the key is not
there by then.

**The application's statement must not fail** because its table is not any more what the functions were written for.
Each asks before it names the table or a column of it:

- `has_schema_privilege`, `has_table_privilege`: whether the connector's role may still read the table.
- `to_regclass`: whether the names still lead to the table, and to the change table. Like the two above it is the
  server's own function and looks into its caches.
- `shape`: whether the columns are still those. It is a query, for each row too dear. It is declared IMMUTABLE, so that
  it is called when the statement around it is planned; and that statement names the table, so that the server plans it
  again whenever the table was altered. In transactions that keep their snapshot the plan could be made by an old
  snapshot and be kept for later ones: there `shape_now` is called for each row.

A row of a change has two images, and may be too big for a page where the table's own is not: that is caught.

If the answer is no, it is noted that a change was missed, and the connector makes the functions again, with a change
table that has missed none, and reads the table again.

**SECURITY DEFINER**, so that who writes to the table needs no right to the change table: with a search_path of its own,
and with every name qualified, operators too. enable_seqscan is off, because a statement that was planned when the table
had a page of rows is still in use when it has millions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from connectors.triggers.postgres.shape import Shape, quoted

EVENTS: Final = ("insert", "update", "delete", "truncate")
FORGETS: Final = "cdc.forgets"
"""The setting by which a session says that it is the connector, which deletes what it has read."""
MARKED: Final = "cdc: changes of connector "
"""What the comment on a connector's schema begins with; `connectors.postgres.catalog` leaves such schemas out."""
LONGEST: Final = 36
"""The longest name of a connector: PostgreSQL cuts names at 63 bytes."""


@dataclass(frozen=True, slots=True)
class Names:
    """What a connector's schema and triggers are called."""

    connector: str

    @property
    def schema(self) -> str:
        return f"cdc_{self.connector}"

    def of(self, name: str) -> str:
        """Return what something in the schema is called, as SQL writes it."""
        return f"{quoted(self.schema)}.{quoted(name)}"

    @property
    def changes(self) -> str:
        """The table above all change tables."""
        return self.of("changes")

    @property
    def sequence(self) -> str:
        return self.of("number")

    def change_table(self, shape: int) -> str:
        return f"changes_{shape}"

    def trigger(self, oid: int, event: str) -> str:
        """The table's number is in it: a partition has its own triggers, and those of the tables above it."""
        return f"cdc:{self.connector}:{oid}:{event}"

    def function(self, oid: int, event: str) -> str:
        return f"{event}_{oid}"

    @staticmethod
    def table_of(function: str) -> int | None:
        """Return the number of the table whose function has a name; None: it is no function of a table."""
        event, _, oid = function.rpartition("_")
        return int(oid) if event in EVENTS and oid.isdecimal() else None


def literal(text: str) -> str:
    """Write a text as SQL does, whatever standard_conforming_strings says."""
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'" if "\\" in text else f"'{escaped}'"


def made(names: Names) -> tuple[str, str]:
    """Return what the schema is known by, as SQL: a table's number, and that one with the number of its database.

    A dump brings another table. What CREATE DATABASE … TEMPLATE has copied is the same in another database, and
    positions do not tell: transactions are numbered for all databases of a server together.
    """
    table = f"{literal(names.changes)}::regclass::oid::bigint"
    return table, f"(SELECT oid::bigint << 32 | {table} FROM pg_database WHERE datname = current_database())"


def schema(names: Names, log: str, first: int) -> Iterator[str]:
    """Give the statements that make the schema and what all tables share. `first`: the first number."""
    yield f"CREATE SCHEMA {quoted(names.schema)}"
    yield f"REVOKE ALL ON SCHEMA {quoted(names.schema)} FROM PUBLIC"
    yield f"COMMENT ON SCHEMA {quoted(names.schema)} IS {literal(MARKED + names.connector)}"
    yield f"CREATE SEQUENCE {names.sequence} AS bigint START WITH {first} CACHE 1"
    yield (
        f"CREATE TABLE {names.changes} (seq bigint NOT NULL DEFAULT nextval({literal(names.sequence)}), "
        'xid xid8 NOT NULL, at timestamptz NOT NULL, op "char" NOT NULL)'
    )
    yield f"CREATE TABLE {names.of('shapes')} (shape integer PRIMARY KEY, described text NOT NULL)"
    yield f"CREATE TABLE {names.of('missed')} (shape integer NOT NULL)"
    yield f"CREATE TABLE {names.of('log')} (id text NOT NULL, made bigint NOT NULL)"
    yield f"INSERT INTO {names.of('log')} VALUES ({literal(log)}, {made(names)[1]})"
    for function in shared_functions(names).values():
        yield function.statement
    for table in GUARDED:
        yield from guard(names, table)


@dataclass(frozen=True, slots=True)
class Shared:
    """Is a function that all tables share, and the statement that makes it, in place of one of its name."""

    statement: str
    body: str
    volatility: str
    """As the catalog has it."""


def shared_functions(names: Names) -> dict[str, Shared]:
    """Return the functions that all tables share, by their names."""
    made = {}
    for name, word, volatility in (("shape", "IMMUTABLE", "i"), ("shape_now", "STABLE", "s")):
        of = f"{names.of(name)}(pg_catalog.oid) RETURNS pg_catalog.text LANGUAGE plpgsql {word}"
        made[name] = Shared(f"CREATE OR REPLACE FUNCTION {of} AS {literal(_SHAPE)}", _SHAPE, volatility)
    body = _kept(names)
    of = f"{names.of('kept')}() RETURNS trigger LANGUAGE plpgsql"
    made["kept"] = Shared(f"CREATE OR REPLACE FUNCTION {of} AS {literal(body)}", body, "v")
    return made


def numbering(names: Names) -> str:
    """Return the statement that has the sequence give each number once, and rise, whatever somebody has set."""
    return f"ALTER SEQUENCE {names.sequence} AS bigint INCREMENT BY 1 MINVALUE 1 NO MAXVALUE CACHE 1 NO CYCLE"


GUARDED: Final = ("changes", "missed")
"""The tables that all share and that nobody else may delete from."""


_MANY: Final = 60
"""So many columns have a change whose row is never too big: 8160 bytes hold two images of them, for no type of fixed
length has more than 64 bytes, and what is longer than 24 of another one is moved out of the row."""
MOST_COLUMNS: Final = (1600 - 5) // 2
"""A table has at most 1,600 columns, and a change table two for each, and four of its own."""

_SHAPE: Final = (
    "BEGIN RETURN (SELECT pg_catalog.string_agg(pg_catalog.concat(a.attnum, ' ', a.atttypid, ' ', a.attname), ',' "
    "ORDER BY a.attnum) FROM pg_catalog.pg_attribute a WHERE a.attrelid OPERATOR(pg_catalog.=) $1 "
    "AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped); END"
)


def _kept(names: Names) -> str:
    said = f"changes of connector {names.connector}, which it may not have read: they are its own to delete"
    hint = "to take the connector away: docs/triggers.md, What it makes in PostgreSQL"
    return (
        f"BEGIN IF pg_catalog.current_setting('{FORGETS}', true) OPERATOR(pg_catalog.=) {literal(names.connector)} "
        f"THEN RETURN NULL; END IF; RAISE EXCEPTION USING MESSAGE = {literal(said)}, HINT = {literal(hint)}; END"
    )


def guard(names: Names, table: str) -> Iterator[str]:
    """Give the statements that keep others from deleting or altering changes, in whatever role they replicate."""
    yield (
        f'CREATE OR REPLACE TRIGGER "kept" BEFORE DELETE OR UPDATE OR TRUNCATE ON {names.of(table)} FOR EACH STATEMENT '
        f"EXECUTE FUNCTION {names.of('kept')}()"
    )
    yield f'ALTER TABLE {names.of(table)} ENABLE ALWAYS TRIGGER "kept"'


def identified(names: Names, table: str) -> str:
    """Return the statement without which nothing could be deleted of a table that a publication has.

    There is no key in its place: an application's statement would fail where a number came twice.
    """
    return f"ALTER TABLE {names.of(table)} REPLICA IDENTITY FULL"


def change_table(names: Names, number: int, shape: Shape) -> Iterator[str]:
    """Give the statements that make the change table of a shape."""
    table = names.change_table(number)
    columns = ", ".join(
        f"{image}{at} {type_}" for image in ("o", "n") for at, type_ in enumerate(shape.stored, start=1)
    ) + (", part pg_catalog.oid" if shape.partitioned else "")
    yield (
        f"CREATE TABLE {names.of(table)} ({columns}) INHERITS ({names.changes}) "
        "WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0)"
    )
    yield f"CREATE INDEX ON {names.of(table)} (xid, seq)"
    yield from guard(names, table)


def functions(names: Names, number: int, oid: int, shape: Shape) -> dict[str, str]:
    """Give the bodies of a table's functions, by event. `oid`: of the change table."""
    writer = _Writer(names, number, oid, shape)
    return {
        "insert": writer.body(writer.inserted()),
        "update": writer.body(writer.updated()),
        "delete": writer.body(writer.deleted()),
        "truncate": writer.body(writer.truncated()),
    }


def create_function(names: Names, name: str, body: str) -> str:
    """Return the statement that makes a function, in place of the one of that name."""
    return (
        f"CREATE OR REPLACE FUNCTION {names.of(name)}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER "
        f"SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS {literal(body)}"
    )


NOTHING: Final = "BEGIN RETURN NULL; END"
"""The body of a function whose table is not captured any more: its triggers are the table's owner's to drop."""


def create_trigger(names: Names, shape: Shape, event: str) -> str:
    """Return the statement that makes a trigger, or makes it again; it waits for those who write to the table."""
    each = "STATEMENT" if event == "truncate" else "ROW"
    return (
        f"CREATE OR REPLACE TRIGGER {quoted(names.trigger(shape.oid, event))} AFTER {event.upper()} ON "
        f"{quoted(shape.schema)}.{quoted(shape.name)} FOR EACH {each} "
        f"EXECUTE FUNCTION {names.of(names.function(shape.oid, event))}()"
    )


def call_always(names: Names, shape: Shape, event: str) -> str:
    """Return the statement that has a trigger called whatever `session_replication_role` says."""
    return (
        f"ALTER TABLE {quoted(shape.schema)}.{quoted(shape.name)} "
        f"ENABLE ALWAYS TRIGGER {quoted(names.trigger(shape.oid, event))}"
    )


class _Writer:
    """Holds what a table's functions have in common."""

    def __init__(self, names: Names, number: int, oid: int, shape: Shape) -> None:
        self._names, self._number, self._oid, self._shape = names, number, oid, shape
        self._table = f"{quoted(shape.schema)}.{quoted(shape.name)}"
        self._from = self._table if shape.partitioned else f"ONLY {self._table}"
        self._into = names.of(names.change_table(number))

    def _kept(self, statements: str) -> str:
        """Note a miss where the row of a change is too big for a page, for tables that can have such rows.

        The block is a subtransaction for each row, which the others are spared.
        """
        if len(self._shape.columns) <= _MANY:
            return statements
        return f"BEGIN {statements} EXCEPTION WHEN program_limit_exceeded THEN {self._missed} END;"

    @property
    def _missed(self) -> str:
        return f"INSERT INTO {self._names.of('missed')} VALUES ({self._number});"

    def body(self, statements: str) -> str:
        oid = f"{self._shape.oid}::pg_catalog.oid"
        usage = f"pg_catalog.has_schema_privilege({self._shape.schema_oid}::pg_catalog.oid, 'USAGE')"
        rights = f"pg_catalog.has_table_privilege({oid}, 'SELECT')"
        here = f"pg_catalog.to_regclass({literal(self._table)}) OPERATOR(pg_catalog.=) {oid}"
        there = f"pg_catalog.to_regclass({literal(self._into)}) OPERATOR(pg_catalog.=) {self._oid}::pg_catalog.oid"
        now = literal(self._shape.now)
        planned = (
            f"(SELECT {self._names.of('shape')}({oid}) OPERATOR(pg_catalog.=) {now} "
            f"FROM (SELECT) AS one LEFT JOIN {self._from} AS none ON false)"
        )
        asked = f"{self._names.of('shape_now')}({oid}) OPERATOR(pg_catalog.=) {now}"
        fresh = "pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.=) 'read committed'"
        return (
            f"#variable_conflict use_column\nDECLARE same pg_catalog.bool; BEGIN IF {there} THEN "
            f"IF {usage} THEN IF {rights} AND {here} THEN "
            f"IF {fresh} THEN same := {planned}; ELSE same := {asked}; END IF; "
            f"IF same THEN {self._kept(statements)} RETURN NULL; END IF; END IF; END IF; "
            f"{self._missed} END IF; RETURN NULL; END"
        )

    def inserted(self) -> str:
        return f"{self._insert('c', new='t')} {self._found_by('NEW')};"

    def updated(self) -> str:
        """Where the key is another one: a row with the old key, or none with the new, is another statement's doing.

        Or this one's, which has passed keys on from row to row.
        """
        olds, news = (", ".join(f"{row}.{quoted(name)}" for name in self._shape.key) for row in ("OLD", "NEW"))
        return (
            f"IF pg_catalog.record_image_eq(ROW({olds}), ROW({news})) THEN "
            f"{self._insert('u', old='OLD', new='t')} {self._found_by('NEW')}; "
            f"ELSE {self._insert('u', old='OLD', new='t')} {self._found_by('NEW')} "
            f"AND NOT EXISTS (SELECT {self._found_by('OLD', alias='was')}); "
            f"{self._insert('c', new='t')} {self._found_by('NEW')} "
            f"AND EXISTS (SELECT {self._found_by('OLD', alias='was')});{self._passed_on()} "
            f"{self._insert('d', old='OLD')} WHERE NOT EXISTS (SELECT {self._found_by('OLD')}) "
            f"AND NOT EXISTS (SELECT {self._found_by('NEW')}); END IF;"
        )

    def deleted(self) -> str:
        return f"{self._insert('d', old='OLD')} WHERE NOT EXISTS (SELECT {self._found_by('OLD')});{self._passed_on()}"

    def _passed_on(self) -> str:
        """Where a row has the old key by now: that one may not be published, and the topic would keep the old row."""
        if not self._shape.some:
            return ""
        return (
            f" {self._insert('d', old='OLD')} WHERE EXISTS (SELECT {self._found_by('OLD')}); "
            f"{self._insert('c', new='t')} {self._found_by('OLD')};"
        )

    def truncated(self) -> str:
        return f"{self._insert('t')};"

    def _insert(self, op: str, *, old: str | None = None, new: str | None = None) -> str:
        names, values = ["seq", "xid", "at", "op"], [
            f"pg_catalog.nextval({literal(self._names.sequence)}::pg_catalog.regclass)",
            "pg_catalog.pg_current_xact_id()",
            "pg_catalog.clock_timestamp()",
            literal(op),
        ]  # fmt: skip
        for image, row in (("o", old), ("n", new)):
            if row is not None:
                names += [f"{image}{at}" for at in range(1, len(self._shape.columns) + 1)]
                values += self._images(row)
        if new is not None and self._shape.partitioned:
            names.append("part")
            values.append(f"{new}.tableoid")
        return f"INSERT INTO {self._into} ({', '.join(names)}) SELECT {', '.join(values)}"

    def _images(self, row: str) -> Sequence[str]:
        return [f"{row}.{quoted(of.name)}" for of in self._shape.columns]

    def _found_by(self, row: str, *, alias: str = "t") -> str:
        """Find a row by its key's index; where that takes other texts for equal, by its bytes too."""
        each = []
        for name, equality, exact in zip(self._shape.key, self._shape.equalities, self._shape.exact, strict=True):
            there, wanted = f"{alias}.{quoted(name)}", f"{row}.{quoted(name)}"
            each.append(f"{there} OPERATOR({quoted(equality.schema)}.{equality.name}) {wanted}")
            if not exact:
                each.append(f"pg_catalog.record_image_eq(ROW({there}), ROW({wanted}))")
        return f"FROM {self._from} AS {alias} WHERE {' AND '.join(each)}"
