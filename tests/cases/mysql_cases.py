"""What is done to tables of MySQL and MariaDB, case by case."""

from __future__ import annotations

from typing import Final

from tests.cases.mysql_changes import CHANGES
from tests.cases.mysql_keys import KEYS
from tests.cases.runner import Case
from tests.cases.shared_cases import SHARED

_TWO: Final = ("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2)")
_PARTS: Final = (
    "PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20), PARTITION p2 VALUES LESS THAN (30)"
)


def _partitions(name: str, statement: str) -> Case:
    """No event tells of their rows: the table is read again, and what has gone is deleted."""
    return Case(
        name=name,
        before=(
            f"CREATE TABLE t (id INT PRIMARY KEY) PARTITION BY RANGE (id) ({_PARTS})",
            "INSERT INTO t VALUES (1), (11), (12), (21)",
            *("CREATE TABLE outside (id INT PRIMARY KEY)", "INSERT INTO outside VALUES (15), (16)"),
        ),
        stream=(f"ALTER TABLE t {statement}",),
        live=True,
    )


TABLES: Final = (
    Case(
        name="columns_of_their_time",  # by what the log says, not by what the catalog has now
        before=("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9))", "INSERT INTO t VALUES (1, 'x')"),
        stopped=(
            "INSERT INTO t VALUES (2, 'y')",
            *("ALTER TABLE t ADD COLUMN first INT FIRST", "INSERT INTO t VALUES (3, 3, 'z')"),
            "ALTER TABLE t CHANGE v w VARCHAR(9), ADD COLUMN d INT NOT NULL DEFAULT 4 AFTER id",
            *("INSERT INTO t (first, id, w) VALUES (4, 4, 'w')", "ALTER TABLE t DROP COLUMN first"),
            "INSERT INTO t VALUES (5, 5, 'v')",
        ),
        moves={
            "t": [
                ("c", None, {"id": 2, "v": "y"}),
                ("c", None, {"first": 3, "id": 3, "v": "z"}),
                ("c", None, {"first": 4, "id": 4, "d": 4, "w": "w"}),
                ("c", None, {"id": 5, "d": 5, "w": "v"}),
            ]
        },
    ),
    Case(
        name="whole_rows_before_and_after",
        before=(
            "CREATE TABLE t (id INT PRIMARY KEY, v TEXT)",
            "INSERT INTO t VALUES (1, 'one'), (2, NULL), (3, 'three')",
        ),
        stream=(
            *("BEGIN", "UPDATE t SET v = 'two' WHERE id = 2", "DELETE FROM t WHERE id = 3"),
            *("UPDATE t SET id = 7 WHERE id = 1", "COMMIT", "BEGIN", "DELETE FROM t", "ROLLBACK"),
        ),
        said=(),
        moves={
            "t": [
                ("u", {"id": 2, "v": None}, {"id": 2, "v": "two"}),
                ("d", {"id": 3, "v": "three"}, None),
                ("d", {"id": 1, "v": "one"}, None),
                ("c", None, {"id": 7, "v": "one"}),
            ]
        },
    ),
    Case(
        name="a_swap_by_rename",  # as online schema tools cut over: the other table's rows are read
        before=_TWO,
        stopped=(
            "CREATE TABLE _t_gho (id INT PRIMARY KEY, v BIGINT, more INT)",
            "INSERT INTO _t_gho SELECT id, v * 10, 0 FROM t",
            *("RENAME TABLE t TO _t_del, _t_gho TO t", "UPDATE t SET v = 7 WHERE id = 1"),
        ),
    ),
    Case(
        name="a_swap_that_nobody_writes_after",  # the log says so, though nothing else tells the two tables apart
        before=(
            *("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (10, 1)"),
            *("CREATE TABLE other (id INT PRIMARY KEY, v INT)", "INSERT INTO other VALUES (1, 2), (20, 2)"),
        ),
        stream=("RENAME TABLE t TO gone, other TO t",),
        live=True,
    ),
    Case(
        name="dropped_and_made_again",  # under one name, with other columns, while it is followed and while it is not
        before=("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2)"),
        stream=("DROP TABLE t", "CREATE TABLE t (id INT PRIMARY KEY, w VARCHAR(9))", "INSERT INTO t VALUES (1, 'x')"),
        stopped=("DROP TABLE t", "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (5)"),
        live=True,
    ),
    Case(
        name="a_column_dropped_and_made_again",  # the columns are what they were, and their values are not
        before=_TWO,
        stopped=("ALTER TABLE t DROP COLUMN v, ADD COLUMN v INT",),
        said=("its rows are read again",),
    ),
    _partitions("a_partition_emptied", "TRUNCATE PARTITION p0"),
    _partitions("a_partition_dropped", "DROP PARTITION p2"),
    _partitions("a_partition_exchanged", "EXCHANGE PARTITION p1 WITH TABLE outside"),
    Case(
        name="filled_by_a_statement",  # CREATE TABLE … SELECT of a session that logs statements: its rows are read
        before=("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)"),
        stream=(
            *("SET SESSION binlog_format = STATEMENT", "DROP TABLE t"),
            "CREATE TABLE t (PRIMARY KEY (id)) AS SELECT 5 AS id",
        ),
        live=True,
    ),
    Case(
        name="made_of_another",  # and that one dropped behind it, and made again
        before=("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2), (4)"),
        stopped=(
            "CREATE TABLE b (PRIMARY KEY (id)) AS SELECT id, id * 10 AS n FROM t",
            *("DROP TABLE t", "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (9)"),
        ),
        tables=("t", "b"),
    ),
    Case(
        name="a_delete_of_part_of_a_row",  # which has the primary key, and that is the topic's key
        before=(
            "CREATE TABLE t (id INT PRIMARY KEY, code INT NOT NULL UNIQUE, v INT)",
            "INSERT INTO t VALUES (1, 11, 1)",
        ),
        stopped=("SET SESSION binlog_row_image = MINIMAL", "DELETE FROM t WHERE id = 1"),
        said=(),
    ),
    Case(
        name="generated_columns",
        before=(
            "CREATE TABLE t (id INT PRIMARY KEY, virt INT AS (id * 2) VIRTUAL, sto INT AS (id * 3) STORED)",
            "INSERT INTO t (id) VALUES (1)",
        ),
        stream=("INSERT INTO t (id) VALUES (3)",),
        stopped=("UPDATE t SET id = 5 WHERE id = 1",),
        said=(),
        moves={
            "t": [
                ("c", None, {"id": 3, "virt": 6, "sto": 9}),
                ("d", {"id": 1, "virt": 2, "sto": 3}, None),
                ("c", None, {"id": 5, "virt": 10, "sto": 15}),
            ]
        },
    ),
)

