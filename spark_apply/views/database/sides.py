"""Rows that are looked up among others by columns that may be NULL, so that PostgreSQL can hash or index it. Pure.

``IS NOT DISTINCT FROM`` compares each row with each. An equality says the same where no value is NULL, and finds its
rows by an index; of two arrays of one value, NULLs are equal, and they are hashed. So what is looked for is divided.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_apply.views.model.values import quoted


def same(one: str, other: str, by: Sequence[str], *, nulls: bool) -> str:
    """Return the condition that two rows, of columns of the same types, have equal values; with `nulls` also NULLs."""
    if nulls:
        pairs = (f"ARRAY[{one}.{quoted(name)}] = ARRAY[{other}.{quoted(name)}]" for name in by)
    else:
        pairs = (f"{one}.{quoted(name)} = {other}.{quoted(name)}" for name in by)
    return " AND ".join(pairs) or "true"


def has_null(row: str, by: Sequence[str]) -> str:
    """Return the condition that a value is NULL."""
    return " OR ".join(f"{row}.{quoted(name)} IS NULL" for name in by) or "false"


def parts(of: str, by: Sequence[str], *, nulls: bool) -> list[tuple[str, bool]]:
    """Divide what is looked for into rows without NULLs and, if there are any, with some; say of each which it is."""
    if not nulls:
        return [(of, False)]
    with_one = has_null("p", by)
    return [
        (f"(SELECT * FROM {of} p WHERE NOT ({with_one}))", False),
        (f"(SELECT * FROM {of} p WHERE {with_one})", True),
    ]


def among(listed: str, rows: str, of: str, by: Sequence[str], *, nulls: bool, where: str = "true") -> str:
    """Return a query for those of `rows`, which it calls b, that are among rows of a table; each of those once."""
    return " UNION ALL ".join(
        f"SELECT {listed} FROM {rows} b WHERE {where} AND EXISTS "
        f"(SELECT 1 FROM {part} c WHERE {same('c', 'b', by, nulls=some)})"
        for part, some in parts(of, by, nulls=nulls)
    )


def not_among(listed: str, rows: str, of: str, by: Sequence[str], *, nulls: bool) -> str:
    """Return a query for the others."""
    conditions = (
        f"NOT EXISTS (SELECT 1 FROM {part} c WHERE {same('c', 'b', by, nulls=some)})"
        for part, some in parts(of, by, nulls=nulls)
    )
    return f"SELECT {listed} FROM {rows} b WHERE {' AND '.join(conditions)}"


def deletes(rows: str, of: str, by: Sequence[str], *, nulls: bool) -> list[str]:
    """Return statements that remove rows that are among those of a table."""
    return [
        f"DELETE FROM {rows} b USING {part} c WHERE {same('c', 'b', by, nulls=some)}"
        for part, some in parts(of, by, nulls=nulls)
    ]
