"""Turns pgoutput's messages into the model: relations to tables, rows to changes. Pure: the catalog's part is given."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from cdc.model.change import UNCHANGED, Change, Op, Row, Table, Value
from cdc.model.errors import BugError, OperatorError
from cdc.model.table_schema import Description, carried, rewritten
from connectors.postgres.pgoutput.fast_path import FastPath
from connectors.postgres.pgoutput.messages import Delete, Insert, Relation, RelationColumn, Update
from connectors.postgres.values.format_type import identifier
from connectors.postgres.values.mapping import TypeInfo, column


@dataclass(frozen=True, slots=True)
class Today:
    """Holds what the catalog says of a relation now, which may be later than the log."""

    identity: str
    columns: tuple[RelationColumn, ...]
    primary_key: tuple[str, ...]
    marks: tuple[str, str]
    """The files its rows are in, and the transactions that made its columns: DDL that rewrites values changes both."""
    filled: frozenset[str]
    """Columns that rows older than they have a value in: ADD COLUMN with a default."""
    nullable: frozenset[str]
    identity_key: tuple[str, ...] = ()
    """The columns of the index that is the replica identity, also those that the log does not carry."""
    unique: tuple[frozenset[str], ...] = ()
    """Sets of columns that no two rows share at any time, not even within a transaction."""
    loose: frozenset[str] = frozenset()
    """Columns whose collation takes different texts for equal (it is not deterministic)."""
    collations: Mapping[str, str] = field(default_factory=dict)
    """The number of each column's collation, where that is not the type's own."""


def table_of(
    relation: Relation,
    types: Mapping[int, TypeInfo],
    today: Today | None,
    *,
    known: Sequence[Description] = (),
    wanted: Sequence[str] = (),
) -> Table:
    """Return the table that `relation` describes, with the key of its time.

    `today` is None where the relation is gone from the catalog. `known` are the table's earlier descriptions, oldest
    first; `wanted` is the key that the configuration gives. Raises OperatorError for a table that has no key.
    """
    current = today is not None and _shape(today.columns) == _shape(relation.columns)
    filled = today.filled if today is not None and current else frozenset()
    loose = today.loose if today is not None else frozenset()
    collations = today.collations if today is not None else {}
    columns = tuple(
        replace(
            made,
            filled=made.name in filled,
            equality="" if made.name in loose else made.equality,
            collation=collations.get(made.name, ""),
        )
        for made in (column(c.name, c.type_oid, c.typmod, types) for c in relation.columns)
    )
    table = Table(relation.schema, relation.name, columns, ())
    last = known[-1].marks if known else ()
    marks = today.marks if today is not None and current else last
    key = _key(relation, table, today, current=current, known=known, wanted=wanted)
    # the same marks as long as nothing was rewritten: the table stays one object, and what is cached for it is kept
    return replace(
        table,
        key=key,
        marks=marks if not last or rewritten(last, marks) else last,
        deferred_key=_is_deferred(relation, key, today, known),
    )


def _is_deferred(relation: Relation, key: Collection[str], today: Today | None, known: Sequence[Description]) -> bool:
    """Tell whether two rows may share the key within a transaction.

    Only the whole old row tells such rows apart, and only REPLICA IDENTITY FULL allows such a key: an index that is a
    replica identity is immediate. What was so once is taken to be so for ever, because the log may be older than the
    catalog.
    """
    if relation.identity != "f":
        return False
    now = today is not None and not any(columns <= set(key) for columns in today.unique)
    return now or any(said.deferred_key for said in known)


def _key(
    relation: Relation,
    table: Table,
    today: Today | None,
    *,
    current: bool,
    known: Sequence[Description],
    wanted: Sequence[str],
) -> tuple[str, ...]:
    names = {c.name for c in relation.columns}
    flagged = tuple(c.name for c in relation.columns if c.in_identity) if relation.identity in "di" else ()
    primary = today.primary_key if today is not None else ()
    if wanted:
        if set(wanted) <= names and tells_apart(relation, wanted):
            return tuple(wanted)
        now = relation._replace(identity=today.identity, columns=today.columns) if today is not None else relation
        if not tells_apart(now, wanted):
            raise OperatorError(
                f"table {table.qualified}: the log does not carry the key ({', '.join(wanted)}) of old rows any more",
                hint=f"ALTER TABLE {_sql(relation)} REPLICA IDENTITY FULL",
            )
    orders = [
        *([primary] if current else []),
        *(described for described in _by_name_of_now(table, known)),
        primary,
    ]
    for order in orders:
        if order and set(order) <= names and (not flagged or set(order) == set(flagged)):
            return order
    if today is not None:
        whole = today.identity_key or today.primary_key
        missing = [name for name in whole if name not in {c.name for c in today.columns}]
        if missing and set(flagged) <= set(whole):
            raise _not_carried(table, missing, whole)
    if not flagged:
        raise OperatorError(
            f"table {table.qualified} has no key in the log",
            hint=f"ALTER TABLE {_sql(relation)} ADD PRIMARY KEY (…); publish all its "
            "columns; or leave it out of tables",
        )
    return flagged


def _not_carried(table: Table, missing: Sequence[str], key: Sequence[str]) -> OperatorError:
    """Return the error of a table whose log has a part of its key only."""
    return OperatorError(
        f"table {table.qualified}: the log does not carry {', '.join(missing)} of its key ({', '.join(key)})",
        hint="give it a key without generated columns; on PostgreSQL 18 and newer a publication may carry them: "
        "WITH (publish_via_partition_root = true, publish_generated_columns = stored)",
    )


def _by_name_of_now(table: Table, known: Sequence[Description]) -> list[tuple[str, ...]]:
    """Return the keys said before, newest first; the newest also by the names a rename has given its columns since."""
    now = Description.of(table)
    keys = [described.key for described in reversed(known)]
    if known:
        renamed = carried(replace(known[-1], marks=()), now)
        keys.insert(1, tuple(renamed.get(name, name) for name in known[-1].key))
    return keys


def tells_apart(relation: Relation, key: Collection[str]) -> bool:
    """Tell whether the log has these columns of the old row: always under FULL, else if they are the identity's."""
    return relation.identity == "f" or {c.name for c in relation.columns if c.in_identity} == set(key)


