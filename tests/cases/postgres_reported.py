"""What public bug reports of other tools tell of PostgreSQL, case by case."""

from __future__ import annotations

from typing import Final

from tests.cases.runner import Case

_PEOPLE: Final = ("CREATE TABLE t (id int PRIMARY KEY, v text, n int)", "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)")
_GONE: Final = "had was dropped before its events were read"
_NAMED: Final = (
    '"a%s" int PRIMARY KEY, "{}" int, before int, after text, op text, "back\\slash" int, "new\nline" int, " " int'
)
"""Names that something on the way might take for its own: placeholders, members of an event, what JSON escapes."""


TYPES_GONE: Final = (
    Case(
        name="a_domain_dropped",  # without a rewrite: it was an integer, and is one
        stopped=(
            "INSERT INTO t VALUES (5, 5); UPDATE t SET m = 7 WHERE id = 2; DELETE FROM t WHERE id = 1",
            "ALTER TABLE t ALTER COLUMN m TYPE int; DROP DOMAIN few",
        ),
        said=(f"column m {_GONE}",),
        before=(
            "CREATE DOMAIN few AS int CHECK (VALUE > 0)",
            "CREATE TABLE t (id int PRIMARY KEY, m few)",
            "INSERT INTO t VALUES (1, 1), (2, 2)",
        ),
    ),
    Case(
        name="a_domain_of_a_key_dropped",  # no row stays under what its key was taken for
        stopped=(
            "INSERT INTO t VALUES (5, 5)",
            "UPDATE t SET m = m + 1; DELETE FROM t WHERE id = 1",
            "ALTER TABLE t ALTER COLUMN id TYPE int; DROP DOMAIN few",
        ),
        said=(f"column id {_GONE}", "its key was dropped and made again"),  # ALTER … TYPE makes the constraint again
        before=(
            "CREATE DOMAIN few AS int CHECK (VALUE > 0)",
            "CREATE TABLE t (id few PRIMARY KEY, m int)",
            "INSERT INTO t VALUES (1, 1), (2, 2)",
        ),
    ),
    Case(
        name="an_enum_made_again",  # the usual way to take a label out of one
        before=(
            "CREATE TYPE mood AS ENUM ('sad', 'ok')",
            "CREATE TABLE t (id int PRIMARY KEY, m mood)",
            "INSERT INTO t VALUES (1, 'ok')",
        ),
        stopped=(
            "INSERT INTO t VALUES (5, 'sad')",
            (
                "ALTER TYPE mood RENAME TO mood_old; CREATE TYPE mood AS ENUM ('sad', 'ok', 'up');"
                "ALTER TABLE t ALTER COLUMN m TYPE mood USING m::text::mood;"
                "DROP TYPE mood_old"
            ),
            "INSERT INTO t VALUES (6, 'up')",
        ),
        comes_back=True,  # between the two it is of a type that nobody knows any more
    ),
)

GENERATED: Final = Case(
    name="generated_no_more",  # the rows have values that no event ever had
    before=(
        "CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED)",
        "INSERT INTO t VALUES (1), (2)",
    ),
    stopped=("ALTER TABLE t ALTER COLUMN g DROP EXPRESSION",),
    said=("column g is not generated any more",),
)

