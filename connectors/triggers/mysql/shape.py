"""What a captured table's columns are at one time: all that writing and reading its images needs. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from cdc.model.change import Table
from cdc.model.errors import OperatorError
from connectors.mysql.binlog import charsets
from connectors.mysql.binlog.events import TableColumn
from connectors.mysql.values import mapping

_COUNTER: Final = re.compile(r" AUTO_INCREMENT=\d+(?= |$)")
_SIZED: Final = re.compile(r"(var(?:char|binary))\((\d+)\)", re.IGNORECASE).match
_LETTERS: Final = re.compile(r"(var)?(?:char|binary)\((\d+)\)", re.IGNORECASE).match
_POINTED: Final = 42
"""A long value is not kept in its row, if the row is long, but for its address."""
_HALF_PAGE: Final = 8_126
"""So many bytes has a row at most, on pages of 16 kB."""
_COMMENT: Final = re.compile(r"/\*[^']*\*/$")
"""What MariaDB says behind a type, as of COMPRESSED ones; among the labels of an ENUM it is a part of one."""
_LONG_BYTES: Final = 255
"""A longer VARCHAR is stored as a TEXT, which counts for a few bytes of the 65,535 that a row may have."""


@dataclass(frozen=True, slots=True)
class ShapeColumn:
    """Is a column, as information_schema has it."""

    name: str
    type: str
    charset: str | None
    collation: str | None
    nullable: bool
    visible: bool
    equality: str = ""
    filled: bool = False

    @property
    def told(self) -> TableColumn:
        return mapping.from_catalog(self.name, self.type, self.charset, nullable=self.nullable, visible=self.visible)

    @property
    def stored(self) -> str:
        """Return the type, as SQL writes it, that the change table has for the column: its own, and it may be NULL.

        Then the server copies values as they are, and prints them when the connector reads them: nothing of the writing
        session decides how.
        """
        type_ = _COMMENT.sub("", self.type).strip()
        sized = _SIZED(type_)
        if sized and int(sized[2]) * charsets.max_bytes(self.charset or "binary") > _LONG_BYTES:
            type_ = "text" if sized[1].lower() == "varchar" else "blob"
        of = f" CHARACTER SET {self.charset} COLLATE {self.collation}" if self.charset and self.collation else ""
        return f"{type_}{of} NULL DEFAULT NULL"

    @property
    def most_bytes(self) -> int:
        """Return how many bytes of a page a value takes at most, where the row is long: MariaDB takes the more."""
        sized = _LETTERS(self.type)
        if sized is None:
            return _POINTED
        size_bytes = int(sized[2]) * charsets.max_bytes(self.charset or "binary")
        return _POINTED if sized[1] and size_bytes > _LONG_BYTES else max(_POINTED, size_bytes + 2)


@dataclass(frozen=True, slots=True)
class Shape:
    """Is a table with its columns, as triggers were made for it."""

    schema: str
    name: str
    columns: tuple[ShapeColumn, ...]
    key: tuple[str, ...]
    now: str
    """The table's definition, hashed: see `definition`."""
    marks: tuple[str, ...] = ()
    primary: tuple[str, ...] = ()
    """The columns of the primary key, where `indexed` has any."""
    indexed: tuple[str, ...] = ()
    """The columns of all indexes, where triggers are called for rows that an UPDATE IGNORE has left as they were."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Shape:
        of = json.loads(text)
        columns = tuple(ShapeColumn(**one) for one in of["columns"])
        indexes = (tuple(of.get(name, ())) for name in ("primary", "indexed"))  # older versions asked for none
        return cls(of["schema"], of["name"], columns, tuple(of["key"]), of["now"], tuple(of["marks"]), *indexes)

    @property
    def qualified(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def sql(self) -> str:
        return f"{mapping.quoted_name(self.schema)}.{mapping.quoted_name(self.name)}"

    @property
    def table(self) -> Table:
        """Return the table as events of this shape have it."""
        columns = tuple(replace(mapping.column(of.told), filled=of.filled, equality=of.equality) for of in self.columns)
        return Table(self.schema, self.name, columns, self.key, self.marks)

    @property
    def selected(self) -> Sequence[str]:
        """Return what reads the image's columns from the change table: the text that a snapshot has of each."""
        return [
            mapping.select_expression(of.told._replace(name=stored(at))) or mapping.quoted_name(stored(at))
            for at, of in enumerate(self.columns, start=1)
        ]

    @property
    def key_stored(self) -> Sequence[str]:
        """Return what reads the key from the change table, to be compared: of text the bytes, as keys of events are."""
        of = {one.name: (stored(at), one.collation) for at, one in enumerate(self.columns, start=1)}
        return [f"CAST({name} AS BINARY)" if collation else name for name, collation in map(of.__getitem__, self.key)]

    @property
    def least_free(self) -> int:
        """Return how many bytes are left of the most that a row may have, if each value is as long as it can be."""
        return _HALF_PAGE - sum(of.most_bytes for of in self.columns)

    @property
    def documents(self) -> Sequence[int]:
        """Return the places of JSON columns."""
        return [at for at, of in enumerate(self.columns) if of.type.lower() == "json"]


def stored(at: int) -> str:
    """Return the name that the change table has for a column."""
    return f"c{at}"


def definition(made: str) -> str:
    """Return what of SHOW CREATE TABLE is the table's definition: all but how far its numbers have come."""
    return _COUNTER.sub("", made)


def too_wide_rows(shape: Shape, error: OperatorError) -> OperatorError:
    """Return the error of a table whose rows leave no room for what a change table has besides."""
    return OperatorError(
        f"table {shape.qualified}: its rows are so wide that no change table can have them beside a number: "
        f"{error.message}",
        hint=f'leave it out: source.tables: […, "!{shape.qualified}"]',
    )
