"""Names the tables that a view's SQL reads, without looking further into it. Pure."""

from __future__ import annotations

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError

from cdc.model.errors import ConfigError


def tables_named(view: str, sql: str) -> frozenset[str]:
    """Return ``schema.table`` of each table named with a schema. Raises ConfigError for what cannot be parsed."""
    try:
        tree = sqlglot.parse_one(sql, read="spark")
    except ParseError as exc:
        said = exc.errors[0] if exc.errors else {}
        line = f" line {said['line']}:" if said.get("line") else ""
        what = said.get("description") or "it cannot be parsed"
        raise ConfigError(f"views.{view}.sql:{line} {what}", hint="one SELECT in Spark's SQL") from None
    except TokenError:
        raise ConfigError(f"views.{view}.sql: a string or a comment in it does not end", hint="close it") from None
    return frozenset(f"{table.db}.{table.name}" for table in tree.find_all(exp.Table) if table.db)