KEYS_CHANGED: Final = (
    Case(
        name="an_integer_key_that_became_too_small",  # the steps that every guide to bigint has
        before=_PEOPLE,
        stopped=(
            "ALTER TABLE t ADD COLUMN id_new bigint",
            "UPDATE t SET id_new = id",
            "ALTER TABLE t ALTER COLUMN id_new SET NOT NULL",
            (
                "BEGIN; ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t RENAME id TO id_old;"
                "ALTER TABLE t RENAME id_new TO id; ALTER TABLE t ADD PRIMARY KEY (id);"
                "ALTER TABLE t DROP COLUMN id_old; COMMIT"
            ),
            "INSERT INTO t (id, v) VALUES (9, 'n')",
            "UPDATE t SET v = 'z' WHERE id = 1",
        ),
    ),
    Case(
        name="a_key_that_is_printed_in_another_way",
        before=(
            *_PEOPLE,
            "CREATE TABLE u (id varchar(5) PRIMARY KEY, n int)",
            "INSERT INTO u VALUES ('a', 1), ('b', 2)",
            "CREATE TABLE w (id timestamp(3) PRIMARY KEY, n int)",
            "INSERT INTO w VALUES ('1970-01-01 00:00:01', 1), ('1970-01-01 00:16:40', 2), ('2024-02-29 12:34', 3)",
            "CREATE TABLE x (id int PRIMARY KEY, n int)",
            "INSERT INTO x VALUES (1, 1), (2, 2)",
        ),
        stopped=(
            *("ALTER TABLE t ALTER COLUMN id TYPE numeric(10,2)", "UPDATE t SET n = 9 WHERE id = 1"),
            *("ALTER TABLE u ALTER COLUMN id TYPE char(5)", "DELETE FROM u WHERE id = 'a'"),
            *("ALTER TABLE w ALTER COLUMN id TYPE timestamp(6)", "DELETE FROM w WHERE n = 2"),  # without a rewrite
            *("ALTER TABLE x ALTER COLUMN id TYPE text", "DELETE FROM x WHERE id = '2'"),
        ),
        tables=("t", "u", "w", "x"),
    ),
    Case(
        name="a_key_that_is_stored_out_of_line",  # an update does not send it, and it has not changed
        before=(
            "CREATE TABLE t (id text, b int, n int, PRIMARY KEY (id, b))",
            "ALTER TABLE t ALTER COLUMN id SET STORAGE EXTERNAL",
            "INSERT INTO t SELECT repeat(x::text, 2400), x, x FROM generate_series(1, 3) x",
        ),
        stream=("UPDATE t SET n = n + 1", "UPDATE t SET b = b + 10", "DELETE FROM t WHERE n = 4"),
        stopped=("UPDATE t SET n = n + 1",),
        said=(),
    ),
    Case(
        name="no_key_for_a_while",  # in which one row goes under the key of another
        before=_PEOPLE,
        stopped=(
            "ALTER TABLE t REPLICA IDENTITY FULL; ALTER TABLE t DROP CONSTRAINT t_pkey",
            *("INSERT INTO t VALUES (1, 'twin', 7)", "DELETE FROM t WHERE v = 'twin'"),
            "ALTER TABLE t ADD PRIMARY KEY (id); ALTER TABLE t REPLICA IDENTITY DEFAULT",
        ),
        said=("its key was dropped and made again",),
    ),
    Case(
        name="another_constraint_of_the_key",  # beside the first, which goes only after it: it was unique all the time
        before=(*_PEOPLE, "CREATE UNIQUE INDEX other ON t (id)"),
        stopped=(
            "REINDEX INDEX CONCURRENTLY t_pkey",
            "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD CONSTRAINT t_pkey PRIMARY KEY USING INDEX other",
            "UPDATE t SET v = 'x' WHERE id = 1",
        ),
        said=(),
    ),
    Case(
        name="an_index_of_the_key_made_again",
        before=_PEOPLE,
        stopped=(
            "REINDEX TABLE CONCURRENTLY t",
            "CREATE UNIQUE INDEX CONCURRENTLY other ON t (id)",
            "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD CONSTRAINT t_pkey PRIMARY KEY USING INDEX other",
            "CLUSTER t USING t_pkey",
            "UPDATE t SET v = 'x' WHERE id = 1",
        ),
        said=("its key was dropped and made again",),  # nobody looked while both indexes were there
    ),
)

