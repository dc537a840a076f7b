"""Which relations of the catalog can be captured, and why others cannot. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cdc.model.errors import LeftOutError, OperatorError
from cdc.model.hints import of_table
from connectors.postgres.session import identifier

_NO_TABLES = {"S": "a sequence", "i": "an index", "I": "an index", "c": "a type"}
_NOT_TABLES = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}


@dataclass(frozen=True, slots=True)
class FoundRelation:
    """Is a row of pg_class."""

    oid: int
    schema: str
    name: str
    kind: str
    identity: str
    persistence: str
    readable: bool
    deferrable: bool
    """Whether the primary key is deferrable."""
    filtered: bool
    """Row security leaves rows out for `user`."""
    user: str
    hidden: Sequence[str] | None = None
    """Columns that `user` may not read, where the right to read has been given column by column."""

    @property
    def qualified(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def sql(self) -> str:
        return identifier(self.schema, self.name)


def no_table(name: str, kind: str, root: str | None) -> OperatorError:
    """Say what has the name that the configuration gives, and is no table of its own; `root`: what it is a part of."""
    if root is not None:
        return OperatorError(
            f"table {name} is a partition of {root}: its rows are captured as rows of that table",
            hint=f"name {root} in source.tables, in place of {name}",
        )
    what = _NO_TABLES.get(kind, "a table of the server's own, of a session, or of a connector")
    return OperatorError(f"{name} is {what}: nothing of it can be captured", hint="name tables of the application")


def not_logged(what: str, table: str, relation: str) -> LeftOutError:
    """Return the error of a table, or of a part of one; `relation` is in SQL what is to be logged.

    A table that is left out is read again when it is back. Where it is all that a connector has, the run ends instead.
    """
    return LeftOutError(
        f"{what} is not in the log (unlogged)",
        hint=f"ALTER TABLE {relation} SET LOGGED; if no other table was captured, then also "
        f"{of_table('cdc snapshot start CONNECTOR.yaml', table)}: the log has nothing of what was written meanwhile",
    )


def refusals(found: FoundRelation) -> Iterator[OperatorError]:
    """Give why a table that exists cannot be captured by the log."""
    name = found.qualified
    if found.kind not in "rp":
        yield OperatorError(f"{name} is {_NOT_TABLES[found.kind]}: the log has no rows of it", hint="name its tables")
        return
    if found.persistence != "p" and found.kind == "p":  # before PostgreSQL 18, where SET LOGGED leaves it as it is
        yield LeftOutError(
            f"table {name} is not in the log (unlogged)",
            hint="it is partitioned, so SET LOGGED changes nothing: make it again without UNLOGGED, and attach its "
            "partitions to it",
        )
    elif found.persistence != "p":
        yield not_logged(f"table {name}", name, found.sql)
    if found.identity == "n":
        yield OperatorError(
            f"table {name} has REPLICA IDENTITY NOTHING: once published, its updates and deletes would fail",
            hint=f"ALTER TABLE {found.sql} REPLICA IDENTITY DEFAULT",
        )
    if found.identity == "d" and found.deferrable:
        yield OperatorError(
            f"the primary key of table {name} is DEFERRABLE, which identifies no row in the log: once published, its "
            "updates and deletes would fail",
            hint=f"ALTER TABLE {found.sql} REPLICA IDENTITY FULL",
        )
    yield from _unread(found)


def refusals_by_triggers(found: FoundRelation) -> Iterator[OperatorError]:
    """Give why a table that exists cannot be captured by triggers."""
    name = found.qualified
    if found.kind not in "rp":
        yield OperatorError(
            f"{name} is {_NOT_TABLES[found.kind]}: triggers do not tell of its rows", hint="name its tables"
        )
        return
    if found.persistence != "p":
        yield OperatorError(
            f"table {name} is unlogged: a crash of the server empties it, and no trigger tells",
            hint=f"ALTER TABLE {found.sql} SET LOGGED",
        )
    if found.deferrable:
        yield OperatorError(
            f"the primary key of table {name} is DEFERRABLE: two rows may share it for a time",
            hint="make the constraint again without DEFERRABLE; or leave the table out",
        )
    yield from _unread(found)


def _unread(found: FoundRelation) -> Iterator[OperatorError]:
    name, user = found.qualified, identifier(found.user)
    if not found.readable:
        grant = f"GRANT USAGE ON SCHEMA {identifier(found.schema)} TO {user}; GRANT SELECT ON {found.sql} TO {user}"
        yield (
            LeftOutError(f"table {name} may not be read by this user", hint=grant)
            if found.hidden is None
            else _of_columns(found, grant)
        )
    if found.filtered:
        yield LeftOutError(
            f"table {name} has row security, which hides rows from this user: a snapshot would miss what the log has",
            hint=f"ALTER ROLE {user} BYPASSRLS",
        )


def _of_columns(found: FoundRelation, grant: str) -> LeftOutError:
    """Return the error of a table of which columns are granted, as a rule because others are nobody's business.

    Whole rows are read: a table is locked and its rows' writers are asked for by no right to columns.
    """
    if not found.hidden:
        said = f"table {found.qualified} may not be read by this user: SELECT is granted on its columns, not on it"
        return LeftOutError(said, hint=grant)
    names = ", ".join(found.hidden)
    return LeftOutError(
        f"table {found.qualified} may not be read by this user, who has no right to its columns {names}",
        hint=f"a connector needs the right to whole rows: if {names} must not be published, "
        f"say so first, source.columns: {{{found.qualified}: {{exclude: [{names}]}}}}, and then: {grant}; or leave the "
        f'table out, source.tables: […, "!{found.qualified}"]',
    )
