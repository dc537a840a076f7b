"""Every statement of both servers' grammar is judged: DDL that is known, harmless, rows, or what may be anything."""

from __future__ import annotations

from typing import Any, Final, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.mysql.statements.ddl import (
    Altered,
    Began,
    ChangesRows,
    Dropped,
    Emptied,
    Ended,
    Filled,
    Partitions,
    Renamed,
    RolledBackTo,
    XaEnded,
)
from connectors.mysql.statements.judgement import Both, Hangs, Judgement, Temporary, judge

T, U = ("d", "t"), ("e", "u")
MYSQL, MARIADB = "9.7.0", "10.11.11-MariaDB-log"


def rows(verb: str, *tables: tuple[str, str]) -> ChangesRows:
    return ChangesRows(verb, tables)


def anything(verb: str) -> ChangesRows:
    return ChangesRows(verb, None)


ROWS: Final = [
    ("INSERT INTO t VALUES (1)", rows("INSERT", T)),
    ("INSERT t SET a = UUID()", rows("INSERT", T)),
    ("INSERT HIGH_PRIORITY IGNORE INTO `e`.`u` (a, b) SELECT x, MAX(y) FROM z GROUP BY x", rows("INSERT", U)),
    ("INSERT INTO t (a) VALUES (1) ON DUPLICATE KEY UPDATE a = VALUES(a) + 1", rows("INSERT", T)),
    ("REPLACE DELAYED e.u VALUES (DEFAULT(a), NOW())", rows("REPLACE", U)),
    ("UPDATE LOW_PRIORITY IGNORE t SET a = (SELECT COUNT(*) FROM other)", rows("UPDATE", T)),
    ("UPDATE t AS x JOIN e.u USING (id) SET x.a = 1", rows("UPDATE", T, U)),
    ("UPDATE (t CROSS JOIN e.u), (SELECT 1 AS id) s SET t.a = 1", rows("UPDATE", T, U)),
    ("UPDATE t, LATERAL (SELECT 1) s SET a = 1", rows("UPDATE", T)),
    ("UPDATE t, JSON_TABLE('[1]', '$[*]' COLUMNS (x INT PATH '$')) j SET a = j.x", rows("UPDATE", T)),
    ("DELETE QUICK FROM t WHERE a IN (1, 2) ORDER BY b LIMIT 3", rows("DELETE", T)),
    ("DELETE FROM t PARTITION (p0, p1) WHERE a = 1", rows("DELETE", T)),
    ("DELETE x.*, y FROM t AS x LEFT JOIN e.u AS y ON x.a = y.a", rows("DELETE", T, U)),
    ("DELETE FROM x, y USING t AS x, e.u AS y WHERE x.a = y.a", rows("DELETE", T, U)),
    ("DELETE FROM t USING t JOIN e.u USING (id)", rows("DELETE", T, U)),
    ("DELETE HISTORY FROM t BEFORE SYSTEM_TIME '2020-01-01'", rows("DELETE", T)),
    ("UPDATE t FOR PORTION OF p FROM '2020-01-01' TO '2021-01-01' SET a = 1", rows("UPDATE", T)),
    ("WITH x (a) AS (SELECT 1), y AS (SELECT 2) UPDATE t SET a = 1", rows("UPDATE", T)),
    ("WITH RECURSIVE x AS (SELECT 1) DELETE FROM t WHERE a IN (SELECT * FROM x)", rows("DELETE", T)),
    ("LOAD DATA LOW_PRIORITY LOCAL INFILE 'f' REPLACE INTO TABLE t (a, @b) SET c = CONCAT(@b)", rows("LOAD", T)),
    ("LOAD XML INFILE 'f' INTO TABLE e.u ROWS IDENTIFIED BY '<row>'", rows("LOAD", U)),
    ("ANALYZE FORMAT=JSON UPDATE t SET a = 1", rows("UPDATE", T)),
    ("SET STATEMENT max_statement_time = 1, x = f('FOR') FOR UPDATE t SET a = 1", rows("UPDATE", T)),
    ("/*!40000 UPDATE */ /* x */ t SET a = 1", rows("UPDATE", T)),
    ("insert into t values ('f(', \"g(\", `h`)", rows("INSERT", T)),
]
ANYTHING: Final = [
    ("INSERT INTO t VALUES (f(1))", "INSERT"),
    ("INSERT INTO t SELECT `d`.`f`(1)", "INSERT"),
    ("UPDATE t SET a = e.f(1)", "UPDATE"),
    ("UPDATE t SET a = `now`()", "UPDATE"),
    ("DELETE FROM t WHERE a = f(b)", "DELETE"),
    ("WITH x AS (SELECT f()) DELETE FROM t", "DELETE"),
    ("SELECT f()", "SELECT"),
    ("(SELECT 1) UNION (SELECT f())", "SELECT"),
    ("WITH x AS (SELECT f()) SELECT 1", "SELECT"),
    ("SELECT 1; DELETE FROM t", "SELECT"),
    ("SET @a = f()", "SET"),
    ("SET STATEMENT x = 1 FOR SELECT f()", "SELECT"),
    ("DO f()", "DO"),
    ("VALUES ROW(f())", "VALUES"),
    ("CALL p()", "CALL"),
    ("EXECUTE s", "EXECUTE"),
    ("EXECUTE IMMEDIATE 'DELETE FROM t'", "EXECUTE"),
    ("BEGIN NOT ATOMIC DELETE FROM t; END", "BEGIN"),
    ("IF 1 THEN DELETE FROM t; END IF", "IF"),
    ("l: BEGIN DELETE FROM t; END", "label"),
    ("WITH x AS (SELECT 1) MERGE INTO t", "WITH"),
    ("MERGE INTO t USING u ON 1 WHEN MATCHED THEN DELETE", "MERGE"),
    ("BINLOG 'x'", "BINLOG"),
    ("IMPORT TABLE FROM 'x.sdi'", "IMPORT"),
    ("ALTER DATABASE `#mysql50#a-b` UPGRADE DATA DIRECTORY NAME", "ALTER"),
    ("CREATE TEMPORARY TABLE x AS SELECT f()", "CREATE"),
    ("CREATE SOMETHING t", "CREATE"),
    ("DROP SOMETHING t", "DROP"),
    ("RENAME SOMETHING t TO u", "RENAME"),
    ("XA SOMETHING 'x'", "XA"),
    ("FROBNICATE t", "FROBNICATE"),
    ("INSERT INTO t VALUES " + ", ".join(["(1)"] * 5_000), "INSERT"),
]
DDL: Final = [
    ("SET STATEMENT max_statement_time = 1 FOR TRUNCATE t", Emptied((T,))),
    ("SET STATEMENT max_statement_time = 1 FOR RENAME TABLE t TO e.u", Renamed(((T, U),))),
    ("SET STATEMENT max_statement_time = 1 FOR ALTER TABLE t ADD c INT", Altered(T)),
    ("SET STATEMENT max_statement_time = 1 FOR DROP DATABASE d", Dropped("d")),
    ("CREATE OR REPLACE DATABASE d CHARACTER SET utf8mb4", Dropped("d")),
    ("CREATE TABLE t (id INT) AS SELECT MAX(a) FROM e.u", Filled(T)),
    ("CREATE TABLE t AS SELECT f()", Both(Filled(T), anything("CREATE"))),
    ("CREATE OR REPLACE TABLE t (id INT PRIMARY KEY) AS SELECT 5 AS id", Filled(T)),
    ("CREATE OR REPLACE TABLE t AS SELECT f()", Both(Filled(T), anything("CREATE"))),
    ("ALTER TABLE t TRUNCATE PARTITION p", Partitions(T)),
    ("CREATE TEMPORARY TABLE t (a DECIMAL(10, 2), KEY k (a))", Temporary((T,), made=True)),
    ("CREATE OR REPLACE TEMPORARY TABLE IF NOT EXISTS t LIKE e.u", Temporary((T,), made=True)),
    ("CREATE TEMPORARY TABLE t SELECT MAX(a) FROM e.u", Temporary((T,), made=True)),
    ("DROP TEMPORARY TABLE IF EXISTS `t`,`e`.`u` /* generated by server */", Temporary((T, U), made=False)),
    ("CREATE DEFINER=`a`@`%` TRIGGER x AFTER INSERT ON t FOR EACH ROW DELETE FROM t", Hangs(dropped=False)),
    ("DROP TRIGGER x", Hangs(dropped=True)),
    ("CREATE ALGORITHM=MERGE DEFINER=`a`@`b` SQL SECURITY DEFINER VIEW v AS SELECT f()", Hangs(dropped=False)),
    ("CREATE OR REPLACE VIEW v AS SELECT 1", Hangs(dropped=True)),
    ("CREATE JSON RELATIONAL DUALITY VIEW v AS SELECT 1", Hangs(dropped=False)),
    ("ALTER VIEW v AS SELECT 1", Hangs(dropped=True)),
    ("BEGIN", Began()),
    ("BEGIN WORK", Began()),
    ("START TRANSACTION READ WRITE", Began()),
    ("XA START X'61',X'',1", Began()),
    ("COMMIT", Ended(committed=True)),
    ("ROLLBACK", Ended(committed=False)),
    ("ROLLBACK TO s", RolledBackTo()),
    ("XA COMMIT X'61',X'',1", XaEnded((1, b"a", b""), committed=True)),
]
HARMLESS: Final = """
SAVEPOINT s
RELEASE SAVEPOINT s
SELECT NOW(), MAX(a) FROM t WHERE a IN (1) GROUP BY a
SELECT NEXTVAL(s), SETVAL(s, 1)
SELECT RANK() OVER (PARTITION BY a ORDER BY b) FROM t WINDOW w AS (ORDER BY a)
TABLE t
VALUES ROW(1)
DO SLEEP(1), RELEASE_LOCK('x')
SET @a = 1
SET PASSWORD FOR u = PASSWORD('x')
SET GLOBAL x = 1
USE d
SHOW TABLES
EXPLAIN DELETE FROM t
DESCRIBE t
ANALYZE TABLE t
ANALYZE NO_WRITE_TO_BINLOG TABLE t
OPTIMIZE TABLE t
CHECK TABLE t
CHECKSUM TABLE t
REPAIR TABLE t
CACHE INDEX t IN c
LOAD INDEX INTO CACHE t
FLUSH TABLES t WITH READ LOCK
LOCK TABLES t WRITE
UNLOCK TABLES
HANDLER t OPEN
KILL 5
PURGE BINARY LOGS TO 'x'
RESET QUERY CACHE
CHANGE REPLICATION SOURCE TO SOURCE_HOST = 'x'
START REPLICA
START SLAVE
STOP GROUP_REPLICATION
CLONE INSTANCE FROM 'u'@'h':3306 IDENTIFIED BY 'x'
SHUTDOWN
RESTART
BACKUP STAGE START
INSTALL PLUGIN p SONAME 'x'
UNINSTALL COMPONENT 'x'
SIGNAL SQLSTATE '45000'
GET DIAGNOSTICS @a = ROW_COUNT
PREPARE s FROM 'DELETE FROM t'
DEALLOCATE PREPARE s
DROP PREPARE s
XA END X'61',X'',1
XA PREPARE X'61',X'',1
XA RECOVER
RENAME USER a TO b
CREATE DATABASE d
CREATE SCHEMA IF NOT EXISTS d
ALTER DATABASE d CHARACTER SET utf8mb4
CREATE USER 'u'@'h' IDENTIFIED BY 'x'
ALTER USER u ACCOUNT LOCK
DROP USER u
CREATE ROLE r
DROP ROLE r
SET DEFAULT ROLE r TO u
CREATE DEFINER=`root`@`localhost` PROCEDURE p() BEGIN DELETE FROM t; END
CREATE DEFINER=CURRENT_USER FUNCTION f() RETURNS INT RETURN 1
CREATE OR REPLACE AGGREGATE FUNCTION f(x INT) RETURNS INT RETURN 1
CREATE FUNCTION f RETURNS STRING SONAME 'x'
ALTER FUNCTION f COMMENT 'x'
DROP FUNCTION IF EXISTS f
CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO DELETE FROM t
ALTER DEFINER=`a`@`b` EVENT e DISABLE
DROP EVENT e
CREATE UNIQUE INDEX i ON t (a)
CREATE FULLTEXT INDEX i ON t (a)
CREATE SPATIAL REFERENCE SYSTEM 4120 NAME 'x' DEFINITION 'y'
DROP INDEX i ON t
CREATE SEQUENCE s
ALTER SEQUENCE s RESTART 5
DROP SEQUENCE s
CREATE PACKAGE p AS PROCEDURE x(); END
CREATE SERVER s FOREIGN DATA WRAPPER mysql OPTIONS (HOST 'x')
CREATE TABLESPACE s ADD DATAFILE 'x'
CREATE COMPRESSION_DICTIONARY c ('one')
DROP COMPRESSION_DICTIONARY IF EXISTS c
CREATE UNDO TABLESPACE u ADD DATAFILE 'x'
CREATE LOGFILE GROUP g ADD UNDOFILE 'x'
CREATE RESOURCE GROUP g TYPE = USER
ALTER INSTANCE ROTATE INNODB MASTER KEY
# Dummy event replacing event type 160 that slave cannot handle.
-- nothing
;
""".strip().splitlines()