STATEMENTS: Final = (
    Case(
        name="many_subtransactions",  # PL/pgSQL makes one for each block that has EXCEPTION
        before=_PEOPLE,
        stream=(
            (
                "DO $$ BEGIN FOR i IN 1..300 LOOP BEGIN INSERT INTO t VALUES (i + 10, 'v', i);"
                " UPDATE t SET n = n + 1 WHERE id = 1;"
                "IF i % 3 = 0 THEN RAISE EXCEPTION 'no'; END IF; EXCEPTION WHEN OTHERS THEN NULL; END; END LOOP; END $$"
            ),
        ),
        said=(),
    ),
    Case(
        name="truncated_in_a_savepoint",
        before=_PEOPLE,
        stream=(
            (
                "BEGIN; SAVEPOINT a; TRUNCATE t; INSERT INTO t VALUES (1, 'n', 1); ROLLBACK TO a;"
                "INSERT INTO t VALUES (3, 'c', 3); SAVEPOINT b; TRUNCATE t;"
                " INSERT INTO t VALUES (2, 'bb', 2); RELEASE b; COMMIT"
            ),
            "BEGIN; TRUNCATE t; COPY t FROM PROGRAM 'printf \"7\\\\tx\\\\t1\\\\n\"' WITH (FREEZE); COMMIT",
        ),
        said=(),
    ),
    Case(
        name="ddl_between_rows_of_a_transaction",
        before=_PEOPLE,
        stopped=(
            (
                "BEGIN; ALTER TABLE t ADD COLUMN x int; UPDATE t SET x = 1;"
                " INSERT INTO t VALUES (3, 'c', 3, 3); SAVEPOINT a;"
                "ALTER TABLE t DROP COLUMN v; INSERT INTO t VALUES (4, 4, 4); ROLLBACK TO a;"
                "INSERT INTO t VALUES (5, 'e', 5, 5); ALTER TABLE t RENAME COLUMN v TO w;"
                " UPDATE t SET w = 'q' WHERE id = 3; COMMIT"
            ),
        ),
    ),
    Case(
        name="truncated_with_those_that_refer_to_it",
        before=(*_PEOPLE, "CREATE TABLE c (id int PRIMARY KEY, t int REFERENCES t)", "INSERT INTO c VALUES (1, 1)"),
        stream=("TRUNCATE t CASCADE", "INSERT INTO t VALUES (5, 'z', 1); INSERT INTO c VALUES (5, 5)"),
        tables=("t", "c"),
        said=(),
    ),
    Case(
        name="written_under_an_origin",  # as by another tool's replication: not left out
        before=_PEOPLE,
        stream=(
            (
                "SELECT pg_replication_origin_create(current_schema());"
                "SELECT pg_replication_origin_session_setup(current_schema())"
            ),
            "INSERT INTO t VALUES (7, 'o', 7); UPDATE t SET v = 'o'",
            "SELECT pg_replication_origin_session_reset()",
            "SELECT pg_replication_origin_drop(current_schema())",
        ),
        said=(),
    ),
    Case(
        name="names_that_mean_something_elsewhere",
        before=(
            f"CREATE TABLE t ({_NAMED})",
            'INSERT INTO t ("a%s", "new\nline", "back\\slash", op) VALUES (1, 1, 1, \'d\')',
        ),
        stream=('UPDATE t SET "a%s" = 5, before = 9', 'INSERT INTO t ("a%s", "{}", after) VALUES (7, 7, \'null\')'),
        said=(),
    ),
)

TABLES_CHANGED: Final = (
    Case(
        name="a_table_that_becomes_a_partition_of_its_name",
        before=_PEOPLE,
        stopped=(
            (
                "BEGIN; ALTER TABLE t RENAME TO t_old;"
                " CREATE TABLE t (LIKE t_old, PRIMARY KEY (id)) PARTITION BY RANGE (id);"
                "ALTER TABLE t ATTACH PARTITION t_old FOR VALUES FROM (0) TO (100); COMMIT"
            ),
            "CREATE TABLE t_more PARTITION OF t FOR VALUES FROM (100) TO (200); INSERT INTO t VALUES (150, 'p', 1)",
            "UPDATE t SET v = 'up' WHERE id = 1",
        ),
    ),
    Case(
        name="a_schema_dropped_and_made_again",
        before=_PEOPLE,
        stopped=(
            "INSERT INTO t VALUES (3, 'c', 3)",
            "DO $$ BEGIN EXECUTE format('DROP SCHEMA %1$I CASCADE; CREATE SCHEMA %1$I', current_schema()); END $$",
            "CREATE TABLE t (id int PRIMARY KEY, v text)",
            "INSERT INTO t VALUES (9, 'n')",
        ),
    ),
    Case(
        name="a_name_taken_from_another",
        before=(*_PEOPLE, "CREATE TABLE u (id int PRIMARY KEY, v text, n int)", "INSERT INTO u VALUES (7, 'u', 7)"),
        stopped=("DROP TABLE u; ALTER TABLE t RENAME TO u", "INSERT INTO u VALUES (5, 'x', 5)"),
        tables=("u",),
    ),
    Case(
        name="a_default_partition_that_gives_rows_away",
        before=(
            "CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
            "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
            "CREATE TABLE d PARTITION OF t DEFAULT",
            "INSERT INTO t VALUES (1, 'a'), (25, 'x'), (35, 'y')",
        ),
        stopped=(
            (
                "BEGIN; ALTER TABLE t DETACH PARTITION d; CREATE TABLE t_9 PARTITION OF t FOR VALUES FROM (20) TO (30);"
                "INSERT INTO t SELECT * FROM d WHERE id < 30; DELETE FROM d WHERE id < 30;"
                "ALTER TABLE t ATTACH PARTITION d DEFAULT; COMMIT"
            ),
            "UPDATE t SET v = v || '!' WHERE id > 20",
        ),
    ),
    Case(
        name="an_unlogged_table_that_is_logged_later",  # left out, and said so, until it is
        before=(*_PEOPLE, "CREATE UNLOGGED TABLE z (id int PRIMARY KEY)", "INSERT INTO z VALUES (1)"),
        stopped=("INSERT INTO z VALUES (2)", "ALTER TABLE z SET LOGGED", "INSERT INTO z VALUES (3)"),
        tables=("t", "z"),
    ),
)


