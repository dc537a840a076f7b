"""pgoutput's messages to the model: relations become tables, rows become changes. Pure: the catalog's part is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cdc.change import UNCHANGED, Change, Op, Row, Table, Value
from cdc.errors import BugError, OperatorError
from connectors.postgres.pgoutput import Delete, Insert, Relation, Update
from connectors.postgres.values import TypeInfo, column


def table_of(relation: Relation, types: Mapping[int, TypeInfo], primary_key: Sequence[str]) -> Table:
    """The table that `relation` describes.

    Its key is the replica identity where that names columns (the primary key, or an index), and `primary_key` under
    FULL, where the server flags every column. Raises OperatorError for a table that has no key.
    """
    flagged = [c.name for c in relation.columns if c.in_identity]
    key = list(primary_key) if relation.identity in "fn" or set(flagged) == set(primary_key) else flagged
    missing = set(key) - {c.name for c in relation.columns}
    if not key or missing:
        raise OperatorError(
            f"table {relation.schema}.{relation.name} has no key in the log"
            + (f": {', '.join(sorted(missing))} is not published" if missing else ""),
            hint="give it a primary key, publish all its columns, or leave it out of tables",
        )
    columns = tuple(column(c.name, c.type_oid, c.typmod, types) for c in relation.columns)
    return Table(relation.schema, relation.name, columns, tuple(key))


class _Known(NamedTuple):
    relation: Relation
    table: Table
    in_identity: tuple[bool, ...]


class Assembler:
    """Remembers the relations of one stream: the log describes a table once, then names it by number."""

    def __init__(self) -> None:
        self._known: dict[int, _Known | None] = {}

    def learn(self, relation: Relation, table: Table | None) -> None:
        """Rows of this relation are `table`'s from here on; None: it is not captured.

        The log describes a table again after each VACUUM: then the one known stays, and what hangs on it.
        """
        known = self._known.get(relation.id)
        if known is not None and known.relation == relation and known.table == table:
            return
        identity = tuple(c.in_identity for c in relation.columns)
        self._known[relation.id] = _Known(relation, table, identity) if table else None

    def table(self, relation: int) -> Table | None:
        known = self._relation(relation)
        return known.table if known else None

    def change(self, message: Insert | Update | Delete, lsn: int) -> Change | None:
        """The change a row message says; None where its table is not captured."""
        known = self._relation(message.relation)
        if known is None:
            return None
        table = known.table
        match message:
            case Insert(_, new):
                return Change(Op.CREATE, table, None, new, lsn)
            case Update(_, old, old_is_key, new):
                if old is not None:
                    if old_is_key:
                        old = _key_image(old, known.in_identity)
                    if UNCHANGED in new:
                        new = _fill(new, old)
                return Change(Op.UPDATE, table, old, new, lsn)
            case Delete(_, old, old_is_key):
                return Change(Op.DELETE, table, _key_image(old, known.in_identity) if old_is_key else old, None, lsn)

    def _relation(self, relation: int) -> _Known | None:
        try:
            return self._known[relation]
        except KeyError:
            raise BugError(f"a row of relation {relation}, which the log has not described") from None


def _key_image(row: Row, in_identity: tuple[bool, ...]) -> Row:
    return tuple(value if kept else UNCHANGED for value, kept in zip(row, in_identity, strict=True))


def _fill(new: Row, old: Row) -> Row:
    """What was not sent, from the old row.

    A value left out is never NULL: a NULL there is of a partition that is not FULL itself, whose key alone is sent as
    if it were the whole row because its root is FULL.
    """

    def filled(value: Value, before: Value) -> Value:
        return before if value is UNCHANGED and before is not None else value

    return tuple(filled(value, before) for value, before in zip(new, old, strict=True))