@pytest.mark.parametrize(("statement", "expected"), ROWS + DDL)
def test_what_it_says(statement: str, expected: Any) -> None:
    assert judge(statement, "d", MARIADB) == expected


@pytest.mark.parametrize(("statement", "verb"), ANYTHING)
def test_what_may_write_any_table(statement: str, verb: str) -> None:
    assert judge(statement, "d", MARIADB) == anything(verb)


@pytest.mark.parametrize("statement", HARMLESS)
def test_what_is_harmless(statement: str) -> None:
    assert judge(statement, "d", MARIADB) is None


@pytest.mark.parametrize(
    ("statement", "mysql", "mariadb"),
    [
        ("DROP TABLE t /*!99999 , e.u */", Emptied((T,), dropped=True), Emptied((T,), dropped=True)),
        ("DROP TABLE t /*!50000 , e.u */", Emptied((T, U), dropped=True), Emptied((T, U), dropped=True)),
        ("DROP TABLE t /*!80000 , e.u */", Emptied((T, U), dropped=True), Emptied((T,), dropped=True)),
        ("DROP TABLE t /*!101100 , e.u */", Emptied((T,), dropped=True), Emptied((T, U), dropped=True)),
        ("DROP TABLE t /*M! , e.u */", Emptied((T,), dropped=True), Emptied((T, U), dropped=True)),
        ("DROP TABLE t /*M!100100 , e.u */", Emptied((T,), dropped=True), Emptied((T, U), dropped=True)),
        ("/*M! TRUNCATE t */", None, Emptied((T,))),
        ("/*!99999 TRUNCATE t", None, None),
    ],
)
def test_a_comment_that_a_server_reads_is_read_as_it_does(statement: str, mysql: Any, mariadb: Any) -> None:
    assert (judge(statement, "d", MYSQL), judge(statement, "d", MARIADB)) == (mysql, mariadb)


