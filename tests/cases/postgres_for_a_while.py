"""Cases of PostgreSQL: what is as before whenever somebody looks, and was not when rows came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tests.cases.runner import Case

PEOPLE: Final = ("CREATE TABLE t (id int PRIMARY KEY, v text, n int)", "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)")
TYPES: Final = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE DOMAIN temper AS mood",
    "CREATE TYPE pair AS (m temper[], x int)",
    "CREATE TABLE t (id int PRIMARY KEY, v pair, n int)",
    "INSERT INTO t VALUES (1, '({sad},1)', 1), (2, NULL, 2)",
)
"""An enum within a domain, an array and a composite type."""

_SWAP: Final = "ALTER TABLE t RENAME v TO q; ALTER TABLE t RENAME n TO v; ALTER TABLE t RENAME q TO n"


def _for_a_while(
    name: str, there: str, then: str, back: str, *, before: Sequence[str] = PEOPLE, tables: Sequence[str] = ("t",)
) -> tuple[Case, Case]:
    """Something that is as before when it is looked at, and was not when rows came: between two looks, and at none."""
    made = Case(name=f"{name}_for_a_while", before=before, tables=tables, comes_back=True)
    stopped = replace(made, name=f"{name}_for_a_while_stopped", stopped=(there, then, back), settled=True)
    return replace(made, stream=(there, then, back), live=True), stopped


FOR_A_WHILE: Final = (
    *_for_a_while(
        "names_swapped",
        _SWAP,
        "UPDATE t SET n = 7 WHERE id = 1",
        _SWAP,
        before=("CREATE TABLE t (id int PRIMARY KEY, v int, n int)", "INSERT INTO t VALUES (1, 5, 1), (2, 6, 2)"),
    ),
    *_for_a_while(
        "a_name",
        "ALTER TABLE t RENAME v TO w",
        "INSERT INTO t (id, w) VALUES (3, 'x')",
        "ALTER TABLE t RENAME w TO v",
    ),
    *_for_a_while(
        "a_name_and_a_column_that_is_new",
        "ALTER TABLE t ADD COLUMN m text; "
        "ALTER TABLE t RENAME v TO x; ALTER TABLE t RENAME m TO v; ALTER TABLE t RENAME x TO m",
        "UPDATE t SET m = 'of v' WHERE id = 1",
        "ALTER TABLE t RENAME v TO x; ALTER TABLE t RENAME m TO v; ALTER TABLE t RENAME x TO m",
    ),
    *_for_a_while(
        "zones",
        "SET timezone = 'UTC'; ALTER TABLE t ALTER COLUMN v TYPE timestamptz",
        "INSERT INTO t VALUES (3, '2024-02-29 12:34', 1)",
        "SET timezone = 'UTC'; ALTER TABLE t ALTER COLUMN v TYPE timestamp",
        before=("CREATE TABLE t (id int PRIMARY KEY, v timestamp, n int)", "INSERT INTO t VALUES (1, now(), 1)"),
    ),
    *_for_a_while(
        "a_label",
        "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
        "INSERT INTO t VALUES (3, '({blue},1)', 1)",
        "ALTER TYPE mood RENAME VALUE 'blue' TO 'sad'",
        before=TYPES,
    ),
    *_for_a_while(
        "names_of_tables",
        "ALTER TABLE t RENAME TO x; ALTER TABLE u RENAME TO t; ALTER TABLE x RENAME TO u",
        "INSERT INTO t VALUES (3, 'in u')",
        "ALTER TABLE t RENAME TO x; ALTER TABLE u RENAME TO t; ALTER TABLE x RENAME TO u",
        before=(
            "CREATE TABLE t (id int PRIMARY KEY, v text)",
            "CREATE TABLE u (id int PRIMARY KEY, v text)",
            "INSERT INTO t VALUES (1, 'in t')",
        ),
        tables=("t", "u"),
    ),
    *_for_a_while(
        "numbers_of_tables",
        "ALTER TABLE t ALTER COLUMN v TYPE oid",
        "INSERT INTO t VALUES (3, 1262, 1)",
        "ALTER TABLE t ALTER COLUMN v TYPE regclass",
        before=("CREATE TABLE t (id int PRIMARY KEY, v regclass, n int)", "INSERT INTO t VALUES (1, 'pg_class', 1)"),
    ),
    *_for_a_while(
        "a_key",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (n)",
        "UPDATE t SET n = 7 WHERE id = 1",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id)",
    ),
    _for_a_while(
        "a_schema",
        "CREATE SCHEMA IF NOT EXISTS away; ALTER TABLE t SET SCHEMA away",
        "INSERT INTO away.t VALUES (3, 'c', 3)",
        "DO $$ BEGIN EXECUTE format('ALTER TABLE away.t SET SCHEMA %I', current_schema()); END $$",
    )[1],  # one that runs may look while the table is away, and stops: where it is it is not captured
    *(
        replace(of, stream=("ALTER TABLE t DROP COLUMN x", "DELETE FROM t WHERE id = 2"))
        for of in (
            _for_a_while(
                "names_where_a_column_was_dropped",
                _SWAP,
                "UPDATE t SET n = 7 WHERE id = 1",
                _SWAP,
                before=(
                    "CREATE TABLE t (id int PRIMARY KEY, x int, v int, n int)",
                    "INSERT INTO t VALUES (1, 0, 5, 1), (2, 0, 6, 2)",
                ),
            )[1],
            _for_a_while(
                "zones_where_a_column_was_dropped",
                "SET timezone = 'UTC'; ALTER TABLE t ALTER COLUMN v TYPE timestamptz",
                "INSERT INTO t VALUES (3, '2024-02-29 12:34')",
                "SET timezone = 'UTC'; ALTER TABLE t ALTER COLUMN v TYPE timestamp",
                before=("CREATE TABLE t (id int PRIMARY KEY, x int, v timestamp)", "INSERT INTO t VALUES (1), (2)"),
            )[1],
        )
    ),
    *_for_a_while(
        "names_and_then_a_type_dropped",
        _SWAP,
        "UPDATE t SET n = 7, m = 'sad' WHERE id = 1",
        f"{_SWAP}; ALTER TABLE t DROP COLUMN m; DROP TYPE mood",
        before=(
            *("CREATE TYPE mood AS ENUM ('sad', 'ok')", "CREATE TABLE t (id int PRIMARY KEY, v int, n int, m mood)"),
            "INSERT INTO t VALUES (1, 5, 1, 'ok')",
        ),
    ),
)
