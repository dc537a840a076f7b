"""What is done to tables of PostgreSQL, case by case."""

from __future__ import annotations

from typing import Final

from tests.cases.postgres_for_a_while import FOR_A_WHILE, PEOPLE, TYPES
from tests.cases.postgres_reported import REPORTED
from tests.cases.runner import Case
from tests.cases.shared_cases import SHARED

WIDE: Final = "(SELECT string_agg(md5('{0}' || x), '') FROM generate_series(1, 400) x)"
"""12,800 characters that cannot be compressed."""

_MOODS: Final = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE TABLE t (id int PRIMARY KEY, v varchar(5), d numeric(5,2), m mood)",
    "INSERT INTO t VALUES (1, 'a', 1.5, 'ok')",
)


_OLDER_SHAPE: Final = "older rows keep the columns of their time"


_SHORT: Final = (
    "CREATE TABLE t (id int PRIMARY KEY, v varchar(5), n int)",
    "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)",
)


def _silent(name: str, statement: str, said: str, *, before: tuple[str, ...] = PEOPLE) -> tuple[Case, Case]:
    """Values that change without events: noticed in the stream; and at a start, also where no row is written after."""
    words = (said,)
    live = Case(
        name=f"{name}_in_the_stream",
        before=before,
        stream=["UPDATE t SET n = 7 WHERE id = 1", statement, "DELETE FROM t WHERE id = 2"],
        stopped=["INSERT INTO t (id) VALUES (3)"],
        said=words,
    )
    return live, Case(name=f"{name}_while_stopped", before=before, stopped=[statement], said=words)


def _harmless(name: str, *statements: str, rows_differ: str = "", before: tuple[str, ...] = _MOODS) -> Case:
    """What leaves values alone: rows are not read again without need, which costs as much as a snapshot."""
    stopped = [*statements, "INSERT INTO t (id, v) VALUES (2, 'b')"]
    return Case(name=name, before=before, stopped=stopped, said=(), rows_differ=rows_differ)


_PARTITIONED: Final = (
    "CREATE TABLE t (id int, v text, n int, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
    "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (10) TO (20)",
    "CREATE TABLE t_3 (id int PRIMARY KEY, v text, n int)",
    "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2), (11, 'k', 1)",
    "INSERT INTO t_3 VALUES (21, 'u', 1)",
)
_NETWORKS: Final = (
    "CREATE TABLE t (id int PRIMARY KEY, v cidr, n int)",
    "INSERT INTO t VALUES (1, '10.0.0.1/32', 1), (2, '10.0.0.0/8', 1)",
)
_NAMED: Final = "{} is another column than before under that name"


_REWRITTEN: Final = "its rows were rewritten without events, or another table has taken its name"

