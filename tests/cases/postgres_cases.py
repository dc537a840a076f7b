"""What is done to tables of PostgreSQL, case by case."""

from __future__ import annotations

from typing import Final

from tests.cases.runner import Case

WIDE: Final = "(SELECT string_agg(md5('{0}' || x), '') FROM generate_series(1, 400) x)"
"""12,800 characters that cannot be compressed."""

_PEOPLE: Final = ("CREATE TABLE t (id int PRIMARY KEY, v text, n int)", "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)")
_MOODS: Final = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE TABLE t (id int PRIMARY KEY, v varchar(5), d numeric(5,2), m mood)",
    "INSERT INTO t VALUES (1, 'a', 1.5, 'ok')",
)


_OLDER_SHAPE: Final = "older rows keep the columns of their time"


def _silent(name: str, statement: str, said: str, *, idle: bool = False) -> tuple[Case, ...]:
    """Values that change without events: noticed in the stream at the next row; `idle`: at a start, without a row."""
    words = (f"{said}: its rows are read again",)
    live = Case(
        name=f"{name}_in_the_stream",
        before=_PEOPLE,
        stream=["UPDATE t SET v = 'A' WHERE id = 1", statement, "DELETE FROM t WHERE id = 2"],
        stopped=["INSERT INTO t (id) VALUES (3)"],
        said=words,
    )
    stopped = Case(name=f"{name}_while_stopped", before=_PEOPLE, stopped=[statement], said=words)
    return (live, stopped) if idle else (live,)


def _harmless(name: str, *statements: str, rows_differ: str = "") -> Case:
    """What leaves values alone: rows are not read again without need, which costs as much as a snapshot."""
    stopped = [*statements, "INSERT INTO t (id, v) VALUES (2, 'b')"]
    return Case(name=name, before=_MOODS, stopped=stopped, said=(), rows_differ=rows_differ)


_REWRITTEN: Final = "its rows were rewritten without events, or another table has taken its name"

SILENT: Final = (
    *_silent("same_type", "ALTER TABLE t ALTER COLUMN v TYPE text USING upper(v)", _REWRITTEN, idle=True),
    *_silent("another_type", "ALTER TABLE t ALTER COLUMN n TYPE text USING n || '!'", _REWRITTEN, idle=True),
    *_silent(
        "a_default",
        "ALTER TABLE t ADD COLUMN more int DEFAULT 7",
        "column more was added with a default, which older rows have without an event",
    ),
    *_silent("a_default_of_each_row", "ALTER TABLE t ADD COLUMN more float DEFAULT random()", _REWRITTEN, idle=True),
    *_silent("a_name", "ALTER TABLE t RENAME COLUMN v TO w", "column v is now named w"),
)

HARMLESS: Final = (
    _harmless("truncated", "TRUNCATE t"),
    _harmless("vacuumed", "VACUUM FULL t"),
    _harmless("a_wider_type", "ALTER TABLE t ALTER COLUMN v TYPE varchar(9)"),
    _harmless("an_unlimited_type", "ALTER TABLE t ALTER COLUMN v TYPE text"),
    _harmless("more_digits", "ALTER TABLE t ALTER COLUMN d TYPE numeric(9,2)"),
    _harmless("a_column_more", "ALTER TABLE t ADD COLUMN more int", rows_differ=_OLDER_SHAPE),
    _harmless("a_column_less", "ALTER TABLE t DROP COLUMN d", rows_differ=_OLDER_SHAPE),
    _harmless(
        "a_default_and_statistics",
        "ALTER TABLE t ALTER COLUMN d SET DEFAULT 1, ALTER COLUMN v SET STATISTICS 10, ALTER COLUMN v SET NOT NULL",
    ),
    _harmless("an_enum_grown", "ALTER TYPE mood ADD VALUE 'better'", "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'"),
)

CASES: Final[tuple[Case, ...]] = (*SILENT, *HARMLESS)