"""What is written for one server alone stands in a comment that only that one reads: ``/*M! … */`` MariaDB,
``/*!80000 … */`` MySQL."""
_FOR_MARIADB: Final = "ALTER TABLE t /*M!100700 {} */ /*!80000 COMMENT = 'nothing' */"

DDL: Final = (
    Case(
        name="columns_that_nobody_writes_after",  # the statement itself is followed, not the next row
        before=(
            *(f"CREATE TABLE {t} (id INT PRIMARY KEY, v VARCHAR(9), w INT)" for t in "abcdefg"),
            *(f"INSERT INTO {t} VALUES (1, 'é', 1), (2, 'x', 2)" for t in "abcdefg"),
        ),
        stream=(
            "SET SESSION sql_mode = ''",
            *("ALTER TABLE a ADD COLUMN n INT DEFAULT 5", "ALTER TABLE b MODIFY w VARCHAR(7), MODIFY v VARCHAR(1)"),
            *("ALTER TABLE c CONVERT TO CHARACTER SET ascii", "ALTER TABLE d RENAME COLUMN v TO x"),
            *("ALTER TABLE e DROP COLUMN v", "ALTER TABLE f ADD (n TIMESTAMP, m INT AS (w * 2))"),
            "ALTER TABLE g DROP COLUMN w, ADD COLUMN w INT DEFAULT 8",
        ),
        tables=tuple("abcdefg"),
        live=True,
    ),
    Case(
        name="a_default_that_went_again",  # by the time it is looked at, the catalog knows nothing of it
        before=_TWO,
        stopped=("ALTER TABLE t ADD COLUMN n INT DEFAULT 5", "ALTER TABLE t ALTER COLUMN n DROP DEFAULT"),
    ),
    Case(
        name="both_sides_of_an_exchange",
        before=(
            f"CREATE TABLE t (id INT PRIMARY KEY) PARTITION BY RANGE (id) ({_PARTS})",
            "INSERT INTO t VALUES (1), (11), (12), (21)",
            *("CREATE TABLE o (id INT PRIMARY KEY)", "INSERT INTO o VALUES (15), (16)"),
        ),
        stream=("ALTER TABLE t EXCHANGE PARTITION p1 WITH TABLE o",),
        stopped=("ALTER TABLE t EXCHANGE PARTITION p1 WITH TABLE o", "INSERT INTO o VALUES (17)"),
        tables=("t", "o"),
        live=True,
    ),
    Case(
        name="a_partition_made_a_table",
        before=(
            f"CREATE TABLE t (id INT PRIMARY KEY) PARTITION BY RANGE (id) ({_PARTS})",
            "INSERT INTO t VALUES (1), (11), (12), (21)",
        ),
        stream=(
            _FOR_MARIADB.format("CONVERT PARTITION p1 TO TABLE b"),
            "CREATE TABLE IF NOT EXISTS b (id INT PRIMARY KEY)",
        ),
        tables=("t", "b"),
        live=True,
    ),
    Case(
        name="a_table_made_a_partition",
        before=(
            f"CREATE TABLE t (id INT PRIMARY KEY) PARTITION BY RANGE (id) ({_PARTS})",
            *("INSERT INTO t VALUES (1), (11)", "CREATE TABLE o (id INT PRIMARY KEY)", "INSERT INTO o VALUES (35)"),
        ),
        stream=(
            _FOR_MARIADB.format("CONVERT TABLE o TO PARTITION p3 VALUES LESS THAN (40)"),
            *("DROP TABLE IF EXISTS o", "CREATE TABLE o (id INT PRIMARY KEY)"),
        ),
        tables=("t", "o"),
        live=True,
    ),
    Case(
        name="partitions_of_other_sizes",  # rows move, and none comes or goes
        before=(
            f"CREATE TABLE t (id INT PRIMARY KEY) PARTITION BY RANGE (id) ({_PARTS})",
            "CREATE TABLE h (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 4",
            *("INSERT INTO t VALUES (1), (11), (21)", "INSERT INTO h VALUES (1), (2), (3), (4), (5)"),
        ),
        stream=(
            "ALTER TABLE t REORGANIZE PARTITION p0, p1 INTO (PARTITION q VALUES LESS THAN (20))",
            *("ALTER TABLE h COALESCE PARTITION 2", "INSERT INTO h VALUES (6)", "ALTER TABLE h REMOVE PARTITIONING"),
        ),
        tables=("t", "h"),
    ),
    Case(
        name="names_in_a_ring",
        before=(
            *("CREATE TABLE a (id INT PRIMARY KEY, v INT)", "INSERT INTO a VALUES (1, 1), (2, 1)"),
            *("CREATE TABLE b (id INT PRIMARY KEY, w INT)", "INSERT INTO b VALUES (1, 2), (3, 2)"),
            *("CREATE TABLE c (id INT PRIMARY KEY)", "INSERT INTO c VALUES (9)"),
        ),
        stream=("RENAME TABLE a TO tmp, b TO a, c TO b, tmp TO c",),
        stopped=("RENAME TABLE a TO tmp, b TO a, tmp TO b", "INSERT INTO a VALUES (7)"),
        tables=("a", "b", "c"),
        live=True,
    ),
    Case(
        name="an_archive_of_another_name",  # which nobody captures: what is in it now is not the table's any more
        before=_TWO,
        stream=("RENAME TABLE t TO t_old", "CREATE TABLE t LIKE t_old", "INSERT INTO t VALUES (3, 3)"),
        stopped=("RENAME TABLE t TO t_older", "CREATE TABLE t LIKE t_older", "INSERT INTO t VALUES (4, 4)"),
        live=True,
    ),
    Case(
        name="an_archive_that_is_captured",
        before=_TWO,
        stream=("RENAME TABLE t TO o", "CREATE TABLE t LIKE o", "INSERT INTO t VALUES (3, 3)"),
        stopped=("RENAME TABLE t TO p", "CREATE TABLE t LIKE p", "INSERT INTO t VALUES (4, 4)", "DELETE FROM p"),
        tables=("t", "o", "p"),
    ),
    Case(
        name="a_name_of_two_statements",  # between them the table has none
        before=_TWO,
        stream=(
            *("CREATE TABLE t_new (id INT PRIMARY KEY, v INT)", "INSERT INTO t_new VALUES (1, 7), (5, 7)"),
            *("RENAME TABLE t TO t_old", "RENAME TABLE t_new TO t"),
        ),
        live=True,
    ),
    Case(
        name="another_name_by_alter",
        before=_TWO,
        stream=("ALTER TABLE t ADD COLUMN n INT DEFAULT 5, RENAME TO u", "INSERT INTO u VALUES (3, 3, 3)"),
        stopped=("ALTER TABLE u RENAME v",),
        tables=("v",),
        gone=("t", "u"),
    ),
    Case(
        name="replaced",  # MariaDB: by one statement
        before=(*_TWO, "CREATE TABLE o (id INT PRIMARY KEY, w INT)", "INSERT INTO o VALUES (5, 5)"),
        stream=(
            "CREATE /*M! OR REPLACE */ TABLE /*!80000 IF NOT EXISTS */ t (id INT PRIMARY KEY, w INT NOT NULL)",
            "CREATE /*M! OR REPLACE */ TABLE /*!80000 IF NOT EXISTS */ o LIKE t",
        ),
        tables=("t", "o"),
        live=True,
    ),
    Case(
        name="several_dropped",
        before=(
            *(f"CREATE TABLE {t} (id INT PRIMARY KEY)" for t in "abcde"),
            *(f"INSERT INTO {t} VALUES (1), (2)" for t in "abcde"),
        ),
        stream=("DROP TABLE IF EXISTS a, none_of_these, b",),
        stopped=("DROP TABLE c, d",),
        tables=("e",),
        gone=tuple("abcd"),
    ),
    Case(
        name="quotes_of_the_session",
        before=(
            *(f"CREATE TABLE {t} (id INT PRIMARY KEY)" for t in ("a", "b", "é", '`"`', "`\\`")),
            *(f"INSERT INTO {t} VALUES (1), (2)" for t in ("a", "b", "é", '`"`', "`\\`")),
        ),
        stream=(
            "SET SESSION sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'",
            *('TRUNCATE TABLE "a"', "ALTER TABLE b COMMENT '\\', RENAME TO c", 'TRUNCATE TABLE /* é */ "é" -- all'),
            *('TRUNCATE """"', 'INSERT INTO """" VALUES (7)'),
        ),
        stopped=("INSERT INTO a VALUES (5)", "INSERT INTO é VALUES (5)"),
        tables=("a", "c", "é", '"'),
        gone=("b",),
        select={'"': 'SELECT id FROM `"`'},
    ),
)

