"""What tools and applications do to tables of MySQL and MariaDB, as bug reports have it, case by case."""

from __future__ import annotations

from typing import Final

from tests.cases.runner import Case

_TWO: Final = ("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2)")
_PAIRS: Final = ("CREATE TABLE t (id INT PRIMARY KEY, v INT, n INT)", "INSERT INTO t VALUES (1, 1, 5), (2, 2, 6)")
_SWAPPED: Final = "RENAME COLUMN v TO n, RENAME COLUMN n TO v"
_OF: Final = "aaaaaaaa-1111-4111-8111-bbbbbbbbbbbb"


def _mysql(statement: str) -> str:
    return f"/*!80000 {statement} */ /*M! SET @x = 0 */"


def _mariadb(statement: str) -> str:
    return f"/*M! {statement} */ /*!80000 SET @x = 0 */"


_TIMES: Final = ", ".join(f"d{n} DATETIME({n}), t{n} TIME({n}), s{n} TIMESTAMP({n}) NULL" for n in range(7))


def _times(row: int, at: str, time: str) -> str:
    """Return an INSERT of a row whose columns are `_TIMES`."""
    return f"INSERT INTO t VALUES ({row}{f', {at!r}, {time!r}, {at!r}' * 7})"


CHANGES: Final = (
    Case(
        name="a_cut_over_by_triggers",  # as pt-online-schema-change does it
        before=_TWO,
        stream=(
            *("CREATE TABLE _t_new LIKE t", "ALTER TABLE _t_new ADD COLUMN n INT NOT NULL DEFAULT 7"),
            "CREATE TRIGGER del AFTER DELETE ON t FOR EACH ROW DELETE IGNORE FROM _t_new WHERE id <=> OLD.id",
            (
                "CREATE TRIGGER upd AFTER UPDATE ON t FOR EACH ROW BEGIN "
                "DELETE IGNORE FROM _t_new WHERE NOT (OLD.id <=> NEW.id) AND id <=> OLD.id; "
                "REPLACE INTO _t_new (id, v) VALUES (NEW.id, NEW.v); END"
            ),
            "CREATE TRIGGER ins AFTER INSERT ON t FOR EACH ROW REPLACE INTO _t_new (id, v) VALUES (NEW.id, NEW.v)",
            "INSERT LOW_PRIORITY IGNORE INTO _t_new (id, v) SELECT id, v FROM t LOCK IN SHARE MODE",
            *("UPDATE t SET id = 9 WHERE id = 1", "DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (4, 4)"),
            *("ANALYZE TABLE _t_new", "RENAME TABLE t TO _t_old, _t_new TO t", "DROP TABLE IF EXISTS _t_old"),
            "INSERT INTO t VALUES (5, 5, 5)",
        ),
        live=True,
    ),
    Case(
        name="both_names_of_a_cut_over",  # are captured
        before=(
            *_TWO,
            *("CREATE TABLE c (id INT PRIMARY KEY, v INT, n INT)", "INSERT INTO c VALUES (1, 10, 1), (7, 7, 7)"),
        ),
        stopped=(
            *("INSERT INTO t VALUES (3, 3)", "RENAME TABLE t TO b, c TO t", "INSERT INTO t VALUES (8, 8, 8)"),
            *("UPDATE b SET v = 5 WHERE id = 1", "DELETE FROM b WHERE id = 2"),
        ),
        tables=("t", "b"),
        gone=("c",),
    ),
    Case(
        name="columns_in_an_instant",
        before=_TWO,
        stream=(
            "ALTER TABLE t ADD COLUMN f INT DEFAULT 3 FIRST /*!80029 , ALGORITHM=INSTANT */",
            *("INSERT INTO t (id, v) VALUES (3, 3)", "ALTER TABLE t DROP COLUMN v /*!80029 , ALGORITHM=INSTANT */"),
            "UPDATE t SET f = 9 WHERE id = 2",
        ),
        stopped=(
            *("INSERT INTO t (id) VALUES (4)", "ALTER TABLE t ADD COLUMN v INT DEFAULT 6 FIRST"),
            "ALTER TABLE t DROP COLUMN f, ADD COLUMN g VARCHAR(5) DEFAULT 'q' AFTER v",
            *("DELETE FROM t WHERE id = 1", "ALTER TABLE t RENAME COLUMN v TO w, RENAME COLUMN g TO v"),
        ),
    ),
    Case(
        name="columns_without_a_statement",  # which a session keeps from the log, as is done from server to server
        before=(
            *(f"CREATE TABLE {t} (id INT PRIMARY KEY, v VARCHAR(9), w ENUM('1', '2'))" for t in "abcde"),
            *(f"INSERT INTO {t} VALUES (1, '007', '1'), (2, '8', '2')" for t in "abcde"),
        ),
        stream=(
            *("SET SESSION sql_log_bin = 0", "ALTER TABLE a ADD COLUMN n INT DEFAULT 5"),
            *("ALTER TABLE b RENAME COLUMN v TO x, RENAME COLUMN w TO v", "ALTER TABLE c MODIFY v INT, DROP COLUMN w"),
            *("ALTER TABLE d MODIFY w ENUM('2', '1', '3')", "ALTER TABLE e ADD COLUMN n INT DEFAULT 5 FIRST"),
            *("SET SESSION sql_log_bin = 1", *(f"DELETE FROM {t} WHERE id = 1" for t in "abcde")),
        ),
        tables=tuple("abcde"),
        live=True,
    ),
    Case(
        name="names_swapped",
        before=("CREATE TABLE t (id INT PRIMARY KEY, v INT, n INT)", "INSERT INTO t VALUES (1, 5, 1), (2, 6, 2)"),
        stream=("UPDATE t SET n = 7 WHERE id = 1", f"ALTER TABLE t {_SWAPPED}", "DELETE FROM t WHERE id = 2"),
        stopped=("INSERT INTO t VALUES (3, 1, 2)", f"ALTER TABLE t {_SWAPPED}"),
        live=True,
    ),
    Case(
        name="names_and_types_swapped",
        before=("CREATE TABLE t (id INT PRIMARY KEY, v TEXT, n INT)", "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)"),
        stream=("UPDATE t SET n = 7 WHERE id = 1", f"ALTER TABLE t {_SWAPPED}", "DELETE FROM t WHERE id = 2"),
        stopped=("INSERT INTO t (id) VALUES (3)", f"ALTER TABLE t {_SWAPPED}"),
        live=True,
    ),
    Case(
        name="names_swapped_for_a_while",  # and what has them back is as before whenever somebody looks
        before=_PAIRS,
        stream=(f"ALTER TABLE t {_SWAPPED}", "UPDATE t SET n = 7 WHERE id = 1", f"ALTER TABLE t {_SWAPPED}"),
        stopped=(f"ALTER TABLE t {_SWAPPED}", "UPDATE t SET n = 8 WHERE id = 2", f"ALTER TABLE t {_SWAPPED}"),
        settled=True,
    ),
    Case(
        name="names_swapped_for_a_while_without_a_statement",
        before=_PAIRS,
        stopped=(
            *("SET sql_log_bin = 0", f"ALTER TABLE t {_SWAPPED}", "SET sql_log_bin = 1"),
            "UPDATE t SET n = 8 WHERE id = 2",
            *("SET sql_log_bin = 0", f"ALTER TABLE t {_SWAPPED}", "SET sql_log_bin = 1"),
        ),
        settled=True,
    ),
    Case(
        name="names_of_tables_for_a_while",
        before=(*_PAIRS, "CREATE TABLE u LIKE t"),
        stream=(
            "RENAME TABLE t TO tt, u TO t, tt TO u",
            "INSERT INTO t VALUES (3, 1, 1)",
            "RENAME TABLE t TO tt, u TO t, tt TO u",
        ),
        stopped=(
            "RENAME TABLE t TO tt, u TO t, tt TO u",
            "INSERT INTO t VALUES (4, 1, 1)",
            "RENAME TABLE t TO tt, u TO t, tt TO u",
        ),
        tables=("t", "u"),
        settled=True,
    ),
    Case(
        name="labels_in_another_order",
        before=(
            "CREATE TABLE t (id INT PRIMARY KEY, e ENUM('a', 'b', 'c'), s SET('x', 'y', 'z'))",
            "INSERT INTO t VALUES (1, 'a', 'x,z'), (2, 'b', 'y'), (3, 'c', '')",
        ),
        stream=(
            *("INSERT INTO t VALUES (4, 'a', 'x')", "ALTER TABLE t MODIFY e ENUM('c', 'b', 'a', 'd')"),
            *("ALTER TABLE t MODIFY s SET('z', 'y', 'x', 'w')", "INSERT INTO t VALUES (5, 'c', 'x,w')"),
        ),
        stopped=(
            *(
                "INSERT INTO t VALUES (6, 'd', 'z')",
                "ALTER TABLE t MODIFY e ENUM('a', 'd', 'c', 'b') CHARACTER SET gbk",
            ),
            "UPDATE t SET e = 'b' WHERE id = 6",
        ),
        live=True,
    ),
    Case(
        name="letters_that_were_bytes",  # MODIFY to VARBINARY and back, the usual repair of wrong letters
        before=(
            "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20) CHARACTER SET latin1)",
            "INSERT INTO t VALUES (1, 'é'), (2, 'x')",
        ),
        stream=("ALTER TABLE t MODIFY v VARBINARY(20)", "INSERT INTO t VALUES (3, x'c3a9')"),
        stopped=(
            *("UPDATE t SET v = x'c3a9' WHERE id = 1", "ALTER DATABASE CHARACTER SET latin1"),
            *("ALTER TABLE t MODIFY v VARCHAR(20) CHARACTER SET utf8mb4", "INSERT INTO t VALUES (4, '😀')"),
            *("CREATE TABLE b (id INT PRIMARY KEY, v VARCHAR(20))", "INSERT INTO b VALUES (1, 'é')"),
        ),
        tables=("t", "b"),
    ),
    Case(
        name="a_table_in_the_place_of_a_view",
        before=(*_TWO, "CREATE TABLE base_u (id INT PRIMARY KEY)", "CREATE VIEW u AS SELECT * FROM base_u"),
        stream=("DROP VIEW u", "RENAME TABLE base_u TO u", "INSERT INTO u VALUES (7)"),
        tables=("t", "u"),
    ),
    Case(
        name="gtids_by_hand",  # with tags, out of their order, of another server, of nothing
        before=_TWO,
        stream=(
            *(
                _mysql(f"SET GTID_NEXT = '{_OF}:9'"),
                "INSERT INTO t VALUES (3, 3)",
                _mysql(f"SET GTID_NEXT = '{_OF}:3'"),
            ),
            *("UPDATE t SET v = 7 WHERE id = 3", _mysql(f"SET GTID_NEXT = '{_OF}:5'"), "BEGIN", "COMMIT"),
            *(_mysql("SET GTID_NEXT = 'AUTOMATIC:blue'"), "INSERT INTO t VALUES (4, 4)"),
            *(_mysql(f"SET GTID_NEXT = '{_OF}:red:7'"), "DELETE FROM t WHERE id = 1"),
            *(_mysql("SET GTID_NEXT = 'AUTOMATIC'"), _mariadb("SET SESSION gtid_domain_id = 77")),
            *("INSERT INTO t VALUES (5, 5)", _mariadb("SET SESSION gtid_seq_no = 5000"), "INSERT INTO t VALUES (6, 6)"),
            *(_mariadb("SET SESSION server_id = 4242"), "INSERT INTO t VALUES (7, 7)"),
        ),
        stopped=(
            *(_mysql("SET GTID_NEXT = 'AUTOMATIC:blue', binlog_transaction_compression = ON"), "UPDATE t SET v = 8"),
            *(
                _mysql(f"SET GTID_NEXT = '{_OF}:4'"),
                "INSERT INTO t VALUES (8, 8)",
                _mysql("SET GTID_NEXT = 'AUTOMATIC'"),
            ),
            *(_mariadb("SET SESSION gtid_domain_id = 78"), "DELETE FROM t WHERE id = 5"),
        ),
        said=(),
    ),
    Case(
        name="altered_in_two_phases",  # MariaDB's START ALTER and COMMIT ALTER
        before=_TWO,
        stream=(_mariadb("SET SESSION binlog_alter_two_phase = 1"), "ALTER TABLE t ADD COLUMN n INT DEFAULT 3"),
        stopped=(
            _mariadb("SET SESSION binlog_alter_two_phase = 1"),
            "ALTER TABLE t MODIFY v BIGINT, ADD COLUMN m INT DEFAULT 1 FIRST, ALGORITHM=COPY",
            *("UPDATE t SET v = 5", "ALTER TABLE t RENAME TO b"),
        ),
        tables=("b",),
        gone=("t",),
        live=False,
    ),
    Case(
        name="sequences_and_portions",  # MariaDB: a sequence is a table in the log
        before=(
            _mariadb("CREATE SEQUENCE s START WITH 5 CACHE 2"),
            "CREATE TABLE t (id INT PRIMARY KEY /*M! DEFAULT NEXTVAL(s) */ /*!80000 AUTO_INCREMENT */, v INT)",
            (
                "CREATE TABLE p (id INT, s DATE, e DATE, v INT /*M! , PERIOD FOR p (s, e) */ , "
                "PRIMARY KEY (id, /*M! p WITHOUT OVERLAPS */ /*!80000 s */))"
            ),
            *("INSERT INTO t (v) VALUES (1), (2), (3)", "INSERT INTO p VALUES (1, '2020-01-01', '2021-01-01', 1)"),
        ),
        stream=(
            *(_mariadb("CREATE SEQUENCE q"), _mariadb("DO NEXTVAL(q)"), "INSERT INTO t (v) VALUES (4), (5)"),
            *(
                _mariadb("SELECT SETVAL(s, 100)"),
                _mariadb("ALTER SEQUENCE s RESTART 200"),
                "INSERT INTO t (v) VALUES (6)",
            ),
            _mariadb("UPDATE p FOR PORTION OF p FROM '2020-03-01' TO '2020-06-01' SET v = 9"),
        ),
        stopped=(
            *(
                _mariadb("DROP SEQUENCE q"),
                _mariadb("DELETE FROM p FOR PORTION OF p FROM '2020-04-01' TO '2020-05-01'"),
            ),
            *(_mariadb("RENAME TABLE s TO r"), _mariadb("DO NEXTVAL(r)"), "UPDATE t SET v = v + 1"),
        ),
        tables=("t", "p"),
        live=True,
    ),
    Case(
        name="dropped_and_made_again_and_again",  # while its catalog is looked at
        before=_TWO,
        stream=tuple(
            one
            for n in range(5)
            for one in (
                *("DROP TABLE t", f"CREATE TABLE t (id INT PRIMARY KEY, c{n} INT)"),
                *(f"INSERT INTO t VALUES ({n}, {n}), (7, {n})", "DELETE FROM t WHERE id = 7"),
            )
        ),
        live=True,
        comes_back=True,
    ),
    Case(
        name="ddl_of_programs",  # of a procedure, and of a prepared statement
        before=(
            *_TWO,
            *(f"CREATE TABLE {t} (id INT PRIMARY KEY)" for t in "ab"),
            *(f"INSERT INTO {t} VALUES (1)" for t in "ab"),
            (
                "CREATE PROCEDURE p() BEGIN INSERT INTO t VALUES (50, 1); TRUNCATE TABLE a; "
                "ALTER TABLE t ADD COLUMN z INT DEFAULT 4; INSERT INTO t VALUES (51, 1, 1); END"
            ),
        ),
        stream=("CALL p()", "PREPARE s FROM 'TRUNCATE TABLE b'", "EXECUTE s", "INSERT INTO b VALUES (8)"),
        tables=("t", "a", "b"),
        live=True,
    ),
    Case(
        name="a_key_of_another_type",  # by which the records of before are under other keys
        before=_TWO,
        stream=(
            *("ALTER TABLE t MODIFY id VARCHAR(20)", "INSERT INTO t VALUES ('x', 3)", "DELETE FROM t WHERE id = '1'"),
            *("ALTER TABLE t RENAME COLUMN id TO pk", "UPDATE t SET v = 9"),
        ),
        stopped=(
            *("ALTER TABLE t MODIFY pk VARBINARY(20)", "UPDATE t SET v = 8"),
            "ALTER TABLE t DROP PRIMARY KEY, ADD COLUMN n INT AUTO_INCREMENT PRIMARY KEY FIRST",
        ),
        live=True,
    ),
    Case(
        name="names_in_a_chain",
        before=(*_TWO, "CREATE TABLE a (id INT PRIMARY KEY, q INT)", "INSERT INTO a VALUES (5, 5)"),
        stream=(
            *("RENAME TABLE t TO xx, a TO t, xx TO a", "INSERT INTO a VALUES (7, 7)", "INSERT INTO t VALUES (8, 8)"),
            "ALTER TABLE a RENAME TO b, ADD COLUMN n INT DEFAULT 2",
        ),
        stopped=("RENAME TABLE b TO a", "UPDATE a SET n = 9 WHERE id = 7"),
        tables=("t", "a"),
        gone=("b",),
    ),
    Case(
        name="columns_named_like_words",
        before=(
            "CREATE TABLE t (`select` INT PRIMARY KEY, `table` INT, `column` INT, `primary` INT, `to` INT)",
            "INSERT INTO t VALUES (1, 1, 1, 1, 1)",
        ),
        stream=(
            "ALTER TABLE t RENAME COLUMN `to` TO `column2`, RENAME COLUMN `column` TO `to`",
            "ALTER TABLE t CHANGE COLUMN `column2` `column` BIGINT FIRST, DROP `primary`, ADD `key` INT DEFAULT 3",
            "INSERT INTO t VALUES (9, 9, 9, 9, 9)",
        ),
        live=True,
    ),
    Case(
        name="a_column_shown_and_not_shown",
        before=_TWO,
        stream=(
            "ALTER TABLE t ADD COLUMN i INT DEFAULT 4 /*!80023 INVISIBLE */ /*M! INVISIBLE */",
            "UPDATE t SET i = 5 WHERE id = 1",
            "ALTER TABLE t /*!80023 ALTER COLUMN i SET VISIBLE */ /*M! MODIFY i INT DEFAULT 4 */",
            "UPDATE t SET i = 6 WHERE id = 2",
        ),
        live=True,
    ),
    Case(
        name="generated_otherwise",
        before=(
            "CREATE TABLE t (id INT PRIMARY KEY, a INT, g INT AS (a + 1) VIRTUAL, s INT AS (a + 2) STORED)",
            "INSERT INTO t (id, a) VALUES (1, 1)",
        ),
        stream=(
            *("ALTER TABLE t MODIFY g INT AS (a * 100) VIRTUAL", "ALTER TABLE t MODIFY s INT AS (a * 7) STORED"),
            "UPDATE t SET a = 3",
        ),
        stopped=("ALTER TABLE t DROP g, ADD g VARCHAR(9) AS (CONCAT('v', a)) VIRTUAL AFTER id", "UPDATE t SET a = 4"),
        live=True,
    ),
    Case(
        name="names_in_brackets",  # MariaDB, as a session may have it; and quoted as Oracle does
        before=(
            *(*_TWO, "CREATE TABLE u (id INT PRIMARY KEY, v INT)", "INSERT INTO u VALUES (1, 1)"),
            *("CREATE TABLE o (id INT PRIMARY KEY, v INT)", "INSERT INTO o VALUES (1, 1), (2, 2)"),
        ),
        stream=(
            *(_mariadb("SET SESSION sql_mode = 'MSSQL'"), "TRUNCATE TABLE /*M! [t] */ /*!80000 t */"),
            "ALTER TABLE /*M! [u] ADD COLUMN [w x] */ /*!80000 u ADD COLUMN `w x` */ INT DEFAULT 3",
            *(_mariadb("SET SESSION sql_mode = 'ORACLE'"), 'TRUNCATE TABLE /*M! "o" DROP STORAGE */ /*!80000 o */'),
            "INSERT INTO o VALUES (7, 7)",
        ),
        tables=("t", "u", "o"),
        live=True,
    ),
    Case(
        name="an_index_of_each_member_of_a_document",  # MySQL: in the log it is a column of a type that no table has
        before=(
            "CREATE TABLE t (id INT PRIMARY KEY, d JSON /*!80017 , KEY m ((CAST(d->'$.tags' AS UNSIGNED ARRAY))) */)",
            """INSERT INTO t VALUES (1, '{"tags": [1, 2]}'), (2, NULL)""",
        ),
        stream=("""UPDATE t SET d = '{"tags": [3]}' WHERE id = 1""", """INSERT INTO t VALUES (3, '{"tags": []}')"""),
        stopped=("UPDATE t SET id = id + 10",),
        said=(),
    ),
    Case(
        name="in_another_database_for_a_while",
        before=_TWO,
        stream=tuple(
            one
            for sql in (
                "'CREATE DATABASE ', DATABASE(), 'x'",
                "'RENAME TABLE t TO ', DATABASE(), 'x.outside'",
                "'UPDATE ', DATABASE(), 'x.outside SET v = 9'",
                "'RENAME TABLE ', DATABASE(), 'x.outside TO t'",
                "'DROP DATABASE ', DATABASE(), 'x'",
            )
            for one in (f"SET @s = CONCAT({sql})", "PREPARE s FROM @s", "EXECUTE s")
        ),
        stopped=("INSERT INTO t VALUES (6, 6)",),
        live=True,
    ),
    Case(
        name="labels_that_are_none",  # what a session that is not strict makes of them; empty ones, those of numbers
        before=(
            "SET SESSION sql_mode = ''",
            "CREATE TABLE t (id INT PRIMARY KEY, e ENUM('1', '0', '', 'a''b', 'x\\\\y'), s SET('a', '', 'c'))",
            "INSERT INTO t VALUES (1, 'bad', 'bad'), (2, '', ''), (3, 2, 2), (4, '0', 7), (5, 0, 0)",
        ),
        stream=("SET SESSION sql_mode = ''", "INSERT INTO t VALUES (11, 'bad', 'bad'), (12, '', ''), (13, 2, 2)"),
        stopped=("SET SESSION sql_mode = ''", "UPDATE t SET id = id + 100"),
        said=(),
    ),
    Case(
        name="times_of_old_tables",  # MariaDB: as they are in a table that was made before 10.1, and not altered since
        before=(
            "SET SESSION sql_mode = ''",
            _mariadb("SET GLOBAL mysql56_temporal_format = OFF"),
            f"CREATE TABLE t (id INT PRIMARY KEY, {_TIMES})",
            "CREATE TABLE k (d DATETIME(3), s TIMESTAMP(6) NOT NULL, q TIME(4), v INT, PRIMARY KEY (d, s, q))",
            _mariadb("SET GLOBAL mysql56_temporal_format = ON"),
            _times(1, "2021-03-04 05:06:07.123456", "-12:34:56.654321"),
            "INSERT INTO k VALUES ('2020-01-01 01:02:03.5', '2021-01-01 01:02:03.123456', '-11:11:11.1111', 1)",
        ),
        stream=(
            "SET SESSION sql_mode = ''",
            _times(4, "1970-01-01 00:00:01.000001", "-00:00:00.5"),
            _times(5, "2038-01-19 03:14:06.9", "838:59:58.999999"),
            *("UPDATE k SET v = 3", "UPDATE k SET q = '-00:00:00.1', s = '2038-01-19 03:14:06'"),
        ),
        stopped=(
            *(_times(6, "2021-03-04 05:06:07.123456", "0"), "ALTER TABLE t FORCE"),
            *("UPDATE t SET id = 60 WHERE id = 6", "DELETE FROM k", "INSERT INTO k VALUES ('2021-01-01', NOW(), 0, 4)"),
        ),
        live=True,
        tables=("t", "k"),
    ),
)