SILENT: Final = (
    Case(
        name="a_column_that_comes_back",  # another one: between the two the table was described, and looked at
        before=PEOPLE,
        stream=["ALTER TABLE t DROP COLUMN v", "UPDATE t SET n = 7 WHERE id = 1"],
        stopped=["ALTER TABLE t ADD COLUMN v text", "INSERT INTO t (id) VALUES (3)"],
        said=["column v is another column than before under that name"],
        comes_back=True,
    ),
    *_silent("same_type", "ALTER TABLE t ALTER COLUMN v TYPE text USING upper(v)", _REWRITTEN),
    *_silent("another_type", "ALTER TABLE t ALTER COLUMN n TYPE text USING n || '!'", _REWRITTEN),
    *_silent(
        "a_default",
        "ALTER TABLE t ADD COLUMN more int DEFAULT 7",
        "column more was added with a default, which older rows have without an event",
    ),
    *_silent("a_default_of_each_row", "ALTER TABLE t ADD COLUMN more float DEFAULT random()", _REWRITTEN),
    *_silent("a_name", "ALTER TABLE t RENAME COLUMN v TO w", "column w had another name"),
    *_silent(
        "a_name_where_another_column_went",  # no place in the order of columns tells which one was renamed
        "ALTER TABLE t DROP COLUMN v; ALTER TABLE t RENAME n TO w",
        "column w had another name",
    ),
    *_silent(
        "a_name_and_a_wider_type",
        "ALTER TABLE t RENAME v TO w; ALTER TABLE t ALTER w TYPE varchar(9)",
        "column w had another name",
        before=_SHORT,
    ),
    *_silent("a_column_made_again", "ALTER TABLE t DROP COLUMN v, ADD COLUMN v text", _NAMED.format("column v")),
    *_silent(
        "a_last_column_made_again",  # the description stays as it is
        "ALTER TABLE t DROP COLUMN n, ADD COLUMN n int DEFAULT 5",
        _NAMED.format("column n"),
    ),
    *_silent(
        "names_swapped",
        "ALTER TABLE t RENAME v TO x; ALTER TABLE t RENAME n TO v; ALTER TABLE t RENAME x TO n",
        _NAMED.format("column n, v"),
    ),
    *_silent(
        "names_swapped_of_one_type",
        "ALTER TABLE t RENAME v TO x; ALTER TABLE t RENAME n TO v; ALTER TABLE t RENAME x TO n",
        _NAMED.format("column n, v"),
        before=("CREATE TABLE t (id int PRIMARY KEY, v int, n int)", "INSERT INTO t VALUES (1, 5, 1), (2, 6, 2)"),
    ),
    *_silent(
        "another_type_of_the_same_bits",
        "ALTER TABLE t ALTER COLUMN v TYPE inet",
        "column v has another type, which prints values in another way",
        before=_NETWORKS,
    ),
    *_silent(
        "zones",  # without a rewrite, where the session is in UTC
        "SET timezone = 'UTC'; ALTER TABLE t ALTER COLUMN v TYPE timestamptz",
        "column v has another type, which prints values in another way",
        before=(
            "CREATE TABLE t (id int PRIMARY KEY, v timestamp, n int)",
            "INSERT INTO t VALUES (1, '2024-02-29 12:34', 1), (2, now(), 1)",
        ),
    ),
    *_silent(
        "a_default_of_partitions",
        "ALTER TABLE t ADD COLUMN more int DEFAULT 7",
        "column more was added with a default, which older rows have without an event",
        before=_PARTITIONED,
    ),
    *_silent("a_label", "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", "type mood has other labels", before=TYPES),
    *_silent("attributes", "ALTER TYPE pair ADD ATTRIBUTE y int", "type pair has other attributes", before=TYPES),
    *_silent(
        "a_partition_detached",
        "ALTER TABLE t DETACH PARTITION t_2",
        "a partition was detached or dropped",
        before=_PARTITIONED,
    ),
    *_silent("a_partition_dropped", "DROP TABLE t_2", "a partition was detached or dropped", before=_PARTITIONED),
    *_silent(
        "a_partition_attached",
        "ALTER TABLE t ATTACH PARTITION t_3 FOR VALUES FROM (20) TO (30)",
        "partition t_3 was attached with the rows it had",
        before=_PARTITIONED,
    ),
    *_silent(
        "a_partition_made_filled_and_attached_at_once",
        "BEGIN; CREATE TABLE t_4 (LIKE t INCLUDING ALL); INSERT INTO t_4 VALUES (31, 'z', 1); "
        "ALTER TABLE t ATTACH PARTITION t_4 FOR VALUES FROM (30) TO (40); COMMIT",
        "partition t_4 was attached with the rows it had",
        before=_PARTITIONED,
    ),
    Case(
        name="partitions_that_come_empty",  # as pg_partman makes them, ahead of their rows
        before=_PARTITIONED,
        stream=[
            *("BEGIN", "CREATE TABLE t_5 (LIKE t INCLUDING ALL)"),
            *("ALTER TABLE t ATTACH PARTITION t_5 FOR VALUES FROM (40) TO (50)", "COMMIT"),
            "UPDATE t SET n = 5 WHERE id < 10",
        ],
        stopped=[
            *(
                "CREATE TABLE t_6 (LIKE t INCLUDING ALL)",
                "ALTER TABLE t ATTACH PARTITION t_6 FOR VALUES FROM (50) TO (60)",
            ),
            "UPDATE t SET n = 6 WHERE id < 10",
        ],
        said=(),
    ),
    *_silent(
        "a_partition_away_for_a_while",
        "ALTER TABLE t DETACH PARTITION t_2; UPDATE t_2 SET n = 9; "
        "ALTER TABLE t ATTACH PARTITION t_2 FOR VALUES FROM (10) TO (20)",
        "partition t_2 was detached and attached again",
        before=_PARTITIONED,
    ),
    Case(
        name="a_partition_that_nobody_has_seen",  # made and dropped between two looks: just the log has told of it
        before=_PARTITIONED,
        stream=[
            "CREATE TABLE t_4 PARTITION OF t FOR VALUES FROM (30) TO (40)",
            *("INSERT INTO t VALUES (31, 'z', 1), (12, 'm', 1)", "DROP TABLE t_4"),
            *("ALTER TABLE t ATTACH PARTITION t_3 FOR VALUES FROM (20) TO (30)", "UPDATE t SET n = 2 WHERE id = 21"),
            "ALTER TABLE t DETACH PARTITION t_3",
        ],
        stopped=[
            "CREATE TABLE t_4 PARTITION OF t FOR VALUES FROM (30) TO (40)",
            *("INSERT INTO t VALUES (32, 'z', 1), (13, 'm', 1)", "DROP TABLE t_4"),
        ],
        tables=("t", "t_3"),
        live=True,
        settled=True,
    ),
    Case(
        name="a_partition_for_a_while_of_a_table_that_is_read_again",  # behind what the log has of it
        before=_PARTITIONED,
        stopped=[
            *("ALTER TABLE t ATTACH PARTITION t_3 FOR VALUES FROM (20) TO (30)", "UPDATE t SET n = 2 WHERE id = 21"),
            *("ALTER TABLE t DETACH PARTITION t_3", "ALTER TABLE t DETACH PARTITION t_2"),
        ],
        tables=("t", "t_3"),
        settled=True,
    ),
    Case(
        name="truncated_beside_a_table_of_partitions",  # which is none of them
        before=(*_PARTITIONED, "CREATE TABLE w (id int PRIMARY KEY)", "INSERT INTO w VALUES (1)"),
        stopped=[
            "TRUNCATE t, w",
            "INSERT INTO w VALUES (2)",
            "INSERT INTO t VALUES (3)",
            "TRUNCATE t",
            "DELETE FROM w",
        ],
        said=["was truncated, which no event tells if it was by itself"],
    ),
    Case(
        name="rows_of_a_partition_that_goes",  # of the log that is still to be read when it has gone
        before=_PARTITIONED,
        stopped=["INSERT INTO t VALUES (12, 'x', 1), (3, 'x', 1)", "DROP TABLE t_2", "UPDATE t SET n = 9 WHERE id = 1"],
        said=["a partition was detached or dropped"],
    ),
    Case(
        name="rows_of_a_table_that_goes",
        before=PEOPLE,
        stopped=[
            "INSERT INTO t VALUES (3, 'c', 3); UPDATE t SET n = 5 WHERE id = 1",
            "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v text, n int); INSERT INTO t VALUES (4, 'd', 4)",
        ],
    ),
    *_silent("a_partition_truncated", "TRUNCATE t_2", "partition t_2 was truncated", before=_PARTITIONED),
)