KEYLESS: Final = (
    Case(
        name="a_key_that_is_given_up_and_made_again",  # by two statements; between them rows share it
        before=_TWO,
        stream=(
            *("ALTER TABLE t DROP PRIMARY KEY", "INSERT INTO t VALUES (1, 7), (3, 3)", "DELETE FROM t WHERE v = 7"),
            *("UPDATE t SET v = 8 WHERE id = 2", "DO SLEEP(1)", "ALTER TABLE t ADD PRIMARY KEY (id)"),
        ),
        stopped=(
            *("ALTER TABLE t DROP PRIMARY KEY", "INSERT INTO t VALUES (1, 7), (4, 4)", "DELETE FROM t WHERE v = 7"),
            *("ALTER TABLE t ADD COLUMN n INT AUTO_INCREMENT PRIMARY KEY FIRST", "UPDATE t SET v = 9 WHERE id = 3"),
        ),
        live=True,
    ),
    Case(
        name="rows_that_share_a_key_for_a_time",  # which is another one afterwards
        before=(*_TWO, "CREATE TABLE u (a INT PRIMARY KEY, b INT NOT NULL)", "INSERT INTO u VALUES (1, 1), (2, 2)"),
        stream=(
            *("ALTER TABLE u DROP PRIMARY KEY", "DO SLEEP(1)", "INSERT INTO u VALUES (2, 3), (2, 4)"),
            *("UPDATE u SET a = 1", "ALTER TABLE u ADD PRIMARY KEY (b)", "INSERT INTO u VALUES (1, 9)"),
            "DELETE FROM u WHERE b = 1",
        ),
        tables=("t", "u"),
        live=True,
    ),
    Case(
        name="an_engine_without_transactions_for_a_time",
        before=_TWO,
        stream=(
            *("ALTER TABLE t ENGINE = MyISAM", "INSERT INTO t VALUES (7, 7)", "DO SLEEP(1)"),
            *("ALTER TABLE t ENGINE = InnoDB", "UPDATE t SET v = 8 WHERE id = 7"),
        ),
        live=True,
    ),
)

