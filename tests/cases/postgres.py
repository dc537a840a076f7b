"""PostgreSQL's side of the cases: a schema for each, and rows as events have them, by the server's own arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.cases.capturing import Capturing
from tests.conftest import Database
from tests.integration.running import Row

_SCHEMA: Final = "case_"

_MICROS: Final = (
    "(({0}::date - date '1970-01-01')::int8 * 86400000000 + (extract(epoch FROM {0}::time) * 1000000)::int8)"
)
_UTC: Final = "({0} AT TIME ZONE 'UTC')"
_AS_EVENTS_HAVE_IT: Final = {
    **dict.fromkeys(("smallint", "integer", "bigint", "oid", "boolean", "text", "character varying", "name"), "{0}"),
    **dict.fromkeys(("character", "bpchar", "real", "double precision", "text[]", "integer[]", "bigint[]"), "{0}"),
    "date": "{0} - date '1970-01-01'",
    "bytea": "translate(encode({0}, 'base64'), E'\\n', '')",
    "time without time zone": "(extract(epoch FROM {0}) * 1000000)::int8",
    "timestamp without time zone": _MICROS,
    "timestamp with time zone": f"replace(to_char({_UTC}, 'YYYY-MM-DD\"T\"HH24:MI:SS.US'), '.000000', '') || 'Z'",
    "boolean[]": "{0}",
}
_PRINTED: Final = "CASE WHEN {0} IS DISTINCT FROM NULL THEN format('%s', {0}) END"
"""By type, docs/values.md in SQL; a type that is not here is the text that the server prints."""


class PostgresCases:
    """A `CaseSource` of one database."""

    in_order = True

    def __init__(self, database: Database, kafka: str, folder: Path) -> None:
        self._database, self._kafka, self._folder = database, kafka, folder

    def make_room(self, case: str) -> None:
        self._database.execute(f'CREATE SCHEMA "{_SCHEMA}{case}"')

    def execute(self, statements: Mapping[str, Sequence[str]]) -> None:
        connection = self._database.connect()
        try:
            with connection.cursor() as cursor:
                for case, some in statements.items():
                    cursor.execute(f'SET search_path = "{_SCHEMA}{case}"')
                    for statement in some:
                        cursor.execute(statement)
        finally:
            connection.close()

    def session(self, case: str) -> Any:
        """Return a connection to the room of a case, which waits for no other for long."""
        connection = self._database.connect()
        with connection.cursor() as cursor:
            cursor.execute(f'SET search_path = "{_SCHEMA}{case}"')
            cursor.execute("SET lock_timeout = '3s'; SET statement_timeout = '20s'")
        return connection

    def qualified(self, case: str, table: str) -> str:
        return f"{_SCHEMA}{case}.{table}"

    def select(self, case: str, table: str, select: str | None) -> list[Row]:
        connection = self._database.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(f'SET search_path = "{_SCHEMA}{case}"')
                cursor.execute(
                    "SELECT quote_ident(attname), format_type(atttypid, NULL) FROM pg_attribute"
                    " WHERE attrelid = quote_ident(%s)::regclass AND attnum > 0 AND NOT attisdropped"
                    " AND attgenerated = '' ORDER BY attnum",
                    (table,),
                )
                columns = [
                    f"{_AS_EVENTS_HAVE_IT.get(type_, _PRINTED).format(name)} AS {name}"
                    for name, type_ in cursor.fetchall()
                ]
                cursor.execute(select or f"SELECT {', '.join(columns)} FROM {_quoted(table)}")
                names = [column.name for column in cursor.description or ()]
                return [dict(zip(names, map(_as_json, row), strict=True)) for row in cursor.fetchall()]
        finally:
            connection.close()

    def connector(self, which: str) -> Capturing:
        name = f"{which}{self._database.name.removeprefix('test_')}"
        return Capturing(self._folder, name, self._database.url, self._kafka, [f"{_SCHEMA}*.*"])


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _as_json(value: Any) -> Any:
    """JSON has no number for these."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value
