"""Judges which tables triggers can tell of all changes of. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from cdc.model.errors import OperatorError
from connectors.mysql.catalog.foreign_keys import ForeignKey

_VERSIONED: Final = "SYSTEM VERSIONED"


class Found(Protocol):
    """Is a table in the catalog."""

    @property
    def qualified(self) -> str: ...

    @property
    def sql(self) -> str: ...

    @property
    def type(self) -> str: ...

    @property
    def engine(self) -> str: ...

    @property
    def transactional(self) -> bool: ...

    @property
    def partitioned(self) -> bool: ...


def refusals(found: Found, foreign_keys: Sequence[ForeignKey] | None) -> Iterator[OperatorError]:
    """Give why not all changes of a table that exists would be told; `foreign_keys` None: they may not be read."""
    name = found.qualified
    by_binlog = "capture it by the server's binlog: source: {type: mysql}"
    leave = f'leave it out: source.tables: […, "!{name}"]'
    if foreign_keys is None:
        yield OperatorError(
            f"table {name}: its definition may not be read, and so not whether foreign keys write to its rows",
            hint=f"grant SELECT on the whole table to the connector's user; or {leave}",
        )
    for key in foreign_keys or ():
        yield OperatorError(
            f"table {name}: foreign key {key.name} ({key.actions}) changes its rows together with those of "
            f"{'.'.join(key.parent)}, and calls no trigger for them",
            hint=f"{by_binlog}; or {leave}",
        )
    if found.transactional and found.engine.upper() != "INNODB":
        yield OperatorError(
            f"table {name} is of engine {found.engine}: in which order its transactions are committed is known of "
            "InnoDB's alone",
            hint=f"ALTER TABLE {found.sql} ENGINE=InnoDB; or {leave}",
        )
    if found.partitioned:
        yield OperatorError(
            f"table {name} is partitioned: partitions that are dropped, truncated or exchanged call no trigger",
            hint=f"{by_binlog}; or {leave}",
        )
    if found.type == _VERSIONED:
        yield OperatorError(
            f"table {name} is system-versioned: its history may be deleted, and calls no trigger",
            hint=f"{by_binlog}; or {leave}",
        )
    if not name.isascii():
        yield OperatorError(
            f"table {name}: what InnoDB calls a table whose name is not of ASCII is not known, and by that alone it "
            "can be told when it was truncated",
            hint=f"rename it; or {leave}",
        )