HIDDEN: Final = (
    Case(
        name="versions_of_rows",  # MariaDB: history is in the log, and in no SELECT
        before=(
            "CREATE TABLE t (id INT PRIMARY KEY, v INT) /*M!100300 WITH SYSTEM VERSIONING */",
            "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)",
            "UPDATE t SET v = 7 WHERE id = 1",
        ),
        stream=(
            *("UPDATE t SET v = 5 WHERE id = 1", "DELETE FROM t WHERE id = 2", "REPLACE INTO t VALUES (1, 9)"),
            *("UPDATE t SET id = 4 WHERE id = 1", "INSERT INTO t VALUES (2, 8)"),
        ),
        stopped=("UPDATE t SET v = v + 1", "DELETE FROM t WHERE id = 3"),
        said=(),
    ),
    Case(
        name="versions_by_named_columns",
        before=(
            (
                "CREATE TABLE t (id INT PRIMARY KEY, v INT /*M!100300 , s TIMESTAMP(6) GENERATED ALWAYS AS ROW START, "
                "e TIMESTAMP(6) GENERATED ALWAYS AS ROW END INVISIBLE, PERIOD FOR SYSTEM_TIME (s, e) */ ) "
                "/*M!100300 WITH SYSTEM VERSIONING */"
            ),
            "INSERT INTO t (id, v) VALUES (1, 1), (2, 2)",
        ),
        stream=("UPDATE t SET v = 5 WHERE id = 1", "DELETE FROM t WHERE id = 2", "INSERT INTO t (id, v) VALUES (3, 3)"),
        stopped=("UPDATE t SET v = v + 1",),
        said=(),
    ),
    Case(
        name="versions_that_end",
        before=(
            "CREATE TABLE t (id INT PRIMARY KEY, v INT) /*M!100300 WITH SYSTEM VERSIONING */",
            "INSERT INTO t VALUES (1, 1)",
        ),
        stopped=(
            *("UPDATE t SET v = 2", "INSERT INTO t VALUES (5, 5)", "DELETE FROM t WHERE id = 5"),
            *(_FOR_MARIADB.format("DROP SYSTEM VERSIONING"), "UPDATE t SET v = 3", "INSERT INTO t VALUES (6, 6)"),
        ),
    ),
    Case(
        name="columns_that_are_not_shown",  # a hash of a long UNIQUE key, an index of an expression, what * leaves out
        before=(
            (
                "CREATE TABLE t (id INT PRIMARY KEY, b TEXT, "
                "i INT /*M!100303 INVISIBLE */ /*!80023 INVISIBLE */ DEFAULT 3, "
                "UNIQUE KEY (b /*!80000 (20) */) /*!80013 , KEY ((i + 1)) */ )"
            ),
            "INSERT INTO t (id, b) VALUES (1, 'x'), (2, 'y')",
        ),
        stream=("UPDATE t SET b = 'z' WHERE id = 1", "INSERT INTO t (id, b, i) VALUES (3, 'w', 4)"),
        stopped=("DELETE FROM t WHERE id = 2", "UPDATE t SET i = 9 WHERE id = 1"),
        said=(),
    ),
    Case(
        name="types_that_only_the_catalog_has",
        before=(
            (
                "CREATE TABLE t (id INT PRIMARY KEY, u /*M!100700 UUID */ /*!80000 CHAR(36) */, "
                "n /*M!100500 INET6 */ /*!80000 VARCHAR(39) */)"
            ),
            "INSERT INTO t VALUES (1, '123e4567-e89b-12d3-a456-426655440000', '2001:db8::ff00:42:8329')",
        ),
        stream=("INSERT INTO t VALUES (2, '123e4567-e89b-12d3-a456-426655440001', '::1'), (3, NULL, NULL)",),
        stopped=("UPDATE t SET id = id + 10",),
        said=(),
    ),
    Case(
        name="kinds_among_texts",  # of which the log of MySQL 9 counts the character sets, one for each of them, too
        before=(
            (
                "CREATE TABLE t (id INT PRIMARY KEY /*!90000 , v VECTOR(2) */ /*M!100700 , u UUID */ "
                "/*M!110700 , v VECTOR(2) NULL */, a TEXT CHARACTER SET utf8mb4, g POINT, "
                "b VARCHAR(9) CHARACTER SET latin1 /*!90000 , w VECTOR(3) */, j JSON, "
                "e ENUM('é', 'f') CHARACTER SET latin1, n /*M!100500 INET6 */ "
                "/*!80000 BINARY(16) */, c BLOB, s SET('é', 'f') CHARACTER SET utf8mb4, d TEXT CHARACTER SET utf8mb4)"
            ),
            """INSERT INTO t (id, a, g, b, j, e, n, c, s, d /*!90000 , v, w */ /*M!100700 , u */ /*M!110700 , v */)
               VALUES (1, 'é', POINT(1, 2), 'é', '{"é": 1}', 'é', /*M!100500 '::1' */ /*!80000 REPEAT('é', 8) */,
               'é', 'é', 'é' /*!90000 , STRING_TO_VECTOR('[1,2]'), STRING_TO_VECTOR('[1,2,3]') */
               /*M!100700 , '123e4567-e89b-12d3-a456-426655440000' */ /*M!110700 , VEC_FromText('[1,2]') */)""",
        ),
        stream=(
            (
                "INSERT INTO t (id, a, g, b, j, e, n, c, s, d /*!90000 , v, w */ /*M!100700 , u */ /*M!110700 , v */) "
                "SELECT id + 1, a, g, b, j, e, n, c, s, d /*!90000 , v, w */ /*M!100700 , u */ /*M!110700 , v */ FROM t"
            ),
        ),
        stopped=("UPDATE t SET id = id + 10, a = 'è', b = 'è', e = 'f', s = 'f,é'",),
        said=(),
    ),
)

