"""What sessions of MySQL and MariaDB do that the log does not tell: each ends with the topic as the table is."""

from __future__ import annotations

from typing import Final

from tests.cases.runner import Case

_NAMELESS: Final = "SET GLOBAL binlog_row_metadata = MINIMAL"
_NAMED: Final = "SET GLOBAL binlog_row_metadata = FULL"
_STATEMENT: Final = "SET SESSION binlog_format = STATEMENT"
_TWO: Final = ("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
_DOCUMENTS: Final = ", ".join(f"d{n} JSON" for n in range(9))

HOLES: Final = (
    Case(
        name="statements",
        before=("CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, v INT)", "INSERT INTO t (v) VALUES (1), (2), (3)"),
        stream=(
            *(_STATEMENT, "INSERT INTO t (v) VALUES (4), (5)", "SET @a = 7", "UPDATE t SET v = @a WHERE id = 1"),
            *("BEGIN", "REPLACE INTO t VALUES (2, 9)", "SAVEPOINT s", "DELETE FROM t ORDER BY id DESC LIMIT 1"),
            *("ROLLBACK TO s", "UPDATE t SET v = v + FLOOR(RAND() * 9) WHERE id > 2", "COMMIT"),
            *("SET SESSION binlog_format = ROW", "INSERT INTO t (v) VALUES (8)", _STATEMENT, "DELETE FROM t LIMIT 1"),
        ),
        stopped=(_STATEMENT, "DELETE FROM t WHERE id > 3", "INSERT INTO t VALUES (70, 7)"),
        live=True,
    ),
    Case(
        name="mixed",
        before=_TWO,
        stream=(
            *("SET SESSION binlog_format = MIXED", "UPDATE t SET v = 10 WHERE id = 1"),
            *("INSERT INTO t SELECT 9, LENGTH(UUID())", "DELETE FROM t WHERE id = 2"),
        ),
        live=True,
    ),
    Case(
        name="written_by_functions",  # nothing in the statement names the table
        before=(
            *_TWO,
            "CREATE FUNCTION writes(a INT) RETURNS INT DETERMINISTIC BEGIN UPDATE t SET v = a; RETURN a; END",
        ),
        stream=(_STATEMENT, "SELECT writes(5)", "DO writes(6)", "SET @x = writes(7)"),
        live=True,
    ),
    Case(
        name="written_by_procedures",
        before=(*_TWO, "CREATE PROCEDURE writes() BEGIN INSERT INTO t VALUES (7, 7); DELETE FROM t WHERE id = 1; END"),
        stream=(_STATEMENT, "CALL writes()"),
        live=True,
    ),
    Case(
        name="prepared",
        before=_TWO,
        stream=(_STATEMENT, "PREPARE s FROM 'UPDATE t SET v = ?'", "SET @x = 5", "EXECUTE s USING @x"),
        live=True,
    ),
    Case(
        name="written_from_another_database",
        before=_TWO,
        stream=(
            *(_STATEMENT, "SET @s = CONCAT('UPDATE `', DATABASE(), '` . t SET v = 5')", "USE mysql"),
            *("PREPARE s FROM @s", "EXECUTE s"),
        ),
        live=True,
    ),
    Case(
        name="written_by_a_trigger",
        before=(
            *(*_TWO, "CREATE TABLE outside (id INT PRIMARY KEY)"),
            "CREATE TRIGGER writes AFTER INSERT ON outside FOR EACH ROW INSERT INTO t VALUES (NEW.id, 0)",
        ),
        stream=(_STATEMENT, "INSERT INTO outside VALUES (20), (21)"),
        live=True,
    ),
    Case(
        name="written_by_a_foreign_key",
        before=(
            *("CREATE TABLE outside (id INT PRIMARY KEY)", "INSERT INTO outside VALUES (1), (2)"),
            "CREATE TABLE t (id INT PRIMARY KEY, o INT, FOREIGN KEY (o) REFERENCES outside (id) ON DELETE CASCADE)",
            "INSERT INTO t VALUES (10, 1), (20, 2)",
        ),
        stream=(_STATEMENT, "DELETE FROM outside WHERE id = 1"),
        live=True,
    ),
    Case(
        name="written_through_a_view",
        before=(*_TWO, "CREATE VIEW outside AS SELECT id, v FROM t"),
        stream=(_STATEMENT, "UPDATE outside SET v = 5"),
        live=True,
    ),
    Case(
        name="written_with_others",
        before=(*_TWO, "CREATE TABLE u (id INT PRIMARY KEY, v INT)", "INSERT INTO u VALUES (1, 1), (2, 2)"),
        stream=(
            *(_STATEMENT, "UPDATE t JOIN u USING (id) SET t.v = 7, u.v = 8"),
            "DELETE x, y FROM t AS x JOIN u AS y ON x.id = y.id WHERE x.id = 1",
        ),
        tables=("t", "u"),
        live=True,
    ),
    Case(
        name="prefixes",  # MariaDB's, which MySQL takes for a comment
        before=_TWO,
        stream=(
            "/*M!100100 SET STATEMENT max_statement_time = 100 FOR */ TRUNCATE TABLE t",
            "INSERT INTO t VALUES (4, 4)",
            *(_STATEMENT, "/*M!100100 SET STATEMENT max_statement_time = 100 FOR */ UPDATE t SET v = 5"),
            "/*!50000 INSERT */ INTO t VALUES (6, 6)",
        ),
        live=True,
    ),
    Case(
        name="temporary_tables",  # of the captured one's name: what happens to them is nothing to it
        before=_TWO,
        stream=(
            *(_STATEMENT, "CREATE TEMPORARY TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 100)"),
            *("TRUNCATE TABLE t", "ALTER TABLE t ADD COLUMN w INT", "INSERT INTO t VALUES (5, 5, 5)", "DELETE FROM t"),
            *("DROP TABLE t", "CREATE TEMPORARY TABLE t AS SELECT 1 AS id", "DROP TEMPORARY TABLE t"),
            *("CREATE TEMPORARY TABLE tmp SELECT 9 AS id, 9 AS v", "INSERT INTO t SELECT * FROM tmp"),
        ),
        live=True,
    ),
    Case(
        name="xa",
        before=_TWO,
        stream=(
            *(_STATEMENT, "XA START 'statements'", "UPDATE t SET v = 7", "XA END 'statements'"),
            *("XA PREPARE 'statements'", "XA COMMIT 'statements'"),
        ),
        live=True,
    ),
    Case(
        name="rolled_back_in_part",  # where a table without transactions makes the log keep what was rolled back
        before=(*_TWO, "CREATE TABLE outside (id INT PRIMARY KEY) ENGINE=/*M! MyISAM */ /*!80000 InnoDB */"),
        stream=(
            *("BEGIN", "INSERT INTO t VALUES (4, 4)", "SAVEPOINT s", "INSERT INTO outside VALUES (1)"),
            *("INSERT INTO t VALUES (5, 5)", "ROLLBACK TO s", "COMMIT"),
        ),
        live=True,
    ),
    Case(
        name="what_the_server_could_not_log",  # MariaDB: no procedure of MySQL goes on behind an incident
        before=(
            *(*_TWO, "CREATE TABLE outside (id INT PRIMARY KEY, v TEXT) ENGINE=MyISAM"),
            (
                "CREATE PROCEDURE fails() BEGIN DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END; "
                "INSERT INTO outside VALUES (1, REPEAT('x', 30000)), (2, REPEAT('x', 30000)); END"
            ),
        ),
        stream=(
            *("SET GLOBAL max_binlog_stmt_cache_size = 4096", "/*M! CALL fails() */ /*!80000 DO 0 */"),
            *("SET GLOBAL max_binlog_stmt_cache_size = DEFAULT", "UPDATE t SET v = 5"),
        ),
        live=True,
    ),
    Case(
        name="minimal_images",
        before=(
            "CREATE TABLE t (id INT, part VARCHAR(9), v INT DEFAULT 4, b TEXT, PRIMARY KEY (part, id))",
            "INSERT INTO t VALUES (1, 'a', 1, 'one'), (2, 'b', 2, 'two'), (3, 'c', 3, 'three')",
        ),
        stream=(
            "SET SESSION binlog_row_image = MINIMAL",
            *("UPDATE t SET v = 9 WHERE id = 1", "DELETE FROM t WHERE id = 2"),
            *("INSERT INTO t (id, part) VALUES (4, 'd')", "UPDATE t SET id = 30 WHERE id = 3"),
            *("BEGIN", "UPDATE t SET b = 'x' WHERE id = 4", "DELETE FROM t WHERE id = 4", "COMMIT"),
        ),
        stopped=("SET SESSION binlog_row_image = MINIMAL", "UPDATE t SET b = 'y', part = 'z'"),
        live=True,
    ),
    Case(
        name="images_without_blobs",
        before=("CREATE TABLE t (id INT PRIMARY KEY, v INT, b TEXT, d JSON)", "INSERT INTO t VALUES (1, 1, 'x', '{}')"),
        stream=(
            *("SET SESSION binlog_row_image = NOBLOB", "UPDATE t SET v = 2", "UPDATE t SET id = 2"),
            *("INSERT INTO t (id, v) VALUES (3, 3)", "SET SESSION binlog_row_image = FULL", "UPDATE t SET b = 'y'"),
        ),
        live=True,
    ),
    Case(
        name="parts_of_documents",  # MySQL's alone
        before=(
            f"CREATE TABLE t (a INT, id INT PRIMARY KEY, {_DOCUMENTS}, b TEXT)",
            """INSERT INTO t (a, id, d0, d4, d8, b)
               VALUES (NULL, 1, '{"k": 1, "x": "0123456789"}', '{"k": 1, "x": "0123456789"}', '[1, 2, 3]', 'x'),
                      (2, 2, '{"k": 1, "x": "0123456789"}', NULL, '{"k": 1, "x": "0123456789"}', NULL)""",
        ),
        stream=(
            "/*!80000 SET SESSION binlog_row_value_options = PARTIAL_JSON */",
            "UPDATE t SET d0 = JSON_SET(d0, '$.k', 2), d8 = JSON_SET(d8, '$.k', 3), a = 5",
            "UPDATE t SET d4 = JSON_SET(d4, '$.k', 4), id = id + 10 WHERE id = 1",
            *("/*!80000 SET SESSION binlog_row_image = MINIMAL */", "UPDATE t SET d0 = JSON_REMOVE(d0, '$.x')"),
        ),
        live=True,
    ),
    Case(
        name="bytes_that_are_no_letter",  # which a character set lets in: a SELECT has question marks in their place
        before=(
            "SET SESSION sql_mode = ''",
            "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9) CHARACTER SET hebrew, w INT)",
            "INSERT INTO t VALUES (1, x'41ff', 1), (2, 'x', 2)",
        ),
        stream=("SET SESSION sql_mode = ''", "INSERT INTO t VALUES (3, x'ff', 3)", "UPDATE t SET w = 5 WHERE id = 1"),
        stopped=("SET SESSION sql_mode = ''", "INSERT INTO t VALUES (4, x'ff', 3)", "DELETE FROM t WHERE id < 4"),
        live=True,
    ),
    Case(
        name="columns_without_names",  # in the log: nobody can tell whether they are today's
        before=("CREATE TABLE t (id INT PRIMARY KEY, v INT, w INT)", "INSERT INTO t VALUES (1, 1, 7), (2, 2, 7)"),
        stream=(
            *(_NAMELESS, "UPDATE t SET v = 5", "ALTER TABLE t RENAME COLUMN v TO x, RENAME COLUMN w TO v"),
            *("UPDATE t SET x = 6 WHERE id = 1", "INSERT INTO t VALUES (3, 3, 3)", _NAMED),
            "DELETE FROM t WHERE id = 2",
        ),
        stopped=(
            *(_NAMELESS, "UPDATE t SET id = 9 WHERE id = 3", "ALTER TABLE t ADD COLUMN n INT FIRST, DROP COLUMN x"),
            *("UPDATE t SET v = 8", _NAMED),
        ),
        live=True,
    ),
    Case(
        name="new_tables_that_cannot_be_captured",  # which a pattern brings: they are left out, and nothing else
        before=(*_TWO, "CREATE TABLE k (v INT)", "CREATE TABLE m (id INT PRIMARY KEY) ENGINE=MyISAM"),
        stream=(
            *("CREATE TABLE n (v INT)", "INSERT INTO n VALUES (1)"),
            "CREATE TABLE o (id INT PRIMARY KEY) ENGINE=MEMORY",
        ),
        stopped=(
            *("CREATE TABLE p (v INT)", "INSERT INTO p VALUES (1)", "INSERT INTO t VALUES (4, 4)"),
            "ALTER TABLE k ADD COLUMN id INT PRIMARY KEY AUTO_INCREMENT",
            "INSERT INTO k (v) VALUES (1)",
        ),
        tables=("t", "k"),
    ),
)  # fmt: skip