_TEXT: Final = """
    ALTER ANALYZE AS BEGIN CALL COMMIT CREATE DATABASE DELETE DO DROP END EVENT EXECUTE EXISTS FOR FROM FUNCTION IF
    IGNORE INSERT INTO JOIN LATERAL LOAD ON OR PARTITION RENAME REPLACE SELECT SET STATEMENT TABLE TEMPORARY TO TRIGGER
    TRUNCATE UPDATE USING VALUES VIEW WHERE WITH XA t u f `t` `e`.`u` e . ( ) , ; = @ : 'x' "y" 1 /* */ /*! /*M! -- # `
"""
_WORDS: Final = st.sampled_from(_TEXT.split())


@given(st.lists(_WORDS, max_size=14), st.sampled_from([MYSQL, MARIADB, ""]))
def test_whatever_it_is_it_is_judged(words: list[str], server: str) -> None:
    """By one of the kinds, and never by an error: what cannot be read is anything."""
    assert isinstance(judge(" ".join(words), "d", server), get_args(Judgement))


_PREFIXES: Final = st.sampled_from(
    [
        *(
            "",
            "/* c */ ",
            "-- c\n",
            "# c\n",
            "/*!40000 SET */ STATEMENT a = 1 FOR ",
            "SET STATEMENT a = 1, b = 'FOR' FOR ",
        ),
        *("SET STATEMENT a = (SELECT 1 FOR UPDATE) FOR ", "/**/ ", "\ufeff", "; "),
    ]
)


@given(_PREFIXES, st.sampled_from(ROWS + DDL[:10]), st.booleans())
def test_a_prefix_hides_nothing(prefix: str, told: tuple[str, Judgement], lower: bool) -> None:
    statement, expected = told
    text = prefix + (statement.swapcase() if lower and "`" not in statement and "'" not in statement else statement)
    found = judge(text, "d", MARIADB)
    assert repr(found).lower() == repr(expected).lower()


@given(st.text(max_size=6).filter(lambda word: word.strip()), st.sampled_from(["t", "`e`.`u`", "t SET a = 1", ""]))
def test_a_verb_that_nobody_knows_is_not_harmless(word: str, rest: str) -> None:
    """Unless it is nothing but space, brackets and comments."""
    verb = f"X{word.encode().hex()}"
    assert judge(f"{verb} {rest}", "d", MYSQL) == anything(verb.upper())
