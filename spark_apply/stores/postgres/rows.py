"""Reads the rows of a copy as documents. On given cursors of one snapshot."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final

from psycopg2 import sql

from spark_apply.events.history import CURRENT
from spark_apply.model.store import StoredRow
from spark_apply.stores.postgres.keys import asked, having
from spark_apply.stores.postgres.letters import Letters
from spark_apply.stores.postgres.tables import Cursor, Tables, columns_of
from spark_apply.stores.postgres.types import documents

_has_nul: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000").search
"""Whether a JSON text has U+0000: no text in PostgreSQL has it, and it takes no JSON with it."""


def rows_of(
    cur: Cursor, many: Cursor, of: Tables, letters: Letters, ids: Collection[str] | None
) -> Iterator[StoredRow]:
    """Yield all rows, or those with these ids (a key's JSON); of a history the current ones. `many` streams them."""
    had = columns_of(cur, of.rows)
    columns = [column for column in of.table.columns if column.name in had]
    keys = [column for column in columns if column.name in of.table.key]
    row = sql.Identifier("t")
    key = documents(keys, of=row)
    query = sql.SQL("SELECT {}, {} FROM {} t").format(key, documents(columns, of=row), of.own_rows)
    wanted: list[sql.Composable] = [sql.Identifier(CURRENT)] if of.table.history else []
    wanted += [having(keys, key)] if ids is not None else []
    if wanted:
        query = sql.SQL("{} WHERE {}").format(query, sql.SQL(" AND ").join(wanted))
    missing = letters.missing(cur, "".join(ids or ()).encode())
    there = None if ids is None else [id_ for id_ in ids if missing.isdisjoint(id_) and not _has_nul(id_)]
    many.execute(query, None if there is None else (asked(there, keys),))
    for id_, document in many:
        yield StoredRow(id_, document)
