"""What is done to tables of any source, in SQL that all of them understand."""

from __future__ import annotations

from typing import Final

from tests.cases.runner import Case

SHARED: Final[tuple[Case, ...]] = (
    Case(
        name="changes_of_all_kinds",  # key changes, a key of two columns out of their order, what is rolled back
        before=(
            "CREATE TABLE a (id INT PRIMARY KEY, v VARCHAR(20))",
            "CREATE TABLE p (x VARCHAR(10), y INT, v TEXT, PRIMARY KEY (y, x))",
            "INSERT INTO a VALUES (1, 'one'), (2, NULL), (3, 'three')",
            "INSERT INTO p VALUES ('b', 1, 'x'), ('B2', 1, ''), ('a', -2, 'é')",
        ),
        stream=(
            *("BEGIN", "UPDATE a SET v = 'two' WHERE id = 2", "DELETE FROM a WHERE id = 3"),
            *("UPDATE a SET id = 7 WHERE id = 1", "INSERT INTO p VALUES ('c', 5, 'new')", "COMMIT"),
            *("BEGIN", "DELETE FROM a", "ROLLBACK"),
            "UPDATE p SET y = 9, v = 'moved' WHERE y = -2",
        ),
        stopped=("DELETE FROM p WHERE y = 1", "INSERT INTO p VALUES ('b', 1, 'again')", "UPDATE a SET id = id + 1"),
        tables=("a", "p"),
        said=(),
    ),
    Case(
        name="emptied",
        before=("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)"),
        stream=("TRUNCATE TABLE t /* all of it */", "INSERT INTO t VALUES (9)"),
        stopped=("INSERT INTO t VALUES (1)", "TRUNCATE TABLE t", "INSERT INTO t VALUES (2)"),
        said=(),
    ),
    Case(
        name="savepoints",
        before=("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)"),
        stream=(
            *(
                "BEGIN",
                "INSERT INTO t VALUES (2)",
                "SAVEPOINT s",
                "INSERT INTO t VALUES (3)",
                "ROLLBACK TO SAVEPOINT s",
            ),
            *("INSERT INTO t VALUES (4)", "COMMIT"),
        ),
        said=(),
        moves={"t": [("c", None, {"id": 2}), ("c", None, {"id": 4})]},
    ),
    Case(
        name="keys_that_change_places",
        before=("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)"),
        stream=(
            *("BEGIN", "UPDATE t SET id = -1 WHERE id = 1", "UPDATE t SET id = 1 WHERE id = 2"),
            *("UPDATE t SET id = 2 WHERE id = -1", "COMMIT"),
        ),
        stopped=(
            *("BEGIN", "DELETE FROM t WHERE id = 3", "INSERT INTO t VALUES (3, 4)", "DELETE FROM t WHERE id = 3"),
            *("INSERT INTO t VALUES (3, 5)", "COMMIT"),
        ),
        said=(),
    ),
    Case(
        name="a_table_that_comes",  # of a pattern that it has: taken up with all its rows
        before=("CREATE TABLE t (id INT PRIMARY KEY)",),
        stopped=(
            "CREATE TABLE b (id INT PRIMARY KEY, n INT)",
            "INSERT INTO b VALUES (1, 1), (2, 2)",
            "UPDATE b SET n = 5",
        ),
        tables=("t", "b"),
    ),
)
"""For each source whose tables they are."""