HARMLESS: Final = (
    _harmless("truncated", "TRUNCATE t"),
    _harmless("vacuumed", "VACUUM FULL t"),
    _harmless("a_wider_type", "ALTER TABLE t ALTER COLUMN v TYPE varchar(9)"),
    _harmless("an_unlimited_type", "ALTER TABLE t ALTER COLUMN v TYPE text"),
    _harmless("more_digits", "ALTER TABLE t ALTER COLUMN d TYPE numeric(9,2)"),
    _harmless("a_column_more", "ALTER TABLE t ADD COLUMN more int", rows_differ=_OLDER_SHAPE),
    _harmless(
        "columns_that_come_and_go",  # the log is behind the catalog
        *(
            "ALTER TABLE t ADD COLUMN more int",
            "INSERT INTO t (id, v) VALUES (3, 'c')",
            "ALTER TABLE t ADD COLUMN o int",
        ),
        *("INSERT INTO t (id, v) VALUES (4, 'd')", "ALTER TABLE t DROP COLUMN d", "DELETE FROM t WHERE id = 3"),
        *("ALTER TABLE t ADD COLUMN last int", "UPDATE t SET v = 'e' WHERE id = 4"),
        rows_differ=_OLDER_SHAPE,
    ),
    _harmless("a_column_less", "ALTER TABLE t DROP COLUMN d", rows_differ=_OLDER_SHAPE),
    _harmless(
        "a_default_and_statistics",
        "ALTER TABLE t ALTER COLUMN d SET DEFAULT 1, ALTER COLUMN v SET STATISTICS 10, ALTER COLUMN v SET NOT NULL",
    ),
    _harmless("an_enum_grown", "ALTER TYPE mood ADD VALUE 'better' BEFORE 'sad'"),
    _harmless("a_domain", "CREATE DOMAIN word AS varchar", "ALTER TABLE t ALTER COLUMN v TYPE word"),
    _harmless(
        "a_column_gone_another_come",
        "ALTER TABLE t DROP COLUMN d",
        "ALTER TABLE t ADD COLUMN more int",
        rows_differ=_OLDER_SHAPE,
    ),
    _harmless("a_generated_column", "ALTER TABLE t ADD COLUMN g int GENERATED ALWAYS AS (id * 2) STORED"),
    _harmless("a_type_renamed", "ALTER TYPE mood RENAME TO humour"),
    _harmless(
        "a_partition_more",
        "CREATE TABLE t_4 PARTITION OF t FOR VALUES FROM (30) TO (40)",
        "INSERT INTO t VALUES (31, 'z')",
        "DELETE FROM t WHERE id = 2",
        "VACUUM FULL t_1",
        before=_PARTITIONED,
    ),
)

