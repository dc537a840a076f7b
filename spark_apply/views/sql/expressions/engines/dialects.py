"""In whose SQL a node's statements are written. The rule is the same for all engines; names and the clock differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from spark_apply.views.sql.view_plan import CLOCK_AFTER, CLOCK_BEFORE


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between engines in a statement."""

    name: str
    """The engine's, and sqlglot's."""
    table: Callable[[str, str], str]
    """Gives the name of a relation's table of a schema."""
    clock_before: str
    clock_after: str
    instant: str
    """The type of a timestamp without a zone."""
    changed_rows: bool
    """Whether the rows that differ are tables of their own: ``before_changed``, ``after_changed``, ``both_changed``."""
    inner_first: bool
    """Whether in a subquery `a.b` is part b of a column a of its own, if it has one, before column b of a table a."""
    same: str = "IS NOT DISTINCT FROM"
    """Says of two values that they are equal, or both NULL."""
    semi_joins: bool = True
    """Whether there are SEMI JOIN and ANTI JOIN."""


def _in_schema(schema: str, relation: str) -> str:
    return f"{_identifier(schema, 'duckdb')}.{_identifier(relation, 'duckdb')}"


def stand_in(schema: str, relation: str) -> str:
    """Return the name of the temporary view of Spark that is a relation's table of a schema."""
    return f"cdc_{schema}_" + re.sub(r"[^A-Za-z0-9]", lambda found: f"_{ord(found[0]):x}_", relation)


def _identifier(name: str, dialect: str) -> str:
    return exp.to_identifier(name, quoted=True).sql(dialect)


DUCKDB: Final = Dialect(
    "duckdb", _in_schema, CLOCK_BEFORE, CLOCK_AFTER, "TIMESTAMP", changed_rows=False, inner_first=False
)
SPARK: Final = Dialect(
    "spark",
    lambda schema, relation: _identifier(stand_in(schema, relation), "spark"),
    "CAST(:clock_before AS TIMESTAMP_NTZ)",
    "CAST(:clock_after AS TIMESTAMP_NTZ)",
    "TIMESTAMP_NTZ",
    changed_rows=True,
    inner_first=True,
)
PLACEHOLDER: Final = "\x1a"
"""Begins and ends what is filled in when a statement of `POSTGRES` is run; no SQL of a view has this character."""


def placeholder(what: str, relation: str = "") -> str:
    """Return what stands in a statement of `POSTGRES` for a relation's rows of a schema, or for a word."""
    return f"{PLACEHOLDER}{what}{PLACEHOLDER}{relation}{PLACEHOLDER}"


SAME: Final = "same"
"""In statements of `POSTGRES`, an operator: equality by which rows are looked up, as long as no value is NULL."""
POSTGRES: Final = Dialect(
    "postgres",
    placeholder,
    placeholder(CLOCK_BEFORE.removeprefix("$")),
    placeholder(CLOCK_AFTER.removeprefix("$")),
    "TIMESTAMP",
    changed_rows=True,
    inner_first=False,
    same=placeholder(SAME),
    semi_joins=False,
)
DIALECTS: Final = {of.name: of for of in (DUCKDB, SPARK, POSTGRES)}

_current: Final[ContextVar[Dialect]] = ContextVar("dialect", default=DUCKDB)


def current() -> Dialect:
    """Return the dialect of the statements that are being made."""
    return _current.get()


@contextmanager
def written_for(engine: str) -> Iterator[None]:
    """Make statements for an engine in the block."""
    token = _current.set(DIALECTS[engine])
    try:
        yield
    finally:
        _current.reset(token)
