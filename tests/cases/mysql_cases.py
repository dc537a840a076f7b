"""What is done to tables of MySQL and MariaDB, case by case."""

from __future__ import annotations

from typing import Final

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
    "DOUBLE": ("1e300", "0.1", "5e-324", "-1.7976931348623157e308"),
    "CHAR(5)": ("'ab'", "''", "'  x'"),
    "VARCHAR(20) CHARACTER SET latin1": ("'é'", "'a  '"),
    "VARCHAR(20) COLLATE utf8mb4_bin": ("'Ünï 😀'", "'NULL'"),
    "TEXT CHARACTER SET utf16": ("'x'", "'日本'"),
    "BINARY(4)": ("'a'", "x'00ff0000'"),
    "VARBINARY(9)": ("x'00ff00'", "x''"),
    "BLOB": ("x''", "REPEAT(x'00ff', 300)"),
    "ENUM('a', 'b,c')": ("'b,c'", "'a'"),
    "SET('x', 'y', 'z')": ("'x,z'", "''"),
    "JSON": ("""'{"b": [1, 2.50], "a": "é"}'""", "'null'", "'[]'"),
    "BIT(1)": ("b'1'", "b'0'"),
    "BIT(9)": ("b'100000001'", "b'0'"),
    "DATE": ("'2024-02-29'", "'1969-12-31'", "'1000-01-01'", "'9999-12-31'"),
    "YEAR": ("2024", "1901", "0"),
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


CASES: Final[tuple[Case, ...]] = (*SHARED, *TABLES, *(_value(*each) for each in VALUES.items()))