_WIDE_TABLE: Final = (
    "CREATE TABLE t (id int PRIMARY KEY, n int, v text)",
    "ALTER TABLE t ALTER COLUMN v SET STORAGE EXTERNAL",
    "INSERT INTO t SELECT n, 0, 'seed' FROM generate_series(1, 1500) n",
    f"UPDATE t SET v = {WIDE.format('w')} || id WHERE id < 5",
)


def _altered(name: str, statement: str) -> Case:
    """DDL under a running connector: rows that nobody writes to again end as in the table, none under an old key."""
    stopped = ["UPDATE t SET n = n + 1 WHERE id IN (1, 4, 100)"]
    return Case(name=f"{name}_with_wide_values", before=_WIDE_TABLE, stream=[statement], stopped=stopped)


ALTERED: Final = (
    _altered("rewritten", "ALTER TABLE t ALTER COLUMN v TYPE text USING upper(v)"),
    _altered("another_key", "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY (n, id)"),
    _altered("renamed", "ALTER TABLE t RENAME COLUMN v TO w"),
    _altered("a_default", "ALTER TABLE t ADD COLUMN d int DEFAULT 5"),
    Case(
        name="a_wide_column_renamed",  # an out-of-line value is known by its column's new name too
        before=_WIDE_TABLE,
        stopped=["ALTER TABLE t RENAME COLUMN v TO content", "UPDATE t SET n = 1"],
        said=["column content had another name: its rows are read again"],
    ),
    Case(
        name="wide_columns_renamed_crosswise",  # never is one's value the other's
        before=(
            "CREATE TABLE t (id int PRIMARY KEY, n int, a text, b text)",
            "ALTER TABLE t ALTER COLUMN a SET STORAGE EXTERNAL, ALTER COLUMN b SET STORAGE EXTERNAL",
            f"INSERT INTO t VALUES (1, 0, {WIDE.format('a')}, {WIDE.format('b')})",
        ),
        stopped=[
            "ALTER TABLE t RENAME COLUMN a TO x",
            "ALTER TABLE t RENAME COLUMN b TO a",
            "ALTER TABLE t RENAME COLUMN x TO b",
            "UPDATE t SET n = 1",
        ],
    ),
    Case(
        name="generated_columns",  # stored, and virtual where the server has them: in no event
        before=(
            "CREATE TABLE t (id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) STORED, z text)",
            "INSERT INTO t (id, a, z) VALUES (1, 1, 'z')",
            """
            DO $$ BEGIN
                IF current_setting('server_version_num')::int >= 180000 THEN
                    EXECUTE 'ALTER TABLE t ADD COLUMN v int GENERATED ALWAYS AS (a * 3) VIRTUAL';
                END IF;
            END $$
            """,
        ),
        stream=["INSERT INTO t (id, a, z) VALUES (2, 2, 'z')", "UPDATE t SET a = 5", "DELETE FROM t WHERE id = 1"],
        moves={
            "t": [
                ("c", None, {"id": 2, "a": 2, "z": "z"}),
                ("u", None, {"id": 1, "a": 5, "z": "z"}),
                ("u", None, {"id": 2, "a": 5, "z": "z"}),
                ("d", {"id": 1}, None),
            ]
        },
    ),
)