def _ends(name: str, said: str, *statements: str, stopped: bool = True) -> Case:
    """A table whose topic is written no more: its readers must be told."""
    return Case(
        name=name,
        before=(*_PEOPLE, "CREATE TABLE p (id int PRIMARY KEY, v text, n int) PARTITION BY RANGE (id)"),
        stream=() if stopped else statements,
        stopped=statements if stopped else (),
        said=(said,),
        rows_differ="nothing is taken away from what its readers have",
    )


_ATTACH: Final = "ALTER TABLE p ATTACH PARTITION t FOR VALUES FROM (0) TO (10)"
ENDED: Final = (
    _ends(
        "a_table_that_is_a_partition_by_now", "it is a partition of case_a_table_that_is_a_partition_by_now.p", _ATTACH
    ),
    _ends("a_table_that_becomes_a_partition", "it is a partition of", _ATTACH, stopped=False),
    _ends("a_table_that_is_dropped", "it was dropped", "DROP TABLE t"),
    _ends("a_table_dropped_for_a_view", "it was dropped", "DROP TABLE t; CREATE VIEW t AS SELECT 1 AS id"),
    _ends(
        "a_table_with_another_name_by_now", "it is case_a_table_with_another_name_by_now.u", "ALTER TABLE t RENAME TO u"
    ),
)

_BY_CODE: Final = "ALTER TABLE z_1 REPLICA IDENTITY USING INDEX z_1_code"
_BY_KEY: Final = "ALTER TABLE z_1 REPLICA IDENTITY DEFAULT"
_REGIONS: Final = (
    "CREATE TABLE t (region int, id int, code int NOT NULL, PRIMARY KEY (region, id)) PARTITION BY LIST (region)",
    "CREATE TABLE z_1 PARTITION OF t FOR VALUES IN (1); CREATE TABLE z_2 PARTITION OF t FOR VALUES IN (2)",
    "INSERT INTO t VALUES (1, 1, 11), (1, 2, 12), (2, 3, 13), (2, 4, 14)",
    "CREATE UNIQUE INDEX z_1_code ON z_1 (code)",
)
PARTITIONS: Final = (
    Case(
        name="a_partition_that_was_not_in_the_log",  # and was made where it is, so that it brought no rows
        before=_REGIONS[:1],
        stopped=(
            "CREATE UNLOGGED TABLE z_1 PARTITION OF t FOR VALUES IN (1)",
            *("INSERT INTO t VALUES (1, 1, 1)", "ALTER TABLE z_1 SET LOGGED", "INSERT INTO t VALUES (1, 2, 2)"),
        ),
        said=("partition z_1 was attached with the rows it had, or was not in the log before",),
    ),
    Case(
        name="a_partition_of_another_identity_for_a_while",  # its rows are described as the root's; the root's stays
        before=_REGIONS,
        stopped=(_BY_CODE, "UPDATE t SET id = 5 WHERE id = 1", _BY_KEY),
        said=("a partition had another replica identity for a time",),
    ),
    Case(
        name="deletes_of_a_partition_of_another_identity",  # which do not say what was deleted
        before=_REGIONS,
        stream=(_BY_CODE, "DELETE FROM t WHERE id = 2", "UPDATE t SET code = 77, id = 9 WHERE id = 1", _BY_KEY),
        stopped=(_BY_CODE, "DELETE FROM t WHERE id = 9", _BY_KEY, "INSERT INTO t VALUES (1, 9, 78)"),
        live=True,
    ),
    Case(
        name="a_partition_that_sends_whole_rows",
        before=(*_REGIONS, "ALTER TABLE z_1 REPLICA IDENTITY FULL"),
        stream=("UPDATE t SET id = 5 WHERE id = 1", _BY_KEY, "UPDATE t SET region = 2 WHERE id = 5"),
        stopped=("DELETE FROM t WHERE id = 2", "UPDATE t SET region = 1, id = id + 10 WHERE region = 2"),
        said=(),
    ),
)