NEWER: Final = (
    Case(
        name="vectors_and_late_times",
        before=(
            "CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP(6) NULL /*M!110700 , v VECTOR(3), w VECTOR(100) */)",
            """INSERT INTO t VALUES (1, '2001-01-01'
               /*M!110700 , VEC_FromText('[1,-2.5,3.25]'), REPEAT(x'0000803f', 100) */)""",
        ),
        stream=(
            """INSERT INTO t VALUES (2, COALESCE(/*M!110700 '2100-01-01 00:00:00.5', */ '2002-02-02')
               /*M!110700 , VEC_FromText('[0,100.125,1]'), REPEAT(x'000000bf', 100) */)""",
        ),
        stopped=("UPDATE t SET id = id + 10",),
        said=(),
    ),
    Case(
        name="images_without_what_stays",
        before=(
            "CREATE TABLE t (id INT, part INT, v INT, b TEXT, PRIMARY KEY (part, id))",
            "INSERT INTO t VALUES (1, 1, 1, 'one'), (2, 2, NULL, 'two')",
        ),
        stream=("SET @x = 0 /*M!110400 , SESSION binlog_row_image = FULL_NODUP */", "UPDATE t SET v = 9"),
        stopped=(
            "SET @x = 0 /*M!110400 , SESSION binlog_row_image = FULL_NODUP */",
            *("UPDATE t SET id = 5, b = NULL WHERE id = 1", "DELETE FROM t WHERE id = 2"),
        ),
        said=(),
    ),
)
"""Of MariaDB 11 alone, in comments that only it reads."""

