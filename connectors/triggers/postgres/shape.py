"""What a captured table's columns are at one time: all that writing and reading its images needs. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cdc.model.change import Table
from connectors.postgres.values.mapping import TypeInfo, column

ENUM: Final = "e"
DOMAIN: Final = "d"


@dataclass(frozen=True, slots=True)
class ShapeColumn:
    """Is a column."""

    name: str
    type_oid: int
    typmod: int


@dataclass(frozen=True, slots=True)
class Equality:
    """Is how a key column is compared by its index: the operator's schema and name."""

    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Shape:
    """Is a table with its columns, as triggers were made for it."""

    oid: int
    schema_oid: int
    schema: str
    name: str
    columns: tuple[ShapeColumn, ...]
    key: tuple[str, ...]
    partitioned: bool
    equalities: tuple[Equality, ...]
    """Of the key's columns, in key order."""
    exact: tuple[bool, ...]
    """Whether values of a key column that its index takes for equal have the same text."""
    stored: tuple[str, ...]
    """The type, as SQL writes it, that the change table has for each column."""
    now: str
    """What the database's function `shape` says of the table."""
    marks: tuple[str, ...] = ()
    some: bool = False
    """Whether `source.where` names the table: not all of its rows may be published."""

    def to_json(self) -> str:
        return json.dumps(
            {
                "oid": self.oid,
                "schema_oid": self.schema_oid,
                "schema": self.schema,
                "name": self.name,
                "columns": [(of.name, of.type_oid, of.typmod) for of in self.columns],
                "key": self.key,
                "partitioned": self.partitioned,
                "equalities": [(of.schema, of.name) for of in self.equalities],
                "exact": self.exact,
                "stored": self.stored,
                "now": self.now,
                "marks": self.marks,
                "some": self.some,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Shape:
        of = json.loads(text)
        return cls(
            oid=of["oid"],
            schema_oid=of["schema_oid"],
            schema=of["schema"],
            name=of["name"],
            columns=tuple(ShapeColumn(*one) for one in of["columns"]),
            key=tuple(of["key"]),
            partitioned=of["partitioned"],
            equalities=tuple(Equality(*one) for one in of["equalities"]),
            exact=tuple(of["exact"]),
            stored=tuple(of["stored"]),
            now=of["now"],
            marks=tuple(of["marks"]),
            some=of.get("some", False),
        )

    @property
    def qualified(self) -> str:
        return f"{self.schema}.{self.name}"

    def table(self, types: Mapping[int, TypeInfo]) -> Table:
        """Return the table as events of this shape have it."""
        columns = tuple(column(of.name, of.type_oid, of.typmod, types) for of in self.columns)
        return Table(self.schema, self.name, columns, self.key, self.marks)


def stored_as(oid: int, types: Mapping[int, TypeInfo]) -> str:
    """Return the type that a column of this type has in the change table.

    Its own, without modifiers, so that the server's output function prints it when it is read, and nothing of the
    writing session decides how. An enum's value is stored as its label, which is the same in every session, and a
    domain's as that of the type below: then neither is a reason why the type cannot be dropped.
    """
    info = types[oid]
    while info.category == DOMAIN:
        info = types[info.base]
    if info.category == ENUM:
        return 'pg_catalog."text"'
    return f"{quoted(info.schema)}.{quoted(info.name)}"


_EXACT: Final = frozenset(
    {"int2", "int4", "int8", "oid", "bool", "uuid", "date", "time", "timestamp", "timestamptz", "bytea", "name"}
)


def prints_exactly(oid: int, types: Mapping[int, TypeInfo]) -> bool:
    """Tell whether two values of a type that are equal are printed alike; of texts a collation decides."""
    info = types[oid]
    while info.category == DOMAIN:
        info = types[info.base]
    return info.category == ENUM or (info.schema == "pg_catalog" and info.name in _EXACT)


def quoted(name: str) -> str:
    """Write a name as SQL does."""
    return '"' + name.replace('"', '""') + '"'