_IN_18: Final = "CREATE TABLE t (id int4range, valid daterange, v text, PRIMARY KEY (id, valid WITHOUT OVERLAPS))"
_LABELS: Final = "ALTER TYPE mood RENAME VALUE 'a' TO 'aa'"
UNUSUAL: Final = (
    Case(
        name="a_key_over_time",  # PostgreSQL 18
        before=(
            (
                "DO $$ BEGIN IF current_setting('server_version_num')::int >= 180000 THEN "
                f"EXECUTE '{_IN_18}'; ELSE EXECUTE '{_IN_18.replace(' WITHOUT OVERLAPS', '')}'; END IF; END $$"
            ),
            "INSERT INTO t SELECT int4range(n, n, '[]'), '[2020-01-01,2021-01-01)' FROM generate_series(1, 4) n",
        ),
        stream=(
            "UPDATE t SET valid = daterange('2020-06-01', '2021-01-01') WHERE id @> 1",
            "DELETE FROM t WHERE id @> 2",
            "INSERT INTO t VALUES ('[1,2)', '[2019-01-01,2020-01-01)', 'x')",
        ),
        stopped=("UPDATE t SET v = 'y' WHERE id @> 3", "UPDATE t SET id = '[9,10)' WHERE id @> 4"),
        said=(),
    ),
    Case(
        name="types_named_as_those_of_extensions",
        before=(
            "CREATE TYPE hstore AS (a int, b text); CREATE TYPE vector AS (x float8, y float8)",
            "CREATE TYPE geometry AS ENUM ('circle'); CREATE TYPE halfvec AS RANGE (subtype = int4)",
            "CREATE TABLE t (id int PRIMARY KEY, h hstore, v vector, g geometry, r halfvec, hh hstore[])",
            """INSERT INTO t VALUES (1, '(1,x)', '(1,2)', 'circle', '[1,5)', '{"(1,x)"}')""",
        ),
        stream=("UPDATE t SET id = 2", "INSERT INTO t (id) VALUES (7)"),
        select={"t": "SELECT id, h::text, v::text, g::text, r::text, hh::text[] FROM t"},
        said=(),
    ),
    Case(
        name="ranges_of_labels",
        before=(
            "CREATE TYPE mood AS ENUM ('a', 'b')",
            "CREATE TYPE moods AS RANGE (subtype = mood, multirange_type_name = many)",
            "CREATE TABLE t (id int PRIMARY KEY, r moods, m many, a moods[])",
            "INSERT INTO t VALUES (1, '[a,b]', '{[a,b]}', '{\"[a,b]\"}')",
        ),
        stopped=(_LABELS,),
        select={"t": "SELECT id, r::text, m::text, a::text[] FROM t"},
        said=("type mood has other labels",),
    ),
    Case(
        name="a_row_of_another_table_as_a_value",
        before=(*_PEOPLE, "CREATE TABLE u (id int PRIMARY KEY, r t)", "INSERT INTO u VALUES (1, '(1,a,1)'), (2, NULL)"),
        stream=("ALTER TABLE t DROP COLUMN v",),
        tables=("u",),
        select={"u": "SELECT id, r::text FROM u"},
        live=True,
    ),
    Case(
        name="schemas_swapped",
        before=(
            *(*_PEOPLE, "CREATE SCHEMA case_schemas_swapped_b"),
            "CREATE TABLE case_schemas_swapped_b.t (LIKE t INCLUDING ALL)",
            "INSERT INTO case_schemas_swapped_b.t VALUES (1, 'other', 7), (50, 'other', 8)",
        ),
        stopped=(
            "INSERT INTO t VALUES (3, 'c', 3)",
            (
                "BEGIN; ALTER SCHEMA case_schemas_swapped RENAME TO swapping; "
                "ALTER SCHEMA case_schemas_swapped_b RENAME TO case_schemas_swapped; "
                "ALTER SCHEMA swapping RENAME TO case_schemas_swapped_b; COMMIT"
            ),
            "INSERT INTO t VALUES (4, 'd', 4); INSERT INTO case_schemas_swapped_b.t VALUES (5, 'e', 5)",
        ),
    ),
)

REPORTED: Final[tuple[Case, ...]] = (
    *TYPES_GONE,
    GENERATED,
    *KEYS_CHANGED,
    *STATEMENTS,
    *TABLES_CHANGED,
    *ENDED,
    *PARTITIONS,
    *UNUSUAL,
)