CASCADES: Final = (
    Case(
        name="rows_that_go_with_others",  # MariaDB and older MySQL log the parent's row alone
        before=(
            *("CREATE TABLE p (id INT PRIMARY KEY, n INT)", "CREATE TABLE outside (id INT PRIMARY KEY, n INT)"),
            (
                "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT, "
                "FOREIGN KEY (a) REFERENCES p (id) ON DELETE CASCADE ON UPDATE CASCADE, "
                "FOREIGN KEY (b) REFERENCES p (id) ON DELETE SET NULL ON UPDATE SET NULL)"
            ),
            "CREATE TABLE u (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES outside (id) ON DELETE CASCADE)",
            "CREATE TABLE w (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES u (id) ON DELETE CASCADE)",
            "CREATE TABLE x (id INT PRIMARY KEY, up INT, FOREIGN KEY (up) REFERENCES x (id) ON DELETE CASCADE)",
            *(f"INSERT INTO {t} VALUES (1, 1), (2, 2), (3, 3), (4, 4)" for t in ("p", "outside")),
            "INSERT INTO t VALUES (1, 1, 2), (2, 2, 3), (3, 3, 1), (4, 4, 4)",
            *(f"INSERT INTO {t} VALUES (1), (2), (3), (4)" for t in ("u", "w")),
            "INSERT INTO x VALUES (1, NULL), (2, 1), (3, 2), (4, NULL)",
        ),
        stream=(
            *("DELETE FROM p WHERE id = 1", "UPDATE p SET id = 20 WHERE id = 2", "DELETE FROM x WHERE id = 2"),
            "DELETE FROM outside WHERE id = 1",
        ),
        stopped=("DELETE FROM p WHERE id = 4", "DELETE FROM outside WHERE id = 2", "DELETE FROM x WHERE id = 1"),
        tables=("p", "t", "u", "w", "x"),
        live=True,
    ),
    Case(
        name="rows_that_went_with_another_name",  # which the server does not know any more when it is asked
        before=(
            *(f"CREATE TABLE {t} (id INT PRIMARY KEY, n INT)" for t in ("above", "outside", "aside")),
            "CREATE TABLE between_ (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES above (id) ON DELETE CASCADE)",
            "CREATE TABLE t (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES outside (id) ON DELETE CASCADE)",
            "CREATE TABLE u (id INT PRIMARY KEY, n INT, FOREIGN KEY (n) REFERENCES aside (id) ON UPDATE CASCADE)",
            (
                "CREATE TABLE w (id INT PRIMARY KEY, CONSTRAINT up FOREIGN KEY (id) REFERENCES between_ (id) "
                "ON DELETE CASCADE)"
            ),
            *(f"INSERT INTO {t} VALUES (1, 1), (2, 2), (3, 3)" for t in ("above", "outside", "aside", "u")),
            *(f"INSERT INTO {t} VALUES (1), (2), (3)" for t in ("between_", "t", "w")),
        ),
        stopped=(
            *("DELETE FROM outside WHERE id = 1", "RENAME TABLE outside TO elsewhere"),
            *("UPDATE aside SET id = 10 WHERE id = 1", "ALTER TABLE aside CHANGE id k INT"),
            *("DELETE FROM above WHERE id = 1", "ALTER TABLE between_ DROP FOREIGN KEY between__ibfk_1"),
        ),
        tables=("t", "u", "w"),
    ),
    Case(
        name="rows_that_go_with_versions",  # MariaDB logs the parent's DELETE as an UPDATE that gives it an end
        before=(
            "CREATE TABLE outside (id INT PRIMARY KEY) /*M!100300 WITH SYSTEM VERSIONING */",
            (
                "CREATE TABLE p (id INT PRIMARY KEY, n INT /*M!100300 , s TIMESTAMP(6) GENERATED ALWAYS AS ROW START, "
                "e TIMESTAMP(6) GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (s, e) */ ) "
                "/*M!100300 WITH SYSTEM VERSIONING */"
            ),
            "CREATE TABLE t (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES outside (id) ON DELETE CASCADE)",
            "CREATE TABLE u (id INT PRIMARY KEY, n INT, FOREIGN KEY (n) REFERENCES p (id) ON DELETE SET NULL)",
            *(f"INSERT INTO {t} VALUES (1), (2), (3)" for t in ("outside", "t")),
            *("INSERT INTO p (id, n) VALUES (1, 1), (2, 2), (3, 3)", "INSERT INTO u VALUES (1, 1), (2, 2), (3, 3)"),
        ),
        stream=("UPDATE p SET n = 7", "DELETE FROM outside WHERE id = 1", "DELETE FROM p WHERE id = 2"),
        tables=("p", "t", "u"),
        live=True,
    ),
    Case(
        name="rows_that_stay",  # though others go
        before=(
            *("CREATE TABLE outside (id INT PRIMARY KEY, n INT)", "INSERT INTO outside VALUES (1, 1), (2, 2)"),
            "CREATE TABLE t (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES outside (id) ON DELETE CASCADE)",
            "INSERT INTO t VALUES (1), (2)",
        ),
        stream=(
            *("UPDATE outside SET n = 7", "INSERT INTO outside VALUES (3, 3)", "SET SESSION foreign_key_checks = 0"),
            "DELETE FROM outside WHERE id = 1",
        ),
        said=(),
    ),
)

