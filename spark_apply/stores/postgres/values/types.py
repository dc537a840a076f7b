"""Maps derived columns to PostgreSQL: types, values as text of COPY, and documents by SQL.

    stored by Spark as        in PostgreSQL
    INT, BIGINT, BOOLEAN      integer, bigint, boolean
    DECIMAL(p,s)              numeric(p,s)
    FLOAT, DOUBLE             real, double precision
    BINARY                    bytea
    DATE                      date
    TIMESTAMP_NTZ, TIMESTAMP  timestamp, timestamptz
    STRUCT, ARRAY             jsonb, as `spark_apply.model.document` has them
    STRING                    numeric for decimals that Spark cannot hold, json for json, else text

See https://www.postgresql.org/docs/current/sql-copy.html#SQL-COPY-FILE-FORMATS (text format).
"""

from __future__ import annotations

from collections.abc import Iterable

from psycopg2 import sql
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812 - the same

from spark_apply.model.document import readable
from spark_apply.model.target_table import TargetColumn
from spark_apply.model.types import spark_type
from spark_apply.spark.names import quoted

_NULL = "\\N"
_ESCAPES = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_LAST_YEAR = 9999

_TYPES: dict[type[T.DataType], str] = {
    T.BooleanType: "boolean",
    T.IntegerType: "integer",
    T.LongType: "bigint",
    T.FloatType: "real",
    T.DoubleType: "double precision",
    T.BinaryType: "bytea",
    T.DateType: "date",
    T.TimestampNTZType: "timestamp without time zone",
    T.TimestampType: "timestamp with time zone",
    T.StructType: "jsonb",
    T.ArrayType: "jsonb",
}

_WIDER = {
    ("integer", "bigint"),
    ("real", "double precision"),
    ("numeric", "text"),
    ("json", "text"),
}

_DOCUMENTS = {
    "numeric": "{0}::text",
    "json": "{0}::text",
    "bytea": r"translate(encode({0}, 'base64'), E'\n', '')",
    "date": (
        "CASE WHEN {0} > '9999-12-31' THEN '+' || {0} WHEN {0} >= '0001-01-01' THEN {0}::text"
        " ELSE ltrim(to_char(1 + extract(year FROM {0}), 'S0000'), '+') || to_char({0}, '-MM-DD') END"
    ),
    "timestamp without time zone": (
        "CASE WHEN {0} > '9999-12-31 23:59:59.999999' THEN '+' WHEN {0} < '0001-01-01'"
        " THEN ltrim(to_char(1 + extract(year FROM {0}), 'S0000'), '+') || '-' ELSE '' END"
        " || translate(regexp_replace({0}::text, CASE WHEN {0} < '0001-01-01' THEN '^[0-9]+-| BC$' ELSE '^$' END,"
        " '', 'g'), ' ', 'T')"
    ),
}


def pg_type(column: TargetColumn) -> str:
    """Return the column's type as PostgreSQL's ``format_type`` writes it."""
    stored = spark_type(column.kind)
    if isinstance(stored, T.DecimalType):
        return f"numeric({stored.precision},{stored.scale})"
    if not isinstance(stored, T.StringType):
        return _TYPES[type(stored)]
    kinds = {kind.name for kind, _ in column.versions}
    return {frozenset(("decimal",)): "numeric", frozenset(("json",)): "json"}.get(frozenset(kinds), "text")


def widens(there: str, wanted: str) -> bool:
    """Whether a column can be altered in place without changing a value."""
    if there.startswith("numeric(") and wanted.startswith("numeric("):
        (precision, scale), (more, same) = (map(int, name[8:-1].split(",")) for name in (there, wanted))
        return scale == same and precision <= more
    return (there, wanted) in _WIDER


def holds(there: str, wanted: str) -> bool:
    """Whether a column that another hand has widened to type `there` has each value just as `wanted` would."""
    return (wanted == "integer" or wanted.startswith("numeric(")) and widens(wanted, there)


def copy_line(columns: Iterable[Column]) -> Column:
    """Join columns that `copy_text` gave to a line of COPY's text format, with its end."""
    cells = [F.coalesce(column, F.lit(_NULL)) for column in columns]
    parted = [part for cell in cells for part in (F.lit("\t"), cell)][1:]
    return F.concat(*parted, F.lit("\n"))


def copy_text(column: TargetColumn) -> Column:
    """Convert a column of typed rows to a cell of COPY's text format; null stays null."""
    value, stored = F.col(quoted(column.name)), spark_type(column.kind)
    if isinstance(stored, T.BinaryType):
        return F.concat(F.lit("\\\\x"), F.hex(value))
    if isinstance(stored, T.DateType | T.TimestampNTZType | T.TimestampType):
        return _era(value, stored)
    if isinstance(stored, T.StructType | T.ArrayType):
        return escaped(F.to_json(readable(value, column.kind, stored), {"ignoreNullFields": "false"}))
    return escaped(value) if isinstance(stored, T.StringType) else value.cast("string")


def copy_instant(since_1970_ms: Column) -> Column:
    """Convert milliseconds to a cell of type timestamptz; null stays null."""
    return _era(F.timestamp_millis(since_1970_ms), T.TimestampType())


def escaped(text: Column) -> Column:
    """Escape text for a cell."""
    for plain, written in _ESCAPES:
        text = F.replace(text, F.lit(plain), F.lit(written))
    return text


def _era(value: Column, stored: T.DataType) -> Column:
    """Convert Spark's ``+10000-01-01`` and ``-0043-03-15`` to PostgreSQL's ``10000-01-01`` and ``0044-03-15 BC``."""
    zone = "+00" if isinstance(stored, T.TimestampType) else ""
    text, year = F.concat(value.cast("string"), F.lit(zone)), F.year(value)
    before = F.concat(
        F.lpad((F.lit(1) - year).cast("string"), 4, "0"), F.regexp_replace(text, "^-?[0-9]+", ""), F.lit(" BC")
    )
    return F.when(year.between(1, _LAST_YEAR), text).when(year > 0, F.ltrim(text, F.lit("+"))).otherwise(before)


def documents(columns: Iterable[TargetColumn], *, of: sql.Composable) -> sql.Composed:
    """Return SQL for the document of these columns of a row of `of`, as `spark_apply.model.document` has it."""
    fields = [sql.SQL("{} AS {}").format(_document(column, of), sql.Identifier(column.name)) for column in columns]
    row = sql.SQL(
        "(SELECT row_to_json(d.*)::text FROM (SELECT {}) d)"
    )  # with .*: without, it would be a column named d
    return row.format(sql.SQL(", ").join(fields))


def _document(column: TargetColumn, of: sql.Composable) -> sql.Composed:
    value = sql.SQL("{}.{}").format(of, sql.Identifier(column.name))
    kind = pg_type(column)
    if column.kind.name == "uint64" and kind != "text":
        return value
    if kind == "timestamp with time zone":
        as_utc = sql.SQL("({} AT TIME ZONE 'UTC')").format(value)
        return sql.SQL("{} || 'Z'").format(sql.SQL(_DOCUMENTS["timestamp without time zone"]).format(as_utc))
    written = _DOCUMENTS.get(kind.split("(", maxsplit=1)[0])
    return sql.SQL(written).format(value) if written else sql.SQL("{}").format(value)