VALUES: Final[dict[str, tuple[str, ...]]] = {
    "smallint": ("-32768", "32767"),
    "bigint": ("-9223372036854775808", "9223372036854775807"),
    "oid": ("0", "4294967295"),
    "numeric": ("NaN", "Infinity", "22.2200", "-0.00", "1e-100", "1e30"),
    "numeric(10,2)": ("99999999.99", "-1", "NaN"),
    "real": ("NaN", "-Infinity", "3.3", "1e20"),
    "double precision": ("NaN", "Infinity", "0.1", "5e-324", "1.7976931348623157e308"),
    "boolean": ("true", "false"),
    "text": ("", "NULL", "\\N", "a\tb\\tc\r\n", '"', " ", "\u2028 é 日本 😀"),
    "character varying(20)": ("Ünïcode",),
    "character(5)": ("ab", "", "  x"),
    "uuid": ("A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",),
    "bytea": ("", "\\x00", "\\x00ff"),
    "json": ('{"a" : 1,  "a": 1.00}', "null"),
    "jsonb": ('{"b": [1, 2, {"c": null}], "a": "\\"\\\\"}', "1.10"),
    "date": ("1970-01-01", "1969-12-31", "2024-02-29", "0005-02-28 BC", "5874897-12-31"),
    "time": ("00:00:00", "24:00:00", "23:59:59.999999"),
    "timestamp": ("2024-02-29 12:34:56.789012", "1969-12-31 23:59:59.999999", "0044-03-15 12:00 BC"),
    "timestamp with time zone": (
        "2024-03-31 02:30:00+02",
        "2024-02-29 12:34:56.7+00",
        "1883-11-18 12:03:57.25-04:56:02",
    ),
    "inet": ("::1", "10.0.0.1/8", "192.168.0.1"),
    "int4range": ("[1,5)", "empty", "(,)"),
    "text[]": ("{}", "{NULL}", '{"NULL"}', '{{"a,b","{"},{"}",NULL}}'),
    "integer[]": ("{}", "{NULL}", "{{1,2},{NULL,4}}"),
}
"""By type: each is read by a snapshot, inserted, and moved to another key, and is what the server says it is."""


def _value(type_: str, literals: tuple[str, ...]) -> Case:
    quoted = ["'" + text.replace("'", "''") + "'" for text in (*literals,)]
    rows = ", ".join(f"({number}, {text})" for number, text in enumerate([*quoted, "NULL"]))
    more = ", ".join(f"({100 + number}, {text})" for number, text in enumerate([*quoted, "NULL"]))
    return Case(
        name="of_type_" + "".join(letter if letter.isalnum() else "_" for letter in type_),
        before=[f"CREATE TABLE t (id int PRIMARY KEY, v {type_})", f"INSERT INTO t VALUES {rows}"],
        stream=[f"INSERT INTO t VALUES {more}"],
        stopped=["UPDATE t SET id = id + 1000 WHERE id % 2 = 0"],
        said=(),
    )