def _sql(relation: Relation) -> str:
    return f"{identifier(relation.schema)}.{identifier(relation.name)}"


def _shape(columns: Sequence[RelationColumn]) -> list[tuple[str, int, int]]:
    return [(c.name, c.type_oid, c.typmod) for c in columns]


class _Known(NamedTuple):
    relation: Relation
    table: Table
    in_identity: tuple[bool, ...]
    needs_old: bool


class Assembler:
    """Remembers the relations of one stream: the log describes a table once, then names it by number."""

    def __init__(self) -> None:
        self._known: dict[int, _Known | None] = {}
        self.fast_path = FastPath()
        """The fast path of most rows, to be asked before a message is decoded."""

    def learn(self, relation: Relation, table: Table | None, *, needs_old: bool = False) -> None:
        """Take rows of this relation as `table`'s from here on; None: it is not captured.

        `needs_old`: an update without the old row does not say which row it was. It comes from a partition that is not
        FULL as its root is, and gets an old row of nulls, which are no key.

        The log describes a table again after each VACUUM: then the known table stays, and what is cached for it.
        """
        known = self._known.get(relation.id)
        if known is not None and known.relation == relation and known.table == table:
            return
        identity = tuple(c.in_identity for c in relation.columns)
        self._known[relation.id] = _Known(relation, table, identity, needs_old) if table else None
        self.fast_path.learn(relation.id, len(relation.columns), None if needs_old else table, identity)

    def table(self, relation: int) -> Table | None:
        known = self._relation(relation)
        return known.table if known else None

    def change(self, message: Insert | Update | Delete, lsn: int) -> Change | None:
        """Return the change a row message says; None where its table is not captured."""
        known = self._relation(message.relation)
        if known is None:
            return None
        table = known.table
        match message:
            case Insert(_, new):
                return Change(Op.CREATE, table, None, new, lsn)
            case Update(_, None, _, new) if known.needs_old:
                return Change(Op.UPDATE, table, (None,) * len(new), new, lsn)
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
    """Fill what was not sent from the old row.

    A value that was not sent is never NULL. A NULL in the old row comes from a partition that is not FULL itself: of it
    only the key is sent, but as if it were the whole row, because its root is FULL.
    """

    def filled(value: Value, before: Value) -> Value:
        return before if value is UNCHANGED and before is not None else value

    return tuple(filled(value, before) for value, before in zip(new, old, strict=True))