VALUES: Final[dict[str, tuple[str, ...]]] = {
    "TINYINT": ("-128", "127"),
    "TINYINT(1) UNSIGNED": ("1", "255"),
    "SMALLINT": ("-32768", "32767"),
    "MEDIUMINT UNSIGNED": ("0", "16777215"),
    "INT(5) ZEROFILL": ("42", "4294967295"),
    "BIGINT": ("-9223372036854775808", "9223372036854775807"),
    "BIGINT UNSIGNED": ("18446744073709551615",),
    "DECIMAL(65,30)": ("-12345678901234567890.000000000000000000000000000001", "0.1"),
    "FLOAT": ("3.3", "1e20", "-16777216", "0.1"),
    "DOUBLE": ("1e300", "0.1", "5e-324", "-1.7976931348623157e308", "1046017926401765.9"),
    "CHAR(5)": ("'ab'", "''", "'  x'"),
    "VARCHAR(20) CHARACTER SET latin1": ("'é'", "'a  '"),
    "VARCHAR(20) COLLATE utf8mb4_bin": ("'Ünï 😀'", "'NULL'"),
    "TEXT CHARACTER SET utf16": ("'x'", "'日本'"),
    "BINARY(4)": ("'a'", "x'00ff0000'"),
    "VARBINARY(9)": ("x'00ff00'", "x''"),
    "BLOB": ("x''", "REPEAT(x'00ff', 300)"),
    "ENUM('a', 'b,c')": ("'b,c'", "'a'"),
    "SET('x', 'y', 'z')": ("'x,z'", "''"),
    "ENUM('/* a */', 'zerofill')": ("'zerofill'", "'/* a */'"),
    "JSON": ("""'{"b": [1, 2.50], "a": "é"}'""", "'null'", "'[]'"),
    "BIT(1)": ("b'1'", "b'0'"),
    "BIT(9)": ("b'100000001'", "b'0'"),
    "DATE": ("'2024-02-29'", "'1969-12-31'", "'1000-01-01'", "'9999-12-31'"),
    "YEAR": ("2024", "1901", "0"),
    "YEAR /*M! (2) */": ("2024", "1999", "1970", "'00'"),
    "TIME": ("'838:59:59'", "'-00:00:01'"),
    "TIME(3)": ("'-838:59:58.500'", "'00:00:00'"),
    "TIME(6)": ("'-00:00:00.000001'", "'23:59:59.999999'"),
    "DATETIME": ("'1000-01-01 00:00:00'", "'9999-12-31 23:59:59'"),
    "DATETIME(3)": ("'1969-12-31 23:59:59.999'",),
    "DATETIME(6)": ("'2024-02-29 12:34:56.123456'", "'1969-12-31 23:59:59.999999'"),
    "TIMESTAMP(2) NULL": ("'2024-02-29 12:34:56.12'", "'2000-01-01 00:00:00'"),
    "POINT": ("POINT(1, 2)",),
}
"""By type: each is read by a snapshot, inserted, and moved to another key, and is what the server says it is."""


def _value(type_: str, literals: tuple[str, ...]) -> Case:
    def rows(first: int) -> str:
        return ", ".join(f"({first + number}, {text})" for number, text in enumerate((*literals, "NULL")))

    return Case(
        name="of_type_" + "".join(letter if letter.isalnum() else "_" for letter in type_).strip("_").lower(),
        before=(
            "SET SESSION sql_mode = ''",
            f"CREATE TABLE t (id INT PRIMARY KEY, v {type_})",
            f"INSERT INTO t VALUES {rows(0)}",
        ),
        stream=("SET SESSION sql_mode = ''", f"INSERT INTO t VALUES {rows(100)}"),
        stopped=("SET SESSION time_zone = '+05:00'", "UPDATE t SET id = id + 1000 WHERE id % 2 = 0"),
        said=(),
    )


CASES: Final[tuple[Case, ...]] = (
    *(*SHARED, *TABLES, *DDL, *KEYLESS, *CHANGES, *HIDDEN, *NEWER, *CASCADES, *KEYS),
    *(_value(*each) for each in VALUES.items()),
)