_DEFERRED: Final = "BEGIN; SET CONSTRAINTS ALL DEFERRED"
_TWICE: Final = "UPDATE t SET pos = pos + 1; UPDATE t SET pos = pos + 1, v = v || pos"
_SOME_BACK: Final = "UPDATE t SET pos = pos - 1 WHERE id > 2; UPDATE t SET pos = 1 WHERE id = 2"

KEYS: Final = (
    Case(
        name="columns_that_a_key_includes",  # they are in the index, not in the key
        before=(
            "CREATE TABLE t (id int, note text, tenant int, PRIMARY KEY (tenant, id) INCLUDE (note))",
            "CREATE TABLE u (note text NOT NULL, a int NOT NULL)",
            "CREATE UNIQUE INDEX u_a ON u (a) INCLUDE (note)",
            "ALTER TABLE u REPLICA IDENTITY USING INDEX u_a",
            "INSERT INTO t VALUES (1, 'a', 7), (2, 'b', 7); INSERT INTO u VALUES ('a', 1), ('b', 2)",
        ),
        stream=["UPDATE t SET note = note || '!'", "UPDATE u SET note = note || '!'"],
        stopped=[
            "UPDATE t SET tenant = 8 WHERE id = 1",
            "UPDATE u SET a = 8 WHERE a = 1",
            "DELETE FROM t WHERE id = 2",
        ],
        tables=("t", "u"),
        said=(),
    ),
    Case(
        name="rows_that_pass_through_one_key",  # a deferrable key is unique at the end of a statement or transaction
        before=(
            "CREATE TABLE t (id int, pos int PRIMARY KEY DEFERRABLE, v text)",
            "ALTER TABLE t ALTER COLUMN v SET STORAGE EXTERNAL",
            "ALTER TABLE t REPLICA IDENTITY FULL",
            f"INSERT INTO t SELECT n, n, {WIDE.format('v')} || n FROM generate_series(1, 5) n",
        ),
        stream=[
            "UPDATE t SET pos = pos + 1",
            f"{_DEFERRED}; UPDATE t SET pos = 7 - pos WHERE pos IN (3, 4); COMMIT",
            f"{_DEFERRED}; INSERT INTO t VALUES (9, 2, 'new'); DELETE FROM t WHERE id = 1; COMMIT",
            f"{_DEFERRED}; INSERT INTO t VALUES (8, 5, 'gone'); DELETE FROM t WHERE id = 8; COMMIT",
        ],
        stopped=[
            "UPDATE t SET pos = pos - 1",
            f"{_DEFERRED}; {_TWICE}; {_SOME_BACK}; COMMIT",
        ],
        said=(),
    ),
    Case(
        name="tables_that_inherit",  # each has its own rows; ONLY, everywhere
        before=(
            "CREATE TABLE t (id int PRIMARY KEY, v text)",
            "CREATE TABLE child (more int, PRIMARY KEY (id)) INHERITS (t)",
            "INSERT INTO t VALUES (1, 'a'); INSERT INTO child VALUES (1, 'b', 2), (2, 'b', 3)",
        ),
        stream=["UPDATE t SET v = v || '!'", "INSERT INTO child VALUES (3, 'c', 4)"],
        stopped=["DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (2, 'z')"],
        tables=("t", "child"),
        select={"t": "SELECT id, v FROM ONLY t"},
        said=(),
    ),
)

CASES: Final[tuple[Case, ...]] = (
    *(*SHARED, *SILENT, *HARMLESS, *ALTERED, *KEYS, *FOR_A_WHILE, *REPORTED),
    *(_value(*each) for each in VALUES.items()),
)
